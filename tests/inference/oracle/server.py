"""What an engine is given, and what it finds."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import pairwise

from .policies import Policy
from .surface import Surface

Events = list[tuple[int, float]]  # requests, and when


@dataclass(frozen=True)
class Server:
    """What iterates together: ``groups`` times ``ranks``, with cache for so many tokens on each rank."""

    surface: Surface
    policy: Policy
    ranks: int = 1
    groups: int = 1
    cache_tokens: float = float("inf")


@dataclass
class Requests:
    """Lengths in tokens: of prompts, of what caches of prefixes hold of them, and of answers."""

    prompt: list[int]
    cached: list[int]
    output: list[int]


@dataclass
class Gaps:
    """Times between successive tokens: when the later one came, the gap (s), and how many sequences had it."""

    ends: array = field(default_factory=lambda: array("d"))
    gaps: array = field(default_factory=lambda: array("d"))
    weights: array = field(default_factory=lambda: array("d"))

    def add(self, ends: list[float], since: dict[float, int]) -> None:
        """Successive decoding iterations of sequences, so many of which had their last token at each time before."""
        for last, sequences in since.items():
            self.ends.append(ends[0])
            self.gaps.append(ends[0] - last)
            self.weights.append(sequences)
        self.ends.extend(ends[1:])
        self.gaps.extend([after - before for before, after in pairwise(ends)])
        self.weights.extend([sum(since.values())] * (len(ends) - 1))
