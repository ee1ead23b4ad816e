"""``perfgrid best``: the best designs or the Pareto front of a study of any size; the grid is never kept."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from perfgrid.analysis.best import best
from perfgrid.analysis.pareto import pareto
from perfgrid.answers.saved import best_labels
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.printing.assumptions_table import assumptions_data, print_assumptions
from perfgrid.printing.best_table import print_winners, winner_rows
from perfgrid.printing.console import out, print_json
from perfgrid.printing.pareto_table import front_rows, print_objectives
from perfgrid.printing.progress import Reporter
from perfgrid.study.file import Best
from perfgrid.study.selection import reaching
from perfgrid.study.study import Study
from perfgrid.text.numbers import count_text

from .arguments import names_in, study_of, with_catalog
from .effects import warnings_of
from .launching import Launcher
from .options import (
    AsJson,
    Assumptions,
    CatalogFiles,
    Formulas,
    Launch,
    Minimize,
    Output,
    Overwrite,
    Rows,
    Settings,
    StudyFile,
    Wide,
)
from .saving import Target


def best_command(
    study: StudyFile,
    over: Annotated[
        str | None, Option(help="Axes to choose along, comma-separated. Default: those of the study.")
    ] = None,
    minimize: Minimize = None,
    maximize: Annotated[str | None, Option(help="Quantity to maximize; several with --pareto.")] = None,
    objectives: Annotated[
        str | None, Option("--pareto", help="Pareto front between two or more quantities, comma-separated.")
    ] = None,
    top: Annotated[int, Option(help="Designs per group.")] = 1,
    output: Output = None,
    launch: Launch = None,
    assumptions: Assumptions = False,
    overwrite: Overwrite = False,
    settings: Settings = None,
    formulas: Formulas = None,
    files: CatalogFiles = None,
    rows: Rows = False,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Find the best designs or the Pareto front of a study of any size, in the memory of one tile."""
    loaded = study_of(study, with_catalog(study, settings, files), formulas)
    target, launcher = Target(output, overwrite), Launcher.of(launch, overwrite, as_json)
    if launcher and (objectives is not None or top != 1):
        raise PerfgridError("--launch writes one design: give it without --pareto and --top")
    axes_given = names_in(over) if over is not None else None
    if objectives is not None:
        if minimize is not None or top != 1 or rows:
            raise PerfgridError("--pareto goes with --maximize, --over and -o, not with --minimize, --top or --rows")
        return _pareto(loaded, names_in(objectives), names_in(maximize), axes_given, target, as_json)
    stated = loaded.file.best
    if minimize is None and maximize is None and stated is not None:
        minimize, maximize = stated.minimize, stated.maximize
    if (minimize is None) == (maximize is None):
        raise PerfgridError("give either --minimize or --maximize, or [best] in the study; --pareto a,b takes several")
    loaded = reaching(loaded, [minimize or maximize or ""])
    axes = axes_given if axes_given is not None else stated.over if stated else []
    at = stated.at if stated and not set(stated.at) & set(axes) else {}
    with Reporter(loaded.space.points) as reporter:
        winners = best(loaded, axes, minimize, maximize, at, top, progress=reporter)
    target.save(winners)
    counted = {name: winners.attrs[name] for name in ("points_searched", "points_excluded")}
    choice = Best(over=axes, minimize=minimize, maximize=maximize, at=at)
    decisive, sense = minimize or maximize or "", "minimize" if minimize else "maximize"
    labels = best_labels(loaded, winners, decisive, sense) if launcher or assumptions else None
    warnings = warnings_of(loaded, winners)
    if as_json:
        designs = winner_rows(loaded, winners, choice)
        decides = {"objective": decisive, "sense": sense}
        about = {"title": loaded.file.title, "points": loaded.space.points, **counted, "seconds": reporter.seconds}
        about |= {"workload_parameters": loaded.file.workload_parameters, "overrides": loaded.file.overrides}
        about |= {"units": {n: str(winners[n].attrs.get("units", "1")) for n in loaded.outputs if n in winners}}
        inputs = {"inputs": assumptions_data(loaded, labels, decisive)} if assumptions else {}
        print_json({**about, **decides, "best": designs, "warnings": warnings, **inputs})
        return
    print_winners(loaded, winners, choice, rows)
    points, excluded = counted.values()
    out.print(
        f"{count_text(points, 'point')} searched in {reporter.seconds:.1f} s; "
        f"constraints excluded {excluded:,} of them beforehand"
    )
    if assumptions:
        print_assumptions(loaded, labels, decisive)
    target.tell()
    if launcher:
        launcher.write(loaded, labels)


def _pareto(
    study: Study, objectives: list[str], maximize: list[str], over: list[str] | None, target: Target, as_json: bool
) -> None:
    """The Pareto front between the objectives; those not in ``maximize`` are minimized."""
    if unknown := [name for name in maximize if name not in objectives]:
        raise PerfgridError(f"--maximize {unknown[0]!r} is not among the objectives{nearest(unknown[0], objectives)}")
    stated = study.file.best
    axes = over if over is not None or stated is None else stated.over
    labels = {} if stated is None or set(stated.at) & set(axes or []) else stated.at
    minimize = [name for name in objectives if name not in maximize]
    with Reporter(study.space.points) as reporter:
        found = pareto(study, minimize, maximize, axes, labels, progress=reporter)
    target.save(found)
    if as_json:
        rows = front_rows(study, found, [*minimize, *maximize], "objectives")
        print_json({"points": study.space.points, "seconds": reporter.seconds, "designs": rows})
        return
    print_objectives(study, found, [*minimize, *maximize])
    size = found.sizes.get("design", 0)
    out.print(f"{size:,} of {count_text(study.space.points, 'point')}, searched in {reporter.seconds:.1f} s")
    target.tell()
