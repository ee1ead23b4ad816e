"""What would make a job faster: single changes of its settings by predicted gain, and the best combination of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.prediction_intervals import intervals, tie_margin
from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.dataset import CONCERNING, feasible
from perfgrid.results.evaluate import evaluate
from perfgrid.study.study import build_study

from .design import LAYOUT, study_content, written
from .formats import glossary
from .job import Job
from .models import of_model
from .write import OVERLAPS, Launch

STEP, MEMORY = "step_time", "memory_per_device"
AXIS = "change"
DEGREES = ("tp", "cp", "pp", "dp")
CHOICES = {
    "recompute": ("none", "selective", "full"),
    "zero": (0, 1, 2, 3),
    "sequence_parallel": (True, False),
    "schedule": ("1f1b", "gpipe", "zb_v", "dualpipe_v"),
    "rank_order": ("tp-cp-dp-pp", "tp-cp-pp-dp"),
    "cp_method": ("ring", "all_gather", "ulysses"),
    "offload": ("none",),
}
KEPT = ("precision", "scaling")  # combinations leave numerics as they are
MOST = 6000  # combinations that are tried
TRIED = 48  # of them, the fastest: whether the framework can express them


@dataclass(frozen=True)
class Change:
    """A change of a job: quantities, settings in the job's keys (key, before, after), and what it is predicted to do.

    ``ratio``: step time over that of the job, between ``low`` and ``high`` in 90 of 100 cases; ``tied``: within the
    model's error of the job.
    """

    changes: Mapping[str, Any]
    settings: tuple[tuple[str, str, str], ...]
    step_time: float
    memory: float
    ratio: float
    low: float
    high: float
    tied: bool


@dataclass(frozen=True)
class Suggestions:
    """The predicted step of a job with its interval and memory, changes that make it shorter, and the best combination.

    ``why_not``: why the job itself would not run, if it would not; ``tried``: designs; ``infeasible``: reason -> single
    changes.
    """

    step_time: float
    interval: tuple[float, float]
    memory: float
    why_not: tuple[str, ...]
    singles: tuple[Change, ...]
    combination: Change | None
    tried: int
    infeasible: Mapping[str, int]


def suggest(
    job: Job, device: str, catalog: Catalog, topology: str | None = None, software: str | None = None
) -> Suggestions:
    """Changes of a training job that are predicted to make its step shorter, the most helpful first.

    PerfgridError for a job of serving, and for what `study_content` refuses.
    """
    if job.format.workload != "training":
        raise PerfgridError("suggestions are for training; of a serving job write the study and use optimize or best")
    content = study_content(job, device, topology, software)
    stack = catalog.entry("software", content["axes"]["software"][0])
    usual = {name: stack.values[name] for name in OVERLAPS}
    base = usual | {"ep": 1, "etp": 1} | job.values
    singles = [{}, *_singles(job, base, usual)]
    found = _evaluated(job, content, catalog, base, singles)
    time, memory, legal = _columns(found)
    why_not = tuple(_reasons(found, 0))
    start = _launch(job, {})
    better = [i for i in np.argsort(time, kind="stable") if i and legal[i] and time[i] < time[0]]
    shown = [(i, kept) for i in better if (kept := _launch(job, singles[i], start)) is not None]
    mixed = _combinations(singles)
    grid = _evaluated(job, content, catalog, base, mixed)
    times, memories, possible = _columns(grid)
    order = [i for i in np.argsort(np.where(possible, times, np.inf), kind="stable")[:TRIED] if possible[i]]
    best = next(((i, kept) for i in order if (kept := _launch(job, mixed[i], start)) is not None), None)
    points = [{}, *(singles[i] for i, _ in shown), *([mixed[best[0]]] if best else [])]
    study = _study(job, content, catalog, base, points)
    axes = [axis.name for axis in study.space.axes]
    rows = [tuple(i if name == AXIS else 0 for name in axes) for i in range(len(points))]
    known = intervals(study, rows, STEP)
    changes = []
    of = [(time[i], memory[i], kept) for i, kept in shown]
    of += [(times[best[0]], memories[best[0]], best[1])] if best else []
    for (seconds, held, kept), own, change in zip(of, known[1:], points[1:], strict=True):
        ratio, margin = float(seconds / time[0]), 1 + tie_margin(known[0], own)
        tied = ratio > 1 / margin
        changes.append(Change(change, kept, float(seconds), float(held), ratio, ratio / margin, ratio * margin, tied))
    combination = changes.pop() if best else None
    if combination is not None and ((not changes and combination.ratio >= 1) or len(combination.changes) == 0):
        combination = None
    refused: dict[str, int] = {}
    for i in range(1, len(singles)):
        for reason in _reasons(found, i)[:1]:
            refused[reason] = refused.get(reason, 0) + 1
    at = (known[0].low, known[0].high)
    return Suggestions(
        float(time[0]),
        at,
        float(memory[0]),
        why_not,
        tuple(changes),
        combination,
        len(singles) + len(mixed) - 1,
        refused,
    )


def _singles(job: Job, base: Mapping[str, Any], usual: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Changes of one setting: a factor of two between two degrees, or another value."""
    layers = of_model(job.model)["layers"] if job.model else 0
    for more, less in permutations(DEGREES, 2):
        if base[less] % 2 == 0:
            change = {more: base[more] * 2, less: base[less] // 2}
            if change.get("pp", 2) == 1:
                change["chunks"] = 1
            yield change
    for name in ("microbatch", "chunks", *(("ep", "etp") if job.model and job.model.values["experts"] else ())):
        values = {base[name] * 2, base[name] // 2 if base[name] % 2 == 0 else base[name]}
        if name == "chunks":
            values |= {c for c in range(1, 13) if base["pp"] > 1 and layers % (base["pp"] * c) == 0}
        yield from ({name: value} for value in sorted(values) if value not in (0, base[name]))
    if job.model and job.model.values["experts"] and base["etp"] > 1:
        yield {"ep": base["ep"] * base["etp"], "etp": 1}
    for name, options in CHOICES.items():
        own = base.get(name, glossary()[name].default_value)
        moot = {"cp_method": "cp", "schedule": "pp", "sequence_parallel": "tp"}
        if name not in moot or base[moot[name]] > 1:
            yield from ({name: option} for option in options if option != own)
    if base.get("precision") in ("bf16", "fp16"):
        yield {"precision": "fp8", "scaling": "delayed"}
    off = {name: value for name, value in usual.items() if base[name] == 0 and value > 0}
    if off:
        yield off


def _combinations(singles: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Single changes of different quantities together, as many as are tried."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for change in singles[1:]:
        name = "layout" if set(change) & set(DEGREES) else next(iter(change))
        if name not in (*KEPT, "rank_order", "cp_method"):
            groups.setdefault(name, [{}]).append(change)
    while np.prod([len(group) for group in groups.values()] or [1]) > MOST:
        groups.pop(list(groups)[-1])
    return [{k: v for change in chosen for k, v in change.items()} for chosen in product(*groups.values())]


def _study(job: Job, content: Mapping[str, Any], catalog: Catalog, base: Mapping[str, Any], changes: Sequence[Any]):
    """The study of the job with each of some changes, on one axis."""
    if job.own and job.model is not None:
        models = {**catalog.tables["model"], job.model.name: job.model}
        catalog = replace(catalog, tables={**catalog.tables, "model": models})
    varied = [*LAYOUT, *dict.fromkeys(name for change in changes for name in change if name not in LAYOUT)]
    default = {n: glossary()[n].word(glossary()[n].default_value) for n in varied if glossary()[n].optional}
    rows = [default | dict(base) | change for change in changes]
    zipped = {name: [row[name] for row in rows] for name in varied}
    axes = {name: value for name, value in content["axes"].items() if name != "parallelism"}
    axes[AXIS] = {"labels": [f"c{i}" for i in range(len(rows))], "zip": zipped}
    own = {n: v for n, v in content["workload_parameters"].items() if n not in varied}
    over = {n: v for n, v in content.get("overrides", {}).items() if n not in varied}
    asked = {"title": "changes of a job", "dtype": "float64", "outputs": [STEP, MEMORY], "axes": axes}
    return build_study(asked | {"workload_parameters": own, "overrides": over}, "the job", catalog)


def _evaluated(
    job: Job, content: Mapping[str, Any], catalog: Catalog, base: Mapping[str, Any], changes: Any
) -> xr.Dataset:
    return evaluate(_study(job, content, catalog, base, changes)).squeeze(drop=True)


def _columns(found: xr.Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step times, memory and feasibility along the changes."""
    legal = feasible(found, of=[STEP])
    length = found.sizes.get(AXIS, 1)
    return tuple(np.broadcast_to(v.values, length) for v in (found[STEP], found[MEMORY], legal))  # pyright: ignore


def _reasons(found: xr.Dataset, i: int) -> list[str]:
    """Why a change is not feasible."""
    names = str(found[STEP].attrs.get(CONCERNING, "")).split()
    broken = (n for n in names if not (found[n].isel({AXIS: i}) if AXIS in found[n].dims else found[n]).item())
    return [str(found[name].attrs["reason"]) for name in broken]


def _launch(job: Job, change: Mapping[str, Any], start: Any = None) -> Any:
    """The launch of the job itself; or how a changed one differs from ``start``, None where it is not expressed."""
    if job.model is None:
        return None
    values = {n: v for n, v in {**job.values, **change}.items() if n not in OVERLAPS or not (n in change and v)}
    try:
        launch = written(values, job.model, job.format, job.version)
    except PerfgridError:
        return None
    if not isinstance(start, Launch):
        return launch
    lost = {note.partition(" = ")[0] for note in launch.notes} - {note.partition(" = ")[0] for note in start.notes}
    if lost & {*change, *DEGREES}:
        return None
    keys = dict.fromkeys((*start.settings, *launch.settings))
    differing = (k for k in keys if start.settings.get(k) != launch.settings.get(k))
    texts = ((job.format.shown(k), _text(start.settings.get(k)), _text(launch.settings.get(k))) for k in differing)
    return tuple(texts) or None


def _text(value: Any) -> str:
    return (
        "absent"
        if value is None
        else "on"
        if value is True
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
