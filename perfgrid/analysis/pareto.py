"""The Pareto front of a study or of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Progress
from perfgrid.engine.reductions.scan import SCAN_TILE_POINTS
from perfgrid.study.study import Study, expect_study

from .pareto_of_result import pareto_of_result
from .pareto_of_study import pareto_of_study


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
        return pareto_of_result(what, signs, over, at or {})
    return pareto_of_study(what, signs, over, at or {}, tile_points, progress)
