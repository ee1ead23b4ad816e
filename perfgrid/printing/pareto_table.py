"""The designs of a Pareto front as rows and as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.pareto import DESIGN
from perfgrid.engine.grid.dataset import study_axes
from perfgrid.printing.console import out
from perfgrid.printing.tables import print_table
from perfgrid.study.file import Pareto
from perfgrid.study.study import Study
from perfgrid.text.numbers import column, header

from .labels import axis_label

SHOWN = 60  # designs of a search that are printed


def front_rows(study: Study, edge: xr.Dataset, quantities: Iterable[str], key: str) -> list[dict[str, Any]]:
    """One row per design of a front: labels of the axes that vary, and under ``key`` values of some quantities."""
    axes, count = _axes(study, edge), edge.sizes.get(DESIGN, 0)
    values = {name: np.broadcast_to(edge[name].values.astype(float), count).tolist() for name in quantities}
    return [
        {"at": {a: edge[a].values[i].item() for a in axes}, key: {name: own[i] for name, own in values.items()}}
        for i in range(count)
    ]


def _axes(study: Study, edge: xr.Dataset) -> list[str]:
    """The axes along which the designs of a front differ, or may."""
    return [a for a in study_axes(study.space) if a in edge.coords and edge[a].dims]


def print_outputs(study: Study, edge: xr.Dataset, wanted: Pareto) -> None:
    """The designs of a front as a table; what all share is in the title."""
    axes, rows = _axes(study, edge), front_rows(study, edge, wanted.maximize, "outputs")
    same = {a: rows[0]["at"][a] for a in axes if len({row["at"][a] for row in rows}) == 1}
    out.print(f"{study.file.title}: between {' and '.join(wanted.maximize)}")
    if fixed := wanted.at | same:
        out.print_items("", (f"{axis} = {axis_label(study, axis, label)}" for axis, label in fixed.items()))
    if not rows:
        out.print("no feasible design")
        return
    varied = [a for a in axes if a not in same]
    _print(study, edge, rows, varied, "outputs")


def print_objectives(study: Study, edge: xr.Dataset, objectives: list[str]) -> None:
    """The first designs of a front as a table of labels and objectives."""
    out.print(f"{study.file.title}: Pareto front of {', '.join(objectives)}")
    rows = front_rows(study, edge, objectives, "objectives")
    shown = rows if out.wide else rows[:SHOWN]
    _print(study, edge, shown, _axes(study, edge), "objectives")
    if len(rows) > len(shown):
        out.print(f"and {len(rows) - len(shown):,} more (--wide prints them, -o FILE.nc saves all)")


def _print(study: Study, edge: xr.Dataset, rows: list[dict[str, Any]], axes: list[str], key: str) -> None:
    """One line for each design: labels, and values of the quantities under ``key``."""
    columns, right = {a: [axis_label(study, a, row["at"][a]) for row in rows] for a in axes}, list[str]()
    for name in rows[0][key] if rows else ():
        unit, texts = column([row[key][name] for row in rows], edge[name].attrs.get("units", "1"))
        right.append(header(name, unit))
        columns[right[-1]] = texts
    print_table(columns, list(zip(*columns.values(), strict=True)), right, groups=len(axes))
