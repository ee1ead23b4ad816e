"""One number of a study or a result explained: its parts, its derivation, its elasticities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.best_design import best_design
from perfgrid.analysis.prediction_intervals import has_interval, intervals
from perfgrid.catalog import Variable, load_variables
from perfgrid.engine.autodiff.parameters import parameters_of
from perfgrid.engine.autodiff.sensitivity import Sensitivity
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import resolve
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE
from perfgrid.engine.grid.replay import index_of
from perfgrid.engine.grid.space import Space
from perfgrid.engine.reductions.argmin import points_plan
from perfgrid.formulas import BREAKDOWN, INNER
from perfgrid.results.provenance import WORKLOAD, design_at, designs, free_quantities
from perfgrid.results.schema import STUDY_ATTRIBUTE, stored
from perfgrid.study.entries import OWN_PREFIX, STATED, entries_at, kind_of
from perfgrid.study.space import TABLES
from perfgrid.study.study import Study
from perfgrid.text.html import NAME, NUMBER, WORDS, paragraphs, table

from .derivation import Explanation, explain_point
from .text import elasticity_line, interval_line, point_lines, story_rows

DEPTH = 2  # levels of an explanation
LONGEST = 160  # letters of a name: every factor of a product is named


class Explained(Explanation):
    """An explanation that notebooks show as a table of what adds up to the number."""

    def _repr_html_(self) -> str:
        lines = list(point_lines(self.point, self.violated, INNER))
        if self.illegal:
            return paragraphs([*lines, f"{self.quantity} has no meaning at this point"])
        rows = list(story_rows(self, INNER, DEPTH, name_width=LONGEST))
        heads = [("quantity", NAME), ("value", NUMBER), ("share", NUMBER), ("what it is", WORDS)]
        last = [interval_line(self), elasticity_line(self.elasticities())]
        return paragraphs(lines) + table(heads, rows) + paragraphs(last)


def explain(
    what: Study | xr.Dataset,
    quantity: str,
    at: Mapping[str, Any] | None = None,
    formulas: Iterable[Callable[..., Any]] = (),
) -> Explained:
    """Explain one number of a study or of a result: its parts, every formula below it, the constraints it violates.

    ``at`` names labels of axes or of coordinates such as ``devices``; along axes left open it is the best feasible
    design, by ``[best]`` of the study or by step time. ``formulas`` are the user's own with which a result was made.
    `Explanation.story` finds what adds up to the number; a notebook shows it as a table. Raises PerfgridError for an
    unknown quantity, axis or label, where no design is feasible, and for a result whose formulas are not at hand.
    """
    formulas = tuple(formulas)
    at = best_design(what, at, (quantity,)).labels
    free: set[str] = set()
    if isinstance(what, Study):
        sources, overrides, variables, stated = what.sources(), what.file.overrides, what.catalog.variables, what.stated
        implied = what.implied
    else:
        workload, _, name = quantity.partition(".")
        if isinstance(what, xr.Dataset) and f"{workload}.{SPACE_ATTRIBUTE}" in what.attrs:
            quantity, at = name, {**at, WORKLOAD: workload}
        what, at = design_at(what, at)
        origin = stored(what.attrs, STUDY_ATTRIBUTE)
        sources, overrides, stated = origin["sources"], origin["overrides"], origin["stated"]
        implied = origin.get("implied", {})
        variables, free = load_variables(), {name.partition(".")[0] for name in free_quantities(what)}
    space, registry, choices, at = designs(what, at, formulas)
    resolve(registry, (quantity,), space.names(), choices, space.label_quantities())  # an unknown name comes first
    index = index_of(space, at)
    single = {table: next(iter(names)) if len(names) == 1 else "" for table, names in sources.items()}
    entries = entries_at(space, index, sources, single)
    units = {}
    for variable in variables.values():
        source = f"given by {variable.of}"
        if variable.name in free:
            source = "free in the optimum"
        elif variable.name in overrides:
            source = "given by the study's overrides"
        elif variable.name in stated and variable.of in TABLES:
            source = "given by the study's axes"
        elif variable.name in implied:
            source = f"follows from the stated {implied[variable.name]}"
        elif variable.of in sources:
            source = sources[variable.of].get(entries[variable.of], {}).get(variable.name, source)
        for prefix in ("", STATED, OWN_PREFIX):
            name = prefix + variable.name
            about = source if prefix != OWN_PREFIX or variable.of == "device" else f"the device's own {variable.of}"
            for axis, row in zip(space.axes, index, strict=True):
                if name in axis.scales and axis.scales[name][row] != 1:
                    about += f", times {axis.scales[name][row]:g}"
            units[name] = (variable.unit, variable.meaning, about)
    for name in (set(space.names()) & set(registry.names())) - units.keys():  # stated of what formulas compute
        by = "overrides" if name in overrides else "axes"
        units[name] = (registry.get(name).unit, registry.get(name).meaning, f"given by the study's {by}")
    derived = explain_point(registry, space, quantity, at, choices, units, {"step_time": BREAKDOWN})
    found = Explained(**vars(derived))
    found.elasticities = cache(lambda: _elasticities(registry, space, index, quantity, choices, variables))
    found.interval = cache(lambda: _interval(what, index, found, formulas))
    return found


def _interval(
    what: Study | xr.Dataset, index: tuple[int, ...], found: Explained, formulas: Iterable[Callable[..., Any]]
) -> tuple[float, float] | None:
    """Where 90 of 100 measurements of a number are expected; None where nothing is known of it."""
    if found.illegal or np.size(found.value) != 1 or not has_interval(what, found.quantity, formulas):
        return None
    try:
        (known,) = intervals(what, [index], found.quantity, formulas)
    except PerfgridError:  # a user's formula that uses what has no rule for derivatives
        return None
    return known.low, known.high


def elasticities_at(study: Study, index: tuple[int, ...], quantity: str) -> dict[str, float]:
    """d ln quantity / d ln parameter of the given numbers of a study at one point, the largest first, without zeros."""
    variables = study.catalog.variables
    return _elasticities(study.registry, study.space, index, quantity, study.file.choices, variables)


def _elasticities(
    registry: Registry,
    space: Space,
    index: tuple[int, ...],
    quantity: str,
    choices: Mapping[str, str],
    variables: Mapping[str, Variable],
) -> dict[str, float]:
    """d ln quantity / d ln parameter for every given number at one point, the largest first, without zeros."""
    plan = points_plan(registry, space, [np.array([row]) for row in index], (quantity,), choices)
    found = plan.quantities[quantity]
    names = [name for name in plan.graph.leaves if kind_of(variables, registry, name) == "number"]
    if found.node is None or found.labelled or not names:
        return {}
    parameters = parameters_of(plan, names)
    try:
        values, slopes = Sensitivity(plan, (quantity,), parameters, dtype="float64").derivatives()
    except PerfgridError:  # a user's formula that uses what has no rule for derivatives
        return {}
    whole = float(np.sum(values[quantity]))
    if not np.isfinite(whole) or whole == 0:
        return {}
    by_name = {
        p.name: float(np.sum(slope * values[quantity])) / whole
        for p, slope in zip(parameters, slopes[quantity], strict=True)
    }
    strong = {name: e for name, e in by_name.items() if np.isfinite(e) and e != 0}
    return dict(sorted(strong.items(), key=lambda item: -round(abs(item[1]), 12)))  # not by rounding
