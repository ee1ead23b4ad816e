"""Drawn systems and what their requests see in a simulation: ``python -m tests.inference.simulated`` stores it anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from perfgrid.formulas.serving.distributions import Z

from .designs import evaluate, value
from .simulation import PERCENTILES, Served, draw, serve_at_rate, serve_clients, times_of

SIMULATED = Path(__file__).with_name("simulated.json")
KINDS = {"rate": 260, "clients": 110}  # and how many systems are drawn; those that fit no sequence are left out
SYSTEMS = (
    ("llama-3.1-8b", "h100-sxm-80gb", 1),
    ("llama-3.1-8b", "a100-sxm-80gb", 1),
    ("llama-3.1-70b", "h100-sxm-80gb", 8),
    ("llama-3.1-70b", "h200-sxm-141gb", 4),
    ("mixtral-8x7b", "mi300x", 2),
    ("qwen-2.5-72b", "b200", 4),
    ("gpt-oss-120b", "b200", 2),
    ("llama-2-7b", "h100-sxm-80gb", 1),
)
VARIED = ("length_distribution", "prompt_variation", "output_variation")
ARRIVING = ("batch_rule", "request_rate", "batch", "loop_requests")


def system(kind: str, seed: int) -> tuple[dict[str, Any], int]:
    """A drawn design and its places for sequences."""
    generator = np.random.default_rng((seed, kind == "rate"))

    def log(low: float, high: float) -> float:
        return float(round(np.exp(generator.uniform(np.log(low), np.log(high)))))

    model, device, tp = SYSTEMS[generator.integers(len(SYSTEMS))]
    family = ("uniform", "lognormal", "constant")[generator.integers(3 if kind == "rate" else 2)]
    most = {"constant": 0.0, "uniform": 0.57, "lognormal": 1.1}[family]
    design = {"model": model, "device": device, "tp": float(tp), "software": ("vllm", "sglang")[seed % 2]}
    design |= {"prompt_tokens": log(60, 6000), "output_tokens": log(20, 800), "front_end_time": 0.0}
    design |= {"length_distribution": family, "prompt_variation": most * generator.uniform(0.15, 1)}
    design |= {"output_variation": most * generator.uniform(0.15, 1), "batch_limit": log(4, 200)}
    if kind == "rate":
        design |= {"batch_rule": "rate"}
        load = generator.uniform(0.1, 0.95)
        design |= {"request_rate": load * float(value("largest_request_rate", **design, request_rate=1.0))}
    else:
        clients = log(1, 128)
        design |= {"batch_rule": "clients", "batch": clients}
        design |= {"loop_requests": clients * float((5, 15, 20, 50)[generator.integers(4)])}
    return design, int(min(value("largest_batch", **design), design["batch_limit"]))


def served(kind: str, seed: int, salt: int = 0) -> Served:
    """What the requests of a drawn system see: of one long run, or of several runs of clients."""
    design, places = system(kind, seed)
    generator = np.random.default_rng((seed, salt))
    fixed = {k: v for k, v in design.items() if k not in (*VARIED, *ARRIVING)}
    family, prompt, output = design["length_distribution"], design["prompt_tokens"], design["output_tokens"]
    if kind == "rate":
        load = value("load_fraction", **design)
        requests, runs = 60_000 if load > 0.8 else 20_000, 1
    else:
        requests = int(design["loop_requests"])
        runs = int(np.clip(6000 // requests, 2, 30))
    size = (runs, requests)
    prompts = draw(generator, family, prompt, design["prompt_variation"], runs * requests).reshape(size)
    outputs = draw(generator, family, output, design["output_variation"], runs * requests).reshape(size)
    times = times_of(fixed, places, np.unique(prompts))
    if kind == "rate":
        return serve_at_rate(times, design["request_rate"], prompts[0], outputs[0], places, salt, requests // 10)
    clients = int(design["batch"])
    each = [serve_clients(times, clients, p, o, places, 8192.0) for p, o in zip(prompts, outputs, strict=True)]
    return Served(*(np.concatenate([getattr(one, name) for one in each]) for name in ("firsts", "gaps", "latencies")))


def simulated(kind: str, seed: int, salt: int = 0) -> np.ndarray:
    """Percentiles of first tokens, times per token and latencies of a drawn system: a row each."""
    return served(kind, seed, salt).percentiles()


def predicted(kind: str, seed: int) -> np.ndarray:
    """The same by the formulas."""
    names = [f"{n}_{p}" for n in ("time_to_first_token", "time_per_output_token", "request_latency") for p in Z]
    found = evaluate(*names, **system(kind, seed)[0])
    return np.array([found[name] for name in names]).reshape(3, len(PERCENTILES))


def main() -> None:
    """Simulate all systems and store their percentiles."""
    found = {}
    for kind, count in KINDS.items():
        seeds = [seed for seed in range(count) if system(kind, seed)[1] >= 1]
        found[kind] = [(seed, simulated(kind, seed).round(6).tolist()) for seed in seeds]
    lines = (f'"{kind}": [\n' + ",\n".join(map(json.dumps, of)) + "\n]" for kind, of in found.items())
    SIMULATED.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
