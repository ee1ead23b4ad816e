"""``perfgrid optimize``: the best design over continuous quantities and discrete choices, or a Pareto front."""

from __future__ import annotations

import time
from typing import Annotated, Any

from typer import Option

from perfgrid.cli.printing.optimum_table import design_rows, print_designs
from perfgrid.engine.errors import PerfgridError
from perfgrid.optimizer.optimize import optimize
from perfgrid.printing.console import out, print_json
from perfgrid.study.values import number_or_text

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
    start = time.perf_counter()
    found = optimize(loaded, minimize, maximize, varied, subject_to, chosen, starts, seed, pareto, points)
    seconds = time.perf_counter() - start
    target.save(found)
    rows = design_rows(found)
    if as_json:
        about = {name: found.attrs[name] for name in ("objective", "evaluations")}
        print_json({**about, "seconds": seconds, "designs": rows})
        return
    print_designs(found, rows)
    out.print(f"{found.attrs['evaluations']:,} model evaluations, slopes included, in {seconds:.1f} s")
    target.tell()


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
