"""Predictions beside measurements: what `perfgrid validate` saves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.pictures.picture import Axis, Panel, Picture, Series
from perfgrid.study.view import View
from perfgrid.text.words import words

from .axes import quantity_text, value_axis

MOST_GROUPS = 6  # sources with a colour of their own
LINE, OTHERS = "predicted as measured", "other sources"


def measured(found: xr.Dataset, view: View) -> Picture:
    """Predicted against measured values with their intervals, a panel for each kind of record and unit.

    ``colour`` of the view names a coordinate of the records (their source), ``at`` labels of others, such as a kind.
    """
    for name in (*view.at, *([view.colour] if view.colour else [])):
        if name not in found.coords:
            raise PerfgridError(f"records have no {name!r}{nearest(name, map(str, found.coords))}")
    predicted = np.isfinite(found["predicted"].values)
    for name, label in view.at.items():
        predicted &= found[name].isin(label if isinstance(label, list) else [label]).values
    kinds, units, groups = (found[n].values.astype(str) for n in ("kind", "unit", view.colour or "group"))
    named = [group for group, _ in Counter(groups[predicted].tolist()).most_common(MOST_GROUPS)]
    panels = []
    for kind, unit in product(dict.fromkeys(kinds.tolist()), dict.fromkeys(units.tolist())):
        rows = np.flatnonzero(predicted & (kinds == kind) & (units == unit))
        if len(rows):
            panels.append(_panel(found, rows, groups, named, unit, kind))
    if not panels:
        raise PerfgridError("nothing to draw: no record is predicted")
    told = f"{int(predicted.sum()):,} records. Line: {LINE}. Intervals: where 90 of 100 measurements are expected."
    legend = words(view.colour) if view.colour else "source"
    return Picture(view.name, "scatter", view.title, tuple(panels), view.see, (told,), legend)


def _panel(
    found: xr.Dataset, rows: np.ndarray, groups: np.ndarray, named: Sequence[str], unit: str, title: str
) -> Panel:
    values = [found[n].values[rows].astype(float) for n in ("measured", "predicted")]
    ends = (float(min(v.min() for v in values)), float(max(v.max() for v in values)))
    x = value_axis("measured", unit, np.concatenate(values).tolist(), {}, "log")
    y = Axis("predicted", x.unit, "log", quantity="predicted", size=x.size)
    line = Series(LINE, "line", tuple(e / x.size for e in ends), tuple(e / x.size for e in ends))
    return Panel(x, y, (line, *_series(found, rows, groups, named, unit, x.size)), title=title)


def _series(
    found: xr.Dataset, rows: np.ndarray, groups: np.ndarray, named: Sequence[str], unit: str, size: float
) -> Iterator[Series]:
    for name in (*named, OTHERS):
        own = rows[[(g == name) or (name == OTHERS and g not in named) for g in groups[rows]]]
        if not len(own):
            continue
        x, y = (found[n].values[own].astype(float) for n in ("measured", "predicted"))
        low, high = (tuple((found[n].values[own] / size).tolist()) if n in found else () for n in ("low", "high"))
        tips = (
            f"{record}: measured {quantity_text(a, unit)}, predicted {quantity_text(b, unit)}"
            for record, a, b in zip(found["record"].values[own], x, y, strict=True)
        )
        at, up = tuple((x / size).tolist()), tuple((y / size).tolist())
        yield Series(name, "points", at, up, low=low, high=high, labels=tuple(tips))
