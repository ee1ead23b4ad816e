"""Evaluate a study in memory."""

from __future__ import annotations

import xarray as xr

from perfgrid.engine.execution.evaluation import TILE_POINTS, Evaluation, Progress, enable_compilation_cache
from perfgrid.engine.grid.dataset import to_dataset
from perfgrid.study.study import Study, expect_study

from .memory import check_memory
from .provenance import given_quantities, global_attributes


def evaluate(
    study: Study,
    dtype: str | None = None,
    tile_points: int = TILE_POINTS,
    small_points: int | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Evaluate every design of a study in memory; variables lie on their own axes, constraints are flag variables.

    Raises PerfgridError if the result would not fit the memory at hand.
    """
    expect_study(study, "evaluate")
    plan = study.plan(small_points)
    check_memory(plan, study.name, dtype or study.file.dtype)
    enable_compilation_cache()
    evaluation = Evaluation(plan, dtype or study.file.dtype, tile_points, progress)
    return to_dataset(
        plan, evaluation.collect(), study.catalog.references, given_quantities(study), **global_attributes(study)
    )
