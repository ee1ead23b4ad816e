"""What commands may assign, found without running them: for loops and branches of which only that much is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .arithmetic import assigned_names
from .nodes import (
    Arithmetic,
    Assignment,
    Compute,
    Count,
    For,
    Function,
    Parameter,
    Simple,
    Text,
    Word,
    literal,
    within,
)
from .parser import DECLARES
from .scanner import NAME

EVERY = "*"  # any variable
_NAMING = ("read", "unset", "mapfile", "readarray", "getopts", *DECLARES)  # their words name variables
_IMPLIED = {"read": ["REPLY"], "mapfile": ["MAPFILE"], "readarray": ["MAPFILE"], "getopts": ["OPTARG", "OPTIND"]}
_IMPLIED |= {"shift": ["@"], "set": ["@"]}


def assigned_by(node: Any, functions: Mapping[str, Any]) -> dict[str, bool]:
    """Names that a node may assign, and whether all that it does is to append to them; functions as they are called."""
    found, waiting, called = dict[str, bool](), [node], set[str]()

    def add(name: str, append: bool = False) -> None:
        found[name] = append and found.get(name, True)

    while waiting:
        part = waiting.pop()
        match part:
            case Assignment(name):
                add(name, part.append and part.index is None)
            case For(name):
                add(name)
            case Parameter(name) if part.operation in ("=", ":="):
                add(name)
            case Arithmetic(word) | Compute(word):
                _computed(word, add)
            case Count():
                for word in (part.first, part.condition, part.step):
                    _computed(word, add)
            case Function(name):
                add(f"{name}()")
            case Simple() if part.words:
                waiting += _command(part, add, functions, called)
        waiting += [] if isinstance(part, (Text, str)) else within(part)
    return found


def _computed(word: Word, add: Any) -> None:
    """Names that an expression assigns; any where such a name is put in."""
    text = "".join(part.text if isinstance(part, Text) else " _ " for part in word)
    names = assigned_names(text)
    for name in names:
        add(EVERY if name == "_" else name)


def _command(part: Simple, add: Any, functions: Mapping[str, Any], called: set[str]) -> list[Any]:
    """What the words of a command assign; functions that it calls are handed back."""
    name = literal(part.words[0])
    if name is None:  # a variable: perhaps the name of a function
        return [body for own, body in functions.items() if own not in called and not called.add(own)]
    if name in functions:
        new = [] if name in called else [functions[name]]
        called.add(name)
        return new
    for implied in _IMPLIED.get(name, ()):
        add(implied)
    words = [literal(word) for word in part.words[1:] if not isinstance(word, Assignment)]
    if name == "eval" or (name not in DECLARES and name in _NAMING and None in words):
        add(EVERY)
    if name == "printf":
        words = words[1:2] if words[:1] == ["-v"] else []
    if name == "let":
        for one in [one for word in words for one in ([EVERY] if word is None else assigned_names(word))]:
            add(one)
    elif name in (*_NAMING, "printf"):
        for start in [NAME.match(word or "") for word in words]:
            if start:
                add(start[0])
    return []
