"""The frontier between two objectives: the designs that no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.dataset import feasible

from .best_of_result import lawful


def frontier_mask(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Where a point is beaten by none: no other is larger in one and at least as large in the other.

    Along the last axis; what is not finite takes no part, and of equal points the first is kept.
    """
    usable = np.isfinite(first) & np.isfinite(second)
    a, b = np.where(usable, first, -np.inf), np.where(usable, second, -np.inf)
    order = np.lexsort((-b, -a), axis=-1)  # from the largest first objective, the larger second one first
    sorted_b = np.take_along_axis(b, order, axis=-1)
    before = np.maximum.accumulate(sorted_b, axis=-1)
    leading = np.concatenate([np.full_like(before[..., :1], -np.inf), before[..., :-1]], axis=-1)
    kept = np.zeros_like(usable)
    np.put_along_axis(kept, order, sorted_b > leading, axis=-1)
    return kept & usable


def frontier(dataset: xr.Dataset, over: str | Sequence[str], maximize: Sequence[str]) -> xr.Dataset:
    """The feasible designs along the axes ``over`` that no other beats in both objectives, for every other label.

    The result has one dimension ``design``, ordered by group and by the first objective from its largest value; labels
    of all axes are coordinates. Raises PerfgridError for unknown names or unless there are two objectives.
    """
    over = [over] if isinstance(over, str) else list(dict.fromkeys(over))
    if len(maximize) != 2:
        raise PerfgridError(f"a frontier lies between two objectives, found {list(maximize)}")
    for name in maximize:
        if name not in dataset:
            raise PerfgridError(f"the result holds no {name!r}{nearest(name, map(str, dataset.data_vars))}")
    for axis in over:
        if axis not in dataset.dims:
            raise PerfgridError(f"the result has no axis {axis!r}{nearest(axis, map(str, dataset.dims))}")
    possible = feasible(dataset, of=maximize)
    scores = xr.broadcast(*(dataset[name].where(possible) for name in maximize))
    missing = {d: dataset.sizes[d] for d in over if d not in scores[0].dims}
    dims = [str(d) for d in scores[0].dims if d not in over]
    first, second = (s.expand_dims(missing).transpose(*dims, *over).values for s in scores)
    shape = first.shape[: len(dims)]
    kept = frontier_mask(first.reshape(*shape, -1), second.reshape(*shape, -1))
    places = np.argwhere(kept)
    within = np.array(np.unravel_index(places[:, -1], first.shape[len(dims) :])).T
    index = np.concatenate([places[:, :-1], within], axis=-1)
    values = first.reshape(*shape, -1)[tuple(places.T)]
    order = np.lexsort((-values, *reversed(places[:, :-1].T)))
    points = {d: xr.DataArray(index[order, i], dims="design") for i, d in enumerate([*dims, *over])}
    return lawful(dataset.isel({d: p for d, p in points.items() if d in dataset.dims}))
