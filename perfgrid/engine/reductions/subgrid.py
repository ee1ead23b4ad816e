"""A plan cut above its small stage: what has to be kept of a grid so that any part of it can be evaluated later.

Kept are the *sub-grids*: the small quantities that are wanted or that the tile stage reads, on their distinct rows. A
part of the grid (some rows of every axis) is a plan of its own, whose given quantities are rows of these sub-grids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfgrid.engine.execution.evaluation import TILE_POINTS, Evaluation
from perfgrid.engine.execution.small_stage import small_values
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import Graph
from perfgrid.engine.grid.plan import SMALL_LIMIT, Plan, Quantity
from perfgrid.engine.grid.space import Axis, Key, Partition, Partitions, Space


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
        return Part(Selection(self, names, rows), self.dtype, tile_points).collect()


class Selection(Plan):
    """The plan of quantities on some rows of every axis, with the sub-grids of a cut as given quantities."""

    def __init__(self, cut: Cut, wanted: Sequence[str], rows: Mapping[str, np.ndarray]):
        """Shapes are those of the cut, so nothing is resolved or traced again."""
        taken = [rows[axis] for axis in cut.sizes]
        self.registry, self.choices = cut.registry, {}
        self.space = self.study_space = Space(tuple(Axis(n, np.arange(len(rows[n]))) for n in cut.sizes))
        self.outputs, self.wanted, self.constraints = tuple(wanted), tuple(wanted), ()
        self.order = tuple(range(len(taken)))
        self.small_points = SMALL_LIMIT
        self.partitions = tuple(Partitions(len(r)) for r in taken)
        self.graph = above(cut, self.wanted)
        names = (*self.graph.leaves, *self.graph.nodes)
        keys = {n: self._key(cut.quantities[n].key, taken) for n in names}
        self.quantities = {
            n: replace(cut.quantities[n], key=keys[n], small=n in self.graph.leaves or self._is_small(keys[n]))
            for n in names
        }
        self.given = {n: _rows_of(cut.values[n], cut.quantities[n].key, keys[n], taken) for n in self.graph.leaves}

    def _key(self, key: Key, taken: Sequence[np.ndarray]) -> Key:
        tables = zip(self.partitions, key, taken, strict=True)
        return tuple(None if p is None else table.of(p.inverse[rows]) for table, p, rows in tables)


class Part(Evaluation):
    """The evaluation of a selection."""

    def _given(self, name: str) -> np.ndarray:
        assert isinstance(self.plan, Selection)
        return self.plan.given[name]


def above(cut: Cut, wanted: tuple[str, ...]) -> Graph:
    """What quantities need down to the sub-grids."""
    needed = set(wanted)
    for node in reversed(cut.graph.nodes.values()):
        if node.name in needed and node.name not in cut.values:
            needed |= set(node.arguments)
    leaves = tuple(sorted(n for n in needed if n in cut.values))
    return Graph(wanted, leaves, {n: node for n, node in cut.graph.nodes.items() if n in needed - set(leaves)})


def _rows_of(value: np.ndarray, have: Key, want: Key, taken: Sequence[np.ndarray]) -> np.ndarray:
    """The distinct rows of a sub-grid that a selection reads."""
    for axis, (partition, chosen, rows) in enumerate(zip(have, want, taken, strict=True)):
        if partition is not None:
            first = rows[:1] if chosen is None else rows[chosen.rows]
            value = np.take(value, partition.inverse[first], axis=axis)
    return value


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
