"""The Pareto front of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.dataset import feasible
from perfgrid.engine.reductions.pareto import unbeaten
from perfgrid.results.factored import selected
from perfgrid.results.feasibility import study_dims

from .best_of_result import lawful

DESIGN = "design"  # dimension of the designs of a Pareto front


def pareto_of_result(
    result: xr.Dataset, signs: Mapping[str, float], over: str | Sequence[str] | None, at: Mapping[str, Any]
) -> xr.Dataset:
    """The Pareto front of a result between objectives with signs (-1: to maximize); see `perfgrid.pareto`."""
    for name in signs:
        if name not in result:
            raise PerfgridError(f"the result holds no {name!r}{nearest(name, map(str, result.data_vars))}")
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
    return lawful(result.isel({d: r for d, r in rows.items() if d in result.dims}))
