"""``perfgrid diff``: two results compared."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from perfgrid.analysis.diff import TOLERANCE, Difference, diff
from perfgrid.printing.console import out
from perfgrid.printing.tables import print_table
from perfgrid.results.opening import open_result
from perfgrid.study.own_formulas import own_formulas
from perfgrid.text.numbers import count_text, number

from .arguments import names_in
from .options import AsJson, Formulas, Recompute, Wide

MANY_LABELS = 6  # of an axis that are printed


def diff_command(
    a: Annotated[Path, Argument(help="Result (.nc, .zarr, .pgf).")],
    b: Annotated[Path, Argument(help="Result to compare with.")],
    tolerance: Annotated[float, Option(help="Relative difference up to which values agree.")] = TOLERANCE,
    variables: Annotated[str | None, Option(help="Variables to compare, comma-separated. Default: all.")] = None,
    recompute: Recompute = False,
    formulas: Formulas = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Compare two results: labels, variables, values, feasibility. Exit status 1 if they differ."""
    names, own = None if variables is None else names_in(variables), own_formulas(formulas)
    with open_result(a, recompute, own) as first, open_result(b, recompute, own) as second:
        found = diff(first, second, tolerance, names)
        units = {str(n): v.attrs.get("units", "1") for d in (second, first) for n, v in d.data_vars.items()}
    if as_json:
        data = asdict(found) | {"same": found.same}
        print(json.dumps(data, default=str).replace("Infinity", '"infinite"').replace("NaN", "null"))
    else:
        _print(found, str(a), str(b), units)
    if not found.same:
        raise Exit(1)


def _print(found: Difference, a: str, b: str, units: dict[str, str]) -> None:
    out.print(f"A  {a}")
    out.print(f"B  {b}")
    for axis in found.axes:
        for side, labels in (("A", axis.only_a), ("B", axis.only_b)):
            if labels:
                more = f" and {len(labels) - MANY_LABELS:,} more" if len(labels) > MANY_LABELS else ""
                out.print(f"axis {axis.axis}: only {side} has {', '.join(labels[:MANY_LABELS])}{more}")
    for side, names in (("A", found.only_a), ("B", found.only_b)):
        if names:
            out.print(f"only {side} holds {', '.join(names)}")
    rows = []
    for v in found.variables:
        if v.differing:
            unit = units.get(v.name, "1")
            where = ", ".join(f"{axis} = {label}" for axis, label in v.where.items())
            shares = [_relative(v.median), _relative(v.largest)]
            rows.append([v.name, f"{v.differing / v.points:.2%}", *shares, *_values(v.a, v.b, unit), where])
    if rows:
        headers = ["variable", "differs", "median", "largest", "A", "B", "at"]
        print_table(headers, rows, right=headers[1:6], prose=("at",))
    if found.feasible_only_a or found.feasible_only_b:
        out.print(
            f"of {count_text(found.points, 'point')} {found.feasible_only_a:,} are feasible only in A, "
            f"{found.feasible_only_b:,} only in B"
        )
    if not found.same and found.given:
        out.print(f"given quantities that differ: {', '.join(found.given)}")
    if not found.same and found.formulas_differ:
        out.print("the formulas differ")
    compared = f"{count_text(len(found.variables), 'variable')} on {count_text(found.points, 'point')}, relative "
    compared += f"tolerance {found.tolerance:g}"
    out.print(f"the same: {compared}" if found.same else f"different: {len(rows)} of {compared}")


def _relative(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _values(a: float, b: float, unit: str) -> list[Any]:
    texts = [number(a, unit), number(b, unit)]
    return texts if texts[0] != texts[1] or texts[0] == "-" else [f"{a:.9g}", f"{b:.9g}"]
