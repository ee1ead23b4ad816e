"""What would make a job faster: single changes of its settings by predicted gain, and the best combination found.

Training is judged by the time of a step, serving by the output tokens per second, or by the largest rate of requests
where requests arrive at a rate; see `perfgrid.jobs.changes` for the changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.prediction_intervals import Interval, intervals, tie_margin
from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.dataset import CONCERNING, feasible
from perfgrid.results.evaluate import evaluate
from perfgrid.study.study import Study, build_study

from .changes import DEGREES, combinations, single_changes
from .design import LAYOUT, study_content, written
from .formats import glossary
from .job import Job
from .reader import text_of
from .write import OVERLAPS, Launch

MEMORY = "memory_per_device"
AXIS = "change"
BESIDE = {"training": (), "inference": ("time_to_first_token", "time_per_output_token")}  # shown beside
MOST = 6000  # combinations that are tried
TRIED = 48  # of them, the fastest: whether the framework can express them


@dataclass(frozen=True)
class Change:
    """A change of a job: quantities, settings in the job's keys (key, before, after), and what it is predicted to do.

    ``value``: of what the job is judged by; ``ratio``: time over that of the job, between ``low`` and ``high`` in 90 of
    100 cases; ``tied``: within the model's error of the job; ``beside``: further outputs.
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

    ``singles``: the best of those that change the same keys in the same sense, ties last; ``why_not``: why the job
    itself would not run, if it would not; ``tried``: designs; ``left_out``: of combinations, by `combinations`;
    ``infeasible``: reason -> single changes.
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


def suggest(
    job: Job, device: str, catalog: Catalog, topology: str | None = None, software: str | None = None
) -> Suggestions:
    """Changes of a job that are predicted to make it faster, the most helpful first.

    PerfgridError for a job of two pools of different layouts, and for what `study_content` refuses.
    """
    if job.pools:
        raise PerfgridError(
            "suggestions are for one layout, and this job has two pools: write its study with -o, and compare it with "
            "perfgrid serve MODEL --on DEVICE --prefill auto --decode auto"
        )
    content = study_content(job, device, topology, software)
    stack = catalog.entry("software", content["axes"]["software"][0])
    usual = {name: stack.values[name] for name in OVERLAPS}
    base = usual | {"ep": 1, "etp": 1} | job.values
    singles = [{}, *single_changes(job, base, usual, stack)]
    asked = _Asked(job, content, catalog, base, aim_of(job), BESIDE[job.format.workload])
    first = asked.evaluated(singles)
    why_not = tuple(first.reasons(0))
    start = _launch(job, {})
    better = [
        i for i in np.argsort(first.time, kind="stable") if i and first.legal[i] and first.time[i] < first.time[0]
    ]
    expressed = [_launch(job, change, start) for change in singles]
    shown = [(i, kept) for i in better if (kept := expressed[i]) is not None]
    mixed, left_out = combinations(singles, first.gains([kept is not None for kept in expressed]), MOST)
    second = asked.evaluated(mixed)
    order = np.argsort(np.where(second.legal, second.time, np.inf), kind="stable")[:TRIED]
    order = [i for i in order if second.legal[i]]
    best = next(((i, kept) for i in order if (kept := _launch(job, mixed[i], start)) is not None), None)
    points = [{}, *(singles[i] for i, _ in shown), *([mixed[best[0]]] if best else [])]
    known = asked.intervals(points)
    changes = []
    of = [(first, i, kept) for i, kept in shown] + ([(second, *best)] if best else [])
    for (grid, i, kept), own, change in zip(of, known[1:], points[1:], strict=True):
        ratio, margin = float(grid.time[i] / first.time[0]), 1 + tie_margin(known[0], own)
        ends = (ratio / margin, ratio * margin)
        value = float(grid.value[i])
        changes.append(Change(change, kept, value, float(grid.memory[i]), ratio, *ends, ratio > 1 / margin, grid.at(i)))
    combination = changes.pop() if best else None
    if combination is not None and ((not changes and combination.ratio >= 1) or len(combination.changes) == 0):
        combination = None
    refused: dict[str, int] = {}
    for i in range(1, len(singles)):
        for reason in first.reasons(i)[:1]:
            refused[reason] = refused.get(reason, 0) + 1
    tried = len(singles) + len(mixed) - 1
    at = (known[0].low, known[0].high)
    held = float(first.memory[0])
    value = float(first.value[0])
    best_of: dict[Any, Change] = {}
    for change in sorted(changes, key=lambda change: (change.tied, change.ratio)):
        best_of.setdefault(frozenset((key, sense(*ends)) for key, *ends in change.settings), change)
    rows = tuple(best_of.values())
    return Suggestions(asked.aim, value, at, held, why_not, rows, combination, tried, left_out, refused, first.at(0))


@dataclass(frozen=True)
class _Grid:
    """A job with changes: what it is judged by, that as a time, memory, feasibility, and further outputs."""

    found: xr.Dataset
    aim: str
    others: tuple[str, ...]
    value: np.ndarray
    time: np.ndarray
    memory: np.ndarray
    legal: np.ndarray

    def gains(self, expressed: Sequence[bool]) -> list[float]:
        """What each change saves by itself: the share of time, or of memory where the job needs it to run."""
        saved = 1 - self.time / self.time[0]
        if not self.legal[0]:
            saved = np.fmax(saved, 1 - self.memory / self.memory[0])
        return np.where(expressed, np.nan_to_num(saved, nan=-np.inf), -np.inf).tolist()

    def at(self, i: int) -> dict[str, float]:
        """Further outputs of a change."""
        held = {name: self.found[name] for name in self.others}
        return {name: float(v.isel({AXIS: i}) if AXIS in v.dims else v) for name, v in held.items()}

    def reasons(self, i: int) -> list[str]:
        """Why a change is not feasible."""
        found = self.found
        names = str(found[self.aim].attrs.get(CONCERNING, "")).split()
        broken = (n for n in names if not (found[n].isel({AXIS: i}) if AXIS in found[n].dims else found[n]).item())
        return [str(found[name].attrs["reason"]) for name in broken]


@dataclass(frozen=True)
class _Asked:
    """A job, and what is asked of it and of its changes."""

    job: Job
    content: Mapping[str, Any]
    catalog: Catalog
    base: Mapping[str, Any]
    aim: str
    others: tuple[str, ...]

    def evaluated(self, changes: Sequence[Mapping[str, Any]]) -> _Grid:
        """All changes together."""
        study = _study(self.job, self.content, self.catalog, self.base, changes, (self.aim, MEMORY, *self.others))
        found = evaluate(study).squeeze(drop=True)
        length = found.sizes.get(AXIS, 1)
        held = (found[self.aim], found[MEMORY], feasible(found, of=[self.aim]))
        value, memory, legal = (np.broadcast_to(v.values, length) for v in held)
        with np.errstate(divide="ignore", invalid="ignore"):
            time = value if self.aim == "step_time" else 1 / value
        return _Grid(found, self.aim, self.others, value, time, memory, legal)

    def intervals(self, changes: Sequence[Mapping[str, Any]]) -> list[Interval]:
        """The intervals of what the job is judged by."""
        study = _study(self.job, self.content, self.catalog, self.base, changes, (self.aim,))
        axes = [axis.name for axis in study.space.axes]
        rows = [tuple(i if name == AXIS else 0 for name in axes) for i in range(len(changes))]
        return intervals(study, rows, self.aim)


def _study(
    job: Job,
    content: Mapping[str, Any],
    catalog: Catalog,
    base: Mapping[str, Any],
    changes: Sequence[Any],
    outputs: Sequence[str],
) -> Study:
    """The study of the job with each of some changes, on one axis."""
    if job.own and job.model is not None:
        models = {**catalog.tables["model"], job.model.name: job.model}
        catalog = replace(catalog, tables={**catalog.tables, "model": models})
    layout = [name for name in LAYOUT if name in base or name in ("ep", "etp")]
    varied = [*layout, *dict.fromkeys(name for change in changes for name in change if name not in layout)]
    default = {n: glossary()[n].word(glossary()[n].default_value) for n in varied if glossary()[n].optional}
    rows = [default | dict(base) | change for change in changes]
    zipped = {name: [row[name] for row in rows] for name in varied}
    axes = {name: value for name, value in content["axes"].items() if name != "parallelism"}
    axes[AXIS] = {"labels": [f"c{i}" for i in range(len(rows))], "zip": zipped}
    own = {n: v for n, v in content["workload_parameters"].items() if n not in varied}
    over = {n: v for n, v in content.get("overrides", {}).items() if n not in varied}
    asked = {
        "title": "changes of a job",
        "dtype": "float64",
        "outputs": list(outputs),
        "workload": job.format.workload,
        "axes": axes,
    }
    return build_study(asked | {"workload_parameters": own, "overrides": over}, "the job", catalog)


def _launch(job: Job, change: Mapping[str, Any], start: Any = None) -> Any:
    """The launch of the job itself; or how a changed one differs from ``start``, None where it is not expressed."""
    if job.model is None:
        return None
    values = {n: v for n, v in {**job.values, **change}.items() if n not in OVERLAPS or not (n in change and v)}
    try:
        launch = written(values, job.model, job.format, job.format.writable(job.version))
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


def sense(before: str, after: str) -> str:
    """Whether a setting grows or shrinks; a word is its own sense."""
    try:
        return "up" if float(after) > float("-inf" if before == "absent" else before) else "down"
    except ValueError:
        return after


def _text(value: Any) -> str:
    return "absent" if value is None else "on" if value is True else text_of(value)
