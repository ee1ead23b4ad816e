"""Words with variables put in, in bash's order: braces, parameters, splitting; what is not known becomes unread."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import translate
from typing import Any, Protocol

from .arithmetic import computed
from .braces import brace_expanded
from .nodes import Arithmetic, Parameter, Text, Unread, Word
from .operations import LONGEST_MATCHED, cased, cut, piece, replaced, slices
from .script import MANY, NEVER, UNREAD, Abandoned, Exit, Script

PLAIN, SPLIT, QUOTED, BREAK = "plain", "split", "quoted", "break"
Piece = tuple[str, str]  # how it is treated, text
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|@")
_INDIRECT = re.compile(rf"({_NAME.pattern})(\[.*\])?|[*#?!$-]", re.DOTALL)
_BLANKS = " \t\n"
_ALTERNATIVES = re.compile(r"[@?*+!]\(")
_BRACKETS = re.compile(r"\[[!^]?[A-Za-z0-9_.,:/ -]+\]")


class Shell(Protocol):
    """What expansion needs of the state of a script."""

    script: Script
    erroneous: bool  # whether bash refuses the expression last computed
    presuming: int  # 1: in a condition, no arguments are presumed; 2: names that no text sets are presumed empty

    def value(self, name: str) -> Any:
        """A text, list, table, None (unset) or NEVER (set by no text)."""
        ...

    def assign(self, name: str, text: str) -> None:
        """Set a variable."""
        ...

    def forget(self, names: Iterable[str]) -> None:
        """Set variables to what is not read."""
        ...

    def forget_assigned(self, node: Any) -> Any:
        """Set what a node may assign to what is not read."""
        ...

    def presume(self, name: str) -> None:
        """Note that a name is taken as unset."""
        ...

    def charge(self, amount: int) -> None:
        """Count work. PerfgridError beyond the limit, and for words that are too long."""
        ...

    def check(self, text: str) -> str:
        """A word. PerfgridError for one that is too long."""
        ...


def fields(shell: Shell, word: Word) -> list[str]:
    """The words that a word becomes as part of a command."""
    words = brace_expanded(word)
    shell.charge(20 * (len(words) - 1))
    return [field for one in words for field in _split(shell, _pieces(shell, one))]


def joined(shell: Shell, word: Word, long: bool = False) -> str:
    """The text that a word becomes where nothing is split: as the value of an assignment; ``long`` for a document."""
    texts = [" " if kind is BREAK else text for kind, text in _pieces(shell, word)]
    return "".join(texts) if long else shell.check("".join(texts))


def pattern(shell: Shell, word: Word) -> str | None:
    """The regular expression of a word as a pattern; None where it is not read."""
    found = ""
    for kind, text in _pieces(shell, word):
        if UNREAD in text or (kind is SPLIT and "\\" in text):
            return None
        if kind in (QUOTED, BREAK):
            found += re.sub(r"([*?[])", r"[\1]", text) or (" " if kind is BREAK else "")
        elif "[" in _BRACKETS.sub("", text) or _ALTERNATIVES.search(text):
            return None
        else:
            found += text.replace("[^", "[!")
    shell.charge(len(found))
    return None if shell.script.held.get("shopt nocasematch") else translate(shell.check(found))


def _split(shell: Shell, pieces: list[Piece]) -> list[str]:
    """Fields: text from unquoted variables is split at blanks, what may name files is not read."""
    found, open_field = list[str](), None
    for kind, text in pieces:
        if kind is BREAK:
            found += [open_field] if open_field is not None else []
            open_field = None
            continue
        if kind is QUOTED:
            open_field = (open_field or "") + text
            continue
        text = text.replace(UNREAD, MANY) if kind is SPLIT else text
        parts = [_unmatched(part) for part in (_divided(shell, text) if kind is SPLIT else [text])]
        if len(parts) > 1:
            found += [field for field in ((open_field or "") + parts[0],) if field or open_field is not None]
            found += parts[1:-1]
            open_field = parts[-1] or None
        elif parts[0]:
            open_field = (open_field or "") + parts[0]
    found += [open_field] if open_field is not None else []
    shell.charge(len(found))
    for field in found:
        shell.check(field)
    return found


def _unmatched(text: str) -> str:
    """A text up to a sign that stands for names of files, of which an execution knows."""
    found = re.search(r"[*?]", text)
    return text[: found.start()] + MANY if found else text


def _divided(shell: Shell, text: str) -> list[str]:
    """A text at its blanks; with other separators (IFS) one that holds them is not read."""
    separators = shell.value("IFS")
    if isinstance(separators, str) and set(separators) != set(_BLANKS):
        return [MANY] if UNREAD in separators or any(sign in text for sign in separators) else [text]
    if not any(sign in text for sign in _BLANKS):
        return [text]
    return re.split(r"[ \t\n]+", text)


def _pieces(shell: Shell, word: Word, unquoted: str = PLAIN) -> list[Piece]:
    """The parts of a word with their values; plain ones are treated as ``unquoted``."""
    found = list[Piece]()
    for part in word:
        match part:
            case Text(text, quoted):
                found.append((QUOTED if quoted else unquoted, text))
            case Unread(quoted):
                found.append((QUOTED if quoted else SPLIT, UNREAD))
            case Arithmetic(expression, quoted):
                number = computed(joined(shell, expression), shell)
                if number is None and shell.erroneous:
                    raise Abandoned
                found.append((QUOTED if quoted else SPLIT, UNREAD if number is None else str(number)))
            case Parameter():
                found += _parameter(shell, part)
    shell.charge(len(found) + sum(len(text) for _, text in found) // 16)
    return found


def _parameter(shell: Shell, part: Parameter) -> list[Piece]:
    kind = QUOTED if part.quoted else SPLIT
    if part.before == "!":
        if part.index in ("@", "*"):
            return _several(shell, part, _keys(shell.value(part.name)))
        held = shell.value(part.name)
        if held is None or (isinstance(held, str) and UNREAD not in held and not _INDIRECT.fullmatch(held)):
            raise Abandoned
        if part.index is not None or not isinstance(held, str) or not _NAME.fullmatch(held):
            return [(kind, UNREAD)]
        part = replace(part, name=held, before="")
    several = part.name in ("@", "*") or part.index in ("@", "*")
    value = _listed(shell, part) if several else _text(shell, part)
    if part.before == "#":
        return [(kind, _length(shell, part, value))]
    if part.operation.lstrip(":") in ("-", "=", "+", "?") and part.operation != ":":
        return _with_default(shell, part, value)
    if part.operation and value is not NEVER and value is not None:
        value = _changed(shell, part, value)
    return _several(shell, part, value) if several else [(kind, _plain(shell, part.name, value))]


def _changed(shell: Shell, part: Parameter, value: Any) -> Any:
    """A text, or each of a list, after an operation; unread where bash's result is not known."""
    operation, arguments = part.operation, part.arguments
    texts = value if isinstance(value, list) else [value]
    change = None
    if operation == ":":
        numbers = [computed(joined(shell, one), shell) for one in arguments]
        if isinstance(value, list):
            shifted = part.name in ("@", "*")  # $0 stands before the first of the arguments
            return [MANY] if shifted and numbers[0] in (0, None) else slices(["", *value][not shifted :], numbers)
        change = lambda text: piece(text, numbers)  # noqa: E731
    elif operation[0] in "^,":
        change = (lambda text: cased(text, operation)) if not arguments[0] else None
    elif operation != "@" and (wanted := pattern(shell, arguments[0])) is not None:
        new = arguments[1] if len(arguments) > 1 else ()
        clear = all(kind is QUOTED or "&" not in text for kind, text in _pieces(shell, new))  # & may be what matched
        by = joined(shell, new) if clear else UNREAD
        if operation[0] in "%#":
            change = lambda text: cut(text, operation, wanted)  # noqa: E731
        elif UNREAD not in by:
            change = lambda text: replaced(text, operation, wanted, by)  # noqa: E731
    found = list[str]()
    for text in texts:
        known = change is not None and UNREAD not in text and len(text) <= LONGEST_MATCHED
        found.append(change(text) if known else MANY if MANY in text else UNREAD)  # type: ignore[misc]
    shell.charge(sum(len(text) * (len(text) // 32 + 1) for text in texts))
    return [shell.check(text) for text in found] if isinstance(value, list) else shell.check(found[0])


def _plain(shell: Shell, name: str, value: Any) -> str:
    """The text that stands for a value where no default is stated."""
    if value is NEVER and shell.presuming > 1:
        shell.presume(name)
        return ""
    return UNREAD if value is NEVER else value or ""


def _several(shell: Shell, part: Parameter, value: Any) -> list[Piece]:
    """``$@``, ``${A[@]}`` and those with ``*``: one piece for each element, or all in one."""
    if value is NEVER and shell.presuming > 1:
        shell.presume(part.name)
        value = []
    texts = [MANY] if value is NEVER else value or []
    shell.charge(len(texts))
    if part.quoted and "*" in (part.name, part.index):
        separators = shell.value("IFS")
        between = separators[:1] if isinstance(separators, str) else " "
        return [(QUOTED, shell.check(between.join(texts)))]
    kind, found = QUOTED if part.quoted else SPLIT, list[Piece]()
    for i, text in enumerate(texts):
        found += [(BREAK, ""), (kind, text)] if i else [(kind, text)]
    return found


def _keys(held: Any) -> Any:
    """The places of a list, or the only key of a table, whose order is not known."""
    if isinstance(held, list):
        return [MANY] if any(MANY in text for text in held) else [str(i) for i in range(len(held))]
    if isinstance(held, dict):
        return list(held) if len(held) < 2 else [MANY]
    return NEVER if held is NEVER else [] if held is None else [MANY]


def _listed(shell: Shell, part: Parameter) -> Any:
    """All elements of a variable, or the arguments; NEVER where no text sets them."""
    if part.name in ("@", "*"):
        arguments = shell.script.held.get("@")
        return NEVER if arguments is None else arguments
    held = shell.value(part.name)
    if isinstance(held, dict):
        return list(held.values()) if len(held) < 2 else [MANY]
    if isinstance(held, str):
        return [MANY if held[:1] == UNREAD else held]  # perhaps a list
    return [] if held is None else held


def _text(shell: Shell, part: Parameter) -> Any:
    """The text of a parameter; None where it is unset, NEVER where no text sets it."""
    name, arguments = part.name, shell.script.held.get("@")
    if name == "#":
        if arguments is None and shell.presuming:
            shell.presume("arguments")
            return "0"
        return UNREAD if arguments is None or any(MANY in text for text in arguments) else str(len(arguments))
    if name.isdecimal() and name != "0":
        if arguments is None:
            return NEVER
        before = arguments[: int(name[:6])]
        known = not any(MANY in text for text in before) and len(name) < 6
        return UNREAD if not known else before[-1] if len(before) == int(name) else None
    if not (name[0].isalpha() or name[0] == "_"):
        return UNREAD
    held = shell.value(name)
    if isinstance(held, dict):
        key = joined(shell, part.index) if isinstance(part.index, tuple) else "0"
        unread = not key or UNREAD in key or any(UNREAD in one for one in held)
        return UNREAD if unread else held.get(key)
    if isinstance(part.index, tuple):
        place = computed(joined(shell, part.index), shell)
        return _element(held, place)
    return held[0] if isinstance(held, list) and held else None if isinstance(held, list) else held


def _element(held: Any, place: int | None) -> Any:
    """An element of a list; unread behind words of which the number is not known."""
    if place is None or (isinstance(held, str) and held[:1] == UNREAD):
        return UNREAD
    held = [held] if isinstance(held, str) else [] if held is None else held
    if held is NEVER:
        return NEVER
    before = held[: place + 1] if place >= 0 else held
    if any(MANY in text for text in before):
        return UNREAD
    return held[place] if -len(held) <= place < len(held) else None


def _length(shell: Shell, part: Parameter, value: Any) -> str:
    if value is NEVER and shell.presuming and isinstance(part.index, str):
        shell.presume(part.name)
        return "0"
    unread = UNREAD if isinstance(value, str) else MANY
    if value is NEVER or any(unread in text for text in ([value] if isinstance(value, str) else value or [])):
        return UNREAD
    return str(len(value or ""))


def _with_default(shell: Shell, part: Parameter, value: Any) -> list[Piece]:
    """``${A:-word}`` and its like; names that no text sets are presumed to be unset."""
    several, kind = isinstance(value, list), QUOTED if part.quoted else SPLIT
    if value is NEVER:
        shell.presume(part.name)
        holds = False
    elif several:
        text = " ".join(value)
        holds = None if text[:1] == UNREAD else bool(value) and (part.operation[0] != ":" or text != "")
    elif value is None or (value == "" and part.operation[0] == ":"):
        holds = False
    else:
        holds = None if value[:1] == UNREAD else True  # it may stand for nothing, or for no value
    operation = part.operation[-1]
    if holds is None:
        shell.forget_assigned(part.arguments)
        return [(kind, UNREAD)]
    if holds and operation != "+":
        return _several(shell, part, value) if several else [(kind, str(value))]
    if operation == "?":
        if value is not NEVER:
            raise Exit(False)
        return [(kind, UNREAD)]
    if holds == (operation == "+"):
        found = _pieces(shell, part.arguments[0], kind)
        if operation == "=":
            text = "".join(" " if one is BREAK else text for one, text in found)
            shell.assign(part.name, text) if part.index is None else shell.forget([part.name])
            return [(kind, text)]
        return found or ([(QUOTED, "")] if part.quoted else [])
    return [(QUOTED, "")] if part.quoted else []
