"""The commands that bash itself has and that change variables or say whether something holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .arithmetic import computed
from .conditions import tested
from .expansion import fields, joined
from .nodes import Assignment, Simple
from .parser import parsed
from .scanner import NAME
from .script import MANY, NEVER, UNREAD, Abandoned, Exit, Leaving
from .state import Break, Continue, Return, State

Words = list[Any]
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[.*?\])?\+?=(.*)", re.DOTALL)
_TRAITS = {"i": "integer", "l": "other", "u": "other", "n": "other", "r": "other", "c": "other"}
_BLANKS = " \t\n"


def set_variable(shell: State, node: Assignment) -> None:
    """Carry out one assignment."""
    name, append = node.name, node.append
    if node.elements is not None:
        _set_list(shell, node)
    elif node.index is not None:
        _set_element(shell, node, joined(shell, node.value or ()))
    else:
        shell.assign(name, joined(shell, node.value or ()), append)
    if shell.script.held.get("set -a") is True:
        shell.put(f"{name}: export", True)


def _set_list(shell: State, node: Assignment) -> None:
    elements = node.elements or ()
    held = shell.script.held.get(node.name)
    if isinstance(held, dict):
        keys = [None if place is None else joined(shell, place) for place, _ in elements]
        values = [joined(shell, word) for _, word in elements]
        known = all(key is not None and UNREAD not in key for key in keys)
        table = (held if node.append else {}) | dict(zip(map(str, keys), values, strict=True))
        shell.put(node.name, table if known else UNREAD)
        return
    texts, placed = list[str](), False
    for place, word in elements:
        if place is not None:  # known where it is the next one
            placed |= computed(joined(shell, place), shell) != len(texts) or any(MANY in text for text in texts)
            texts.append(joined(shell, word))
        else:
            texts += fields(shell, word)
    if placed or (shell.script.held.get(f"{node.name}: trait") and texts):
        shell.put(node.name, [MANY])
    elif node.append and not (isinstance(held, str) and held[:1] == UNREAD):
        if any(place is not None for place, _ in elements):
            shell.put(node.name, [MANY])
        else:
            shell.extend(node.name, texts)
    else:
        shell.put(node.name, [MANY] if node.append else texts)
    shell.charge(len(texts))


def _set_element(shell: State, node: Assignment, value: str) -> None:
    held, index = shell.script.held.get(node.name), joined(shell, node.index or ())
    if isinstance(held, dict):
        if not index:
            raise Abandoned
        new = (held.get(index, "") if node.append else "") + value
        shell.put(node.name, held | {index: new} if index and UNREAD not in index else UNREAD)
        shell.charge(len(held))
        return
    texts = [held] if isinstance(held, str) else [] if held is None else held
    place = computed(index, shell)
    lost = isinstance(held, str) and held[:1] == UNREAD  # perhaps a list
    unread = lost or place is None or any(MANY in text for text in texts)
    unread = unread or shell.script.held.get(f"{node.name}: trait")
    if not unread and (place or 0) < -len(texts):
        raise Abandoned
    if unread or (place or 0) > len(texts):
        shell.put(node.name, [MANY])
    elif place == len(texts):
        shell.extend(node.name, [value])
    else:
        texts = list(texts)
        texts[place] = (texts[place] if node.append else "") + value  # type: ignore[index]
        shell.put(node.name, texts)
        shell.charge(len(texts))


def _split_options(words: Words) -> tuple[str, Words]:
    """Letters of options and what stands behind them."""
    letters, rest = "", list(words)
    while rest and isinstance(rest[0], str) and re.fullmatch(r"[-+][A-Za-z]+", rest[0]):
        letters += rest.pop(0)
    return letters, rest[1:] if rest[:1] == ["--"] else rest


def _declare(shell: State, words: Words, node: Simple) -> Any:
    letters, rest = _split_options(words[1:])
    command = words[0]
    if "f" in letters or "p" in letters or "F" in letters:
        return True
    local = shell.scopes and command in ("declare", "typeset", "local") and "g" not in letters
    for one in rest:
        found = _ASSIGNED.fullmatch(one) if isinstance(one, str) else None
        name = one.name if isinstance(one, Assignment) else found[1] if found else str(one)
        if not NAME.fullmatch(name):
            shell.note(f"{command} {name}".replace(UNREAD, "..."), "names that only an execution knows")
            continue
        value = joined(shell, one.value) if isinstance(one, Assignment) and one.value is not None else None
        if local and name not in shell.scopes[-1]:
            shell.scopes[-1][name] = (shell.script.held.get(name, NEVER), len(shell.changes))
            if name not in shell.given[-1]:  # a variable before the call keeps its value
                shell.put(name, UNREAD if any(name in given for given in shell.given) else None)
        for given in [] if local else shell.given:
            given |= {name: True} if name in given else {}
        _set_traits(shell, name, letters, command)
        if value is not None and isinstance(one, Assignment) and one.index is None:
            shell.assign(name, value, one.append)
        elif isinstance(one, Assignment):
            set_variable(shell, one)
        elif found:
            shell.assign(name, found[3]) if not found[2] else shell.put(name, UNREAD)
        elif "A" in letters and not isinstance(shell.script.held.get(name), dict):
            shell.put(name, {})
    return True


def _set_traits(shell: State, name: str, letters: str, command: str) -> None:
    if "n" in letters and command != "export":  # another name for a variable: its own value is not read
        shell.forget([n for n, v in shell.script.held.items() if isinstance(v, (str, list)) and n.isidentifier()])
    if command == "export" or "x" in letters:
        shell.put(f"{name}: export", "+" not in letters and not (command == "export" and "n" in letters))
    if "A" in letters and not isinstance(shell.script.held.get(name), dict):
        shell.put(name, {})
    if "a" in letters and shell.script.held.get(name) is None:
        shell.put(name, [])
    if command == "export":
        return
    for letter, trait in _TRAITS.items():
        if letter in letters:
            shell.put(f"{name}: trait", trait if "+" not in letters else "other")
            if letter in "lun":
                shell.put(name, UNREAD)
    if command == "readonly":
        shell.put(f"{name}: trait", "constant")


def _unset(shell: State, words: Words, node: Simple) -> Any:
    letters, names = _split_options(words[1:])
    status: bool | None = True
    for name in names:
        base = NAME.match(name)
        if "f" in letters or (base and f"{name}()" in shell.script.held and shell.value(name) in (NEVER, None)):
            shell.put(f"{name}()", NEVER)
        elif base and base[0] == name and "n" not in letters:
            shell.put(name, None)
            shell.put(f"{name}: trait", NEVER)
        elif base:
            shell.forget([base[0]])
            status = None
    return status


def _set(shell: State, words: Words, node: Simple) -> Any:
    rest = words[1:]
    while rest and re.fullmatch(r"[-+][A-Za-z]+", rest[0]):
        letters = rest.pop(0)
        on = letters[0] == "-"
        if letters.endswith("o"):
            option = rest.pop(0) if rest else ""
            letters += {"errexit": "e", "allexport": "a"}.get(option, "")
        for letter in "ea":
            if letter in letters[1:]:
                shell.put(f"set -{letter}", on)
    if rest[:1] in (["--"], ["-"]) or rest:
        shell.put("@", rest[1:] if rest[0] in ("--", "-") else rest)
    return True


def _shift(shell: State, words: Words, node: Simple) -> Any:
    held, count = shell.script.held.get("@"), words[1] if len(words) > 1 else "1"
    if held is None:
        return None
    known = count.isdecimal() and len(count) < 9 and not any(MANY in text for text in held[: int(count)])
    if not known:
        shell.forget("@")
        return None
    if int(count) > len(held):
        return False
    shell.put("@", held[int(count) :])
    shell.charge(len(held))
    return True


def _read(shell: State, words: Words, node: Simple) -> Any:
    """Names from a here-string; what files and pipes hold is not read."""
    letters, names = _split_options(words[1:])
    plain = re.sub(r"[-+r]", "", letters)
    texts = [joined(shell, one.word) for one in node.redirections if one.operator == "<<<"]
    text = texts[-1].partition("\n")[0] if texts else UNREAD
    separators = shell.value("IFS")
    usual = separators in (NEVER, None) or (isinstance(separators, str) and set(separators) == set(_BLANKS))
    if plain not in ("", "a") or not usual or UNREAD in text or ("\\" in text and "r" not in letters):
        shell.forget([name for name in names or ["REPLY"] if NAME.fullmatch(name)])
        return None
    if plain == "a":
        shell.put(names[0], text.split()) if names and NAME.fullmatch(names[0]) else None
        return True
    parts = re.split(r"[ \t]+", text.strip(" \t"), maxsplit=max(len(names) - 1, 0))
    for name, part in zip(names, [*parts, *[""] * len(names)], strict=False):
        if NAME.fullmatch(name):
            shell.assign(name, part)
    return True


def _names_unread(shell: State, words: Words, node: Simple) -> Any:
    """``mapfile``, ``getopts`` and others: what they set is not read."""
    shell.forget(name for name in words[1:] if NAME.fullmatch(name))
    return None


def _printf(shell: State, words: Words, node: Simple) -> Any:
    if words[1:2] == ["-v"]:
        shell.forget(name for name in words[2:3] if NAME.fullmatch(name))
    return True


def _let(shell: State, words: Words, node: Simple) -> Any:
    found: int | None = 0
    for word in words[1:]:
        found = computed(word, shell)
    return None if found is None else found != 0


def _eval(shell: State, words: Words, node: Simple) -> Any:
    text = " ".join(words[1:])
    if len(text) > 10_000 or not text.strip(UNREAD + " "):
        return None
    return shell.run(parsed(text, shell.where))


def _source(shell: State, words: Words, node: Simple) -> Any:
    file = words[1].rpartition("/")[2] if len(words) > 1 else ""
    text = shell.script.held.get(f"{file}: text")
    if isinstance(text, str):
        return shell.run(parsed(text, shell.where))
    shell.note(" ".join(words).replace(UNREAD, "..."), "another file: name it before this one")
    return "likely"


def _bracket(shell: State, words: Words, node: Simple) -> Any:
    return tested(shell, words[1:-1]) if words[-1] == "]" else False


def _leave(kind: Callable[..., Leaving]) -> Callable[..., Any]:
    def leave(shell: State, words: Words, node: Simple) -> Any:
        status: Any = words[1] == "0" if len(words) > 1 and words[1].isdecimal() else None
        if kind is Return and not shell.scopes:
            raise Exit(status)
        raise kind(status)

    return leave


def _leave_loop(kind: Callable[..., Leaving]) -> Callable[..., Any]:
    def leave(shell: State, words: Words, node: Simple) -> Any:
        levels = int(words[1]) if len(words) > 1 and words[1].isdecimal() and len(words[1]) < 9 else 1
        if shell.loops:
            raise kind(None, min(levels, shell.loops))
        return True

    return leave


def _shopt(shell: State, words: Words, node: Simple) -> Any:
    for word in words[1:]:
        if not word.startswith("-"):
            shell.put(f"shopt {word}", "-u" not in words)
    return True


def _exec(shell: State, words: Words, node: Simple) -> Any:
    """Redirections, or a program in place of the script, which ends."""
    if len(words) == 1:
        return True
    shell.external(node, words)
    raise Exit(None)


def _again(shell: State, words: Words, node: Simple) -> Any:
    """``builtin`` and ``command`` before another one."""
    rest = words[1:]
    if not rest or rest[0].startswith("-") or rest[0] not in TABLE:
        return shell.external(node, words)
    return TABLE[rest[0]](shell, rest, node)


TABLE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("true", ":"), lambda shell, words, node: True),
    "false": lambda shell, words, node: False,
    "echo": lambda shell, words, node: True,
    "printf": _printf,
    **dict.fromkeys(("export", "declare", "typeset", "local", "readonly"), _declare),
    "unset": _unset,
    "set": _set,
    "shift": _shift,
    "read": _read,
    **dict.fromkeys(("mapfile", "readarray", "getopts"), _names_unread),
    "let": _let,
    "eval": _eval,
    **dict.fromkeys(("source", "."), _source),
    "[": _bracket,
    "test": lambda shell, words, node: tested(shell, words[1:]),
    "exit": _leave(Exit),
    "return": _leave(Return),
    "break": _leave_loop(Break),
    "continue": _leave_loop(Continue),
    "shopt": _shopt,
    "exec": _exec,
    **dict.fromkeys(("builtin", "command"), _again),
}
