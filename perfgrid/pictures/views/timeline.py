"""Timelines: what each device of a pipeline does when, or what the passes of serving run and wait for."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import xarray as xr

from perfgrid.analysis.timeline import timeline
from perfgrid.pictures.picture import Panel, Picture, Series
from perfgrid.study.view import View
from perfgrid.text.words import item_text, words

from .axes import category_axis, quantity_text, value_axis
from .marks import caption
from .subject import Subject
from .table import Table

BESIDE = ("wait", "transfer")  # what is left empty
WIDTH = 0.9


def timeline_view(subject: Subject, view: View) -> Picture:
    """The pipeline of the design at the labels of the view, of the best one along axes left open."""
    return timeline_of(timeline(subject.what, view.at, subject.formulas), view, subject)


def timeline_of(found: xr.Dataset, view: View, subject: Subject | None = None) -> Picture:
    """The picture of a timeline."""
    if "pass" in found:
        return _passes(found, view, subject)
    kinds, devices, microbatches = (found[n].values for n in ("kind", "device", "microbatch"))
    start, end = found["start"].values.astype(float), found["end"].values.astype(float)
    axis = value_axis("time", "s", [float(end.max())], view.units, "linear")
    last = int(devices.max())
    work = ~np.isin(kinds, BESIDE)
    together = pd.DataFrame({"device": devices, "start": start, "end": end})[work].duplicated(keep=False)
    paired = np.zeros(len(kinds), bool)
    paired[work] = together.values  # two passes side by side: the upper and the lower half of a bar
    series = []
    for kind, beside in product(dict.fromkeys(kinds[work].tolist()), (False, True)):
        rows = np.flatnonzero((kinds == kind) & (paired == beside))
        if not len(rows):
            continue
        tips = (
            f"{words(kind)} of microbatch {microbatches[i]} on device {devices[i]}: {quantity_text(start[i], 's')} to "
            f"{quantity_text(end[i], 's')}"
            for i in rows
        )
        at, base = (tuple((values[rows] / axis.size).tolist()) for values in (end, start))
        shift = (WIDTH / 4 if kind == "forward" else -WIDTH / 4) if beside else 0.0
        place = tuple((last - devices[rows] + shift).astype(float).tolist())
        width = WIDTH / 2 if beside else WIDTH
        series.append(Series(words(kind), "bars", at, place, base, width=width, labels=tuple(tips)))
    names = category_axis("device", [str(device) for device in range(last, -1, -1)])
    whole = float(found.attrs["pipeline_time"])
    waits = float((end - start)[kinds == "wait"].sum()) / (whole * (last + 1))
    told = f"{quantity_text(whole, 's')} of pipeline, {waits:.0%} of it waiting (white). Design: {_design(found)}."
    lines = _lines(told, subject)
    return Picture(view.name, "timeline", view.title, (Panel(axis, names, tuple(series)),), view.see, lines, "pass")


def _passes(found: xr.Dataset, view: View, subject: Subject | None) -> Picture:
    """A panel for each pass: a row for kernels and each kind of wait, a colour for what bounds them."""
    which, kinds, bounds = (found[n].values.astype(str) for n in ("pass", "kind", "bound_by"))
    start, end = found["start"].values.astype(float), found["end"].values.astype(float)
    panels, told = [], []
    for one in dict.fromkeys(which.tolist()):
        own = which == one
        longest = [float(end[own].max())]
        axis = value_axis("time", "s", longest, view.units, "linear", f"time of {words(one)}")
        rows = list(dict.fromkeys(kinds[own].tolist()))[::-1]
        series = []
        for bound in dict.fromkeys(bounds.tolist()):
            held = np.flatnonzero(own & (bounds == bound))
            if len(held):
                at, base = (tuple((values[held] / axis.size).tolist()) for values in (end, start))
                place = tuple(float(rows.index(kinds[i])) for i in held)
                tips = tuple(_run_text(found, int(i), float(end[i] - start[i])) for i in held)
                series.append(Series(words(bound), "bars", at, place, base, width=WIDTH, labels=tips))
        told.append(f"{one} {quantity_text(longest[0], 's')}")
        panels.append(Panel(axis, category_axis("", [words(row) for row in rows]), tuple(series), title=one))
    lines = _lines(f"One pass of each kind: {', '.join(told)}. Design: {_design(found)}.", subject)
    return Picture(view.name, "timeline", view.title, tuple(panels), view.see, lines, "bound by")


def _run_text(found: xr.Dataset, event: int, time: float) -> str:
    layer = int(found["layer"].values[event])
    where = f" in layer {layer}" if layer >= 0 else ""
    return f"{words(str(found['name'].values[event]))}{where}: {quantity_text(time, 's')}"


def _design(found: xr.Dataset) -> str:
    return ", ".join(f"{words(str(n))} {item_text(v)}" for n, v in found.attrs.items() if isinstance(v, str))


def _lines(told: str, subject: Subject | None) -> tuple[str, ...]:
    return (told, *(caption(Table(subject, []))[-1:] if subject is not None else ()))
