"""``perfgrid optimize``: the best design over continuous quantities and discrete choices, or a Pareto front."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from perfgrid.catalog.units import number_or_text
from perfgrid.engine.errors import PerfgridError
from perfgrid.optimizer.design_file import save_designs
from perfgrid.optimizer.optimize import optimize
from perfgrid.printing.console import out, print_json, print_line
from perfgrid.printing.optimum_table import design_rows, print_designs

from .arguments import names_in, study_of
from .options import AsJson, Formulas, Minimize, Output, Overwrite, Settings, StudyFile, Wide
from .saving import Target


def optimize_command(
    study: StudyFile,
    minimize: Minimize = None,
    maximize: Annotated[str | None, Option(help="Quantity to maximize.")] = None,
    over: Annotated[str | None, Option(help="Quantities to vary, comma-separated: name or name=low:high.")] = None,
    subject_to: Annotated[str | None, Option(help="Limits, such as 'step_time < 2 s, die_area < 800 mm^2'.")] = None,
    choose: Annotated[str | None, Option(help="Axes along which to take the best label, comma-separated.")] = None,
    pareto: Annotated[str | None, Option(help="Second quantity to be small: Pareto front of both.")] = None,
    points: Annotated[int, Option(help="Points of the Pareto front.", min=2)] = 8,
    starts: Annotated[int, Option(help="Starting designs of each search.", min=1)] = 4,
    seed: Annotated[int, Option(help="Seed of the samples.", min=0)] = 0,
    choose_jointly: Annotated[
        str | None, Option(help="Axes of which all workloads take the same, best label, comma-separated.")
    ] = None,
    quantile: Annotated[
        float | None, Option(help="Quantile of the objective over the axis sample to optimize, such as 0.9.")
    ] = None,
    loosen: Annotated[
        str | None, Option(help="Shares by which each limit is loosened (negative: tightened), such as 0.01,0.1.")
    ] = None,
    save: Annotated[
        Path | None, Option("--save", help="Write each optimum as a study file (.toml), one for each workload.")
    ] = None,
    output: Output = None,
    overwrite: Overwrite = False,
    settings: Settings = None,
    formulas: Formulas = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Find the best design over continuous quantities by gradients, for every label of the axes not in --choose."""
    loaded = study_of(study, settings, formulas)
    target = Target(output, overwrite)
    varied = None if over is None else _bounds(over)
    chosen = None if choose is None else names_in(choose)
    jointly = None if choose_jointly is None else names_in(choose_jointly)
    steps = [] if loosen is None else [_share(text) for text in names_in(loosen)]
    start = time.perf_counter()
    found = optimize(
        loaded,
        minimize,
        maximize,
        varied,
        subject_to,
        chosen,
        starts,
        seed,
        pareto,
        points,
        choose_jointly=jointly,
        quantile=quantile,
        loosen=steps,
    )
    seconds = time.perf_counter() - start
    target.save(found)
    files = [] if save is None else save_designs(loaded, found, save, overwrite)
    rows = design_rows(found)
    if as_json:
        about = {name: found.attrs[name] for name in ("objective", "evaluations")}
        print_json({**about, "seconds": seconds, "designs": rows})
        return
    print_designs(found, rows)
    out.print(f"{found.attrs['evaluations']:,} model evaluations, slopes included, in {seconds:.1f} s")
    target.tell()
    for file in files:
        print_line(f"saved {file}", whole=True)


def _share(text: str) -> float:
    """A share such as 0.01. PerfgridError for anything else."""
    try:
        return float(text)
    except ValueError:
        raise PerfgridError(f"--loosen takes shares such as 0.01,0.1, found {text!r}") from None


def _bounds(text: str) -> dict[str, list[Any]]:
    """Names with their bounds from ``name[=low:high],...``. PerfgridError for another form."""
    found: dict[str, list[Any]] = {}
    for item in text.split(","):
        name, equals, values = (part.strip() for part in item.partition("="))
        if not name:
            continue
        ends = [v.strip() for v in values.split(":")] if equals else []
        if equals and len(ends) != 2:
            raise PerfgridError(f"--over {item.strip()!r} must read name or name=low:high")
        found[name] = [number_or_text(v) for v in ends]
    return found
