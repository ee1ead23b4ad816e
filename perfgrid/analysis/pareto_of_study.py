"""The Pareto front of a study, scanned tile by tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.execution.evaluation import Progress, enable_compilation_cache
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.reductions.pareto import front
from perfgrid.engine.reductions.scan import Scan
from perfgrid.study.selection import reaching
from perfgrid.study.study import Study

from .best_of_study import at_points, selected
from .pareto_of_result import DESIGN


def pareto_of_study(
    study: Study,
    signs: Mapping[str, float],
    over: str | Sequence[str] | None,
    at: Mapping[str, Any],
    tile_points: int,
    progress: Progress | None,
) -> xr.Dataset:
    """The Pareto front of a study between objectives with signs (-1: to maximize); see `perfgrid.pareto`."""
    study = reaching(study, signs)
    plan, names, scan = scan_of(study, signs, over, at, tile_points, progress)
    space, found = plan.study_space, front(scan, names)
    places = found.index if len(found.scores) else tuple(np.zeros(1, int) for _ in space.axes)
    result = at_points(study, plan, plan.concerning(*signs), places)
    result = result.rename({"point": DESIGN} if "point" in result.dims else {})
    coordinates: dict[str, Any] = {}
    for axis, rows in zip(space.axes, places, strict=True):
        for column in dict.fromkeys((axis.name, *axis.shown)):
            labels = axis.labels if column == axis.name else np.asarray(axis.columns[column])
            single = axis.name in at and column == axis.name
            coordinates[column] = axis.labels[0] if single else (DESIGN, labels[rows])
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
    space = selected(study, names, at)
    plan = replace(study, space=space).plan()
    constraints, file = plan.concerning(*quantities), study.file
    enable_compilation_cache()
    scan = Scan(study.registry, space, quantities, constraints, file.choices, file.dtype, tile_points, progress)
    return plan, names, scan
