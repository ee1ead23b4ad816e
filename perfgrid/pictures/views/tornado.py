"""Tornados: an output with each estimate of the catalog at the ends of its range."""

from __future__ import annotations

import numpy as np
import xarray as xr

from perfgrid.analysis.uncertainty import as_stated, tornado
from perfgrid.engine.errors import PerfgridError
from perfgrid.pictures.picture import Panel, Picture, Rule, Series
from perfgrid.study.selection import reaching
from perfgrid.study.study import Study
from perfgrid.study.view import View
from perfgrid.text.words import words

from .axes import category_axis, quantity_text, value_axis
from .marks import caption, check_outputs
from .subject import Subject
from .table import Table, choice_of

LEAST = 1e-3  # of the output: swings below are left out


def tornado_view(subject: Subject, view: View) -> Picture:
    """The swing of output ``y`` by each estimate, the largest first."""
    if not isinstance(subject.what, Study):
        raise PerfgridError(f"view {view.name or view.kind}: a tornado needs a study: it evaluates the ends of ranges")
    if view.shown:
        (output,) = check_outputs(subject, view, view.shown[:1])
    else:
        choice = choice_of(subject, view, [], subject.outputs)
        output = choice.minimize or choice.maximize or ""
    found = tornado(reaching(as_stated(subject.what), [output]), output, view.at)
    return tornado_of(found, view, subject)


def tornado_of(found: xr.Dataset, view: View, subject: Subject | None = None) -> Picture:
    """The picture of a tornado."""
    output, unit, stated = str(found.attrs["output"]), str(found.attrs.get("units", "1")), float(found["stated"])
    swings = np.abs(found["high"].values - found["low"].values)
    kept = np.flatnonzero(swings > LEAST * abs(stated))[: view.count]
    names = [str(n) for n in found["assumption"].values[kept]]
    ends = {end: found[end].values[kept].astype(float).tolist() for end in ("low", "high")}
    axis = value_axis(output, unit, [stated], view.units, view.x_scale)
    last = len(names) - 1
    series = tuple(
        Series(
            f"estimate at its {end} end",
            "bars",
            tuple(v / axis.size for v in values),
            tuple(float(last - i) for i in range(len(names))),
            (stated / axis.size,) * len(names),
            labels=tuple(
                f"{words(n)} at its {end} end: {quantity_text(v, unit)}" for n, v in zip(names, values, strict=True)
            ),
        )
        for end, values in ends.items()
    )
    rule = Rule(f"as stated: {quantity_text(stated, unit)}", "x", stated / axis.size)
    panel = Panel(axis, category_axis("", [words(n) for n in reversed(names)]), series, rules=(rule,))
    told = "Each bar moves one estimate of the catalog to the ends of its 90 % range; all others stay."
    design = f"Design: {found.attrs['design']}." if found.attrs.get("design") else ""
    lines = caption(Table(subject, []), told, design) if subject is not None else (told, *filter(None, [design]))
    return Picture(view.name, "tornado", view.title, (panel,), view.see, lines, words(output))
