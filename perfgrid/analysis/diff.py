"""How two results differ: labels, variables, values and feasibility. Knows no physics."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE, constraints_of, expect_result, feasible, stored_array
from perfgrid.engine.grid.tiles import Tiles
from perfgrid.results.schema import stored

BLOCK_POINTS = 2**22  # that are compared together
TOLERANCE = 1e-5  # relative: what float32 loses between machines, tiles and versions of a compiler
_BITS = 20  # of a float64 that number the bins of the median: 2^-8 of its value


@dataclass(frozen=True)
class AxisDifference:
    """The labels of one axis that only one result has."""

    axis: str
    only_a: list[str]
    only_b: list[str]


@dataclass(frozen=True)
class VariableDifference:
    """How far one variable lies apart on the labels that both results have.

    ``largest`` and ``median`` (of the values that differ, to 0.4 %) are relative: |a - b| / max(|a|, |b|), infinite
    where one side is not finite. A flag or a choice has neither; ``where``, ``a`` and ``b`` are the point that differs
    most (the first one of flags).
    """

    name: str
    points: int
    differing: int
    largest: float | None
    median: float | None
    where: dict[str, Any]
    a: float
    b: float


@dataclass(frozen=True)
class Difference:
    """All that differs between two results. ``same`` is true where nothing does beyond the tolerance."""

    tolerance: float
    points: int  # of the grid that both have
    axes: list[AxisDifference] = field(default_factory=list)
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    variables: list[VariableDifference] = field(default_factory=list)
    feasible_only_a: int = 0
    feasible_only_b: int = 0
    given: list[str] = field(default_factory=list)  # quantities whose stated values differ: a reason, not a difference
    formulas_differ: bool = False  # likewise

    @property
    def same(self) -> bool:
        """Whether nothing differs beyond the tolerance."""
        changed = self.axes or self.only_a or self.only_b or self.feasible_only_a or self.feasible_only_b
        return not changed and not any(v.differing for v in self.variables)


def diff(
    a: xr.Dataset, b: xr.Dataset, tolerance: float = TOLERANCE, variables: Collection[str] | None = None
) -> Difference:
    """Compare two results block by block, so that neither need fit the memory.

    Values are compared on the labels that both have. A part of a result, with one label of an axis selected, is
    compared with that label of the other.

    Parameters
    ----------
    a, b
        Results; see `open_result`.
    tolerance
        Relative difference up to which values agree.
    variables
        Variables to compare. Default: all, and feasibility.

    Returns
    -------
    Difference
        ``same``, and what differs: ``axes``, ``only_a``, ``only_b``, ``variables``, ``feasible_only_a``,
        ``feasible_only_b``; as possible reasons ``given`` quantities and ``formulas_differ``.

    Raises
    ------
    PerfgridError
        For an unknown variable, a negative tolerance, and results without a common label of some axis.

    Examples
    --------
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["h100-sxm-80gb"]})
    >>> result = pg.evaluate(bill)
    >>> pg.diff(result, result.assign(die_cost=1.01 * result.die_cost)).same
    False
    """
    for result in (a, b):
        expect_result(result, "diff")
    if not tolerance >= 0:
        raise PerfgridError(f"the tolerance is a relative difference of 0 or more, found {tolerance}")
    names_a, names_b = (list(map(str, d.data_vars)) for d in (a, b))
    for name in variables or ():
        if name not in names_a and name not in names_b:
            raise PerfgridError(f"neither result holds {name!r}{nearest(name, (*names_a, *names_b))}")
    asked = set(names_a) | set(names_b) if variables is None else set(variables)
    a, b = _along_axes_of(a, b), _along_axes_of(b, a)
    study = {*a.attrs.get("study_axes", "").split(), *b.attrs.get("study_axes", "").split()}
    axes, rows_a, rows_b = _common(a, b, study)
    a, b = a.isel(rows_a), b.isel(rows_b)
    sizes = {str(d): n for d, n in {**b.sizes, **a.sizes}.items()}
    found = [_compared(a[n], b[n], tolerance) for n in names_a if n in names_b and n in asked]
    points = int(np.prod([n for d, n in sizes.items() if d in (study or sizes)], dtype=np.int64))
    gone, new = _feasibility(a, b, points) if variables is None else (0, 0)
    return Difference(
        tolerance,
        points,
        axes,
        [n for n in names_a if n in asked and n not in names_b],
        [n for n in names_b if n in asked and n not in names_a],
        sorted(found, key=lambda v: -v.differing / max(v.points, 1)),
        gone,
        new,
        _given(a, b),
        a.attrs.get("formula_hash") != b.attrs.get("formula_hash"),
    )


def _along_axes_of(part: xr.Dataset, other: xr.Dataset) -> xr.Dataset:
    """A result of which one label was taken along axes of another: with these axes again, of that label."""
    taken = [d for d in other.dims if d not in part.dims and d in part.coords and part[d].ndim == 0]
    return part.expand_dims(taken)


def _common(
    a: xr.Dataset, b: xr.Dataset, study: Collection[str]
) -> tuple[list[AxisDifference], dict[str, Any], dict[str, Any]]:
    """The axes that differ, and the rows of either result whose labels both have, in the order of the first.

    Axes of the study need a common label; the limits of two optimisations, say, may all be others.
    """
    axes, rows_a, rows_b = [], {}, {}
    for dim in dict.fromkeys(map(str, (*a.dims, *b.dims))):
        if dim not in a.dims or dim not in b.dims:
            held = [_labels(d, dim) if dim in d.dims else [] for d in (a, b)]
            axes.append(AxisDifference(dim, held[0], held[1]))
            continue
        labels_a, labels_b = _labels(a, dim), _labels(b, dim)
        held = set(labels_a) & set(labels_b)
        both, only_a = [v for v in labels_a if v in held], [v for v in labels_a if v not in held]
        only_b = sorted(set(labels_b) - held)
        if only_a or only_b:
            axes.append(AxisDifference(dim, only_a, only_b))
        if not both and (dim in study or not study):
            raise PerfgridError(f"the results have no label of axis {dim!r} in common")
        for rows, labels in ((rows_a, labels_a), (rows_b, labels_b)):
            place = {label: row for row, label in enumerate(labels)}
            chosen = np.array([place[v] for v in both], int)
            rows[dim] = slice(None) if labels == both else chosen  # a slice leaves a lazy array as it is
    return axes, rows_a, rows_b


def _labels(result: xr.Dataset, dim: str) -> list[str]:
    """Labels as texts; numbers to twelve digits, so that rounding makes no difference."""
    values = result[dim].values
    return [f"{v:.12g}" if isinstance(v, (int, float)) else str(v) for v in values.tolist()]


def _blocks(a: Any, b: Any) -> Iterator[tuple[dict[str, slice], Any, Any]]:
    """Parts of both, loaded and without coordinates, of at most `BLOCK_POINTS` points, and the rows that they lie on.

    Rows are given along the dimensions that are cut.
    """
    sizes = {str(d): n for d, n in {**a.sizes, **b.sizes}.items()}
    for cut in Tiles.cut(tuple(sizes.values()), BLOCK_POINTS).rows() if 0 not in sizes.values() else ():
        rows = {d: slice(int(r[0]), int(r[-1]) + 1) for d, r in zip(sizes, cut, strict=False)}
        parts = (v.isel(rows, missing_dims="ignore").load() for v in (a, b))
        yield rows, *(p.drop_vars(list(p.coords)) for p in parts)


def _compared(a: xr.DataArray, b: xr.DataArray, tolerance: float) -> VariableDifference:
    """One variable on common labels; a dimension that only one has is broadcast."""
    number = a.dtype.kind == "f" or b.dtype.kind == "f"
    number = number and not any("flag_values" in v.attrs for v in (a, b))
    text = a.dtype.kind not in "fiub" or b.dtype.kind not in "fiub"
    counts = np.zeros(1 << _BITS, np.int64)
    points = differing = 0
    worst, where, values = -1.0, {}, (np.nan, np.nan)
    for rows, *parts in _blocks(a, b):
        left, right = xr.broadcast(*parts)
        x, y = left.values, right.transpose(*left.dims).values
        apart = _relative(x, y) if number else np.where(x != y, np.inf, 0.0)
        points, differing = points + apart.size, differing + int((apart > tolerance).sum())
        if number:
            bits = apart[apart > tolerance].view(np.uint64) >> (64 - _BITS)
            found = np.bincount(bits.astype(np.int64))
            counts[: len(found)] += found
        most = np.unravel_index(np.argmax(apart), apart.shape)
        if apart[most] > worst:
            worst, values = float(apart[most]), values if text else (float(x[most]), float(y[most]))
            places = dict(zip(map(str, left.dims), most, strict=True))
            where = {d: int(i) + (rows[d].start if d in rows else 0) for d, i in places.items()}
    labels = {d: _label(a if d in a.dims else b, d, i) for d, i in where.items()}
    median = None if not number else _least_of_bin(counts, (differing + 1) // 2) if differing else 0.0
    largest = worst if number and points else None
    return VariableDifference(str(a.name), points, differing, largest, median, labels, *values)


def _label(variable: xr.DataArray, dim: str, row: int) -> Any:
    return variable[dim].values.tolist()[row] if dim in variable.coords else row


def _relative(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.abs(x - y) / np.maximum(np.abs(x), np.abs(y))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.inf))


def _least_of_bin(counts: np.ndarray, rank: int) -> float:
    """The least number of the bin that holds the value of a rank."""
    number = int(np.searchsorted(np.cumsum(counts), rank))
    return float(np.array(number << (64 - _BITS), np.uint64).view(np.float64))


def _feasibility(a: xr.Dataset, b: xr.Dataset, points: int) -> tuple[int, int]:
    """Points of the common grid that only one of the results calls feasible for all outputs that both have."""
    both = [str(n) for n in a.data_vars if n in b.data_vars]
    flags = [d[constraints_of(d, both)] for d in (a, b)]
    gone = new = seen = 0
    for _, *parts in _blocks(*flags):
        x, y = xr.broadcast(*map(feasible, parts))
        gone, new, seen = gone + int((x & ~y).sum()), new + int((~x & y).sum()), seen + x.size
    return gone * (points // max(seen, 1)), new * (points // max(seen, 1))


def _given(a: xr.Dataset, b: xr.Dataset) -> list[str]:
    """The given quantities whose values differ where both results state them in the same place for the same labels."""
    spaces = [stored(d.attrs, SPACE_ATTRIBUTE) for d in (a, b) if SPACE_ATTRIBUTE in d.attrs]
    if len(spaces) < 2:
        return []
    stated = []
    for space in spaces:
        found = {(q, "", ""): v for q, v in space["constants"].items()}
        for axis in space["axes"]:
            for kind in ("columns", "scales"):
                for quantity, column in axis[kind].items():
                    values = stored_array(column).reshape(len(axis["labels"]), -1).tolist()
                    found |= {(quantity, axis["name"], str(v)): x for v, x in zip(axis["labels"], values, strict=True)}
        stated.append(found)
    return sorted({key[0] for key in stated[0].keys() & stated[1].keys() if stated[0][key] != stated[1][key]})
