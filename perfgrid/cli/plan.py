"""``perfgrid plan``: what a study evaluates; nothing is computed."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from typer import Option

from perfgrid.printing.console import out, print_json
from perfgrid.printing.tables import print_table
from perfgrid.results.memory import MEMORY, peaks
from perfgrid.study.entries import unit_of
from perfgrid.study.file import CLUSTER_SIZE, chosen_along
from perfgrid.study.study import Study
from perfgrid.text.numbers import bare_unit, count_text, number

from .arguments import study_of
from .options import AsJson, Formulas, Settings, StudyFile, Wide

DROPPED = ("inner axes", "values", "unit", "stage")  # columns of a table that is too wide, in this order
MOST_COLUMNS = 3  # of an axis, named in a line


def plan_command(
    study: StudyFile,
    everything: Annotated[bool, Option("--all", help="List every quantity, not only outputs.")] = False,
    settings: Settings = None,
    formulas: Formulas = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Show what a study evaluates: quantity, columns, points, bytes. Nothing is computed."""
    loaded = study_of(study, settings, formulas)
    plan = loaded.plan()
    rows = plan.describe()
    dtype = loaded.file.dtype
    most = peaks(plan, dtype, *_search(loaded))
    if as_json:
        data = {"points": plan.space.points, "result_bytes": plan.result_bytes(dtype), "peak_bytes": most}
        data["quantities"] = rows
        print_json(data)
        return
    lines = []
    for row in sorted(rows, key=lambda r: (r["stage"] != "given", r["points"])):
        if not everything and row["quantity"] not in plan.outputs:
            continue
        columns = "; ".join(_columns(axis, names, everything) for axis, names in row["columns"].items())
        counts = (f"{row[name]:,}" for name in ("points", "values", "bytes"))
        mark = "* " if row["wanted"] else "  "
        unit = bare_unit(row["unit"] or unit_of(loaded.catalog.variables, row["quantity"]))
        lines.append([mark + row["quantity"], row["stage"], unit, *counts, " x ".join(row["inner"]), columns])
    headers = ["  quantity", "stage", "unit", "points", "values", "bytes", "inner axes", "columns"]
    print_table(headers, lines, right=headers[3:6], drop=DROPPED, prose=("columns",))
    ways = {way: f"run -o FILE{way}" if way.startswith(".") else way for way in most} | {MEMORY: "run"}
    out.print(
        "peak memory: " + ", ".join(f"{ways[way]} {number(float(needed), 'byte')}" for way, needed in most.items())
    )
    grid = " x ".join(f"{a.name} {len(a)}" for a in loaded.space.axes)
    out.print(
        f"{count_text(plan.space.points, 'point')} ({grid}); {len(rows)} quantities, "
        f"{sum(r['stage'] == 'grid' for r in rows)} on the grid; "
        f"results (*) take {number(float(plan.result_bytes(dtype)), 'byte')}"
    )


def _search(study: Study) -> tuple[str, int]:
    """The objective of the best designs, and of how many groups: those of the study, else one by the first output."""
    stated = study.file.best
    if stated is None:
        return study.outputs[0], 1
    over, weighed = chosen_along(stated.over, CLUSTER_SIZE, [axis.name for axis in study.space.axes])
    groups = 1
    for axis in study.space.axes:
        if axis.name not in over and axis.name not in stated.at:
            groups *= len(axis)
        elif axis.name in over and CLUSTER_SIZE in axis.columns and not weighed:
            groups *= len(np.unique(axis.columns[CLUSTER_SIZE]))
    return stated.minimize or stated.maximize or study.outputs[0], groups


def _columns(axis: str, names: list[str], several: bool) -> str:
    """The columns of an axis that a quantity reads; their number where they would fill the line."""
    if names == [axis]:
        return axis
    if len(names) > MOST_COLUMNS and not several:
        return f"{axis} ({len(names)})"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{axis}: {', '.join(names[:4])}{more}"
