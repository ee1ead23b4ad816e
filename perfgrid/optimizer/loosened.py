"""What a limit costs: each limit moved alone, and the design improved again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError

from .batch import Batch
from .batched_slsqp import Minimum
from .descent import FINE, improved
from .found import Found
from .problem import Problem

REACHED = 1e-5  # slack to within which a moved limit is kept: small against a move of a percent
AGAIN = 3  # searches, each from where the last one ended


def loosened(problem: Problem, found: Found, by: Sequence[float]) -> xr.DataArray:
    """Relative change of the objective when each limit is loosened alone by shares (negative: tightened), [..., by].

    A limit that several workloads have moves in all of them. Labels, layouts and whole counts stay; on the finest
    smooth companion, as shadow prices are. NaN for constraints that are not limits, and where the moved limit
    cannot be kept. PerfgridError for a share of -1 or less.
    """
    steps = np.asarray(by, float)
    if not np.isfinite(steps).all() or (steps <= -1).any():
        raise PerfgridError(f"limits are loosened by shares above -1, such as 0.01, found {list(by)}")
    names, batch = problem.constraint_names(), found.smooth or found.batch
    texts = list(dict.fromkeys(limit.text for limit in problem.limits))
    index = np.array(
        [(i, j, k) for i in range(len(found.minima)) for j in range(len(texts)) for k in range(len(steps))]
    )
    changes = np.full((len(found.minima), len(names), len(steps)), np.nan)
    if len(index):
        rows = batch.of(index[:, 0])
        for row, (_, j, k) in enumerate(index):
            for place, limit in enumerate(problem.limits):
                if limit.text == texts[j]:
                    step = steps[k] if limit.at_most else -steps[k]
                    rows.bounds[row, place] += step * abs(rows.bounds[row, place])
        ends = _again(problem, rows, np.array([found.minima[i].point for i in index[:, 0]]))
        for (i, j, k), end in zip(index, ends, strict=True):
            kept = end.answer[2].min(initial=0.0) > -REACHED
            old, new = (problem.objective(m.answer[0]) for m in (found.minima[i], end))
            of_text = [names.index(problem.limit_name(x)) for x in problem.limits if x.text == texts[j]]
            changes[i, of_text, k] = new / old - 1 if kept else np.nan
    dims = (*problem.parts[0].groups, "constraint", "by")
    values = changes.reshape(*problem.group_sizes, len(names), len(steps))
    return xr.DataArray(values, dims=dims, coords={"by": steps}, attrs={"units": "1"})


def _again(problem: Problem, batch: Batch, points: np.ndarray) -> list[Minimum]:
    """Designs improved on the finest companion until they stay."""
    found = improved(problem, batch, points, FINE)
    for _ in range(AGAIN - 1):
        found = improved(problem, batch, np.array([m.point for m in found.minima]), FINE)
    return found.minima
