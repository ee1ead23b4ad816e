"""The designs of a question, evaluated at once: the best ones of every group, and what excludes the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise
from math import prod
from operator import or_

import numpy as np
import xarray as xr

from perfgrid.analysis.designs import Designs
from perfgrid.engine.graph.entries import EXCEEDS
from perfgrid.engine.grid.dataset import CONCERNING, study_axes
from perfgrid.engine.grid.space import Space
from perfgrid.results.evaluate import evaluated
from perfgrid.study.file import CLUSTER_SIZE, LAYOUT, Ties, ties_of
from perfgrid.study.selection import asking
from perfgrid.study.study import Study
from perfgrid.study.where import filtered
from perfgrid.text.numbers import label_text

WHOLE = 2**24  # points up to which the grid of a question is evaluated in NumPy: nothing is compiled
SYSTEM = "system"
BUDGET = "token_budget"  # axis of the prompt tokens of an iteration, the engine's default first
MEMORY, NO_BATCH = "fits_memory", "batch_can_be_chosen"  # constraints that fewer prompt tokens may help to keep
WHOLE_MEMORY = {"usable_memory": "hbm_capacity", "memory_ceiling": "memory_limit"}  # what a part is kept free of
WORTH = 0.01  # of the objective: a smaller gain is less than the error of any prediction
ROUNDING = 1e-6  # relative difference of values that are called equal
NEARLY = 1.1  # memory over that of a device: of what a smaller workspace may make room for
STAGES = "pp"
DEGREES = ("tp", "cp", STAGES, "ep", "etp")  # of layouts that differ in nothing but the number of replicas
FLEETS = (64, 128, 256)  # devices up to which all sizes are tried, until some serve
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
class PassedOver:
    """A design that is better than the chosen one by a part of the objective, and what the chosen one has less of."""

    index: Index
    gain: float
    decisive: str


@dataclass(frozen=True)
class Block:
    """Designs that are evaluated together: all combinations of some rows of the axes of a study.

    ``rows``: of the axes of which it has a part; ``grid``: this part, with objective, limited values, flags.
    """

    grid: xr.Dataset
    axes: Sequence[str]
    rows: Mapping[str, Sequence[int]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows of the block on every axis."""
        return tuple(self.grid.sizes[axis] for axis in self.axes)

    def spread(self, name: str) -> np.ndarray:
        """A variable at every design, flat."""
        values = self.grid[name]
        missing = {axis: self.grid.sizes[axis] for axis in self.axes if axis not in values.dims}
        return values.expand_dims(missing).transpose(*self.axes).values.reshape(-1)

    def part(self, axis: str, kept: np.ndarray) -> Block:
        """Some rows of an axis."""
        rows = np.asarray(self.rows.get(axis, np.arange(self.grid.sizes[axis])))[kept]
        return Block(self.grid.isel({axis: kept}), self.axes, {**self.rows, axis: rows.tolist()})

    def index(self, design: int) -> Index:
        """The rows of the study's axes of a design."""
        places = zip(self.axes, np.unravel_index(design, self.shape), strict=True)
        return tuple(int(self.rows[axis][int(i)]) if axis in self.rows else int(i) for axis, i in places)


@dataclass(frozen=True)
class Group:
    """The designs of one system, and of one cluster size unless sizes are weighed against each other."""

    blocks: tuple[Block, ...]
    objective: str
    least: bool
    limits: Mapping[str, tuple[str, str]]  # constraint -> value and limit that it compares
    ties: Ties

    @property
    def grid(self) -> xr.Dataset:
        """The first designs, with what all of them say of their variables."""
        return self.blocks[0].grid

    @property
    def designs(self) -> int:
        """How many designs the group has."""
        return len(self.score)

    def spread(self, name: str) -> np.ndarray:
        """A variable at every design, flat."""
        return np.concatenate([block.spread(name) for block in self.blocks])

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
    def chosen(self) -> Designs:
        """The designs by score and violated constraints."""
        return Designs(self.score, self.broken)

    @property
    def possible(self) -> np.ndarray:
        """The designs without a violated constraint."""
        return self.chosen.possible

    def joined(self, block: Block) -> Group:
        """The group with further designs."""
        return replace(self, blocks=(*self.blocks, block))

    def promising(self, layouts: np.ndarray) -> np.ndarray:
        """The layouts that another budget of prompt tokens may help: those that are buildable, or nearly fit."""
        kinds = {name: self.grid[name].attrs["constraint"] for name in self.broken}
        rules = [where for name, where in self.broken.items() if kinds[name] != EXCEEDS and name != NO_BATCH]
        good = ~reduce(or_, rules, np.zeros(self.designs, bool))
        if MEMORY in self.limits:
            used, whole = map(self.spread, self.limits[MEMORY])
            good &= used <= NEARLY * whole
        place = self.blocks[0].axes.index(LAYOUT)
        own = np.concatenate([np.asarray(b.rows[LAYOUT])[np.indices(b.shape)[place].reshape(-1)] for b in self.blocks])
        return np.isin(layouts, own[good])

    @cached_property
    def order(self) -> np.ndarray:
        """The designs without a violated constraint, best first."""
        ties = self.ties
        exact = None if ties.exact is None else self.spread(ties.exact)
        return self.chosen.ordered(exact, ties.within, [self.spread(name) for name in ties.by])

    def best(self, count: int) -> list[Index]:
        """The best designs, best first, as rows of the study's axes."""
        return [self.index(int(design)) for design in self.order[:count]]

    def passed_over(self) -> PassedOver | None:
        """The design of the best objective, where one that is nearly as good is chosen instead."""
        if self.ties.within is None or not len(self.order):
            return None
        chosen = int(self.order[0])
        first = int(self.order[np.argmin(self.score[self.order])])
        gain = abs(self.score[first] / self.score[chosen] - 1)
        if gain <= ROUNDING:
            return None
        decisive = next(n for n in self.ties.by if self.spread(n)[chosen] < self.spread(n)[first])
        return PassedOver(self.index(first), float(gain), decisive)

    def frontier(self, against: str) -> list[Index]:
        """The designs that no other beats in both the objective and ``against`` (the most is the best), best first."""
        return [self.index(int(design)) for design in self.chosen.front(-self.spread(against))]

    def index(self, design: int) -> Index:
        """The rows of the study's axes of a design."""
        block, _, place = self._placed(design)
        return block.index(place)

    def _placed(self, design: int) -> tuple[Block, int, int]:
        """The block of a design, the first design of this block, and the design's place in it."""
        ends = np.cumsum([prod(block.shape) for block in self.blocks])
        number = int(np.searchsorted(ends, design, side="right"))
        first = int(ends[number - 1]) if number else 0
        return self.blocks[number], first, design - first

    def excluded(self) -> dict[str, int]:
        """How many designs each constraint excludes, each counted at its first violated constraint."""
        return self.chosen.excluded()

    def misses(self) -> Iterator[Miss]:
        """For every limit the design nearest to it that nothing else excludes and that is better than the best one."""
        for name, near in self.chosen.near(list(self.limits)):
            value, limit = map(self.spread, self.limits[name])
            yield self._miss(name, int(near[np.argmin(value[near] - limit[near])]))

    def unsure(self) -> Miss | None:
        """The best design that fits if nothing is kept free of the memory, and is worth more than the chosen one."""
        used, limit = self.limits.get(MEMORY, ("", ""))
        if limit not in WHOLE_MEMORY:
            return None
        value, whole = self.spread(used), self.spread(WHOLE_MEMORY[limit])
        best = self.score[self.possible].min(initial=np.inf)
        worth = best - WORTH * abs(best) if np.isfinite(best) else best
        for _, near in self.chosen.near([MEMORY]):
            if len(near := near[(value[near] <= whole[near]) & (self.score[near] < worth)]):
                design = int(near[np.argmin(self.score[near])])
                return replace(self._miss(MEMORY, design), limit=float(whole[design]))
        return None

    def _miss(self, name: str, design: int) -> Miss:
        block, first, place = self._placed(design)
        here, sign = np.unravel_index(place, block.shape), 1 if self.least else -1
        remedy, remedied = "", np.inf
        for number, axis in enumerate(block.axes):
            if axis in (SYSTEM, LAYOUT):
                continue
            for row in range(block.shape[number]):
                at = [row if i == number else p for i, p in enumerate(here)]
                other = first + int(np.ravel_multi_index(at, block.shape))
                if self.possible[other] and self.score[other] < remedied:
                    remedied, remedy = self.score[other], f"{axis} {label_text(block.grid[axis].values[row])}"
        labels = {axis: label_text(block.grid[axis].values[i]) for axis, i in zip(block.axes, here, strict=True)}
        labels = {axis: label for axis, label in labels.items() if axis != SYSTEM and block.grid.sizes[axis] > 1}
        value, limit = (float(self.spread(side)[design]) for side in self.limits[name])
        loss = sign * float(remedied) if remedy else np.nan
        return Miss(labels, name, value, limit, sign * float(self.score[design]), remedy, loss)


def groups(
    study: Study, objective: str, least: bool, weighed: bool, against: str | None = None, fleet: bool = False
) -> dict[tuple[str, int], Group]:
    """The groups of a study with the axes ``system`` and ``parallelism``, by system and cluster size.

    ``weighed``: sizes are weighed against each other; a system is one group then, of size 0. ``against``: a quantity
    that they hold, too. ``fleet``: every number of devices is tried, and fewer are better: as soon as a size serves,
    larger ones are left out. Where the study has the axis `BUDGET`, its first row is tried with all layouts, and the
    others with those that they may make the best.
    """
    sides = limits_of(study)
    ties = ties_of(study.file.best, objective)
    whole = [WHOLE_MEMORY[limit] for _, limit in sides.values() if limit in WHOLE_MEMORY]
    wanted = dict.fromkeys(
        (objective, against or objective, *ties.by, *(side for pair in sides.values() for side in pair), *whole)
    )
    shown = {name for axis in study.space.axes for name in axis.shown}
    evaluation = Evaluated(asking(study, [name for name in wanted if name not in shown]), fleet)
    sizes, systems = evaluation.sizes, evaluation.space.axes[evaluation.axes.index(SYSTEM)].labels.tolist()
    first = evaluation.block(**{BUDGET: [0], LAYOUT: np.flatnonzero(sizes <= evaluation.bounds[0])})
    units = {name: str(first.grid[name].attrs.get("units", "1")) for name in wanted if name not in shown}
    limits = {name: pair for name, pair in sides.items() if units[pair[0]] == units[pair[1]] != "1"}
    found = {}
    for i, system in enumerate(systems):
        own = first.part(SYSTEM, np.array([i]))
        for size in [0] if weighed else dict.fromkeys(sizes.tolist()):
            block = own.part(LAYOUT, np.flatnonzero((first.grid[CLUSTER_SIZE].values == size) | weighed))
            group = Group((block,), objective, least, limits, ties)
            found[system, size] = evaluation.completed(group, i)
    return found


class Evaluated:
    """Evaluates designs of a study block by block, and knows which blocks are worth it."""

    def __init__(self, study: Study, fleet: bool):
        self.study, self.space, self.fleet = study, study.space, fleet
        self.axes = study_axes(study.space)
        layouts = study.space.axes[self.axes.index(LAYOUT)]
        self.sizes = np.asarray(layouts.columns[CLUSTER_SIZE]).astype(int)
        self.stages = np.asarray(layouts.columns[STAGES]).astype(int)
        degrees = [np.asarray(layouts.columns[name]).astype(int) for name in DEGREES if name in layouts.columns]
        self.kinds = np.unique(np.stack(degrees), axis=1, return_inverse=True)[1].reshape(-1)
        self.budgets = len(study.space.axes[self.axes.index(BUDGET)]) if BUDGET in self.axes else 1
        largest = int(self.sizes.max())
        self.bounds = [size for size in FLEETS if size < largest] * fleet + [largest]

    def block(self, **rows: Sequence[int] | np.ndarray) -> Block:
        """All combinations of some rows of the axes."""
        kept = {name: np.asarray(own) for name, own in rows.items() if name in self.axes}
        axes = tuple(filtered(axis, kept[axis.name]) if axis.name in kept else axis for axis in self.space.axes)
        study = replace(self.study, space=Space(axes, self.space.constants))
        grid = evaluated(study, study.plan(WHOLE))
        return Block(grid, self.axes, {name: own.tolist() for name, own in kept.items()})

    def completed(self, group: Group, system: int) -> Group:
        """A group with all designs that may be its best: larger sizes if none serves, and other budgets."""
        for low, high in pairwise(self.bounds):
            if group.possible.any():
                break
            rows = np.flatnonzero((self.sizes > low) & (self.sizes <= high))
            group = group.joined(self.block(**{SYSTEM: [system], BUDGET: [0], LAYOUT: rows}))
        if self.budgets == 1:
            return group
        layouts = np.unique(np.concatenate([block.rows[LAYOUT] for block in group.blocks]))
        layouts = layouts[group.promising(layouts) & (self.stages[layouts] == 1)]  # pipelines keep the first budget
        sizes = self.sizes[layouts]
        if not self.fleet:
            return self._with_budgets(group, system, layouts)
        tried, bound = np.zeros(len(layouts), bool), self._least_size(group)
        if bound > self.sizes.max():  # nothing serves: perhaps the largest, least loaded clusters of every kind
            order = layouts[np.argsort(-sizes, kind="stable")]
            least_loaded = order[np.unique(self.kinds[order], return_index=True)[1]]
            group, tried = self._with_budgets(group, system, least_loaded), np.isin(layouts, least_loaded)
            if (bound := self._least_size(group)) > self.sizes.max():
                return group
        while (new := ~tried & (sizes < bound) & (2 * sizes >= bound)).any():
            group = self._with_budgets(group, system, layouts[new])
            tried |= new
            if (found := self._least_size(group)) == bound:
                break
            bound = found
        return self._with_budgets(group, system, layouts[~tried & (sizes == bound)])

    def _with_budgets(self, group: Group, system: int, layouts: np.ndarray) -> Group:
        """The group and some of its layouts with all budgets but the first."""
        if not len(layouts):
            return group
        return group.joined(self.block(**{SYSTEM: [system], BUDGET: np.arange(1, self.budgets), LAYOUT: layouts}))

    def _least_size(self, group: Group) -> int:
        """The size of the best design; one more than the largest where there is none."""
        place = self.axes.index(LAYOUT)
        best = group.best(1)
        return int(self.sizes[best[0][place]]) if best else int(self.sizes.max()) + 1


def limits_of(study: Study) -> dict[str, tuple[str, str]]:
    """The constraints of a study that a design can exceed, and what they read first: a value and its limit."""
    found = {}
    for node in study.graph().constraints:
        if node.constraint is not None and node.constraint.kind == EXCEEDS and len(node.compared) > 1:
            found[node.name] = node.compared[:2]
    return found
