"""Scatters: every legal design by two of its outputs; those beyond a limit are grey and say why."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.pictures.picture import Axis, Panel, Picture, Series
from perfgrid.study.view import View
from perfgrid.text.words import words

from .axes import value_axis
from .marks import caption, check_outputs, check_place, labels_of, numbers_of, scale_of, text_of, tooltip
from .subject import Subject
from .table import Row, Table, best_table, every_design

BEYOND = "beyond a limit"


def scatter(subject: Subject, view: View) -> Picture:
    """Two outputs of every legal design at the labels of the view; of the best ones where it chooses ``over`` axes."""
    outputs = check_outputs(subject, view, [q for q in (view.x, *view.shown) if q is not None])
    if len(outputs) != 2:
        raise PerfgridError(
            f"view {view.name or view.kind}: a scatter needs an output in x and one in y: state them in a [[view]]"
        )
    names = check_place(subject, view, view.colour, view.facets)
    if view.over is None:
        table = every_design(subject, view, names, outputs)
    else:
        every = [n for n in subject.axes if n not in ([view.over] if isinstance(view.over, str) else view.over)]
        table = best_table(subject, view, list(dict.fromkeys([*names, *every])), outputs)
    x_name, y_name = outputs
    x, y = (
        value_axis(q, subject.unit(q), found, view.units, scale_of(view.model_copy(update={"y_scale": scale}), found))
        for q, scale in ((x_name, view.x_scale), (y_name, view.y_scale))
        for found in [numbers_of(table.rows, [q])]
    )
    panels = []
    for facet in labels_of(table, view.facets):
        rows = [r for r in table.rows if view.facets is None or r.place.get(view.facets) == facet]
        title = "" if view.facets is None else f"{words(view.facets)} {table.subject.text(view.facets, facet)}"
        panels.append(Panel(x, y, tuple(_series(table, view, rows, x, y)), title=title))
    why = sorted(
        {one for row in table.rows if not row.fits for text in row.reasons.values() for one in text.split("; ")}
    )
    told = f"Every mark is a legal design. Grey: {'; '.join(why)}." if why else "Every mark is a feasible design."
    legend = words(view.colour) if view.colour else ""
    return Picture(view.name, view.kind, view.title, tuple(panels), view.see, caption(table, told), legend)


def _series(table: Table, view: View, rows: list[Row], x: Axis, y: Axis) -> Iterator[Series]:
    for colour in labels_of(table, view.colour):
        own = [r for r in rows if r.fits and (colour is None or r.place.get(view.colour or "") == colour)]
        name = "feasible" if colour is None else text_of(table.subject.text(view.colour or "", colour))
        if own:
            yield _points(name, own, table, x, y)
    if beyond := [row for row in rows if not row.fits]:
        yield _points(BEYOND, beyond, table, x, y)


def _points(name: str, rows: list[Row], table: Table, x: Axis, y: Axis) -> Series:
    reasons = tuple(next(iter(r.reasons.values()), "") for r in rows)
    at, up = (tuple(r.values.get(axis.quantity, np.nan) / axis.size for r in rows) for axis in (x, y))
    labels = tuple(tooltip(r, table, [x.quantity, y.quantity]) for r in rows)
    return Series(name, "points", at, up, labels=labels, reasons=reasons if any(reasons) else ())
