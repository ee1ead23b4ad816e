"""Branch and bound: which rows can be best at all, so that a search of a large grid evaluates no others.

Rows of the axes searched (and of short axes beside them) are listed as candidates, in three steps:

1. Flags of the small stage are known exactly before any tile: a row that they forbid everywhere is no candidate.
2. The rest is bounded: the longest axis is cut into cells, and the formulas are evaluated on the interval of each cell
   (`interval`), every other axis row by row. A candidate whose least possible value lies above the largest possible one
   of another feasible candidate of its group, in every cell and row, is never best.
3. What is left is searched like any grid (`listing`, `search`), every point evaluated.

Bounds hold for rounded values too, so that winners are those of all points; ties go to the first row as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from perfgrid.engine.execution.evaluation import Evaluation, Progress, Tile
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.grid.space import Space

from .argmin import POSSIBLE, SCORE, SEARCH_TILE_POINTS, Search, Winners, objective_plan
from .interval import NoBounds
from .listing import LISTED, Bounds, Listed, Listing
from .subgrid import Cut

LIST_FROM = 2**22  # points: smaller grids are searched whole
BOUND_FROM = 2**32  # possible points: evaluating fewer takes less time than compiling their bounds
LISTED_ROWS = 2**18  # as many axes as give no more are listed
CELLS = 12  # of an axis that is not listed
ROWS = 4  # of a cell at least
BOUND_TILE = 2**19  # boxes
LISTED_TILE = 2**22  # points
MOST_PLANE = (
    2**24
)  # points of all candidates by the last axis, which lie in one tile: with more every point is searched


NOT_LISTED = "candidates are not listed: they are too many, or groups lie along the longest axis"


@dataclass(frozen=True)
class Counts:
    """How many points of a grid were evaluated, and how many were proven unable to win."""

    points: int
    evaluated: int
    by_constraints: int
    by_bounds: int
    boxes: int = 0  # bounded
    why_no_bounds: str = ""

    @property
    def proven(self) -> int:
        """Points proven away."""
        return self.by_constraints + self.by_bounds


class BestSearch:
    """The least (or largest) value of a quantity along some axes, for every row of the others.

    ``parts`` tells rows of one of these axes apart (an axis and a number from 0 for each of its rows): every part is a
    group of its own. ``bounds`` says whether points are bounded (None: if there are so many that it pays). Raises
    PerfgridError like `Plan`, and for an objective with inner axes.
    """

    def __init__(
        self,
        registry: Registry,
        space: Space,
        objective: str,
        over: Sequence[str],
        maximize: bool = False,
        parts: tuple[str, np.ndarray] | None = None,
        choices: dict[str, str] | None = None,
        dtype: str = "float32",
        tile_points: int = SEARCH_TILE_POINTS,
        progress: Progress | None = None,
        small_points: int | None = None,
        bounds: bool | None = None,
    ):
        self.plan = objective_plan(registry, space, objective, maximize, choices, small_points)
        self.dtype, self.tile_points, self.progress = dtype, tile_points, progress
        self.axes = [axis.name for axis in self.plan.space.axes]
        self.sizes = dict(zip(self.axes, self.plan.space.shape, strict=True))
        self.over = tuple(name for name in self.axes if name in over)
        self.groups = tuple(i for i, name in enumerate(self.axes) if name not in over)
        self.parts = parts
        self.count_parts = int(parts[1].max()) + 1 if parts else 1
        self.counts = Counts(space.points, space.points, 0, 0)
        self.ready: dict[bytes, Search] = {}  # compiled searches by their candidates
        self.whole: Search | None = None
        self._cut: Cut | None = None
        kept = self._kept()
        if self.plan.quantities[SCORE].small or space.points < LIST_FROM or kept is None:
            self.whole = self._search_of_all()
            if kept is None and space.points >= LIST_FROM:
                self.counts = replace(self.counts, why_no_bounds=NOT_LISTED)
            return
        self.kept, self.swept = kept, self.axes[-1]
        self.listed = tuple(name for name in self.axes if name not in kept)
        self.inside = prod(self.sizes[name] for name in kept)  # points of a candidate
        self._cut = Cut.of(self.plan, dtype).cast()
        self.possible = self._possible()
        if len(self.possible) * self.sizes[self.swept] > MOST_PLANE:
            self._cut, self.whole = None, self._search_of_all()
            self.counts = replace(self.counts, why_no_bounds=NOT_LISTED)
            return
        wanted = len(self.possible) * self.inside >= BOUND_FROM if bounds is None else bounds
        self.bounds = self._bounds() if wanted else None

    def _search_of_all(self) -> Search:
        """The search that evaluates every point."""
        numbered = None if self.parts is None else (*self.parts, self.count_parts)
        return Search(Evaluation(self.plan, self.dtype, self.tile_points, self.progress), self.over, numbered)

    def _kept(self) -> tuple[str, ...] | None:
        """The axes that are not listed: the last, and those groups for which the list would become too long."""
        *others, last = self.axes
        if self.parts is not None and self.parts[0] == last:
            return None
        rows = prod(self.sizes[name] for name in self.over if name != last)
        if rows > LISTED_ROWS:
            return None
        kept = [last]
        for name in sorted((n for n in others if n not in self.over), key=self.sizes.__getitem__):
            if rows * self.sizes[name] > LISTED_ROWS:
                kept.append(name)
            else:
                rows *= self.sizes[name]
        return tuple(name for name in self.axes if name in kept)

    # -- candidates -------------------------------------------------------------------------------------------------

    def _possible(self) -> np.ndarray:
        """The listed rows (by number, in order of their parts) that no flag of the small stage forbids everywhere."""
        assert self._cut is not None
        shape = tuple(self.sizes[name] for name in self.listed)
        found = np.ones(shape, bool)
        readers = [n for name, n in self.plan.graph.nodes.items() if name == SCORE or name.startswith(POSSIBLE)]
        for name in {a for node in readers for a in node.arguments}:
            quantity = self.plan.quantities[name]
            if not quantity.flag or name not in self._cut.values:
                continue
            flag = self._cut.values[name].reshape(quantity.sizes)
            outside = tuple(i for i, axis in enumerate(self.axes) if axis in self.kept)
            key = [p for p, axis in zip(quantity.key, self.axes, strict=True) if axis not in self.kept]
            flag = np.any(flag, axis=outside)
            for axis, partition in enumerate(key):
                if partition is not None:
                    flag = np.take(flag, partition.inverse, axis=axis)
            found &= flag
        numbers = np.flatnonzero(found)
        if len(numbers) == 0:
            numbers = np.zeros(1, int)  # one that is infeasible stands for all
        return numbers[np.argsort(self._parts_of(numbers), kind="stable")]

    def _rows(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The row of every listed axis."""
        shape = tuple(self.sizes[name] for name in self.listed)
        return dict(zip(self.listed, np.unravel_index(numbers, shape), strict=True))

    def _parts_of(self, numbers: np.ndarray) -> np.ndarray:
        """The group of every listed row among parts and listed groups."""
        rows = self._rows(numbers)
        group = self.parts[1][rows[self.parts[0]]] if self.parts else np.zeros(len(numbers), int)
        for name in self._listed_groups():
            group = group * self.sizes[name] + rows[name]
        return group

    def _listed_groups(self) -> list[str]:
        return [name for name in self.listed if name not in self.over]

    # -- bounds -----------------------------------------------------------------------------------------------------

    def _bounds(self) -> Bounds | None:
        """The compiled bounds of all possible rows; None where a formula has none."""
        assert self._cut is not None
        cells = {}
        for name, rows in ((name, self.sizes[name]) for name in self.kept):
            count = min(CELLS, rows // ROWS)
            if count > 1:
                cells[name] = np.arange(count) * rows // count
        if not cells:
            return None
        lengths = {name: len(cells.get(name, range(self.sizes[name]))) for name in self.kept}
        fitting = [n for n in self.kept if lengths[n] * len(self.possible) <= BOUND_TILE]
        last = max(fitting, key=lengths.__getitem__) if fitting else min(self.kept, key=lengths.__getitem__)
        order = (*(name for name in self.kept if name != last), LISTED, last)
        listing = Listing(self._cut, [SCORE], self._rows(self.possible), order, cells)
        try:
            return Bounds(listing, self.dtype, max(BOUND_TILE, lengths[last] * len(self.possible)), self.progress)
        except NoBounds as error:
            self.counts = replace(self.counts, why_no_bounds=str(error))
            return None

    def _candidates(self, count: int) -> np.ndarray:
        """The possible rows that bounds cannot tell from the ``count`` best everywhere."""
        if self.bounds is None:
            return self.possible
        groups = self._parts_of(self.possible)
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        lengths = np.diff(starts, append=len(groups))
        alive = np.zeros(len(groups), bool)
        for tile in self.bounds.run():
            score: Any = tile.values[SCORE]
            lo, hi = (self._spread(replace(tile, values={SCORE: end})) for end in (score.lo, score.hi))
            if count == 1:
                most = np.minimum.reduceat(hi, starts, axis=1)
            else:
                most = np.full((len(hi), len(starts), hi.shape[2]), np.inf, hi.dtype)
                for group, (start, length) in enumerate(zip(starts, lengths, strict=True)):
                    if length > count:
                        most[:, group] = np.partition(hi[:, start : start + length], count - 1, axis=1)[:, count - 1]
            beaten = (lo > np.repeat(most, lengths, axis=1)) | (lo == np.inf)
            alive |= ~beaten.all(axis=(0, 2))
        self.bounds.release()
        return self.possible[alive] if alive.any() else self.possible[:1]

    def _spread(self, tile: Tile) -> np.ndarray:
        """One bound of a tile for every candidate: [other axes, candidates, last axis]."""
        assert self.bounds is not None
        axes = len(self.bounds.plan.space.axes)
        value = self.bounds.placed(tile, SCORE)[1]
        value = value.reshape(-1, *value.shape[axes - 2 : axes])
        return np.broadcast_to(value, (len(value), len(self.possible), value.shape[2]))

    # -- the best of them -------------------------------------------------------------------------------------------

    def winners(self, count: int = 1) -> Winners:
        """The ``count`` best points of every group, found exactly; `counts` tells what it took."""
        if self.whole is not None:
            return self.whole.winners(count)
        candidates = self._candidates(count)
        boxes = 0
        if self.bounds is not None:
            boxes = self.bounds.plan.space.points
        rows, possible, all_rows = len(candidates), len(self.possible), self.plan.space.points // self.inside
        self.counts = replace(
            self.counts,
            evaluated=rows * self.inside,
            by_constraints=(all_rows - possible) * self.inside,
            by_bounds=(possible - rows) * self.inside,
            boxes=boxes,
        )
        search = self.ready.get(candidates.tobytes())
        if search is None:
            search = self.ready[candidates.tobytes()] = self._search(candidates)
            if self.bounds is None:  # the candidates stay the same: no other search will be made
                self._cut = None
        return self._in_study(search.winners(count), candidates, count)

    def _search(self, candidates: np.ndarray) -> Search:
        """The search of candidates: the kept axes around them, the last axis innermost."""
        assert self._cut is not None
        order = (*self.kept[:-1], LISTED, self.swept)
        listing = Listing(self._cut, [SCORE], self._rows(candidates), order)
        plane = len(candidates) * self.sizes[self.swept]
        points = min(self.tile_points, LISTED_TILE)
        points = plane if points < plane <= 8 * points else points  # the list is not cut
        groups = self.count_parts * prod(self.sizes[name] for name in self._listed_groups())
        over = [LISTED, *(name for name in self.over if name in self.kept)]
        evaluation = Listed(listing, self.dtype, points, self.progress)
        return Search(evaluation, over, (LISTED, self._parts_of(candidates), groups))

    def _in_study(self, winners: Winners, candidates: np.ndarray, count: int) -> Winners:
        """Winners among candidates as rows of the axes of the study, groups in evaluation order."""
        listed, kept = self._listed_groups(), [n for n in self.kept if n not in self.over]
        names = [*listed, *kept]
        shape = (self.count_parts, *(self.sizes[name] for name in names), count)
        order = (0, *(1 + names.index(self.axes[i]) for i in self.groups), len(shape) - 1)
        chosen = dict(zip((*self.kept[:-1], LISTED, self.swept), winners.index, strict=True))
        rows = self._rows(candidates)
        index = [np.empty(0, int)] * len(self.axes)
        for place, name in enumerate(self.axes):
            if name in names:
                axis = 1 + names.index(name)
                found = np.arange(shape[axis]).reshape(tuple(-1 if i == axis else 1 for i in range(len(shape))))
            else:
                found = chosen[name] if name in self.kept else rows[name][chosen[LISTED]]
                found = found.reshape(shape)
            index[self.plan.order[place]] = np.broadcast_to(found, shape).transpose(order)
        return replace(winners, index=tuple(index), found=winners.found.reshape(shape).transpose(order))
