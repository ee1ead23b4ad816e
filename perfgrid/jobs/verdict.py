"""The verdict on a job: whether it fits or starts, and what it reaches; as the study of the job says.

Of training and of servers under a load the study is that of `study_content`, so that the numbers are those of
`perfgrid.best` of the saved study. What a server holds needs no load: weights, room for the cache, the longest context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.joined_pools import join_pools
from perfgrid.analysis.prediction_intervals import intervals
from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.entries import EXCEEDS
from perfgrid.engine.grid.dataset import CONCERNING
from perfgrid.results.evaluate import evaluate
from perfgrid.study.study import Study, build_study

from .deployments import POOLS
from .design import study_content
from .job import UNKNOWN, Job
from .kinds import UNMODELLED
from .suggest_pools import interval_of_pools
from .suggestions import AXIS, aim_of, with_own_model

LOAD = ("batch", "batch_rule", "request_rate", "requests", "loop_requests")
HELD = ("weight_memory", "engine_memory", "counted_memory", "cache_room", "cache_capacity", "startup_margin")
HELD = (*HELD, "fitting_context", "cache_capacity_tokens", "largest_batch", "hbm_capacity", "total_parameters")
HELD = (*HELD, "static_share")
SERVED = "output_tokens_per_second"  # which every constraint of a layout concerns
NO_BATCH = "batch_can_be_chosen"  # for lack of memory
RULES = (  # of an engine that limits this: the share that it takes, in words
    ("memory_fraction", "{} of the memory may be used in all"),
    ("static_memory_fraction", "weights and cache take {} of the memory that is free before they are loaded"),
    ("cache_fraction", "the cache takes {} of what weights and working space leave"),
)
REACHED = {
    "training": ("step_time", "tokens_per_second"),
    "inference": ("output_tokens_per_second", "time_to_first_token", "time_per_output_token"),
}
USUAL_CONTEXT = 8192  # where neither the model nor the launch states a limit


@dataclass(frozen=True)
class Held:
    """What one device of a server holds, in bytes, and what its cache is good for, in tokens and sequences.

    ``counted``: as the driver counts it; ``working``: all beside weights and cache; ``room``: for the cache, below zero
    where there is none; ``cache_tokens``: of one replica, in requests of the longest context; ``context``: tokens of
    the longest request that fits; ``limit``: of the longest one that it should take, 0 if none is known, ``stated``: by
    the launch; ``sequences``: of so many tokens at once, on all replicas; ``margin``: bytes that are left when it has
    started, beside the longest request where it insists on one, below zero by what it lacks; ``why_not``: what else
    keeps it from starting; ``rule``: how its engine limits memory; ``parameters``: of the model.
    """

    pool: str
    devices: int
    replicas: int
    capacity: float
    counted: float
    weights: float
    working: float
    room: float
    cache: float
    cache_tokens: int
    context: int
    limit: int
    stated: bool
    sequences: int
    starts: bool
    why_not: tuple[str, ...]
    margin: float
    rule: str
    parameters: float


@dataclass(frozen=True)
class Verdict:
    """What a job needs and reaches on a device.

    ``held``: of a server, pool by pool; ``memory``, ``capacity``: bytes of a device; ``memory_interval``: of 90 of 100
    measurements, of training; ``fits`` and ``why_not``: of the
    job, None without a load; ``reached``: quantity -> value, low, high of 90 of 100 measurements; ``lacking``: what is
    to be stated for the rest; ``uncounted``: keys that would change it and are not modelled, or not known; ``notes``:
    of its study; ``parameters``: of the model, as its shape has them.
    """

    device: str
    devices: int
    held: tuple[Held, ...] = ()
    memory: float | None = None
    capacity: float | None = None
    memory_interval: tuple[float, float] | None = None
    fits: bool | None = None
    why_not: tuple[str, ...] = ()
    reached: Mapping[str, tuple[float, float, float]] | None = None
    lacking: str = ""
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    parameters: float | None = None


def verdict_of(
    job: Job, device: str, catalog: Catalog, topology: str | None = None, software: str | None = None
) -> Verdict:
    """The verdict on a job on a device of the catalog. PerfgridError for what its study refuses."""
    found = Verdict(device, int(job.values.get("devices", 0)), uncounted=_uncounted(job))
    serving = job.format.workload == "inference"
    if serving and job.model is not None:
        pools = job.pools or {"": job}
        found = replace(found, held=tuple(held_by(p, one, device, catalog, software) for p, one in pools.items()))
        found = replace(found, notes=tuple(dict.fromkeys(filter(None, map(_beyond_model, pools.values())))))
    try:
        content = study_content(job, device, topology, software)
    except PerfgridError as error:
        return replace(found, lacking=str(error))
    known = with_own_model(job, catalog)
    if not job.pools:
        return _started(_under_load(found, job, study_of(job, content, catalog)))
    whole = _under_load(found, job, join_pools(content, catalog=known))
    if whole.reached is None:
        return whole
    own = {aim_of(job): interval_of_pools(job, content, known)}
    return _started(replace(whole, reached={**whole.reached, **own}))


def _started(found: Verdict) -> Verdict:
    """The verdict under a load, which no server serves that does not start."""
    if found.fits is None or all(held.starts for held in found.held):
        return found
    return replace(found, fits=False, why_not=("the server does not start", *found.why_not), reached=None)


def inputs_of(
    job: Job, device: str, catalog: Catalog, topology: str | None = None, software: str | None = None, context: int = 0
) -> tuple[Study, dict[str, str], str]:
    """A study of a job, the labels of its design, and what its inputs are weighed by.

    With ``context`` of a server without a load: what it holds with requests of so many tokens. PerfgridError for what
    the job lacks.
    """
    if not context:
        return study_of(job, study_content(job, device, topology, software), catalog), {}, aim_of(job)
    values = {n: v for n, v in job.values.items() if n not in (*LOAD, "context_limit")}
    study = held_study(replace(job, values=values), [context], device, catalog, software)
    return study, {AXIS: "n0"}, "cache_capacity"


def study_of(job: Job, content: Mapping[str, Any], catalog: Catalog) -> Study:
    """The study of a job from its content; PerfgridError for what is wrong in it."""
    return build_study(content, "the job", with_own_model(job, catalog))


def _under_load(found: Verdict, job: Job, study: Study) -> Verdict:
    """The verdict with what the study of a job says."""
    training = job.format.workload == "training"
    names = REACHED[job.format.workload]
    names = names if training else (aim_of(job), *names[1:])
    held = ("memory_per_device", "usable_memory" if training else "memory_limit")
    outputs = [*names, *(() if job.pools else (*held, "total_parameters"))]
    grid = evaluate(replace(study, file=study.file.model_copy(update={"outputs": outputs}))).squeeze(drop=True)
    why_not = reasons(grid, names[0])
    reached = {}
    for name in names if not why_not else ():
        if job.pools:  # their times are joined; of the ends only those of the aim are known
            reached[name] = (float(grid[name].values), np.nan, np.nan)
            continue
        one = intervals(study, [(0,) * len(study.space.axes)], name)[0]
        reached[name] = (one.value, one.low, one.high)
    memory, capacity = (float(grid[name].values) for name in held) if not job.pools else _fullest(study)
    own = intervals(study, [(0,) * len(study.space.axes)], held[0])[0] if training else None
    return replace(
        found,
        memory=memory,
        capacity=capacity,
        memory_interval=None if own is None else (own.low, own.high),
        fits=not why_not,
        why_not=tuple(why_not),
        reached=reached or None,
        notes=(*found.notes, *study.notes),
        parameters=None if job.pools else float(grid["total_parameters"].values),
    )


def _fullest(study: Study) -> tuple[float, float]:
    """Memory that a device of the fuller one of two pools needs, and has."""
    columns = {n: float(v[0]) for axis in study.space.axes for n, v in axis.columns.items() if "_memory_" in n}
    of = [(columns[f"{p}_memory_per_device"], columns[f"{p}_memory_capacity"]) for p in POOLS]
    return max(of, key=lambda pair: pair[0] / pair[1])


def reasons(found: xr.Dataset, output: str, beyond_limits: bool = True) -> list[str]:
    """Why the one design of a result is not feasible, for an output; or without ``beyond_limits`` why it never is."""
    names = str(found[output].attrs.get(CONCERNING, "")).split()
    about = {name: found[name].attrs for name in names if not bool(np.all(found[name].values))}
    return [
        str(own["reason"])
        for name, own in about.items()
        if beyond_limits or (own["constraint"] != EXCEEDS and name != NO_BATCH)
    ]


def held_by(pool: str, job: Job, device: str, catalog: Catalog, software: str | None = None) -> Held:
    """What a server holds, without a load: see `Held`."""
    values = {n: v for n, v in job.values.items() if n not in LOAD}
    stated = int(values.pop("context_limit", 0) or 0)
    limit = stated or job.published_context
    fitted = any(meaning == "context_limit is not stated" for *_, meaning in job.understood)
    server = replace(job, values=values, pools={})
    length = limit or USUAL_CONTEXT
    of, illegal = _at_length(server, length, device, catalog, software)
    context = int(of["fitting_context"])
    if fitted and context < limit:
        limit = length = context
        of, illegal = _at_length(server, max(length, 1), device, catalog, software)
    whole = job.format.whole_context and bool(limit) and not fitted
    margin = of["startup_margin"] if whole else min(of["cache_room"], of["cache_capacity"])
    return Held(
        pool=pool,
        devices=int(job.values.get("devices", 1)),
        replicas=int(job.values.get("dp", 1)),
        capacity=of["hbm_capacity"],
        counted=of["counted_memory"],
        weights=of["weight_memory"],
        working=of["engine_memory"] - of["weight_memory"],
        room=of["cache_room"],
        cache=of["cache_capacity"],
        cache_tokens=int(of["cache_capacity_tokens"]),
        context=min(context, limit) if limit else context,
        limit=limit,
        stated=bool(stated),
        sequences=int(of["largest_batch"]),
        starts=margin >= 0 and context > 0 and not illegal,
        why_not=illegal,
        margin=margin,
        rule=_rule(job, catalog, software or job.format.software, of["static_share"]),
        parameters=of["total_parameters"],
    )


def _rule(job: Job, catalog: Catalog, software: str, static_share: float) -> str:
    """How an engine limits its memory, in words, and whether the launch states it."""
    engine = catalog.entry("software", software).values
    if job.values.get("cache_memory_limit"):
        return "the cache is as large as stated"
    for name, words in RULES:
        own = job.values.get(name)
        share = static_share if name == "static_memory_fraction" else float(own or engine[name])  # pyright: ignore
        if share < 1:
            return words.format(f"{share:.4g}") + ("" if own else f", default of {software}")
    return "all of the memory may be used"


def _beyond_model(job: Job) -> str:
    """What to say of a server that should take longer requests than its model is published for; empty for others."""
    asked, known = int(job.values.get("context_limit", 0) or 0), job.published_context
    title = job.model.title if job.model else ""
    return f"{title} is made for {known:,} tokens, a request may have {asked:,}" if 0 < known < asked else ""


def _at_length(
    job: Job, length: int, device: str, catalog: Catalog, software: str | None
) -> tuple[dict[str, float], tuple[str, ...]]:
    """What a device of a server holds with requests of some length, and why it would not serve the shortest ones."""
    study = held_study(job, [length, 2], device, catalog, software)
    grid = evaluate(replace(study, file=study.file.model_copy(update={"outputs": [*HELD, SERVED]})))
    longest, shortest = (grid.isel({AXIS: row}).squeeze(drop=True) for row in (0, 1))
    held = {name: float(np.ravel(longest[name].values)[0]) for name in HELD}
    return held, tuple(reasons(shortest, SERVED, beyond_limits=False))


def held_study(job: Job, lengths: Sequence[int], device: str, catalog: Catalog, software: str | None) -> Study:
    """The study of what a device of a server holds with requests of some lengths, on the axis of changes."""
    stated = {"prompt_tokens": 1, "output_tokens": 1, "batch_rule": "memory"}
    content: dict[str, Any] = study_content(replace(job, values=job.values | stated), device, None, software)
    content |= {"outputs": list(HELD)}
    content.pop("best")
    parameters = dict(content["workload_parameters"])
    del parameters["prompt_tokens"], parameters["output_tokens"]
    rows = {"prompt_tokens": [max(n - 1, 1) for n in lengths], "output_tokens": [1] * len(lengths)}
    axis = {"labels": [f"n{i}" for i in range(len(lengths))], "zip": rows}
    content |= {"workload_parameters": parameters, "axes": content["axes"] | {AXIS: axis}}
    return build_study(content, "the job", with_own_model(job, catalog))


def _uncounted(job: Job) -> tuple[str, ...]:
    """Keys of a job that would change its verdict, and that are not modelled or not known."""
    pools = [row for one in job.pools.values() for row in one.ignored]
    shared = [row for row in job.ignored if not pools or all(row[1:] != other[1:] for other in pools)]
    rows = [row for row in (*pools, *shared) if row[2].startswith((UNMODELLED, UNKNOWN))]
    return tuple(dict.fromkeys(f"{key} {value}".strip() for key, value, _ in rows))
