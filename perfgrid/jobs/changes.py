"""Changes of one setting of a job that may make it faster, and how they combine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from math import prod
from typing import Any

from perfgrid.catalog import Entry

from .formats import glossary
from .job import Job
from .models import of_model

DEGREES = ("tp", "cp", "pp", "dp")
CHOICES = {
    "training": {
        "recompute": ("none", "selective", "full"),
        "zero": (0, 1, 2, 3),
        "sequence_parallel": (True, False),
        "schedule": ("1f1b", "gpipe", "zb_v", "dualpipe_v"),
        "rank_order": ("tp-cp-dp-pp", "tp-cp-pp-dp"),
        "cp_method": ("ring", "all_gather", "ulysses"),
        "offload": ("none",),
    },
    "inference": {
        "kv_precision": ("bf16", "fp8"),
        "interleaved_batches": (1, 2),
        "cache_fraction": (0.9, 0.95),
    },
}
DOUBLED = {  # these are tried at twice and at half their value
    "training": ("microbatch", "chunks"),
    "inference": ("batch_limit", "prefill_chunk_tokens"),
}
MOOT = {"cp_method": "cp", "schedule": "pp", "sequence_parallel": "tp"}  # without such ranks
KEPT = ("precision", "scaling", "weight_precision", "kv_precision")  # combinations leave numerics as they are
MOST_DRAFTS = 4
WHOLE = (1, 2, 4, 8)  # tensor-parallel ranks within a node


def single_changes(
    job: Job, base: Mapping[str, Any], usual: Mapping[str, Any], stack: Entry
) -> Iterator[dict[str, Any]]:
    """Changes of one setting: a factor of two between two degrees, or another value.

    ``base``: the quantities of the job; ``usual``: what its software overlaps; ``stack``: that software, of which a job
    takes what it does not state.
    """
    workload = job.format.workload
    experts = bool(job.model and job.model.values["experts"])
    layers = of_model(job.model)["layers"] if job.model else 0
    for more, less in permutations(DEGREES, 2):
        if base[less] % 2 == 0 and (workload == "training" or "cp" not in (more, less)):
            change = {more: base[more] * 2, less: base[less] // 2}
            if change.get("pp", 2) == 1 and workload == "training":
                change["chunks"] = 1
            yield change
    yield from _whole_heads(job, base)
    for name in (*DOUBLED[workload], *(("ep", "etp") if experts and workload == "training" else ())):
        own = base.get(name, stack.values.get(name, glossary()[name].default_value))
        if not own:
            continue
        values = {own * 2, own // 2 if own % 2 == 0 else own}
        if name == "chunks":
            values |= {c for c in range(1, 13) if base["pp"] > 1 and layers % (base["pp"] * c) == 0}
        yield from ({name: int(value)} for value in sorted(values) if value not in (0, own))
    ranks = base["ep"] * base["etp"]
    if experts and base["etp"] > 1:
        yield {"ep": ranks, "etp": 1}
    if experts and workload == "inference" and base["ep"] > 1:
        yield {"ep": 1, "etp": ranks}
    for name, options in CHOICES[workload].items():
        own = base.get(name, stack.values.get(name, glossary()[name].default_value))
        own = glossary()[name].word(own) if own is not None else own
        if (name not in MOOT or base[MOOT[name]] > 1) and (name != "interleaved_batches" or experts):
            yield from ({name: option} for option in options if option != own)
    if workload == "inference":
        if base.get("draft_acceptance"):
            own = base.get("draft_tokens", 0)
            yield from ({"draft_tokens": n} for n in {0, own - 1, own + 1} if 0 <= n <= MOST_DRAFTS and n != own)
        if base.get("weight_precision") in ("bf16", "fp16"):
            yield {"weight_precision": "fp8", "precision": "fp8"}
        return
    if base.get("precision") in ("bf16", "fp16"):
        yield {"precision": "fp8", "scaling": "delayed"}
    off = {name: value for name, value in usual.items() if base[name] == 0 and value > 0}
    if off:
        yield off


def _whole_heads(job: Job, base: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """For tensor-parallel ranks that do not divide the heads: ranks that do, on other devices where these are too many.

    Devices that remain are replicas.
    """
    tp, devices, others = base["tp"], base["devices"], base["cp"] * base["pp"]
    heads: Any = job.model.values["heads"] if job.model else 0
    if heads % tp == 0:
        return
    legal = [n for n in WHOLE if heads % n == 0]
    nearest = [n for n in legal if n < tp][-1:] + [n for n in legal if n > tp][:1]
    within = [n for n in legal if devices % (n * others) == 0][-1:]
    for ranks in dict.fromkeys((*nearest, *within)):
        replicas, left = divmod(devices, ranks * others)
        yield {"tp": ranks} | ({"devices": devices // tp * ranks} if left else {"dp": replicas})


def combinations(
    singles: Sequence[Mapping[str, Any]], gains: Sequence[float], most: int
) -> tuple[list[dict[str, Any]], dict[str, tuple[int, int]]]:
    """Single changes of different quantities together, at most so many; the least helpful are left out first.

    ``gains``: of each single change by itself. Also returns what is left out: quantity -> changes, of how many.
    """
    groups: dict[str, list[int]] = {}
    for i, change in enumerate(singles):
        if change and not change.keys() & {*KEPT}:
            groups.setdefault("layout" if change.keys() & {*DEGREES} else next(iter(change)), []).append(i)
    kept = {name: list(group) for name, group in groups.items()}
    for i in sorted((i for group in groups.values() for i in group), key=lambda i: gains[i]):
        if prod(len(group) + 1 for group in kept.values()) <= most:
            break
        next(group for group in kept.values() if i in group).remove(i)
    chosen = product(*([{}, *(singles[i] for i in group)] for group in kept.values()))
    lost = {n: (len(group) - len(kept[n]), len(group)) for n, group in groups.items() if len(group) > len(kept[n])}
    return [{k: v for change in changes for k, v in change.items()} for changes in chosen], lost
