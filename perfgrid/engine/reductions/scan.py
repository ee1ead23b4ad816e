"""Quantities of a grid that is never kept, tile by tile: their values at possible designs, and which rows these are.

What reduces a grid (a frontier, a distribution) sees *blocks*: values on distinct rows of every axis, and how many rows
of the study each stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Evaluation, Progress
from perfgrid.engine.graph.namespace import xp
from perfgrid.engine.graph.registry import Formula, Registry
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Key, Space
from perfgrid.engine.grid.tiles import Tiles

SCAN_TILE_POINTS = 2**22
SCORE = "scan_score_"


@dataclass(frozen=True)
class Block:
    """Values on some rows of every axis (evaluation order), infinite where a design is not possible."""

    scores: tuple[Any, ...]  # one array per quantity, all of one shape; the next block overwrites them
    rows: tuple[np.ndarray, ...]  # for every axis the study row that each stands for, the first of its class
    weights: tuple[np.ndarray, ...]  # how many study rows each stands for
    place: tuple[int, ...]  # the first row on each axis that tiles cut


@dataclass(frozen=True)
class Rows:
    """Which rows of every axis blocks of a quantity hold: study rows where tiles cut an axis, classes of its key else.

    ``cut`` is the last axis that tiles cut, -1 for none.
    """

    key: Key
    lengths: tuple[int, ...]
    cut: int

    def classes(self, axis: int) -> np.ndarray:
        """Which row of the blocks each study row of an axis belongs to: rows themselves where tiles cut the axis."""
        partition, length = self.key[axis], self.lengths[axis]
        if partition is None:
            return np.zeros(length, int)
        return np.arange(length) if axis <= self.cut else partition.inverse

    def first(self, cut_rows: Sequence[np.ndarray]) -> bool:
        """Whether a tile is the first of those that hold the same values, along axes on which nothing depends."""
        return all(self.key[i] is not None or rows[0] == 0 for i, rows in enumerate(cut_rows))

    def numbers(self, tiles: Tiles) -> list[int] | None:
        """The tiles that are such first ones; None for all."""
        if all(partition is not None for partition in self.key[: self.cut + 1]):
            return None
        return [number for number, rows in enumerate(tiles.rows()) if self.first(rows)]

    def of(self, cut_rows: Sequence[np.ndarray]) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """The study row, the first of its class, that each row of a tile stands for, and for how many, by axis."""
        rows, weights = [], []
        for axis, partition in enumerate(self.key):
            if partition is not None and axis <= self.cut:
                rows.append(np.unique(cut_rows[axis]))  # a ragged edge repeats its last row
                weights.append(np.ones(len(rows[-1]), np.int64))
            else:
                rows.append(np.zeros(1, int) if partition is None else partition.rows)
                weights.append(np.bincount(self.classes(axis)))
        return tuple(rows), tuple(weights)


def _scored(registry: Registry, signs: Mapping[str, float], constraints: Sequence[str]) -> Registry:
    """The registry with one score per quantity, all on the rows that any of them or of the constraints tells apart."""
    names = tuple(signs)

    def score_of(place: int, sign: float) -> Callable[..., Any]:
        def score(*given: Any) -> Any:
            values, flags = given[: len(names)], given[len(names) :]
            possible = reduce(lambda a, b: a & b, [*flags, *(xp.isfinite(v) for v in values)])
            return xp.where(possible, sign * values[place], float("inf"))

        return score

    added = []
    for place, (name, sign) in enumerate(signs.items()):
        about = f"{name} of possible designs"
        added.append(Formula(f"{SCORE}{place}", score_of(place, sign), (*names, *constraints), "1", name, about))
    return registry.joined(added)


class Scan:
    """Some quantities of a grid block by block.

    ``signs`` names them: 1.0, or -1.0 for a quantity whose negative is wanted. ``constraints`` are those of possible
    designs. Raises PerfgridError like `Plan`, and for a quantity with inner axes.
    """

    def __init__(
        self,
        registry: Registry,
        space: Space,
        signs: Mapping[str, float],
        constraints: Sequence[str] = (),
        choices: Mapping[str, str] | None = None,
        dtype: str = "float32",
        tile_points: int = SCAN_TILE_POINTS,
        progress: Progress | None = None,
        small_points: int | None = None,
    ):
        self.names = tuple(f"{SCORE}{i}" for i in range(len(signs)))
        scored = _scored(registry, signs, constraints)
        self.plan = Plan(scored, space, self.names, choices, small_points, constraints=False)
        for name in signs:
            if self.plan.quantities[name].axes:
                raise PerfgridError(f"{name!r} has several values at one design and cannot be ranked")
        self.evaluation = Evaluation(self.plan, dtype, tile_points, progress)
        self.axes = tuple(a.name for a in self.plan.space.axes)
        cut = self.evaluation.tiles.axis if self.evaluation.kernels else -1
        self.rows = Rows(self.plan.quantities[self.names[0]].key, self.plan.space.shape, cut)
        self.points = space.points

    def shape(self) -> tuple[int, ...]:
        """How many such rows there are along every axis."""
        return tuple(int(self.rows.classes(i).max()) + 1 for i in range(len(self.axes)))

    def blocks(self) -> Iterator[Block]:
        """All blocks. Scores are arrays of the grid's dtype."""
        if not self.evaluation.kernels:
            values = tuple(self.evaluation.small[n].astype(self.evaluation.dtype) for n in self.names)
            yield self._block(values, ())
            return
        for tile in self.evaluation.run(self.rows.numbers(self.evaluation.tiles)):
            yield self._block(tuple(tile.values[n] for n in self.names), tile.rows)

    def _block(self, values: tuple[Any, ...], cut_rows: tuple[np.ndarray, ...]) -> Block:
        rows, weights = self.rows.of(cut_rows)
        rank, real = len(rows), tuple(slice(len(r)) for r in rows)
        with jax.enable_x64(self.evaluation.dtype == np.float64):
            scores = tuple(v.reshape(v.shape[:rank]) for v in values)
        if scores[0].shape != tuple(len(r) for r in rows):
            scores = tuple(np.asarray(v)[real] for v in scores)
        return Block(scores, rows, weights, tuple(int(r[0]) for r in cut_rows))
