"""Pictures of what other commands save: distributions, quantiles, Morris and Sobol, elasticities, optima."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.pictures.picture import Axis, Panel, Picture, Series
from perfgrid.study.view import View
from perfgrid.text.numbers import label_text
from perfgrid.text.words import words

from .axes import category_axis, quantity_text, value_axis

MOST_GROUPS = 40
RANKINGS = {  # of estimates or parameters: variable, what it is
    "total": "share of the variance, alone and with others (Sobol)",
    "mean_absolute_effect": "mean absolute effect (Morris)",
}


def rankings(found: xr.Dataset, view: View) -> Picture:
    """The indices of estimates or the elasticities of parameters, the largest first; means over designs."""
    name = next((n for n in (*RANKINGS, *map(str, found.data_vars)) if n in found and _ranked(n)), None)
    if name is None:
        raise PerfgridError("nothing to draw: the result holds no index and no elasticity")
    unit = str(found.attrs.get("units", "1")) if name == "mean_absolute_effect" else "1"
    values = found[name]
    sizes = np.nanmean(values.transpose("parameter", ...).values.reshape(values.sizes["parameter"], -1), axis=1)
    order = [i for i in np.argsort(-np.abs(sizes), kind="stable") if np.isfinite(sizes[i])][: view.count]
    axis = value_axis(name, unit, sizes[order].tolist(), view.units, view.x_scale, RANKINGS.get(name, words(name)))
    ends = found.get(f"{name}_confidence")
    low, high = (), ()
    if ends is not None and ends.sizes == values.sizes == {"parameter": values.size}:
        low, high = (tuple(((sizes + s * ends.values) / axis.size)[order].tolist()) for s in (-1, 1))
    last = len(order) - 1
    names = [words(str(found["parameter"].values[i])) for i in order]
    one = Series(
        axis.label,
        "bars",
        tuple((sizes[order] / axis.size).tolist()),
        tuple(float(last - i) for i in range(len(order))),
        low=low,
        high=high,
        labels=tuple(f"{n} {quantity_text(sizes[i], unit)}" for n, i in zip(names, order, strict=True)),
    )
    several = values.size // values.sizes["parameter"]
    told = (f"Means over {several:,} designs.",) if several > 1 else ()
    panel = Panel(axis, category_axis("", names[::-1]), (one,))
    return Picture(view.name, "bars", view.title, (panel,), view.see, told)


def _ranked(name: str) -> bool:
    return name in RANKINGS or name.endswith(("_elasticity", "_gradient"))


def spreads(found: xr.Dataset, view: View) -> Picture:
    """Quantiles of every group: the middle one with the least and the largest as its interval."""
    names = [str(n) for n, v in found.data_vars.items() if "quantile" in v.dims]
    quantity = (view.shown or names)[0]
    array = found[quantity].transpose("quantile", ...)
    levels = array["quantile"].values.astype(float)
    dims = [str(d) for d in array.dims[1:]]
    places = list(np.ndindex(*array.shape[1:]))[:MOST_GROUPS]
    labels = [", ".join(_label(array, d, i) for d, i in zip(dims, place, strict=True)) or "all" for place in places]
    values = np.array([array.values[(slice(None), *place)] for place in places], float)
    middle = int(np.argmin(np.abs(levels - 0.5)))
    unit = str(array.attrs.get("units", "1"))
    axis = value_axis(quantity, unit, values[:, middle].tolist(), view.units, view.x_scale)
    last = len(places) - 1
    low, at, high = (tuple((values[:, i] / axis.size).tolist()) for i in (0, middle, -1))
    one = Series(
        f"{levels[middle]:.0%}",
        "bars",
        at,
        tuple(float(last - i) for i in range(len(places))),
        low=low,
        high=high,
        labels=tuple(
            f"{n}: {', '.join(quantity_text(v, unit) for v in row)}" for n, row in zip(labels, values, strict=True)
        ),
    )
    told = f"Bars: {levels[middle]:.0%} lie at or below. Intervals: from {levels[0]:.0%} to {levels[-1]:.0%}."
    panel = Panel(axis, category_axis("", labels[::-1]), (one,))
    return Picture(view.name, "bars", view.title, (panel,), view.see, (told,))


def histogram(found: xr.Dataset, view: View) -> Picture:
    """How many designs lie in each bin, of all groups together."""
    counts = found["histogram"].values.reshape(-1, found.sizes["bin"]).sum(axis=0).astype(float)
    quantity = next(str(n) for n, v in found.data_vars.items() if "quantile" in v.dims)
    unit = str(found[quantity].attrs.get("units", "1"))
    ends = [*found["bin_from"].values.tolist(), float(found["bin_to"].values[-1])]
    axis = value_axis(quantity, unit, ends, view.units, view.x_scale)
    at = np.repeat(np.array(ends) / axis.size, 2)[1:-1]
    tips = [
        f"{c:,.0f} designs from {quantity_text(a, unit)} to {quantity_text(b, unit)}"
        for c, a, b in zip(counts, ends, ends[1:], strict=False)
    ]
    one = Series(
        "designs",
        "line",
        tuple(at.tolist()),
        tuple(np.repeat(counts, 2).tolist()),
        labels=tuple(np.repeat(tips, 2).tolist()),
    )
    panel = Panel(axis, Axis("designs", quantity="designs"), (one,))
    return Picture(view.name, "lines", view.title, (panel,), view.see, ("Feasible designs of all groups.",))


def optimum(found: xr.Dataset, view: View) -> Picture:
    """The objective of every optimum, or what ``y`` of the view names (free quantities, outputs of one unit), piled."""
    names = view.shown or ["objective"]
    for name in names:
        if name not in found.data_vars or found[name].dtype.kind not in "fi":
            raise PerfgridError(f"optima have no number {name!r}{nearest(name, map(str, found.data_vars))}")
    array = found["objective"]
    dims, last = [str(d) for d in array.dims], min(array.size, MOST_GROUPS) - 1
    places = list(np.ndindex(*array.shape))[: last + 1]
    labels = [", ".join(_label(array, d, i) for d, i in zip(dims, place, strict=True)) or "optimum" for place in places]
    possible = [
        bool(np.broadcast_to(found["feasible"].values, array.shape)[p]) if "feasible" in found else True for p in places
    ]
    columns = [[float(found[n].broadcast_like(array).values[place]) for place in places] for n in names]
    unit = str(found[names[0]].attrs.get("units", "1"))
    label = words(str(array.attrs.get("long_name", "objective"))) if not view.shown else words(names[0])
    axis = value_axis(names[0], unit, np.sum(columns, axis=0).tolist(), view.units, view.x_scale, label)
    if len(names) > 1:
        axis = replace(axis, label=words(names[0].partition(".")[0]))
    left, series = np.zeros(len(places)), []
    for name, values in zip(names, columns, strict=True):
        ends = left + [v / axis.size if ok else np.nan for v, ok in zip(values, possible, strict=True)]
        texts = (f"{n}: {words(name)} {quantity_text(v, unit)}" for n, v in zip(labels, values, strict=True))
        one = Series(
            words(name.rpartition(".")[2]),
            "bars",
            tuple(ends.tolist()),
            tuple(float(last - i) for i in range(len(places))),
            labels=tuple(texts),
            reasons=tuple("" if ok else "no feasible design" for ok in possible),
            base=tuple(left.tolist()),
        )
        series.append(one)
        left = np.nan_to_num(ends)
    panel = Panel(axis, category_axis("", labels[::-1]), tuple(series))
    return Picture(view.name, "bars", view.title, (panel,), view.see, ("The optimum of each label.",))


def _label(array: xr.DataArray, dim: str, place: int) -> str:
    label = array[dim].values[place] if dim in array.coords else place
    return label_text(label.item() if isinstance(label, np.generic) else label)
