"""Designs drawn of every structure, and evaluated together: one replay of the formulas for all that share labels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from perfgrid.engine import replay

from .designs import LABELS, graph, point, registry
from .oracle.systems import FP8, GROUPS, LARGE, REPLICAS

Design = dict[str, Any]
# model, device, tp, and layers: pipelines of two to eight stages of dense models, of experts, and hybrids
PIPELINES = (
    ("llama-3.1-8b", "l40s", 1),
    ("llama-3.1-70b", "h100-sxm-80gb", 2),
    ("llama-3.1-70b", "a100-sxm-80gb", 4),
    ("llama-3.1-405b", "h200-sxm-141gb", 8),
    ("qwen3-32b", "h100-sxm-80gb", 1),
    ("gemma-3-27b", "a100-sxm-80gb", 1),
    ("mixtral-8x7b", "mi300x", 2),
    ("glm-4.5-air", "h100-sxm-80gb", 2),
    ("qwen3-235b-a22b", "h200-sxm-141gb", 4),
    ("deepseek-v3", "h200-sxm-141gb", 8),
    ("deepseek-v2-lite", "a100-sxm-80gb", 1),
    ("nemotron-h-56b", "h100-sxm-80gb", 2),
    ("qwen3-next-80b-a3b", "h100-sxm-80gb", 2),
    ("kimi-linear-48b-a3b", "h200-sxm-141gb", 2),
)
STRUCTURES = ("replica", "replicas", "pipeline", "lockstep", "groups")  # one group in lockstep, several ones
ENGINES = {  # what of an engine its queues feel: whether prompts go first, and whether its host works ahead
    "vllm": ({}, {"asynchronous_scheduling": True}),
    "sglang": ({}, {"prefill_first": False}),
    "tensorrt-llm": ({}, {"prefill_chunk_tokens": 2048.0}),
}


@cache
def constraints() -> tuple[str, ...]:
    """Names of what can make a design impossible."""
    return tuple(node.name for node in registry().constraints())


def drawn(seed: int) -> Design:
    """A design of some structure, not all of which can be."""
    g = np.random.default_rng(seed)

    def log(low: float, high: float) -> float:
        return float(round(np.exp(g.uniform(np.log(low), np.log(high)))))

    structure = STRUCTURES[seed % len(STRUCTURES)]
    software = str(g.choice(list(ENGINES)))
    own = ENGINES[software][g.integers(2)]
    pp, ep, copies = 1, 1, 1
    if structure == "pipeline":
        model, device, tp = PIPELINES[g.integers(len(PIPELINES))]
        pp = int(g.integers(2, 9))
    else:
        rows = GROUPS if structure in ("lockstep", "groups") else REPLICAS
        model, device, tp, _, ep = rows[g.integers(len(rows))]
    if structure in ("replicas", "groups"):
        copies = int(g.integers(2, 7))
    ranks = max(ep // tp, 1)
    design: Design = {"model": model, "device": device, "software": software, "tp": float(tp), "pp": float(pp)}
    design |= {"ep": float(ep), "etp": float(tp if ep == 1 else 1), "dp": float(ranks * copies)}
    design |= FP8 if model in LARGE else {}
    design |= {"prompt_tokens": log(100, 6000), "output_tokens": log(30, 1000), "batch_limit": log(8, 512)}
    design |= {"prefix_hit_rate": float(g.choice([0, 0, 0.3, 0.8]))}
    design |= {"length_distribution": "lognormal", "prompt_variation": 0.3, "output_variation": 0.3}
    return design | own


class Designs:
    """Designs that are evaluated together: one replay of the formulas for all that have the same labels."""

    def __init__(self, designs: Sequence[Design]):
        self.designs = list(designs)
        self.groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
        points = [point(**design) for design in designs]
        for i, given in enumerate(points):
            labels = tuple((name, str(given[name])) for name in LABELS if name in given)
            self.groups.setdefault(labels, []).append(i)
        self.given = {
            labels: {name: stacked([points[i][name] for i in rows]) for name in points[rows[0]]}
            for labels, rows in self.groups.items()
        }

    def __getitem__(self, name: str) -> np.ndarray:
        """A given number of every design."""
        found = np.empty(len(self.designs))
        for labels, rows in self.groups.items():
            found[rows] = self.given[labels][name]
        return found

    def evaluate(self, *outputs: str, times: int = 1, **changes: Any) -> dict[str, np.ndarray]:
        """Outputs, each one number of a design, where all designs have these values: [time, design], or [design].

        A change is a value for all, or one for every design and time.
        """
        count = len(self.designs)
        found = {name: np.empty((times, count)) for name in outputs}
        words = {name: str(value) for name, value in changes.items() if name in LABELS}
        for labels, rows in self.groups.items():
            own = {name: tiled(value, times, len(rows)) for name, value in self.given[labels].items()}
            for name, value in changes.items():
                array = np.broadcast_to(value, (times, count)) if np.ndim(value) else value
                own[name] = array[:, rows].reshape(-1) if np.ndim(value) else value
            made = graph(outputs, tuple((dict(labels) | words).items()))
            values = replay(made, {name: 0.0 if name in LABELS else own[name] for name in made.leaves})
            for name in outputs:
                flat = np.ravel(np.asarray(values[name], float))
                found[name][:, rows] = np.broadcast_to(flat, times * len(rows)).reshape(times, -1)
        return found if times > 1 else {name: value[0] for name, value in found.items()}


def stacked(values: Sequence[Any]) -> Any:
    """One value for all designs, or an array whose last axis is that of the designs."""
    first = values[0]
    if np.ndim(first) == 0 and all(one == first for one in values):
        return first
    return np.stack([np.asarray(one)[..., 0] if np.ndim(one) else np.asarray(one) for one in values], axis=-1)


def tiled(value: Any, times: int, count: int) -> Any:
    """The same for every time."""
    if times == 1 or np.ndim(value) == 0 or np.shape(value)[-1] != count:
        return value
    return np.tile(value, times)
