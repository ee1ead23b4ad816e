"""Hashes: of texts and files, and of all that a function is made of.

A function is made of its body, its defaults, what it closes over, and the constants and functions that it names, theirs
included. Stored results know a body by its *text*, which is the same in every version of Python (`text_hash`). Compiled
functions and plans know it by its *code*, which tells any two functions apart (`signature_of`).
"""

from __future__ import annotations

import hashlib
import linecache
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np

_PACKAGE = Path(__file__).parents[1]
_ROOT = __name__.partition(".")[0]
_PLAIN = (bool, int, float, complex, str, bytes, range)


def digest(*parts: str | bytes) -> str:
    """A hash of texts; where one ends matters."""
    texts = [part.encode() if isinstance(part, str) else part for part in parts]
    return hashlib.sha256(b"".join(x for text in texts for x in (len(text).to_bytes(8, "little"), text))).hexdigest()


def digest_of_files(paths: Iterable[Path]) -> str:
    """A hash of the names and the content of files. Raises OSError where one cannot be read."""
    return digest(*(part for path in paths for part in (str(path), path.read_bytes())))


@cache
def digest_of_sources() -> str:
    """A hash of the text of this whole package and of the Python that runs it. Raises OSError."""
    return digest(digest_of_files(sorted(_PACKAGE.rglob("*.py"))), sys.version, platform.machine())


def text_hash(functions: Iterable[tuple[str, Callable[..., Any]]]) -> str:
    """A hash of named functions by their text. Objects without a text of their own count for nothing."""
    seen: set[Any] = set()
    return digest(*(part for name, function in functions for part in (name, *_parts(function, False, seen))))


def signature_of(wiring: Iterable[str | bytes], functions: Iterable[Callable[..., Any]]) -> str | None:
    """A hash of functions of this package by their code, and of how they are wired.

    With the text of the package it tells all that they do. None where one is no such function or closes over an object
    that is no plain data: what that does is unknown.
    """
    try:
        return digest(*wiring, *(part for function in functions for part in _parts(function, True, set())))
    except _Unknown:
        return None


class _Unknown(Exception):
    """A value that does not tell what it does."""


def _parts(value: Any, exact: bool, seen: set[Any], named: bool = False) -> Iterator[str | bytes]:
    """What a value is made of; ``exact`` by code and without gaps. ``named``: the text of this package defines it."""
    if isinstance(value, FunctionType):
        if not exact or _defined_here(value):
            yield from _function_parts(value, exact, seen)
            return
    elif value is None or isinstance(value, _PLAIN):
        yield repr(value)
        return
    elif isinstance(value, (tuple, list, dict)):
        yield "("
        for item in (part for pair in value.items() for part in pair) if isinstance(value, dict) else value:
            yield from _parts(item, exact, seen, named)
        yield ")"
        return
    elif isinstance(value, (set, frozenset)):
        yield repr(sorted(map(repr, value)))
        return
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield from (str(value.dtype), str(value.shape), value.tobytes())
        return
    if exact and not named:
        raise _Unknown


def _function_parts(function: FunctionType, exact: bool, seen: set[Any]) -> Iterator[str | bytes]:
    if function in seen:
        yield function.__qualname__
        return
    seen.add(function)
    code = function.__code__
    if exact:
        yield from (function.__module__, function.__qualname__, *_code(code))
    else:
        yield source_of(function) or function.__qualname__
    closed = zip(code.co_freevars, (cell.cell_contents for cell in function.__closure__ or ()), strict=True)
    for value in (function.__defaults__, function.__kwdefaults__, *(part for pair in closed for part in pair)):
        yield from _parts(value, exact, seen)
    for name in _names(code):
        if name in function.__globals__:
            yield name
            yield from _parts(function.__globals__[name], exact, seen, named=True)


def _defined_here(function: FunctionType) -> bool:
    """Whether a function is one of a module of this package."""
    module = sys.modules.get(function.__module__)
    return (function.__module__ or "").partition(".")[0] == _ROOT and vars(module) is function.__globals__


def _code(code: CodeType) -> Iterator[str | bytes]:
    yield code.co_code
    yield from code.co_names
    for constant in code.co_consts:
        yield from _code(constant) if isinstance(constant, CodeType) else (repr(constant),)


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function looks up, those of functions and comprehensions in it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def source_of(function: Callable[..., Any]) -> str:
    """The text of a function with its decorators, found by indentation; empty where it has none.

    ``inspect.getsource`` finds the same, but takes apart every token, a fifth of a second for all that a study uses.
    """
    code = getattr(function, "__code__", None)
    lines = linecache.getlines(code.co_filename, function.__globals__) if code else []
    if not code or not 0 < code.co_firstlineno <= len(lines):
        return ""
    first, last = lines[code.co_firstlineno - 1], _last_line(code)
    indent = len(first) - len(first.lstrip())
    end = last
    while end < len(lines) and (text := lines[end].strip(), deep := len(lines[end]) - len(lines[end].lstrip())):
        if text and deep <= indent and not (deep == indent and text[0] in ")]}"):
            break
        end += 1
    return "".join(lines[code.co_firstlineno - 1 : end]).rstrip() + "\n"


def _last_line(code: CodeType) -> int:
    """The last line that a function's code stands on."""
    inside = (_last_line(c) for c in code.co_consts if isinstance(c, CodeType))
    return max((code.co_firstlineno, *(line for _, _, line in code.co_lines() if line), *inside))
