"""Views of a study or a result that states none."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.pareto import DESIGN
from perfgrid.results.provenance import stated_pareto
from perfgrid.study.file import CLUSTER_SIZE
from perfgrid.study.study import Study
from perfgrid.study.view import View
from perfgrid.text.words import words

from .breakdown import MEMORY
from .subject import FOUND, Subject

MOST_COLOURS = 8
MOST_BARS = 24
MOST_ROWS = 16  # of a heat map of layouts


def default_views(subject: Subject) -> list[View]:
    """Good pictures: first the one that answers the study's question, then what lies behind its best design.

    Titles name the labels that no one chose.
    """
    return [_titled(subject, view) for view in _views(subject)]


def _titled(subject: Subject, view: View) -> View:
    labels = ", ".join(f"{words(name)} {subject.text(name, label)}" for name, label in view.at.items())
    return view.model_copy(update={"title": ": ".join(filter(None, (subject.title, labels)))}) if labels else view


def _views(subject: Subject) -> list[View]:
    what = subject.what
    if isinstance(what, xr.Dataset) and DESIGN in what.dims:
        return [View(kind="frontier")]
    stated = what.file.pareto if isinstance(what, Study) else stated_pareto(what.attrs)
    found = []
    if stated is not None and all(map(subject.knows, stated.maximize)):
        found.append(View(kind="frontier"))
    found.append(_main(subject))
    chosen = isinstance(what, xr.Dataset) and FOUND in what.coords
    if subject.workload not in ("training", "inference") or chosen:
        return found
    several = [n for n in ("tp", "pp") if n in subject.coordinates and len(set(subject.coordinates[n][1].tolist())) > 1]
    best = subject.objective
    if len(several) == 2 and best is not None and max(_count(subject, n) for n in several) <= MOST_ROWS:
        found.append(
            View(kind="heatmap", x="tp", y="pp", value=best.minimize or best.maximize, at=_first_labels(subject))
        )
    names = (n for n in _groups(subject) if n in subject.axes and not _numeric(subject, n))
    x = next((n for n in names if _count(subject, n) <= MOST_BARS), None)
    rest = _first_labels(subject, (x,))
    quantity = "step_time" if subject.workload == "training" else "request_latency"
    if subject.knows(quantity):
        found.append(View(kind="breakdown", x=x, y=quantity, at=rest))
    if subject.knows(MEMORY):
        found.append(View(kind="memory", x=x, at=rest))
    return found


def completed(subject: Subject, view: View) -> View:
    """Lines, bars, scatters and heat maps that name no axis and no output with good ones."""
    if view.x is not None or view.shown:
        return view
    if view.kind in ("lines", "bars"):
        main = _main(subject)
        x, y, colour = (main.y, main.value, main.x) if main.kind == "heatmap" else (main.x, main.y, main.colour)
        colour = view.colour or (colour if colour not in view.at and view.facets is None else None)
        return view.model_copy(update={"x": x, "y": y, "colour": colour, "at": {**main.at, **view.at}})
    if view.kind == "heatmap" and not {"tp", "pp"} <= subject.coordinates.keys() | subject.axes.keys():
        groups = _groups(subject) or [n for n, labels in subject.axes.items() if len(labels) > 1]
        if len(groups) > 1:
            y, x = sorted(groups, key=lambda n: _count(subject, n))[-2:]
            return view.model_copy(update={"x": x, "y": y, "at": {**_first_labels(subject, (x, y)), **view.at}})
    if view.kind == "scatter":
        plain = [q for q in subject.outputs if subject.is_number(q)]
        if len(plain) > 1:
            return view.model_copy(update={"x": plain[1], "y": plain[0]})
    return view


def _groups(subject: Subject) -> list[str]:
    """The axes with several labels along which the study does not choose."""
    best = subject.objective
    over = [] if best is None else [best.over] if isinstance(best.over, str) else best.over
    held = {} if best is None else best.at
    groups = [n for n, labels in subject.axes.items() if len(labels) > 1 and n not in over and n not in held]
    sizes = subject.coordinates.get(CLUSTER_SIZE, ("", np.zeros(0)))
    if CLUSTER_SIZE not in (*over, *subject.axes) and len(set(sizes[1].tolist())) > 1:
        groups.append(CLUSTER_SIZE)
    return groups


def _count(subject: Subject, name: str) -> int:
    return len(subject.axes[name]) if name in subject.axes else len(set(subject.coordinates[name][1].tolist()))


def _first_labels(subject: Subject, but: Any = ()) -> dict[str, Any]:
    """The first label of every group that a picture does not show."""
    rest = [n for n in _groups(subject) if n not in but and not (n in subject.scaled and 1 in subject.axes[n])]
    return {n: subject.axes[n][0] if n in subject.axes else min(subject.coordinates[n][1].tolist()) for n in rest}


def _main(subject: Subject) -> View:
    """The objective against the axis of most numbers, a colour for the next axis; without numbers bars or cells."""
    best = subject.objective
    objective = best and (best.minimize or best.maximize)
    quantity = objective if objective and subject.knows(objective) else _first_number(subject)
    groups = _groups(subject) or [n for n, labels in subject.axes.items() if len(labels) > 1]
    numeric = [n for n in groups if _numeric(subject, n) and _count(subject, n) > 2]
    if numeric:
        x = max(numeric, key=lambda n: _count(subject, n))
        rest = [n for n in groups if n != x and 1 < _count(subject, n) <= MOST_COLOURS]
        colour = max(rest, key=lambda n: (not _numeric(subject, n), _count(subject, n)), default=None)
        return View(kind="lines", x=x, y=quantity, colour=colour, at=_first_labels(subject, (x, colour)))
    if not groups:
        return View(kind="bars", x=next(iter(subject.axes), None), y=quantity)
    x = max(groups, key=lambda n: min(_count(subject, n), MOST_BARS))
    rest = [n for n in groups if n != x and 1 < _count(subject, n) <= MOST_COLOURS]
    colour = max(rest, key=lambda n: _count(subject, n), default=None)
    at = _first_labels(subject, (x, colour))
    if colour is not None and _count(subject, x) * _count(subject, colour) > MOST_BARS:
        return View(kind="heatmap", x=colour, y=x, value=quantity, at=at)
    return View(kind="bars", x=x, y=quantity, colour=colour, at=at)


def _numeric(subject: Subject, name: str) -> bool:
    labels = subject.axes[name] if name in subject.axes else subject.coordinates[name][1].tolist()
    return all(isinstance(label, int | float) and not isinstance(label, bool) for label in labels)


def _first_number(subject: Subject) -> str:
    """The first output that is a number for each design."""
    return next((n for n in subject.outputs if subject.is_number(n)), subject.outputs[0])
