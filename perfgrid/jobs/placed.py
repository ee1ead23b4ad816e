"""What a job takes on a device, which its files do not name: defaults of serving engines, domains of a mesh."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfgrid.catalog import Catalog

from .job import Job
from .kinds import UNMODELLED

# SGLang, server_args.py: by the memory of a device in MiB, tokens of a chunk
TIERS = ((35 * 1024, 2048), (60 * 1024, 4096), (160 * 1024, 8192), (float("inf"), 16384))
# vLLM, EngineArgs.get_batch_defaults of a server (since 0.28): by the same, tokens and sequences of an iteration; A100
# counts as a small one
BUDGETS = ((70 * 1024, 2048, 256), (160 * 1024, 8192, 1024), (float("inf"), 16384, 1024))
SMALL = "a100"
OLD, LONG = "vllm-2024", 2**15


def on_device_of(job: Job, device: str | None, catalog: Catalog, software: str | None = None) -> Job:
    """A job with what its program, or another one of the catalog, takes on a device where the files state nothing."""
    if job.pools:
        pools = {pool: on_device_of(one, device, catalog, software) for pool, one in job.pools.items()}
        values = job.values | {n: v for n, v in pools["decode"].values.items() if n not in job.values}
        return replace(job, pools=pools, values=values)
    if device is None:
        return job
    known = catalog.entry("device", device).values
    if job.domain:
        return _in_domains(job, known.get("scale_up_size"))
    capacity = known.get("hbm_capacity")
    if not isinstance(capacity, float):
        return job
    return _with_budget(job, device, capacity / 2**20, catalog, software or job.format.software)


def _with_budget(job: Job, device: str, memory: float, catalog: Catalog, software: str) -> Job:
    """A job with the tokens and sequences of an iteration that its engine takes on a device with so many MiB.

    Where the files state nothing, and the engine's usual ones are others. Engines that do not cut prompts, and state no
    limit, take a prompt of the longest context in one iteration; vLLM of 2024 cuts those beyond `LONG`.
    """
    budget: dict[str, Any] = {}
    engine = catalog.entry("software", software)
    if software == OLD:
        context = int(job.values.get("context_limit") or 0) or job.published_context
        long = context > LONG
        budget = {"chunked_prompts": long, "prefill_chunk_tokens": BUDGETS[0][1] if long or not context else context}
    elif job.format.software == "vllm":
        tokens, sequences = next(row[1:] for row in BUDGETS if memory < row[0] or row[0] == BUDGETS[-1][0])
        tokens, sequences = BUDGETS[0][1:] if device.startswith(SMALL) else (tokens, sequences)
        budget = {"prefill_chunk_tokens": tokens, "batch_limit": sequences}
    elif job.format.software == "sglang":
        tokens = next(row[1] for row in TIERS if memory < row[0])
        sharing = job.values.get("ep", 1) * job.values.get("etp", 1) // job.values.get("tp", 1)  # replicas of attention
        budget = {"prefill_chunk_tokens": max(int(tokens // max(sharing, 1)), 1)}
    usual = engine.values
    budget = {name: value for name, value in budget.items() if name not in job.values and value != usual[name]}
    why = f"default of {job.format.title} on {device}"
    rows = [(name, str(value), why) for name, value in budget.items()]
    return replace(job, values=job.values | budget, assumed=[*job.assumed, *rows])


def _in_domains(job: Job, most: Any) -> Job:
    """A job on a mesh of several scale-up domains: of so many devices as lie inside one, if the device has as large."""
    why = "implied by the mesh: the product of its parts inside a domain"
    if isinstance(most, float) and most < job.domain:
        ignored = ("parts inside a domain", str(job.domain), f"{UNMODELLED} change the time: domains have {most:g}")
        return replace(job, ignored=[*job.ignored, ignored])
    rows = [*job.assumed, ("scale_up_size", str(job.domain), why)]
    return replace(job, values=job.values | {"scale_up_size": job.domain}, assumed=rows)
