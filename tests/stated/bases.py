"""Designs on which every given quantity has to matter somewhere: one point each, with many outputs."""

from __future__ import annotations

from typing import Any

TRAINING = (
    *("step_time", "memory_per_device", "cost_per_training_run", "training_time", "step_energy"),
    *("carbon_per_training_run", "model_flops_utilization", "network_power", "goodput"),
)
SERVING = (
    *("time_to_first_token", "time_per_output_token", "output_tokens_per_second", "memory_per_device"),
    *("request_latency", "cost_per_million_output_tokens", "energy_per_output_token"),
)
ARRIVING = (
    *SERVING,
    "time_to_first_token_p99",
    "time_per_output_token_p90",
    "request_latency_p50",
    "limited_token_time",
)
MANUFACTURING = (
    *(
        "manufacturing_cost",
        "silicon_cost",
        "memory_cost",
        "package_cost",
        "die_yield",
        "die_cost",
        "scrapped_die_cost",
    ),
    *("development_cost_per_device", "cost_per_transistor", "circuit_energy"),
)
H100, B200, MI300X = "h100-sxm-80gb", "b200", "mi300x"


def training(model: str, device: str, layout: dict[str, int], **more: Any) -> dict[str, Any]:
    """A training step."""
    axes = {"model": [model], "device": [device], "parallelism": {name: [n] for name, n in layout.items()}}
    axes |= {
        name: [more.pop(name)]
        for name in ("topology", "software", "budget", "node", "memory", "link", "package")
        if name in more
    }
    overrides = more.pop("overrides", {})
    content = {"outputs": list(more.pop("outputs", TRAINING)), "dtype": "float64", "axes": axes, "overrides": overrides}
    usual = {"sequence_length": 4096, "global_batch": 256, "training_tokens": 1e12}
    return content | {"workload_parameters": usual | more}


def serving(model: str, device: str, layout: dict[str, int], outputs: Any = SERVING, **more: Any) -> dict[str, Any]:
    """A server under load."""
    axes = {"model": [model], "device": [device], "parallelism": {name: [n] for name, n in layout.items()}}
    axes |= {name: [more.pop(name)] for name in ("topology", "software") if name in more}
    content = {"workload": "inference", "outputs": list(outputs), "dtype": "float64", "axes": axes}
    content["overrides"] = more.pop("overrides", {})
    return content | {"workload_parameters": {"prompt_tokens": 2000, "output_tokens": 300} | more}


LARGE = {"devices": 256, "tp": 8, "pp": 4}
BASES: dict[str, dict[str, Any]] = {
    "dense": training("llama-3.1-70b", H100, LARGE | {"chunks": 2}, microbatch=1, recompute="selective", zero=1),
    "gpt": training("gpt3-175b", "a100-sxm-80gb", {"devices": 96, "tp": 8, "pp": 12}, global_batch=48, recompute="full", zero=1),
    "sharded": training(
        "llama-3.1-70b", H100, {"devices": 256, "tp": 2, "pp": 1, "cp": 4}, zero=3, sequence_length=32768,
        recompute="full", document_length=8192, document_variation=0.5, software="torchtitan",
    ),
    "mixture": training(
        "deepseek-v3", H100, {"devices": 512, "tp": 1, "pp": 8, "ep": 64}, precision="fp8", zero=1, global_batch=1024,
        recompute="full", expert_imbalance=1.2,
    ),
    "capacity": training("mixtral-8x7b", H100, {"devices": 64, "tp": 2, "pp": 2, "ep": 8}, capacity_factor=1.25, zero=1, recompute="selective"),
    "hybrid": training("nemotron-3-nano-30b-a3b", B200, {"devices": 64, "tp": 2, "pp": 1, "ep": 8}, zero=1, recompute="selective"),
    "sparse": training("deepseek-v3.2", H100, {"devices": 512, "tp": 1, "pp": 8, "ep": 64}, zero=1, global_batch=1024, recompute="full"),
    "adapters": training(
        "llama-2-7b", "a100-sxm-80gb", {"devices": 8, "tp": 1, "pp": 1}, lora_rank=16, recompute="full", zero=0,
        software="hf-deepspeed", sequence_length=2048, global_batch=64,
    ),
    "offload": training("llama-2-7b", H100, {"devices": 8, "tp": 1, "pp": 1}, zero=1, offload="optimizer", global_batch=64),
    "fabric": training("llama-3.1-70b", "tpu-v5p", {"devices": 512, "tp": 4, "pp": 1}, zero=3, recompute="full", topology="tpu-torus-8x8x8", software="maxtext"),
    "mesh": training("llama-3.1-70b", MI300X, {"devices": 64, "tp": 8, "pp": 1}, zero=1, recompute="selective", topology="mi300x-mesh-400g"),
    "made again": training(
        "llama-3.1-70b", H100, LARGE, node="n3", memory="hbm4", recompute="selective", zero=1, price_view="manufacturing",
    ),
    "budget": training("llama-3.1-70b", H100, LARGE, budget="h100-budget", node="n3", memory="hbm3e", recompute="selective", zero=1, price_view="manufacturing", topology="rail-optimized"),
    "linked": training("llama-3.1-70b", H100, LARGE, link="nvlink5", recompute="selective", zero=1, topology="rail-optimized"),
    "network budget": training("llama-3.1-70b", H100, LARGE, recompute="selective", zero=1, network_sizing="budget", network_budget=20000, topology="rails"),
    "zero bubble": training("llama-3.1-70b", H100, LARGE | {"chunks": 2}, schedule="zb_v", zero=1, recompute="none"),
    "batch": serving("llama-3.1-70b", H100, {"devices": 4, "tp": 4, "pp": 1}, batch_rule="concurrency", batch=64),
    "rate": serving(
        "llama-3.1-70b", H100, {"devices": 8, "tp": 4, "pp": 1}, ARRIVING, batch_rule="rate", request_rate=2.0,
        length_distribution="lognormal", prompt_variation=0.5, output_variation=0.5, time_to_first_token_limit=1.0,
    ),
    "clients": serving("llama-3.1-8b", H100, {"devices": 1, "tp": 1, "pp": 1}, ARRIVING, batch_rule="clients", batch=64, loop_requests=640),
    "served mixture": serving("deepseek-v3", B200, {"devices": 16, "tp": 4, "pp": 1, "ep": 16}, ARRIVING, batch_rule="clients", batch=256, loop_requests=2560, weight_precision="fp8", precision="fp8"),
    "served hybrid": serving("qwen3-next-80b-a3b", H100, {"devices": 4, "tp": 4, "pp": 1}, batch_rule="concurrency", batch=64),
    "served sparse": serving("deepseek-v3.2", "h200-sxm-141gb", {"devices": 8, "tp": 8, "pp": 1}, batch_rule="concurrency", batch=64, weight_precision="fp8", precision="fp8", prompt_tokens=20000),
    "drafts": serving("llama-3.1-70b", H100, {"devices": 8, "tp": 4, "pp": 2}, batch_rule="concurrency", batch=32, draft_tokens=3, draft_acceptance=0.7, draft_cost=0.1, prefix_hit_rate=0.3, shared_prefix_tokens=500),
    "memory": serving("llama-3.1-8b", H100, {"devices": 1, "tp": 1, "pp": 1}, batch_rule="memory"),
    "dies": {"workload": "manufacturing", "outputs": list(MANUFACTURING), "dtype": "float64", "axes": {"device": [B200]}},
    "chiplets": {"workload": "manufacturing", "outputs": list(MANUFACTURING), "dtype": "float64", "axes": {"device": [MI300X]}, "workload_parameters": {"yield_model": "harvested"}},
    "collective": {
        "workload": "collectives", "outputs": ["collective_time", "bus_bandwidth"], "dtype": "float64",
        "axes": {"device": [H100], "collective": ["all_reduce"]},
        "workload_parameters": {"group_size": 64, "message_size": "64 MiB", "devices": 512},
    },
    "ideal collective": {
        "workload": "collectives", "outputs": ["collective_time", "bus_bandwidth"], "dtype": "float64",
        "axes": {"device": ["tpu-v5p"], "topology": ["tpu-torus-8x8x8"], "collective": ["all_reduce"]},
        "workload_parameters": {"group_size": 64, "message_size": "64 MiB", "devices": 512},
    },
}  # fmt: skip
