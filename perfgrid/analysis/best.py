"""The best designs of a study or of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Progress
from perfgrid.engine.grid.dataset import study_axes
from perfgrid.engine.grid.replay import index_of
from perfgrid.engine.reductions.argmin import SEARCH_TILE_POINTS
from perfgrid.study.study import Study, expect_study

from .best_of_result import best_of_result
from .best_of_study import best_of_study
from .notebook import BestDesigns
from .prediction_intervals import intervals as intervals_at
from .prediction_intervals import space_of


def best(
    what: Study | xr.Dataset,
    over: str | Sequence[str] | None = None,
    minimize: str | None = None,
    maximize: str | None = None,
    at: Mapping[str, Any] | None = None,
    count: int = 1,
    tile_points: int = SEARCH_TILE_POINTS,
    progress: Progress | None = None,
    intervals: bool = False,
) -> xr.Dataset:
    """The best feasible designs along some axes, for every label of the others.

    A study is searched tile by tile: only minima are kept, so a billion points need little memory.

    Parameters
    ----------
    what
        A study, or a result of `evaluate`, `stream` or `open_result`.
    over
        The axes to choose along. Clusters of different sizes are not compared: ``devices`` remains a group unless it is
        named here. Default: ``[best]`` of the study.
    minimize, maximize
        The objective; exactly one of them. Default: ``[best]`` of the study.
    at
        Labels of other axes to select first.
    count
        Designs per group, along the dimension ``rank`` (of a study).
    tile_points
        Points evaluated together (of a study).
    progress
        Called with phase, done and total.
    intervals
        Add ``<objective>_interval`` along ``bound`` (low, high): where 90 of 100 measurements are expected.

    Returns
    -------
    xarray.Dataset
        The outputs on the axes that are not chosen along; the chosen labels are coordinates. A notebook shows it as a
        table. Constraints that do not
        concern the objective are flag variables; outputs that one of them makes illegal are NaN. Where ``found`` is
        false the group has no feasible design (or fewer than ``count``): its values are NaN, its labels empty, and
        ``forbidden_by`` names the constraint that forbids most of its designs, ``forbids`` of ``designs``. A search
        counts ``points_searched``, and ``points_excluded`` by constraints beforehand, in its attributes.

    Raises
    ------
    PerfgridError
        For an unknown axis, label or quantity, and unless exactly one objective is given.

    Examples
    --------
    >>> import perfgrid as pg
    >>> study = pg.Study.make(
    ...     outputs=["step_time"],
    ...     axes={
    ...         "model": ["llama-2-7b"],
    ...         "device": ["a100-sxm-80gb", "h100-sxm-80gb"],
    ...         "topology": ["rail-optimized"],
    ...         "parallelism": {"devices": [8], "tp": [1, 2], "pp": [1, 2]},
    ...     },
    ...     workload_parameters={"sequence_length": 2048, "global_batch": 64},
    ... )
    >>> found = pg.best(study, over="parallelism", minimize="step_time").squeeze()
    >>> found.step_time.dims
    ('device',)
    >>> [str(label) for label in found.parallelism.values]
    ['tp1.pp1.dp8', 'tp1.pp1.dp8']
    """
    if isinstance(what, xr.Dataset):
        if count != 1 or over is None:
            raise PerfgridError("a result needs over, and gives one design per group; count is for a study")
    else:
        expect_study(what, "best")
        stated = what.file.best
        if minimize is None and maximize is None and stated is not None:
            minimize, maximize = stated.minimize, stated.maximize
        if over is None:
            over, at = (stated.over, at or stated.at) if stated is not None else ([], at)
    if (minimize is None) == (maximize is None):
        raise PerfgridError("give either minimize or maximize, or [best] in the study")
    objective, least = minimize or maximize or "", maximize is None
    if isinstance(what, xr.Dataset):
        found = best_of_result(what, over, objective, least, at or {})
    else:
        found = best_of_study(what, over, objective, least, at or {}, count, tile_points, progress)
    found = _with_intervals(what, found, objective) if intervals else found
    return BestDesigns(found.data_vars, found.coords, found.attrs)


def _with_intervals(what: Study | xr.Dataset, winners: xr.Dataset, objective: str) -> xr.Dataset:
    """Winners with the prediction interval of the objective; NaN where a group has none."""
    groups, space = winners["found"].dims, space_of(what)
    names = [name for name in study_axes(space) if name in winners.coords]
    labels = {name: xr.broadcast(winners[name], winners["found"])[0].transpose(*groups).values for name in names}
    ends = np.full((*winners["found"].shape, 2), np.nan)
    places = [place for place in np.ndindex(ends.shape[:-1]) if winners["found"].values[place]]
    points = [index_of(space, {name: values[place].item() for name, values in labels.items()}) for place in places]
    for place, interval in zip(places, intervals_at(what, points, objective), strict=True):
        ends[place] = interval.low, interval.high
    about = {**winners[objective].attrs, "long_name": f"ends of the 90 % prediction interval of {objective}"}
    found = winners.assign({f"{objective}_interval": ((*groups, "bound"), ends, about)})
    return found.assign_coords(bound=["low", "high"])
