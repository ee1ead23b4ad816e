"""The same engine with many iterations at a time where nothing happens in between: what tests run.

Sequences of a rank decode in step, so one ends when its rank has taken a known number of steps: a heap of these numbers
replaces the sequences. Between two events (an end, an arrival that can be seen, a prompt) only the clock and the tokens
that are read change. That loop repeats the additions of the plain engine (`engine.Engine`), so both agree to the bit.
"""

from __future__ import annotations

import heapq

from .circulating import circulate
from .engine import Engine
from .ranks import Part, Rank, SkippingGroup
from .server import Events, Requests, Server


class SkippingEngine(Engine):
    """`Engine`, several iterations at a time."""

    def __init__(self, server: Server, requests: Requests, prefilled: bool = False):
        super().__init__(server, requests, prefilled)
        shared: list[list[Part]] = [[] for _ in range(server.ranks)]
        follows = server.policy.following
        self.groups = [
            SkippingGroup(shared if follows else [[] for _ in range(server.ranks)]) for _ in range(server.groups)
        ]

    def partial(self, group: SkippingGroup) -> list[Part]:
        """Prompts that the group may go on with."""
        return group.ranks[0].parts if len(group.ranks) == 1 else [part for rank in group.ranks for part in rank.parts]

    def step(self, horizon: float = float("inf")) -> tuple[Events, Events]:
        """One iteration, and those that follow without an event; first tokens and ends."""
        surface, policy, groups = self.server.surface, self.server.policy, self.groups
        group = groups[0] if len(groups) == 1 else min(groups, key=self.turn)
        now = self.start_of(group)
        complete, prompting = self.take(group, now, self.seen(group, now))
        slowest, rows, most, busiest = 0.0, 0, 0, 0
        decoded: list[Rank] = []
        since: dict[float, int] = {}
        for rank in group.ranks:
            if not rank.places:
                rank.own = 0.0
                continue
            b, c, read = rank.b, rank.chunk, rank.read
            if c and not policy.mixed:
                b, read = 0, 0
            elif b:
                decoded.append(rank)
                for last, sequences in rank.since.items():
                    since[last] = since.get(last, 0) + sequences
            rank.own = own = surface.own(b, c, read, rank.attention, prompting)
            slowest, most, busiest = max(slowest, own), max(most, b + rank.pieces), max(busiest, b + c)
            rows += b + c
        mean = rows / self.server.ranks
        group.begun = now
        if prompting or len(groups) > 1:
            ends = [self.through(now, surface.total(slowest, mean, most, prompting), busiest)]
        else:
            ends = self.run(group, now, slowest, mean, most, horizon)
        group.ready = ends[-1]
        self.iterations += len(ends)
        if decoded:
            self.gaps.add(ends, since)
            for rank in decoded:
                rank.steps += len(ends)
                rank.read += len(ends) * rank.b
                rank.since = {ends[-1]: rank.b}
        found = self.ended(group, complete)
        if len(groups) > 1 and not found[1]:
            circulate(self, horizon)
        return found

    def take(self, group, now, seen):
        """Requests that have come join; prompts that this iteration completes, and whether it computes any."""
        policy, requests, waiting = self.server.policy, self.requests, self.waiting
        while self.coming and self.coming[0][0] <= seen:
            waiting.append(heapq.heappop(self.coming))
        complete, prompting = [], False
        if not group.places:
            self.forget(group)
        for rank in group.ranks:
            rank.room = policy.tokens - (rank.b if policy.mixed else 0)
            rank.chunk, rank.pieces, rank.attention = 0, 0, 0.0
            if rank.parts:
                kept = []
                for part in rank.parts:
                    if not self.goes_on(rank, part) or not self.compute(rank, part):
                        kept.append(part)
                    else:
                        complete.append((rank, part.i))
                rank.parts[:] = kept
                prompting |= rank.pieces > 0
        group.refused = -1
        while waiting:
            _, i = waiting[0]
            done = requests.prompt[i] if self.prefilled else requests.cached[i]
            needed = 1 if policy.chunked or self.prefilled else requests.prompt[i] - done
            kept, chosen, fewest = self.kept(i), None, policy.places
            for rank in group.ranks:
                held, stored = rank.places + rank.gone, rank.kept + rank.gone_kept
                if held < fewest and rank.room >= needed and stored + kept <= self.server.cache_tokens:
                    chosen, fewest = rank, held
            if chosen is None:
                group.refused = -1 if prompting or group.gone else i  # what these hold is free for the next iteration
                break
            waiting.popleft()
            self.admitted[i] = now
            chosen.hold(1, kept)
            if self.prefilled:
                chosen.room -= policy.mixed
                self.decode(chosen, i, now)
            else:
                part, prompting = Part(i, done, chosen), True
                if self.compute(chosen, part):
                    complete.append((chosen, i))
                else:
                    chosen.parts.append(part)
        self.forget(group)
        for rank in group.ranks:
            if rank.pieces:
                rank.attention += self.server.surface.attention_start
        return complete, prompting

    def forget(self, group) -> None:
        """Places and cache of those that have left are free."""
        if group.gone:
            group.gone = False
            for rank in group.ranks:
                rank.gone, rank.gone_kept = 0, 0

    def goes_on(self, rank: Rank, part: Part) -> bool:
        """Whether a rank has tokens for a prompt; one of another group moves here, where it finds room."""
        if rank.room <= 0 or part.rank is rank:
            return rank.room > 0
        kept = self.kept(part.i)
        if rank.places >= self.server.policy.places or rank.kept + kept > self.server.cache_tokens:
            return False
        part.rank.hold(-1, kept)
        rank.hold(1, kept)
        part.rank.group.refused = -1
        part.rank = rank
        return True

    def compute(self, rank: Rank, part: Part) -> bool:
        """A chunk of a prompt in this iteration; whether it is the last one."""
        done, prompt = part.done, self.requests.prompt[part.i]
        chunk = min(rank.room, prompt - done, self.server.policy.longest_chunk or rank.room)
        attention = self.server.surface.attention
        rank.attention += attention[done + chunk] - attention[done]
        rank.chunk, rank.room, rank.pieces = rank.chunk + chunk, rank.room - chunk, rank.pieces + 1
        part.done = done + chunk
        return part.done == prompt

    def decode(self, rank: Rank, i: int, first: float) -> None:
        """A sequence with its first token decodes from the next step of its rank on."""
        rank.b += 1
        rank.since[first] = rank.since.get(first, 0) + 1
        rank.read += self.requests.prompt[i] + 1
        heapq.heappush(rank.ends, (rank.steps + self.requests.output[i] - 1, i))

    def run(self, group, now: float, slowest: float, mean: float, most: int, horizon: float) -> list[float]:
        """Ends of this and following iterations without prompts, until a sequence ends or a request is seen."""
        surface, ahead = self.server.surface, self.ahead
        busy = [rank for rank in group.ranks if rank.b]
        rank = max(busy, key=lambda rank: rank.own)
        left, growth = min(other.left() for other in busy), surface.slope[rank.b] * rank.b
        if self.waiting and group.refused < 0:
            left = 1
        for other in busy if len(busy) > 1 else ():
            faster = surface.slope[other.b] * other.b - growth
            if faster > 0:  # it will be the slowest one
                left = min(left, max(int((slowest - other.own) / faster * (1 - 1e-6)), 1))
        comes = self.coming[0][0] if self.coming and not self.waiting else float("inf")
        base, slope, read, b = surface.rows[rank.b] + surface.step[rank.b], surface.slope[rank.b], rank.read, rank.b
        experts, host = surface.experts_time(mean), surface.host_time + surface.host_sequence_time * most
        hidden, gap, ends = surface.hidden_host, surface.host_gap, []
        while True:
            device = base + slope * read + experts
            begun, now = now, now + (max(device + gap, host) if hidden else device + host)
            ends.append(now)
            if len(ends) == left or now >= horizon or (begun if ahead else now) > comes:
                break
            read += b
        group.begun = begun
        return ends

    def ended(self, group, complete: list) -> tuple[Events, Events]:
        """First tokens of complete prompts, and last ones of sequences that have taken their steps."""
        now, firsts, ends = group.ready, [], []
        for rank, i in complete:
            firsts.append((i, now))
            if self.requests.output[i] > 1:
                self.decode(rank, i, now)
            else:
                self.leave(group, rank, i)
                ends.append((i, now))
        for rank in group.ranks:
            while rank.ends and rank.ends[0][0] <= rank.steps:
                _, i = heapq.heappop(rank.ends)
                rank.b -= 1
                rank.since[now] -= 1
                rank.read -= self.requests.prompt[i] + self.requests.output[i]
                self.leave(group, rank, i)
                ends.append((i, now))
        return firsts, ends

    def leave(self, group, rank: Rank, i: int) -> None:
        """A place is free."""
        rank.hold(-1, self.kept(i))
        group.refused = -1
        if self.ahead:
            group.gone, rank.gone, rank.gone_kept = True, rank.gone + 1, rank.gone_kept + self.kept(i)
