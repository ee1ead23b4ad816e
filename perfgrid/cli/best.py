"""``perfgrid best``: the best designs of a study of any size; the grid itself is never kept."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from perfgrid.analysis.best import best
from perfgrid.cli.printing.best_table import print_winners, winner_rows
from perfgrid.cli.printing.console import out
from perfgrid.cli.printing.progress import Reporter
from perfgrid.engine.errors import PerfgridError
from perfgrid.results.writing import check_output, save
from perfgrid.study.file import Best
from perfgrid.study.selection import reaching
from perfgrid.study.study import load_study

from .options import AsJson, Minimize, Output, Overwrite, Settings, StudyFile
from .reduce import names_of, pareto_of

COUNTS = ("points_searched", "points_excluded")


def best_command(
    study: StudyFile,
    over: Annotated[
        str | None,
        typer.Option(help="Axes to choose along, separated by commas; without it those of the study."),
    ] = None,
    minimize: Minimize = None,
    maximize: Annotated[str | None, typer.Option(help="Quantity to maximize; with --pareto several.")] = None,
    objectives: Annotated[
        str | None, typer.Option("--pareto", help="Two or more quantities: the designs that no other beats in all.")
    ] = None,
    top: Annotated[int, typer.Option(help="So many best designs of every group.")] = 1,
    output: Output = None,
    overwrite: Overwrite = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Find the best designs of a study, however large: only minima are kept, in the memory of one tile."""
    loaded = load_study(study, settings or ())
    if output is not None:
        check_output(output, overwrite)
    axes_given = names_of(over) if over is not None else None
    if objectives is not None:
        if minimize is not None or top != 1:
            raise PerfgridError("--pareto goes with --maximize, --over and -o, not with --minimize or --top")
        pareto_of(loaded, names_of(objectives), names_of(maximize), axes_given, output, overwrite, as_json)
        return
    stated = loaded.file.best
    if minimize is None and maximize is None and stated is not None:
        minimize, maximize = stated.minimize, stated.maximize
    if (minimize is None) == (maximize is None):
        raise PerfgridError("give either --minimize or --maximize, or [best] in the study; --pareto a,b takes several")
    loaded = reaching(loaded, [minimize or maximize or ""])
    axes = axes_given if axes_given is not None else stated.over if stated else []
    at = stated.at if stated and not set(stated.at) & set(axes) else {}
    start = time.perf_counter()
    try:
        with Reporter(loaded.space.points) as reporter:
            winners = best(loaded, axes, minimize, maximize, at, top, progress=reporter)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    seconds = time.perf_counter() - start
    if output is not None:
        save(winners, output, overwrite)
    counted = {name: winners.attrs[name] for name in COUNTS}
    choice = Best(over=axes, minimize=minimize, maximize=maximize, at=at)
    if as_json:
        rows = winner_rows(loaded, winners, choice)
        print(json.dumps({"points": loaded.space.points, **counted, "seconds": seconds, "best": rows}))
        return
    print_winners(loaded, winners, choice)
    points, excluded = counted.values()
    out.print(f"{points:,} points searched in {seconds:.1f} s; constraints excluded {excluded:,} of them beforehand")
    if output is not None:
        out.print(f"saved {output}")
