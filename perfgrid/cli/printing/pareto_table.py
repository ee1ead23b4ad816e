"""The designs of a Pareto front as rows and as a table."""

from __future__ import annotations

from typing import Any

import xarray as xr

from perfgrid.analysis.pareto import DESIGN
from perfgrid.analysis.text import label_text, number
from perfgrid.engine.grid.dataset import study_axes
from perfgrid.study.file import Pareto
from perfgrid.study.study import Study

from .console import out, print_table

SHOWN = 60  # designs of a search that are printed


def _axes(study: Study, edge: xr.Dataset) -> list[str]:
    """The axes along which the designs of a front differ, or may."""
    return [a for a in study_axes(study.space) if a in edge.coords and edge[a].dims == ("design",)]


def output_rows(study: Study, edge: xr.Dataset) -> list[dict[str, Any]]:
    """One row per design of a front: labels and outputs."""
    axes = _axes(study, edge)
    shown = [name for name in study.outputs if edge[name].dims == ("design",)]
    return [
        {"at": {a: edge[a].values[i] for a in axes}, "outputs": {n: float(edge[n].values[i]) for n in shown}}
        for i in range(edge.sizes.get("design", 0))
    ]


def print_outputs(study: Study, edge: xr.Dataset, wanted: Pareto) -> None:
    """The designs of a front as a table; what all share is in the title."""
    first, second = wanted.maximize
    axes = _axes(study, edge)
    same = {a: edge[a].values[0] for a in axes if len(set(edge[a].values.tolist())) == 1} if edge.sizes else {}
    at = "".join(f", {axis} = {label_text(label)}" for axis, label in (wanted.at | same).items())
    out.print(f"{study.file.title}: between {first} and {second}{at}")
    units = {name: edge[name].attrs.get("units", "1") for name in wanted.maximize}
    lines = []
    for row in output_rows(study, edge):
        labels = [label_text(v) for a, v in row["at"].items() if a not in same]
        lines.append([*labels, *(number(row["outputs"][n], units[n]) for n in wanted.maximize)])
    if not lines:
        out.print("no feasible design")
        return
    print_table([*(a for a in axes if a not in same), *wanted.maximize], lines, right=wanted.maximize, whole=True)


def objective_rows(study: Study, edge: xr.Dataset, objectives: list[str]) -> list[dict[str, Any]]:
    """One row per design of a front: labels of the axes that vary, and objectives."""
    shown, size = _varying(study, edge), edge.sizes.get(DESIGN, 0)
    return [
        {"at": {a: edge[a].values[i].item() for a in shown}, "objectives": {n: _at(edge, n, i) for n in objectives}}
        for i in range(size)
    ]


def print_objectives(study: Study, edge: xr.Dataset, objectives: list[str]) -> None:
    """The first designs of a front as a table of labels and objectives."""
    out.print(f"{study.file.title}: Pareto front of {', '.join(objectives)}")
    shown, rows = _varying(study, edge), objective_rows(study, edge, objectives)
    units = {name: edge[name].attrs.get("units", "1") for name in objectives}
    lines = [
        [*map(str, row["at"].values()), *(number(value, units[n]) for n, value in row["objectives"].items())]
        for row in rows[:SHOWN]
    ]
    print_table([*shown, *objectives], lines, right=objectives, whole=True)
    if len(rows) > SHOWN:
        out.print(f"and {len(rows) - SHOWN:,} more; -o FILE.nc saves all")


def _varying(study: Study, edge: xr.Dataset) -> list[str]:
    return [a for a in study_axes(study.space) if edge[a].dims]


def _at(edge: xr.Dataset, name: str, row: int) -> float:
    values = edge[name].values
    return float(values[row] if values.ndim else values)
