"""Drawn systems: structures, models, engines, lengths and loads. A seed gives one, always the same."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from tests.inference.designs import value

from .designs import Design, most_places, pools_of, system_of
from .policies import Policy, policy
from .surface import lockstep_ranks
from .system import Result, System, simulate
from .traffic import Lengths, Traffic, arriving, endless, of_clients

FP8 = dict.fromkeys(("precision", "weight_precision", "kv_precision"), "fp8")
# model, device, tp, pp, ep: dense, with a window, of experts, with latent attention, hybrids
REPLICAS = (
    ("llama-3.1-8b", "h100-sxm-80gb", 1, 1, 1),
    ("llama-3.1-8b", "a100-sxm-80gb", 1, 1, 1),
    ("llama-3.1-70b", "h100-sxm-80gb", 8, 1, 1),
    ("llama-3.1-70b", "h200-sxm-141gb", 4, 1, 1),
    ("qwen3-32b", "h100-sxm-80gb", 2, 1, 1),
    ("gemma-3-27b", "h100-sxm-80gb", 2, 1, 1),
    ("mixtral-8x7b", "mi300x", 2, 1, 1),
    ("qwen3-30b-a3b", "h100-sxm-80gb", 2, 1, 1),
    ("gpt-oss-120b", "b200", 2, 1, 1),
    ("deepseek-v2-lite", "h100-sxm-80gb", 1, 1, 1),
    ("deepseek-v3", "b200", 8, 1, 1),
    ("qwen3-next-80b-a3b", "h100-sxm-80gb", 4, 1, 1),
    ("nemotron-h-8b", "h100-sxm-80gb", 1, 1, 1),
    ("kimi-linear-48b-a3b", "h200-sxm-141gb", 2, 1, 1),
)
PIPELINES = (
    ("llama-3.1-8b", "l40s", 1, 2, 1),
    ("llama-3.1-70b", "h100-sxm-80gb", 4, 2, 1),
    ("llama-3.1-70b", "h100-sxm-80gb", 2, 4, 1),
    ("llama-3.1-70b", "h100-sxm-80gb", 1, 8, 1),
    ("llama-3.1-70b", "a100-sxm-80gb", 4, 4, 1),
    ("llama-3.1-405b", "h200-sxm-141gb", 8, 2, 1),
    ("qwen3-32b", "h100-sxm-80gb", 1, 4, 1),
    ("gemma-3-27b", "a100-sxm-80gb", 1, 2, 1),
    ("glm-4.5-air", "h100-sxm-80gb", 2, 4, 1),
    ("qwen3-235b-a22b", "h200-sxm-141gb", 4, 2, 1),
    ("deepseek-v3", "h200-sxm-141gb", 8, 2, 1),
    ("deepseek-v2-lite", "a100-sxm-80gb", 1, 3, 1),
    ("nemotron-h-56b", "h100-sxm-80gb", 2, 4, 1),
    ("qwen3-next-80b-a3b", "h100-sxm-80gb", 2, 3, 1),
)
GROUPS = (
    ("deepseek-v3", "h200-sxm-141gb", 1, 1, 32),
    ("deepseek-v3", "b200", 1, 1, 16),
    ("deepseek-v3", "gb200", 2, 1, 64),
    ("kimi-k2", "h200-sxm-141gb", 1, 1, 64),
    ("deepseek-v2-lite", "h100-sxm-80gb", 1, 1, 4),
    ("qwen3-235b-a22b", "h100-sxm-80gb", 4, 1, 16),
    ("qwen3-235b-a22b", "h200-sxm-141gb", 1, 1, 8),
    ("qwen3-30b-a3b", "h100-sxm-80gb", 1, 1, 2),
    ("qwen3-30b-a3b", "h100-sxm-80gb", 1, 1, 8),
    ("gpt-oss-120b", "h100-sxm-80gb", 1, 1, 4),
    ("glm-4.5", "h200-sxm-141gb", 1, 1, 16),
    ("minimax-m2", "h100-sxm-80gb", 2, 1, 8),
    ("qwen3-next-80b-a3b", "h100-sxm-80gb", 1, 1, 8),
    ("kimi-linear-48b-a3b", "h100-sxm-80gb", 1, 1, 4),
)
STRUCTURES = {"replica": REPLICAS, "pipeline": PIPELINES, "lockstep": GROUPS, "pools": (*REPLICAS, *GROUPS)}
ENGINES = {  # software of the catalog, and tokens of an iteration
    "vllm": ("vllm", (512, 1024, 2048, 8192)),
    "vllm-sync": ("vllm", (512, 2048, 8192)),
    "sglang": ("sglang", (2048, 4096, 8192)),
    "sglang-mixed": ("sglang", (2048, 8192)),
    "tensorrt-llm": ("tensorrt-llm", (8192,)),
    "tensorrt-llm-chunked": ("tensorrt-llm", (2048, 8192)),
}
LARGE = ("deepseek-v3", "kimi-k2", "llama-3.1-405b", "glm-4.5", "qwen3-235b-a22b")  # in 8 bits
WHOLE = "tensorrt-llm"  # does not cut prompts
FEWEST = 4  # places of a replica
Record = dict[str, Any]


def drawn(seed: int) -> Record | None:
    """A system and its load but for the rate; None where memory holds hardly any sequence."""
    g = np.random.default_rng(seed)

    def log(low: float, high: float) -> float:
        return float(round(np.exp(g.uniform(np.log(low), np.log(high)))))

    structure = str(g.choice(list(STRUCTURES), p=(0.3, 0.3, 0.25, 0.15)))
    model, device, tp, pp, ep = STRUCTURES[structure][g.integers(len(STRUCTURES[structure]))]
    engine = str(g.choice(list(ENGINES), p=(0.35, 0.1, 0.25, 0.05, 0.15, 0.1)))
    software, tokens = ENGINES[engine]
    lengths = Lengths(
        prompt=log(100, 2000 if engine == WHOLE else 6000),
        output=log(30, 800),
        prompt_variation=float(g.choice([0, 0.3, 0.57, 1.0])),
        output_variation=float(g.choice([0, 0.3, 0.57, 1.0])),
        cached=float(g.choice([0, 0, 0, 0.3, 0.8])),
        longest=8192 if engine == WHOLE else 32768,
    )
    design: Design = {"model": model, "device": device, "software": software, "tp": float(tp), "pp": float(pp)}
    design |= {"ep": float(ep), "etp": float(tp if ep == 1 else 1), "dp": float(max(ep // tp, 1))}
    design |= FP8 if model in LARGE else {}
    design |= {"prompt_tokens": lengths.prompt, "output_tokens": lengths.output, "front_end_time": 0.0}
    limits = {"tokens": int(g.choice(tokens)), "places": int(log(max(8, 2 * pp), 256))}
    room = most_places(design | {"prefill_chunk_tokens": float(limits["tokens"])})
    limits["places"] = min(limits["places"], room) // pp * pp
    load = {"kind": str(g.choice(["open", "clients", "endless"], p=(0.75, 0.17, 0.08)))}
    load |= {"of_capacity": float(g.uniform(0.1, 0.9)), "of_places": float(g.uniform(0.2, 1.2))}
    load |= {"rounds": float(g.choice([3, 5.5, 10, 30]))}
    counts = {"prefill": int(g.choice([1, 1, 2])), "decode": int(g.choice([1, 1, 2]))}
    if limits["places"] < max(FEWEST, pp):
        return None
    row = policy(engine, **limits)
    row = replace(row, ahead=row.ahead and value("works_ahead", **design | {"asynchronous_scheduling": True}) > 0)
    design |= {"asynchronous_scheduling": row.ahead, "prefill_first": not row.mixed}
    record = {"seed": seed, "structure": structure, "engine": engine, "design": design, "policy": asdict(row)}
    record |= {"lengths": asdict(lengths), "load": load}
    if structure == "pools":
        record["replicas"] = counts
        record["load"]["kind"] = "open" if load["kind"] == "endless" else load["kind"]
    return record


def system(record: Record) -> System:
    """The engines of a drawn system; replicas and groups of one design alone but for pools."""
    design, row = record["design"], Policy(**record["policy"])
    longest = record["lengths"]["longest"]
    if "replicas" not in record:
        return system_of(design, row, longest)
    prefill, decode = (design | {"dp": float(n * lockstep_ranks(design))} for n in record["replicas"].values())
    return pools_of(prefill, decode, row, longest)


def places(one: System) -> int:
    """Sequences that can decode at once."""
    server, count = (one.decode, one.decode_replicas) if one.decode else (one.server, one.replicas)
    return server.policy.places * server.ranks * server.groups * count


def capacity(one: System, lengths: Lengths) -> float:
    """Requests per second where more wait than there is room for.

    Answers of one length would end in step, so that prompts share iterations; random arrivals do not.
    """
    lengths = replace(lengths, output_variation=max(lengths.output_variation, 0.5))
    count = int(np.clip(12 * places(one), 1500, 40_000))
    if one.decode is None:
        run = endless(lengths, count)
    else:
        run = of_clients(places(one) + 4 * one.replicas * one.server.ranks, lengths, count)
    return steady_rate(simulate(one, run))


def steady_rate(result: Result) -> float:
    """Requests per second that end, without the first third and the last tenth."""
    ends = np.sort(result.end)
    low, high = len(ends) // 3, int(0.9 * len(ends))
    return float((high - low) / (ends[high] - ends[low]))


def runs_of(record: Record, one: System, requests: int) -> list[Traffic]:
    """The load of a system with so many requests: one run, or as many runs of its clients as that takes."""
    lengths, load, seed = Lengths(**record["lengths"]), record["load"], record["seed"]
    if load["kind"] == "open":
        return [arriving(load["rate"], lengths, requests, seed=seed)]
    if load["kind"] == "endless":
        return [endless(lengths, max(requests, 20 * places(one)), seed)]
    clients, count = load["clients"], load["requests"]
    runs = max(math.ceil(requests / count), 8)
    return [of_clients(clients, lengths, count, seed=1000 * seed + k) for k in range(runs)]


def loaded(record: Record, one: System) -> Record:
    """The record with its rate, or its clients and requests."""
    load = record["load"]
    kind, part = load["kind"], load["of_capacity"]
    if kind == "clients":
        clients = max(round(load["of_places"] * places(one)), 1)
        found = {"clients": clients, "requests": max(round(clients * load["rounds"]), 1)}
    elif kind == "open":
        most = capacity(one, Lengths(**record["lengths"]))
        found = {"capacity": most, "of_capacity": part, "rate": part * most}
    else:
        found = {"places": places(one)}
    return record | {"load": {"kind": kind} | found}
