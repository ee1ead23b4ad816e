"""The distribution of a quantity over the feasible designs of a study, scanned tile by tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Progress
from perfgrid.engine.reductions.quantiles import Groups, extent, histogram, quantiles
from perfgrid.engine.reductions.scan import SCAN_TILE_POINTS
from perfgrid.study.selection import reaching
from perfgrid.study.study import Study, expect_study

from .pareto import scan_of

MOST_BINS = 100_000  # of a histogram


def distribution(
    study: Study,
    of: str,
    over: str | Sequence[str] | None = None,
    at: Mapping[str, Any] | None = None,
    levels: Sequence[float] | np.ndarray = (0.05, 0.5, 0.95),
    bins: int | Sequence[float] | np.ndarray = 0,
    logarithmic: bool = False,
    tile_points: int = SCAN_TILE_POINTS,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Quantiles and a histogram of a quantity over the feasible designs along some axes, for every label of the others.

    The grid is scanned tile by tile and never kept. Quantiles are exact: the least value at or below which that share
    of the designs lies.

    Parameters
    ----------
    study
        The study; its grid may have any size.
    of
        The quantity.
    over
        The axes to reduce. Default: all that ``at`` does not select a label of.
    at
        Labels of other axes to select first.
    levels
        Shares of the designs, from 0 to 1.
    bins
        Edges of a histogram, or a number of bins between the least and the largest value; 0 for no histogram.
    logarithmic
        Bins of equal ratio instead of equal width.
    tile_points
        Points evaluated together.
    progress
        Called with phase, done and total.

    Returns
    -------
    xarray.Dataset
        The quantity along ``quantile``, ``designs`` (how many are feasible) and ``histogram`` along ``bin``, on the
        axes that are not reduced.

    Raises
    ------
    PerfgridError
        For an unknown axis, label or quantity, and levels outside [0, 1].

    Examples
    --------
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(
    ...     workload="manufacturing",
    ...     outputs=["die_cost"],
    ...     axes={"device": ["h100-sxm-80gb"], "defect_density": {"scale": [0.5, 1.0, 2.0]}},
    ... )
    >>> pg.distribution(bill, "die_cost", levels=[0.5]).die_cost.round(0).item()
    486.0
    """
    expect_study(study, "distribution")
    levels = [float(level) for level in levels]
    if not levels or not all(0 <= level <= 1 for level in levels):
        raise PerfgridError(f"quantiles lie between 0 and 1, found {levels}")
    edges, number = (None, int(bins)) if isinstance(bins, Integral) else (np.asarray(bins, float), np.size(bins) - 1)
    if number < 0 or (edges is not None and (number < 1 or not bool((np.diff(edges) > 0).all()))):
        raise PerfgridError(f"a histogram needs a number of bins or increasing edges, found {bins}")
    if number > MOST_BINS:
        raise PerfgridError(f"a histogram has at most {MOST_BINS:,} bins, found {number:,}")
    study = reaching(study, [of])
    plan, names, scan = scan_of(study, {of: 1.0}, over, at or {}, tile_points, progress)
    space, groups = plan.study_space, Groups(scan, names)
    values, count = quantiles(groups, levels)
    dims = [a.name for a in space.axes if a.name not in names]
    unit = study.registry.get(of).unit if of in study.registry.names() else "1"
    about = {"units": unit, "long_name": f"{of} of feasible designs"}
    variables: dict[str, Any] = {
        of: ([*dims, "quantile"], groups.spread(values), about),
        "designs": (dims, groups.spread(count).astype(np.int64), {"units": "1", "long_name": "feasible designs"}),
    }
    coordinates: dict[str, Any] = {"quantile": list(levels)}
    for axis in space.axes:
        if axis.name in dims:
            coordinates |= {name: (axis.name, values) for name, values in axis.coordinates().items()}
    if number:
        edges = _edges(groups, number, logarithmic) if edges is None else edges
        counts = groups.spread(histogram(groups, edges)).astype(np.int64)
        variables["histogram"] = ([*dims, "bin"], counts, {"units": "1", "long_name": f"feasible designs by {of}"})
        coordinates |= {"bin_from": ("bin", edges[:-1], {"units": unit}), "bin_to": ("bin", edges[1:], {"units": unit})}
    result = xr.Dataset(variables, coordinates, {"title": study.file.title, "study_axes": " ".join(dims)})
    single = [d for d in dims if d in (at or {})]
    return result.isel(dict.fromkeys(single, 0))


def _edges(groups: Groups, bins: int, logarithmic: bool) -> np.ndarray:
    least, largest = extent(groups)
    if not least <= largest:
        raise PerfgridError("no design is feasible, so that there is nothing to count")
    if logarithmic and least <= 0:
        raise PerfgridError(f"bins of one ratio need positive values, found {least:g}")
    if largest == least:
        largest = np.nextafter(np.float32(least), np.float32(np.inf))
    edges = np.geomspace(least, largest, bins + 1) if logarithmic else np.linspace(least, largest, bins + 1)
    edges[0], edges[-1] = least, largest
    return edges
