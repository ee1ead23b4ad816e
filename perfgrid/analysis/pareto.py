"""Frontiers and distributions of a study whose grid is never kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Progress, enable_compilation_cache
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.reductions.pareto import front
from perfgrid.engine.reductions.quantiles import Groups, extent, histogram, quantiles
from perfgrid.engine.reductions.scan import SCAN_TILE_POINTS, Scan
from perfgrid.study.selection import reaching
from perfgrid.study.study import Study

from .best import at_points, selected

DESIGN = "design"  # dimension of the designs of a frontier


def pareto(
    study: Study,
    minimize: Sequence[str],
    maximize: Sequence[str] = (),
    over: str | Sequence[str] | None = None,
    at: Mapping[str, Any] | None = None,
    tile_points: int = SCAN_TILE_POINTS,
    progress: Progress | None = None,
) -> xr.Dataset:
    """The designs along the axes ``over`` that are feasible for all objectives and that no other beats in each of them.

    They are found for every label of the other axes. Of every tile only designs stay that none before beats, so a
    billion points need little memory. Outputs that other constraints make illegal there are NaN. Without ``over``
    all axes are searched that ``at`` does not select a label of. The result has one dimension ``design``, ordered by
    group and by the first objective, best first; labels of all axes are coordinates. Clusters of all sizes compete:
    take a cost among the objectives, or an axis of one size. Raises PerfgridError for unknown names, for fewer than two
    objectives and for quantities with inner axes.
    """
    signs = {name: 1.0 for name in minimize} | {name: -1.0 for name in maximize}
    if len(signs) < 2 or len(signs) < len([*minimize, *maximize]):
        raise PerfgridError(f"a frontier lies between two or more different objectives, found {[*minimize, *maximize]}")
    study = reaching(study, signs)
    plan, names, scan = _scan(study, signs, over, at or {}, tile_points, progress)
    space, found = plan.study_space, front(scan, names)
    places = found.index if len(found.scores) else tuple(np.zeros(1, int) for _ in space.axes)
    result = at_points(study, plan, plan.concerning(*signs), places)
    result = result.rename({"point": DESIGN} if "point" in result.dims else {})
    coordinates: dict[str, Any] = {}
    for axis, rows in zip(space.axes, places, strict=True):
        for column in dict.fromkeys((axis.name, *axis.shown)):
            labels = axis.labels if column == axis.name else np.asarray(axis.columns[column])
            coordinates[column] = axis.labels[0] if axis.name in (at or {}) and column == axis.name else (
                DESIGN, labels[rows])  # fmt: skip
    result = result.assign_coords(coordinates)
    result.attrs |= {"study_axes": " ".join(a.name for a in space.axes), "objectives": " ".join(signs),
                     "points_compared": found.compared}  # fmt: skip
    return result if len(found.scores) else result.isel({DESIGN: slice(0)})


def _scan(
    study: Study, signs: Mapping[str, float], over: str | Sequence[str] | None, at: Mapping[str, Any],
    tile_points: int, progress: Progress | None,
) -> tuple[Plan, list[str], Scan]:  # fmt: skip
    """The plan at the labels selected, the axes reduced, and the scan of the quantities where they are feasible."""
    every = [a.name for a in study.space.axes if a.name not in at]
    names = every if over is None else [over] if isinstance(over, str) else list(dict.fromkeys(over))
    space = selected(study, names, at)
    plan = replace(study, space=space).plan()
    constraints = plan.concerning(*signs)
    enable_compilation_cache()
    scan = Scan(study.registry, space, signs, constraints, study.file.choices, study.file.dtype, tile_points, progress)
    return plan, names, scan


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
    """Quantiles, and a histogram if asked for, of a quantity at the feasible designs along axes, for every other label.

    A quantile is the least value at or below which that share of the designs lies: exact, since the grid is evaluated
    again for every 16 bits of it (fewer for many groups). ``bins`` are edges, or a number of bins of one width (of one
    ratio if ``logarithmic``) between the least and the largest value. Variables: the quantity along ``quantile``,
    ``designs`` (how many are feasible) and ``histogram`` along ``bin``. Raises PerfgridError for unknown names and
    levels outside [0, 1].
    """
    levels = [float(level) for level in levels]
    if not levels or not all(0 <= level <= 1 for level in levels):
        raise PerfgridError(f"quantiles lie between 0 and 1, found {levels}")
    edges, number = (None, int(bins)) if isinstance(bins, Integral) else (np.asarray(bins, float), np.size(bins) - 1)
    if number < 0 or (edges is not None and (number < 1 or not bool((np.diff(edges) > 0).all()))):
        raise PerfgridError(f"a histogram needs a number of bins or increasing edges, found {bins}")
    study = reaching(study, [of])
    plan, names, scan = _scan(study, {of: 1.0}, over, at or {}, tile_points, progress)
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
        for column in (axis.name, *axis.shown) if axis.name in dims else ():
            coordinates[column] = (axis.name, axis.labels if column == axis.name else np.asarray(axis.columns[column]))
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
