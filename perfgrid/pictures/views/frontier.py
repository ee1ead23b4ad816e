"""Frontiers: the designs that no other beats in two outputs, such as throughput against interactivity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.pareto import DESIGN, pareto
from perfgrid.engine.errors import PerfgridError
from perfgrid.pictures.picture import Panel, Picture, Series
from perfgrid.results.provenance import stated_pareto
from perfgrid.study.study import Study
from perfgrid.study.view import View
from perfgrid.text.words import words

from .axes import quantity_text, value_axis
from .marks import caption, check_outputs, check_place, scale_of, text_of
from .subject import Subject
from .table import Table

WRITTEN = 6  # designs of a front whose labels are written beside them


def frontier(subject: Subject, view: View) -> Picture:
    """The front between x and y, which are maximized unless the view's ``minimize`` names them, for each colour."""
    if isinstance(subject.what, xr.Dataset) and DESIGN in subject.what.dims:
        names = [*str(subject.what.attrs.get("objectives", "")).split(), *subject.outputs][:2]
        x, y = check_outputs(subject, view, [view.x or names[0], (view.shown or names[1:])[0]])
        front, held = subject.what, subject
        axes = [n for n in str(front.attrs.get("study_axes", "")).split() if n in front.coords]
        colour = view.colour
    else:
        stated = subject.what.file.pareto if isinstance(subject.what, Study) else stated_pareto(subject.what.attrs)
        named = [n for n in (view.x, *view.shown) if n is not None] or (stated.maximize if stated else [])
        if len(named) != 2:
            name = view.name or view.kind
            raise PerfgridError(f"view {name}: a frontier needs an output in x and one in y: state them in a [[view]]")
        x, y = check_outputs(subject, view, named)
        places = check_place(subject, view, view.colour)
        at = view.at if view.at or stated is None else {n: v for n, v in stated.at.items() if n not in places}
        held = subject.narrowed(at, places)
        minimize = [view.minimize] if isinstance(view.minimize, str) else list(view.minimize or [])
        for name in minimize:
            check_outputs(subject, view, [name])
        over = [n for n in held.axes if n not in places]
        senses = [n for n in (x, y) if n in minimize], [n for n in (x, y) if n not in minimize]
        front, axes, colour = pareto(held.what, *senses, over=over), list(held.axes), view.colour
    if not front.sizes.get(DESIGN, 0):
        raise PerfgridError(f"view {view.name or view.kind}: no design is feasible")
    numbers = [[float(v) for v in np.ravel(front[q].values) if np.isfinite(v)] for q in (x, y)]
    scales = (view.x_scale, view.y_scale)
    x_axis, y_axis = (
        value_axis(q, held.unit(q), found, view.units, scale_of(view.model_copy(update={"y_scale": scale}), found))
        for q, found, scale in zip((x, y), numbers, scales, strict=True)
    )
    varied = [n for n in axes if n != colour and n in front.coords and len(set(front[n].values.ravel().tolist())) > 1]
    labels = front[colour].values.tolist() if colour else [None] * front.sizes[DESIGN]
    series = []
    for label in dict.fromkeys(labels):
        part = front.isel({DESIGN: [i for i, own in enumerate(labels) if own == label]}).sortby(x)
        designs = [
            ", ".join(_item(held, n, v) for n, v in zip(varied, row, strict=True)) for row in _rows(part, varied)
        ]
        at, up = (np.broadcast_to(part[q].values, part.sizes[DESIGN]).astype(float) for q in (x, y))
        tips = [
            f"{design}; {words(x)} {quantity_text(a, held.unit(x))}, {words(y)} {quantity_text(b, held.unit(y))}"
            for design, a, b in zip(designs, at, up, strict=True)
        ]
        written = set(np.linspace(0, len(at) - 1, min(WRITTEN, len(at))).round().astype(int)) if not colour else set()
        short = [
            ", ".join(_item(held, n, v, False) for n, v in zip(varied, row, strict=True)) for row in _rows(part, varied)
        ]
        series.append(
            Series(
                text_of(held.text(colour, label)) if colour else "front",
                "line",
                tuple((at / x_axis.size).tolist()),
                tuple((up / y_axis.size).tolist()),
                labels=tuple(tips),
                texts=tuple(t if i in written else "" for i, t in enumerate(short)) if written else (),
            )
        )
    written_of = f"Labels: {', '.join(map(words, varied))}." if not colour and varied else ""
    told = "Each mark is a design that no other beats in both."
    panel = Panel(x_axis, y_axis, tuple(series))
    legend = words(colour) if colour else ""
    return Picture(
        view.name, view.kind, view.title, (panel,), view.see, caption(Table(held, []), told, written_of), legend
    )


def _rows(front: xr.Dataset, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(front[n].values.tolist() for n in names), strict=True)) if names else [()] * front.sizes[DESIGN]


def _item(subject: Subject, name: str, label: Any, named: bool = True) -> str:
    text = subject.text(name, label)
    return f"{words(name)} {text}" if named else text
