"""Commands on results: writing and expanding factored ones, comparing two of any kind."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from perfgrid.analysis.diff import TOLERANCE, Difference, diff
from perfgrid.analysis.text import labels_of, number
from perfgrid.cli.printing.console import err, out, show, text_table
from perfgrid.results.factored import SUFFIX, expand, save_factored
from perfgrid.results.memory import available_memory
from perfgrid.results.opening import open_result
from perfgrid.results.writing import check_output, save
from perfgrid.study.study import Study

from .options import AsJson

EXPANDED_BYTES = 2**32  # of values: more are kept factored unless the name of the result asks for values
MANY_LABELS = 6  # of an axis that are told

Recompute = Annotated[
    bool, typer.Option("--recompute", help="Evaluate a factored result of other formulas with those installed.")
]


def named(study: Study, output: Path, dtype: str | None) -> Path:
    """A result's name with the suffix of its kind: values while they are few, else factored; a suffix stays as it is.

    Values take at most `EXPANDED_BYTES`, 0.8 of the free memory (they are evaluated in it) and half of the free disk.
    """
    if output.suffix or not output.name:
        return output
    needed = study.plan().result_bytes(dtype or study.file.dtype)
    room = {"the limit for values": EXPANDED_BYTES, "the memory at hand": int(0.8 * available_memory())}
    if output.parent.is_dir():
        room["half of the free disk"] = shutil.disk_usage(output.parent).free // 2
    what, least = min(room.items(), key=lambda item: item[1])
    if needed <= least:
        return output.with_name(output.name + ".nc")
    err.print(
        f"{study.space.points:,} points are kept factored: their values take {number(needed, 'byte')}, more than "
        f"{what} ({number(least, 'byte')}); -o {output.name}.zarr writes the values"
    )
    return output.with_name(output.name + SUFFIX)


def run_factored(study: Study, output: Path, dtype: str | None, overwrite: bool, as_json: bool) -> None:
    """``perfgrid run STUDY -o FILE.pgf``: the sub-grids and the formulas in the place of the values."""
    start = time.perf_counter()
    save_factored(study, output, dtype, overwrite)
    seconds, size = time.perf_counter() - start, output.stat().st_size
    expanded = study.plan().result_bytes(dtype or study.file.dtype)
    if as_json:
        data = {"points": study.space.points, "seconds": seconds, "bytes": size, "expanded_bytes": expanded}
        print(json.dumps(data))
        return
    ratio = f" ({expanded / size:,.0f} times less)" if expanded > 2 * size else ""
    out.print(
        f"{study.space.points:,} points in {number(size, 'byte')} instead of {number(expanded, 'byte')}{ratio}, "
        f"{seconds:.1f} s; values are evaluated where they are read"
    )
    if study.file.best is not None:
        out.print(f"'perfgrid best {study.name}' finds the best designs")
    out.print(f"saved {output}")


def expand_command(
    result: Annotated[Path, typer.Argument(help=f"A factored result ({SUFFIX}).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Result file (.nc).")],
    at: Annotated[list[str] | None, typer.Option("--at", help="axis=label[,axis=label...]: only this part.")] = None,
    recompute: Recompute = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing result file.")] = False,
) -> None:
    """Write a factored result, or a part of it, as netCDF that opens without perfgrid."""
    check_output(output, overwrite)
    found = expand(result, labels_of(at, "--at"), recompute)
    save(found, output, overwrite)
    out.print(f"saved {output} ({output.stat().st_size / 1e6:.1f} MB)")


def diff_command(
    a: Annotated[Path, typer.Argument(help="A result: netCDF, the folder of a Zarr store, or factored.")],
    b: Annotated[Path, typer.Argument(help="Another one.")],
    tolerance: Annotated[float, typer.Option(help="Relative difference up to which values are the same.")] = TOLERANCE,
    variables: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    recompute: Recompute = False,
    as_json: AsJson = False,
) -> None:
    """Compare two results: labels, variables, values, feasibility. Exit status 0: the same, 1: different."""
    names = None if variables is None else [n.strip() for n in variables.split(",")]
    with open_result(a, recompute) as first, open_result(b, recompute) as second:
        found = diff(first, second, tolerance, names)
        units = {str(n): v.attrs.get("units", "1") for d in (second, first) for n, v in d.data_vars.items()}
    if as_json:
        data = asdict(found) | {"same": found.same}
        print(json.dumps(data, default=str).replace("Infinity", '"infinite"').replace("NaN", "null"))
    else:
        _print(found, str(a), str(b), units)
    if not found.same:
        raise typer.Exit(1)


def _print(found: Difference, a: str, b: str, units: dict[str, str]) -> None:
    out.print(f"A  {a}\nB  {b}")
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
        show(text_table(headers, rows, right=headers[1:6]), whole=True)
    if found.feasible_only_a or found.feasible_only_b:
        out.print(
            f"of {found.points:,} points {found.feasible_only_a:,} are feasible only in A, "
            f"{found.feasible_only_b:,} only in B"
        )
    if not found.same and found.given:
        out.print(f"given quantities that differ: {', '.join(found.given)}")
    if not found.same and found.formulas_differ:
        out.print("the formulas differ")
    compared = f"{len(found.variables)} variables on {found.points:,} points, relative tolerance {found.tolerance:g}"
    out.print(f"the same: {compared}" if found.same else f"different: {compared}")


def _relative(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _values(a: float, b: float, unit: str) -> list[Any]:
    texts = [number(a, unit), number(b, unit)]
    return texts if texts[0] != texts[1] or texts[0] == "-" else [f"{a:.9g}", f"{b:.9g}"]
