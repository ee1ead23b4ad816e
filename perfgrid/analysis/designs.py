"""Designs in a row: which are possible, the best of them, their front, what excludes the others, and what is near.

For grids whose values lie in memory, of an answer or of a page; `best` and `pareto` search larger ones tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfgrid.engine.reductions.argmin import nearest_first, ranked
from perfgrid.engine.reductions.pareto import unbeaten


@dataclass(frozen=True)
class Designs:
    """Designs of one or several groups, which are no rivals of each other.

    ``score``: the least is the best; ``broken``: where each constraint of it is violated, root causes first.
    """

    score: np.ndarray
    broken: Mapping[str, np.ndarray]
    group: np.ndarray | None = None  # number of the group of every design; None: all are of one

    @cached_property
    def violated(self) -> np.ndarray:
        """How many constraints each design violates."""
        return sum(self.broken.values(), start=np.zeros(len(self.score), np.int16))

    @cached_property
    def possible(self) -> np.ndarray:
        """Where no constraint is violated."""
        return (self.violated == 0) & np.isfinite(self.score)

    @cached_property
    def least(self) -> np.ndarray:
        """For every design the best score of its group; infinite where none of it is possible."""
        if self.group is None:
            return np.full(len(self.score), self.score[self.possible].min(initial=np.inf))
        best = np.full(self.group.max(initial=-1) + 1, np.inf)
        np.minimum.at(best, self.group[self.possible], self.score[self.possible])
        return best[self.group]

    def ordered(self, exact: np.ndarray | None, within: float | None, others: Sequence[np.ndarray]) -> np.ndarray:
        """The possible designs, best first.

        ``exact``: decides between equal scores; ``others`` between designs ``within`` a part of the best score.
        """
        found = np.flatnonzero(self.possible)
        score = self.score[found] if exact is None else ranked(self.score[found], exact[found])
        if within is not None:
            return found[nearest_first(score, [other[found] for other in others], within)]
        return found[np.argsort(score, kind="stable")]

    def front(self, second: np.ndarray) -> np.ndarray:
        """The possible designs that no other beats in score and in a ``second`` quantity (the least is the best)."""
        found = np.flatnonzero(self.possible)
        scores = np.stack([self.score[found], second[found]], axis=1)
        kept = found[unbeaten(np.zeros(len(found), int), scores)]
        return kept[np.argsort(self.score[kept], kind="stable")]

    def excluded(self) -> dict[str, int]:
        """How many designs each constraint excludes, each counted at its first violated constraint."""
        left, found = np.ones(len(self.score), bool), {}
        for name, where in self.broken.items():
            found[name] = int((where & left).sum())
            left &= ~where
        return {name: count for name, count in found.items() if count}

    def near(self, limits: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
        """For each limit the designs that it alone excludes and that are better than the best of their group."""
        for name in limits:
            if name in self.broken:
                found = np.flatnonzero(self.broken[name] & (self.violated == 1) & (self.score < self.least))
                if len(found):
                    yield name, found
