"""The time of an iteration: tables by whole rows and sequences, made up for a test or taken from perfgrid.

An iteration of one rank adds a token to each of ``b`` sequences and computes ``c`` tokens of prompts. Products,
collectives and streams see b + c rows together, so weights are read once:

    T(b, c) = P(b + c) + D(b, contexts) + A(chunks)

with P a pass without attention, by the kernels of prompts where there are any, D the attention of a decoding step, and
A that of the chunks on what stands before them. Experts that ranks in lockstep share see the rows of all ranks, X(mean
rows); everything else is that of the busiest rank:

    T = X(mean of b + c) + max over ranks of (rows[b + c] + step[b] + slope[b]·tokens read + A)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ZERO = np.zeros(1)


@dataclass(frozen=True)
class Surface:
    """Times in s. Lists are looked up by whole rows, sequences or tokens and start at 0."""

    rows: list[float]  # P: products, collectives and streams of so many rows on one rank
    experts: list[float]  # X: products of routed experts where each rank has so many rows
    step: list[float]  # what a step of b sequences takes beyond P[b] and X[b] on empty contexts
    slope: list[float]  # and for each token that it reads, of all its sequences together
    beside: list[float]  # what b sequences take beside prompts beyond P[b + c] and X[b + c] on empty contexts
    attention: list[float]  # attention of the first L tokens of a prompt to each other
    attention_start: float = 0.0  # and what it takes in an iteration beyond this, however many prompts
    launch_time: float = 0.0  # for which the host launches the kernels of an iteration with prompts
    host_time: float = 0.0  # between two iterations
    host_sequence_time: float = 0.0  # and for each sequence of the rank that has most
    hidden_host: bool = False  # it works beside the device, which waits only if the host takes longer
    host_gap: float = 0.0  # and for so long in any case
    hop: list[float] = field(default_factory=list)  # transfer of so many rows to the next stage of a pipeline
    shares: tuple[float, ...] = (1.0,)  # of the stages of a pipeline in this time

    def own(self, b: int, c: int, read: int, attention: float, prompting: bool) -> float:
        """Time of one rank without experts and host; ``attention`` of its chunks; whether some rank has prompts."""
        return self.rows[b + c] + (self.beside if prompting else self.step)[b] + self.slope[b] * read + attention

    def experts_time(self, mean: float) -> float:
        """Time of the experts where each rank has so many rows on average."""
        low = int(mean)
        found = self.experts[low]
        return found if low == mean else found + (mean - low) * (self.experts[low + 1] - found)

    def total(self, slowest: float, mean: float, sequences: int, prompting: bool) -> float:
        """Time of an iteration by its slowest rank, the mean rows of all and the sequences of the fullest."""
        device = slowest + self.experts_time(mean)
        if prompting:
            device = max(device, self.launch_time)
        host = self.host_time + self.host_sequence_time * sequences
        return max(device + self.host_gap, host) if self.hidden_host else device + host

    def time(self, b: int, read: int, c: int = 0, done: int = 0) -> float:
        """One rank alone: b sequences that read so many tokens together, and c tokens of one prompt after others."""
        attention = self.attention[done + c] - self.attention[done] + self.attention_start if c else 0.0
        return self.total(self.own(b, c, read, attention, c > 0), b + c, b + (c > 0), c > 0)


def synthetic(
    step: Callable[[Any], Any],
    prompt: Callable[[Any], Any],
    slope: float = 0.0,
    attention: Callable[[Any], Any] = lambda tokens: 0.0 * tokens,
    experts: Callable[[Any], Any] = lambda rows: 0.0 * rows,
    hop: float = 0.0,
    places: int = 256,
    tokens: int = 8192,
    longest: int = 16384,
    **others: Any,
) -> Surface:
    """D(b) = step(b) + slope·tokens read, P(n) = prompt(n), A(L) = attention(L), all in s; other fields by name."""
    n, b, length = np.arange(1.0, tokens + places + 1), np.arange(1.0, places + 1), np.arange(longest + 1.0)
    rows, own = np.r_[0.0, prompt(n) + 0 * n], np.r_[0.0, experts(n) + 0 * n]
    steps = np.r_[0.0, step(b) + 0 * b] - rows[: places + 1] - own[: places + 1]
    tables = (rows, own, steps, slope + 0 * steps, steps, attention(length))
    return Surface(*(table.tolist() for table in tables), hop=[hop] * len(rows), **others)


# ---- of a design ----------------------------------------------------------------------------------------------------

DECODING = ("busy_time", "communication_time", "pipeline_transfer_time")
MIXING = ("attention_busy_time", "mixers_busy_time", "indexers_busy_time")  # of both kinds of sequences apart
PROMPTS = (*DECODING, "experts_busy_time", "attention_busy_time", "indexers_busy_time")
TILE = 128  # rows of the tiles of kernels
DENSE = 256  # rows up to which every pass is evaluated, so that steps of kernels are there
ALONE = {"batch_rule": "given", "prefix_hit_rate": 0.0, "shared_prefix_tokens": 0.0, "pools": "shared"}
WHOLE = {"prefill_chunk_tokens": 1e9, "batch_limit": 1e6}


def lockstep_ranks(design: dict[str, Any]) -> int:
    """Replicas that share one copy of the experts, and so iterate together."""
    return max(int(design.get("ep", 1.0) * design.get("etp", 1.0) / design.get("tp", 1.0)), 1)


def of_design(design: dict[str, Any], tokens: int, places: int, longest: int = 65536) -> Surface:
    """The surface of one engine of a design: a replica, or a lockstep group, and its ``pp`` stages.

    ``design`` as by `tests.inference.designs`, ``tokens`` of an iteration at most, ``places`` of one rank and stage,
    ``longest`` prompt that is ever computed. Raises ValueError where parts of a batch take turns.
    """
    from tests.inference.designs import evaluate, point  # the graph replayed in NumPy

    ranks, stages = lockstep_ranks(design), int(design.get("pp", 1.0))
    alone = design | ALONE | WHOLE | {"dp": float(ranks), "prompts_in_lockstep": float(ranks)}
    b = np.arange(1.0, places + 1)
    low, high = max(design["prompt_tokens"] / 2, 2.0), 1.5 * (design["prompt_tokens"] + design["output_tokens"])
    steps = []
    for context in (low, high):
        values = {"batch": b * ranks * stages, "prompt_tokens": context - 1, "output_tokens": 2.0}
        found = evaluate(*DECODING, *MIXING, "batch_parts", **alone | values)
        if np.any(np.asarray(found["batch_parts"]) != 1):
            raise ValueError("parts of a batch that take turns are not simulated")
        steps.append({name: of_pass(found[name], 1, places) for name in (*DECODING, *MIXING)})
    device = [one["busy_time"] + one["communication_time"] - one["pipeline_transfer_time"] for one in steps]
    slope = (device[1] - device[0]) / (high - low)  # of the mean context

    n = nodes(tokens + places, longest)
    single = alone | {"batch": float(ranks), "output_tokens": 2.0}
    one = evaluate(*PROMPTS, **single | {"prompt_tokens": n})
    one = {name: of_pass(value, 0, n.size) for name, value in one.items()}
    attention = one["attention_busy_time"] + one["indexers_busy_time"]
    plain = one["busy_time"] + one["communication_time"] - one["pipeline_transfer_time"]
    plain = plain - attention - one["experts_busy_time"]
    whole = np.arange(tokens + places + 1.0)
    rows, experts, hop = (table(whole, n, v) for v in (plain, one["experts_busy_time"], one["pipeline_transfer_time"]))
    start = attention[0]  # of a single token
    attended = np.interp(np.arange(longest + 1.0), np.r_[0.0, n], np.r_[0.0, np.maximum(attention - start, 0.0)])
    base = device[0] - slope * low - rows[1 : places + 1] - experts[1 : places + 1]

    mixing = sum(steps[0][name] for name in MIXING) - slope * low

    given = point(**design)
    host = evaluate("works_ahead", **alone | {"batch": float(ranks)})  # not with recurrent layers, whatever is stated
    launch = evaluate("prefill_launches", "prefill_launch_time", **single | {"prompt_tokens": 1.0})
    tables = (rows, experts, np.r_[0.0, base], np.r_[0.0, slope / b], np.r_[0.0, mixing], attended)
    return Surface(
        *(t.tolist() for t in tables),
        attention_start=float(start),
        launch_time=float(launch["prefill_launches"] * launch["prefill_launch_time"]),
        host_time=float(given["step_overhead"]),
        host_sequence_time=float(given["sequence_overhead"]),
        hidden_host=bool(host["works_ahead"]),
        host_gap=float(given["step_overhead"]),
        hop=(hop / max(stages - 1, 1)).tolist(),
        shares=stage_shares(design, stages),
    )


def stage_shares(design: dict[str, Any], stages: int) -> tuple[float, ...]:
    """Part of the layers in each stage: the fullest first, the others alike."""
    from tests.inference.designs import value

    if stages == 1:
        return (1.0,)
    most = value("stage_share", **design)
    return (most, *[(1 - most) / (stages - 1)] * (stages - 1))


def nodes(last: int, longest: int) -> np.ndarray:
    """Rows at which passes are evaluated: all small ones, then in ratios, up to the longest prompt.

    And on both sides of every step of kernels: where rows fill their tiles, as those of a full iteration do.
    """
    dense, steps = min(DENSE, last), np.arange(TILE, last + 1, TILE)
    ratios = np.geomspace(dense, max(last, longest), 160)
    return np.unique(np.round(np.r_[np.arange(1, dense + 1), ratios, steps, steps + 1]))


def table(whole: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values at all whole numbers, nothing at 0."""
    return np.interp(whole, np.r_[0.0, at], np.r_[0.0, values])


def of_pass(values: Any, which: int, size: int) -> np.ndarray:
    """One pass (0: prefill, 1: decode) of a quantity, by the values of the axis that was evaluated."""
    found = np.asarray(values, float)
    if found.ndim and found.shape[0] == 2 and (found.ndim > 1 or size != 2):
        found = found[which]
    return np.broadcast_to(found, (size,)).astype(float)
