"""The grid behind a page: its axes and quantities, and the marks of a slice of it.

A slice lies on one or two axes. Along the others it is held at a label, or takes the best feasible design of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.best_design import left_open
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE, bare_variables, constraints_of
from perfgrid.formulas import INNER
from perfgrid.results.factored import SUFFIX, read_together
from perfgrid.results.provenance import GROUPED, stated_best, workload_of
from perfgrid.results.schema import stored
from perfgrid.text.numbers import label_text

from .units import about_unit

KEPT_BYTES = 2**28  # of a variable on disk: smaller ones are read once and kept
KEPT_FLAGS = 2**20  # points of a constraint that are read once and kept
MOST_SEARCHED = 2**22  # designs among which the best ones of a slice are sought
MOST_FIRST = 2**18  # designs among which the page's first view searches
MOST_FIRST_LAZY = 2**15  # of a factored result
MOST_MARKS = 2**14  # of a slice
MOST_REASONS = 255  # constraints: the number of the violated one is a byte
FEW = 12  # distinct values of a coordinate that narrows its axis
GROUPS = ("model", "device", "node")  # designs with other labels of these are no rivals
SERIES = ("device", "node", "model")  # axes with a colour for each label: the first one that has several labels


@dataclass(frozen=True)
class Slice:
    """What a page asks for: a quantity along axes, and the rows of each axis; of others than ``axes`` the best row.

    ``by`` is what is best, ``least`` whether it is minimized. PerfgridError for names and rows that do not exist.
    """

    quantity: str
    axes: tuple[str, ...]
    rows: Mapping[str, Sequence[int]]
    by: str
    least: bool = True


@dataclass(frozen=True)
class Marks:
    """The marks of a slice, flat in the order of its axes: numbers, reasons (0: feasible), rows of every axis.

    A number is NaN where it has no meaning.
    """

    numbers: np.ndarray
    reasons: np.ndarray
    rows: Mapping[str, np.ndarray]


@dataclass
class Grid:
    """A result as pages show it; values are read when they are asked for."""

    result: xr.Dataset
    _kept: dict[str, xr.Variable] = field(default_factory=dict)
    _satisfied: list[str] = field(default_factory=list)  # constraints
    _reasons: dict[frozenset[str], xr.Variable | None] = field(default_factory=dict)  # of all designs; None: asked once

    @cached_property
    def axes(self) -> list[str]:
        """The axes of its quantities, in the order of the result."""
        dims = {str(d) for name in self.quantities for d in self.result.variables[name].dims}
        return [str(d) for d in self.result.dims if str(d) in dims]

    @cached_property
    def quantities(self) -> list[str]:
        """Numbers on axes of the study; vectors along inner axes, labels and constraints are left out."""
        inner = set(INNER.names) - set(self.result.attrs.get("study_axes", "").split())
        return [
            name
            for name, v in bare_variables(self.result).items()
            if not {"constraint", "flag_values"} & set(v.attrs) and v.dtype.kind in "iuf" and not inner & set(v.dims)
        ]

    @cached_property
    def constraints(self) -> list[str]:
        """Constraints that some design violates or that are too large to be looked through, illegal ones first.

        Behind them those that every design satisfies: it may violate them once a quantity is changed.
        """
        return [*self.open_constraints, *self._satisfied]

    @cached_property
    def open_constraints(self) -> list[str]:
        """Constraints that some design may violate, illegal ones first."""
        found = []
        for name, v in bare_variables(self.result).items():
            if "constraint" not in v.attrs:
                continue
            if v.size <= KEPT_FLAGS:
                self._kept[name] = v.load()
                if bool((v.values != 0).all()):
                    self._satisfied.append(name)
                    continue
            found.append(name)
        return sorted(found, key=lambda name: self.result.variables[name].attrs["constraint"] != "illegal")[
            :MOST_REASONS
        ]

    def objective(self) -> tuple[str, bool]:
        """What is best, and whether it is minimized: as the study says, else its first quantity."""
        stated = stated_best(self.result.attrs)
        if stated is not None and (name := stated.minimize or stated.maximize) in self.quantities:
            return str(name), stated.maximize is None
        if "step_time" in self.quantities:
            return "step_time", True
        return (self.quantities[0] if self.quantities else ""), True

    def labels(self, axis: str) -> np.ndarray:
        """The labels of an axis; its rows where it has none."""
        return self.result[axis].values if axis in self.result.coords else np.arange(self.result.sizes[axis])

    # -- marks ----------------------------------------------------------------------------------------------------

    def marks(self, asked: Slice) -> Marks:
        """The marks of a slice. PerfgridError for what does not exist, and for more designs than can be searched."""
        rows = self.checked(asked)
        over = [a for a in self.axes if a not in asked.axes and len(rows[a]) > 1]
        order = [*asked.axes, *over]
        shape, inside = [len(rows[a]) for a in asked.axes], [len(rows[a]) for a in over]
        if prod(shape) > MOST_MARKS or prod(shape) * prod(inside) > MOST_SEARCHED:
            raise PerfgridError("too many designs for one picture: hold more axes at a label")
        if self.lazy:
            return self.marks_of(self._part(list(dict.fromkeys((asked.quantity, asked.by))), rows), asked, rows)
        found = self._best(asked, rows, order, shape) if over else np.zeros(prod(shape), int)
        place = np.unravel_index(np.arange(prod(shape)), shape or [1])
        chosen = np.unravel_index(found, inside or [1])
        at = {a: np.full(prod(shape), rows[a][0]) for a in self.axes}
        at |= {a: rows[a][p] for a, p in zip(order, (*place[: len(shape)], *chosen), strict=False)}
        return self.at(asked.quantity, at)

    def marks_of(self, part: Grid, asked: Slice, rows: Mapping[str, np.ndarray]) -> Marks:
        """The marks of a slice, given a grid in memory of its designs alone."""
        here = {axis: range(len(r)) for axis, r in rows.items()}
        found = part.marks(Slice(asked.quantity, asked.axes, here, asked.by, asked.least))
        return Marks(found.numbers, self._numbers_of(part, found), {a: rows[a][r] for a, r in found.rows.items()})

    def design(self, rows: Mapping[str, np.ndarray], part: Grid | None = None) -> dict[str, Marks]:
        """Every quantity of one design; of ``part``, a grid of this design alone, where it is given."""
        if part is None and self.lazy:
            part = self._part(self.quantities, rows)
        if part is None:
            return {name: self.at(name, rows) for name in self.quantities}
        found = {name: part.at(name, {axis: np.zeros(1, int) for axis in rows}) for name in self.quantities}
        return {name: Marks(one.numbers, self._numbers_of(part, one), rows) for name, one in found.items()}

    def _numbers_of(self, part: Grid, found: Marks) -> np.ndarray:
        """The reasons of marks of a part by their numbers in the whole."""
        return np.array([0, *(1 + self.constraints.index(n) for n in part.constraints)], np.uint8)[found.reasons]

    def _part(self, outputs: Sequence[str], rows: Mapping[str, np.ndarray]) -> Grid:
        """Designs of a factored result, evaluated at once."""
        checked = {name for output in outputs for name in constraints_of(self.result, output)}
        met, known = {*self.constraints} - {*self.open_constraints}, {*self._kept}
        variables = dict(read_together(self.result, [*outputs, *(checked - met - known)], rows).variables)
        variables |= {name: self.read(name, rows) for name in (checked - met) & known}
        variables |= {name: xr.Variable((), 1, self.result.variables[name].attrs) for name in checked & met}
        sizes = {axis: len(r) for axis, r in rows.items()}
        variables |= {name: variables[name].set_dims(sizes) for name in outputs}  # so that it has every axis
        return Grid(xr.Dataset({n: (v.dims, v.values, v.attrs) for n, v in variables.items()}))

    def at(self, quantity: str, at: Mapping[str, np.ndarray]) -> Marks:
        """A quantity at single designs, given as the rows of every axis."""
        points = {a: xr.Variable("mark", rows) for a, rows in at.items()}
        reasons = self.reasons(quantity, points)
        numbers = self.read(quantity, points).astype(np.float64)
        size = len(next(iter(at.values()), [0]))
        numbers, reasons = (np.broadcast_to(v.values, size) for v in (numbers, reasons))
        return Marks(np.where(np.array([False, *self.unlawful()])[reasons], np.nan, numbers), reasons, at)

    def checked(self, asked: Slice) -> dict[str, np.ndarray]:
        """The rows of every axis."""
        for name in (asked.quantity, asked.by):
            if name not in self.quantities:
                raise PerfgridError(f"the result has no quantity {name!r}{nearest(name, self.quantities)}")
        for axis in (*asked.axes, *asked.rows):
            if axis not in self.axes:
                raise PerfgridError(f"the result has no axis {axis!r}{nearest(axis, self.axes)}")
        if len(set(asked.axes)) < len(asked.axes):
            raise PerfgridError("a slice needs different axes")
        found = {}
        for axis in self.axes:
            size = self.result.sizes[axis]
            found[axis] = rows = np.asarray(asked.rows.get(axis, range(size)), np.int64)
            if rows.ndim != 1 or not len(rows) or rows.min() < 0 or rows.max() >= size:
                raise PerfgridError(f"axis {axis!r} has rows 0 to {size - 1}")
        return found

    def _best(
        self, asked: Slice, rows: Mapping[str, np.ndarray], order: Sequence[str], shape: Sequence[int]
    ) -> np.ndarray:
        """Of every mark the place of its best design among the others; the least forbidden where none is feasible."""
        every = {a: _sliced(rows[a]) for a in order} | {a: int(rows[a][0]) for a in self.axes if a not in order}
        sizes = {a: len(rows[a]) for a in order}
        score = self.read(asked.by, every).astype(np.float64).set_dims(sizes).transpose(*order)
        score = score.values.reshape(prod(shape), -1) * (1 if asked.least else -1)
        reasons = self.reasons(asked.by, every).set_dims(sizes).transpose(*order).values.reshape(score.shape)
        kinds = np.array([0, *(2 if unlawful else 1 for unlawful in self.unlawful())])
        forbidden = kinds[reasons]
        usable = np.isfinite(score) & (forbidden < 2) & (forbidden == forbidden.min(axis=1, keepdims=True))
        return np.argmin(np.where(usable, score, np.inf), axis=1)

    def unlawful(self) -> list[bool]:
        """Of every constraint whether values mean nothing where it is violated."""
        return [self._kind(name) == "illegal" for name in self.constraints]

    def _kind(self, constraint: str) -> str:
        return str(self.result.variables[constraint].attrs["constraint"])

    @cached_property
    def lazy(self) -> bool:
        """Whether values are evaluated when they are read."""
        return any(str(v.encoding.get("source", "")).endswith(SUFFIX) for v in self.result.variables.values())

    def read(self, name: str, at: Mapping[str, Any] | None = None) -> xr.Variable:
        """A variable at rows of its axes."""
        variable = self._kept.get(name)
        if variable is None:
            variable = self.result.variables[name]
            if not self.lazy and variable.nbytes <= KEPT_BYTES:
                variable = self._kept[name] = variable.load()
        return variable.isel({d: at[d] for d in map(str, variable.dims) if at and d in at})

    def reasons(self, quantity: str, at: Mapping[str, Any] | None = None) -> xr.Variable:
        """The number of the first constraint that is violated, 0 where none is.

        From the second time on that of all designs is kept, where these fit.
        """
        concerning = frozenset(constraints_of(self.result, quantity))
        if (known := self._reasons.get(concerning)) is not None:
            return known.isel({d: at[d] for d in map(str, known.dims) if at and d in at})
        again, self._reasons[concerning] = concerning in self._reasons, None
        sizes = {d: n for name in concerning for d, n in self.result.variables[name].sizes.items()}
        if again and not self.lazy and prod(sizes.values()) <= KEPT_BYTES:
            self._reasons[concerning] = self._reasons_at(concerning)
            return self.reasons(quantity, at)
        return self._reasons_at(concerning, at)

    def _reasons_at(self, concerning: frozenset[str], at: Mapping[str, Any] | None = None) -> xr.Variable:
        found = xr.Variable((), np.uint8(0))
        for number, name in enumerate(self.open_constraints, 1):
            if name in concerning:
                broken = self.read(name, at) == 0
                found = found + ((found == 0) & broken).astype(np.uint8) * np.uint8(number)
        return found.astype(np.uint8)

    # -- what the page needs to know ------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """Axes, quantities, constraints, the objective and the first view, as plain data."""
        objective, least = self.objective()
        variables = self.result.variables
        return {
            "axes": [self._axis(name) for name in self.axes],
            "quantities": [
                {
                    "name": name,
                    "meaning": str(variables[name].attrs.get("long_name", "")),
                    "axes": [str(d) for d in variables[name].dims],
                    **about_unit(str(variables[name].attrs.get("units", "1"))),
                }
                for name in self.quantities
            ],
            "constraints": [
                {
                    "name": name,
                    "kind": self._kind(name),
                    "reason": str(variables[name].attrs.get("reason", "")),
                }
                for name in self.constraints
            ],
            "objective": objective,
            "least": least,
            "view": self.first_view(),
        }

    def _axis(self, name: str) -> dict[str, Any]:
        grouped = self.result.attrs.get(GROUPED)
        labels, about = self.labels(name), self.result[name].attrs if name in self.result.coords else {}
        unit = str(about.get("units", "1"))
        columns = {
            str(c): v.values.tolist()
            for c, v in self.result.coords.items()
            if v.dims == (name,)
            and c != name
            and 1 < len(np.unique(v.values)) <= (MOST_MARKS if c == grouped else FEW)
            and v.dtype.kind in "iufU"
        }
        return {
            "name": name,
            "meaning": str(about.get("long_name", "")),
            "numbers": labels.astype(float).tolist() if labels.dtype.kind in "iuf" else None,
            "texts": [label_text(label, unit) for label in labels.tolist()],
            "columns": columns,
            **about_unit(unit),
        }

    def first_view(self) -> dict[str, Any]:
        """The view that a page begins with: along the longest axis of numbers, best along what the study chooses.

        Where that searches too many designs, a shorter search: one along numbers that the study chooses among, then
        one without colours, then with ever more axes held at a label.
        """
        objective, _ = self.objective()
        here = [str(d) for d in self.result.variables[objective].dims] if objective else []
        sizes, over = self.result.sizes, self.searched()
        free = [a for a in here if a not in over and sizes[a] > 1] or [a for a in here if sizes[a] > 1] or here
        numeric = [a for a in free if self.labels(a).dtype.kind in "iuf"]
        x = max(numeric or free, key=lambda a: int(sizes[a]), default="")
        others = [a for a in free if a != x]
        series = next((a for a in SERIES if a in others), others[0] if others else "")
        best, most = [a for a in self.axes if a in over], MOST_FIRST
        if self.lazy:
            most = MOST_FIRST_LAZY if workload_of(self.result) == "training" else MOST_FIRST_LAZY // 4
        numeric = [a for a in here if self.labels(a).dtype.kind in "iuf"]
        if self._searched(x, series, best) > most and numeric:
            x = max(numeric, key=lambda a: int(sizes[a]))
            series = next((a for a in SERIES if a in here and sizes[a] > 1), "")
        if self._searched(x, series, best) > most and series not in best:
            series = ""
        while self._searched(x, series, best) > most and best:
            best.remove(min(best, key=lambda a: int(sizes[a])))
        held = self.held()
        rows = {a: "best" if a in best and a not in (x, series) else held.get(a, 0) for a in self.axes}
        return {"quantity": objective, "x": x, "series": series, "rows": rows, "narrow": self._narrow()}

    def _narrow(self) -> dict[str, dict[str, Any]]:
        """Designs of one cluster size, the largest, where an axis has designs of several."""
        grouped = self.result.attrs.get(GROUPED)
        axis = next(iter(self.result[grouped].dims), None) if grouped in self.result.coords else None
        if axis in (None, grouped) or grouped in self._over() or len(np.unique(self.result[grouped].values)) == 1:
            return {}
        return {str(axis): {str(grouped): self.result[grouped].values.max().item()}}

    def _searched(self, x: str, series: str, best: Sequence[str]) -> int:
        """The designs behind a view."""
        narrow = {
            a: int((self.result[c].values == v).sum()) for a, one in self._narrow().items() for c, v in one.items()
        }
        return prod(narrow.get(a, int(self.result.sizes[a])) for a in {x, series, *best} if a)

    def searched(self) -> list[str]:
        """The axes along which the best design is sought: as the study says, else all but models and devices."""
        if stated_best(self.result.attrs) is not None:
            over = self._over()
        elif "step_time" in self.quantities and workload_of(self.result) == "training":
            over = [a for a in self.axes if a not in (*GROUPS, *self.scaled())]
        else:
            over = []
        return over

    def _over(self) -> list[str]:
        """What the study chooses among: axes, and sizes of clusters."""
        stated = stated_best(self.result.attrs)
        if stated is None:
            return []
        return [stated.over] if isinstance(stated.over, str) else list(stated.over)

    def scaled(self) -> list[str]:
        """Axes of factors on swept hardware."""
        if SPACE_ATTRIBUTE not in self.result.attrs:
            return []
        return [a["name"] for a in stored(self.result.attrs, SPACE_ATTRIBUTE)["axes"] if a["scales"]]

    def held(self) -> dict[str, int]:
        """Rows at which a study seeks its best designs; hardware as it is."""
        if SPACE_ATTRIBUTE not in self.result.attrs:
            return {}
        try:
            _, axes, rows, _ = left_open(self.result, {})
        except PerfgridError:  # chosen designs, whose axes are not those of the study
            return {}
        return {name: int(rows[name][0]) for name in axes if name in self.axes}


def _sliced(rows: np.ndarray) -> Any:
    """Neighbouring rows as a slice, which every storage reads at once."""
    return slice(int(rows[0]), int(rows[-1]) + 1) if (np.diff(rows) == 1).all() else rows
