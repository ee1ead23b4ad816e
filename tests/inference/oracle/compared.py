"""perfgrid's formulas beside what was simulated: ``python -m tests.inference.oracle.compared [engine=vllm ...]``.

Shares of the stored systems whose percentiles the formulas hit within `BOUNDS`, by structure and load. A percentile
counts where the simulation's own interval is below a third of the bound.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import perfgrid as pg
from perfgrid.catalog import load_catalog
from tests.inference.designs import evaluate

from .__main__ import BOUNDS, Record, stored
from .measures import TIMES
from .surface import lockstep_ranks

NAMES = dict(zip(TIMES, ("time_to_first_token", "time_per_output_token", "request_latency"), strict=True))
AMPLE = 1e3  # times the memory of a device
FRACTIONS = ("memory_fraction", "cache_fraction", "static_memory_fraction")
HIGH = 0.8  # load from which more may miss


def asked(record: Record) -> dict[str, Any]:
    """The design and the load of a system as perfgrid's quantities."""
    lengths, load, row = record["lengths"], record["load"], record["policy"]
    design = record["design"] | {
        "batch_limit": float(row["places"]),
        "prefill_chunk_tokens": float(row["tokens"]),
        "chunked_prompts": row["chunked"],
        "prefix_hit_rate": lengths["cached"],
        "prompt_variation": lengths["prompt_variation"],
        "output_variation": lengths["output_variation"],
    }
    design |= dict.fromkeys(FRACTIONS, AMPLE)  # for all places, which were drawn by another rule of memory
    varies = lengths["prompt_variation"] + lengths["output_variation"] > 0
    design |= {"length_distribution": lengths["family"] if varies else "constant"}
    design |= {"equal_lengths": lengths["output_variation"] == 0}
    if load["kind"] == "open":
        return design | {"batch_rule": "rate", "request_rate": load["rate"]}
    if load["kind"] == "clients":
        loop = {"batch": float(load["clients"]), "loop_requests": float(load["requests"])}
        return design | {"batch_rule": "clients"} | loop
    return design | {"batch_rule": "concurrency", "batch": float(load["places"])}


def pooled(record: Record, *outputs: str) -> dict[str, np.ndarray]:
    """Outputs of a system of two pools, each evaluated alone and joined."""
    known, design, ranks = load_catalog(), asked(record), lockstep_ranks(record["design"])
    tables = {n: [design.pop(n)] for n in ("model", "device", "software")} | {"topology": ["rail-optimized"]}
    layout = {n: [int(design.pop(n, 1.0))] for n in ("tp", "pp", "ep", "etp")}
    design.pop("dp", None)
    own = {n: v for n, v in design.items() if known.variables[n].of in ("software", "device")}
    own |= dict.fromkeys(FRACTIONS, 1.0) | {"hbm_capacity": AMPLE * 1e11}  # as studies can state it
    each = int(layout["tp"][0] * layout["pp"][0]) * ranks
    content = {"outputs": list(outputs), "dtype": "float64", "axes": tables, "overrides": own}
    content["workload_parameters"] = {n: v for n, v in design.items() if n not in own}
    content["workload_parameters"] |= {"shared_queue": False}  # `system.Simulation` draws a replica
    content |= {
        pool: {"axes": {"parallelism": layout | {"devices": [each * count]}}}
        for pool, count in record["replicas"].items()
    }
    found = pg.evaluate(pg.join_pools(content))
    return {name: found[name].values for name in outputs}


def errors(record: Record) -> np.ndarray:
    """Prediction over simulation minus 1 by time and percentile; NaN where the simulation is not narrow enough."""
    outputs = [f"{name}_{p}" for name in NAMES.values() for p in BOUNDS]
    found = pooled(record, *outputs) if "replicas" in record else evaluate(*outputs, **asked(record))
    rows = []
    for time, name in NAMES.items():
        for p, bound in BOUNDS.items():
            value, half = record["measures"][time][p]
            sharp = half <= bound / 3 * abs(value)
            rows.append(float(np.ravel(found[f"{name}_{p}"])[0]) / value - 1 if sharp and value else np.nan)
    return np.array(rows).reshape(len(NAMES), len(BOUNDS))


def within(all_errors: np.ndarray) -> np.ndarray:
    """Shares of the systems within the bounds, by time and percentile."""
    inside = np.where(np.isnan(all_errors), np.nan, np.abs(all_errors) <= np.array(list(BOUNDS.values())))
    return mean(inside)


def mean(values: np.ndarray, of: Callable = np.nanmean) -> np.ndarray:
    """By time and percentile, over the systems that have one; NaN where none has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return of(values, axis=0)


def label(record: Record) -> str:
    """The group of a system: structure, kind of load, and whether that is high."""
    load = record["load"]
    high = load["kind"] == "open" and load["of_capacity"] >= HIGH
    return f"{record['structure']:9} {load['kind']:8}{' high' if high else ''}"


def main(*chosen: str) -> None:
    """Print the shares, and median errors of p50, of each group of systems."""
    wanted = dict(one.split("=") for one in chosen)
    groups: dict[str, list[np.ndarray]] = {}
    for record in stored():
        if all(str(record[key]) == value for key, value in wanted.items()):
            try:
                groups.setdefault(label(record), []).append(errors(record))
            except Exception as error:  # a system that the formulas refuse is a row of its own
                print(record["seed"], type(error).__name__, str(error)[:100])
    print(f"{'':24} systems   first token        time per token     latency            median error of p50")
    for load in ("", " high"):
        own = [e for name, errors in groups.items() if name.endswith(f"open    {load}") for e in errors]
        groups |= {f"all       open    {load}": own} if own else {}
    for name in sorted(groups):
        one = np.array(groups[name]).reshape(-1, len(NAMES), len(BOUNDS))
        shares = "   ".join("  ".join(f"{v:4.2f}" for v in row) for row in within(one))
        middle = "  ".join(f"{v:+.2f}" for v in mean(one[:, :, 0], np.nanmedian))
        print(f"{name:24} {len(one):7d}   {shares}   {middle}")


if __name__ == "__main__":
    main(*sys.argv[1:])
