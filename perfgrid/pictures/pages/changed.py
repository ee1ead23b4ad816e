"""Designs evaluated anew with some given quantities multiplied by factors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.catalog import load_variables
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import resolve_checked
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE, labelled_values
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Space
from perfgrid.engine.reductions.argmin import listed
from perfgrid.results.provenance import restore
from perfgrid.results.schema import stored

from .grid import Grid, Marks
from .units import about_unit

LAID_OUT = ("parallelism", "model")  # tables whose numbers are counts that belong together


@dataclass
class Changes:
    """The design space of a result, of which quantities can be changed."""

    grid: Grid
    formulas: tuple[Callable[..., Any], ...] = ()

    @cached_property
    def _restored(self) -> tuple[Space, Registry, dict[str, str]]:
        return restore(self.grid.result, self.formulas)

    @cached_property
    def knobs(self) -> list[dict[str, Any]]:
        """The given numbers that the result reads: name, meaning, unit, value (None where designs differ in it)."""
        try:
            space, registry, choices = self._restored
            if {axis.name for axis in space.axes} - set(self.grid.result.dims):
                return []
            wanted = self.grid.quantities
            graph = resolve_checked(registry, wanted, space.names(), choices, space.label_quantities())
        except PerfgridError:
            return []
        found, variables = [], load_variables()
        for name in graph.leaves:
            about = variables.get(name)
            if (
                about is None
                or about.kind not in ("number", "integer")
                or about.of in LAID_OUT
                or about.axis is not None
            ):
                continue
            value = space.constants.get(name)
            if value is not None and (np.ndim(value) or not np.isfinite(float(value)) or float(value) == 0):
                continue
            known = None if value is None else float(value)
            found.append(
                {"name": name, "meaning": about.meaning, "value": known, "of": about.of, **about_unit(about.unit)}
            )
        return sorted(found, key=lambda knob: (knob["of"] != "workload", knob["of"] != "device", knob["name"]))

    def marks(self, quantity: str, at: Mapping[str, np.ndarray], factors: Mapping[str, float]) -> Marks:
        """A quantity at single designs, given as the rows of every axis, with quantities multiplied by factors."""
        space, registry, choices = self._restored
        self._check(factors)
        rows = [at[axis.name] for axis in space.axes]
        points = scaled(listed(space, rows), factors)
        plan = Plan(registry, points, (quantity,), choices, small_points=max(1, len(rows[0]) if rows else 1))
        values = labelled_values(plan, Evaluation(plan, "float64").collect())
        size = len(next(iter(at.values()), [0]))
        reasons = np.zeros(size, np.uint8)
        number = {name: i for i, name in enumerate(self.grid.constraints, 1)}
        checked = sorted(
            (n for n in map(str, values.data_vars) if "constraint" in values[n].attrs and n in number),
            key=number.__getitem__,
        )
        for name in checked:
            broken = np.broadcast_to(values[name].values == 0, size)
            reasons = np.where((reasons == 0) & broken, np.uint8(number[name]), reasons)
        numbers = np.broadcast_to(values[quantity].values.astype(np.float64), size)
        return Marks(np.where(np.array([False, *self.grid.unlawful()])[reasons], np.nan, numbers), reasons, at)

    def result(self, factors: Mapping[str, float]) -> xr.Dataset:
        """The result as if its study had stated the changed quantities: what `explain` needs of it."""
        if not factors:
            return self.grid.result
        self._check(factors)
        space = json.loads(json.dumps(stored(self.grid.result.attrs, SPACE_ATTRIBUTE)))
        for name, factor in factors.items():
            for values in (space["constants"], *(axis["columns"] for axis in space["axes"])):
                if name in values:
                    values[name] = times(name, values[name], factor).tolist()
        return self.grid.result.assign_attrs({SPACE_ATTRIBUTE: json.dumps(space)})

    def _check(self, factors: Iterable[str]) -> None:
        names = [knob["name"] for knob in self.knobs]
        for name in factors:
            if name not in names:
                raise PerfgridError(f"{name!r} is no quantity that can be changed{nearest(name, names)}")


def scaled(space: Space, factors: Mapping[str, float]) -> Space:
    """A space of one axis with quantities multiplied by factors."""
    (axis,) = space.axes
    columns = {n: times(n, v, factors[n]) if n in factors else v for n, v in axis.columns.items()}
    constants = {n: times(n, v, factors[n]) if n in factors else v for n, v in space.constants.items()}
    return Space((type(axis)(axis.name, axis.labels, columns, axis.scales, axis.shown),), constants)


def times(name: str, value: Any, factor: float) -> np.ndarray:
    """A value times a factor; a count stays a whole number of at least one."""
    found = np.asarray(value, np.float64) * factor
    return np.maximum(1.0, np.round(found)) if load_variables()[name].kind == "integer" else found
