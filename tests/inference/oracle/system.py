"""Systems of engines, and requests through them: replicas, two pools, clients that wait for their answers."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from .engine import Engine
from .server import Requests, Server
from .skipping import SkippingEngine
from .traffic import Traffic


@dataclass(frozen=True)
class System:
    """Replicas of a server; with ``decode`` they only compute prompts, and other replicas decode.

    Times in s: ``front_end`` from the arrival of a request to the queue, ``detokenise`` from a token to its reader,
    ``transfer`` and ``transfer_token`` of the cache between pools, for a request and for each token of its prompt.
    """

    server: Server
    replicas: int = 1
    decode: Server | None = None
    decode_replicas: int = 1
    transfer: float = 0.0
    transfer_token: float = 0.0
    front_end: float = 0.0
    detokenise: float = 0.0
    even: bool = False  # requests take replicas in turn; False: each draws one at random, or that of its client


@dataclass(frozen=True)
class Result:
    """By request, in the order of the traffic: s. Gaps: end of each, its length (s), and sequences that had it."""

    arrival: np.ndarray
    admitted: np.ndarray  # start of the first iteration
    first: np.ndarray
    end: np.ndarray
    gaps: np.ndarray  # [3, gap]
    iterations: int


def simulate(system: System, traffic: Traffic, engine: type[Engine] = SkippingEngine) -> Result:
    """Every request through the system. A first token of two pools is there when the decode pool takes it in."""
    return Simulation(system, traffic, engine).run()


class Simulation:
    """Engines, and what requests have seen."""

    def __init__(self, system: System, traffic: Traffic, engine: type[Engine]):
        self.system, self.traffic = system, traffic
        prompt, cached, output = traffic.prompt.tolist(), traffic.cached.tolist(), traffic.output.tolist()
        whole = Requests(prompt, cached, output)
        short = Requests(prompt, cached, [1] * len(prompt)) if system.decode else whole
        self.engines = [engine(system.server, short) for _ in range(system.replicas)]
        self.decoding: list[Engine] = []
        if system.decode is not None:
            self.decoding = [engine(system.decode, whole, prefilled=True) for _ in range(system.decode_replicas)]
        self.arrival = traffic.arrival.tolist()
        self.first, self.end = [np.nan] * len(self.arrival), [np.nan] * len(self.arrival)
        self.next, self.ended = traffic.clients, 0
        self.over: list[tuple[float, int]] = []  # ends of requests that clients have not seen
        self.homes = self._homes(system.replicas)
        self.decode_homes = self._homes(system.decode_replicas)

    def _homes(self, replicas: int) -> list[int]:
        """The replica of each request; that of a client is always the same unless requests take them in turn."""
        order = np.arange(len(self.arrival)) % replicas
        if not (self.traffic.clients or self.system.even):
            order = np.random.default_rng(self.traffic.seed).permutation(order)
        return order.tolist()

    def run(self) -> Result:
        """Step the engine that is behind until every request has ended."""
        for i, time in enumerate(self.arrival):
            if time < np.inf:
                self.engines[self.homes[i]].push(time + self.system.front_end, i)
        everyone = [*self.engines, *self.decoding]
        apart = not (self.decoding or self.traffic.clients)  # nothing that happens in one matters to another
        while self.ended < len(self.arrival):
            starts = [one.start() for one in everyone]
            soonest = min(starts)
            if self.over and self.over[0][0] <= soonest:  # no earlier end can still come
                self.finish(*heapq.heappop(self.over))
                continue
            k = starts.index(soonest)
            rest = [*starts[:k], *starts[k + 1 :], *[time for time, _ in self.over[:1]]]
            self.step(everyone[k], np.inf if apart else min(rest, default=np.inf))
        admitted = [np.nan] * len(self.arrival)
        for one in self.engines:
            for i, time in one.admitted.items():
                admitted[i] = time
        for one in self.decoding:
            for i, time in one.admitted.items():
                self.first[i] = time + self.system.detokenise
        gaps = [one.gaps for one in (self.decoding or self.engines)]
        columns = [np.concatenate([np.asarray(getattr(g, f)) for g in gaps]) for f in ("ends", "gaps", "weights")]
        columns[0] += self.system.detokenise
        iterations = sum(one.iterations for one in everyone)
        arrival, admitted, first, end = (np.array(v, float) for v in (self.arrival, admitted, self.first, self.end))
        return Result(arrival, admitted, first, end, np.stack(columns), iterations)

    def step(self, engine: Engine, horizon: float) -> None:
        """Iterations of one engine, and what follows from them."""
        firsts, ends = engine.step(horizon)
        if not self.decoding or engine in self.decoding:
            for i, time in firsts:
                self.first[i] = time + self.system.detokenise
            for i, time in ends:
                heapq.heappush(self.over, (time, i))
            return
        for i, time in firsts:
            length = int(self.traffic.prompt[i])
            there = time + self.system.transfer + self.system.transfer_token * length
            self.first[i] = there + self.system.detokenise
            if self.traffic.output[i] == 1:
                heapq.heappush(self.over, (there, i))
            else:
                self.decoding[self.decode_homes[i]].push(there, i)

    def finish(self, time: float, i: int) -> None:
        """A request has its last token; its client sends the next one."""
        time += self.system.detokenise
        self.end[i] = time
        self.ended += 1
        if self.traffic.clients and self.next < len(self.arrival):
            k, self.next = self.next, self.next + 1
            if not self.system.even:
                self.homes[k], self.decode_homes[k] = self.homes[i], self.decode_homes[i]
            self.arrival[k] = time
            self.engines[self.homes[k]].push(time + self.system.front_end, k)
