"""Why one design is faster than another: the step time of both, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import xarray as xr

from perfgrid.analysis import best
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.explain import index_of
from perfgrid.engine.registry import Registry
from perfgrid.engine.resolver import replay, resolve
from perfgrid.engine.space import Space
from perfgrid.formulas import BREAKDOWN
from perfgrid.run import evaluate, restore
from perfgrid.study import Study


@dataclass(frozen=True)
class Comparison:
    """Two designs and the parts (name, seconds of a, seconds of b) of their step times, the largest change first."""

    a: dict[str, Any]
    b: dict[str, Any]
    parts: tuple[tuple[str, float, float], ...]

    @property
    def step_time(self) -> tuple[float, float]:
        """The step times of both designs in seconds."""
        return sum(p[1] for p in self.parts), sum(p[2] for p in self.parts)

    @property
    def speedup(self) -> float:
        """How many times faster b is."""
        before, after = self.step_time
        return before / after


def compare(
    what: Study | xr.Dataset,
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    at: Mapping[str, Any] | None = None,
    formulas: Iterable[Callable[..., Any]] = (),
) -> Comparison:
    """Compare two designs of a study or of a result by the parts of their step time (a waterfall from a to b).

    ``a`` and ``b`` name labels of the axes in which they differ, ``at`` those that they share; a coordinate such as
    devices narrows its axis. Along axes left open each takes its best feasible design, in the study's own sense or by
    step time; swept hardware stays as it is (factor 1). Raises PerfgridError for unknown axes or labels, a group left
    open, and a side without a feasible design.
    """
    sides = [{**(at or {}), **side} for side in (a, b)]
    if isinstance(what, Study):
        space, registry, choices = what.space, what.registry, what.file.choices
        sides = [{axis: what.label(axis, label) for axis, label in side.items()} for side in sides]
    else:
        space, registry, choices = restore(what, formulas)
    if sides[0] == sides[1]:
        raise PerfgridError("both sides name the same design: give --a and --b different labels of some axis")
    chosen = [_complete(what, space, side) for side in sides]
    found = [_parts(space, registry, choices, point) for point in chosen]
    parts = [(name, found[0][name], found[1][name]) for name in BREAKDOWN]
    return Comparison(chosen[0], chosen[1], tuple(sorted(parts, key=lambda part: -abs(part[2] - part[1]))))


def _complete(what: Study | xr.Dataset, space: Space, side: Mapping[str, Any]) -> dict[str, Any]:
    """A label of every axis: those named, and of the others those of the best feasible design."""
    names = [axis.name for axis in space.axes]
    shown = {coordinate: axis.name for axis in space.axes for coordinate in axis.shown}
    for name in side:
        if name not in names and name not in shown:
            raise PerfgridError(f"the study has no axis {name!r}{nearest(name, (*names, *shown))}")
    side = {**_unscaled(space), **side}
    open_axes = [axis.name for axis in space.axes if len(axis) > 1 and axis.name not in side]
    if not open_axes:
        index = index_of(space, {k: v for k, v in side.items() if k in names})
        return {axis.name: axis.labels[i].item() for axis, i in zip(space.axes, index, strict=True)}
    dataset = evaluate(what) if isinstance(what, Study) else what
    objective, least = _objective(what, dataset)
    for name, label in side.items():
        if name not in names:  # a coordinate such as devices selects rows of its axis
            kept = dataset[name].astype(str) == str(label)
            if not bool(kept.any()):
                raise PerfgridError(f"no design has {name} = {label!r}")
            dataset = dataset.isel({shown[name]: kept.values})
    selected = {name: label for name, label in side.items() if name in names}
    grouped = best(dataset, open_axes, **{"minimize" if least else "maximize": objective}, at=selected)
    left = {str(dim): n for dim, n in grouped["found"].sizes.items() if n > 1}
    if left:
        hints = ", ".join(f"{dim} ({', '.join(map(str, grouped[dim].values[:4]))})" for dim in left)
        raise PerfgridError(f"a comparison needs one design on each side; state also: {hints}")
    winner = grouped.squeeze()
    if not bool(winner["found"]):
        raise PerfgridError(f"no feasible design for {', '.join(f'{k}={v}' for k, v in side.items())}")
    return {axis.name: winner[axis.name].item() for axis in space.axes}


def _unscaled(space: Space) -> dict[str, Any]:
    """The label 1 of every axis that scales given quantities: hardware as it is, unless a side says otherwise."""
    return {
        axis.name: 1.0
        for axis in space.axes
        if axis.scales and len(axis) > 1 and bool((axis.labels.astype(float) == 1).any())
    }


def _objective(what: Study | xr.Dataset, dataset: xr.Dataset) -> tuple[str, bool]:
    wanted = what.file.best if isinstance(what, Study) else None
    if wanted is not None:
        return str(wanted.minimize or wanted.maximize), wanted.minimize is not None
    if "step_time" not in dataset:
        raise PerfgridError(
            "step_time is not among the outputs, so the best along the open axes is unknown: "
            f"name a label of each of {', '.join(dataset.attrs['study_axes'].split())}"
        )
    return "step_time", True


def _parts(space: Space, registry: Registry, choices: Mapping[str, str], point: Mapping[str, Any]) -> dict[str, float]:
    graph = resolve(registry, BREAKDOWN, space.names(), choices, space.label_quantities())
    index = index_of(space, point)
    values = replay(graph, {name: space.at(name, index) for name in graph.leaves})
    return {name: float(values[name]) for name in BREAKDOWN}
