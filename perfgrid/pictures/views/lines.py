"""Lines and bars: outputs of the best designs against labels of an axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfgrid.pictures.picture import Axis, Panel, Picture, Series
from perfgrid.study.view import View
from perfgrid.text.words import words

from .axes import value_axis
from .marks import (
    caption,
    check_outputs,
    check_place,
    labels_of,
    numbers_of,
    place_axis,
    place_of,
    scale_of,
    series_of,
    text_of,
)
from .subject import Subject
from .table import Row, Table, best_table

ADDING = "resource"  # the inner axis along which times add up
ACROSS = 70  # characters of all labels together from which bars lie on their side
TOGETHER = 0.84  # of the distance of two places: the width of all bars of one


def lines(subject: Subject, view: View) -> Picture:
    """Lines of outputs against an axis: a line for each label of the colour, or for each output."""
    return _picture(subject, view, stacked=False)


def bars(subject: Subject, view: View) -> Picture:
    """Bars of one output, side by side for each label of the colour; several outputs of one unit are stacked."""
    return _picture(subject, view, stacked=True)


def _picture(subject: Subject, view: View, stacked: bool) -> Picture:
    places = check_place(subject, view, view.x, view.colour, view.facets)
    outputs = check_outputs(subject, view, view.shown)
    if view.x is None:
        places = check_place(subject, view, next(iter(subject.axes)), *places)
        view = view.model_copy(update={"x": places[0]})
    table = best_table(subject, view, places, outputs)
    units = {table.subject.unit(name) for name in outputs}
    groups = [outputs] if len(units) == 1 and (view.colour is None or len(outputs) == 1) else [[q] for q in outputs]
    panels = [
        _panel(
            table,
            view,
            group,
            [r for r in table.rows if view.facets is None or r.place.get(view.facets) == facet],
            stacked,
            title,
        )
        for group, facet, title in _panels(table, view, groups)
    ]
    panels = [panel for panel in panels if panel.series]
    one = view.colour is None and all(len(group) == 1 for group in groups)
    legend = "" if one or view.colour is None else words(view.colour)
    return Picture(view.name, view.kind, view.title, tuple(panels), view.see, caption(table, crosses=True), legend)


def _panels(table: Table, view: View, groups: Sequence[list[str]]) -> Iterator[tuple[list[str], Any, str]]:
    for facet in labels_of(table, view.facets):
        for group in groups:
            yield group, facet, "" if facet is None else facet_title(table, view.facets or "", facet)


def facet_title(table: Table, facets: str, label: Any) -> str:
    """Title of the panel of a label."""
    return f"{words(facets)} {table.subject.text(facets, label)}"


def _panel(table: Table, view: View, outputs: list[str], rows: list[Row], stacked: bool, title: str) -> Panel:
    x = view.x or ""
    place_rows = [r for r in rows if x in r.place or x in r.design or r.reasons]
    x_axis, place = place_axis(table, x, view, categories=stacked)
    numbers = numbers_of(table.rows, outputs)
    parts = view.colour == ADDING and table.subject.inner(ADDING)
    stack = stacked and (len(outputs) > 1 or parts)
    if stack:
        numbers = _together(table.rows, outputs, view.colour if parts else None)
    unit = table.subject.unit(outputs[0])
    label = words(outputs[0]) if len(outputs) == 1 else _shared(outputs)
    scale = (view.y_scale or "linear") if stacked else scale_of(view, numbers)
    y_axis = value_axis(outputs[0] if len(outputs) == 1 else "", unit, numbers, view.units, scale, label)
    if len(outputs) > 1 and outputs[0] in view.units:
        y_axis = value_axis(outputs[0], unit, numbers, view.units, scale, label)
    series = list(_series(table, view, outputs, place_rows, place, x, y_axis, stacked, apart=not parts))
    if stack:
        series = list(piled(s for s in series if not parts or np.nansum(np.abs(s.y)) > 0))
    panel = Panel(x_axis, y_axis, tuple(series), title=title)
    return lying(panel) if stacked and sum(map(len, x_axis.categories)) > ACROSS else panel


def _series(
    table: Table,
    view: View,
    outputs: list[str],
    rows: list[Row],
    place: dict[Any, float],
    x: str,
    y_axis: Axis,
    stacked: bool,
    apart: bool = True,
) -> Iterator[Series]:
    shape = "bars" if stacked else "line"
    colours = labels_of(table, view.colour)
    width = TOGETHER / (len(colours) if apart else 1)
    for i, colour in enumerate(colours):
        own = [r for r in rows if colour is None or place_of(r, table, view.colour or "") == colour]
        for output in outputs:
            name = words(output) if colour is None else text_of(table.subject.text(view.colour or "", colour))
            found = series_of(name, shape, own, table, place, x, output, y_axis.size)
            if stacked:
                offset = (i - (len(colours) - 1) / 2) * width if apart else 0.0
                found = replace(found, x=tuple(v + offset for v in found.x), width=width)
            if np.isfinite(found.y).any() or found.reasons:
                yield found


def _together(rows: Sequence[Row], outputs: Sequence[str], along: str | None) -> list[float]:
    """The height of each pile: the sum of outputs, and of the rows that differ by a label of ``along`` alone."""
    sums: dict[tuple[Any, ...], float] = {}
    for row in rows:
        place = tuple(label for name, label in row.place.items() if name != along)
        sums[place] = sums.get(place, 0.0) + sum(row.values.get(q, np.nan) for q in outputs)
    return list(sums.values())


def piled(series: Iterable[Series]) -> Iterator[Series]:
    """Bars on top of each other."""
    height: dict[float, float] = {}
    for one in series:
        base = tuple(height.get(x, 0.0) for x in one.x)
        top = tuple(b + (y if np.isfinite(y) else 0.0) for b, y in zip(base, one.y, strict=True))
        height |= dict(zip(one.x, top, strict=True))
        yield replace(one, y=tuple(t if np.isfinite(y) else np.nan for t, y in zip(top, one.y, strict=True)), base=base)


def lying(panel: Panel) -> Panel:
    """Bars on their side, for long names; the first one on top."""
    last = len(panel.x.categories) - 1
    names = replace(panel.x, categories=panel.x.categories[::-1])
    turned = (replace(s, x=s.y, y=tuple(last - x for x in s.x)) for s in panel.series)
    rules = (replace(rule, along="x") for rule in panel.rules)  # of numbers
    return replace(panel, x=panel.y, y=names, series=tuple(turned), rules=tuple(rules))


def _shared(names: Sequence[str]) -> str:
    """The words that several names have in common, such as cost of die_cost and cost_per_token; else nothing."""
    return words("_".join(word for word in names[0].split("_") if all(word in name.split("_") for name in names)))
