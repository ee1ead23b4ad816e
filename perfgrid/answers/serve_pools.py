"""``perfgrid serve --prefill ... --decode ...``: the best pair of pools, each with a layout and devices of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod
from pathlib import Path
from typing import Any

import xarray as xr

from perfgrid.analysis.best import best
from perfgrid.analysis.joined_pools import joined
from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.results.evaluate import evaluate
from perfgrid.study.file import POOLS, Best
from perfgrid.study.study import Study

from .amounts import taken_of_model
from .entries import separated
from .headroom import KEPT_FREE, headroom_of
from .question import Question, format_of, question, stated
from .serve import ALIKE, COST, PER_DEVICE, SPARE, STATISTICS, check_statistic, lengths_of, load_of, variations
from .stacks import check_serves, engine_named

DEGREES = ("tp", "pp", "cp", "ep", "etp")
COUNTED = (*DEGREES, "dp", "workers", "batch")
SEARCHED = "auto"
LIMITED = ("time_to_first_token", "time_per_output_token")
OUTPUTS = (
    *(PER_DEVICE, "time_to_first_token", "time_per_output_token", COST, "prefill_pool_load", "decode_pool_load"),
    *("devices", "output_tokens_per_second", "served_rate", "running_batch", "request_latency", "cache_transfer_time"),
    *(f"{name}_{percentile}" for name in LIMITED for percentile in STATISTICS),
)
FEW, STEP = 16, 8  # devices up to which pools of every size are tried; above, those of whole nodes
SEVERAL = 64  # sizes that are tried of a pool one after the other; beyond, each twice the one before


@dataclass(frozen=True)
class Pair:
    """The best pair of pools: the study of all pairs and its result, how it was chosen, and the best one."""

    study: Study
    result: xr.Dataset
    choice: Best
    winner: xr.Dataset
    about: Mapping[str, Any]  # title, question, assumptions and units, as plain values


def serve_pools(
    model: str | Path,
    on: str,
    devices: int | str,
    prefill: str = SEARCHED,
    decode: str = SEARCHED,
    prompt: int | str | None = None,
    output: int | str | None = None,
    ttft: float | str | None = None,
    tpot: float | str | None = None,
    rate: float | str | None = None,
    clients: int | str | None = None,
    precision: str | None = None,
    topology: str | None = None,
    engine: str | None = None,
    minimize: str | None = None,
    maximize: str | None = None,
    catalog: Catalog | str | Path | None = None,
    largest_load: float | str | None = None,
    software: str | None = None,
    headroom: float | str | None = None,
    statistic: str = "mean",
    variation: float | str | Sequence[float | str] | None = None,
) -> Pair:
    """The best pair of pools of together at most so many devices, for a rate of requests or a number of clients.

    ``prefill``, ``decode``: such as ``tp=4,ep=8,workers=2,batch=16,device=b200``; what they leave open is searched, all
    of it by ``auto``. Other arguments and errors as of `serve`.
    """
    if (rate is None) == (clients is None):
        raise PerfgridError("two pools need either the rate of requests or the number of clients")
    asked_lengths = stated(prompt, "prompt_tokens", "prompt"), stated(output, "output_tokens", "output")
    (prompt, output), lengths = lengths_of(*asked_lengths)
    load, free = load_of(largest_load, clients), headroom_of(headroom)
    rate, clients = stated(rate, "request_rate", "rate"), stated(clients, "batch", "clients", whole=True)
    precision = None if precision is None else format_of(precision)[0]
    devices = stated(devices, "devices", "devices")
    own_pools = {pool: stated_pool(text, pool) for pool, text in zip(POOLS, (prefill, decode), strict=True)}
    named = [on, *(str(own["device"]) for own in own_pools.values() if "device" in own)]
    asked = question(
        model,
        list(dict.fromkeys(named)),
        devices,
        topology,
        engine_named(engine, software),
        catalog,
        workload="inference",
    )
    check_serves(asked)
    decisive, least = asked.objective(minimize, maximize, PER_DEVICE if rate is None else COST, rate is not None)
    limits = {"time_to_first_token_limit": ttft, "time_per_output_token_limit": tpot}
    check_statistic(statistic, ttft, tpot)
    varied = variations(variation, True)
    asking: dict[str, Any] = {"batch_rule": "clients", "batch": clients}
    if rate is not None:
        asking = {"batch_rule": "rate", "request_rate": rate, "largest_load": load}
    kept = [f"{name}_{statistic}" for name in LIMITED] if statistic != "mean" else []
    content: dict[str, Any] = {
        "title": f"Serving of {asked.heading} in two pools",
        "workload": "pools",
        "outputs": asked.outputs(decisive, *kept, *OUTPUTS),
        "dtype": "float64",
        "where": f"prefill_devices + decode_devices <= {devices}",
        "axes": {"model": [asked.model.name]},
        "workload_parameters": {"prompt_tokens": prompt, "output_tokens": output}
        | asked.stored(precision)
        | ({"headroom": free} if free else {})
        | {name: value for name, value in limits.items() if value is not None}
        | ({"limit_statistic": statistic} if statistic != "mean" else {})
        | varied
        | asking,
    }
    for pool, own in own_pools.items():
        device = asked.spelled[str(own.get("device", on))]
        content[pool] = _table(asked, own, pool, int(devices), device, precision or asked.published)
    study, _ = joined(content, "the question", asked.catalog)
    choice = Best(over=list(POOLS), minimize=decisive if least else None, maximize=None if least else decisive)
    result = evaluate(study)
    winner = best(result, choice.over, choice.minimize, choice.maximize)
    products = ", ".join(dict.fromkeys(asked.products(precision or asked.published)))
    weights, cache = asked.published_formats, content["workload_parameters"]["kv_precision"]
    formats = f"weights in {weights} as published, matrix products in {products}, cache in {cache}"
    taken = asked.assumptions | lengths | ({"precision": formats} if precision is None else {})
    taken |= {"largest-load": SPARE} if rate is not None and largest_load is None else {}
    taken |= {"headroom": KEPT_FREE} if headroom is None else {}
    taken |= {"variation": ALIKE} if variation is None else {}
    taken |= taken_of_model("inference", False, content["workload_parameters"])
    limited = {"largest_load": load} if rate is not None else {}
    limited |= {
        "statistic": statistic,
        "variation": variation,
        "headroom": free,
        "ttft": ttft,
        "tpot": tpot,
        "rate": rate,
        "clients": clients,
        "precision": precision,
    }
    values = {"prompt": prompt, "output": output, "prefill": prefill, "decode": decode} | limited
    units = {name: str(winner[name].attrs.get("units", "1")) for name in study.outputs if name in winner}
    about = {
        "title": study.file.title,
        "objective": decisive,
        "sense": "minimize" if least else "maximize",
        "question": asked.stated(**values),
        "assumptions": [f"{option}: {value}" for option, value in taken.items()],
        "units": {name: unit for name, unit in units.items() if unit != "1"},
    }
    return Pair(study, result, choice, winner, about)


def stated_pool(text: str, pool: str) -> dict[str, int | str]:
    """A pool as ``tp=4,ep=8,workers=2``; empty for ``auto``. PerfgridError for anything else, with what is legal."""
    found: dict[str, int | str] = {}
    for part in separated(text) if text.strip() != SEARCHED else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in (names := (*COUNTED, "device")) or not equals:
            legal = f"{SEARCHED}, or {', '.join(f'{name}=' for name in names)} with commas between"
            raise PerfgridError(f"--{pool} {text!r}: found {part!r}; state {legal}{nearest(key, names)}")
        if key in found:
            raise PerfgridError(f"--{pool} {text!r} states {key} twice")
        found[key] = stated(value, "devices", f"--{pool} {text!r}: {key}") if key in COUNTED else value
    return found


def sizes_of(unit: int) -> list[int]:
    """Sizes of a pool that are tried, in devices: multiples of a unit, and far beyond them its doublings."""
    return [unit * n for n in (*range(1, SEVERAL), *(SEVERAL * 2**i for i in range(32)))]


def _table(
    asked: Question, stated: Mapping[str, int | str], pool: str, most: int, device: str, precision: str
) -> dict[str, Any]:
    """The table of a pool: the stated layout, and all layouts of fewer devices than there are of what is left open.

    Where workers or replicas are stated, the number of devices follows from them and from the degrees, 1 if left open.
    """
    degrees = asked.layouts() | {"pp": [1]} | {name: [int(stated[name])] for name in DEGREES if name in stated}
    replica = prod(int(stated.get(name, 1)) for name in ("tp", "pp", "cp"))
    if {"dp", "workers"} & set(stated):
        degrees |= {name: [1] for name in ("tp", "ep") if name in degrees and name not in stated}
        sizes = [replica * int(stated.get("dp", 1)) * int(stated.get("workers", 1))]
    else:
        unit = lcm(replica, int(stated.get("ep", 1)) * int(stated.get("pp", 1)), 1 if most <= FEW else STEP)
        sizes = [size for size in sizes_of(unit) if size < most] or [unit]
    if min(sizes) >= most:
        raise PerfgridError(f"--{pool}: the pool takes {min(sizes)} devices, and both have {most} together")
    degrees["devices"] = sizes
    row = asked.devices.index(device)
    zipped = {name: [values[row]] for name, values in asked.systems["zip"].items()}
    zipped["precision"] = [asked.products(precision)[row]]
    table: dict[str, Any] = {
        "axes": {"system": {"labels": [asked.devices[row]], "zip": zipped}, "parallelism": degrees}
    }
    return table | ({"overrides": {"batch_limit": stated["batch"]}} if "batch" in stated else {})
