"""How many designs of a result are infeasible, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from perfgrid.engine.dataset import concerned, feasible

SLICE_POINTS = 2**22  # of the grid that are looked at together


@dataclass(frozen=True)
class Violation:
    """One constraint, the number of design points that violate it, and the outputs that it concerns if not all."""

    name: str
    kind: str
    reason: str
    points: int
    outputs: list[str] = field(default_factory=list)


def violations(dataset: xr.Dataset) -> tuple[int, int, list[Violation]]:
    """(points of the grid, points that violate any constraint, violations by decreasing count).

    A point may violate several, and one that concerns other outputs than that which is looked at.
    The grid is the product of the study's axes; constraints are counted on their own axes and multiplied out.
    """
    inner = {d for v in dataset.data_vars.values() for d in v.dims} - set(study_dims(dataset))
    points = int(np.prod([n for d, n in dataset.sizes.items() if d not in inner], dtype=np.int64))

    def count(flags: xr.DataArray) -> int:
        return int((~flags.astype(bool)).sum()) * (points // max(1, flags.size))

    found, about = [], {n: v.attrs for n, v in dataset.data_vars.items()}
    for name, variable in dataset.data_vars.items():
        if "constraint" in variable.attrs:
            violated, outputs = count(variable != 0), concerned(about, str(name))
            kind, reason = variable.attrs["constraint"], variable.attrs["reason"]
            if violated:
                found.append(Violation(str(name), kind, reason, violated, outputs))
    return points, _infeasible(dataset, points) if found else 0, sorted(found, key=lambda v: -v.points)


def _infeasible(dataset: xr.Dataset, points: int) -> int:
    """Points that violate any constraint, counted in slices so that a large result need not fit the memory."""
    flags = dataset[[n for n, v in dataset.data_vars.items() if "constraint" in v.attrs]]
    longest = max(flags.sizes, key=lambda d: flags.sizes[d], default=None)
    if longest is None:
        return 0
    rows = flags.sizes[longest]
    step = max(1, SLICE_POINTS * rows // max(points, 1))
    count = size = 0
    for first in range(0, rows, step):
        part = feasible(flags.isel({longest: slice(first, first + step)}))
        count, size = count + int((~part).sum()), size + part.size
    return count * (points // max(1, size))


def study_dims(dataset: xr.Dataset) -> list[str]:
    """The dimensions that are study axes (inner axes of single variables left out)."""
    return [str(d) for d in dataset.attrs.get("study_axes", "").split()] or [str(d) for d in dataset.dims]
