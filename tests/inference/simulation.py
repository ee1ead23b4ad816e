"""Serving request by request: one replica that computes prompts before steps, with arrivals at random or clients."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from .designs import evaluate

PERCENTILES = (50, 90, 99)


@dataclass
class Times:
    """Times of passes of one replica by the formulas: of a prompt by its length, of a step by sequences and context."""

    lengths: np.ndarray  # of prompts
    prefills: np.ndarray
    together: np.ndarray  # tokens of several prompts in a pass, and their time
    passes: np.ndarray
    base: np.ndarray  # of a step by its sequences, from one, with no context
    slope: np.ndarray  # and of a token of their mean context


def times_of(design: dict, places: int, prompts: np.ndarray) -> Times:
    """The times of passes of one replica of a design, exact at the given tokens of prompts."""
    alone = design | {"batch_rule": "given", "batch": 1.0, "dp": 1.0, "devices": design.get("tp", 1.0)}
    lengths = np.unique([1.0, *prompts])
    prefills = np.atleast_1d(evaluate("prefill_time", **alone | {"prompt_tokens": lengths})["prefill_time"])
    mean, output = design["prompt_tokens"], design["output_tokens"]
    counts = np.unique(np.round(np.geomspace(1, max(1.0, 8192 // mean), 12)))
    passes = np.atleast_1d(evaluate("prefill_time", **alone | {"batch": counts})["prefill_time"])
    contexts = np.array([mean / 2 + 1, 2 * mean + output])
    batches = np.arange(1.0, places + 1)
    found = [
        np.atleast_1d(
            evaluate("decode_step_time", **alone | {"batch": batches, "prompt_tokens": c - 1, "output_tokens": 2.0})[
                "decode_step_time"
            ]
        )
        for c in contexts
    ]
    slope = (found[1] - found[0]) / (contexts[1] - contexts[0])
    return Times(lengths, prefills, counts * mean, passes, found[0] - slope * contexts[0], slope)


def draw(generator: np.random.Generator, family: str, mean: float, variation: float, count: int) -> np.ndarray:
    """Whole lengths of requests, at least one token."""
    if family == "lognormal" and variation > 0:
        width = np.sqrt(np.log1p(variation**2))
        found = generator.lognormal(np.log(mean) - width**2 / 2, width, count)
    elif family == "uniform":
        found = mean * generator.uniform(1 - np.sqrt(3) * variation, 1 + np.sqrt(3) * variation, count)
    else:
        found = np.full(count, mean)
    return np.maximum(np.round(found), 1).astype(int)


@dataclass
class Served:
    """What requests saw, in the order of their ends: s."""

    firsts: np.ndarray
    gaps: np.ndarray  # mean time between tokens; NaN of a single token
    latencies: np.ndarray

    def percentiles(self) -> np.ndarray:
        """Percentiles of first tokens, of times per token, and of latencies: a row each."""
        return np.array([np.nanpercentile(v, PERCENTILES) for v in (self.firsts, self.gaps, self.latencies)])


def serve_at_rate(
    times: Times, rate: float, prompts: np.ndarray, outputs: np.ndarray, places: int, seed: int, skip: int = 0
) -> Served:
    """Requests that arrive at random; each prompt is a pass of its own."""
    generator = np.random.default_rng(seed)
    arrivals = np.cumsum(generator.exponential(1 / rate, len(prompts)))
    return _run(times, deque(zip(arrivals, prompts, outputs, strict=True)), None, places, 0.0, skip)


def serve_clients(
    times: Times, clients: int, prompts: np.ndarray, outputs: np.ndarray, places: int, tokens_of_pass: float
) -> Served:
    """Clients that ask again when their answers end, all at once in the beginning; passes hold several prompts."""
    requests = list(zip(np.zeros(len(prompts)), prompts, outputs, strict=True))
    return _run(times, deque(requests[:clients]), deque(requests[clients:]), places, tokens_of_pass, 0)


def _run(
    times: Times, waiting: deque, following: deque | None, places: int, tokens_of_pass: float, skip: int
) -> Served:
    """Passes of prompts first, then steps; steps without an event between them at once.

    ``waiting``: arrival, prompt and answer of requests in order; ``following``: what clients ask later.
    """
    prefills = np.interp(np.arange(int(times.lengths[-1]) + 1), times.lengths, times.prefills)
    base, slope = times.base.tolist(), times.slope.tolist()
    running: list[tuple[int, float, float, int, int]] = []  # end in steps, arrival, first token, prompt, answer
    clock, passed, held = 0.0, 0, 0.0  # held: tokens in the cache
    firsts, gaps, latencies = [], [], []
    coming: deque = deque()

    def end(now: float, arrived: float, first: float, answer: int) -> None:
        firsts.append(first - arrived)
        gaps.append((now - first) / (answer - 1) if answer > 1 else np.nan)
        latencies.append(now - arrived)
        if following:
            coming.append((now, *following.popleft()[1:]))

    while waiting or running or coming:
        begun = clock
        if waiting and waiting[0][0] <= clock and len(running) < places:
            taken = [waiting.popleft()]
            total = taken[0][1]
            while (
                waiting
                and waiting[0][0] <= clock
                and len(running) + len(taken) < places
                and total + waiting[0][1] <= tokens_of_pass
            ):
                taken.append(waiting.popleft())
                total += taken[-1][1]
            alone = len(taken) == 1
            clock += float(prefills[taken[0][1]]) if alone else float(np.interp(total, times.together, times.passes))
            for arrived, prompt, answer in taken:
                if answer == 1:
                    end(clock, arrived, clock, 1)
                    continue
                heapq.heappush(running, (passed + answer - 1, arrived, clock, prompt, answer))
                held += prompt + 1
        elif running:
            n = len(running)
            one = base[n - 1] + slope[n - 1] * held / n
            steps = running[0][0] - passed
            if following is not None and coming:
                steps = 1
            elif waiting and n < places:
                steps = min(steps, max(1, int(np.ceil((waiting[0][0] - clock) / one))))
            clock += steps * (one + slope[n - 1] * (steps - 1) / 2)
            passed += steps
            held += n * steps
            while running and running[0][0] <= passed:
                _, arrived, first, prompt, answer = heapq.heappop(running)
                held -= prompt + answer
                end(clock, arrived, first, answer)
        else:
            clock = max(clock, (waiting or coming)[0][0])
        while coming and coming[0][0] <= begun + 1e-12:
            waiting.append(coming.popleft())
    return Served(*(np.array(v[skip:]) for v in (firsts, gaps, latencies)))
