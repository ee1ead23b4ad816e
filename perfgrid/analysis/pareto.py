"""The Pareto front of a study, scanned tile by tile, or of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.execution.evaluation import Progress, enable_compilation_cache
from perfgrid.engine.grid.dataset import feasible
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.reductions.pareto import front, unbeaten
from perfgrid.engine.reductions.scan import SCAN_TILE_POINTS, Scan
from perfgrid.results.factored import selected
from perfgrid.results.feasibility import study_dims
from perfgrid.results.provenance import origin_of
from perfgrid.study.selection import reaching
from perfgrid.study.study import Study, expect_study

from .best_of_result import lawful
from .best_of_study import at_points, searched_space

DESIGN = "design"  # dimension of the designs of a Pareto front


def pareto(
    what: Study | xr.Dataset,
    minimize: str | Sequence[str] = (),
    maximize: str | Sequence[str] = (),
    over: str | Sequence[str] | None = None,
    at: Mapping[str, Any] | None = None,
    tile_points: int = SCAN_TILE_POINTS,
    progress: Progress | None = None,
) -> xr.Dataset:
    """The feasible designs along some axes that no other design beats in all objectives, for every label of the others.

    A study is scanned tile by tile: only designs that no earlier one beats are kept, so a billion points need little
    memory. Clusters of all sizes compete: take a cost among the objectives, or one size.

    Parameters
    ----------
    what
        A study, or a result of `evaluate`, `stream` or `open_result`.
    minimize, maximize
        Two or more objectives in all. Default: ``[pareto]`` of the study.
    over
        The axes to choose along. Default: those of ``[pareto]`` where it gives the objectives, otherwise all that
        ``at`` does not select a label of.
    at
        Labels of other axes to select first.
    tile_points
        Points evaluated together (of a study).
    progress
        Called with phase, done and total.

    Returns
    -------
    xarray.Dataset
        The outputs along ``design``, ordered by group and by the first objective, best first; labels of all axes are
        coordinates. Of equal designs one is kept. Outputs that constraints of others make illegal are NaN.

    Raises
    ------
    PerfgridError
        For an unknown axis, label or quantity, fewer than two objectives, and quantities with inner axes.

    Examples
    --------
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(
    ...     workload="manufacturing",
    ...     outputs=["die_cost", "die_area"],
    ...     axes={"device": ["a100-sxm-80gb", "h100-sxm-80gb", "b200"]},
    ... )
    >>> front = pg.pareto(pg.evaluate(bill), minimize="die_cost", maximize="die_area")
    >>> [str(device) for device in front.device.values]
    ['a100-sxm-80gb']
    """
    minimize, maximize = ([names] if isinstance(names, str) else list(names) for names in (minimize, maximize))
    if not isinstance(what, xr.Dataset):
        expect_study(what, "pareto")
        stated = what.file.pareto
        if not minimize and not maximize and stated is not None:
            maximize = stated.maximize
            over, at = (stated.over, at or stated.at) if over is None else (over, at)
    signs = {name: 1.0 for name in minimize} | {name: -1.0 for name in maximize}
    if len(signs) < 2 or len(signs) < len([*minimize, *maximize]):
        raise PerfgridError(
            f"a Pareto front lies between two or more different objectives, found {[*minimize, *maximize]}"
        )
    if isinstance(what, xr.Dataset):
        return _of_result(what, signs, over, at or {})
    return _of_study(what, signs, over, at or {}, tile_points, progress)


def _of_result(
    result: xr.Dataset, signs: Mapping[str, float], over: str | Sequence[str] | None, at: Mapping[str, Any]
) -> xr.Dataset:
    """The front of a result between objectives with signs (-1: to maximize)."""
    result = selected(result, at)
    over = [d for d in study_dims(result) if d in result.dims] if over is None else over
    over = [over] if isinstance(over, str) else list(dict.fromkeys(over))
    for axis in over:
        if axis not in result.dims:
            raise PerfgridError(f"the result has no axis {axis!r}{nearest(axis, map(str, result.dims))}")
    possible = feasible(result, of=list(signs))
    scores = xr.broadcast(*(sign * result[name].where(possible) for name, sign in signs.items()))
    missing = {d: result.sizes[d] for d in over if d not in scores[0].dims}
    dims = [str(d) for d in scores[0].dims if d not in over]
    values = [s.expand_dims(missing).transpose(*dims, *over).values for s in scores]
    points = np.argwhere(np.logical_and.reduce([np.isfinite(v) for v in values]))
    table = np.stack([v[tuple(points.T)] for v in values], axis=1).astype(np.float64)
    group = np.zeros(len(points), np.int64)
    if dims:
        group += np.ravel_multi_index(tuple(points[:, : len(dims)].T), values[0].shape[: len(dims)])
    order = np.lexsort((*table.T[::-1], group))  # stable: of equal designs the first comes first
    points, table, group = points[order], table[order], group[order]
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(table, axis=0) != 0).any(axis=1) | (np.diff(group) != 0)
    index = points[first][unbeaten(group[first], table[first])]
    rows = {d: xr.DataArray(index[:, i], dims=DESIGN) for i, d in enumerate([*dims, *over])}
    front = lawful(result.isel({d: r for d, r in rows.items() if d in result.dims}))
    return front.assign_attrs(objectives=" ".join(signs))


def _of_study(
    study: Study,
    signs: Mapping[str, float],
    over: str | Sequence[str] | None,
    at: Mapping[str, Any],
    tile_points: int,
    progress: Progress | None,
) -> xr.Dataset:
    """The front of a study between objectives with signs (-1: to maximize)."""
    study = reaching(study, signs)
    plan, names, scan = scan_of(study, signs, over, at, tile_points, progress)
    space, found = plan.study_space, front(scan, names)
    places = found.index if len(found.scores) else tuple(np.zeros(1, int) for _ in space.axes)
    held = plan.concerning(*signs)
    wanted = (*plan.outputs, *(name for name in plan.constraints if name not in held))
    result = at_points(study, space, wanted, places).assign_attrs(origin_of(study, plan))
    result = result.rename({"point": DESIGN} if "point" in result.dims else {})
    coordinates: dict[str, Any] = {}
    for axis, rows in zip(space.axes, places, strict=True):
        coordinates |= {name: (DESIGN, values) for name, values in axis.coordinates(rows).items()}
        if axis.name in at:
            coordinates[axis.name] = axis.labels[0]
    result = result.assign_coords(coordinates)
    result.attrs |= {
        "study_axes": " ".join(a.name for a in space.axes),
        "objectives": " ".join(signs),
        "points_compared": found.compared,
    }
    return result if len(found.scores) else result.isel({DESIGN: slice(0)})


def scan_of(
    study: Study,
    quantities: Mapping[str, float],
    over: str | Sequence[str] | None,
    at: Mapping[str, Any],
    tile_points: int,
    progress: Progress | None,
) -> tuple[Plan, list[str], Scan]:
    """The plan at the labels selected, the axes reduced, and the scan of quantities, with signs, where feasible."""
    every = [a.name for a in study.space.axes if a.name not in at]
    names = every if over is None else [over] if isinstance(over, str) else list(dict.fromkeys(over))
    space = searched_space(study, names, at)
    plan = replace(study, space=space).plan()
    constraints, file = plan.concerning(*quantities), study.file
    enable_compilation_cache()
    scan = Scan(study.registry, space, quantities, constraints, file.choices, file.dtype, tile_points, progress)
    return plan, names, scan
