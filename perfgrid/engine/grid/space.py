"""The design space: labelled axes as tables of columns, and how finely a quantity tells the rows of an axis apart.

Every study axis is a table. A quantity does not depend on an axis but on some of its columns, so it is evaluated on the
distinct rows of those columns only: the *partition* of the axis that these columns induce.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from hashlib import blake2b
from operator import mul
from typing import Any

import numpy as np
import pandas as pd

from perfgrid.engine.errors import PerfgridError, nearest

FEW = 256  # rows that Python numbers in less time than pandas takes to begin
Key = tuple["Partition | None", ...]  # one entry per axis; None where a quantity does not vary


@dataclass(frozen=True)
class Axis:
    """One study axis: its labels and the quantities that vary along it.

    ``columns`` hold values of shape (n,) or (n, *inner); ``scales`` are factors on a quantity stated elsewhere. Raises
    PerfgridError for an empty axis, repeated labels or a column of another length.
    """

    name: str
    labels: np.ndarray
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    scales: Mapping[str, np.ndarray] = field(default_factory=dict)
    shown: tuple[str, ...] = ()  # columns that become coordinates of a result

    def __post_init__(self) -> None:
        if len(self.labels) == 0:
            raise PerfgridError(f"axis {self.name!r} is empty")
        values, counts = np.unique(self.labels, return_counts=True)
        if (counts > 1).any():
            raise PerfgridError(f"axis {self.name!r} lists {values[counts > 1].tolist()[0]!r} more than once")
        for name, column in {**self.columns, **self.scales}.items():
            if len(column) != len(self.labels):
                raise PerfgridError(
                    f"axis {self.name!r} has {len(self.labels)} rows but column {name!r} has {len(column)}"
                )

    def __len__(self) -> int:
        return len(self.labels)

    def coordinates(self, rows: Any = slice(None)) -> dict[str, np.ndarray]:
        """Its labels, and the columns that a result shows beside them, at some rows."""
        shown = {name: np.asarray(self.columns[name])[rows] for name in self.shown if name != self.name}
        return {self.name: self.labels[rows], **shown}

    def index(self, label: Any) -> int:
        """The row of a label; a number matches within rounding. PerfgridError with the nearest labels otherwise."""
        text = [str(known) for known in self.labels.tolist()]
        # flags are labelled true and false
        label = str(label).lower() if isinstance(label, (bool, np.bool_)) else str(label)
        if label in text:
            return text.index(label)
        if np.issubdtype(self.labels.dtype, np.number):
            with suppress(ValueError):
                close = np.isclose(self.labels.astype(float), float(label), rtol=1e-6, atol=0)
                if close.any():
                    return int(np.argmax(close))
            hint = "; labels: " + ", ".join(text[:8]) + (", ..." if len(text) > 8 else "")
        else:
            hint = nearest(label, text)
        raise PerfgridError(f"axis {self.name!r} has no label {label!r}{hint}")


@dataclass(frozen=True)
class Space:
    """A grid of designs: the product of its axes, with the quantities that are the same everywhere.

    Raises PerfgridError where two axes, or an axis and a constant, state the same quantity, or a scale has no base.
    """

    axes: tuple[Axis, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for axis in self.axes:
            if [a.name for a in self.axes].count(axis.name) > 1:
                raise PerfgridError(f"axis {axis.name!r} is defined twice")
            for name in axis.columns:
                if name in seen:
                    raise PerfgridError(f"quantity {name!r} is stated by axis {seen[name]!r} and by axis {axis.name!r}")
                seen[name] = axis.name
        for axis in self.axes:
            for name in axis.scales:
                if name not in seen and name not in self.constants:
                    raise PerfgridError(
                        f"axis {axis.name!r} scales {name!r}, which nothing states{nearest(name, seen)}"
                    )

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows of each axis."""
        return tuple(len(a) for a in self.axes)

    @property
    def points(self) -> int:
        """Design points of the grid."""
        return int(np.prod(self.shape, dtype=np.int64))

    def names(self) -> tuple[str, ...]:
        """Every quantity that the space states."""
        return tuple(dict.fromkeys((*self.constants, *(c for a in self.axes for c in a.columns))))

    def labels_of(self, name: str) -> tuple[str, ...]:
        """The labels that occur of a label quantity, in a fixed order; empty for a numeric one."""
        value = self._base(name)[1]
        if np.asarray(value).dtype.kind not in "US":
            return ()
        return tuple(str(v) for v in np.unique(value))

    def label_quantities(self) -> dict[str, tuple[str, ...]]:
        """All label quantities with the labels that occur."""
        return {name: labels for name in self.names() if (labels := self.labels_of(name))}

    def _base(self, name: str) -> tuple[int | None, Any]:
        """Which axis states a quantity (None: a constant) and its values."""
        for i, axis in enumerate(self.axes):
            if name in axis.columns:  # an axis overrides a constant
                return i, axis.columns[name]
        if name not in self.constants:
            raise PerfgridError(f"nothing states {name!r}{nearest(name, self.names())}")
        return None, self.constants[name]

    def parts(self, name: str) -> list[tuple[int | None, np.ndarray]]:
        """The factors of a quantity as (axis number or None, values with one leading row dimension)."""
        axis, value = self._base(name)
        array = np.asarray(value)
        if array.dtype.kind in "US":
            array = np.searchsorted(np.asarray(self.labels_of(name)), array).astype(np.float64)
        elif array.dtype != bool:
            array = array.astype(np.float64)
        found: list[tuple[int | None, np.ndarray]] = [(axis, array[None] if axis is None else array)]
        for i, a in enumerate(self.axes):
            if name in a.scales:
                found.append((i, np.asarray(a.scales[name], dtype=np.float64)))
        return found

    def at(self, name: str, index: tuple[int, ...]) -> Any:
        """The value of a quantity at one point: a float, a bool or an inner vector."""
        values = [array[0 if axis is None else index[axis]] for axis, array in self.parts(name)]
        value = reduce(mul, values)
        if np.ndim(value):
            return np.asarray(value)
        return bool(value) if isinstance(value, (bool, np.bool_)) else float(value)

    def along(self, name: str, rows: Sequence[int] | slice = slice(None)) -> np.ndarray:
        """The values of a quantity on some rows of the only axis."""
        (axis,) = self.axes
        count = np.arange(len(axis))[rows].size
        parts = (array[[0] * count] if number is None else array[rows] for number, array in self.parts(name))
        return reduce(mul, parts)

    def permuted(self, order: tuple[int, ...]) -> Space:
        """The same space with its axes in another order."""
        return Space(tuple(self.axes[i] for i in order), self.constants)


class Partition:
    """Which rows of an axis a set of columns tells apart.

    ``inverse[row]`` is the class of a row, ``rows[class]`` its first row. Equal partitions are one object, so identity
    compares them.
    """

    __slots__ = ("inverse", "rows", "size")

    def __init__(self, inverse: np.ndarray, rows: np.ndarray):
        self.inverse, self.rows, self.size = inverse, rows, len(rows)


def _numbered(classes: np.ndarray) -> tuple[np.ndarray, int]:
    """Equal classes by number, in the order of their first appearance, and how many there are."""
    if len(classes) > FEW:
        numbers, distinct = pd.factorize(classes, use_na_sentinel=False)
        return numbers.astype(np.int32), len(distinct)
    seen: dict[Any, int] = {}
    numbers = [seen.setdefault(c if c == c else None, len(seen)) for c in classes.tolist()]  # NaN is one class
    return np.array(numbers, np.int32), len(seen)


class Partitions:
    """All partitions of one axis, each made once."""

    def __init__(self) -> None:
        self._known: dict[bytes, Partition] = {}
        self._joined: dict[tuple[Partition, Partition], Partition | None] = {}

    def of(self, classes: np.ndarray) -> Partition | None:
        """The partition by equal classes, numbered by first appearance; None where all rows are alike."""
        inverse, count = _numbered(classes)
        if count == 1:
            return None
        known = self._known.get(key := blake2b(inverse.data).digest())
        if known is None:
            first = np.flatnonzero(np.diff(np.maximum.accumulate(inverse), prepend=-1))
            known = self._known[key] = Partition(inverse, first)
        return known

    def by_values(self, values: np.ndarray) -> Partition | None:
        """The partition of the distinct rows of a column."""
        return reduce(self.join, map(self.of, values.reshape(len(values), -1).T))

    def join(self, a: Partition | None, b: Partition | None) -> Partition | None:
        """The coarsest partition that tells apart whatever either does."""
        if a is None or a is b:
            return b
        if b is None:
            return a
        if (a, b) not in self._joined:
            self._joined[a, b] = self.of(a.inverse * np.int64(b.size) + b.inverse)
        return self._joined[a, b]
