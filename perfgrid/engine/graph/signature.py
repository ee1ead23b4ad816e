"""What a function is made of, as a hash: its code, what it closes over, the constants and functions that it names."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from perfgrid.engine.cache import digest

_ROOT = __name__.partition(".")[0]


class Unsigned(Exception):
    """Something whose meaning cannot be told from its text."""


def signature_of(wiring: Iterable[str | bytes], functions: Iterable[Callable[..., Any]]) -> str | None:
    """A hash of functions of this package and of how they are wired: code, what they close over, constants they name.

    None where one of them is no such function.
    """
    try:
        return digest(*wiring, *(part for function in functions for part in _parts(function, set())))
    except Unsigned:
        return None


def _parts(value: Any, seen: set[Any]) -> list[str | bytes]:
    if isinstance(value, FunctionType):
        if value in seen:
            return [value.__qualname__]
        seen.add(value)
        module = sys.modules.get(value.__module__)
        if value.__module__.partition(".")[0] != _ROOT or vars(module) is not value.__globals__:
            raise Unsigned
        found: list[str | bytes] = [value.__module__, value.__qualname__, *_code(value.__code__)]
        found += _parts(value.__defaults__, seen) + _parts(value.__kwdefaults__, seen)
        for cell in value.__closure__ or ():
            found += _parts(cell.cell_contents, seen)
        for name in value.__code__.co_names:
            used = value.__globals__.get(name)
            if isinstance(used, (bool, int, float, str, tuple)):
                found += [name, repr(used)]
            elif inspect.isfunction(used) and used.__module__.partition(".")[0] == _ROOT:
                found += _parts(used, seen)
        return found
    if value is None or isinstance(value, (bool, int, float, str, range)):
        return [repr(value)]
    if isinstance(value, (tuple, list)):
        return ["(", *(part for item in value for part in _parts(item, seen)), ")"]
    if isinstance(value, dict):
        return _parts([item for pair in value.items() for item in pair], seen)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return [str(value.dtype), str(value.shape), value.tobytes()]
    raise Unsigned


def _code(code: CodeType) -> list[str | bytes]:
    constants = (_code(c) if isinstance(c, CodeType) else [repr(c)] for c in code.co_consts)
    return [code.co_code, *code.co_names, *(part for parts in constants for part in parts)]
