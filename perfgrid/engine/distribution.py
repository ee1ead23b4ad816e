"""Quantiles and histograms of a quantity along axes of a grid that is never kept.

Quantiles are exact: the bits of a floating-point number, put in order, are an integer, and its digits are found by
counting, one pass over the grid after another (two passes for 32 bits and few groups).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .scan import Block, Scan

COUNTERS = 2**22  # that are held for all groups together
DIGIT = 16  # bits found in one pass at most


class Groups:
    """The groups of a reduction along some axes: rows of the other axes that the quantity tells apart."""

    def __init__(self, scan: Scan, over: Sequence[str]):
        self.scan = scan
        self.over = tuple(i for i, name in enumerate(scan.axes) if name in over)
        self.shape = tuple(1 if i in self.over else n for i, n in enumerate(scan.shape()))
        self.total = int(np.prod(self.shape))

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
        """(group, value, weight) of every possible design of a block, flat; no weights where all of them are 1."""
        for block in self.scan.blocks():
            values = np.asarray(block.scores[0])
            kept = np.isfinite(values)
            group = np.broadcast_to(self._numbers(block), values.shape)[kept]
            weights = None
            if any((block.weights[i] > 1).any() for i in self.over):
                weights = np.ones((1,) * values.ndim)
                for i in self.over:
                    weights = weights * block.weights[i].reshape(self._along(i, values.ndim))
                weights = np.broadcast_to(weights, values.shape)[kept]
            yield group, values[kept], weights

    def _numbers(self, block: Block) -> np.ndarray:
        """The number of the group of every row of a block."""
        numbers = np.zeros((1,) * len(self.shape), np.int64)
        for axis, size in enumerate(self.shape):
            rows = np.zeros(1, np.int64)
            if axis not in self.over:
                rows = self.scan.classes(axis)[block.rows[axis]]
            numbers = numbers * size + rows.reshape(self._along(axis, len(self.shape)))
        return numbers

    @staticmethod
    def _along(axis: int, rank: int) -> tuple[int, ...]:
        return tuple(-1 if i == axis else 1 for i in range(rank))

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Values by group, [groups, ...], on the study rows of every group axis: [*axes in the study's order, ...]."""
        values = values.reshape(*self.shape, *values.shape[1:])
        for axis in range(len(self.shape)):
            if axis not in self.over:
                values = np.take(values, self.scan.classes(axis), axis=axis)
        values = np.squeeze(values, axis=self.over)
        groups = [i for i in range(len(self.shape)) if i not in self.over]
        order = np.argsort([self.scan.plan.order[i] for i in groups])
        return values.transpose((*order, *range(len(groups), values.ndim)))


def _ordered(values: np.ndarray) -> np.ndarray:
    """The bits of floating-point numbers as unsigned integers of the same order."""
    bits = values.view(np.uint32 if values.dtype == np.float32 else np.uint64)
    top = bits.dtype.type(1 << (bits.dtype.itemsize * 8 - 1))
    return np.where(bits & top, ~bits, bits | top)


def _unordered(bits: np.ndarray, dtype: np.dtype) -> np.ndarray:
    top = bits.dtype.type(1 << (bits.dtype.itemsize * 8 - 1))
    return np.where(bits & top, bits & ~top, ~bits).view(dtype)


def quantiles(groups: Groups, levels: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """The least value at or below which at least this share of the possible designs lies, and how many these are.

    Shapes [groups, levels] and [groups]; NaN where a group has none.
    """
    dtype = groups.scan.evaluation.dtype
    unsigned = np.dtype(np.uint32 if dtype == np.float32 else np.uint64)
    width, total, many = unsigned.itemsize * 8, groups.total, len(levels)
    digit = int(np.clip(np.log2(COUNTERS / (total * many)), 4, DIGIT))
    prefix = np.zeros((total, many), unsigned)
    rank, count = np.zeros((total, many)), np.zeros(total)
    known = 0
    while known < width:
        bits = min(digit, width - known)
        counts = np.zeros((many, total << bits))
        for group, values, weights in groups.blocks():
            ordered = _ordered(values)
            digits = ((ordered >> unsigned.type(width - known - bits)) & unsigned.type((1 << bits) - 1)).astype(
                np.int64
            )
            place = (group << bits) + digits
            for level in range(many):
                if known == 0:
                    if level == 0:
                        counts[:] += np.bincount(place, weights, counts.shape[1])
                    continue
                mine = (ordered >> unsigned.type(width - known)) == prefix[group, level]
                chosen = None if weights is None else weights[mine]
                counts[level] += np.bincount(place[mine], chosen, counts.shape[1])
        sums = np.cumsum(counts.reshape(many, total, 1 << bits), axis=-1).transpose(1, 0, 2)
        if known == 0:
            count = sums[:, 0, -1]
            rank = np.clip(np.ceil(np.asarray(levels) * count[:, None]), 1, None)
        found = np.minimum((sums < rank[..., None]).sum(axis=-1), (1 << bits) - 1)
        below = np.take_along_axis(sums, np.maximum(found - 1, 0)[..., None], axis=-1)[..., 0]
        rank = rank - np.where(found > 0, below, 0)
        prefix = (prefix << unsigned.type(bits)) | found.astype(unsigned)
        known += bits
    return np.where(count[:, None] > 0, _unordered(prefix, dtype), np.nan), count


def extent(groups: Groups) -> tuple[float, float]:
    """The least and the largest value of all possible designs; infinite and reversed where there is none."""
    least, largest = np.inf, -np.inf
    for _, values, _ in groups.blocks():
        if len(values):
            least, largest = min(least, float(values.min())), max(largest, float(values.max()))
    return least, largest


def histogram(groups: Groups, edges: np.ndarray) -> np.ndarray:
    """Possible designs by group between the edges (the last bin holds its upper edge): [groups, bins]."""
    bins = len(edges) - 1
    counts = np.zeros(groups.total * bins)
    for group, values, weights in groups.blocks():
        place = np.searchsorted(edges, values, side="right") - 1
        place[values == edges[-1]] = bins - 1
        inside = (place >= 0) & (place < bins)
        chosen = None if weights is None else weights[inside]
        counts += np.bincount(group[inside] * bins + place[inside], chosen, len(counts))
    return counts.reshape(groups.total, bins)
