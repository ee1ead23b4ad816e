"""The frontier between two objectives that a study asks for, on the command line."""

from __future__ import annotations

from typing import Any

import xarray as xr

from perfgrid.analysis.frontier import frontier
from perfgrid.analysis.text import label_text, number
from perfgrid.cli.printing.console import out, show, text_table
from perfgrid.engine.grid.dataset import study_axes
from perfgrid.engine.grid.space import Axis
from perfgrid.study.file import Frontier
from perfgrid.study.study import Study


def frontier_of(study: Study, result: xr.Dataset, wanted: Frontier) -> xr.Dataset:
    """The frontier that a study asks for."""
    for axis, label in wanted.at.items():
        result = result.isel({axis: Axis(axis, result[axis].values).index(study.label(axis, label))})
    return frontier(result, wanted.over, wanted.maximize)


def _axes(study: Study, edge: xr.Dataset) -> list[str]:
    """The axes along which the designs of a frontier differ, or may."""
    return [a for a in study_axes(study.space) if a in edge.coords and edge[a].dims == ("design",)]


def frontier_rows(study: Study, edge: xr.Dataset) -> list[dict[str, Any]]:
    """One row per design of a frontier: its labels and outputs."""
    axes = _axes(study, edge)
    shown = [name for name in study.outputs if edge[name].dims == ("design",)]
    return [
        {"at": {a: edge[a].values[i] for a in axes}, "outputs": {n: float(edge[n].values[i]) for n in shown}}
        for i in range(edge.sizes.get("design", 0))
    ]


def print_frontier(study: Study, edge: xr.Dataset, wanted: Frontier) -> None:
    """The designs of a frontier as a table; what is the same everywhere stands above it."""
    first, second = wanted.maximize
    axes = _axes(study, edge)
    same = {a: edge[a].values[0] for a in axes if len(set(edge[a].values.tolist())) == 1} if edge.sizes else {}
    at = "".join(f", {axis} = {label_text(label)}" for axis, label in (wanted.at | same).items())
    out.print(f"{study.file.title}: between {first} and {second}{at}")
    units = {name: edge[name].attrs.get("units", "1") for name in wanted.maximize}
    lines = []
    for row in frontier_rows(study, edge):
        labels = [label_text(v) for a, v in row["at"].items() if a not in same]
        lines.append([*labels, *(number(row["outputs"][n], units[n]) for n in wanted.maximize)])
    if not lines:
        out.print("no feasible design")
        return
    show(text_table([*(a for a in axes if a not in same), *wanted.maximize], lines, right=wanted.maximize), whole=True)
