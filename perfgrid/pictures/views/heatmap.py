"""Heat maps: an output of the best design at each pair of labels, such as all layouts; infeasible cells say why."""

from __future__ import annotations

from string import ascii_lowercase

import numpy as np

from perfgrid.pictures.picture import Cells, Panel, Picture
from perfgrid.study.view import View
from perfgrid.text.words import digits, words

from .axes import category_axis, value_axis
from .marks import caption, check_outputs, check_place, labels_of, numbers_of, place_of, tooltip
from .subject import Subject
from .table import Row, best_table

WIDE = 12  # columns of all panels up to which cells have room for four digits


def heatmap(subject: Subject, view: View) -> Picture:
    """The cells of two axes or coordinates; without a stated one the layouts, pp against tp."""
    x, y = view.x or "tp", (view.shown or ["pp"])[0]
    places = check_place(subject, view, x, y, view.facets)
    best = subject.objective
    value = view.value or (best and (best.minimize or best.maximize)) or subject.outputs[0]
    check_outputs(subject, view, [value])
    table = best_table(subject, view, places, [value], intervals=False)
    unit = table.subject.unit(value)
    axis = value_axis(value, unit, numbers_of(table.rows, [value]), view.units, view.y_scale)
    columns, lines = labels_of(table, x), labels_of(table, y)
    if not all(isinstance(label, int | float) for label in lines):
        lines = lines[::-1]  # names are read from the top
    significant = 4 if len(columns) * len(labels_of(table, view.facets)) <= WIDE else 3
    letters: dict[str, str] = {}
    panels = []
    for facet in labels_of(table, view.facets):
        rows: dict[tuple[object, object], Row] = {
            (place_of(r, table, x), place_of(r, table, y)): r
            for r in table.rows
            if view.facets is None or r.place.get(view.facets) == facet
        }
        numbers, texts, labels, reasons = [], [], [], []
        for line in lines:
            found = [rows.get((column, line), Row({}, {}, {}, {})) for column in columns]
            numbers.append(tuple(r.values.get(value, np.nan) / axis.size for r in found))
            why = [r.reasons.get(value, "") for r in found]
            for reason in filter(None, why):
                letters.setdefault(reason, (*ascii_lowercase, "*")[min(len(letters), 26)])
            reasons.append(tuple(why))
            texts.append(
                tuple(letters[w] if w else digits(n, significant) for n, w in zip(numbers[-1], why, strict=True))
            )
            labels.append(tuple(tooltip(r, table, [value]) if r.place else "no such design" for r in found))
        names = [[table.subject.text(n, label) for label in every] for n, every in ((x, columns), (y, lines))]
        title = "" if view.facets is None else f"{words(view.facets)} {table.subject.text(view.facets, facet)}"
        cells = Cells(axis, tuple(numbers), tuple(texts), tuple(labels), tuple(reasons))
        panels.append(Panel(category_axis(x, names[0]), category_axis(y, names[1]), cells=cells, title=title))
    told = [f"{letter}: infeasible, {reason}" for reason, letter in letters.items()]
    if any(not t for panel in panels if panel.cells for line in panel.cells.texts for t in line):
        told.append("empty: no such design")
    legend = "; ".join(told) + "." if told else ""
    return Picture(view.name, view.kind, view.title, tuple(panels), view.see, caption(table, legend))
