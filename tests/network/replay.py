"""A loop over explicit links and chunks: replays collective schedules and times them. Imports no formula.

A message goes over paths of links; a step takes step latency + links of the longest path · hop latency + the busiest
link's bytes over its bandwidth; the next step starts when all have arrived. Ranks hold pieces and may send only what
they hold, so a schedule that does not gather everything fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product, zip_longest
from typing import Any

Link = Any
Paths = list[tuple[list[Link], float]]  # alternatives with their shares
Message = tuple[int, int, frozenset, Paths]
Steps = Iterator[list[Message]]


@dataclass
class Machine:
    """Links with bandwidths, latencies, and what every rank holds."""

    bandwidth: Callable[[Link], float]
    alpha: float
    lam: float
    size_of: Callable[[Any], float]
    held: dict[int, set] = field(default_factory=lambda: defaultdict(set))
    time: float = 0.0

    def step(self, messages: Iterable[Message]) -> None:
        load, longest, arrived = defaultdict(float), 0, []
        for source, target, pieces, paths in messages:
            assert pieces <= self.held[source], (source, target)
            size = sum(self.size_of(p) for p in pieces)
            for path, share in paths:
                longest = max(longest, len(path))
                for link in path:
                    load[link] += share * size
            arrived.append((target, pieces))
        for target, pieces in arrived:
            self.held[target] |= pieces
        busiest = max(bytes_ / self.bandwidth(link) for link, bytes_ in load.items())
        self.time += self.alpha + self.lam * longest + busiest

    def phases(self, *phases: Callable[[], list[Steps]]) -> Machine:
        """Phases one after the other; inside a phase all parts step together, each as long as it lasts."""
        for phase in phases:
            for messages in zip_longest(*phase(), fillvalue=[]):
                self.step([m for part in messages for m in part])
        return self

    def block(self, rank: int, part: Any = None) -> frozenset:
        """What a rank holds of one part of the message."""
        return frozenset(p for p in self.held[rank] if p[1] == part)


# ---- schedules among the members of one ring, line or switch --------------------------------------------------------


def around(machine: Machine, members: Sequence[int], path: Callable, part: Any = None) -> Steps:
    """All-gather once round a ring: in step s a member passes on what it received in step s - 1."""
    n, blocks = len(members), [machine.block(m, part) for m in members]
    for s in range(n - 1):
        yield [
            (members[i], members[(i + 1) % n], blocks[(i - s) % n], path(members[i], members[(i + 1) % n]))
            for i in range(n)
        ]


def both_ways(machine: Machine, members: Sequence[int], path: Callable, part: Any = None) -> Steps:
    """All-gather on a line: pass on in both directions."""
    n, blocks = len(members), [machine.block(m, part) for m in members]
    for s in range(n - 1):
        right = [(i, i + 1, i - s) for i in range(n - 1) if i - s >= 0]
        left = [(i, i - 1, i + s) for i in range(1, n) if i + s < n]
        yield [(members[a], members[b], blocks[c], path(members[a], members[b])) for a, b, c in right + left]


def meet_half_way(machine: Machine, members: Sequence[int], path: Callable, part: Any = None) -> Steps:
    """All-gather on a ring: whole blocks both ways; the opposite rank of an even ring gets half by either."""
    n = len(members)
    blocks = [[machine.block(m, (part, half)) for half in (0, 1)] for m in members]
    for s in range(1, n // 2 + 1):
        messages = []
        for way, i in product((1, -1), range(n)):
            to = (i + way) % n
            block = blocks[(i - way * (s - 1)) % n]
            pieces = block[0 if way == 1 else 1] if 2 * s == n else block[0] | block[1]
            messages.append((members[i], members[to], pieces, path(members[i], members[to])))
        yield messages


def exchange(
    machine: Machine, members: Sequence[int], path: Callable, distances: Sequence[Any], part: Any = None
) -> Steps:
    """All-gather by exchanging everything held with the partner that ``distances`` gives for each step."""
    for partner in distances:
        yield [
            (m, members[partner(i)], machine.block(m, part), path(m, members[partner(i)]))
            for i, m in enumerate(members)
        ]


def everyone(machine: Machine, members: Sequence[int], path: Callable, part: Any = None) -> Steps:
    """All-gather in one step; with the part of a pair as piece it is an all-to-all."""
    yield [(a, b, machine.block(a, part), path(a, b)) for a in members for b in members if a != b]


# ---- grids ----------------------------------------------------------------------------------------------------------


@dataclass
class Grid:
    """Ranks at coordinates; links (rank, side, way) to neighbours. The first side varies fastest."""

    sides: tuple[int, ...]
    wraps: bool

    def rank(self, at: Sequence[int]) -> int:
        number, weight = 0, 1
        for c, side in zip(at, self.sides, strict=True):
            number, weight = number + c * weight, weight * side
        return number

    def at(self, rank: int) -> list[int]:
        found = []
        for side in self.sides:
            found.append(rank % side)
            rank //= side
        return found

    @property
    def ranks(self) -> range:
        n = 1
        for side in self.sides:
            n *= side
        return range(n)

    def walk(self, start: int, side: int, distance: int) -> tuple[list[Link], int]:
        """Links passed by going ``distance`` (signed) along a side, and where that ends."""
        at, way, links = self.at(start), 1 if distance > 0 else -1, []
        for _ in range(abs(distance)):
            links.append((self.rank(at), side, way))
            at[side] += way
            assert self.wraps or 0 <= at[side] < self.sides[side], "beyond the rim"
            at[side] %= self.sides[side]
        return links, self.rank(at)

    def ways(self, side: int, start: int, end: int) -> list[tuple[int, float]]:
        """Shortest signed distances along one side with their shares."""
        length, d = self.sides[side], end - start
        if not self.wraps:
            return [(d, 1.0)]
        forward, backward = d % length, d % length - length
        if forward == -backward:
            return [(forward, 0.5), (backward, 0.5)]
        return [(forward if forward < -backward else backward, 1.0)]

    def path(self, a: int, b: int) -> Paths:
        """Dimension order, ties split."""
        paths: Paths = [([], 1.0)]
        ends = {0: a}
        here = [(a, [], 1.0)]
        for side, (start, end) in enumerate(zip(self.at(a), self.at(b), strict=True)):
            following = []
            for rank, links, share in here:
                for distance, part in self.ways(side, start, end):
                    more, to = self.walk(rank, side, distance)
                    following.append((to, links + more, share * part))
            here = following
        del ends, paths
        return [(links, share) for _, links, share in here]

    def along(self, side: int, way: int) -> Callable[[int, int], Paths]:
        """Paths that stay on one side and go one way."""

        def path(a: int, b: int) -> Paths:
            distance = (self.at(b)[side] - self.at(a)[side]) * way
            if self.wraps:
                distance %= self.sides[side]
            return [(self.walk(a, side, way * distance)[0], 1.0)]

        return path

    def lines(self, side: int, group: Callable[[int], Any]) -> list[list[int]]:
        """Members of the same group that differ in one side only, in order."""
        found = defaultdict(list)
        for rank in self.ranks:
            at = self.at(rank)
            key = (group(rank), *at[:side], *at[side + 1 :])
            found[key].append(rank)
        return [sorted(line, key=lambda r: self.at(r)[side]) for line in found.values()]


def strided(size: int, stride: int) -> Callable[[int], tuple[int, int]]:
    """The group of a rank: every ``stride``-th rank of a run of size·stride."""
    return lambda rank: (rank // (size * stride), rank % stride)


def pieces(machine: Machine, ranks: Iterable[int], parts: Sequence[Any] = (None,)) -> None:
    """Every rank holds its own piece of every part."""
    for rank in ranks:
        machine.held[rank] = {(rank, part) for part in parts}


def complete(
    machine: Machine, ranks: Iterable[int], group: Callable[[int], Any], parts: Sequence[Any] = (None,)
) -> float:
    """The time, once every rank holds the pieces of its whole group."""
    members = defaultdict(set)
    for rank in ranks:
        members[group(rank)] |= {(rank, part) for part in parts}
    for rank in ranks:
        assert machine.held[rank] >= members[group(rank)], rank
    return machine.time
