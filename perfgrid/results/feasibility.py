"""How many designs of a result are infeasible, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.grid.dataset import bare_variables, concerned, feasible, least_constrained

SLICE_POINTS = 2**22  # of the grid that are looked at together


@dataclass(frozen=True)
class Violation:
    """One constraint, the number of design points that violate it, and the outputs that it concerns if not all."""

    name: str
    kind: str
    reason: str
    points: int
    outputs: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Feasibility:
    """How many points a grid has, how many are infeasible, and why.

    ``infeasible`` are those without any feasible output, ``partly`` those at which only some outputs are feasible,
    ``violations`` all constraints that a point violates, by decreasing count; a point may violate several.
    """

    points: int
    infeasible: int
    partly: int
    violations: list[Violation]


def violations(dataset: xr.Dataset) -> Feasibility:
    """How many points of a result are infeasible and which constraints they violate.

    The grid is the product of the study's axes; constraints are counted on their own axes and multiplied out.
    """
    variables = bare_variables(dataset)
    inner = {d for v in variables.values() for d in v.dims} - set(study_dims(dataset))
    points = int(np.prod([n for d, n in dataset.sizes.items() if d not in inner], dtype=np.int64))

    counted = {
        name: int((v == 0).sum()) * (points // max(1, v.size))
        for name, v in variables.items()
        if "constraint" in v.attrs
    }
    found = violated(counted, {name: v.attrs for name, v in variables.items()})
    counts = _infeasible(dataset, points) if found else (0, 0)
    return Feasibility(points, *counts, found)


def violated(counted: Mapping[str, int], about: Mapping[str, Mapping[str, Any]]) -> list[Violation]:
    """The constraints that points violate, by decreasing count; ``about`` are the attributes of all variables."""
    return [
        Violation(name, about[name]["constraint"], about[name]["reason"], count, concerned(about, name))
        for name, count in sorted(counted.items(), key=lambda item: -item[1])
        if count
    ]


def _infeasible(dataset: xr.Dataset, points: int) -> tuple[int, int]:
    """Points at which no output is feasible, and at which only some are.

    Counted in slices so that a large result need not fit the memory.
    """
    about = {n: v.attrs for n, v in bare_variables(dataset).items()}
    sets = least_constrained(about)
    flags = dataset[[n for n in about if "constraint" in about[n]]]
    longest = max(flags.sizes, key=lambda d: flags.sizes[d], default=None)
    rows = flags.sizes[longest] if longest is not None else 1
    step = max(1, SLICE_POINTS * rows // max(points, 1))
    counts, sizes = np.zeros(2, np.int64), np.zeros(2, np.int64)
    for first in range(0, rows, step):
        part = (flags if longest is None else flags.isel({longest: slice(first, first + step)})).load()
        every = feasible(part)
        some = reduce(or_, (every if len(names) == len(flags) else feasible(part[names]) for names in sets))
        counts += [int((~possible).sum()) for possible in (some, every)]
        sizes += [some.size, every.size]
    none, broken = (int(count) * points // int(size) for count, size in zip(counts, sizes, strict=True))
    return none, broken - none


def study_dims(dataset: xr.Dataset) -> list[str]:
    """The dimensions that are study axes (inner axes of single variables left out)."""
    return [str(d) for d in dataset.attrs.get("study_axes", "").split()] or [str(d) for d in dataset.dims]
