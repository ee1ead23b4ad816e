"""How a grid is cut into tiles of one shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .space import Partition

CALLS = 2**18  # points that are evaluated in the time that calling all functions of a tile takes, as measured


class Rows:
    """Stands for the rows of the current tile on an axis that the tiles cut."""


ROWS = Rows()
TileKey = tuple["Partition | Rows | None", ...]


@dataclass(frozen=True)
class Tiles:
    """How the grid is cut: axes before ``axis`` one row at a time, ``axis`` in chunks of one padded size."""

    sizes: tuple[int, ...]
    axis: int  # -1: not cut
    chunk: int

    @classmethod
    def cut(cls, sizes: tuple[int, ...], points: int) -> Tiles:
        """The largest tiles of at most ``points`` points (at least one row of the last axis)."""
        if int(np.prod(sizes, dtype=np.int64)) <= points:
            return cls(sizes, -1, 1)
        for axis, rows in enumerate(sizes):
            inside = int(np.prod(sizes[axis + 1 :], dtype=np.int64))
            if inside <= points or axis == len(sizes) - 1:
                least = -(-rows // max(1, min(rows, points // inside)))  # chunks; a few more may leave less to repeat
                chunks = {-(-rows // count) for count in range(least, min(2 * least, least + 8) + 1)}
                return cls(sizes, axis, min(chunks, key=lambda chunk: -(-rows // chunk) * (chunk * inside + CALLS)))
        return cls(sizes, -1, 1)

    @property
    def count(self) -> int:
        """How many tiles cover the grid."""
        if self.axis < 0:
            return 1
        outer = int(np.prod(self.sizes[: self.axis], dtype=np.int64))
        return outer * -(-self.sizes[self.axis] // self.chunk)

    @property
    def shape(self) -> tuple[int, ...]:
        """Points of a tile along each axis."""
        return tuple(1 if i < self.axis else self.chunk if i == self.axis else n for i, n in enumerate(self.sizes))

    def at(self, number: int) -> tuple[np.ndarray, ...]:
        """The row numbers of a tile on the axes that are cut, the last ones repeated to fill a ragged edge."""
        if self.axis < 0:
            return ()
        chunks = -(-self.sizes[self.axis] // self.chunk)
        *outer, part = np.unravel_index(number, (*self.sizes[: self.axis], chunks))
        chunk = np.arange(part * self.chunk, (part + 1) * self.chunk)
        return (*(np.array([i]) for i in outer), np.minimum(chunk, self.sizes[self.axis] - 1))

    def rows(self) -> Iterator[tuple[np.ndarray, ...]]:
        """The row numbers of every tile."""
        return map(self.at, range(self.count))
