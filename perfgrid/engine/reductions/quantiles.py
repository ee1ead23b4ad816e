"""Quantiles and histograms of a quantity along axes of a grid that is never kept.

Quantiles are exact: the bits of a floating-point number, put in order, are an integer, and its digits are found by
counting, one pass over the grid after another (two passes for 32 bits and few groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfgrid.engine.graph.namespace import xp

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

    def taken(self, block: Block, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """(group, value, weight) of some points of a block."""
        values, weights = np.asarray(block.scores[0]), self.weights(block)
        places = np.unravel_index(flat, values.shape)

        def at(small: np.ndarray) -> np.ndarray:
            return small[tuple(p if n > 1 else 0 for p, n in zip(places, small.shape, strict=True))]

        group = np.broadcast_to(at(self.numbers(block)), flat.shape)
        chosen = None if weights is None else np.broadcast_to(at(weights), flat.shape)
        return group, values.reshape(-1)[flat], chosen

    def weights(self, block: Block) -> np.ndarray | None:
        """How many designs each point of a block stands for along the axes reduced; None if one each."""
        found = np.ones((1,) * len(self.shape))
        for i in self.over:
            found = found * block.weights[i].reshape(self._along(i))
        return found if (found > 1).any() else None

    def counted(self, block: Block, counters: Any, size: int) -> np.ndarray:
        """How many designs belong to each of so many counters; those of the next one do to none."""
        found, weights = np.asarray(counters), self.weights(block)
        if weights is not None:
            weights = np.broadcast_to(weights, found.shape).reshape(-1)
        return np.bincount(found.reshape(-1), weights, size + 1)[:size]

    def numbers(self, block: Block) -> np.ndarray:
        """The number of the group of every row of a block, of size 1 along the axes reduced."""
        numbers = np.zeros((1,) * len(self.shape), np.int64)
        for axis, size in enumerate(self.shape):
            rows = np.zeros(1, np.int64)
            if axis not in self.over:
                rows = self.scan.rows.classes(axis)[block.rows[axis]]
            numbers = numbers * size + rows.reshape(self._along(axis))
        return numbers

    def _along(self, axis: int) -> tuple[int, ...]:
        return tuple(-1 if i == axis else 1 for i in range(len(self.shape)))

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Values by group, [groups, ...], on the study rows of every group axis: [*axes in the study's order, ...]."""
        values = values.reshape(*self.shape, *values.shape[1:])
        for axis in range(len(self.shape)):
            if axis not in self.over:
                values = np.take(values, self.scan.rows.classes(axis), axis=axis)
        values = np.squeeze(values, axis=self.over)
        groups = [i for i in range(len(self.shape)) if i not in self.over]
        order = np.argsort([self.scan.plan.order[i] for i in groups])
        return values.transpose((*order, *range(len(groups), values.ndim)))


def _ordered(values: Any) -> Any:
    """The bits of floating-point numbers as unsigned integers of the same order (NumPy or JAX)."""
    unsigned = np.uint32 if values.dtype == np.float32 else np.uint64
    in_jax = isinstance(values, jax.Array)
    bits = jax.lax.bitcast_convert_type(values, unsigned) if in_jax else values.view(unsigned)
    top = unsigned(1 << (np.dtype(unsigned).itemsize * 8 - 1))
    return xp.where(bits & top, ~bits, bits | top)


def _unordered(bits: np.ndarray, dtype: np.dtype) -> np.ndarray:
    top = bits.dtype.type(1 << (bits.dtype.itemsize * 8 - 1))
    return np.where(bits & top, bits & ~top, ~bits).view(dtype)


def _first_counters(score: Any, numbers: Any, shift: Any, bits: int, total: int) -> Any:
    """Which counter each point belongs to by the first bits of its value: the last one if it is not possible."""
    digits = (_ordered(score) >> shift).astype(numbers.dtype)
    return xp.where(xp.isfinite(score), (numbers << bits) + digits, total << bits)


def _matching(score: Any, prefix: Any, shift: Any) -> Any:
    """Possible designs whose first bits are those of any wanted quantile of their group."""
    first = _ordered(score) >> shift
    return xp.isfinite(score) & reduce(lambda a, b: a | b, (first == p for p in prefix))


def quantiles(groups: Groups, levels: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """The least value at or below which at least this share of the possible designs lies, and how many these are.

    Shapes [groups, levels] and [groups]; NaN where a group has none.
    """
    dtype = groups.scan.evaluation.dtype
    unsigned = np.dtype(np.uint32 if dtype == np.float32 else np.uint64).type
    width, total, many = dtype.itemsize * 8, groups.total, len(levels)
    digit = int(np.clip(np.log2(COUNTERS / (total * many)), 4, DIGIT))
    first: Any = jax.jit(_first_counters, static_argnums=(3, 4))
    matching: Any = jax.jit(_matching)
    prefix = np.zeros((total, many), unsigned)
    rank, count = np.zeros((total, many)), np.zeros(total)
    known = 0
    while known < width:
        bits = min(digit, width - known)
        counts, shift = np.zeros((many, total << bits)), unsigned(width - known - bits)
        for block in groups.scan.blocks():
            score, numbers = block.scores[0], groups.numbers(block)
            with jax.enable_x64(dtype == np.float64):
                if known == 0:
                    counters = first(score, numbers.astype(np.int32), shift, bits, total)
                    counts += groups.counted(block, counters, total << bits)
                    continue
                wanted = np.moveaxis(prefix[numbers], -1, 0)
                left = np.flatnonzero(np.asarray(matching(score, wanted, unsigned(width - known))))
            group, values, weights = groups.taken(block, left)
            ordered = _ordered(values)
            place = (group << bits) + ((ordered >> shift) & unsigned((1 << bits) - 1)).astype(np.int64)
            for level in range(many):
                mine = (ordered >> unsigned(width - known)) == prefix[group, level]
                chosen = None if weights is None else weights[mine]
                counts[level] += np.bincount(place[mine], chosen, counts.shape[1])
        sums = np.cumsum(counts.reshape(many, total, 1 << bits), axis=-1).transpose(1, 0, 2)
        if known == 0:
            count = sums[:, 0, -1]
            rank = np.clip(np.ceil(np.asarray(levels) * count[:, None]), 1, None)
        found = np.minimum((sums < rank[..., None]).sum(axis=-1), (1 << bits) - 1)
        below = np.take_along_axis(sums, np.maximum(found - 1, 0)[..., None], axis=-1)[..., 0]
        rank = rank - np.where(found > 0, below, 0)
        prefix = (prefix << unsigned(bits)) | found.astype(unsigned)
        known += bits
    return np.where(count[:, None] > 0, _unordered(prefix, dtype), np.nan), count


def extent(groups: Groups) -> tuple[float, float]:
    """The least and the largest value of all possible designs; infinite and reversed where there is none."""
    least, largest = np.inf, -np.inf
    for block in groups.scan.blocks():
        values = np.asarray(block.scores[0])
        least = min(least, float(values.min()))
        largest = max(largest, float(values.max(where=np.isfinite(values), initial=-np.inf)))
    return least, largest


def _bin_counters(score: Any, numbers: Any, edges: Any, total: int) -> Any:
    """Which counter each point belongs to by the edges of bins: the last one outside of all and if not possible."""
    bins = len(edges) - 1
    place = jnp.searchsorted(edges, score, side="right") - 1
    place = jnp.where(score == edges[-1], bins - 1, place)
    inside = (place >= 0) & (place < bins) & jnp.isfinite(score)
    return jnp.where(inside, numbers * bins + place, total * bins)


def histogram(groups: Groups, edges: np.ndarray) -> np.ndarray:
    """Possible designs by group between the edges (the last bin holds its upper edge): [groups, bins]."""
    dtype, bins = groups.scan.evaluation.dtype, len(edges) - 1
    counters: Any = jax.jit(_bin_counters, static_argnums=3)
    counts = np.zeros(groups.total * bins)
    for block in groups.scan.blocks():
        with jax.enable_x64(dtype == np.float64):
            numbers = groups.numbers(block).astype(np.int32)
            found = counters(block.scores[0], numbers, edges.astype(dtype), groups.total)
            counts += groups.counted(block, found, len(counts))
    return counts.reshape(groups.total, bins)
