"""Near misses: infeasible designs that one limit alone excludes and that are nearest to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.designs import Designs
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.graph.entries import EXCEEDS
from perfgrid.engine.graph.resolver import resolve_checked
from perfgrid.engine.grid.dataset import constraints_of
from perfgrid.engine.reductions.argmin import points_plan
from perfgrid.results.provenance import GROUPED, restore

from .grid import GROUPS, Grid

MOST_TRIED = 4096  # designs of a limit, the best ones, whose distance to it is evaluated
MOST_LISTED = 12  # designs of a limit, one of each group


@dataclass(frozen=True)
class Miss:
    """A design, the limit that it exceeds with both sides and their unit, and its objective."""

    constraint: str
    reason: str
    value: float
    limit: float
    sides: tuple[str, str]
    unit: str
    objective: float
    gain: float  # of the objective over the best feasible design of the same group, relative
    rows: dict[str, int]


def near_misses(grid: Grid, formulas: Iterable[Callable[..., Any]] = ()) -> list[Miss]:
    """For every limit the designs nearest to it that nothing else excludes and that are better than the best one.

    Both sides of a limit are evaluated by the formulas installed. Empty where the result is one of chosen designs.
    """
    objective, least = grid.objective()
    try:
        space, registry, choices = restore(grid.result, formulas)
        graph = resolve_checked(registry, [objective], space.names(), choices, space.label_quantities())
    except PerfgridError:
        return []
    whole = [axis.name for axis in space.axes]
    if set(grid.axes) != {a for a in whole if a in grid.result.dims} or set(whole) - set(grid.result.dims):
        return []
    held = {a: row for a, row in grid.held().items() if a in grid.scaled()}  # hardware as it is
    rows = {a: np.array([held[a]]) if a in held else np.arange(grid.result.sizes[a]) for a in grid.axes}
    flat = _Flat(grid, rows)
    sign = 1.0 if least else -1.0
    score = sign * flat.of(grid.read(objective, rows))
    concerning = set(constraints_of(grid.result, objective))
    about = {name: grid.result.variables[name].attrs for name in grid.constraints}
    broken = {name: flat.of(grid.read(name, rows) == 0) for name in grid.constraints if name in concerning}
    group = flat.groups()
    designs_of = Designs(score, broken, group)
    limits = {name: graph.nodes.get(name) for name in broken if about[name]["constraint"] == EXCEEDS}
    found = []
    for name, designs in designs_of.near([name for name, node in limits.items() if node and len(node.compared) == 2]):
        node, best = limits[name], designs_of.least
        assert node is not None
        designs = designs[np.argsort(score[designs] - best[designs], kind="stable")[:MOST_TRIED]]
        at = flat.rows_of(designs)
        index = [_labelled(axis.labels, grid.labels(axis.name)[at[axis.name]]) for axis in space.axes]
        sides = (str(node.compared[0]), str(node.compared[1]))
        try:
            values = Evaluation(points_plan(registry, space, index, sides, choices), "float64").collect()
        except PerfgridError:
            continue
        value, limit = (np.broadcast_to(np.ravel(values[side]), len(designs)) for side in sides)
        with np.errstate(all="ignore"):
            distance = np.abs(np.log(value / limit))
        unit = max((graph.nodes[side].unit for side in sides if side in graph.nodes), default="1")
        order = np.argsort(distance, kind="stable")
        _, first = np.unique(group[designs[order]], return_index=True)  # the nearest of every group
        for i in order[np.sort(first)][:MOST_LISTED]:
            here = {a: int(r[i]) for a, r in at.items()}
            ends = (float(value[i]), float(limit[i]))
            gain = float(score[designs[i]] / best[designs[i]] - 1) if np.isfinite(best[designs[i]]) else np.nan
            found.append(
                Miss(name, str(about[name]["reason"]), *ends, sides, unit, sign * float(score[designs[i]]), gain, here)
            )
    return found


class _Flat:
    """The designs at some rows of every axis, in one row."""

    def __init__(self, grid: Grid, rows: dict[str, np.ndarray]):
        self.grid, self.rows = grid, rows
        self.sizes = {a: len(r) for a, r in rows.items()}

    def of(self, variable: xr.Variable) -> np.ndarray:
        """A variable at every design."""
        return variable.set_dims(self.sizes).transpose(*self.sizes).values.ravel()

    def rows_of(self, designs: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of every axis of some designs."""
        places = np.unravel_index(designs, tuple(self.sizes.values()))
        return {a: self.rows[a][p] for a, p in zip(self.sizes, places, strict=True)}

    def groups(self) -> np.ndarray:
        """The group of every design: designs of other models, devices or cluster sizes are not rivals."""
        columns = []
        for name in (*GROUPS, self.grid.result.attrs.get(GROUPED)):
            axis = next(iter(self.grid.result[name].dims), None) if name in self.grid.result.coords else None
            if axis in self.rows:
                _, numbers = np.unique(self.grid.result[name].values, return_inverse=True)
                columns.append(self.of(xr.Variable((axis,), numbers[self.rows[str(axis)]])))
        if not columns:
            return np.zeros(int(np.prod(list(self.sizes.values()))), int)
        return np.unique(np.stack(columns), axis=1, return_inverse=True)[1].ravel()


def _labelled(every: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The rows of labels on an axis of the study."""
    order = np.argsort(every, kind="stable")
    return order[np.searchsorted(every, labels, sorter=order)]
