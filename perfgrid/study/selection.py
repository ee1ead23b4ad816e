"""Parts of a study: the same designs asked for other outputs, or some of the designs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.space import Space

from .checks import check_numbers
from .study import Study, build_study, expect_study
from .where import filtered

SEARCHES = (
    "best",
    "pareto",
    "optimize",
    "workloads",
    "view",
)  # tables that name outputs and axes of the study as it is


def asking(study: Study, outputs: Sequence[str], axes: Mapping[str, Any] | None = None) -> Study:
    """The same study with other outputs and, if given, other axes. PerfgridError for an unknown quantity."""
    content = study.file.model_dump(exclude_none=True) | {"outputs": list(outputs)}
    if axes is not None:
        content["axes"] = dict(axes)
    for table in SEARCHES:
        content.pop(table, None)
    return replace(build_study(content, study.name, study.catalog, study.formulas), pools=study.pools)


def reaching(study: Study, quantities: Iterable[str]) -> Study:
    """The study that asks for these quantities too, so that it holds what they rest on: prices, energies, a node.

    PerfgridError for an unknown quantity and for a label.
    """
    expect_study(study, "a search of designs")
    quantities = list(dict.fromkeys(quantities))
    check_numbers(study, quantities, study.name)
    lacking = [q for q in quantities if q not in study.outputs]
    if not lacking:
        return study
    found = asking(study, [*study.outputs, *lacking])
    kept = {a.name: a.labels for a in study.space.axes}  # some labels may have been selected
    axes = tuple(filtered(a, np.isin(a.labels, kept[a.name])) for a in found.space.axes)
    stated = {table: getattr(study.file, table) for table in SEARCHES}
    file, space = found.file.model_copy(update=stated), Space(axes, found.space.constants)
    return replace(found, file=file, space=space, source=study.source)


def selected(study: Study, at: Mapping[str, Any] | None) -> Study:
    """The study with one label left of every axis that ``at`` names. PerfgridError for an unknown axis or label."""
    axes = {a.name: a for a in study.space.axes}
    for name, label in (at or {}).items():
        if name not in axes:
            raise PerfgridError(f"the study has no axis {name!r}{nearest(name, axes)}")
        row = np.arange(len(axes[name])) == axes[name].index(study.label(name, label))
        axes[name] = filtered(axes[name], row)
    return replace(study, space=Space(tuple(axes.values()), study.space.constants))
