"""Two designs part by part: what a comparison holds and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .best_design import Design
from .prediction_intervals import Interval, tie_margin


@dataclass(frozen=True)
class Compared:
    """Two designs and the parts (name, seconds of a, seconds of b) of their times, the largest change first.

    Times are those of ``quantity``: of a step, or of a request. Where ``tokens`` of it differ, changes and ``speedup``
    are per token.
    """

    quantity: str
    a: dict[str, Any]
    b: dict[str, Any]
    parts: tuple[tuple[str, float, float], ...]
    intervals: tuple[Interval, ...]  # of both step times; serving has none
    tokens: tuple[float, float]  # of a step or a request
    chosen: tuple[Design, Design]  # what was named, and what is best along axes left open

    @property
    def tie_margin(self) -> float:
        """Relative difference below which the model's error hides which one is faster; 0 for serving."""
        return tie_margin(*self.intervals) if self.intervals else 0.0

    @property
    def times(self) -> tuple[float, float]:
        """The times of both designs in seconds."""
        return sum(p[1] for p in self.parts), sum(p[2] for p in self.parts)

    @property
    def per_token(self) -> bool:
        """Whether the two have different numbers of tokens, so that only their times per token compare."""
        return self.tokens[0] != self.tokens[1]

    @property
    def work(self) -> tuple[float, float]:
        """By what times are divided to be compared: the tokens where they differ, else 1."""
        return self.tokens if self.per_token else (1.0, 1.0)

    @property
    def speedup(self) -> float:
        """How many times faster b is."""
        before, after = (time / work for time, work in zip(self.times, self.work, strict=True))
        return before / after

    @property
    def tied(self) -> bool:
        """Whether the difference is within the error that the model has in comparing designs."""
        return max(self.speedup, 1 / self.speedup) <= 1 + self.tie_margin

    @property
    def same(self) -> bool:
        """Whether their differences change no part."""
        return all(before == after for _, before, after in self.parts)
