"""An answer: the best designs of a question as a Dataset, with what bounds them, how far they hold and what is near."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.best_of_study import at_points
from perfgrid.analysis.limiting import shares
from perfgrid.analysis.prediction_intervals import Interval, intervals, tie_margin
from perfgrid.engine.grid.dataset import study_axes
from perfgrid.study.file import CLUSTER_SIZE
from perfgrid.study.study import Study

from .search import Group, Searched

CANDIDATES = 24  # best designs of a group that are looked through for other layouts as good
ALTERNATIVES = 2  # that an answer names
PARTS = 3  # of a step that an answer names
LAYOUT = "parallelism"
CHUNKS = ".v"  # layouts that differ in chunks alone are one
GROUPS = ("system", CLUSTER_SIZE)
INTERVALS = ("training",)  # workloads whose objective has a prediction interval


def answered(study: Study, objective: str, assumptions: Mapping[str, str], least: bool = True) -> xr.Dataset:
    """The answer to a question whose designs a study holds: its best design for every system and cluster size."""
    searched = Searched.of(study, objective, least)
    groups = list(searched.groups(CANDIDATES))
    shape = (len(dict.fromkeys(g.system for g in groups)), len(dict.fromkeys(g.devices for g in groups)))
    rows = [_distinct(study, group) for group in groups]
    points = [index for some in rows for index in some]
    found = xr.Dataset(
        {"found": (GROUPS, np.array([bool(some) for some in rows]).reshape(shape))},
        {"system": list(dict.fromkeys(g.system for g in groups)), CLUSTER_SIZE: list(dict.fromkeys(g.devices for g in groups))},
        {"title": study.file.title, "objective": objective, "assumptions": [f"{k}: {v}" for k, v in assumptions.items()]},
    )  # fmt: skip
    if points:
        found = found.merge(_values(study, groups, rows, shape), combine_attrs="override")
        found = found.merge(_interval(study, objective, rows, shape), combine_attrs="override")
    return found.merge(_excluded(groups, shape), combine_attrs="override").assign_attrs(points=study.space.points)


def _distinct(study: Study, group: Group) -> list[tuple[int, ...]]:
    """The best design of a group, and the best ones of other layouts."""
    place = study_axes(study.space).index(LAYOUT)
    labels = study.space.axes[place].labels
    first: dict[str, tuple[int, ...]] = {}
    for index in group.best:
        first.setdefault(str(labels[index[place]]).partition(CHUNKS)[0], index)
    return list(first.values())[: 1 + ALTERNATIVES]


def _values(
    study: Study, groups: Sequence[Group], rows: Sequence[Sequence[tuple[int, ...]]], shape: tuple[int, int]
) -> xr.Dataset:
    """Outputs and labels of the best designs, and what they wait for."""
    points = [some[0] for some in rows if some]
    held = np.flatnonzero([bool(some) for some in rows])
    named = at_points(study, study.plan(), (), list(np.transpose(points)))
    variables: dict[str, Any] = {}
    for name in study.outputs:
        values = np.full(len(rows), np.nan)
        values[held] = np.broadcast_to(named[name].values, len(points))
        variables[name] = (GROUPS, values.reshape(shape), named[name].attrs)
    for place, axis in enumerate(study.space.axes):
        if axis.name in GROUPS or len(axis) == 1:
            continue
        labels = np.full(len(rows), "", dtype=object)
        labels[held] = [str(axis.labels[index[place]]) for index in points]
        variables[axis.name] = (GROUPS, labels.reshape(shape).astype(str), {"long_name": f"label of {axis.name}"})
    words, parts = np.full((len(rows), PARTS), "", dtype=object), np.full((len(rows), PARTS), np.nan)
    for row, found in zip(held, shares(study, points), strict=True):
        for i, (word, share) in enumerate(found[:PARTS]):
            words[row, i], parts[row, i] = word, share
    variables["part"] = (
        (*GROUPS, "rank"),
        words.reshape(*shape, PARTS).astype(str),
        {"long_name": "what takes the time"},
    )
    about = {"units": "1", "long_name": "share of the time"}
    variables["part_share"] = ((*GROUPS, "rank"), parts.reshape(*shape, PARTS), about)
    return xr.Dataset(variables)


def _interval(
    study: Study, objective: str, rows: Sequence[Sequence[tuple[int, ...]]], shape: tuple[int, int]
) -> xr.Dataset:
    """The prediction interval of the objective, and the other layouts with how much worse they are."""
    every = [index for some in rows for index in some]
    known = iter(intervals(study, every, objective))
    ends = np.full((len(rows), 2), np.nan)
    others = np.full((len(rows), ALTERNATIVES), "", dtype=object)
    ratios, tied = np.full(others.shape, np.nan), np.zeros(others.shape, bool)
    place = study_axes(study.space).index(LAYOUT)
    for row, some in enumerate(rows):
        own: list[Interval] = [next(known) for _ in some]
        if own:
            ends[row] = own[0].low, own[0].high
        for i, (index, other) in enumerate(zip(some[1:], own[1:], strict=True)):
            others[row, i] = str(study.space.axes[place].labels[index[place]])
            ratios[row, i] = other.value / own[0].value
            tied[row, i] = max(ratios[row, i], 1 / ratios[row, i]) <= 1 + tie_margin(own[0], other)
    dims = (*GROUPS, "alternative")
    return xr.Dataset(
        {
            f"{objective}_interval": ((*GROUPS, "bound"), ends.reshape(*shape, 2), {"long_name": "90 of 100 measurements"}),
            "alternative_layout": (dims, others.reshape(*shape, -1).astype(str)),
            "alternative_ratio": (dims, ratios.reshape(*shape, -1), {"units": "1"}),
            "alternative_tied": (dims, tied.reshape(*shape, -1), {"long_name": "within the model's error of the best"}),
        },
        {"bound": ["low", "high"]},
    )  # fmt: skip


def _excluded(groups: Sequence[Group], shape: tuple[int, int]) -> xr.Dataset:
    """How many designs each constraint excludes as their root cause, and the nearest that it excludes."""
    names = list(dict.fromkeys(name for group in groups for name in group.excluded))
    counts = np.array([[group.excluded.get(name, 0) for name in names] for group in groups], np.int64)
    designs = np.array([group.designs for group in groups], np.int64)
    found = {
        "designs": (GROUPS, designs.reshape(shape), {"long_name": "designs searched"}),
        "excluded": ((*GROUPS, "constraint"), counts.reshape(*shape, len(names)), {"long_name": "designs excluded"}),
    }
    missed = dict.fromkeys(m.constraint for g in groups for m in g.misses)
    rows = {(g.system, g.devices, m.constraint): m for g in groups for m in g.misses}
    kinds: dict[str, Any] = {
        "layout": "",
        "value": np.nan,
        "limit": np.nan,
        "objective": np.nan,
        "remedy": "",
        "remedied": np.nan,
    }
    for kind, empty in kinds.items():
        values = np.full((len(groups), len(missed)), empty, dtype=object if empty == "" else float)
        for i, group in enumerate(groups):
            for k, name in enumerate(missed):
                miss = rows.get((group.system, group.devices, name))
                if miss is not None:
                    values[i, k] = getattr(miss, kind)
        values = values.reshape(*shape, len(missed))
        found[f"near_miss_{kind}"] = ((*GROUPS, "limit"), values.astype(str) if empty == "" else values)
    return xr.Dataset(found, {"constraint": names, "limit": list(missed)})
