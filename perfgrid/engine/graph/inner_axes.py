"""Inner axes: trailing, labelled axes of the formulas (phases, kernels, tiers), and the functions that act on them.

A quantity that does not vary along an inner axis has size 1 there, so quantities combine by broadcasting. Axis numbers
are negative: they are the same on a grid and for a plain NumPy vector. A plan calls a formula with arrays that have
only the inner axes that it needs (`InnerAxes.only_axes`); everywhere else arrays have all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, cast

import numpy as np

from perfgrid.engine.errors import PerfgridError, nearest

from .namespace import PLAIN, Ruled, xp
from .rows import side_by_side

_PRESENT: ContextVar[tuple[str, ...] | None] = ContextVar("present inner axes", default=None)


class AbsentAxis(Exception):
    """A function uses an inner axis that the arrays passed to the formula do not have."""

    def __init__(self, axis: str):
        super().__init__(axis)
        self.axis = axis


def _common_shape(shapes: Collection[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that shapes of one rank broadcast to; ValueError if they do not (NumPy's own stops at 32)."""
    if len(shapes) == 1:
        return next(iter(shapes))
    common = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    if any(size not in (1, whole) for shape in shapes for size, whole in zip(shape, common, strict=True)):
        raise ValueError(f"shapes {list(shapes)} cannot be broadcast together")
    return common


def _side_by_side(axis: int, values: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    """NumPy's ``concatenate`` of plain values that are broadcast to shapes, without an array for each of them."""
    whole = list(shapes[0])
    whole[axis] = sum(shape[axis] for shape in shapes)
    result = np.empty(whole, np.result_type(*values))
    ahead, start = (slice(None),) * axis, 0
    for value, shape in zip(values, shapes, strict=True):
        result[(*ahead, slice(start, start + shape[axis]))] = value
        start += shape[axis]
    return result


class _Present:
    """The context of `InnerAxes.only_axes`; one of ``contextlib`` takes longer than most formulas."""

    __slots__ = ("before", "names")

    def __init__(self, names: tuple[str, ...]):
        self.names = names

    def __enter__(self) -> None:
        self.before = _PRESENT.set(self.names)

    def __exit__(self, *_: object) -> None:
        _PRESENT.reset(self.before)


class InnerAxes:
    """The registered inner axes, outermost first, with their labels."""

    def __init__(self, labels: Mapping[str, Sequence[str]]):
        self.labels: dict[str, tuple[str, ...]] = {axis: tuple(names) for axis, names in labels.items()}
        self.names: tuple[str, ...] = tuple(self.labels)
        for axis, names in self.labels.items():
            if not names or len(set(names)) != len(names):
                raise PerfgridError(f"inner axis {axis!r} must have distinct labels, at least one; found {list(names)}")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def present(self) -> tuple[str, ...]:
        """The inner axes that arrays have in this context: all of them, except in a formula called by a plan."""
        found = _PRESENT.get()
        return self.names if found is None else found

    @staticmethod
    def only_axes(names: tuple[str, ...]) -> AbstractContextManager[None]:
        """Within this context arrays have these inner axes and no others."""
        return _Present(names)

    def position(self, axis: str) -> int:
        """The negative axis number of an inner axis. Raises AbsentAxis if arrays do not have it."""
        present = self.present
        if axis not in present:
            self._check(axis)
            raise AbsentAxis(axis)
        return present.index(axis) - len(present)

    def _check(self, axis: str) -> None:
        if axis not in self.labels:
            raise PerfgridError(f"unknown inner axis {axis!r}{nearest(axis, self.names)}")

    def size(self, axis: str) -> int:
        """The number of labels of an inner axis."""
        self._check(axis)
        return len(self.labels[axis])

    def _index(self, axis: str, label: str) -> int:
        self._check(axis)
        if label not in self.labels[axis]:
            raise PerfgridError(f"inner axis {axis!r} has no label {label!r}{nearest(label, self.labels[axis])}")
        return self.labels[axis].index(label)

    def extent(self, value: Any, axis: str) -> int:
        """The size of ``value`` along an inner axis; 1 if it does not vary along it."""
        present = self.present
        if axis not in present:
            self._check(axis)
            return 1
        position, shape = present.index(axis) - len(present), np.shape(value)
        return shape[position] if len(shape) >= -position else 1

    def vector(self, axis: str, values: Any) -> np.ndarray:
        """Values whose last dimension runs over the labels of an inner axis, shaped to lie on that axis."""
        array = np.asarray(values, dtype=np.float64)
        if array.shape[-1] != self.size(axis):
            raise PerfgridError(f"inner axis {axis!r} has {self.size(axis)} labels, found {array.shape[-1]} values")
        return array.reshape(array.shape + (1,) * (-self.position(axis) - 1))

    # -- functions for formulas -----------------------------------------------------------------------------------

    def table(self, axis: str, /, **rows: Any) -> Any:
        """One value per label of an inner axis; the keywords are its labels, in order.

        A value that varies along the axis itself gives its row of that label, as one that does not is the same in every
        row: a grid that mixes alternatives reads one of them where another one's axes are.
        """
        if tuple(rows) != self.labels[axis]:
            raise PerfgridError(f"table({axis!r}) needs the labels {self.labels[axis]} in order, found {tuple(rows)}")
        return self.join(axis, *(self.at(value, **{axis: label}) for label, value in rows.items()))

    def join(self, axis: str, *values: Any) -> Any:
        """Arrays side by side along an inner axis (their lengths add up to its labels)."""
        position = self.position(axis)
        shapes = [np.shape(v) for v in values]
        rank = max(-position, *map(len, shapes))
        shapes = [(1,) * (rank - len(shape)) + shape for shape in shapes]
        ahead, behind = slice(0, rank + position), slice(rank + position + 1, rank)
        before, after = _common_shape({s[ahead] for s in shapes}), _common_shape({s[behind] for s in shapes})
        full = [(*before, shape[position], *after) for shape in shapes]
        if all(type(v) in PLAIN for v in values):
            return _side_by_side(rank + position, values, full)
        raised = [v if np.shape(v) == s else xp.reshape(xp.asarray(v), s) for v, s in zip(values, shapes, strict=True)]
        wide = [v if v.shape == s else xp.broadcast_to(v, s) for v, s in zip(raised, full, strict=True)]
        return side_by_side(wide, position)

    def total(self, value: Any, axis: str) -> Any:
        """Sum over the labels of an inner axis, kept with size 1; a value that does not vary counts once per label."""
        if self.extent(value, axis) == 1:
            return value * self.size(axis)
        return xp.sum(value, axis=self.position(axis), keepdims=True)

    def largest(self, value: Any, axis: str) -> Any:
        """Largest value along an inner axis, kept with size 1."""
        if self.extent(value, axis) == 1:
            return value
        return xp.max(value, axis=self.position(axis), keepdims=True)

    def smallest(self, value: Any, axis: str) -> Any:
        """Smallest value along an inner axis, kept with size 1."""
        if self.extent(value, axis) == 1:
            return value
        return xp.min(value, axis=self.position(axis), keepdims=True)

    def at(self, value: Any, **labels: str) -> Any:
        """The row of one label of each named inner axis, kept with size 1."""
        for axis, label in labels.items():
            index = self._index(axis, label)
            if self.extent(value, axis) > 1:
                position = self.position(axis)
                behind = (slice(None),) * (-position - 1)
                row: Any = cast(Any, value)[(..., slice(index, index + 1), *behind)]
                if isinstance(row, Ruled):
                    row.is_row(label)
                value = row
        return value

    def only(self, axis: str, *labels: str) -> Any:
        """1 at the named labels of an inner axis and 0 elsewhere."""
        chosen = {self._index(axis, label) for label in labels}
        return self.join(axis, *(1.0 if i in chosen else 0.0 for i in range(self.size(axis))))
