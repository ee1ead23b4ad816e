"""Suggestions: changes of a job with what they are predicted to do, the study of changed jobs, and their settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfgrid.catalog import Catalog, Entry
from perfgrid.engine.errors import PerfgridError
from perfgrid.study.study import Study, build_study

from .changes import DEGREES
from .deployments import POOLS
from .design import LAYOUT, written
from .formats import glossary
from .job import Job
from .words import text_of
from .write import ENV, OVERLAPS, Launch

MEMORY = "memory_per_device"
AXIS = "change"
BESIDE = {"training": (), "inference": ("time_to_first_token", "time_per_output_token")}  # shown beside
MOST = 6000  # combinations that are tried
TRIED = 48  # of them, the fastest: whether the framework can express them
FASTER = 0.9995  # of the time of the job: what gains less would be shown as +0.0 %
ABSENT = "absent"  # a setting that is not stated
BATCH = ("global_batch", "microbatch")
LOAD = ("batch", "batch_rule", "request_rate")  # of the question, not of the settings of a server


@dataclass(frozen=True)
class Change:
    """A change of a job: quantities, settings in the job's keys (key, before, after), and what it is predicted to do.

    ``value``: of what the job is judged by; ``ratio``: time over that of the job (of one that is not feasible: what its
    formulas give), between ``low`` and ``high`` in 90 of 100 cases; ``tied``: within the model's error of the job;
    ``beside``: further outputs.
    """

    changes: Mapping[str, Any]
    settings: tuple[tuple[str, str, str], ...]
    value: float
    memory: float
    ratio: float
    low: float
    high: float
    tied: bool
    beside: Mapping[str, float]


@dataclass(frozen=True)
class Suggestions:
    """What a job is judged by (``aim``) with its interval, changes that make it faster, the best combination found.

    ``singles``: as `distinct` lists them; ``why_not``: why the job is not feasible, if it is not: its value then means
    nothing, and changes are those that make it feasible; ``tried``: designs; ``left_out``: of combinations, by
    `combinations`; ``infeasible``: reason -> single changes.
    """

    aim: str
    value: float
    interval: tuple[float, float]
    memory: float
    why_not: tuple[str, ...]
    singles: tuple[Change, ...]
    combination: Change | None
    tried: int
    left_out: Mapping[str, tuple[int, int]]
    infeasible: Mapping[str, int]
    beside: Mapping[str, float]


def aim_of(job: Job) -> str:
    """The output that a job is judged by."""
    if job.format.workload == "training":
        return "step_time"
    return "largest_request_rate" if "request_rate" in job.values else "output_tokens_per_second"


def usual_of(stack: Entry) -> dict[str, Any]:
    """What the software of a job overlaps."""
    return {name: stack.values[name] for name in OVERLAPS}


def base_of(job: Job, stack: Entry) -> dict[str, Any]:
    """The quantities of a job, with those of its software that it does not state."""
    return {**usual_of(stack), "ep": 1, "etp": 1, **job.values}


def with_own_model(job: Job, catalog: Catalog) -> Catalog:
    """The catalog, with the model of a job that has one of its own."""
    if not job.own or job.model is None:
        return catalog
    models = {**catalog.tables["model"], job.model.name: job.model}
    return replace(catalog, tables={**catalog.tables, "model": models})


def varied_in(base: Mapping[str, Any], changes: Iterable[Mapping[str, Any]]) -> dict[str, None]:
    """The layout, and what some changes vary beside it."""
    layout = [name for name in LAYOUT if name in base or name in ("ep", "etp")]
    return dict.fromkeys((*layout, *(name for change in changes for name in change)))


def rows_of(
    base: Mapping[str, Any], changes: Sequence[Mapping[str, Any]], varied: Iterable[str], stack: Entry
) -> dict[str, Any]:
    """An axis with a design for each change: what is varied and not stated is what the software does."""
    usual = {n: stack.values.get(n, glossary()[n].default_value) for n in varied if glossary()[n].optional}
    default = {n: glossary()[n].word(value) for n, value in usual.items()}
    rows = [{**default, **base, **change} for change in changes]
    zipped = {name: [row[name] for row in rows] for name in varied}
    return {"labels": [f"c{i}" for i in range(len(rows))], "zip": zipped}


def changed_study(
    job: Job,
    content: Mapping[str, Any],
    catalog: Catalog,
    base: Mapping[str, Any],
    changes: Sequence[Any],
    outputs: Sequence[str],
) -> Study:
    """The study of the job with each of some changes, on one axis."""
    varied = varied_in(base, changes)
    axes = {name: value for name, value in content["axes"].items() if name != "parallelism"}
    stack = catalog.entry("software", content["axes"]["software"][0])
    axes[AXIS] = rows_of(base, changes, varied, stack)
    own = {n: v for n, v in content["workload_parameters"].items() if n not in varied}
    over = {n: v for n, v in content.get("overrides", {}).items() if n not in varied}
    asked = {
        "title": "changes of a job",
        "dtype": "float64",
        "outputs": list(outputs),
        "workload": job.format.workload,
        "axes": axes,
    }
    asked |= {"workload_parameters": own, "overrides": over}
    return build_study(asked, "the job", with_own_model(job, catalog))


def expressed(job: Job, change: Mapping[str, Any], start: Any = None) -> Any:
    """The launch of the job itself; or how a changed one differs from ``start``, None where it is not supported."""
    if job.model is None:
        return None
    if job.format.writes is None and not job.format.engines:
        return _in_quantities(job, change)
    values = {n: v for n, v in {**job.values, **change}.items() if n not in OVERLAPS or not (n in change and v)}
    values = {n: v for n, v in values.items() if n not in LOAD} | dict(job.tiers)
    try:
        launch = written(values, job.model, job.format, job.version)
    except PerfgridError:
        return None
    if not isinstance(start, Launch):
        return launch
    lost = {note.partition(" = ")[0] for note in launch.notes} - {note.partition(" = ")[0] for note in start.notes}
    if lost & {*change, *DEGREES, *BATCH}:
        return None
    keys = dict.fromkeys((*start.settings, *launch.settings))
    differing = (k for k in keys if start.settings.get(k) != launch.settings.get(k))
    if job.format.engines:  # a deployment has keys of its engine
        return in_both((k, _text(start.settings.get(k)), _text(launch.settings.get(k))) for k in differing) or None
    texts = ((k, _before(job, start, k), _text(launch.settings.get(k))) for k in differing)
    shown = ((k.removeprefix(ENV) if k.startswith(ENV) else job.format.shown(k), *ends) for k, *ends in texts)
    return tuple((k, before, after) for k, before, after in shown if before != after) or None


def _in_quantities(job: Job, change: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...] | None:
    """A change of a job whose format is read and not written: quantities, if the format has keys for their values.

    Parallelism inside a model needs another program where the job has none of it.
    """
    form = job.format
    stated = {row.quantity for row in form.keys.values()} | {n for p in form.equations() for n in (p.left, *p.right)}
    words = {(case.quantity, case.value) for case in form.cases}
    held = {**job.values, **change, "software": form.software}
    for name, value in change.items():
        new_degree = name in ("tp", "cp") and job.values.get(name, 1) == 1
        if new_degree or name in form.implied or not (name in stated or (name, value) in words):
            return None
    if any(all(held.get(n) == v for n, v in row.values.items()) for row in form.refused):
        return None
    return tuple((n, _text(job.values.get(n)), _text(v)) for n, v in change.items() if job.values.get(n) != v)


def _before(job: Job, start: Launch, key: str) -> str:
    """What a job has for a key: that of its files; where they have none the default of the format, if it has one."""
    stated = job.stated.get(job.format.shown(key))
    if stated is not None:
        return "on" if start.settings.get(key) is True else stated
    row = job.format.keys.get(key)
    return _text(start.settings.get(key)) if row is not None and row.quantity in job.format.defaults else ABSENT


def fastest(times: np.ndarray, sizes: np.ndarray) -> list[int]:
    """The fastest of some designs in their order; of those that are equally fast that of the fewest changes first."""
    legal = np.flatnonzero(np.isfinite(times))
    own = times.ravel()[legal]
    steps = np.round(own / own.min(initial=np.inf) * 1e4) if len(legal) else own
    return legal[np.lexsort((own, sizes.ravel()[legal], steps))][:TRIED].tolist()


def in_both(settings: Iterable[tuple[str, str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Settings of pools, where both pools have the same change without the name of a pool."""
    told = list(settings)
    for key, before, after in told:
        pool, _, own = key.partition(": ")
        twin = (f"{POOLS[1]}: {own}", before, after)
        if pool == POOLS[0] and twin in told:
            told = [(own, *row[1:]) if row[0] == key else row for row in told if row != twin]
    return tuple(told)


def distinct(changes: Iterable[Change]) -> tuple[Change, ...]:
    """The best of the changes of the same settings in the same sense, one of those of the same effect; ties last."""

    def rank(change: Change) -> Any:
        removed = sum(after == ABSENT for _, _, after in change.settings)
        return change.tied, round(change.ratio, 6), removed, len(change.settings)

    told, seen = [], set[Any]()
    for change in sorted(changes, key=rank):
        settings = frozenset((key, sense(*ends)) for key, *ends in change.settings)
        effect = (frozenset(change.changes), f"{change.ratio:.6g} {change.memory:.6g}")
        if seen.isdisjoint((settings, effect)):
            told.append(change)
            seen |= {settings, effect}
    return tuple(told)


def together(
    combination: Change | None, listed: Iterable[Change], singles: Iterable[Mapping[str, Any]], feasible: bool
) -> Change | None:
    """A combination that is worth a row: faster than a feasible job, no single change, not what a listed one does."""
    if combination is None or (feasible and not combination.ratio < 1):  # NaN is not faster
        return None
    effects = {f"{change.ratio:.6g} {change.memory:.6g}" for change in listed}
    same = f"{combination.ratio:.6g} {combination.memory:.6g}" in effects
    return None if same or not combination.changes or combination.changes in singles else combination


def sense(before: str, after: str) -> str:
    """Whether a setting grows or shrinks; a word is its own sense."""
    try:
        return "up" if float(after) > float("-inf" if before == ABSENT else before) else "down"
    except ValueError:
        return after


def _text(value: Any) -> str:
    return ABSENT if value is None else "on" if value is True else text_of(value)
