"""The best points of a grid that is never kept: minima tile by tile.

A compiled argmin costs ten times as much as a minimum, and NumPy's pass over a tile more than evaluating it. So a
compiled function takes the minima of blocks of a few rows; NumPy finds the least block of every group, then the row in
that block while the tile is there. A billion points need the memory of one tile and of the groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import and_
from typing import Any, cast

import jax
import numpy as np

from perfgrid.engine.execution.evaluation import Evaluation, Tile
from perfgrid.engine.graph.namespace import xp
from perfgrid.engine.graph.registry import Formula, Registry
from perfgrid.engine.graph.resolver import resolve_checked
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space

from .blocks import Blocks
from .scan import Rows

SEARCH_TILE_POINTS = 2**23
BLOCK_ROWS = 16  # of which a compiled function takes the least
Spread = list[tuple[np.ndarray, np.ndarray]]
SCORE, POSSIBLE = "search score", "search possible"  # no names that outputs can have
TIE = 1e-9  # values of an objective that differ by less, relatively, are equal where another quantity breaks ties


@dataclass(frozen=True)
class Winners:
    """The best points of every group: rows of each axis, best first, and where a group has so many at all."""

    index: tuple[np.ndarray, ...]  # one array per axis of the study, of the shape of ``found``
    found: np.ndarray  # [parts, *groups, rank]
    tiles: int  # evaluated


def scored(
    registry: Registry,
    space: Space,
    objective: str,
    maximize: bool,
    choices: Mapping[str, str] | None,
    ties: str | None = None,
) -> Registry:
    """The registry with a quantity to minimise: the objective where finite and its constraints hold, else infinite.

    ``ties``: a quantity of which the least decides between equal objectives, in float64.
    Constraints are joined step by step, those of few points first, each step one more quantity: what does not vary
    along an axis is not looked at for every row of it.
    """
    graph = resolve_checked(registry, [objective], space.names(), choices, space.label_quantities())
    axes = {name: {i for i, _ in space.parts(name) if i is not None} for name in graph.leaves}
    for node in graph.nodes.values():
        axes[node.name] = set().union(*(axes[argument] for argument in node.arguments))
    sign = -1.0 if maximize else 1.0

    def score(value: Any, *flags: Any) -> Any:
        if ties is not None:
            return ranked(sign * value, flags[0], reduce(and_, flags[1:], abs(value) < np.inf))
        return xp.where(reduce(and_, flags, abs(value) < np.inf), sign * value, np.inf)  # which NaN is not

    added = []
    waiting = sorted((c.name for c in graph.constraints), key=lambda n: prod(len(space.axes[i]) for i in axes[n]))
    joined, known = (), set[int]()
    while waiting:
        known |= axes[waiting[0]]
        now = [name for name in waiting if axes[name] <= known]
        waiting = [name for name in waiting if name not in now]
        name = f"{POSSIBLE}_{len(waiting)}"
        possible = (*joined, *now)
        added.append(Formula(name, lambda *flags: reduce(and_, flags), possible, "1", objective, "possible so far"))
        joined = (name,)
    decisive = (objective, *((ties,) if ties is not None else ()))
    added.append(Formula(SCORE, score, (*decisive, *joined), "1", objective, f"{objective} of possible designs"))
    return registry.joined(added)


def ranked(score: Any, other: Any, possible: Any = True) -> Any:
    """A score by which equal ones are in the order of another quantity from zero; infinite where not ``possible``."""
    known = abs(other) < np.inf
    part = xp.where(known, other / (1 + xp.where(known, other, 0.0)), 1.0)
    return xp.where(possible, score + TIE * abs(score) * part, np.inf)


def nearest_first(score: np.ndarray, others: Sequence[np.ndarray], within: float) -> np.ndarray:
    """The order of designs, the best first: those within a part of the least score by other quantities, then the rest.

    ``others``: of which the least is best, the first one first; infinite scores are no designs and come last.
    """
    least = score.min(initial=np.inf)
    near = score <= least + within * abs(least) if np.isfinite(least) else np.zeros(len(score), bool)
    keys = [np.where(near, np.nan_to_num(other, nan=np.inf), 0.0) for other in others]
    return np.lexsort((score, *reversed(keys), ~near))


class Search:
    """The least value of the score along some axes, for every row of the others; every tile is evaluated once.

    ``parts`` tells rows of one of these axes apart (an axis, a number from 0 for each of its rows, and how many numbers
    there are): every part is a group of its own.
    """

    def __init__(self, evaluation: Evaluation, over: Sequence[str], parts: tuple[str, np.ndarray, int] | None = None):
        self.evaluation, self.plan = evaluation, evaluation.plan
        names = [axis.name for axis in self.plan.space.axes]
        self.over = tuple(i for i, name in enumerate(names) if name in over)
        self.groups = tuple(i for i in range(len(names)) if i not in self.over)
        self.parts_axis = names.index(parts[0]) if parts else -1
        self.parts, self.count_parts = parts[1:] if parts else (np.zeros(1, int), 1)
        self.cut = self.evaluation.tiles.axis if self.evaluation.kernels else -1  # the last axis that tiles cut
        self.key = self.plan.quantities[SCORE].key
        self.rows = Rows(self.key, self.plan.space.shape, self.cut)
        self._blocks = self._fixed_blocks()
        self._minima = jax.jit(self._blocks.minima) if self._blocks else None

    def _fixed_blocks(self) -> Blocks | None:
        """Blocks along the axis of the parts, or else the longest but the innermost that is searched whole in a tile.

        None where no such axis is long.
        """
        inner = (i for i in self.over if self.cut < i < len(self.key) - 1)
        lengths = {i: p.size for i in inner if (p := self.key[i]) is not None}
        axis = self.parts_axis if self.parts_axis >= 0 else max(lengths, key=lengths.__getitem__, default=-1)
        if not self.evaluation.kernels or lengths.get(axis, 0) < 2 * BLOCK_ROWS:
            return None
        tile = Tile(0, (), {})
        members = [self._members(tile, p) for p in range(self.count_parts)] if axis == self.parts_axis else None
        return Blocks.of(axis, members or [np.arange(lengths[axis])], BLOCK_ROWS)

    # -- one tile ---------------------------------------------------------------------------------------------------

    def _members(self, tile: Tile, part: int) -> np.ndarray:
        """Which rows of a tile's score along the axis of the parts belong to a part."""
        partition, inside = self.key[self.parts_axis], self.parts == part
        if partition is None:
            return np.zeros(1, int)
        if self.parts_axis <= self.cut:
            return np.flatnonzero(inside[tile.rows[self.parts_axis]])
        return np.unique(partition.inverse[inside])

    def _study_rows(self, tile: Tile, axis: int, part: int) -> np.ndarray:
        """The study rows that the rows of a tile's score stand for along an axis: the first of each class in the part.

        Any row where a class has none of the part.
        """
        partition = self.key[axis]
        if partition is not None and axis <= self.cut:
            return tile.rows[axis]
        if axis != self.parts_axis:
            return np.zeros(1, int) if partition is None else partition.rows
        inside = np.flatnonzero(self.parts == part)
        if partition is None:
            return inside[:1]
        first = np.zeros(partition.size, int)
        first[partition.inverse[inside[::-1]]] = inside[::-1]
        return first

    def _opened(self, tile: Tile) -> tuple[Tile, np.ndarray, np.ndarray | None, Spread]:
        """A tile without the repeated rows of a ragged edge, its score, the minima of its blocks, and what groups read.

        That is for every group axis: the group rows that the tile holds, and the row of its score that each reads.
        """
        axes, minima = len(self.key), None
        if self._minima is not None:
            with jax.enable_x64(self.evaluation.dtype == np.float64):
                minima = np.asarray(self._minima(tile.values[SCORE]))
                minima = minima.reshape(minima.shape[:axes])
        score = np.asarray(tile.values[SCORE])
        score = score.reshape(score.shape[:axes])
        if self.cut >= 0 and self.key[self.cut] is not None:
            rows = np.unique(tile.rows[self.cut])
            tile = Tile(tile.number, (*tile.rows[: self.cut], rows), tile.values)
            whole = (slice(None),) * self.cut + (slice(len(rows)),)
            score, minima = score[whole], None if minima is None else minima[whole]
        spread = []
        for axis in self.groups:
            cut = axis <= self.cut and self.key[axis] is not None
            rows = tile.rows[axis] if cut else np.arange(self.rows.lengths[axis])
            spread.append((rows, np.arange(len(rows)) if cut else self.rows.classes(axis)))
        return tile, score, minima, spread

    # -- all tiles --------------------------------------------------------------------------------------------------

    def winners(self, count: int = 1) -> Winners:
        """The ``count`` best points of every group, found exactly.

        Points that differ only in what the score does not depend on are all points: they share a value and a rank each.
        """
        shape = (self.count_parts, *(len(self.plan.space.axes[i]) for i in self.groups))
        best = Best(
            np.full((prod(shape), count), np.inf), {i: np.zeros((prod(shape), count), np.int32) for i in self.over}
        )
        numbers, tiles = np.arange(prod(shape)).reshape(shape), 0
        for tile in self._tiles():
            tiles += 1
            if self._blocks is not None and count == 1 and self.over == (self.parts_axis,):
                self._enter(tile, numbers, best)
            else:
                self._search(tile, numbers, best)
        if count > 1:
            best = self._each(best)
        order, found = self.plan.order, np.isfinite(best.values).reshape(*shape, count)
        index = [np.empty(0, int)] * len(order)
        for axis, rows in best.rows.items():
            index[order[axis]] = rows.reshape(*shape, count)
        for place, axis in enumerate(self.groups, 1):
            rows = np.arange(shape[place]).reshape(-1, *(1,) * (len(shape) - place))
            index[order[axis]] = np.broadcast_to(rows, (*shape, count))
        return Winners(tuple(index), found, tiles)

    def _tiles(self) -> Any:
        if self.evaluation.kernels:
            yield from self.evaluation.run(self.rows.numbers(self.evaluation.tiles), at_once=1)
        else:  # everything is small
            yield Tile(0, (), {SCORE: cast(Any, self.evaluation.small[SCORE])})

    def _enter(self, tile: Tile, numbers: np.ndarray, best: Best) -> None:
        """Enter the best point of all groups of a tile, each of which lies in it whole."""
        assert self._blocks is not None
        axis = self.parts_axis
        tile, score, minima, spread = self._opened(tile)
        assert minima is not None
        parts, least, rows = (np.asarray(found) for found in self._blocks.least(minima, score))
        sources, places = (np.ix_(np.arange(len(parts)), *(pair[i] for pair in spread)) for i in (1, 0))
        places = (parts[places[0]], *places[1:])
        least, rows = (np.moveaxis(array, axis, 0) for array in (least, rows))
        if (partition := self.key[axis]) is None or partition.size < len(self.parts):
            first = [self._study_rows(tile, axis, part) for part in parts]
            rows = np.stack([table[of_part] for table, of_part in zip(first, rows, strict=True)])
        groups = numbers[places]
        best.values[groups, 0] = least[sources]
        best.rows[axis][groups, 0] = rows[sources]

    def _search(self, tile: Tile, numbers: np.ndarray, best: Best) -> None:
        """Enter the best points of a tile for all groups that gain by it."""
        tile, score, minima, spread = self._opened(tile)
        blocks = self._blocks
        for part in range(self.count_parts):
            if minima is not None and blocks is not None:
                within = (slice(None),) * blocks.axis + (blocks.parts[part],)
                least, candidates = minima[within], blocks.rows[blocks.parts[part]]
            elif self.parts_axis >= 0:
                candidates = self._members(tile, part)[:, None]
                least = np.take(score, candidates[:, 0], axis=self.parts_axis)
            else:
                least, candidates = score, None
            if least.size == 0:
                continue
            groups = np.min(least, axis=self.over)[np.ix_(*(source for _, source in spread))]
            mine = np.asarray(numbers[part][np.ix_(*(rows for rows, _ in spread))])
            gains = groups < best.values[mine, -1]
            if gains.any():
                places = np.nonzero(gains) if self.groups else ()
                readers = tuple(source[place] for (_, source), place in zip(spread, places, strict=True))
                self._take(tile, part, score, least, candidates, mine[gains], readers, best)

    def _each(self, best: Best) -> Best:
        """The best points from the best classes of points with one value: of every class one point after the other."""
        groups, count = best.values.shape
        part = np.arange(groups) * self.count_parts // groups
        tables, most = {}, np.ones(best.values.shape, np.int64)  # points of every class
        for axis in self.over:
            classes = self.rows.classes(axis)
            width, mine = int(classes.max()) + 1, axis == self.parts_axis
            labels = classes + (self.parts * width if mine else 0)
            sizes = np.bincount(labels, minlength=width * (self.count_parts if mine else 1))
            label = classes[best.rows[axis]] + (part[:, None] * width if mine else 0)
            members, starts = np.argsort(labels, kind="stable"), np.cumsum(sizes) - sizes
            tables[axis] = members, starts[label], np.maximum(sizes[label], 1)
            most *= tables[axis][2]
        ends, ranks = np.cumsum(most, axis=1), np.arange(count)
        place = np.zeros(best.values.shape, np.int64)  # the class that has the point of a rank
        for k in range(count):
            place += ends[:, [k]] <= ranks
        left = ranks - np.take_along_axis(ends - most, place, axis=1)
        rows = {}
        for axis in reversed(self.over):
            members, start, size = (a if a.ndim == 1 else np.take_along_axis(a, place, axis=1) for a in tables[axis])
            rows[axis] = members[np.minimum(start + left % size, len(members) - 1)]
            left = left // size
        return Best(np.take_along_axis(best.values, place, axis=1), rows)

    def _take(
        self,
        tile: Tile,
        part: int,
        score: np.ndarray,
        least: np.ndarray,
        candidates: np.ndarray | None,
        wanted: np.ndarray,
        readers: tuple[np.ndarray, ...],
        best: Best,
    ) -> None:
        """Merge the best points of one part of a tile into those of the wanted groups.

        ``least`` are minima of the ``candidates`` (rows of the score along the axis of blocks or parts).
        """
        count, blocked = best.values.shape[1], self._blocks.axis if self._blocks else self.parts_axis
        block = least.transpose((*self.groups, *self.over))
        lengths = block.shape[len(self.groups) :]
        chosen = _least_columns(block[readers].reshape(len(wanted), -1), count)
        positions = dict(zip(self.over, np.unravel_index(chosen, lengths or (1,)), strict=False))
        index = {axis: rows[:, None, None] for axis, rows in zip(self.groups, readers, strict=True)}
        index |= {axis: rows[:, :, None] for axis, rows in positions.items()}
        if candidates is not None:
            index[blocked] = candidates[positions[blocked]]
        values = score[tuple(index[axis] for axis in range(score.ndim))]
        if candidates is not None:
            values = np.where(index[blocked] < 0, np.inf, values)
        found = values.reshape(len(wanted), -1)
        merged = np.concatenate((best.values[wanted], found), axis=1)
        kept = _least_columns(merged, count)
        best.values[wanted] = np.take_along_axis(merged, kept, axis=1)
        for axis in self.over:
            rows = self._study_rows(tile, axis, part)[index[axis]]
            rows = np.broadcast_to(rows, values.shape).reshape(found.shape)
            both = np.concatenate((best.rows[axis][wanted], rows), axis=1)
            best.rows[axis][wanted] = np.take_along_axis(both, kept, axis=1)


@dataclass
class Best:
    """The least values so far of every group, and their study rows along the axes searched: [groups, count]."""

    values: np.ndarray
    rows: dict[int, np.ndarray]


def _least_columns(block: np.ndarray, count: int) -> np.ndarray:
    """Columns of the ``count`` least values of every row, the least first and the first of equals before others."""
    if count == 1:
        return np.argmin(block, axis=1)[:, None]
    count = min(count, block.shape[1])
    bound = np.partition(block, count - 1, axis=1)[:, count - 1 : count]
    # all below the bound, and of those at the bound the first ones
    rank = np.where(block < bound, 0, np.where(block == bound, 1, 2))
    columns = np.argsort(rank, axis=1, kind="stable")[:, :count]
    order = np.argsort(np.take_along_axis(block, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)


def listed(space: Space, index: Sequence[np.ndarray], name: str = "point") -> Space:
    """The space of single points: one axis whose rows are the given rows of every axis."""
    columns: dict[str, np.ndarray] = {}
    for axis, rows in zip(space.axes, index, strict=True):
        columns |= {quantity: np.asarray(values)[rows] for quantity, values in axis.columns.items()}
    constants = dict(space.constants)
    for axis, rows in zip(space.axes, index, strict=True):
        for quantity, factors in axis.scales.items():
            base = columns.get(quantity)
            if base is None:
                base = np.broadcast_to(np.asarray(constants[quantity]), (len(rows), *np.shape(constants[quantity])))
            factor = np.asarray(factors)[rows]
            columns[quantity] = base * factor.reshape((-1,) + (1,) * (base.ndim - factor.ndim) + factor.shape[1:])
    constants = {k: v for k, v in constants.items() if k not in columns}
    return Space((Axis(name, np.arange(len(index[0])), columns),), constants)


def points_plan(
    registry: Registry,
    space: Space,
    rows: Sequence[np.ndarray],
    outputs: Sequence[str],
    choices: Mapping[str, str] | None = None,
) -> Plan:
    """The plan of quantities at single points, given as rows of every axis: all in the small stage."""
    return Plan(registry, listed(space, rows), outputs, choices, small_points=len(rows[0]), constraints=False)
