"""The designs of a question, evaluated at once: the best ones of every group, and what excludes the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

import numpy as np
import xarray as xr

from perfgrid.analysis.number_text import label_text
from perfgrid.engine.grid.dataset import CONCERNING, study_axes
from perfgrid.engine.reductions.argmin import ranked
from perfgrid.engine.reductions.pareto import unbeaten
from perfgrid.results.evaluate import evaluated
from perfgrid.study.file import CLUSTER_SIZE, ties_of
from perfgrid.study.selection import asking
from perfgrid.study.study import Study

WHOLE = 2**24  # points up to which the grid of a question is evaluated in NumPy: nothing is compiled
SYSTEM, LAYOUT = "system", "parallelism"
EXCEEDS = "exceeds"  # kind of the constraints that compare a value with a limit
Index = tuple[int, ...]  # rows of every axis of the study


@dataclass(frozen=True)
class Miss:
    """A design that one limit alone excludes: its labels, the limit, and its objective if the limit did not hold."""

    labels: Mapping[str, str]
    constraint: str
    value: float
    limit: float
    objective: float
    remedy: str = ""  # the label that makes it feasible at the least loss
    remedied: float = np.nan  # the objective then


@dataclass(frozen=True)
class Group:
    """The designs of one system, and of one cluster size unless sizes are weighed against each other.

    ``rows``: of the axes of which the group has a part; ``grid``: this part, with objective, limited values, flags.
    """

    grid: xr.Dataset
    axes: Sequence[str]
    rows: Mapping[str, Sequence[int]]
    objective: str
    least: bool
    limits: Mapping[str, tuple[str, str]]  # constraint -> value and limit that it compares
    ties: str | None = None  # of which the least decides between equal designs

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows of the group on every axis."""
        return tuple(self.grid.sizes[axis] for axis in self.axes)

    @property
    def designs(self) -> int:
        """How many designs the group has."""
        return len(self.score)

    def spread(self, name: str) -> np.ndarray:
        """A variable at every design, flat."""
        values = self.grid[name]
        missing = {axis: self.grid.sizes[axis] for axis in self.axes if axis not in values.dims}
        return values.expand_dims(missing).transpose(*self.axes).values.reshape(-1)

    @cached_property
    def score(self) -> np.ndarray:
        """What the best design has least of."""
        return self.spread(self.objective) * (1 if self.least else -1)

    @cached_property
    def broken(self) -> dict[str, np.ndarray]:
        """Where each constraint of the objective is violated, root causes first.

        Illegal designs come before designs beyond a limit, and constraints on few axes before those on many: a topology
        that does not connect a device is reported as that, and not as a lack of memory.
        """
        about = {name: self.grid[name] for name in self.grid[self.objective].attrs.get(CONCERNING, "").split()}
        names = sorted(about, key=lambda name: (about[name].attrs["constraint"] == EXCEEDS, len(about[name].dims)))
        return {name: self.spread(name) == 0 for name in names}

    @cached_property
    def possible(self) -> np.ndarray:
        """The designs without a violated constraint."""
        none = np.zeros(len(self.score), bool)
        return ~reduce(or_, self.broken.values(), none) & np.isfinite(self.score)

    def best(self, count: int) -> list[Index]:
        """The best designs, best first, as rows of the study's axes."""
        found = np.flatnonzero(self.possible)
        score = self.score[found]
        score = score if self.ties is None else ranked(score, self.spread(self.ties)[found])
        return [self.index(int(design)) for design in found[np.argsort(score, kind="stable")][:count]]

    def frontier(self, against: str) -> list[Index]:
        """The designs that no other beats in both the objective and ``against`` (the most is the best), best first."""
        found = np.flatnonzero(self.possible)
        scores = np.stack([self.score[found], -self.spread(against)[found]], axis=1)
        kept = found[unbeaten(np.zeros(len(found), int), scores)]
        return [self.index(int(design)) for design in kept[np.argsort(self.score[kept], kind="stable")]]

    def index(self, design: int) -> Index:
        """The rows of the study's axes of a design."""
        places = zip(self.axes, np.unravel_index(design, self.shape), strict=True)
        return tuple(int(self.rows[axis][int(i)]) if axis in self.rows else int(i) for axis, i in places)

    def excluded(self) -> dict[str, int]:
        """How many designs each constraint excludes, each counted at its root cause."""
        left, found = np.ones(self.designs, bool), {}
        for name, where in self.broken.items():
            found[name] = int((where & left).sum())
            left &= ~where
        return {name: count for name, count in found.items() if count}

    def misses(self) -> Iterator[Miss]:
        """For every limit the design nearest to it that nothing else excludes and that is better than the best one."""
        best = self.score[self.possible].min(initial=np.inf)
        for name, (value, limit) in self.limits.items():
            if name not in self.broken:
                continue
            others = reduce(or_, (where for other, where in self.broken.items() if other != name), ~self.broken[name])
            near = np.flatnonzero(~others & (self.score < best))
            if len(near):
                excess = self.spread(value)[near] - self.spread(limit)[near]
                yield self._miss(name, int(near[np.argmin(excess)]))

    def _miss(self, name: str, design: int) -> Miss:
        here, sign = np.unravel_index(design, self.shape), 1 if self.least else -1
        remedy, remedied = "", np.inf
        for place, axis in enumerate(self.axes):
            if axis in (SYSTEM, LAYOUT):
                continue
            for row in range(self.shape[place]):
                other = np.ravel_multi_index([row if i == place else p for i, p in enumerate(here)], self.shape)
                if self.possible[other] and self.score[other] < remedied:
                    remedied, remedy = self.score[other], f"{axis} {label_text(self.grid[axis].values[row])}"
        labels = {axis: label_text(self.grid[axis].values[i]) for axis, i in zip(self.axes, here, strict=True)}
        labels = {axis: label for axis, label in labels.items() if axis != SYSTEM and self.grid.sizes[axis] > 1}
        value, limit = (float(self.spread(side)[design]) for side in self.limits[name])
        loss = sign * float(remedied) if remedy else np.nan
        return Miss(labels, name, value, limit, sign * float(self.score[design]), remedy, loss)


def groups(
    study: Study, objective: str, least: bool, weighed: bool, against: str | None = None
) -> dict[tuple[str, int], Group]:
    """The groups of a study with the axes ``system`` and ``parallelism``, by system and cluster size.

    ``weighed``: sizes are weighed against each other; a system is one group then, of size 0. ``against``: a quantity
    that they hold, too.
    """
    sides = limits_of(study)
    ties = ties_of(study.file.best, objective)
    wanted = dict.fromkeys(
        (objective, against or objective, ties or objective, *(side for pair in sides.values() for side in pair))
    )
    narrower = asking(study, list(wanted))
    grid = evaluated(narrower, narrower.plan(WHOLE))
    units = {name: str(grid[name].attrs.get("units", "1")) for name in wanted}
    limits = {name: pair for name, pair in sides.items() if units[pair[0]] == units[pair[1]] != "1"}
    sizes = grid[CLUSTER_SIZE].values
    found = {}
    for i, system in enumerate(grid[SYSTEM].values.tolist()):
        for size in [0] if weighed else dict.fromkeys(sizes.tolist()):
            rows = {SYSTEM: [i], LAYOUT: np.flatnonzero((sizes == size) | weighed)}
            part = grid.isel(rows)
            found[system, size] = Group(part, study_axes(study.space), rows, objective, least, limits, ties)
    return found


def limits_of(study: Study) -> dict[str, tuple[str, str]]:
    """The constraints of a study that a design can exceed, and what they read first: a value and its limit."""
    found = {}
    for node in study.graph().constraints:
        if node.constraint is not None and node.constraint.kind == EXCEEDS and len(node.compared) > 1:
            found[node.name] = node.compared[:2]
    return found
