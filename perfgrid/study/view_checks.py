"""What the views of a study name exists, whichever command loads the study."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.space import Axis

from .content import Content
from .file import CLUSTER_SIZE
from .view import View

OF_OUTPUTS = ("scatter", "frontier")  # kinds whose x is an output


def check_views(study: Content) -> None:
    """PerfgridError for a wrong axis, label, output or name in ``[[view]]``."""
    names = [view.name or view.kind for view in study.file.view]
    for number, view in enumerate(study.file.view, 1):
        place = f"{study.name}, view {number} ({view.name or view.kind})"
        if view.name and names.index(view.name) != number - 1:
            raise PerfgridError(f"{place}: another view has this name too")
        _check(study, view, place)


def fitting_views(study: Content) -> list[View]:
    """The views that name nothing which the study does not have."""
    found = []
    for view in study.file.view:
        with suppress(PerfgridError):
            _check(study, view, "")
            found.append(view)
    return found


def _check(study: Content, view: View, place: str) -> None:
    axes = {axis.name: axis for axis in study.space.axes}
    columns = {name: axis for axis in axes.values() for name in axis.shown}
    inner = {name: Axis(name, np.array(labels)) for name, labels in study.registry.inner.labels.items()}  # of outputs
    of_outputs, of_axes = view.shown, [("x", view.x)]
    if view.kind in OF_OUTPUTS:
        of_outputs, of_axes = [view.x, *view.shown] if view.x else view.shown, []
    if view.kind == "heatmap":
        of_outputs, of_axes = [], [*of_axes, *(("y", name) for name in view.shown[:1])]
    for key, name in (*of_axes, ("colour", view.colour), ("facets", view.facets)):
        if name is not None and name not in {*axes, *columns, *inner}:
            raise PerfgridError(f"{place}, {key}: unknown axis {name!r}{nearest(name, (*axes, *columns))}")
    for name in _listed(view.over):
        if name not in axes and name != CLUSTER_SIZE:
            raise PerfgridError(f"{place}, over: unknown axis {name!r}{nearest(name, axes)}")
    known = {*study.registry.names(), *study.space.names()}
    for name in (*of_outputs, *_listed(view.value), *_listed(view.minimize), *_listed(view.maximize)):
        if name not in known:
            raise PerfgridError(f"{place}: unknown output {name!r}{nearest(name, study.outputs)}")
    _check_published(study, view, {**inner, **axes, **columns}, place)
    for key, labels in (("at", view.at), ("a", view.a), ("b", view.b)):
        for name, label in labels.items():
            if name not in {*axes, *columns, *(inner if key == "at" else ())}:
                raise PerfgridError(f"{place}, {key}: unknown axis {name!r}{nearest(name, (*axes, *columns))}")
            held = columns[name].columns[name] if name in columns and name not in axes else ()
            axis = axes.get(name) or (Axis(name, np.unique(held)) if name in columns else inner[name])
            for one in label if isinstance(label, list) else [label]:
                try:
                    axis.index(study.label(name, one))
                except PerfgridError as error:
                    raise PerfgridError(f"{place}, {key}: {error}") from None


def _check_published(study: Content, view: View, axes: dict[str, Axis], place: str) -> None:
    if view.published and (view.kind != "waterfall" or view.x is None):
        raise PerfgridError(f"{place}, published: such numbers stand beside a waterfall along x")
    for one in view.published:
        axis = axes[view.x or ""]
        labels = axis.labels if axis.name == view.x else axis.columns[view.x or ""]
        known = [str(label) for label in np.unique(labels).tolist()]
        for label in (n for n in one.values if n not in known):
            raise PerfgridError(f"{place}, published {one.name!r}: unknown label {label!r}{nearest(label, known)}")
        for key in (k for k in _listed(one.source) if k not in study.catalog.references):
            found = nearest(key, study.catalog.references)
            raise PerfgridError(f"{place}, published {one.name!r}: source {key!r} is not in the bibliography{found}")


def _listed(names: Any) -> Iterable[str]:
    return [names] if isinstance(names, str) else names or []
