"""An answer: the best designs of a question as a Dataset, with what bounds them, how far they hold and what is near."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tomli_w
import xarray as xr

from perfgrid.analysis.best_of_study import at_points
from perfgrid.analysis.limiting import shares
from perfgrid.analysis.prediction_intervals import intervals, tie_margin
from perfgrid.engine.grid.dataset import study_axes
from perfgrid.study.file import CLUSTER_SIZE
from perfgrid.study.study import Study, build_study

from .question import Question
from .search import LAYOUT, SYSTEM, Group, Index, groups

CANDIDATES = 64  # best designs of a group that are looked through for other layouts as good
ALTERNATIVES = 2  # that an answer names
PARTS = 3  # of a step that an answer names
CHUNKS = ".v"  # layouts that differ in chunks alone are one
NEAR = "near_miss_"  # variables about the designs that one limit excludes
LABEL = "label of"  # long name of a variable that holds labels of the best designs


def answered(
    asked: Question, content: Mapping[str, Any], objective: str, least: bool = True, weighed: bool = False
) -> xr.Dataset:
    """The answer to a question: the best design of every system and cluster size that a study holds.

    ``content``: the study, as its file states it; ``weighed``: cluster sizes are weighed against each other.
    """
    study = build_study(content, content["title"], asked.catalog)
    of = groups(study, objective, least, weighed)
    rows = [_distinct(study, group.best(CANDIDATES)) for group in of.values()]
    labels = {SYSTEM: [system for system, _ in of], CLUSTER_SIZE: [size for _, size in of]}
    labels = {name: list(dict.fromkeys(own)) for name, own in labels.items() if name == SYSTEM or not weighed}
    shape = tuple(len(own) for own in labels.values())

    def placed(values: Sequence[Any], *inner: str, **about: Any) -> xr.Variable:
        """A value (or a row of them, along an inner dimension) for every group."""
        array = np.array(values)
        return xr.Variable((*labels, *inner), array.reshape(*shape, *array.shape[1:]), about)

    found: dict[str, Any] = {"found": placed([bool(some) for some in rows])}
    if points := [some[0] for some in rows if some]:
        filled = np.cumsum([bool(some) for some in rows]) - 1  # of groups without a design: hidden below
        here = np.where([bool(some) for some in rows], np.maximum(filled, 0), -1)
        found |= _values(study, points, here, placed) | _parts(study, points, here, placed)
        found |= _around(study, objective, rows, placed)
    found |= _excluded(list(of.values()), placed)
    about = {"title": study.file.title, "objective": objective, "designs_searched": study.space.points}
    assumed = asked.assumptions(study.file.workload)
    about |= {"assumptions": [f"{option}: {value}" for option, value in assumed.items()]}
    about |= {"study": tomli_w.dumps(content), "model_file": asked.model_file}
    return xr.Dataset(found, labels | {"bound": ["low", "high"]}, about)


def _distinct(study: Study, best: Sequence[Index]) -> list[Index]:
    """The best design, and the best ones of other layouts."""
    place = study_axes(study.space).index(LAYOUT)
    first: dict[str, Index] = {}
    for index in best:
        first.setdefault(str(study.space.axes[place].labels[index[place]]).partition(CHUNKS)[0], index)
    return list(first.values())[: 1 + ALTERNATIVES]


def _values(study: Study, points: Sequence[Index], here: np.ndarray, placed: Callable[..., Any]) -> dict[str, Any]:
    """Outputs and labels of the best designs; ``here``: the point of every group, -1 for none."""
    named = at_points(study, study.plan(), (), list(np.transpose(points)))
    found = {}
    for name in study.outputs:
        values = np.broadcast_to(named[name].values, len(points))
        found[name] = placed(np.where(here < 0, np.nan, values[here]), **named[name].attrs)
    for place, axis in enumerate(study.space.axes):
        if axis.name != SYSTEM and len(axis) > 1:
            texts = np.array([str(axis.labels[index[place]]) for index in points])
            found[axis.name] = placed(np.where(here < 0, "", texts[here]), long_name=f"{LABEL} {axis.name}")
    sizes = next(a for a in study.space.axes if a.name == LAYOUT).columns[CLUSTER_SIZE]
    place = study_axes(study.space).index(LAYOUT)
    size = np.array([sizes[index[place]] for index in points])
    return {"size": placed(np.where(here < 0, 0, size[here]), long_name="devices", units="1")} | found


def _parts(study: Study, points: Sequence[Index], here: np.ndarray, placed: Callable[..., Any]) -> dict[str, Any]:
    """What the best designs wait for, largest first."""
    largest = [found[:PARTS] for found in shares(study, points)]
    words = np.array([[word for word, _ in some] for some in largest])
    part = np.array([[share for _, share in some] for some in largest])
    none = (here < 0)[:, None]
    return {
        "part": placed(np.where(none, "", words[here]), "largest", long_name="what takes the time"),
        "part_share": placed(np.where(none, np.nan, part[here]), "largest", long_name="share of the time", units="1"),
    }


def _around(
    study: Study, objective: str, rows: Sequence[Sequence[Index]], placed: Callable[..., Any]
) -> dict[str, Any]:
    """The prediction interval of the objective, and the other layouts with how much worse they are."""
    known = iter(intervals(study, [index for some in rows for index in some], objective))
    axes = study_axes(study.space)
    place = axes.index(LAYOUT)
    ends, others, ratios, ties = [], [], [], []
    for some in rows:
        own = [next(known) for _ in some]
        ends.append((own[0].low, own[0].high) if own else (np.nan, np.nan))
        ratio = [other.value / own[0].value for other in own[1:]]
        tied = [max(r, 1 / r) <= 1 + tie_margin(own[0], other) for r, other in zip(ratio, own[1:], strict=True)]
        short = ALTERNATIVES - len(ratio)
        others.append([*(str(study.space.axes[place].labels[index[place]]) for index in some[1:]), *[""] * short])
        ratios.append([*ratio, *[np.nan] * short])
        ties.append([*tied, *[False] * short])
    return {
        f"{objective}_interval": placed(ends, "bound", long_name="90 of 100 measurements are expected within"),
        "alternative_layout": placed(others, "alternative", long_name="the best design of another layout"),
        "alternative_ratio": placed(ratios, "alternative", long_name=f"{objective} over that of the best", units="1"),
        "alternative_tied": placed(ties, "alternative", long_name="within the model's error of the best"),
    }


def _excluded(of: Sequence[Group], placed: Callable[..., Any]) -> dict[str, Any]:
    """How many designs each constraint excludes as their root cause, and the nearest that one limit excludes."""
    counts = [group.excluded() for group in of]
    names = list(dict.fromkeys(name for count in counts for name in count))
    table = [[count.get(name, 0) for name in names] for count in counts]
    found = {
        "designs": placed([group.designs for group in of], long_name="designs searched"),
        "excluded": placed(np.reshape(table, (len(of), len(names))), "constraint", long_name="designs excluded"),
        "constraint": xr.Variable("constraint", names),
        "reason": xr.Variable("constraint", [str(of[0].grid[name].attrs["reason"]) for name in names]),
    }
    near = [{miss.constraint: miss for miss in group.misses()} for group in of]
    limits = list(dict.fromkeys(name for some in near for name in some))
    for kind, empty in (
        ("value", np.nan),
        ("limit", np.nan),
        ("objective", np.nan),
        ("remedied", np.nan),
        ("remedy", ""),
    ):
        rows = [[getattr(some[name], kind) if name in some else empty for name in limits] for some in near]
        found[NEAR + kind] = placed(np.reshape(rows, (len(of), len(limits))), "limit")
    rows = [
        [", ".join(f"{a} {v}" for a, v in some[n].labels.items()) if n in some else "" for n in limits] for some in near
    ]
    found[NEAR + "labels"] = placed(np.reshape(rows, (len(of), len(limits))), "limit")
    return found | {"limit": xr.Variable("limit", limits)}
