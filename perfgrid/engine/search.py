"""The best points of a grid that is never kept: minima tile by tile, the winning tiles evaluated again.

Only block minima leave a tile (an argmin of a compiled function costs ten times as much); which point they belong to is
looked up in the few tiles that win. A billion points need the memory of one tile and of the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import and_
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from .errors import PerfgridError
from .plan import Plan
from .registry import Formula, Registry
from .resolver import resolve_checked
from .space import Axis, Space
from .stages import Evaluation, Progress, Tile

SEARCH_TILE_POINTS = 2**22
SCORE, POSSIBLE = "search_score", "search_possible"


@dataclass(frozen=True)
class Winners:
    """The best points of every group: rows of each axis, best first, and where a group has so many at all."""

    index: tuple[np.ndarray, ...]  # one array per axis of the study, of the shape of ``found``
    found: np.ndarray  # [parts, *groups, rank]
    tiles: int  # evaluated once
    again: int  # of them evaluated a second time


def scored(registry: Registry, space: Space, objective: str, maximize: bool, choices: Mapping[str, str] | None) -> Registry:
    """The registry with a quantity to minimise: the objective where every constraint holds, otherwise infinite.

    Constraints are joined step by step, those of few points first, each step one more quantity: what does not vary along
    an axis is not looked at for every row of it.
    """
    graph = resolve_checked(registry, [objective], space.names(), choices, space.label_quantities())
    axes = {name: {i for i, _ in space.parts(name) if i is not None} for name in graph.leaves}
    for node in graph.nodes.values():
        axes[node.name] = set().union(*(axes[argument] for argument in node.arguments))
    sign = -1.0 if maximize else 1.0

    def score(value: Any, *flags: Any) -> Any:
        return jnp.where(reduce(and_, flags, True), sign * value, jnp.inf)

    copy = Registry(registry.inner)
    for member in registry.formulas.values():
        copy.add(member)
    waiting = sorted((c.name for c in graph.constraints), key=lambda n: prod(len(space.axes[i]) for i in axes[n]))
    joined, known = (), set[int]()
    while waiting:
        known |= axes[waiting[0]]
        now = [name for name in waiting if axes[name] <= known]
        waiting = [name for name in waiting if name not in now]
        name = f"{POSSIBLE}_{len(waiting)}"
        copy.add(Formula(name, lambda *flags: reduce(and_, flags), (*joined, *now), "1", objective, "possible so far"))
        joined = (name,)
    copy.add(Formula(SCORE, score, (objective, *joined), "1", objective, f"{objective} of possible designs"))
    return copy


class Search:
    """The least (or largest) value of a quantity along some axes, for every row of the others.

    ``parts`` tells rows of one of these axes apart (an axis and a number from 0 for each of its rows): every part is a
    group of its own. Raises PerfgridError like `Plan`, and for an objective with inner axes.
    """

    def __init__(
        self,
        registry: Registry,
        space: Space,
        objective: str,
        over: Sequence[str],
        maximize: bool = False,
        parts: tuple[str, np.ndarray] | None = None,
        choices: Mapping[str, str] | None = None,
        dtype: str = "float32",
        tile_points: int = SEARCH_TILE_POINTS,
        progress: Progress | None = None,
        small_points: int | None = None,
    ):
        self.plan = Plan(
            scored(registry, space, objective, maximize, choices),
            space,
            [SCORE],
            choices,
            small_points,
            constraints=False,
        )
        quantity = self.plan.quantities[SCORE]
        if any(size > 1 for size in quantity.inner):
            raise PerfgridError(f"{objective!r} has several values at one design and cannot be minimised")
        names = [axis.name for axis in self.plan.space.axes]
        self.over = tuple(i for i, name in enumerate(names) if name in over)
        self.groups = tuple(i for i in range(len(names)) if i not in self.over)
        self.parts_axis = names.index(parts[0]) if parts else -1
        self.parts = parts[1] if parts else np.zeros(1, int)
        self.count_parts = int(self.parts.max()) + 1
        self.evaluation = Evaluation(self.plan, dtype, tile_points, progress)
        self.cut = self.evaluation.tiles.axis if self.evaluation.kernels else -1  # the last axis that tiles cut
        self._least: Callable[..., Any] = jax.jit(self._minima)

    # -- one tile ---------------------------------------------------------------------------------------------------

    def _minima(self, score: Any) -> Any:
        """Minima of a tile along the axes searched, but for that of the parts and the innermost one.

        Along the innermost axis a compiled minimum takes as long as computing the score: NumPy takes it afterwards.
        """
        rows = score.reshape(score.shape[: len(self.plan.space.axes)])
        outer = (i for i in self.over if i not in (self.parts_axis, len(self.plan.space.axes) - 1))
        return jnp.min(rows, axis=tuple(outer), keepdims=True)

    def _by_part(self, tile: Tile, minima: np.ndarray) -> np.ndarray:
        """Minima by part and group: [parts, *groups]."""
        if self.parts_axis >= 0:
            members = (self._members(tile, part) for part in range(self.count_parts))
            least = [np.min(np.take(minima, m, axis=self.parts_axis), axis=self.over, initial=np.inf) for m in members]
            return np.stack(least)
        return np.min(minima, axis=self.over)[None]

    def _members(self, tile: Tile, part: int) -> np.ndarray:
        """Which rows of a tile's score along the axis of the parts belong to a part."""
        partition, inside = self.plan.quantities[SCORE].key[self.parts_axis], self.parts == part
        if partition is None:
            return np.zeros(1, int)
        if self.parts_axis <= self.cut:
            return np.flatnonzero(inside[tile.rows[self.parts_axis]])
        return np.unique(partition.inverse[inside])

    def _rows(self, tile: Tile, axis: int) -> np.ndarray:
        """The study rows that the rows of a tile's score stand for along an axis: the first of each class."""
        partition = self.plan.quantities[SCORE].key[axis]
        if partition is None:
            return np.zeros(1, int)
        return tile.rows[axis] if axis <= self.cut else partition.rows

    def _first_row(self, axis: int, rows: np.ndarray, part: int) -> np.ndarray:
        """The first study row of the part in the classes of these rows (any row where a class has none of it)."""
        partition = self.plan.quantities[SCORE].key[axis]
        if axis != self.parts_axis or axis <= self.cut:
            return rows
        inside = np.flatnonzero(self.parts == part)
        if partition is None:
            return inside[:1]
        first = np.zeros(partition.size, int)
        first[partition.inverse[inside[::-1]]] = inside[::-1]
        return first

    def _spread(self, tile: Tile) -> tuple[np.ndarray, ...]:
        """For every group axis: the group rows that a tile holds, and which row of its score each reads."""
        found = []
        for axis in self.groups:
            partition, length = self.plan.quantities[SCORE].key[axis], len(self.plan.space.axes[axis])
            if partition is None:
                rows, source = np.arange(length), np.zeros(length, int)
            elif axis <= self.cut:
                rows, source = tile.rows[axis], np.arange(len(tile.rows[axis]))
            else:
                rows, source = np.arange(length), partition.inverse
            found.append((rows, source))
        return tuple(found)

    # -- all tiles --------------------------------------------------------------------------------------------------

    def winners(self, count: int = 1) -> Winners:
        """The ``count`` best points of every group, found exactly."""
        shape = (self.count_parts, *(len(self.plan.space.axes[i]) for i in self.groups))
        bound = np.full((*shape, count), np.inf)  # the least minima of tiles so far
        holders: list[tuple[int, np.ndarray]] = []  # tiles and the minima that they contributed
        for tile in self._tiles():
            with jax.enable_x64(self.evaluation.dtype == np.float64 or not self.evaluation.kernels):
                minima = np.asarray(self._least(tile.values[SCORE]))
            least = self._by_part(tile, minima)
            where, values = self._on_groups(tile, least)
            both = np.concatenate((bound[where], values[..., None]), axis=-1)
            both.sort(axis=-1)
            bound[where] = both[..., :count]
            holders.append((tile.number, least))
        bound = bound[..., -1] if count > 1 else bound[..., 0]
        return self._located(bound, dict(holders), shape, count)

    def _tiles(self, numbers: set[int] | None = None) -> Any:
        if self.evaluation.kernels:
            yield from self.evaluation.run(numbers)
        else:  # everything is small
            yield Tile(0, (), {SCORE: cast(Any, self.evaluation.small[SCORE])})

    def _on_groups(self, tile: Tile, least: np.ndarray) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Where the minima of a tile belong among all groups, and the minima there."""
        spread = self._spread(tile)
        parts = np.arange(self.count_parts)
        where = np.ix_(parts, *(rows for rows, _ in spread))
        return where, least[np.ix_(parts, *(source for _, source in spread))]

    def _located(
        self, bound: np.ndarray, holders: dict[int, np.ndarray], shape: tuple[int, ...], count: int
    ) -> Winners:
        """The points behind the minima: of all tiles that hold one at or below the bound."""
        total = int(np.prod(shape))
        values = np.full((total, count), np.inf)
        index = np.zeros((len(self.plan.space.axes), total, count), int)
        numbers = np.arange(total).reshape(shape)
        again, settled = 0, np.zeros(shape, bool)
        wanted: dict[int, np.ndarray] = {}
        for tile in self._bare_tiles(holders):
            where, least = self._on_groups(tile, holders[tile.number])
            needed = np.isfinite(least) & (least <= bound[where]) & ~settled[where]
            if count == 1:  # the first of equals
                settled[where] |= needed
            if needed.any():
                wanted[tile.number] = np.unique(numbers[where][needed])
        for tile in self._tiles(set(wanted)):
            again += 1
            self._take(tile, wanted[tile.number], shape, values, index)
        order = self.plan.order
        found = np.isfinite(values).reshape(*shape, count)
        by_axis = {order[i]: index[i].reshape(*shape, count) for i in range(len(order))}
        return Winners(tuple(by_axis[i] for i in range(len(order))), found, len(holders), again)

    def _bare_tiles(self, holders: dict[int, np.ndarray]) -> Any:
        """The tiles without values, to tell where they lie."""
        for number, rows in enumerate(self.evaluation.tiles.rows() if self.evaluation.kernels else [()]):
            if number in holders:
                yield Tile(number, rows, {})

    def _take(
        self, tile: Tile, wanted: np.ndarray, shape: tuple[int, ...], values: np.ndarray, index: np.ndarray
    ) -> None:
        """Merge the best points of one tile into those of the wanted groups (numbers of groups)."""
        axes, count = len(self.plan.space.axes), values.shape[1]
        score = np.asarray(tile.values[SCORE])
        score = score.reshape(score.shape[:axes])
        readers = []
        for (rows, source), axis in zip(self._spread(tile), self.groups, strict=True):
            reader = np.zeros(len(self.plan.space.axes[axis]), int)
            reader[rows] = source
            readers.append(reader)
        part_of, *group_rows = np.unravel_index(wanted, shape)
        for part in np.unique(part_of):
            here = part_of == part
            mine, rows_here = wanted[here], [rows[here] for rows in group_rows]
            study_rows = {axis: self._first_row(axis, self._rows(tile, axis), int(part)) for axis in self.over}
            block = score
            if self.parts_axis >= 0:
                members = self._members(tile, int(part))
                block = np.take(score, members, axis=self.parts_axis)
                study_rows[self.parts_axis] = study_rows[self.parts_axis][members]
            block = block.transpose((*self.groups, *self.over))
            lengths = block.shape[len(self.groups) :]
            block = block[tuple(reader[rows] for reader, rows in zip(readers, rows_here, strict=True))]
            block = block.reshape(len(mine), -1)
            best = _least_columns(block, count)
            found = np.take_along_axis(block, best, axis=1)
            points = np.empty((axes, *best.shape), int)
            for axis, rows in zip(self.groups, rows_here, strict=True):
                points[axis] = rows[:, None]
            for axis, positions in zip(self.over, np.unravel_index(best, lengths or (1,)), strict=False):
                points[axis] = study_rows[axis][positions]
            merged = np.concatenate((values[mine], found), axis=1)
            kept = np.argsort(merged, axis=1, kind="stable")[:, :count]
            values[mine] = np.take_along_axis(merged, kept, axis=1)
            both = np.concatenate((index[:, mine], points), axis=2)
            index[:, mine] = np.take_along_axis(both, np.broadcast_to(kept, (axes, *kept.shape)), axis=2)


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
