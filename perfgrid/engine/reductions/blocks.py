"""Rows in blocks, so that a compiled function takes the minima of a few rows and NumPy finds the row among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Blocks:
    """Rows of a tile's score along one axis in blocks, so that the rows of a part are whole blocks."""

    axis: int
    rows: np.ndarray  # [blocks, width]; -1 fills up the last block of a part
    parts: tuple[slice, ...]  # the blocks of each part

    @classmethod
    def of(cls, axis: int, members: Sequence[np.ndarray], width: int) -> Blocks:
        """Blocks of ``width`` rows of every part's members."""
        tables = [np.pad(m, (0, -len(m) % width), constant_values=-1).reshape(-1, width) for m in members]
        ends = np.cumsum([len(table) for table in tables]).tolist()
        return cls(axis, np.concatenate(tables), tuple(map(slice, [0, *ends[:-1]], ends)))

    def minima(self, score: Any) -> Any:
        """The least value of every block, traced by JAX."""
        filled = np.maximum(self.rows, self.rows[:, :1]).astype(np.int32)
        columns = [jnp.take(score, column, axis=self.axis, mode="clip") for column in filled.T]
        return reduce(jnp.minimum, columns)

    def least(self, minima: np.ndarray, score: np.ndarray) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Of every part that has rows its number, its least values, and the first row that has them.

        ``minima`` are those of all blocks; parts lie along the axis of the blocks.
        """
        parts = [number for number, blocks in enumerate(self.parts) if blocks.stop > blocks.start]
        starts = np.array([self.parts[number].start for number in parts])
        lengths = np.diff(starts, append=len(self.rows))
        along = tuple(-1 if axis == self.axis else 1 for axis in range(score.ndim))
        least = np.minimum.reduceat(minima, starts, axis=self.axis)
        numbers = np.arange(len(self.rows), dtype=np.int32).reshape(along)
        met = np.where(minima == np.repeat(least, lengths, axis=self.axis), numbers, len(self.rows) - 1)
        rows = self.rows[np.minimum.reduceat(met, starts, axis=self.axis)]  # one more axis: those of the block
        rows = np.where(rows < 0, rows[..., :1], rows)
        rank = score.ndim + 1
        index = [
            np.arange(n).reshape((1,) * axis + (-1,) + (1,) * (rank - axis - 1)) for axis, n in enumerate(score.shape)
        ]
        index[self.axis] = rows
        column = np.argmax(score[tuple(index)] == least[..., None], axis=-1)
        return parts, least, np.take_along_axis(rows, column[..., None], axis=-1)[..., 0]
