"""Preselection: a search of a large grid evaluates only the designs that exactly known constraints leave.

Flags of the small stage are known before any tile. Rows of the searched axes (and of short axes beside them) that they
forbid everywhere are left out; the other rows become the one axis `CANDIDATES` of another plan. Quantities on it are
evaluated for the distinct columns they depend on, as on the grid, so that winners and ties are those of the whole grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Evaluation, Progress
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Space

from .argmin import POSSIBLE, SCORE, SEARCH_TILE_POINTS, Search, Winners, scored
from .subgrid import Cut, Selection

PRESELECT_FROM = 2**22  # points: smaller grids are searched whole
MOST_ROWS = 2**18  # of the candidate axis before any constraint
MOST_PLANE = 2**24  # candidates times rows of the last axis, which lie in one tile
TILE = 2**22  # points of a tile of candidates
CANDIDATES = "candidates"  # the axis of a plan that has no other axis of its own


class BestSearch:
    """The least (or largest) value of a quantity along some axes, for every row of the others.

    ``parts`` tells rows of one of these axes apart (an axis and a number from 0 for each of its rows): every part is a
    group of its own. ``ties``: the quantity of which the least decides between equal values. ``excluded`` counts the
    points that constraints excluded before the search. Raises PerfgridError like `Plan`, and for an objective with
    inner axes.
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
        ties: str | None = None,
    ):
        scores = scored(registry, space, objective, maximize, choices, ties)
        self.plan = Plan(scores, space, [SCORE], choices, small_points, constraints=False)
        if self.plan.quantities[SCORE].axes:
            raise PerfgridError(f"{objective!r} has several values at one design and cannot be minimised")
        self.axes = [axis.name for axis in self.plan.space.axes]
        self.sizes = dict(zip(self.axes, self.plan.space.shape, strict=True))
        self.over = tuple(name for name in self.axes if name in over)
        self.groups = tuple(i for i, name in enumerate(self.axes) if name not in over)
        self.parts = parts
        self.count_parts = int(parts[1].max()) + 1 if parts else 1
        self.excluded = 0
        # of the candidates along every joined axis; empty: all points are searched
        self.rows: dict[str, np.ndarray] = {}
        large = not self.plan.quantities[SCORE].small and space.points >= PRESELECT_FROM
        found = self._search_of_candidates(dtype, tile_points, progress) if large else None
        numbered = None if parts is None else (*parts, self.count_parts)
        self.search = found or Search(Evaluation(self.plan, dtype, tile_points, progress), self.over, numbered)

    def _search_of_candidates(self, dtype: str, tile_points: int, progress: Progress | None) -> Search | None:
        """The search of the candidates: the other axes around them, the last axis innermost; None for too many."""
        joined, last = self._joined_axes(), self.axes[-1]
        if not joined:
            return None
        cut = Cut.of(self.plan, dtype).cast()
        numbers = self._possible(cut, joined)
        if (plane := len(numbers) * self.sizes[last]) > MOST_PLANE:
            return None
        shape = [self.sizes[name] for name in joined]
        rows = dict(zip(joined, np.unravel_index(numbers, shape), strict=True))
        group = self.parts[1][rows[self.parts[0]]] if self.parts else np.zeros(len(numbers), int)
        for name in joined:
            if name not in self.over:
                group = group * self.sizes[name] + rows[name]
        order = np.argsort(group, kind="stable")
        self.rows = {name: row[order] for name, row in rows.items()}
        self.excluded = (prod(shape) - len(numbers)) * (self.plan.space.points // prod(shape))
        kept = [name for name in self.axes if name not in joined]
        axes = {name: (name,) for name in kept[:-1]} | {CANDIDATES: joined, last: (last,)}
        plan = Selection(cut, (SCORE,), self.rows, axes, small_points=0)
        points = min(tile_points, TILE)
        points = plane if points < plane <= 8 * points else points  # no tile cuts the candidates
        groups = self.count_parts * prod(self.sizes[name] for name in joined if name not in self.over)
        over = [CANDIDATES, *(name for name in self.over if name in kept)]
        return Search(Evaluation(plan, dtype, points, progress), over, (CANDIDATES, group[order], groups))

    def _joined_axes(self) -> tuple[str, ...] | None:
        """The axes whose rows are candidates: all that is searched but the last axis, then short groups.

        None where these rows are too many, or where parts lie along the last axis.
        """
        *others, last = self.axes
        joined = {name for name in self.over if name != last}
        rows = prod(self.sizes[name] for name in joined)
        if rows > MOST_ROWS or (self.parts is not None and self.parts[0] == last):
            return None
        for name in sorted((n for n in others if n not in self.over), key=self.sizes.__getitem__):
            if rows * self.sizes[name] <= MOST_ROWS:
                joined.add(name)
                rows *= self.sizes[name]
        return tuple(name for name in self.axes if name in joined)

    def _possible(self, cut: Cut, joined: Sequence[str]) -> np.ndarray:
        """The rows of the joined axes, by number, that no flag of the small stage forbids everywhere."""
        found = np.ones([self.sizes[name] for name in joined], bool)
        readers = [n for name, n in self.plan.graph.nodes.items() if name == SCORE or name.startswith(POSSIBLE)]
        for name in {a for node in readers for a in node.arguments}:
            quantity = self.plan.quantities[name]
            if not quantity.flag or name not in cut.values:
                continue
            outside = tuple(i for i, axis in enumerate(self.axes) if axis not in joined)
            key = [p for p, axis in zip(quantity.key, self.axes, strict=True) if axis in joined]
            flag = np.any(cut.values[name].reshape(quantity.sizes), axis=outside)
            for axis, partition in enumerate(key):
                if partition is not None:
                    flag = np.take(flag, partition.inverse, axis=axis)
            found &= flag
        numbers = np.flatnonzero(found)
        return numbers if len(numbers) else np.zeros(1, int)  # an infeasible candidate stands for all

    def winners(self, count: int = 1) -> Winners:
        """The ``count`` best points of every group, found exactly."""
        found = self.search.winners(count)
        return self._in_study(found, count) if self.rows else found

    def _in_study(self, winners: Winners, count: int) -> Winners:
        """Winners among candidates as rows of the axes of the study, groups in evaluation order."""
        rows = self.rows
        kept = [name for name in self.axes if name not in rows]
        names = [*(n for n in rows if n not in self.over), *(n for n in kept if n not in self.over)]
        shape = (self.count_parts, *(self.sizes[name] for name in names), count)
        order = (0, *(1 + names.index(self.axes[i]) for i in self.groups), len(shape) - 1)
        chosen = dict(zip((*kept[:-1], CANDIDATES, kept[-1]), winners.index, strict=True))
        index = [np.empty(0, int)] * len(self.axes)
        for place, name in enumerate(self.axes):
            if name in names:
                axis = 1 + names.index(name)
                found = np.arange(shape[axis]).reshape(tuple(-1 if i == axis else 1 for i in range(len(shape))))
            else:
                found = (chosen[name] if name in kept else rows[name][chosen[CANDIDATES]]).reshape(shape)
            index[self.plan.order[place]] = np.broadcast_to(found, shape).transpose(order)
        return replace(winners, index=tuple(index), found=winners.found.reshape(shape).transpose(order))
