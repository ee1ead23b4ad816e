"""What would make a job faster: single changes of its settings by predicted gain, and the best combination found.

Training is judged by the time of a step, serving by the output tokens per second, or by the largest rate of requests
where requests arrive at a rate; see `perfgrid.jobs.changes` for the changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.prediction_intervals import Interval, intervals, tie_margin
from perfgrid.catalog import Catalog
from perfgrid.engine.grid.dataset import CONCERNING, feasible
from perfgrid.results.evaluate import evaluate

from .changes import combinations, single_changes
from .design import study_content
from .job import Job
from .suggest_pools import suggest_for_pools
from .suggestions import (
    AXIS,
    BESIDE,
    FASTER,
    MEMORY,
    MOST,
    Change,
    Suggestions,
    aim_of,
    base_of,
    changed_study,
    distinct,
    expressed,
    fastest,
    together,
    usual_of,
)


def suggest(
    job: Job, device: str, catalog: Catalog, topology: str | None = None, software: str | None = None
) -> Suggestions:
    """Changes of a job that are predicted to make it faster, the most helpful first.

    PerfgridError for what `study_content` refuses.
    """
    content = study_content(job, device, topology, software)
    if job.pools:
        return suggest_for_pools(job, content, catalog)
    stack = catalog.entry("software", content["axes"]["software"][0])
    base = base_of(job, stack)
    singles = [{}, *single_changes(job, base, usual_of(stack), stack)]
    asked = _Asked(job, content, catalog, base, aim_of(job), BESIDE[job.format.workload])
    first = asked.evaluated(singles)
    why_not = tuple(first.reasons(0))
    start = expressed(job, {})
    better = [
        i
        for i in np.argsort(first.time, kind="stable")
        if i and first.legal[i] and (first.time[i] < FASTER * first.time[0] or not first.legal[0])
    ]
    shown_as = [expressed(job, change, start) for change in singles]
    shown = [(i, kept) for i in better if (kept := shown_as[i]) is not None]
    mixed, left_out = combinations(singles, first.gains([kept is not None for kept in shown_as]), MOST)
    second = asked.evaluated(mixed)
    order = fastest(np.where(second.legal, second.time, np.inf), np.array([len(change) for change in mixed]))
    best = next(((i, kept) for i in order if (kept := expressed(job, mixed[i], start)) is not None), None)
    points = [{}, *(singles[i] for i, _ in shown), *([mixed[best[0]]] if best else [])]
    known = asked.intervals(points)
    changes = []
    of = [(first, i, kept) for i, kept in shown] + ([(second, *best)] if best else [])
    for (grid, i, kept), own, change in zip(of, known[1:], points[1:], strict=True):
        ratio, margin = float(grid.time[i] / first.time[0]), 1 + tie_margin(known[0], own)
        ends = (ratio / margin, ratio * margin)
        value = float(grid.value[i])
        tied = bool(first.legal[0]) and ratio > 1 / margin
        changes.append(Change(change, kept, value, float(grid.memory[i]), ratio, *ends, tied, grid.at(i)))
    combination = together(changes.pop() if best else None, changes, singles, bool(first.legal[0]))
    refused: dict[str, int] = {}
    for i in range(1, len(singles)):
        for reason in first.reasons(i)[:1]:
            refused[reason] = refused.get(reason, 0) + 1
    tried = len(singles) + len(mixed) - 1
    at = (known[0].low, known[0].high)
    held = float(first.memory[0])
    value = float(first.value[0])
    rows = distinct(changes)
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
        study = changed_study(
            self.job, self.content, self.catalog, self.base, changes, (self.aim, MEMORY, *self.others)
        )
        found = evaluate(study).squeeze(drop=True)
        length = found.sizes.get(AXIS, 1)
        held = (found[self.aim], found[MEMORY], feasible(found, of=[self.aim]))
        value, memory, legal = (np.broadcast_to(v.values, length) for v in held)
        with np.errstate(divide="ignore", invalid="ignore"):
            time = value if self.aim == "step_time" else 1 / value
        return _Grid(found, self.aim, self.others, value, time, memory, legal)

    def intervals(self, changes: Sequence[Mapping[str, Any]]) -> list[Interval]:
        """The intervals of what the job is judged by."""
        study = changed_study(self.job, self.content, self.catalog, self.base, changes, (self.aim,))
        axes = [axis.name for axis in study.space.axes]
        rows = [tuple(i if name == AXIS else 0 for name in axes) for i in range(len(changes))]
        return intervals(study, rows, self.aim)
