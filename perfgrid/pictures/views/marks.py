"""Marks of a table: rows that share a panel and a colour become a series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.formulas import INNER
from perfgrid.pictures.picture import Axis, Series
from perfgrid.study.view import View
from perfgrid.text.words import item_text, words

from .axes import category_axis, label_axis, quantity_text
from .subject import Subject
from .table import Row, Table

MOST_REASONS = 4  # that a caption names
LOG_FROM = 30.0  # largest over smallest value from which an axis of lines is logarithmic


def check_place(subject: Subject, view: View, *names: str | None) -> list[str]:
    """The axes, coordinates and inner axes of outputs among names. PerfgridError for others."""
    known = (*subject.axes, *subject.coordinates)
    for name in (n for n in names if n is not None):
        if name not in known and not subject.inner(name):
            raise PerfgridError(f"view {view.name or view.kind}: there is no axis {name!r}{nearest(name, known)}")
    return [n for n in names if n is not None]


def check_outputs(subject: Subject, view: View, names: Sequence[str]) -> list[str]:
    """The outputs that a view shows. PerfgridError for unknown ones and for none."""
    if not names:
        raise PerfgridError(f"view {view.name or view.kind}: names no output in y")
    for name in names:
        if not subject.knows(name):
            raise PerfgridError(
                f"view {view.name or view.kind}: unknown output {name!r}{nearest(name, subject.outputs)}"
            )
    return list(names)


def labels_of(table: Table, name: str | None) -> list[Any]:
    """The labels of an axis or a coordinate that have a row, in the order of the study; one without a name."""
    if name is None:
        return [None]
    held = {row.place[name] for row in table.rows if name in row.place}
    if table.subject.inner(name):
        return [label for label in INNER.labels[name] if label in held]
    if name in table.subject.axes:
        return [label for label in table.subject.axes[name] if label in held] or [*table.subject.axes[name]]
    return sorted(held)


def place_of(row: Row, table: Table, name: str) -> Any:
    """The label of a row; of an axis with one label that one."""
    if name in row.place:
        return row.place[name]
    return row.design.get(name, table.subject.axes.get(name, ("",))[0])


def tooltip(row: Row, table: Table, quantities: Sequence[str]) -> str:
    """The design of a mark and its numbers."""
    subject = table.subject
    labels = {**row.place} | {n: v for n, v in row.design.items() if len(subject.axes.get(n, (0, 0))) > 1}
    texts = [f"{words(n)} {subject.text(n, v)}" for n, v in labels.items()]
    for q in quantities:
        value = row.values.get(q, np.nan)
        shown = quantity_text(value, subject.unit(q)) if np.isfinite(value) else row.reasons.get(q, "no design")
        texts.append(f"{words(q)} {shown}")
    if row.interval is not None and table.objective in quantities:
        low, high = (quantity_text(end, subject.unit(table.objective)) for end in row.interval)
        texts.append(f"90 of 100 within {low} to {high}")
    return ", ".join(texts)


def place_axis(table: Table, name: str, view: View, categories: bool) -> tuple[Axis, dict[Any, float]]:
    """The axis of an axis or a coordinate, and the number of each label on it."""
    labels = labels_of(table, name)
    numeric = all(isinstance(label, int | float) and not isinstance(label, bool) for label in labels)
    if numeric and not categories and len(labels) > 1:
        axis = label_axis(name, table.subject.unit(name), labels, name in table.subject.scaled, view.x_scale)
        return axis, {label: float(label) / axis.size for label in labels}
    texts = [table.subject.text(name, label) for label in labels]
    return category_axis(name, texts), {label: float(i) for i, label in enumerate(labels)}


def series_of(
    name: str,
    shape: Any,
    rows: Sequence[Row],
    table: Table,
    place: Mapping[Any, float],
    x: str,
    quantity: str,
    size: float,
    **more: Any,
) -> Series:
    """The marks of rows in the order of ``x``."""
    rows = sorted(rows, key=lambda row: place[place_of(row, table, x)])
    numbers = tuple(float(row.values.get(quantity, np.nan)) / size for row in rows)
    held = [row.interval if quantity == table.objective else None for row in rows]
    some = any(held)
    low, high = (tuple(ends[i] / size if ends else np.nan for ends in held) if some else () for i in range(2))
    reasons = tuple(row.reasons.get(quantity, "") for row in rows)
    return Series(
        name,
        shape,
        tuple(place[place_of(row, table, x)] for row in rows),
        numbers,
        low=low,
        high=high,
        labels=tuple(tooltip(row, table, [quantity]) for row in rows),
        reasons=reasons if any(reasons) else (),
        **more,
    )


def caption(table: Table, *more: str, crosses: bool = False) -> tuple[str, ...]:
    """What was chosen, what all designs share, and the sources."""
    subject = table.subject
    same = subject.stated()
    why = (
        []
        if not crosses
        else sorted({one for r in table.rows for text in r.reasons.values() for one in text.split("; ")})
    )
    lines = [f"Each mark is the best design: {words_of(table.chosen)}." if table.chosen else "", *more]
    lines.append(f"\u00d7: infeasible, {'; '.join(why[:MOST_REASONS])}." if why else "")
    lines.append(f"At {same}." if same else "")
    sources = subject.sources()
    lines.append(f"Sources: {sources}." if sources else "")
    return tuple(line for line in lines if line)


def words_of(text: str) -> str:
    """A phrase with the names in it as words."""
    return " ".join(words(word) for word in text.split())


def text_of(label: Any) -> str:
    """A label as the name of a series."""
    return item_text(label)


def numbers_of(rows: Sequence[Row], quantities: Sequence[str]) -> list[float]:
    """All numbers of quantities that are there."""
    found = [row.values.get(q, np.nan) for row in rows for q in quantities]
    return [float(v) for v in found if np.isfinite(v)]


def scale_of(view: View, values: Sequence[float]) -> Any:
    """The scale of an axis of numbers: as stated, else logarithmic where they differ widely."""
    wide = bool(values) and min(values) > 0 and max(values) > LOG_FROM * min(values)
    return view.y_scale or ("log" if wide else "linear")
