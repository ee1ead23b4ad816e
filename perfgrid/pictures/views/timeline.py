"""Timelines: what each device of a pipeline does when."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import xarray as xr

from perfgrid.analysis.timeline import timeline
from perfgrid.pictures.picture import Panel, Picture, Series
from perfgrid.study.view import View

from .marks import caption
from .subject import Subject
from .table import Table
from .words import category_axis, item_text, quantity_text, value_axis, words

BESIDE = ("wait", "transfer")  # what is left empty
WIDTH = 0.9


def timeline_view(subject: Subject, view: View) -> Picture:
    """The pipeline of the design at the labels of the view, of the best one along axes left open."""
    return timeline_of(timeline(subject.what, view.at, subject.formulas), view, subject)


def timeline_of(found: xr.Dataset, view: View, subject: Subject | None = None) -> Picture:
    """The picture of a timeline."""
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
    design = ", ".join(f"{words(n)} {item_text(v)}" for n, v in found.attrs.items() if isinstance(v, str))
    told = f"{quantity_text(whole, 's')} of pipeline, {waits:.0%} of it waiting (white). Design: {design}."
    lines = (told, *caption(Table(subject, []))[-1:]) if subject is not None else (told,)
    return Picture(view.name, "timeline", view.title, (Panel(axis, names, tuple(series)),), view.see, lines, "pass")
