"""Timelines: what each device of a pipeline does when."""

from __future__ import annotations

import numpy as np
import xarray as xr

from perfgrid.analysis.timeline import timeline
from perfgrid.pictures.picture import Panel, Picture, Series
from perfgrid.study.view import View

from .marks import caption
from .subject import Subject
from .table import Table
from .words import category_axis, item_text, quantity_text, value_axis, words

BESIDE = ("wait", "transfer")  # what is left empty


def timeline_view(subject: Subject, view: View) -> Picture:
    """The pipeline of the design at the labels of the view, of the best one along axes left open."""
    return timeline_of(timeline(subject.what, view.at, subject.formulas), view, subject)


def timeline_of(found: xr.Dataset, view: View, subject: Subject | None = None) -> Picture:
    """The picture of a timeline."""
    kinds, devices, microbatches = (found[n].values for n in ("kind", "device", "microbatch"))
    start, end = found["start"].values.astype(float), found["end"].values.astype(float)
    axis = value_axis("time", "s", [float(end.max())], view.units, "linear")
    last = int(devices.max())
    series = []
    for kind in dict.fromkeys(k for k in kinds.tolist() if k not in BESIDE):
        rows = np.flatnonzero(kinds == kind)
        tips = (
            f"{words(kind)} of microbatch {microbatches[i]} on device {devices[i]}: {quantity_text(start[i], 's')} to "
            f"{quantity_text(end[i], 's')}"
            for i in rows
        )
        at, base = (tuple((values[rows] / axis.size).tolist()) for values in (end, start))
        place = tuple((last - devices[rows]).astype(float).tolist())
        series.append(Series(words(kind), "bars", at, place, base, width=0.9, labels=tuple(tips)))
    names = category_axis("device", [str(device) for device in range(last, -1, -1)])
    whole = float(found.attrs["pipeline_time"])
    busy = sum(float((end - start)[kinds == k].sum()) for k in set(kinds.tolist()) - set(BESIDE)) / (whole * (last + 1))
    design = ", ".join(f"{words(n)} {item_text(v)}" for n, v in found.attrs.items() if isinstance(v, str))
    told = f"{quantity_text(whole, 's')} of pipeline; white is waiting. Design: {design}."
    if busy <= 1:
        told = f"{quantity_text(whole, 's')} of pipeline, {1 - busy:.0%} of it waiting (white). Design: {design}."
    lines = (told, *caption(Table(subject, []))[-1:]) if subject is not None else (told,)
    return Picture(view.name, "timeline", view.title, (Panel(axis, names, tuple(series)),), view.see, lines, "pass")
