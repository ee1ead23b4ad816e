"""The time of an iteration of a serving engine, T(b, c): b sequences that decode beside c prompt tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import Graph, replay, resolve
from perfgrid.engine.grid.space import Space
from perfgrid.formulas import INNER

GROWS = 4  # from row to row, and from column to column
FEWEST_TOKENS = 128  # of prompts, in the first column with some
MOST_TOKENS = 32768  # in the last one, where an engine takes prompts of any length in one iteration
LIMITS = ("most_sequences", "dp", "pp", "step_tokens", "prefill_chunk_tokens", "cp", "computed_prompt_tokens")
BESIDE = ("prompts_beside_steps", "works_ahead")
PARTS = {"communication_time": "communication", "late_launch_time": "host", "host_time": "host"}
TIMES = ("pass_time", "batch_parts", "kernels_time", *PARTS)
# quantities that a load would determine, and that b and c do here
HELD = ("replica_batch", "busiest_replica_load", "mixed_iterations", "prefill_sequences", "prefill_passes")
HELD = (*HELD, "mean_prompts")


@dataclass(frozen=True)
class IterationTimes:
    """Seconds of an iteration of one replica, through all stages of a pipeline, and what most of it waits for.

    ``time[i][j]`` and ``bound_by[i][j]``: ``decoding[i]`` sequences of the mean context that each take a step beside
    ``prompting[j]`` tokens of prompts of the mean length; beside sequences the last column holds as many as there is
    room for. Replicas in lockstep are alike. NaN and "" where there is no such iteration: of nothing at all, and of
    both kinds where the engine computes prompts apart.
    """

    decoding: tuple[int, ...]
    prompting: tuple[int, ...]
    time: tuple[tuple[float, ...], ...]
    bound_by: tuple[tuple[str, ...], ...]
    mixed: bool  # whether prompts are computed beside sequences that decode


def iteration_times(
    registry: Registry, space: Space, index: tuple[int, ...], choices: Mapping[str, str] | None = None
) -> IterationTimes:
    """T(b, c) of one serving design: up to the sequences that fit, and the tokens that an iteration takes."""
    labels = space.label_quantities()
    limits = _values(resolve(registry, (*LIMITS, *BESIDE), space.names(), choices, labels), space, index, {})
    most = int(_one(limits, "most_sequences") / _one(limits, "dp") / _one(limits, "pp"))
    budget = int(_one(limits, "prefill_chunk_tokens") * _one(limits, "cp"))
    mixed = _one(limits, "prompts_beside_steps") > 0
    decoding, prompting = (0, *_rising(1, max(most, 1))), (0, *_rising(FEWEST_TOKENS, min(budget, MOST_TOKENS)))
    graph = resolve(registry, TIMES, (*space.names(), *HELD), choices, labels)

    def cell(b: int, c: int) -> tuple[float, str]:
        if not b + c or (b and c and not mixed):
            return float("nan"), ""
        c = min(c, max(budget - round(b * _one(limits, "step_tokens")), 1)) if b else c
        values = _values(graph, space, index, _held(b, c, limits))
        parts = float(np.squeeze(values["batch_parts"]))
        return _limited(values, "prefill" if c else "decode", parts)

    cells = [[cell(b, c) for c in prompting] for b in decoding]
    times = tuple(tuple(time for time, _ in row) for row in cells)
    return IterationTimes(decoding, prompting, times, tuple(tuple(why for _, why in row) for row in cells), mixed)


def _rising(first: int, last: int) -> list[int]:
    """Whole numbers in equal ratios up to the last; those near it are left out."""
    found = [first]
    while found[-1] * GROWS * 2 <= last:
        found.append(found[-1] * GROWS)
    return [*found, last] if last > found[-1] else [last]


def _held(b: int, c: int, limits: Mapping[str, Any]) -> dict[str, float]:
    """What stands for the load: b sequences and c prompt tokens in each group of the pipeline."""
    prompts = c / _one(limits, "computed_prompt_tokens")
    held = {"replica_batch": max(b, 1) * _one(limits, "pp"), "busiest_replica_load": 1.0}
    held |= {"mixed_iterations": 1.0 if b and c else 0.0, "prefill_sequences": max(prompts, 1.0)}
    held |= {"prefill_passes": max(1 / prompts, 1.0) if c else 1.0, "mean_prompts": max(prompts, 1.0)}
    return held


def _values(graph: Graph, space: Space, index: tuple[int, ...], held: Mapping[str, float]) -> dict[str, Any]:
    return replay(graph, {name: held[name] if name in held else space.at(name, index) for name in graph.leaves})


def _one(values: Mapping[str, Any], name: str) -> float:
    """A quantity that does not depend on the batch."""
    return float(np.ravel(values[name])[-1])


def _limited(values: Mapping[str, Any], which: str, parts: float) -> tuple[float, str]:
    """The time of all parts of a batch, and what takes most of it."""
    resources = np.squeeze(INNER.at(values["kernels_time"], **{"pass": which}))
    waits = dict(zip(INNER.labels["resource"], np.broadcast_to(resources, len(INNER.labels["resource"])), strict=True))
    for name, reason in PARTS.items():
        waits[reason] = waits.get(reason, 0.0) + _in_pass(values[name], which)
    return parts * _in_pass(values["pass_time"], which), max(waits, key=lambda reason: float(waits[reason]))


def _in_pass(value: Any, which: str) -> float:
    return float(np.squeeze(INNER.at(value, **{"pass": which})))
