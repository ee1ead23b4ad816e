"""What commands may assign, found without running them: for loops and branches of which only that much is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    Unread,
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


def assigned_by(node: Any, held: Mapping[str, Any], charge: Callable[[int], None]) -> dict[str, bool]:
    """Names that a node may assign, and whether all that it does is to append to them; functions as they are called."""
    found, waiting, called = dict[str, bool](), [node], set[str]()

    def add(name: str, append: bool = False) -> None:
        found[name] = append and found.get(name, True)

    while waiting:
        part = waiting.pop()
        charge(4)
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
                waiting += _command(part, add, held, called)
        waiting += [] if isinstance(part, (Text, str)) else within(part)
    return found


def _computed(word: Word, add: Any) -> None:
    """Names that an expression assigns; any where such a name is put in."""
    text = "".join(part.text if isinstance(part, Text) else " _ " for part in word)
    names = assigned_names(text)
    for name in names:
        add(EVERY if name == "_" else name)


def _command(part: Simple, add: Any, held: Mapping[str, Any], called: set[str]) -> list[Any]:
    """What the words of a command assign; functions that it calls are handed back."""
    name = literal(part.words[0])
    if name is None and EVERY not in called:  # a variable: perhaps the name of a function
        called.add(EVERY)
        return [body for body in held.values() if isinstance(body, Function)]
    if name is None or isinstance(held.get(f"{name}()"), Function):
        new = [] if name is None or name in called else [held[f"{name}()"].body]
        called.add(name or EVERY)
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


def substitutes(node: Any) -> bool:
    """Whether commands are substituted in a node, whose status is then theirs."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Unread):
            return True
        waiting += [] if isinstance(part, (Text, str)) else within(part)
    return False
