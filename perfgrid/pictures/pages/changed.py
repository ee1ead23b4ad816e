"""Designs evaluated anew with some given quantities multiplied by factors, all of a slice at once, in NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.catalog import load_variables
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.execution.small_stage import applied, bring, expanded, small_order
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import Node, resolve_checked
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE, on_study_axes
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.results.provenance import restore
from perfgrid.results.schema import stored

from .grid import Grid, Marks, Slice
from .units import about_unit

LAID_OUT = ("parallelism", "model")  # tables whose numbers are counts that belong together
MOST_DESIGNS = 2**20  # of a slice that is evaluated anew


@dataclass
class Changes:
    """The design space of a result, of which quantities can be changed."""

    grid: Grid
    formulas: tuple[Callable[..., Any], ...] = ()
    _last: tuple[Any, Evaluated] | None = None  # what was asked last, with its designs

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
        labels = {axis.name for axis in space.axes if axis.name in axis.columns}  # which its menu chooses among
        for name in graph.leaves:
            about = variables.get(name)
            if (
                about is None
                or about.kind not in ("number", "integer")
                or about.of in LAID_OUT
                or about.axis is not None
                or name in labels
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

    def marks(self, asked: Slice, factors: Mapping[str, float]) -> Marks:
        """The marks of a slice with quantities multiplied by factors: every design of it is evaluated anew.

        PerfgridError like `Grid.marks`, and for a slice of too many designs.
        """
        self.check(factors)
        rows = self.grid.checked(asked)
        designs = prod(len(r) for r in rows.values())
        if designs > MOST_DESIGNS:
            raise PerfgridError(f"{designs:,} designs are too many to be evaluated anew: hold more axes at a label")
        key = (asked.quantity, asked.by, *factors), {axis: r.tolist() for axis, r in rows.items()}
        if self._last is None or self._last[0] != key:
            self._last = key, self._evaluated((asked.quantity, asked.by), rows, list(factors))
        return self.grid.marks_of(self._last[1].grid(self.grid, factors), asked, rows)

    def design(self, rows: Mapping[str, np.ndarray], factors: Mapping[str, float]) -> dict[str, Marks]:
        """Every quantity of one design with quantities multiplied by factors."""
        self.check(factors)
        found = self._evaluated(self.grid.quantities, rows, list(factors))
        return self.grid.design(rows, found.grid(self.grid, factors))

    def _evaluated(self, outputs: Iterable[str], rows: Mapping[str, np.ndarray], names: Sequence[str]) -> Evaluated:
        space, registry, choices = self._restored
        axes = [_axis_at(axis, rows[axis.name]) if axis.name in rows else axis for axis in space.axes]
        part = Space(tuple(axes), space.constants)
        return Evaluated(Plan(registry, part, outputs, choices, small_points=part.points), names)

    def result(self, factors: Mapping[str, float]) -> xr.Dataset:
        """The result as if its study had stated the changed quantities: what `explain` needs of it."""
        if not factors:
            return self.grid.result
        self.check(factors)
        space = json.loads(json.dumps(stored(self.grid.result.attrs, SPACE_ATTRIBUTE)))
        for name, factor in factors.items():
            for values in (space["constants"], *(axis["columns"] for axis in space["axes"])):
                if isinstance(values.get(name), dict):  # along axes of the physics
                    values[name]["values"] = times(name, values[name]["values"], factor).tolist()
                elif name in values:
                    values[name] = times(name, values[name], factor).tolist()
        return self.grid.result.assign_attrs({SPACE_ATTRIBUTE: json.dumps(space)})

    def check(self, factors: Iterable[str]) -> None:
        """Raises PerfgridError for a quantity that cannot be changed."""
        names = [knob["name"] for knob in self.knobs]
        for name in factors:
            if name not in names:
                raise PerfgridError(f"{name!r} is no quantity that can be changed{nearest(name, names)}")


class Evaluated:
    """Designs of which a few given quantities change: what does not depend on these is evaluated once."""

    def __init__(self, plan: Plan, names: Sequence[str]):
        self.plan, self.stale, readers = plan, set(names), plan.graph.readers
        for name in (*plan.graph.leaves, *plan.graph.nodes):
            if name in self.stale:
                self.stale.update(readers[name])
        read = {a for n in self.stale & set(plan.graph.nodes) for a in plan.graph.nodes[n].arguments}
        kept = (read | set(plan.wanted)) - self.stale
        given = {name: plan.given_rows(name) for name in plan.graph.leaves}
        self.changed = {name: given[name] for name in names if name in given}
        others = [n for n in small_order(plan) if n[0].name not in self.stale]
        found = self._through(others, given)
        self.known = {name: found[name] for name in kept}

    def _through(self, nodes: Iterable[tuple[Node, list[str]]], values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        quantities = self.plan.quantities
        with np.errstate(all="ignore"):
            for node, _ in nodes:
                key = quantities[node.name].key
                arguments = [bring(values[a], quantities[a].key, key) for a in node.arguments]
                values[node.name] = applied(self.plan, quantities[node.name], arguments)
        return values

    def grid(self, whole: Grid, factors: Mapping[str, float]) -> Grid:
        """The grid of these designs with quantities multiplied by factors; attributes are those of the whole."""
        given = {name: times(name, value, factors[name]) for name, value in self.changed.items()}
        stale = [n for n in small_order(self.plan) if n[0].name in self.stale]
        values = self._through(stale, {**self.known, **given})
        sizes, variables = {axis.name: len(axis) for axis in self.plan.study_space.axes}, {}
        for name in self.plan.wanted:
            if name not in whole.result.variables:
                continue
            dims, array = on_study_axes(self.plan, name, expanded(values[name], self.plan.quantities[name].key))
            whole_rows = dict(zip(dims, array.shape, strict=True)) | sizes
            array = np.broadcast_to(array, [whole_rows[d] for d in dims])
            variables[name] = xr.Variable(dims, array, whole.result.variables[name].attrs)
        for name in self.plan.outputs:  # so that every axis of the whole is one of the part
            variables[name] = variables[name].set_dims(sizes)
        return Grid(xr.Dataset(variables))


def _axis_at(axis: Axis, rows: np.ndarray) -> Axis:
    """Some rows of an axis."""
    columns, scales = ({n: np.asarray(v)[rows] for n, v in d.items()} for d in (axis.columns, axis.scales))
    return Axis(axis.name, axis.labels[rows], columns, scales, axis.shown)


def times(name: str, value: Any, factor: float) -> np.ndarray:
    """A value times a factor; a count stays a whole number of at least one."""
    found = np.asarray(value, np.float64) * factor
    return np.maximum(1.0, np.round(found)) if load_variables()[name].kind == "integer" else found
