"""The designs of a question, evaluated at once: the best ones of every group, and what excludes the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from perfgrid.engine.graph.registry import Constraint
from perfgrid.engine.grid.dataset import feasible, study_axes
from perfgrid.results.evaluate import evaluate
from perfgrid.study.file import CLUSTER_SIZE
from perfgrid.study.selection import asking
from perfgrid.study.study import Study

WHOLE = 2**24  # points up to which the grid of a question is evaluated in NumPy, without compiling anything
UNCHANGED = ("model", "system", "parallelism")  # axes along which no remedy is looked for
EXCEEDS = "exceeds"  # kind of the constraints that compare a value with a limit


Place = Callable[[int], tuple[int, ...]]  # the rows of every axis of a design of a group, by its number


@dataclass(frozen=True)
class Miss:
    """A design that one limit alone excludes: its labels, the limit, and its objective if the limit did not hold."""

    layout: str
    constraint: str
    value: float
    limit: float
    objective: float
    remedy: str = ""  # the label that makes it feasible at the least loss
    remedied: float = np.nan  # the objective then


@dataclass(frozen=True)
class Group:
    """The designs of one system and cluster size."""

    system: str
    devices: int
    designs: int
    best: list[tuple[int, ...]]  # rows of every axis, best first
    excluded: dict[str, int]  # constraint -> designs of which it is the root cause
    misses: list[Miss]


@dataclass(frozen=True)
class Searched:
    """All designs of a question on the axes of its study."""

    study: Study
    objective: str
    least: bool
    grid: xr.Dataset
    limits: dict[str, tuple[str, str]]  # constraint -> value and limit that it compares

    @classmethod
    def of(cls, study: Study, objective: str, least: bool = True) -> Searched:
        """Evaluate a study whose outputs include the objective."""
        limits = {name: sides for name, sides in limits_of(study).items() if set(sides) <= _known(study)}
        wanted = dict.fromkeys((objective, *(side for sides in limits.values() for side in sides)))
        grid = evaluate(asking(study, list(wanted)), small_points=WHOLE)
        return cls(study, objective, least, grid, limits)

    def groups(self, count: int) -> Iterator[Group]:
        """The groups in the order of the question: systems, then sizes."""
        sizes = self.grid[CLUSTER_SIZE].values
        for i, system in enumerate(self.grid["system"].values):
            for size in dict.fromkeys(sizes.tolist()):
                rows = np.flatnonzero(sizes == size)
                yield self._group(str(system), int(size), {"system": [i], "parallelism": rows}, count)

    def _group(self, system: str, size: int, rows: dict[str, Sequence[int]], count: int) -> Group:
        axes = study_axes(self.study.space)
        part = self.grid.isel(rows)
        shape = [part.sizes[axis] for axis in axes]

        def spread(values: xr.DataArray) -> np.ndarray:
            missing = {axis: part.sizes[axis] for axis in axes if axis not in values.dims}
            return values.expand_dims(missing).transpose(*axes).values.reshape(-1)

        score = spread(part[self.objective]) * (1 if self.least else -1)
        legal = spread(feasible(part, of=self.objective)) & np.isfinite(score)
        order = np.flatnonzero(legal)
        order = order[np.argsort(score[order], kind="stable")][:count]

        def place(flat: int) -> tuple[int, ...]:
            found = np.unravel_index(flat, shape)
            return tuple(int(rows[a][i]) if a in rows else int(i) for a, i in zip(axes, found, strict=True))

        flags = {str(n): v for n, v in part.data_vars.items() if "constraint" in v.attrs}
        concerned = part[self.objective].attrs.get("ancillary_variables", "").split()
        # what few axes decide, and what is no matter of size, comes first: a fabric that does not exist fits no memory
        names = sorted(
            (n for n in flags if n in concerned),
            key=lambda n: (flags[n].attrs["constraint"] == EXCEEDS, len(flags[n].dims)),
        )
        broken = {name: ~spread(flags[name]).astype(bool) for name in names}
        left, excluded = np.ones(len(score), bool), {}
        for name in names:
            if hits := int((broken[name] & left).sum()):
                excluded[name] = hits
            left &= ~broken[name]
        best = score[order[0]] if len(order) else np.inf
        misses = []
        for name, (value, limit) in self.limits.items():
            if name not in broken:
                continue
            others = np.zeros(len(score), bool)
            for other in names:
                if other != name:
                    others |= broken[other]
            near = np.flatnonzero(broken[name] & ~others & np.isfinite(score) & (score < best))
            if not len(near):
                continue
            ratio = spread(part[value])[near] / spread(part[limit])[near]
            at = int(near[np.argmin(ratio)])
            misses.append(self._miss(name, place, shape, at, score, legal))
        return Group(system, size, len(score), [place(i) for i in order], excluded, misses)

    def _miss(
        self, name: str, place: Place, shape: Sequence[int], at: int, score: np.ndarray, legal: np.ndarray
    ) -> Miss:
        """What one limit excludes, and the one label that would make it feasible."""
        value, limit = self.limits[name]
        axes = study_axes(self.study.space)
        here = np.unravel_index(at, shape)
        remedy, remedied = "", np.inf
        for i, axis in enumerate(axes):
            if axis in UNCHANGED:
                continue
            for row in range(shape[i]):
                other = np.ravel_multi_index([row if k == i else p for k, p in enumerate(here)], shape)
                if legal[other] and score[other] < remedied:
                    remedied, remedy = score[other], f"{axis} = {self.grid[axis].values[row]}"
        index = place(at)
        labels = [f"{a} {self.grid[a].values[i]}" for a, i in zip(axes, index, strict=True) if a not in UNCHANGED]
        layout = self.grid["parallelism"].values[index[axes.index("parallelism")]]
        sign, sides = 1 if self.least else -1, (float(self._at(side, index)) for side in (value, limit))
        return Miss(", ".join((layout, *labels)), name, *sides, sign * float(score[at]), remedy, sign * float(remedied))

    def _at(self, name: str, index: tuple[int, ...]) -> float:
        rows = dict(zip(study_axes(self.study.space), index, strict=True))
        values = self.grid[name]
        return values.isel({d: rows[str(d)] for d in values.dims}).item()


def limits_of(study: Study) -> dict[str, tuple[str, str]]:
    """The constraints of a study that compare a value with a limit, and these two."""
    found = {}
    for name in study.plan().constraints:
        constraint = study.registry.get(name)
        if isinstance(constraint, Constraint) and constraint.kind == EXCEEDS and len(constraint.arguments) == 2:
            found[name] = constraint.arguments
    return found


def _known(study: Study) -> set[str]:
    return {*study.registry.names(), *study.space.names()}
