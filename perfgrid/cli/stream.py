"""``perfgrid run -o STORE.zarr`` and ``perfgrid verify``: stores of any size, filled, resumed and checked."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from perfgrid.analysis.text import number
from perfgrid.catalog.units import in_unit
from perfgrid.cli.printing.console import err, out, print_line
from perfgrid.cli.printing.progress import Reporter
from perfgrid.engine.errors import PerfgridError
from perfgrid.results.feasibility import Feasibility
from perfgrid.results.stream import STORE, stream
from perfgrid.study.study import Study, load_study

Memory = Annotated[str | None, typer.Option(help="Memory for all local processes together, such as 4GB.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a .zarr store after an interruption.")]
Workers = Annotated[int | None, typer.Option(help="Fill a .zarr store with so many local processes.")]
Scheduler = Annotated[str | None, typer.Option(help="Fill it with a dask cluster, such as tcp://127.0.0.1:8786.")]
TilePoints = Annotated[int | None, typer.Option(help="Points evaluated and written at a time, at most.")]


def bytes_of(text: str | None) -> int | None:
    """Bytes of a text such as 4GB. PerfgridError for another unit."""
    if text is None:
        return None
    try:
        found = int(in_unit(text, "byte"))
    except ValueError as error:
        raise PerfgridError(f"--memory: {error}; write a number with a unit, such as 4GB") from None
    if found <= 0:
        raise PerfgridError(f"--memory must be more than nothing, found {text!r}")
    return found


def run_to_store(study: Study, output: Path, dtype: str | None, overwrite: bool, as_json: bool, **how: Any) -> None:
    """Fill a zarr store, print how many designs are infeasible and why."""
    start = time.perf_counter()
    try:
        with Reporter(study.space.points) as reporter:
            stream(study, output, dtype, overwrite, progress=reporter, **how)
    except KeyboardInterrupt:
        err.print("perfgrid: interrupted; the same command with --resume continues where this one stopped")
        raise typer.Exit(130) from None
    seconds = time.perf_counter() - start
    from perfgrid.results.store.verify import Opened

    found = Opened(output).violations()
    if as_json:
        print(json.dumps({"seconds": seconds, **asdict(found)}))
        return
    print_violations(found, seconds)
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    out.print(f"saved {output} ({size / 1e6:.1f} MB)")
    if study.file.best is not None:
        out.print("the best designs are not searched in a streamed run: perfgrid best finds them")


def print_violations(found: Feasibility, seconds: float) -> None:
    """How many points there are, how many are infeasible, and why; of what concerns some outputs only, which."""
    points = found.points
    out.print(
        f"{points:,} points in {seconds:.1f} s; {found.infeasible:,} infeasible ({found.infeasible / points:.1%})"
        + (f", {found.partly:,} more for some outputs only ({found.partly / points:.1%})" if found.partly else "")
    )
    for violation in found.violations:
        only = f", of {', '.join(violation.outputs)} only" if violation.outputs else ""
        share = violation.points / points
        out.print(f"  {violation.points:>13,} ({share:.1%})  {violation.reason} [{violation.name}{only}]")


def verify_command(
    store: Annotated[Path, typer.Argument(help="A store (.zarr).")],
    study: Annotated[Path | None, typer.Option(help="A study file that it must belong to.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Overrides of the study.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Read a store whole: is it complete, unchanged, finite where feasible, of its study? Status 1 if it is not."""
    if store.suffix != STORE:
        raise PerfgridError(f"cannot verify {str(store)!r}: only stores, whose names end in .zarr, keep a journal")
    if settings and study is None:
        raise PerfgridError("--set applies to the study: give --study as well")
    from perfgrid.results.store.verify import verify

    with Reporter(0) as reporter:
        found = verify(store, load_study(study, settings or ()) if study else None, reporter)
    if as_json:
        print(json.dumps(vars(found) | {"path": str(found.path), "sound": not found.problems}))
    else:
        for name, (least, most) in found.ranges.items():
            low, high = (number(value, found.units[name]) for value in (least, most))
            print_line(f"  {name}: {low} to {high} at feasible points")
        for note in found.notes:
            print_line(f"note: {note}")
        for problem in found.problems:
            print_line(f"wrong: {problem}", whole=True)
        verdict = "sound" if not found.problems else f"{len(found.problems):,} problems"
        print_line(f"{found.path}: {found.points:,} points in {found.tiles:,} tiles; {verdict}")
        if found.problems:
            print_line("--resume adds what is not complete; what is wrong goes where --overwrite writes the store anew")
    if found.problems:
        raise typer.Exit(1)
