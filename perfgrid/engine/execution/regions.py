"""Where each tile of a grid lies in stored results: one region per variable, written by exactly one tile.

Results lie on their own axes. A variable that does not vary along an axis that the tiles cut has one region for all
tiles along it; the first of them owns it. Regions are the chunks of a store, so that no two writers ever share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfgrid.engine.grid.dataset import on_study_axes
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.tiles import Tiles

from .evaluation import Evaluation, Tile

Region = tuple[slice, ...]


@dataclass(frozen=True)
class Regions:
    """The cut of a grid, and the names of its axes in evaluation order. Knows no formulas: a store keeps it."""

    axes: tuple[str, ...]
    tiles: Tiles

    @classmethod
    def of(cls, plan: Plan, tile_points: int) -> Regions:
        """The regions of a plan's results in tiles of at most so many points."""
        return cls(tuple(a.name for a in plan.space.axes), Tiles.cut(plan.space.shape, tile_points))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Regions:
        """The regions that `to_json` wrote."""
        return cls(tuple(data["axes"]), Tiles(tuple(data["sizes"]), data["cut"], data["chunk"]))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "axes": list(self.axes),
            "sizes": list(self.tiles.sizes),
            "cut": self.tiles.axis,
            "chunk": self.tiles.chunk,
        }

    def uncut(self) -> Regions:
        """The same grid as one tile, for what is stored whole."""
        return Regions(self.axes, Tiles(self.tiles.sizes, -1, 1))

    @property
    def tile_points(self) -> int:
        """Points of a full tile; cutting the same grid into tiles of so many points gives the same tiles."""
        return int(np.prod(self.tiles.shape, dtype=np.int64))

    def chunks(self, dims: tuple[str, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one region of a variable: chunks of this shape are never shared by two tiles."""
        size = dict(zip(self.axes, self.tiles.shape, strict=True))
        return tuple(size.get(dim, n) for dim, n in zip(dims, shape, strict=True))

    def rows(self, number: int) -> dict[str, slice]:
        """The rows of a tile along every axis that the tiles cut."""
        found = zip(self.axes, self.tiles.at(number), strict=False)
        return {axis: slice(int(rows[0]), int(rows[-1]) + 1) for axis, rows in found}

    def lengths(self, number: int) -> dict[str, int]:
        """How many rows of every axis a tile holds."""
        rows, sizes = self.rows(number), zip(self.axes, self.tiles.sizes, strict=True)
        return {axis: rows[axis].stop - rows[axis].start if axis in rows else size for axis, size in sizes}

    def region(self, number: int, dims: tuple[str, ...]) -> Region:
        """Where a tile's values of a variable with these dimensions belong."""
        rows = self.rows(number)
        return tuple(rows.get(dim, slice(None)) for dim in dims)

    def owns(self, number: int, dims: tuple[str, ...]) -> bool:
        """Whether this tile, and no other, writes its region of such a variable."""
        return all(rows.start == 0 for axis, rows in self.rows(number).items() if axis not in dims)


def block(evaluation: Evaluation, regions: Regions, tile: Tile, name: str) -> np.ndarray:
    """A copy of a tile's values of a wanted quantity on full rows, its axes in the order of the study."""
    plan = evaluation.plan
    quantity, rows = plan.quantities[name], regions.rows(tile.number)
    if quantity.small:
        value = evaluation.small[name]
        for axis, partition in enumerate(quantity.key):
            if partition is not None:
                value = np.take(value, partition.inverse[rows.get(regions.axes[axis], slice(None))], axis=axis)
    else:
        value = evaluation.placed(tile, name)[1]
    dims, value = on_study_axes(plan, name, value)
    length = regions.lengths(tile.number)
    shape = tuple(length.get(dim, int(n)) for dim, n in zip(dims, value.shape, strict=True))
    return np.array(np.broadcast_to(value, shape), dtype=stored_dtype(plan, name, evaluation.dtype), order="C")


def stored_dtype(plan: Plan, name: str, dtype: Any) -> np.dtype[Any]:
    """How a wanted quantity is stored: flags and choices in one byte, numbers in the precision of the grid."""
    return np.dtype(np.int8 if plan.quantities[name].labelled else dtype)
