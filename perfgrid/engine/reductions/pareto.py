"""The designs of a grid that no other beats in every objective, found exactly without keeping the grid.

Of every block a compiled filter removes what a few points of the frontier so far beat; only what is left is compared in
full. The frontier of a million points per block is a few hundred, and so is the memory that a grid of any size takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .scan import Block, Scan

PIVOTS = 8  # points of every group's frontier that the compiled filter compares with
SAMPLE = 2**13  # points that a filter in NumPy takes its pivots from


@dataclass(frozen=True)
class Front:
    """Designs of all groups that no other of their group beats, by group and first objective."""

    index: tuple[np.ndarray, ...]  # one array of rows per axis of the study
    scores: np.ndarray  # [designs, objectives], the least is the best
    blocks: int  # evaluated
    compared: int  # points that the filter left


@dataclass
class _Members:
    """Points of some groups: the group of each within its block, scores, study rows by axis."""

    group: np.ndarray
    scores: np.ndarray
    rows: np.ndarray

    def joined(self, other: _Members) -> _Members:
        pairs = ((self.group, other.group), (self.scores, other.scores), (self.rows, other.rows))
        return _Members(*(np.concatenate(pair) for pair in pairs))

    def only(self, kept: np.ndarray) -> _Members:
        return _Members(self.group[kept], self.scores[kept], self.rows[kept])


def unbeaten(group: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Where no other point of the group is as good in every objective; of equal points one is kept.

    ``scores`` of shape [points, objectives], the least is the best.
    """
    kept = np.ones(len(group), bool)
    while kept.sum() > 2 * SAMPLE:  # first remove what the frontier of a sample beats
        left = np.flatnonzero(kept)
        sample = left[:: len(left) // SAMPLE]
        best = sample[_sorted_out(group[sample], scores[sample])]
        beaten = _beaten(group[left], scores[left], *_pivots(group[best], scores[best], int(group.max()) + 1))
        beaten &= ~np.isin(left, best)
        kept[left[beaten]] = False
        if beaten.sum() < len(left) // 4:
            break
    left = np.flatnonzero(kept)
    kept[left] = _sorted_out(group[left], scores[left])
    return kept


def _sorted_out(group: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """As `unbeaten`, by sorting: a point can only be beaten by those before it."""
    order = np.lexsort((np.arange(len(group)), *scores.T[::-1], group))
    kept = np.zeros(len(group), bool)
    if scores.shape[1] == 2:
        group, second = group[order], np.unique(scores[order, 1], return_inverse=True)[1].reshape(-1)
        second = second - group.astype(np.int64) * (len(order) + 1)  # every group begins anew
        before = np.minimum.accumulate(np.concatenate(([np.iinfo(np.int64).max], second[:-1])))
        kept[order] = second < before
        return kept
    while len(order):  # the first of every group is unbeaten: keep it and remove all that it beats
        heads = np.flatnonzero(np.diff(group[order], prepend=-1))
        kept[order[heads]] = True
        head = np.repeat(order[heads], np.diff(heads, append=len(order)))
        order = order[~(scores[order] >= scores[head]).all(axis=1)]
    return kept


def _pivots(group: np.ndarray, scores: np.ndarray, groups: int) -> tuple[np.ndarray, ...]:
    """Some points of every group, evenly along the first objective: one array [pivots, groups] per objective."""
    order = np.lexsort((scores[:, 0], group))
    sizes = np.bincount(group, minlength=groups)
    first = np.cumsum(sizes) - sizes
    chosen = np.full((PIVOTS, groups, scores.shape[1]), np.inf)
    held = np.flatnonzero(sizes)
    for place in range(PIVOTS):
        at = first[held] + (place * (sizes[held] - 1)) // (PIVOTS - 1)
        chosen[place, held] = scores[order[at]]
    return tuple(np.moveaxis(chosen, -1, 0))


def _beaten(group: np.ndarray, scores: np.ndarray, *pivots: np.ndarray) -> np.ndarray:
    beaten = np.zeros(len(group), bool)
    for place in range(len(pivots[0])):
        beaten |= reduce(np.logical_and, (scores[:, i] >= p[place][group] for i, p in enumerate(pivots)))
    return beaten


def front(scan: Scan, over: Sequence[str]) -> Front:
    """The frontier along some axes, for every row of the others, of the quantities of a scan."""
    searched = tuple(i for i, name in enumerate(scan.axes) if name in over)
    groups = tuple(i for i in range(len(scan.axes)) if i not in searched)
    filtered: Callable[..., Any] = jax.jit(_possible)
    found: dict[tuple[int, ...], _Members] = {}
    no_scores = np.zeros((0, len(scan.names)), scan.evaluation.dtype)
    nothing = _Members(np.zeros(0, int), no_scores, np.zeros((0, len(scan.axes)), int))
    blocks = compared = 0
    for block in scan.blocks():
        blocks += 1
        place = tuple(row for axis, row in enumerate(block.place) if axis in groups)
        shape = tuple(len(block.rows[i]) if i in groups else 1 for i in range(len(scan.axes)))
        known, dtype = found.get(place, nothing), scan.evaluation.dtype
        pivots = _pivots(known.group, known.scores, int(np.prod(shape)))
        with jax.enable_x64(dtype == np.float64):
            left = filtered(block.scores, tuple(p.reshape(PIVOTS, *shape).astype(dtype) for p in pivots))
        new = _taken(block, np.asarray(left), shape)
        compared += len(new.group)
        new = known.joined(new)
        found[place] = new.only(unbeaten(new.group, new.scores))
    return _expanded(scan, list(found.values()), groups, blocks, compared)


def _possible(scores: tuple[Any, ...], pivots: tuple[Any, ...]) -> Any:
    """Possible designs that no pivot of their group beats."""
    left = jnp.isfinite(scores[0])
    for place in range(PIVOTS):
        left &= ~reduce(jnp.logical_and, (s >= p[place] for s, p in zip(scores, pivots, strict=True)))
    return left


def _taken(block: Block, left: np.ndarray, shape: tuple[int, ...]) -> _Members:
    """The points of a block that a filter left."""
    flat = np.flatnonzero(left)
    places = np.unravel_index(flat, left.shape)
    group = np.ravel_multi_index([p if n > 1 else np.zeros_like(p) for p, n in zip(places, shape, strict=True)], shape)
    scores = np.stack([np.asarray(s).reshape(-1)[flat] for s in block.scores], axis=1)
    return _Members(group, scores, np.stack([r[p] for r, p in zip(block.rows, places, strict=True)]).T)


def _expanded(scan: Scan, found: list[_Members], groups: tuple[int, ...], blocks: int, compared: int) -> Front:
    """The frontiers of all groups of the study: rows that no quantity tells apart have the same one."""
    rows, scores = np.concatenate([m.rows for m in found]), np.concatenate([m.scores for m in found])
    for axis in groups:
        classes = scan.rows.classes(axis)
        order = np.argsort(classes, kind="stable")
        counts = np.bincount(classes)
        of_point = classes[rows[:, axis]]
        repeats = counts[of_point]
        first = (np.cumsum(counts) - counts)[of_point]
        within = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        spread = order[np.repeat(first, repeats) + within]
        rows, scores = np.repeat(rows, repeats, axis=0), np.repeat(scores, repeats, axis=0)
        rows[:, axis] = spread
    order = scan.plan.order
    index: list[np.ndarray] = [np.zeros(0, int)] * len(order)
    for position, axis in enumerate(order):
        index[axis] = rows[:, position]
    grouped = [index[order[i]] for i in sorted(groups, key=lambda i: order[i])]
    sorting = np.lexsort((*scores.T[::-1], *grouped[::-1]))
    return Front(tuple(i[sorting] for i in index), scores[sorting], blocks, compared)
