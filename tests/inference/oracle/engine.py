"""One engine, iteration by iteration, every sequence a record: slow, and meant to be read.

An engine has ``groups`` of sequences (one for each stage of a pipeline; 1: no pipeline), each on ``ranks`` in lockstep
(1: a replica). An iteration of a group:

1. requests that have come join, first come, first served: each the rank of the group with the fewest sequences that
   has a place, tokens and cache left;
2. prompts fill the tokens that decoding leaves (``mixed``), or a rank that has some computes them alone;
3. all ranks take the time of the slowest (`Surface`); in a pipeline each stage takes its share, and a transfer to the
   next; stages take groups in the order in which they come; where chunks of a prompt may follow each other
   (``following``) it moves to the group that begins next;
4. at its end every decoded sequence has one more token, and prompts that are complete have their first.

Which arrivals an iteration sees: an engine that works ``ahead`` puts an iteration together when the one before begins,
so an arrival can enter the second after the running one at the earliest, and a place is free for the second after the
one in which its sequence ended; others look when the one before has ended, and so does a group of a pipeline. Who comes
at that very moment, as the next request of a client whose answer has just ended, is too late. An idle engine starts at
once; a group without sequences begins as soon as a request is there and the first stage is free.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Any

from .server import Events, Gaps, Requests, Server


class Sequence:
    """A request under way."""

    def __init__(self, i: int, prompt: int, done: int, output: int, tokens: int, kept: int, last: float):
        self.i, self.prompt, self.output = i, prompt, output
        self.done, self.tokens = done, tokens  # of the prompt that are computed, and of the answer
        self.last = last  # when the last of these came
        self.kept = kept  # tokens of cache that are set aside
        self.order = 0  # of admission


class Group:
    """The sequences of each rank, and when the group has come out of the last stage."""

    def __init__(self, ranks: int):
        self.ranks: list[list[Sequence]] = [[] for _ in range(ranks)]
        self.leaving: list[list[Sequence]] = [[] for _ in range(ranks)]  # whose places are not free yet
        self.ready, self.begun = 0.0, 0.0

    def busy(self) -> bool:
        return any(self.ranks)


class Engine:
    """A server with requests; ``prefilled``: they come with their prompt computed and their first token."""

    def __init__(self, server: Server, requests: Requests, prefilled: bool = False):
        if len(server.surface.shares) != server.groups:
            raise ValueError("a pipeline has as many groups as stages")
        self.server, self.requests, self.prefilled = server, requests, prefilled
        self.ahead = server.policy.ahead and server.groups == 1
        self.groups: list[Any] = [Group(server.ranks) for _ in range(server.groups)]  # `SkippingEngine` has its own
        self.stages = [0.0] * server.groups  # when each is free
        self.coming: list[tuple[float, int]] = []
        self.waiting: deque[tuple[float, int]] = deque()
        self.admitted: dict[int, float] = {}  # when the first iteration of a request began
        self.gaps = Gaps()
        self.iterations = 0

    def push(self, time: float, i: int) -> None:
        """A request comes. Raises ValueError where no rank could ever take it."""
        requests, policy = self.requests, self.server.policy
        if self.kept(i) > self.server.cache_tokens:
            raise ValueError("a request is longer than the cache")
        if not (policy.chunked or self.prefilled) and requests.prompt[i] - requests.cached[i] > policy.tokens:
            raise ValueError("a prompt is longer than an iteration, and may not be cut")
        heapq.heappush(self.coming, (time, i))

    def kept(self, i: int) -> int:
        """Tokens of cache that are set aside for a request."""
        return self.requests.prompt[i] + math.ceil(self.server.policy.reserved * self.requests.output[i])

    def start_of(self, group: Any) -> float:
        """When the next iteration of a group can begin."""
        free = max(group.ready, self.stages[0])
        if group.busy() or self.waiting or self.partial(group):
            return free
        return max(free, self.coming[0][0]) if self.coming else float("inf")

    def partial(self, group: Any) -> list[Any]:
        """Prompts that the group may go on with, in the order in which they were admitted."""
        groups = self.groups if self.server.policy.following else [group]
        found = [s for one in groups for rank in one.ranks for s in rank if s.tokens == 0]
        return sorted(found, key=lambda s: s.order)

    def turn(self, group: Any) -> tuple[float, float]:
        """Groups begin in the order in which they can, and of those that wait in which they came out."""
        return self.start_of(group), group.ready

    def start(self) -> float:
        """When the next iteration begins, inf where nothing is to do."""
        return min(self.start_of(group) for group in self.groups)

    def step(self, horizon: float = float("inf")) -> tuple[Events, Events]:
        """One iteration; first tokens and ends. ``horizon``: until when nothing comes from elsewhere."""
        surface, policy = self.server.surface, self.server.policy
        group = min(self.groups, key=self.turn)
        now = self.start_of(group)
        chunks = self.take(group, now, self.seen(group, now))
        decoded: list[Sequence] = []
        slowest, rows, most, busiest = 0.0, 0, 0, 0
        for rank in group.ranks:
            mine = [(s, chunk) for s, chunk in chunks if s in rank]
            decoding = [s for s in rank if s.tokens > 0 and (policy.mixed or not mine)]
            decoded += decoding
            b, c = len(decoding), sum(chunk for _, chunk in mine)
            attention = 0.0
            for s, chunk in mine:
                attention += surface.attention[s.done + chunk] - surface.attention[s.done]
            if mine:
                attention += surface.attention_start
            own = surface.own(b, c, sum(s.prompt + s.tokens for s in decoding), attention, bool(chunks))
            slowest, most, busiest = max(slowest, own), max(most, b + len(mine)), max(busiest, b + c)
            rows += b + c
        time = surface.total(slowest, rows / self.server.ranks, most, bool(chunks))
        self.iterations += 1
        group.begun = now
        group.ready = now = self.through(now, time, busiest)
        return self.yields(group, now, chunks, decoded)

    def seen(self, group: Any, now: float) -> float:
        """Until when a request must have come to be in this iteration."""
        if not group.busy():
            return now
        return math.nextafter(group.begun if self.ahead else group.ready, -math.inf)

    def take(self, group: Any, now: float, seen: float) -> Any:
        """Requests that have come join the ranks; tokens of prompts that this iteration computes."""
        policy, requests = self.server.policy, self.requests
        while self.coming and self.coming[0][0] <= seen:
            self.waiting.append(heapq.heappop(self.coming))
        leaving = group.leaving if group.busy() else [[] for _ in group.ranks]
        left = [policy.tokens - (sum(s.tokens > 0 for s in rank) if policy.mixed else 0) for rank in group.ranks]
        chunks = []
        for s in self.partial(group):
            r, owner = next((r, one) for one in self.groups for r, rank in enumerate(one.ranks) if s in rank)
            if left[r] > 0 and (owner is group or self.has_room(group.ranks[r], s.kept)):
                chunks.append((s, min(left[r], s.prompt - s.done, policy.longest_chunk or left[r])))
                left[r] -= chunks[-1][1]
                owner.ranks[r].remove(s)
                group.ranks[r].append(s)
        while self.waiting:
            _, i = self.waiting[0]
            prompt, output = requests.prompt[i], requests.output[i]
            done, tokens = (prompt, 1) if self.prefilled else (requests.cached[i], 0)
            kept = self.kept(i)
            needed = 1 if policy.chunked or self.prefilled else prompt - done
            fitting = [
                r for r, rank in enumerate(group.ranks) if left[r] >= needed and self.has_room(rank + leaving[r], kept)
            ]
            if not fitting:
                break
            r = min(fitting, key=lambda r: (len(group.ranks[r] + leaving[r]), r))
            self.waiting.popleft()
            self.admitted[i] = now
            s = Sequence(i, prompt, done, output, tokens, kept, now)
            s.order = len(self.admitted)
            group.ranks[r].append(s)
            if self.prefilled:
                left[r] -= policy.mixed
            else:
                chunks.append((s, min(left[r], prompt - done, policy.longest_chunk or left[r])))
                left[r] -= chunks[-1][1]
        return chunks

    def has_room(self, sequences: list[Sequence], kept: int) -> bool:
        """Whether a rank with these sequences has a place and so much cache left."""
        held = sum(s.kept for s in sequences)
        return len(sequences) < self.server.policy.places and held + kept <= self.server.cache_tokens

    def through(self, now: float, time: float, rows: int) -> float:
        """When an iteration that begins now has passed all stages."""
        surface = self.server.surface
        for k, share in enumerate(surface.shares):
            now = max(now, self.stages[k]) + time * share
            if k + 1 < len(self.stages):
                now += surface.hop[rows]
            self.stages[k] = now
        return now

    def yields(self, group: Group, now: float, chunks: list, decoded: list[Sequence]) -> tuple[Events, Events]:
        """Tokens that an iteration which ends now adds: first ones, and last ones."""
        firsts, ends = [], []
        for s in decoded:
            s.tokens += 1
            self.gaps.add([now], {s.last: 1})
            s.last = now
        for s, chunk in chunks:
            s.done += chunk
            if s.done == s.prompt:
                s.tokens, s.last = 1, now
                firsts.append((s.i, now))
        for r, rank in enumerate(group.ranks):
            over = [s for s in rank if s.tokens == s.output]
            ends += [(s.i, now) for s in over]
            group.ranks[r] = [s for s in rank if s.tokens != s.output]
            group.leaving[r] = over if self.ahead else []
        return firsts, ends
