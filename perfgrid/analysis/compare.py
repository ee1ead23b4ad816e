"""Why one design is faster than another: the step time of both, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.grid.explain import point_of, replay_point, violated_at
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.formulas import BREAKDOWN
from perfgrid.results.evaluate import evaluate
from perfgrid.results.provenance import GROUPED, restore, workload_of
from perfgrid.study.file import CLUSTER_SIZE
from perfgrid.study.study import Study

from .best import best
from .best_of_result import FORBIDDEN
from .prediction_intervals import Interval, intervals, tie_margin


@dataclass(frozen=True)
class Comparison:
    """Two designs and the parts (name, seconds of a, seconds of b) of their step times, the largest change first."""

    a: dict[str, Any]
    b: dict[str, Any]
    parts: tuple[tuple[str, float, float], ...]
    intervals: tuple[Interval, Interval]  # of both step times

    @property
    def tie_margin(self) -> float:
        """Relative difference below which the model's error hides which one is faster."""
        return tie_margin(*self.intervals)

    @property
    def step_time(self) -> tuple[float, float]:
        """The step times of both designs in seconds."""
        return sum(p[1] for p in self.parts), sum(p[2] for p in self.parts)

    @property
    def speedup(self) -> float:
        """How many times faster b is."""
        before, after = self.step_time
        return before / after

    @property
    def tied(self) -> bool:
        """Whether the difference is within the error that the model has in comparing designs."""
        return max(self.speedup, 1 / self.speedup) <= 1 + self.tie_margin


def compare(
    what: Study | xr.Dataset,
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    at: Mapping[str, Any] | None = None,
    formulas: Iterable[Callable[..., Any]] = (),
) -> Comparison:
    """Compare two training designs by the parts of their step time.

    Parameters
    ----------
    what
        A study, or a result of all its designs.
    a, b
        Labels of the axes in which the designs differ; a coordinate such as ``devices`` narrows its axis. Along axes
        left open each side takes its best feasible design, by the objective of the study or by step time; swept
        hardware stays at factor 1.
    at
        Labels of both designs.
    formulas
        The user's own formulas with which a result was made.

    Returns
    -------
    Comparison
        The designs ``a`` and ``b``, ``step_time`` and ``parts`` in seconds, ``speedup``, the prediction ``intervals``
        of both step times, ``tie_margin`` and ``tied``. ``intervals[0].largest()`` gives the leading assumptions.

    Raises
    ------
    PerfgridError
        For an unknown axis or label, an axis named twice, several cluster sizes, equal sides, and a side without a
        feasible design.

    Examples
    --------
    >>> import perfgrid as pg
    >>> study = pg.Study.make(
    ...     outputs=["step_time"],
    ...     axes={
    ...         "model": ["llama-2-7b"],
    ...         "device": ["h100-sxm-80gb"],
    ...         "topology": ["rail-optimized"],
    ...         "parallelism": {"devices": [8], "tp": [1, 2], "pp": [1, 2]},
    ...     },
    ...     workload_parameters={"sequence_length": 2048, "global_batch": 64},
    ... )
    >>> found = pg.compare(study, {"parallelism": "tp2.pp1.dp4"}, {"parallelism": "tp1.pp1.dp8"})
    >>> found.speedup > 1
    True
    >>> part, before, after = found.parts[0]  # the largest change
    >>> part
    'exposed_tp_time'
    """
    if workload_of(what) != "training":
        raise PerfgridError(
            "compare needs a training study or result; explain and kernels show designs of other workloads"
        )
    for name in at or {}:
        for side, labels in (("a", a), ("b", b)):
            if name in labels:
                raise PerfgridError(f"{name!r} is named twice: for both designs (at) and for {side}")
    sides = [{**(at or {}), **side} for side in (a, b)]
    if isinstance(what, Study):
        space, registry, choices = what.space, what.registry, what.file.choices
        sides = [{axis: what.label(axis, label) for axis, label in side.items()} for side in sides]
        cluster_size = CLUSTER_SIZE
    else:
        space, registry, choices = restore(what, formulas)
        cluster_size = what.attrs.get(GROUPED)
        if lacking := [axis.name for axis in space.axes if axis.name not in what.dims]:
            raise PerfgridError(
                f"this result holds designs that were chosen along {', '.join(lacking)}: compare designs of the study, "
                "or of a result of all of them"
            )
    rows = [_rows(space, side) for side in sides]
    if all(np.array_equal(rows[0][name], rows[1][name]) for name in rows[0]):
        raise PerfgridError("both sides name the same design: give --a and --b different labels of some axis")
    for kept in rows:
        _one_size(space, kept, cluster_size)
    if any(len(r) > 1 for kept in rows for r in kept.values()):
        dataset = evaluate(what) if isinstance(what, Study) else what
        rows = [_best_rows(what, space, dataset, kept, side) for kept, side in zip(rows, sides, strict=True)]
    chosen = [tuple(int(r[0]) for r in kept.values()) for kept in rows]
    points = [point_of(space, index) for index in chosen]
    if chosen[0] == chosen[1]:
        raise PerfgridError(f"both sides come to the same design: {_told(points[0])}")
    found = [_parts(space, registry, choices, index) for index in chosen]
    parts = [(name, found[0][name], found[1][name]) for name in BREAKDOWN]
    ends = intervals(what, chosen, formulas=formulas)
    largest = tuple(sorted(parts, key=lambda part: -abs(part[2] - part[1])))
    return Comparison(points[0], points[1], largest, (ends[0], ends[1]))


def _rows(space: Space, side: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The rows of every axis that a side leaves: all, those of a label, or those of a coordinate such as devices."""
    shown = {coordinate: axis for axis in space.axes for coordinate in axis.shown}
    axes = {axis.name: axis for axis in space.axes}
    rows = {name: np.arange(len(axis)) for name, axis in axes.items()}
    for name, label in {**_unscaled(space), **side}.items():
        if name not in axes and name not in shown:
            raise PerfgridError(f"the study has no axis {name!r}{nearest(name, (*axes, *shown))}")
        axis = axes.get(name) or shown[name]
        if name in axes:
            kept = np.array([axis.index(label)])
        else:
            values = np.unique(axis.columns[name])
            kept = np.flatnonzero(axis.columns[name] == values[Axis(name, values).index(label)])
        rows[axis.name] = np.intersect1d(rows[axis.name], kept)
        if not len(rows[axis.name]):
            raise PerfgridError(f"no design has {_told(side)}: {name} = {label} contradicts the rest")
    return rows


def _unscaled(space: Space) -> dict[str, Any]:
    """The label 1 of every axis that scales given quantities: hardware as it is, unless a side says otherwise."""
    return {
        axis.name: 1.0
        for axis in space.axes
        if axis.scales and len(axis) > 1 and bool((axis.labels.astype(float) == 1).any())
    }


def _one_size(space: Space, rows: Mapping[str, np.ndarray], cluster_size: str | None) -> None:
    """PerfgridError where a side leaves several models or cluster sizes open: each is a question of its own."""
    for axis in space.axes:
        if axis.name == "model" and len(rows["model"]) > 1:
            raise PerfgridError(
                f"a comparison needs one design on each side; state also: model ({', '.join(axis.labels[:4])})"
            )
        if cluster_size in axis.shown:
            left = np.unique(axis.columns[str(cluster_size)][rows[axis.name]])
            if len(left) > 1:
                hint = ", ".join(map(str, left[:4]))
                raise PerfgridError(f"a comparison needs one design on each side; state also: {cluster_size} ({hint})")


def _best_rows(
    what: Study | xr.Dataset,
    space: Space,
    dataset: xr.Dataset,
    rows: Mapping[str, np.ndarray],
    side: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """The row of every axis of the best feasible design among the given ones."""
    open_axes = [name for name, kept in rows.items() if len(kept) > 1]
    if not open_axes:
        return dict(rows)
    minimize, maximize = _objective(what, dataset)
    winner = best(dataset.isel(rows), open_axes, minimize, maximize).squeeze()
    if not bool(winner["found"]):
        by, forbids, designs = (winner[name].item() for name in FORBIDDEN)
        why = f": {by} forbids {forbids:,} of {designs:,} ({dataset[by].attrs['reason']})" if by else ""
        raise PerfgridError(f"no feasible design for {_told(side)}{why}")
    return {axis.name: np.array([axis.index(winner[axis.name].item())]) for axis in space.axes}


def _objective(what: Study | xr.Dataset, dataset: xr.Dataset) -> tuple[str | None, str | None]:
    """What the best design has least, or most: as the study says, or the step time."""
    wanted = what.file.best if isinstance(what, Study) else None
    if wanted is not None:
        return wanted.minimize, wanted.maximize
    if "step_time" not in dataset:
        raise PerfgridError(
            "step_time is not among the outputs, so the best along the open axes is unknown: "
            f"name a label of each of {', '.join(dataset.attrs['study_axes'].split())}"
        )
    return "step_time", None


def _parts(space: Space, registry: Registry, choices: Mapping[str, str], index: tuple[int, ...]) -> dict[str, float]:
    """Parts of a step at one point. PerfgridError, with every reason, where it is infeasible."""
    graph, values = replay_point(registry, space, BREAKDOWN, index, choices)
    if violated := violated_at(graph, values):
        reasons = "; ".join(f"{v.reason} [{v.name}]" for v in violated)
        raise PerfgridError(f"the design {_told(point_of(space, index))} is infeasible: {reasons}")
    return {name: float(values[name]) for name in BREAKDOWN}


def _told(labels: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis}={label}" for axis, label in labels.items())
