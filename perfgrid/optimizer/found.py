"""Designs that a search found, compared and put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfgrid.study.limits import KEPT

from .batch import Batch
from .batched_slsqp import Minimum
from .problem import Problem


@dataclass
class Found:
    """Designs that were found, one per problem of a batch: points, exact objectives, broken limits, smooth state."""

    batch: Batch
    points: np.ndarray
    value: np.ndarray  # exact
    broken: np.ndarray  # exact: the sum of what limits are broken by
    minima: list[Minimum]
    smooth: Batch | None = None  # the problems that the minima solve: later steps may find better layouts and labels
    by_label: np.ndarray | None = None  # [problems, joint labels]: objectives with counts open, NaN where none is found

    def of(self, index: np.ndarray) -> Found:
        """Some of the designs."""
        minima = [self.minima[i] for i in index]
        return Found(self.batch.of(index), self.points[index], self.value[index], self.broken[index], minima)

    def improve(
        self,
        problem: Problem,
        i: int,
        points: np.ndarray,
        value: np.ndarray,
        broken: np.ndarray,
        layout: np.ndarray,
        group: int,
    ) -> None:
        """Put the best of some exactly known designs in the place of one that is worse."""
        merit = problem.merit(value, missed(broken))
        j = int(np.argmin(merit))
        if merit[j] < problem.merit(self.value[i], missed(self.broken[i])):
            self.points[i], self.value[i], self.broken[i] = points[j], value[j], broken[j]
            self.batch.layout[i], self.batch.group[i] = layout[j], group


def missed(broken: Any) -> Any:
    """What broken limits count for where designs are compared."""
    return np.where(broken > KEPT, broken + 1e-3, 0.0)


def scores(problem: Problem, found: Found) -> np.ndarray:
    """What designs are chosen by, exactly."""
    return problem.merit(found.value, missed(found.broken))


def smooth_scores(problem: Problem, found: Found) -> np.ndarray:
    """What designs are chosen by on the smooth companion, where counts may be open."""
    return np.array([m.answer[0] + problem.weight * np.maximum(-m.answer[2], 0.0).sum() for m in found.minima])


def best_of(scores: np.ndarray, owner: np.ndarray, count: int = 1, kinds: Sequence[Any] | None = None) -> np.ndarray:
    """The numbers of the best designs of every owner, so many of each; with ``kinds`` so many of each kind of it."""
    kept: list[int] = []
    seen: dict[Any, int] = {}
    for i in np.argsort(scores, kind="stable"):
        key = (owner[i], kinds[i] if kinds is not None else None)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= count:
            kept.append(int(i))
    return np.array(sorted(kept, key=lambda i: owner[i]))


def updated(old: Found, index: np.ndarray, new: Found) -> Found:
    """Designs of which those at ``index`` are replaced by the new ones."""
    place = np.arange(len(old.points))
    place[index] = len(place) + np.arange(len(index))
    points, value, broken = (np.concatenate((getattr(old, n), getattr(new, n))) for n in ("points", "value", "broken"))
    return Found(joined(old.batch, new.batch), points, value, broken, [*old.minima, *new.minima]).of(place)


def joined(one: Batch, other: Batch) -> Batch:
    """The problems of two batches."""
    names = dict.fromkeys((*one.counts, *other.counts))
    counts = {n: np.concatenate([x.counts.get(n, np.full(len(x.group), np.nan)) for x in (one, other)]) for n in names}
    parts = {n: np.concatenate([getattr(x, n) for x in (one, other)]) for n in ("group", "layout", "bounds", "shift")}
    return Batch(counts=counts, **parts)
