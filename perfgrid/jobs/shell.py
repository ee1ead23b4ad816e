"""Command lines and shell scripts as text: variables are put in, nothing is executed.

Understood are assignments (``A=1``, ``export A=1``, ``: ${A:=1}``, ``unset A``), lists (``A=(...)``, ``A+=(...)``),
``$A``, ``${A}``, ``${A[@]}``, ``${A:-1}``, ``${A:=1}`` and whole numbers in ``$((...))``. Of conditions
those are decided that compare two known texts; what depends on others, on a loop, a function or another command is not
read, and noted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import floor

from perfgrid.engine.errors import PerfgridError, shortened

LARGEST_SCRIPT = 2**18  # characters
MOST_WORDS = 100_000  # after variables are put in: lists may hold lists
LONGEST_WORD = 10_000
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_COMMENT = re.compile(r"(^|\s)#[^\n]*")
_REDIRECTED = re.compile(r"(\s)\d?[<>]{1,2}\s*&?\s*[^\s;|&()]+")
_ARITHMETIC = re.compile(r"\$\(\(([^()\n]*(?:\([^()\n]*\)[^()\n]*)*)\)\)")
_COMMAND = re.compile(r"\$\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)|`[^`\n]*`")
_VARIABLE = re.compile(r"\$\{(\w+)(\[[@*]\])?(?::?([-=])([^{}]*))?\}|\$(\w+)|\$\{=([^{}]*)\}")
_PRODUCT = re.compile(r"\s*(\d+|[A-Za-z_]\w*|[()*/%+-])")
_OPENS = {"if": "fi", "for": "done", "while": "done", "until": "done", "case": "esac", "{": "}"}
_TESTS = ("[", "[[", "test")
UNREAD = "\0"  # stands for what only an execution would know
_HANDS_ON = re.compile(r"-[a-z]*c")  # an option of shells: the next word is a command
_REMOTE = ("ssh", "eval")
MOST_WITHIN = 3  # command strings within each other
_SEPARATORS = set("();&|<>\n")


@dataclass
class Script:
    """The variables of a script, the words of its commands, and notes on what was not read."""

    variables: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    unsure: list[list[str]] = field(default_factory=list)  # commands under a condition or in a function
    notes: list[tuple[str, str]] = field(default_factory=list)  # what, why
    blocks: list[tuple[str, bool | None, bool]] = field(default_factory=list)  # end, read (None: unknown), branch taken
    within: int = 0  # how many command strings (``bash -c "..."``) it is in


def script_of(text: str, where: str, known: Script | None = None) -> Script:
    """The script that a text holds, behind one already read. PerfgridError for unclosed quotes and too long ones."""
    if len(text) > LARGEST_SCRIPT:
        raise PerfgridError(f"{where}: a script has at most {LARGEST_SCRIPT:,} characters, found {len(text):,}")
    found = known or Script()
    text = _COMMENT.sub(r"\1", text.replace("\\\r\n", " ").replace("\\\n", " "))
    text = _ARITHMETIC.sub(lambda sum: "${=" + sum[1].replace("{", "").replace("}", "").replace(" ", "") + "}", text)
    text = _REDIRECTED.sub(r"\1", _COMMAND.sub(UNREAD, text))
    holds: bool | None = True  # what stands before && or ||
    for words, ends in _statements(text, where):
        if words[0] in _TESTS:
            verdict = _decided(found, words if words[0] != "test" else ["[", *words[1:], "]"], where)
            holds = not verdict if ends == "||" and verdict is not None else verdict
        elif holds:
            _read(found, words, ends, where)
        elif holds is None:
            _noted(found, words, "behind a condition, which is not executed", where)
        holds = holds if ends in ("&&", "||") else True
    return found


def unlaunched(texts: Iterable[str]) -> list[str]:
    """The lists and variables of scripts that hold options, where none of these is given to a command."""
    script = Script()
    try:
        for text in texts:
            script_of(text, "", script)
    except PerfgridError:
        return []
    held = {**script.lists, **{name: value.split() for name, value in script.variables.items()}}
    held = {name: {w for w in words if w.startswith("--")} for name, words in held.items()}
    given = {word for words in (*script.commands, *script.unsure) for text in words for word in text.split()}
    return [] if any(own & given for own in held.values()) else [name for name, own in held.items() if len(own) > 1]


def _noted(script: Script, words: list[str], why: str, where: str) -> None:
    """Name an assignment that is not read, or a command with options."""
    assigned = _ASSIGNED.fullmatch(words[1] if words[0] == "export" and len(words) > 1 else words[0])
    if assigned:
        script.notes.append((assigned[1], f"set {why}"))
        return
    command = [part for word in words for part in _expanded(script, word, where)]
    if any(word.startswith("--") for word in command):
        script.notes.append((shortened(" ".join(command), 60), f"a command {why}"))
        script.unsure += _inner(script, command, where) or [command]


def _statements(text: str, where: str) -> Iterator[tuple[list[str], str]]:
    """The words of each statement and what ends it; a list in brackets belongs to its statement."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();&|<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words, depth = list[str](), 0
    try:
        for word in lexer:
            if not set(word) <= _SEPARATORS:
                words.append(word)
                continue
            for sign in word:
                depth += {"(": 1, ")": -1}.get(sign, 0)
                if sign in "()<>":
                    words.append(sign)
                elif depth <= 0 and words:
                    yield words, sign if word.count(sign) == 1 or sign == "\n" else word
                    words, depth = [], 0
    except ValueError as error:
        raise PerfgridError(f"{where}: cannot be read as a shell script: {str(error).lower()}") from None
    if words:
        yield words, "\n"


def _read(script: Script, words: list[str], ends: str, where: str) -> None:
    """Take in one statement and what ends it."""
    while words and words[0] in ("then", "do"):
        words = words[1:]
    blocks = script.blocks
    if words and blocks and words[0] in ("else", "elif"):
        end, read, taken = blocks[-1]
        unsure = read is None or words[0] == "elif"
        blocks[-1] = (end, False if taken else None if unsure else True, taken or not unsure)
        words = words[1:] if words[0] == "else" else []
    if not words:
        return
    if words[0] in _OPENS or words[1:3] == ["(", ")"] or words[0] == "function":
        outside = all(read for _, read, _ in blocks)
        decided = _decided(script, words[1:], where) if words[0] == "if" and outside and ends in ";\n" else None
        blocks.append((_OPENS.get(words[0], "}"), decided, decided is True))
        if blocks[-1][0] in words[1:]:
            blocks.pop()
        return
    if blocks and words[0] == blocks[-1][0]:
        blocks.pop()
        return
    if not all(read for _, read, _ in blocks):
        if all(read is not False for _, read, _ in blocks):
            _noted(script, words, "under a condition or in a function, which is not executed", where)
        return
    if words[0] in ("export", "declare", "local", "readonly") or (words[0] == ":" and len(words) > 1):
        words = [word for word in words[1:] if not word.startswith("-")]
    if words and words[0] == "unset":
        for name in words[1:]:
            script.variables.pop(name, None)
        return
    if words and words[0] in ("source", "."):
        script.notes.append((" ".join(words), "another file: name it before this one"))
        return
    while words and (assigned := _ASSIGNED.fullmatch(words[0])):
        name, more, value = assigned.groups()
        if value == "" and words[1:2] == ["("]:
            end = words.index(")", 2) if ")" in words else len(words)
            own = [part for word in words[2:end] for part in _expanded(script, word, where)]
            script.lists[name] = [*script.lists.get(name, []), *own] if more else own
            words = words[end + 1 :]
            continue
        value = " ".join(_expanded(script, value, where, split=False))
        script.variables[name] = (script.variables.get(name, "") + value) if more else value
        words = words[1:]
    command = [part for word in words for part in _expanded(script, word, where)]
    if any(word.strip() for word in command):
        script.commands += _inner(script, command, where) or [command]


def _inner(script: Script, command: list[str], where: str) -> list[list[str]]:
    """The commands of the one word with options that a command hands to a shell (``bash -c "..."``); else none."""
    texts = [word for word in command if " --" in word and not word.startswith("-")]
    handed = any(_HANDS_ON.fullmatch(word) for word in command) or command[0] in _REMOTE
    if len(texts) != 1 or not handed or script.within == MOST_WITHIN:
        return []
    inner = Script(dict(script.variables), dict(script.lists), within=script.within + 1)
    try:
        script_of(texts[0], where, inner)
    except PerfgridError:
        return []
    script.unsure += inner.unsure
    script.notes += inner.notes
    return inner.commands


def _decided(script: Script, words: list[str], where: str) -> bool | None:
    """Whether a condition holds that compares two texts, or asks for an empty one; None for any other."""
    inner = words[1:-1] if words[:1] in (["["], ["[["]) and words[-1] in ("]", "]]") else []
    parts = [" ".join(_expanded(script, word, where, split=False)) for word in inner]
    if any(map(is_unread, parts)):
        return None
    match parts:
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case ["-z", text]:
            return text == ""
        case ["-n", text]:
            return text != ""
    return None


def _expanded(script: Script, word: str, where: str, split: bool = True) -> list[str]:
    """A word with its variables put in; where it is nothing but a variable, the words of its value."""
    whole = _VARIABLE.fullmatch(word)
    if whole and (whole[1] or whole[5]) in script.lists and (whole[1] or whole[5]) not in script.variables:
        return _limited(list(script.lists[whole[1] or whole[5]]), where)

    def value(found: re.Match[str]) -> str:
        if found[6] is not None:
            return _sum(script, found[6])
        name = found[1] or found[5]
        held = " ".join(script.lists[name]) if name in script.lists else script.variables.get(name)
        if held:
            return held
        if found[3]:
            default = " ".join(_expanded(script, found[4], where, split=False)) if found[4] else ""
            if found[3] == "=":
                script.variables[name] = default
            return default
        return UNREAD if held is None else ""

    text = _VARIABLE.sub(value, word)
    if whole and not split:
        return [text]
    try:
        parts = shlex.split(text) if whole and split else [text]
    except ValueError:
        parts = text.split()
    return _limited(parts, where)


def _limited(words: list[str], where: str) -> list[str]:
    if len(words) > MOST_WORDS or any(len(word) > LONGEST_WORD for word in words):
        raise PerfgridError(f"{where}: variables stand for too much text: {shortened(' '.join(words[:3]), 60)!r}")
    return words


def _sum(script: Script, text: str) -> str:
    """The value of whole numbers, names and ``+ - * / %``; unread for anything else."""
    parts = _PRODUCT.findall(text.replace("$", ""))
    if "".join(parts) != text.replace("$", "").replace(" ", "") or len(parts) > 100:
        return UNREAD
    numbers = [part if not part[0].isalpha() and part[0] != "_" else script.variables.get(part, "") for part in parts]
    try:
        value, rest = _added(numbers)
    except (ValueError, ZeroDivisionError, IndexError, RecursionError):
        return UNREAD
    return UNREAD if rest or abs(value) > 10**15 else str(value)


def _added(parts: list[str]) -> tuple[int, list[str]]:
    value, parts = _multiplied(parts)
    while parts and parts[0] in "+-":
        other, rest = _multiplied(parts[1:])
        value, parts = (value + other if parts[0] == "+" else value - other), rest
    return value, parts


def _multiplied(parts: list[str]) -> tuple[int, list[str]]:
    value, parts = _single(parts)
    while parts and parts[0] in "*/%":
        other, rest = _single(parts[1:])
        value = value * other if parts[0] == "*" else floor(value / other) if parts[0] == "/" else value % other
        parts = rest
    return value, parts


def _single(parts: list[str]) -> tuple[int, list[str]]:
    if parts[0] == "(":
        value, rest = _added(parts[1:])
        if rest[:1] != [")"]:
            raise ValueError
        return value, rest[1:]
    return int(parts[0]), parts[1:]


def is_unread(text: str) -> bool:
    """Whether a value comes from a command or a variable that the text does not state."""
    return UNREAD in text
