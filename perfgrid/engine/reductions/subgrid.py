"""A plan cut above its small stage: what has to be kept of a grid so that any part of it can be evaluated later.

Kept are the *sub-grids*: the small quantities that are wanted or that the tile stage reads, on their distinct rows. A
part of the grid (some rows of every axis) is a plan of its own, whose given quantities are rows of these sub-grids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from perfgrid.engine.execution.evaluation import TILE_POINTS, Evaluation
from perfgrid.engine.execution.small_stage import small_values
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import Graph
from perfgrid.engine.grid.plan import SMALL_LIMIT, Plan, Quantity
from perfgrid.engine.grid.space import Axis, Partition, Partitions, Space


@dataclass(frozen=True)
class Cut:
    """The sub-grids of a plan and how the quantities above them hang together.

    ``sizes`` are the rows of each axis in evaluation order, ``quantities`` the sub-grids and all larger quantities,
    ``values`` the sub-grids (float64 or bool) by name; a mapping that reads them when they are asked for will do.
    """

    graph: Graph
    registry: Registry
    sizes: Mapping[str, int]
    quantities: Mapping[str, Quantity]
    values: Mapping[str, np.ndarray]
    dtype: str = "float32"

    @classmethod
    def of(cls, plan: Plan, dtype: str = "float32") -> Cut:
        """Cut a plan and evaluate its small stage."""
        small = small_values(plan)
        kept = {n: q for n, q in plan.quantities.items() if n in small or not q.small}
        sizes = {axis.name: len(axis) for axis in plan.space.axes}
        return cls(plan.graph, plan.registry, sizes, kept, small, dtype)

    def cast(self) -> Cut:
        """The same with sub-grids in the precision of the tile stage: half the memory where nothing else reads them."""
        values = dict(self.values)
        for name, value in self.values.items():
            values[name] = value.astype(self.dtype) if value.dtype == np.float64 else value
        return replace(self, values=values)

    def evaluate(
        self, names: Sequence[str], rows: Mapping[str, np.ndarray], tile_points: int = TILE_POINTS
    ) -> dict[str, np.ndarray]:
        """Wanted quantities on the given rows of every axis: arrays of all axes (evaluation order) and inner axes.

        Axes that one does not depend on have size 1. What has at most 2^18 values is evaluated in NumPy, since
        compiling would take longer, the rest tile by tile.
        """
        return Evaluation(Selection(self, names, rows), self.dtype, tile_points).collect()


class Selection(Plan):
    """The plan of quantities on some rows of the axes of a cut, with its sub-grids as given quantities.

    ``rows`` are those taken of axes of the cut, without which an axis is taken whole. ``axes`` names those of the
    selection and the axes of the cut whose rows, side by side, are its rows; by default all axes as they are.
    """

    def __init__(
        self,
        cut: Cut,
        wanted: Sequence[str],
        rows: Mapping[str, np.ndarray],
        axes: Mapping[str, Sequence[str]] | None = None,
        small_points: int = SMALL_LIMIT,
    ):
        """Shapes are those of the cut, so nothing is resolved or traced again."""
        axes = axes or {axis: (axis,) for axis in cut.sizes}
        sizes = {name: len(rows[of[0]]) if of[0] in rows else cut.sizes[of[0]] for name, of in axes.items()}
        self.registry, self.choices = cut.registry, {}
        self.space = self.study_space = Space(tuple(Axis(name, np.arange(size)) for name, size in sizes.items()))
        self.outputs, self.wanted, self.constraints = tuple(wanted), tuple(wanted), ()
        self.order, self.small_points = tuple(range(len(sizes))), small_points
        self.partitions = tuple(Partitions() for _ in sizes)
        self.graph = above(cut, self.wanted)
        known: dict[Any, Partition | None] = {}

        def told_apart(table: Partitions, key: Mapping[str, Partition | None], of: Sequence[str]) -> Partition | None:
            """Which rows of an axis a quantity tells apart."""
            parts = {axis: p for axis in of if (p := key[axis]) is not None}
            if (same := (table, *parts.items())) not in known:
                taken = (table.of(p.inverse[rows[axis]]) if axis in rows else p for axis, p in parts.items())
                known[same] = reduce(table.join, taken, None)
            return known[same]

        self.quantities = {}
        for name in (*self.graph.leaves, *self.graph.nodes):
            quantity = cut.quantities[name]
            by_axis = dict(zip(cut.sizes, quantity.key, strict=True))
            key = tuple(told_apart(t, by_axis, of) for t, of in zip(self.partitions, axes.values(), strict=True))
            columns = {axis: () for axis, of in axes.items() if quantity.columns.keys() & set(of)}
            small = name in self.graph.leaves or self._is_small(key)
            self.quantities[name] = replace(quantity, key=key, columns=columns, small=small)
        self._given = {name: self._taken(cut, name, rows, axes.values()) for name in self.graph.leaves}

    def _taken(self, cut: Cut, name: str, rows: Mapping[str, np.ndarray], axes: Iterable[Sequence[str]]) -> np.ndarray:
        """A sub-grid on the distinct rows of this plan."""
        names, by_axis = list(cut.sizes), dict(zip(cut.sizes, cut.quantities[name].key, strict=True))
        value, order = cut.values[name], [names.index(axis) for of in axes for axis in of]
        value = value.transpose((*order, *range(len(order), value.ndim)))
        taken: dict[int, np.ndarray] = {}
        shape, inner = list[int](), value.shape[len(order) :]
        for place, (of, chosen) in enumerate(zip(axes, self.quantities[name].key, strict=True)):
            sizes = [1 if (p := by_axis[axis]) is None else p.size for axis in of]
            shape.append(prod(sizes))
            if of[0] in rows:
                first = np.zeros(1, int) if chosen is None else chosen.rows
                found = [first * 0 if (p := by_axis[axis]) is None else p.inverse[rows[axis][first]] for axis in of]
                taken[place] = np.ravel_multi_index(found, sizes)
        value = value.reshape(*shape, *inner)
        for place in sorted(taken, key=lambda i: len(taken[i]) / shape[i]):  # the axis that leaves least of it first
            value = np.take(value, taken[place], axis=place)
        return value

    def given_rows(self, name: str) -> np.ndarray:
        """A sub-grid on the distinct rows; read once, so that its memory is free when the tiles have theirs."""
        return self._given.pop(name)


def above(cut: Cut, wanted: tuple[str, ...]) -> Graph:
    """What quantities need down to the sub-grids."""
    needed = set(wanted)
    for node in reversed(cut.graph.nodes.values()):
        if node.name in needed and node.name not in cut.values:
            needed |= set(node.arguments)
    leaves = tuple(sorted(n for n in needed if n in cut.values))
    return Graph(wanted, leaves, {n: node for n, node in cut.graph.nodes.items() if n in needed - set(leaves)})


def keys_to_numbers(quantities: Mapping[str, Quantity]) -> tuple[dict[str, list[int | None]], list[np.ndarray]]:
    """The keys of quantities as numbers of partitions, and these partitions as the class of every row."""
    number: dict[int, int] = {}
    classes: list[np.ndarray] = []
    keys: dict[str, list[int | None]] = {}
    for name, quantity in quantities.items():
        for partition in quantity.key:
            if partition is not None and id(partition) not in number:
                number[id(partition)] = len(classes)
                classes.append(partition.inverse.astype(np.int32))
        keys[name] = [None if p is None else number[id(p)] for p in quantity.key]
    return keys, classes


def partitions_from_classes(classes: Sequence[np.ndarray]) -> Iterator[Partition]:
    """The partitions that `keys_to_numbers` wrote."""
    for inverse in classes:
        yield Partition(inverse.astype(np.int64), np.unique(inverse, return_index=True)[1])
