"""Values whose rows along an inner axis are arrays of their own, while a grid is compiled.

The values of one point lie side by side in an array, which no vector instruction computes or reads. Formulas that put
rows together only for others to take them apart again are compiled row by row instead (`compiled_by_row`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np

from .namespace import Ruled, xp

MOST = 16  # arrays that stand for one: wider ones stay whole
_COMPILED: ContextVar[bool] = ContextVar("compiled by row", default=False)
_REDUCED = {"sum": "add", "max": "maximum", "min": "minimum"}


@contextmanager
def compiled_by_row() -> Iterator[None]:
    """Within this context values that are put side by side along an inner axis stay apart."""
    token = _COMPILED.set(True)
    try:
        yield
    finally:
        _COMPILED.reset(token)


def leaves(value: Any) -> list[Any]:
    """The arrays that stand for a value."""
    return [leaf for row in value.rows for leaf in leaves(row)] if isinstance(value, Rows) else [value]


def over_leaves(function: Callable[[list[Any]], Sequence[Any]], value: Any) -> Any:
    """The value whose arrays are those that a function makes of all of them."""
    made = iter(function(leaves(value)))

    def rebuilt(part: Any) -> Any:
        return Rows([rebuilt(row) for row in part.rows], part.axis) if isinstance(part, Rows) else next(made)

    return rebuilt(value)


def whole(value: Any) -> Any:
    """A value as one array."""
    return value.value if isinstance(value, Rows) else value


def side_by_side(values: Sequence[Any], axis: int) -> Any:
    """Values of one rank and one row each along an axis, which is negative: apart where that is asked for."""
    rows = [row for value in values for row in (value.rows if _parted(value, axis) else [value])]
    apart = _COMPILED.get() and all(np.shape(row)[axis] == 1 for row in rows)
    if not apart or any(isinstance(row, Ruled) and not isinstance(row, Rows) for row in rows):
        return xp.concatenate([whole(value) for value in values], axis=axis)
    kind = jnp.result_type(*(leaf for row in rows for leaf in leaves(row)))
    alike = [over_leaves(lambda arrays: [jnp.asarray(a, kind) for a in arrays], row) for row in rows]
    return _few(Rows(alike, axis))


def _few(value: Rows) -> Any:
    """The rows if there are not too many, else one array."""
    return value if len(leaves(value)) <= MOST else whole(value)


def _parted(value: Any, axis: int) -> bool:
    return isinstance(value, Rows) and value.axis == axis


class Rows(Ruled):
    """The rows of a value along an inner axis, of size 1 there; they may have rows along another one themselves."""

    __slots__ = ("axis", "rows")

    def __init__(self, rows: Sequence[Any], axis: int):
        """``axis`` is negative."""
        self.rows, self.axis = list(rows), axis

    @property
    def value(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All rows in one array."""
        return jnp.concatenate([whole(row) for row in self.rows], axis=self.axis)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole value."""
        shape = list(np.shape(self.rows[0]))
        shape[self.axis] = len(self.rows)
        return tuple(shape)

    @property
    def ndim(self) -> int:
        """The rank of the value."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """The type of the value."""
        return self.rows[0].dtype

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __getattr__(self, name: str) -> Any:
        """Other attributes of an array are those of all rows together."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.value, name)

    def __getitem__(self, key: Any) -> Any:
        """The value at an index: one row, or a part of every row, without putting them together."""
        if isinstance(key, tuple) and key and key[0] is Ellipsis and all(isinstance(k, slice) for k in key[1:]):
            own = key[self.axis] if len(key) > -self.axis else slice(None)
            if own == slice(None):
                return Rows([row[key] for row in self.rows], self.axis)
            rest = list(key)
            rest[self.axis] = slice(None)
            taken = self.rows[own]
            if len(taken) == 1:
                return taken[0][tuple(rest)]
        return self.value[key]

    def apply(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The value of the function ``xp.<name>``: row by row where it acts on every element, or along other axes."""
        others = [a for a in (*arguments, *options.values()) if isinstance(a, Ruled) and not isinstance(a, Rows)]
        if not others:
            function = getattr(np, name)
            if name == "where" or (isinstance(function, np.ufunc) and function.signature is None):
                return self._by_element(name, arguments, options)
            if arguments and arguments[0] is self and name in _MOVED:
                with suppress(TypeError):  # options that no row by itself can follow
                    found = _MOVED[name](self, name, *arguments[1:], **options)
                    if found is not None:
                        return found
        return getattr(xp, name)(*map(_whole, arguments), **{k: _whole(v) for k, v in options.items()})

    def _by_element(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        count = len(self.rows)
        taken = [[_row(a, self.axis, i, count) for a in arguments] for i in range(count)]
        function = getattr(xp, name)
        return _few(Rows([_of_rank(function(*given, **options), -self.axis) for given in taken], self.axis))

    def _reduced(self, name: str, axis: int | None = None, keepdims: bool = False) -> Any:
        if not keepdims or not isinstance(axis, int):
            return None
        axis = axis - self.ndim if axis >= 0 else axis
        if axis == self.axis:
            return reduce(getattr(xp, _REDUCED[name]), self.rows)
        return Rows([getattr(xp, name)(row, axis=axis, keepdims=True) for row in self.rows], self.axis)

    def _reshaped(self, _: str, shape: tuple[int, ...]) -> Any:
        """The same values with more or fewer axes of size 1."""
        if min(shape) < 0:
            return None
        before = [axis for axis, size in enumerate(self.shape) if size > 1]
        after = [axis for axis, size in enumerate(shape) if size > 1]
        if [self.shape[axis] for axis in before] != [shape[axis] for axis in after] or len(self.rows) == 1:
            return None
        axis = after[before.index(self.ndim + self.axis)]
        own = (*shape[:axis], 1, *shape[axis + 1 :])
        return Rows([xp.reshape(row, own) for row in self.rows], axis - len(shape))

    def _broadcast(self, _: str, shape: tuple[int, ...]) -> Any:
        own = list(shape)
        if own[self.axis] != len(self.rows):
            return None
        own[self.axis] = 1
        return Rows([xp.broadcast_to(row, tuple(own)) for row in self.rows], self.axis)

    def _taken(self, name: str, index: Any, axis: int, mode: str | None = None) -> Any:
        if axis == self.axis or axis - self.ndim == self.axis or np.ndim(index) != 1:
            return None
        return Rows([xp.take(row, index, axis=axis, mode=mode) for row in self.rows], self.axis)


_MOVED: dict[str, Callable[..., Any]] = {
    "sum": Rows._reduced,
    "max": Rows._reduced,
    "min": Rows._reduced,
    "reshape": Rows._reshaped,
    "broadcast_to": Rows._broadcast,
    "take": Rows._taken,
    "asarray": lambda rows, _: rows,
    "shape": lambda rows, _: rows.shape,
    "ndim": lambda rows, _: rows.ndim,
}


def _whole(item: Any) -> Any:
    return type(item)(map(_whole, item)) if isinstance(item, (list, tuple)) else whole(item)


def _row(value: Any, axis: int, number: int, count: int) -> Any:
    """A row of a value along an axis, or all of it where it does not vary along it."""
    if _parted(value, axis):
        return value.rows[number]
    shape = np.shape(value)
    if len(shape) < -axis or shape[axis] == 1:
        return value
    assert shape[axis] == count
    return value[(..., slice(number, number + 1), *(slice(None),) * (-axis - 1))]


def _of_rank(value: Any, rank: int) -> Any:
    """With axes of size 1 ahead, if it has fewer."""
    shape = np.shape(value)
    return value if len(shape) >= rank else xp.reshape(value, (1,) * (rank - len(shape)) + shape)
