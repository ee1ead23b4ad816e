"""Samples that all workloads of an optimisation have in common: one draw of an estimate holds for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.space import Axis
from perfgrid.study.entries import OWN_PREFIX, STATED
from perfgrid.study.samples import SAMPLE, entries_of, ranges, sample_axis
from perfgrid.study.study import Study


def in_common(name: str, studies: Mapping[str, Study], level: float) -> dict[str, Study]:
    """The studies with samples of which row n is the same draw in each; ``level`` is the quantile over them.

    PerfgridError for a level outside (0, 1), and where a workload has no axis of samples or another one.
    """
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise PerfgridError(f"{name}: the quantile must lie between 0 and 1, found {level!r}")
    if lacking := [one.name for one in studies.values() if SAMPLE not in one.file.axes]:
        raise PerfgridError(f"{lacking[0]}: a quantile is taken over samples; state [axes.sample]")
    specs = [dict(one.file.axes[SAMPLE]) for one in studies.values()]
    if any(spec != specs[0] for spec in specs):
        raise PerfgridError(f"{name}: [axes.sample] differs between workloads, whose samples must be the same")
    if specs[0].get("method") == "one_at_a_time":
        raise PerfgridError(f"{name}: samples one at a time have no quantiles; draw them, by method sobol say")
    found: dict[str, Any] = {}
    for one in studies.values():
        for estimate, (table, low, high) in _ranges(one).items():
            _, least, most = found.get(estimate, (table, low, high))
            found[estimate] = table, max(low, least), min(high, most)
    spec = {key: value for key, value in specs[0].items() if key != "of"}
    known = next(iter(studies.values())).catalog.variables
    order = [n for v in known for n in (v, OWN_PREFIX + v, STATED + v) if n in found]  # that of a single study
    drawn = sample_axis(spec, {n: found[n] for n in order}, f"{name}, axes.{SAMPLE}")
    return {key: _with(one, drawn) for key, one in studies.items()}


def as_stated(study: Study) -> Study:
    """The study without samples: every estimate has its stated value."""
    axes = tuple(a for a in study.space.axes if a.name != SAMPLE)
    return replace(study, space=replace(study.space, axes=axes))


def _samples(study: Study) -> Axis:
    return next(a for a in study.space.axes if a.name == SAMPLE)


def _ranges(study: Study) -> dict[str, Any]:
    """What a study samples, with the ends of its range as factors."""
    entries = entries_of(study.space.axes, study.defaults, study.catalog)
    return ranges(study.catalog, entries, set(_samples(study).scales))


def _with(study: Study, drawn: Axis) -> Study:
    """The study with the drawn factors of the estimates that it samples."""
    own = _samples(study)
    axis = replace(own, scales={name: drawn.scales[name] for name in own.scales})
    axes = tuple(axis if a.name == SAMPLE else a for a in study.space.axes)
    return replace(study, space=replace(study.space, axes=axes))
