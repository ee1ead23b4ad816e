"""The best design of every group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.dataset import feasible
from perfgrid.engine.errors import PerfgridError, nearest

ALWAYS_GROUPED = "devices"  # a cluster of another size is another question, not a better answer


def best(
    dataset: xr.Dataset,
    over: str | Sequence[str],
    minimize: str | None = None,
    maximize: str | None = None,
    at: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """The best feasible design along the axes ``over``, for every label of the other axes.

    ``at`` first selects labels of other axes. A coordinate ``devices`` along an axis of ``over`` always stays a group.
    The result holds every variable and the chosen labels as coordinates; groups without a feasible design are NaN.
    Raises PerfgridError for unknown names or unless exactly one objective is given.
    """
    if (minimize is None) == (maximize is None):
        raise PerfgridError("give either minimize or maximize")
    objective = minimize or maximize or ""
    if objective not in dataset:
        raise PerfgridError(f"the result holds no {objective!r}{nearest(objective, map(str, dataset.data_vars))}")
    over = [over] if isinstance(over, str) else list(over)
    for axis in (*over, *(at or {})):
        if axis not in dataset.dims:
            raise PerfgridError(f"the result has no axis {axis!r}{nearest(axis, map(str, dataset.dims))}")
    for axis, label in (at or {}).items():
        labels = dataset[axis].values
        match = np.flatnonzero(np.isclose(labels, label) if labels.dtype.kind in "fi" else labels == label)
        if len(match) == 0:
            raise PerfgridError(f"axis {axis!r} has no label {label!r}{nearest(str(label), map(str, labels))}")
        dataset = dataset.isel({axis: int(match[0])})
    if ALWAYS_GROUPED in dataset.coords and ALWAYS_GROUPED not in dataset.dims:
        axis = next(iter(dataset[ALWAYS_GROUPED].dims), None)
        if axis in over:
            sizes = np.unique(dataset[ALWAYS_GROUPED].values)
            parts = [dataset.isel({axis: dataset[ALWAYS_GROUPED].values == n}) for n in sizes]
            chosen = [_best(p.drop_vars(ALWAYS_GROUPED), over, objective, minimize is not None) for p in parts]
            groups = xr.Variable(ALWAYS_GROUPED, sizes.astype(np.int64))
            return xr.concat(chosen, dim=groups, join="outer", coords="all")
    return _best(dataset, over, objective, minimize is not None)


def _best(dataset: xr.Dataset, over: list[str], objective: str, least: bool) -> xr.Dataset:
    score = dataset[objective] if least else -dataset[objective]
    score = score.where(feasible(dataset), np.inf)
    score = score.expand_dims({d: dataset.sizes[d] for d in over if d not in score.dims})
    groups = [d for d in score.dims if d not in over]
    score = score.transpose(*groups, *over)
    flat = score.values.reshape(*(score.sizes[d] for d in groups), -1)
    winner = np.argmin(flat, axis=-1)
    found = np.isfinite(np.take_along_axis(flat, winner[..., None], axis=-1)[..., 0])
    rows = np.unravel_index(winner, [score.sizes[d] for d in over])
    index = {d: xr.DataArray(r, dims=groups) for d, r in zip(over, rows, strict=True)}
    chosen = dataset.isel(index)
    exists = xr.DataArray(found, dims=groups)
    for name, variable in chosen.data_vars.items():
        if "constraint" not in variable.attrs and variable.dtype.kind == "f":
            chosen[name] = variable.where(exists)
    return chosen.assign_coords(found=exists)
