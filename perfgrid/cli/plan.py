"""``perfgrid plan``: what a study evaluates; nothing is computed."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from perfgrid.analysis.text import number
from perfgrid.cli.printing.console import out, print_json, print_table
from perfgrid.study.study import load_study
from perfgrid.study.tables import unit_of

from .options import AsJson, Settings, StudyFile

MOST_COLUMNS = 3  # of an axis, named in a line


def plan_command(
    study: StudyFile,
    everything: Annotated[bool, Option("--all", help="List every quantity, not only outputs.")] = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show what a study evaluates: quantity, columns, points, bytes. Nothing is computed."""
    loaded = load_study(study, settings or ())
    plan = loaded.plan()
    rows = plan.describe()
    if as_json:
        data = {"points": plan.space.points, "result_bytes": plan.result_bytes(), "quantities": rows}
        print_json(data)
        return
    lines = []
    for row in sorted(rows, key=lambda r: (r["stage"] != "given", r["points"])):
        if not everything and row["quantity"] not in plan.outputs:
            continue
        columns = "; ".join(_columns(axis, names, everything) for axis, names in row["columns"].items())
        counts = (f"{row[name]:,}" for name in ("points", "values", "bytes"))
        mark = "* " if row["wanted"] else "  "
        unit = row["unit"] or unit_of(loaded.catalog.variables, row["quantity"])
        lines.append([mark + row["quantity"], row["stage"], unit, *counts, " x ".join(row["inner"]), columns])
    headers = ["  quantity", "stage", "unit", "points", "values", "bytes", "inner axes", "columns"]
    print_table(headers, lines, right=("points", "values", "bytes"))
    grid = " x ".join(f"{a.name} {len(a)}" for a in loaded.space.axes)
    out.print(
        f"{plan.space.points:,} points ({grid}); {len(rows)} quantities, {sum(r['stage'] == 'grid' for r in rows)} on "
        f"the grid; results (*) take {number(plan.result_bytes(), 'byte')}"
    )


def _columns(axis: str, names: list[str], several: bool) -> str:
    """The columns of an axis that a quantity reads; their number where they would fill the line."""
    if names == [axis]:
        return axis
    if len(names) > MOST_COLUMNS and not several:
        return f"{axis}: {len(names)} columns"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{axis}: {', '.join(names[:4])}{more}"
