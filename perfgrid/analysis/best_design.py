"""The one design that is shown: the labels that are named, and of the axes left open those of the best design."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.execution.evaluation import Progress
from perfgrid.engine.graph.resolver import resolve
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE, constraints_of
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.engine.grid.tiles import Tiles
from perfgrid.engine.reductions.argmin import SEARCH_TILE_POINTS
from perfgrid.results.provenance import GROUPED, free_quantities, label_of, stated_best, workload_of
from perfgrid.results.schema import stored
from perfgrid.study.file import CLUSTER_SIZE, Best, ties_of
from perfgrid.study.study import Study
from perfgrid.study.where import filtered

from .best_of_result import FORBIDDEN, best_of_result
from .best_of_study import best_of_study

FASTEST = Best(over=[], minimize="step_time")  # of training, where a study states no [best]
PART = 2**24  # points of a result that are read together


@dataclass(frozen=True)
class Design:
    """The labels of one design; ``taken`` are those that nobody named, ``objective`` is what they were searched by."""

    labels: Mapping[str, Any]
    taken: Mapping[str, Any] = field(default_factory=dict)
    objective: str = ""  # such as "least step_time"; empty where nothing was searched


def best_design(
    what: Study | xr.Dataset,
    at: Mapping[str, Any] | None = None,
    of: Iterable[str] = (),
    progress: Progress | None = None,
) -> Design:
    """The design at some labels that is feasible and best along the axes that they leave open.

    A study is searched like `perfgrid.best` does, of a result the stored values are read, part by part. What is best
    says ``[best]`` of the study, or else the step time. Swept hardware stays at factor 1, and an axis that ``[best]``
    holds at its label. ``of``: quantities of a study that have to exist before anything is searched.

    Raises PerfgridError for an unknown quantity, axis or label, where nothing says what is best, and where no design is
    feasible.
    """
    if not isinstance(what, Study) and SPACE_ATTRIBUTE not in getattr(what, "attrs", {}):
        return Design(at or {})  # several workloads, or no result: `design_at` says what it needs
    if isinstance(what, Study):
        resolve(what.registry, of, what.space.names(), what.file.choices, what.space.label_quantities())
    choice, axes, rows, beyond = left_open(what, at or {})
    searched = [name for name, kept in rows.items() if len(kept) > 1]
    found = {name: axes[name].labels[kept[0]].item() for name, kept in rows.items()}
    unnamed = [name for name, axis in axes.items() if name not in (at or {}) and len(axis) > 1]
    if not searched:
        return Design(found | beyond, {name: found[name] for name in unnamed})
    if choice is None:
        hints = ", ".join(f"{name} (such as {found[name]})" for name in searched)
        raise PerfgridError(
            f"nothing says which design is best, neither [best] of the study nor an output step_time; name a label of "
            f"every axis; not given: {hints}"
        )
    objective, least = choice.minimize or choice.maximize or "", choice.maximize is None
    winners = list(_winners(what, rows, searched, objective, least, progress))
    exist = [w for w in winners if bool(w["found"])]
    if not exist:
        raise PerfgridError(_none_feasible(what, winners, at or {}))
    best = min(exist, key=lambda w: float(w[objective]) * (1 if least else -1))
    found |= {name: best[name].item() for name in searched}
    taken = {name: found[name] for name in unnamed}
    return Design(found | beyond, taken, f"{'least' if least else 'largest'} {objective}")


def left_open(
    what: Study | xr.Dataset, at: Mapping[str, Any]
) -> tuple[Best | None, dict[str, Axis], dict[str, np.ndarray], dict[str, Any]]:
    """What is best, the axes, the rows of each that labels leave, and labels of axes along which a result was chosen.

    A label of a coordinate, such as ``devices`` or ``tp``, narrows its axis. PerfgridError for an unknown axis or label
    and for labels that contradict each other.
    """
    choice, axes = _objective(what), _axes(what, at)
    shown = {coordinate: axis for axis in axes.values() for coordinate in axis.shown}
    known = set[str]()
    if not isinstance(what, Study):  # what was chosen along, and what only some of its variables lie on
        known = {*map(str, what.dims), *(axis["name"] for axis in stored(what.attrs, SPACE_ATTRIBUTE)["axes"])}
    named = {name: label_of(what, name, label) for name, label in at.items()}
    rows = {name: np.arange(len(axis)) for name, axis in axes.items()}
    beyond = {}
    for name, label in (_defaults(what, choice, axes) | named).items():
        if name in axes:
            axis, kept = axes[name], np.array([axes[name].index(label)])
        elif name in shown:
            axis = shown[name]
            values = np.unique(axis.columns[name])
            kept = np.flatnonzero(axis.columns[name] == values[Axis(name, values).index(label)])
        elif name in known:
            beyond[name] = label
            continue
        else:
            raise PerfgridError(f"the study has no axis {name!r}{nearest(name, (*axes, *shown))}")
        rows[axis.name] = np.intersect1d(rows[axis.name], kept)
        if not len(rows[axis.name]):
            raise PerfgridError(f"no design has {labels_text(at)}: {name} = {label} contradicts the rest")
    return choice, axes, rows, beyond


def labels_text(labels: Mapping[str, Any]) -> str:
    """Labels in words of a command line."""
    return ", ".join(f"{axis}={label}" for axis, label in labels.items())


def _objective(what: Study | xr.Dataset) -> Best | None:
    """What is best: as the study says, or the step time; None where a result does not hold it."""
    choices = [what.file.best if isinstance(what, Study) else stated_best(what.attrs)]
    choices += [FASTEST] if workload_of(what) == "training" else []
    held = [c for c in choices if c is not None and (isinstance(what, Study) or (c.minimize or c.maximize) in what)]
    return held[0] if held else None


def _axes(what: Study | xr.Dataset, at: Collection[str]) -> dict[str, Axis]:
    """The axes of which a design has a label: of a study; of a result those on which its designs lie.

    With the coordinates along each. What was chosen along others and is not named follows from them (`design_at`).
    """
    if isinstance(what, Study):
        return {axis.name: axis for axis in what.space.axes}
    every = [axis["name"] for axis in stored(what.attrs, SPACE_ATTRIBUTE)["axes"]]
    follow = [*free_quantities(what), *(n for n in every if n in what.coords and n not in at)]
    found = {}
    for name in dict.fromkeys([*(n for n in every if n in what.dims), *(str(d) for n in follow for d in what[n].dims)]):
        columns = {str(c): v.values for c, v in what.coords.items() if v.dims == (name,) and c != name}
        found[name] = Axis(name, what[name].values, columns, shown=tuple(columns))
    return found


def _defaults(what: Study | xr.Dataset, choice: Best | None, axes: Mapping[str, Axis]) -> dict[str, Any]:
    """Hardware as it is, where all factors are 1, and the labels at which the study seeks its best designs."""
    if isinstance(what, Study):
        scaled = {axis.name: (axis.labels.tolist(), axis.scales) for axis in what.space.axes}
    else:
        scaled = {a["name"]: (a["labels"], a["scales"]) for a in stored(what.attrs, SPACE_ATTRIBUTE)["axes"]}
    found = {}
    for name, (labels, scales) in scaled.items():
        rows = zip(labels, np.transpose(list(scales.values())), strict=False)  # none without scales
        same = [label for label, factors in rows if (factors == 1).all()]
        if same and name in axes and same[0] in axes[name].labels.tolist():  # of a part of a result not all are there
            found[name] = same[0]
    held = {n: label for n, label in (choice.at if choice else {}).items() if n in axes}
    return found | {n: label_of(what, n, label) for n, label in held.items()}


def _winners(
    what: Study | xr.Dataset,
    rows: Mapping[str, np.ndarray],
    over: list[str],
    objective: str,
    least: bool,
    progress: Progress | None,
) -> Iterator[xr.Dataset]:
    """The best design of a study along some axes, clusters of all sizes among each other; of every part of a result."""
    if isinstance(what, Study):
        axes = (filtered(axis, np.isin(np.arange(len(axis)), rows[axis.name])) for axis in what.space.axes)
        some = replace(what, space=Space(tuple(axes), what.space.constants))
        yield best_of_study(
            some, [*over, CLUSTER_SIZE], objective, least, {}, 1, SEARCH_TILE_POINTS, progress
        ).squeeze()
        return
    ties = ties_of(_objective(what), objective).by
    others = set(what.data_vars) - {objective, *ties, *constraints_of(what, objective)}
    needed = what.drop_vars(others).isel(dict(rows))
    every = [name for name in (*over, what.attrs.get(GROUPED)) if name is not None]
    for cut in Tiles.cut(tuple(len(kept) for kept in rows.values()), PART).rows():
        part = {name: slice(int(r[0]), int(r[-1]) + 1) for name, r in zip(rows, cut, strict=False)}
        yield best_of_result(needed.isel(part).load(), every, objective, least, {}).squeeze()


def _none_feasible(what: Study | xr.Dataset, winners: Iterable[xr.Dataset], at: Mapping[str, Any]) -> str:
    """That no design at some labels is feasible, and what forbids most."""
    counts, every = Counter[str](), 0
    for by, forbids, designs in ([w[name].item() for name in FORBIDDEN] for w in winners):
        counts[by] += forbids
        every += designs
    by, forbids = counts.most_common(1)[0]
    place = f" for {labels_text(at)}" if at else ""
    if not by:
        return f"no feasible design{place}"
    about = what.registry.get(by) if isinstance(what, Study) else None
    reason = what[by].attrs.get("reason", "") if isinstance(what, xr.Dataset) else getattr(about, "reason", "")
    return f"no feasible design{place}: {by} forbids {forbids:,} of {every:,} ({reason})"
