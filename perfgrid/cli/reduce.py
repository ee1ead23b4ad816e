"""Frontiers and distributions of studies of any size, on the command line; the grid itself is never kept."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import xarray as xr

from perfgrid.analysis.pareto import DESIGN, distribution, pareto
from perfgrid.analysis.text import labels_of, number
from perfgrid.cli.printing.console import out, show, text_table
from perfgrid.cli.printing.progress import Reporter
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.dataset import study_axes
from perfgrid.results.writing import check_output, save
from perfgrid.study.study import Study, load_study

SHOWN = 60  # designs of a frontier, or rows of a distribution, that are printed


def names_of(text: str | None) -> list[str]:
    """Names separated by commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def pareto_of(
    study: Study, objectives: list[str], maximize: list[str], over: list[str] | None, output: Path | None,
    overwrite: bool, as_json: bool,
) -> None:  # fmt: skip
    """``perfgrid best STUDY --pareto a,b,c [--maximize c]``."""
    if unknown := [name for name in maximize if name not in objectives]:
        raise PerfgridError(f"--maximize {unknown[0]!r} is not among the objectives{nearest(unknown[0], objectives)}")
    start, stated = time.perf_counter(), study.file.best
    axes = over if over is not None or stated is None else stated.over
    labels = {} if stated is None or set(stated.at) & set(axes or []) else stated.at
    with Reporter(study.space.points) as reporter:
        minimize = [name for name in objectives if name not in maximize]
        found = pareto(study, minimize, maximize, axes, labels, progress=reporter)
    seconds = time.perf_counter() - start
    ordered = [*minimize, *maximize]
    if output is not None:
        save(found, output, overwrite)
    shown = [a for a in study_axes(study.space) if found[a].dims]
    size = found.sizes.get(DESIGN, 0)
    if as_json:
        rows = [
            {"at": {a: found[a].values[i].item() for a in shown}, "objectives": {n: _at(found, n, i) for n in ordered}}
            for i in range(size)
        ]
        print(json.dumps({"points": study.space.points, "seconds": seconds, "designs": rows}))
        return
    out.print(f"{study.file.title}: the designs that no other beats in {', '.join(ordered)}")
    units = {n: found[n].attrs.get("units", "1") for n in ordered}
    lines = [
        [*(str(found[a].values[i]) for a in shown), *(number(_at(found, n, i), units[n]) for n in ordered)]
        for i in range(min(size, SHOWN))
    ]
    show(text_table([*shown, *ordered], lines, right=ordered), whole=True)
    if size > SHOWN:
        out.print(f"and {size - SHOWN:,} more; -o FILE.nc keeps all of them")
    out.print(f"{size:,} of {study.space.points:,} points, searched in {seconds:.1f} s")
    if output is not None:
        out.print(f"saved {output}")


def _at(found: xr.Dataset, name: str, row: int) -> float:
    values = found[name].values
    return float(values[row] if values.ndim else values)


def distribution_command(
    study: Annotated[Path, typer.Argument(help="A study file (TOML).")],
    of: Annotated[str, typer.Option(help="The quantity.")],
    over: Annotated[str | None, typer.Option(help="Axes to reduce, separated by commas; without it all.")] = None,
    at: Annotated[list[str] | None, typer.Option("--at", help="axis=label[,axis=label...]")] = None,
    quantiles: Annotated[str, typer.Option(help="Shares of the feasible designs.")] = "0.05,0.5,0.95",
    bins: Annotated[int, typer.Option(help="Bins of a histogram.")] = 0,
    logarithmic: Annotated[bool, typer.Option("--log", help="Bins of one ratio instead of one width.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Result file (.nc).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing result file.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override, such as axes.microbatch=[1,2].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Quantiles and a histogram of a quantity over the feasible designs of a study, however large."""
    loaded = load_study(study, settings or ())
    if output is not None:
        check_output(output, overwrite)
    try:
        levels = [float(text) for text in names_of(quantiles)]
    except ValueError:
        raise PerfgridError(f"--quantiles needs numbers between 0 and 1, found {quantiles!r}") from None
    start = time.perf_counter()
    with Reporter(loaded.space.points) as reporter:
        axes = None if over is None else names_of(over)
        found = distribution(loaded, of, axes, labels_of(at, "--at"), levels, bins, logarithmic, progress=reporter)
    seconds = time.perf_counter() - start
    if output is not None:
        save(found, output, overwrite)
    groups = [str(d) for d in found["designs"].dims]
    places = list(np.ndindex(*found["designs"].shape))
    if as_json:
        rows = [_row(found, of, groups, place) for place in places]
        edges = [*found["bin_from"].values.tolist(), float(found["bin_to"][-1])] if bins else []
        print(json.dumps({"points": loaded.space.points, "seconds": seconds, "edges": edges, "groups": rows}))
        return
    unit = found[of].attrs["units"]
    heads = [f"{level:.4g}" for level in levels]
    lines = []
    for place in places[:SHOWN]:
        row = _row(found, of, groups, place)
        values = [number(v, unit) if v is not None else "" for v in row["quantiles"]]
        lines.append([*map(str, row["group"].values()), f"{row['designs']:,}", *values])
    out.print(f"{loaded.file.title}: {of} of feasible designs, at or below which lies a share of")
    show(text_table([*groups, "designs", *heads], lines, right=["designs", *heads]), whole=True)
    if len(places) > SHOWN:
        out.print(f"and {len(places) - SHOWN:,} more groups; -o FILE.nc keeps all of them")
    if bins:
        counts = found["histogram"].values.reshape(-1, bins).sum(axis=0)
        rows = [
            [f"{number(a, unit)} to {number(b, unit)}", f"{n:,}", "#" * int(np.ceil(40 * n / max(counts.max(), 1)))]
            for a, b, n in zip(found["bin_from"].values, found["bin_to"].values, counts.tolist(), strict=True)
        ]
        show(text_table([of, "designs", ""], rows, right=["designs"]), whole=True)
    out.print(f"{loaded.space.points:,} points in {seconds:.1f} s")


def _row(found: xr.Dataset, of: str, groups: list[str], place: tuple[int, ...]) -> dict[str, Any]:
    """One group: its labels, how many designs are feasible, quantiles, counts by bin."""
    values = [None if np.isnan(v) else v for v in found[of].values[place].tolist()]
    row = {
        "group": {d: found[d].values[i].item() for d, i in zip(groups, place, strict=True)},
        "designs": int(found["designs"].values[place]),
        "quantiles": values,
    }
    return row | ({"histogram": found["histogram"].values[place].tolist()} if "histogram" in found else {})
