"""Groups of a pipeline in turn, as long as they only decode: the additions of `engine.Engine`, without its records."""

from __future__ import annotations

from collections import deque


class Turn:
    """A group that decodes: what its iterations need and what they have yielded."""

    __slots__ = ("b", "base", "ends", "experts", "group", "hop", "host", "left", "read", "ready", "slope")

    def __init__(self, surface, group):
        rank = group.ranks[0]
        self.group, self.ready, self.b, self.read, self.left = group, group.ready, rank.b, rank.read, rank.left()
        self.base, self.slope = surface.rows[rank.b] + surface.step[rank.b], surface.slope[rank.b]
        self.experts, self.hop = surface.experts_time(rank.b), surface.hop[rank.b]
        self.host = surface.host_time + surface.host_sequence_time * rank.b
        self.ends: list[float] = []


def circulate(engine, horizon: float) -> None:
    """Iterations of the groups of a pipeline without prompts, until one has an event."""
    surface, groups, stages, waiting = engine.server.surface, engine.groups, engine.stages, engine.waiting
    empty = any(not group.places for group in groups)
    if engine.server.ranks > 1 or any(group.ranks[0].parts for group in groups) or (empty and waiting):
        return
    busy = sorted((group for group in groups if group.places), key=lambda group: group.ready)
    turns = deque(Turn(surface, group) for group in busy)
    comes = engine.coming[0][0] if engine.coming and not waiting else float("inf")
    shares, last, hidden, gap = surface.shares, len(stages) - 1, surface.hidden_host, surface.host_gap
    while turns:
        turn = turns[0]
        now = max(turn.ready, stages[0])
        if turn.left <= 1 or now >= horizon or comes < turn.ready or (empty and comes <= now):
            break
        if waiting and turn.group.refused != waiting[0][1]:
            break
        turn.group.begun = now
        device = turn.base + turn.slope * turn.read + turn.experts
        time = max(device + gap, turn.host) if hidden else device + turn.host
        for k, share in enumerate(shares):
            now = max(now, stages[k]) + time * share
            if k < last:
                now += turn.hop
            stages[k] = now
        turn.ready = now
        turn.ends.append(now)
        turn.read += turn.b
        turn.left -= 1
        turns.rotate(-1)
    for turn in turns:
        note(engine, turn)


def note(engine, turn: Turn) -> None:
    """Write down what a group has done."""
    group, rank, steps = turn.group, turn.group.ranks[0], len(turn.ends)
    if steps:
        engine.gaps.add(turn.ends, rank.since)
        rank.since, group.ready = {turn.ready: rank.b}, turn.ready
        rank.steps, rank.read = rank.steps + steps, turn.read
        engine.iterations += steps
