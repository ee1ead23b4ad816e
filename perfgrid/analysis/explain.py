"""The derivation of one number of a study or a result."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import xarray as xr

from perfgrid.catalog import load_variables
from perfgrid.engine.graph.resolver import resolve
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE
from perfgrid.engine.grid.explain import Explanation, explain_point, index_of
from perfgrid.engine.grid.space import Space
from perfgrid.results.provenance import STUDY_ATTRIBUTE, WORKLOAD, design_at, designs, free_quantities
from perfgrid.study.space import TABLES
from perfgrid.study.study import Study
from perfgrid.study.tables import OWN_PREFIX, STATED


def explain(
    what: Study | xr.Dataset, quantity: str, at: Mapping[str, Any], formulas: Iterable[Callable[..., Any]] = ()
) -> Explanation:
    """Derive one number of a study or of a result: every formula below it, and each constraint that its point violates.

    ``at`` names a label of every axis (of best designs and optima: of those that are not chosen along); ``formulas``
    are the user's own with which a result was made. Raises PerfgridError for an unknown quantity, axis or label, and
    for a result whose formulas are not at hand.
    """
    free: set[str] = set()
    if isinstance(what, Study):
        sources, overrides, variables, stated = what.sources(), what.file.overrides, what.catalog.variables, what.stated
    else:
        workload, _, name = quantity.partition(".")
        if isinstance(what, xr.Dataset) and f"{workload}.{SPACE_ATTRIBUTE}" in what.attrs:
            quantity, at = name, {**at, WORKLOAD: workload}
        what, at = design_at(what, at)
        stored = json.loads(what.attrs[STUDY_ATTRIBUTE])
        sources, overrides, stated = stored["sources"], stored["overrides"], stored["stated"]
        variables, free = load_variables(), {name.partition(".")[0] for name in free_quantities(what)}
    space, registry, choices, at = designs(what, at, formulas)
    resolve(registry, (quantity,), space.names(), choices, space.label_quantities())  # an unknown name comes first
    index = index_of(space, at)
    entries = {table: _entry(space, index, table, names) for table, names in sources.items()}
    units = {}
    for variable in variables.values():
        source = f"given by {variable.of}"
        if variable.name in free:
            source = "free in the optimum"
        elif variable.name in overrides:
            source = "given by the study's overrides"
        elif variable.name in stated and variable.of in TABLES:
            source = "given by the study's axes"
        elif variable.of in sources:
            source = sources[variable.of].get(entries[variable.of], {}).get(variable.name, source)
        for prefix in ("", STATED, OWN_PREFIX):
            name = prefix + variable.name
            about = source if prefix != OWN_PREFIX or variable.of == "device" else f"the device's own {variable.of}"
            for axis, row in zip(space.axes, index, strict=True):
                if name in axis.scales and axis.scales[name][row] != 1:
                    about += f", times {axis.scales[name][row]:g}"
            units[name] = (variable.unit, variable.meaning, about)
    return explain_point(registry, space, quantity, at, choices, units)


def _entry(space: Space, index: tuple[int, ...], table: str, names: Mapping[str, Any]) -> str:
    """The catalog entry of a table at one point; empty if none is known."""
    for axis, row in zip(space.axes, index, strict=True):
        if axis.name == table:
            return str(axis.labels[row])
        if table in axis.columns:
            return str(axis.columns[table][row])
    return next(iter(names)) if len(names) == 1 else ""
