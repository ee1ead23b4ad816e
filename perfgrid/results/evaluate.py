"""Evaluate a study in memory."""

from __future__ import annotations

import xarray as xr

from perfgrid.engine.execution.evaluation import TILE_POINTS, Evaluation, Progress, enable_compilation_cache
from perfgrid.engine.execution.lanes import trim
from perfgrid.engine.grid.dataset import labelled_values
from perfgrid.engine.grid.plan import Plan
from perfgrid.study.study import Study, expect_study

from .memory import check_memory
from .provenance import given_quantities, origin_of


def evaluate(
    study: Study,
    dtype: str | None = None,
    tile_points: int = TILE_POINTS,
    small_points: int | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Evaluate every design of a study in memory.

    Parameters
    ----------
    study
        The study.
    dtype
        Precision on the grid, "float32" or "float64". Default: that of the study.
    tile_points
        Points evaluated together.
    small_points
        Most points of a quantity that is evaluated once, in NumPy, before the grid. Default: chosen by the plan.
    progress
        Called with phase, done and total.

    Returns
    -------
    xarray.Dataset
        The outputs in SI units (attribute ``units``), each on the axes that it depends on, and the constraints as flag
        variables (1: satisfied). Values are not masked: see `feasible`.

    Raises
    ------
    PerfgridError
        If the result does not fit the free memory.

    Examples
    --------
    >>> import perfgrid as pg
    >>> study = pg.Study.make(
    ...     outputs=["step_time"],
    ...     axes={
    ...         "model": ["llama-2-7b"],
    ...         "device": ["h100-sxm-80gb"],
    ...         "topology": ["rail-optimized"],
    ...         "parallelism": {"devices": [8], "tp": [1, 2], "pp": [1, 2]},
    ...     },
    ...     workload_parameters={"sequence_length": 2048, "global_batch": 64},
    ... )
    >>> result = pg.evaluate(study)
    >>> result.step_time.dims
    ('model', 'device', 'topology', 'parallelism')
    >>> result.step_time.attrs["units"]
    's'
    """
    expect_study(study, "evaluate")
    plan = study.plan(small_points)
    values = evaluated(study, plan, dtype, tile_points, progress)
    return values.assign_attrs(origin_of(study, plan))


def evaluated(
    study: Study,
    plan: Plan,
    dtype: str | None = None,
    tile_points: int = TILE_POINTS,
    progress: Progress | None = None,
) -> xr.Dataset:
    """The values of `evaluate`, without what a result that is kept says of its origin."""
    check_memory(plan, study.name, dtype or study.file.dtype)
    given = given_quantities(study)
    enable_compilation_cache()
    values = Evaluation(plan, dtype or study.file.dtype, tile_points, progress).collect()
    trim()  # what follows in this process finds the memory of the tiles free
    return labelled_values(plan, values, study.catalog.references, given)
