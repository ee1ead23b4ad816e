"""How a grid is cut into tiles of one shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .space import Key, Partition

CALLS = 2**18  # points that are evaluated in the time that calling all functions of a tile takes, as measured


class Rows:
    """Stands for the rows of the current tile on an axis that the tiles cut."""


ROWS = Rows()
TileKey = tuple["Partition | Rows | None", ...]


def _chunk(rows: int, inside: int, most: int, calls: int) -> int:
    """The chunk of at most ``most`` rows, of ``inside`` points each, that takes least: calls, and rows repeated.

    The least of all, so that cutting again into tiles of so many points finds the same.
    """

    def taken(chunk: int) -> int:
        return -(-rows // chunk) * (chunk * inside + calls)

    count = -(-rows // most)
    best = -(-rows // count)
    while rows * inside + count * calls < taken(best):  # what so many chunks take at least
        best = min(best, -(-rows // count), key=taken)
        count += 1
    return best


@dataclass(frozen=True)
class Tiles:
    """How the grid is cut: axes before ``axis`` one row at a time, ``axis`` in chunks of one padded size."""

    sizes: tuple[int, ...]
    axis: int  # -1: not cut
    chunk: int

    @classmethod
    def cut(cls, sizes: tuple[int, ...], points: int, calls: int | None = None) -> Tiles:
        """Tiles of at most ``points`` points (at least one row of the last axis), few and with few repeated rows.

        ``calls``: points that are evaluated in the time that a tile takes whatever its size (`CALLS`).
        """
        if int(np.prod(sizes, dtype=np.int64)) <= points:
            return cls(sizes, -1, 1)
        for axis, rows in enumerate(sizes):
            inside = int(np.prod(sizes[axis + 1 :], dtype=np.int64))
            if inside <= points or axis == len(sizes) - 1:
                most = max(1, min(rows, points // inside))
                return cls(sizes, axis, _chunk(rows, inside, most, CALLS if calls is None else calls))
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

    def key(self, key: Key) -> TileKey:
        """The key of a quantity in a tile: the rows of the tile along the axes that tiles cut."""
        return tuple(ROWS if p is not None and axis <= self.axis else p for axis, p in enumerate(key))

    def rows_of(self, key: TileKey) -> tuple[int, ...]:
        """How many rows a tile has along each axis of a key."""
        shape = self.shape
        return tuple(1 if k is None else shape[i] if isinstance(k, Rows) else k.size for i, k in enumerate(key))

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
