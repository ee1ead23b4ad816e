"""``perfgrid records``: templates for your own measurements, and measurements as records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, Typer

from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.printing.console import err, out, print_line
from perfgrid.results.files import check_output, write_text
from perfgrid.text.numbers import count_text
from perfgrid.validation.measurements.templates import TEMPLATES, template
from perfgrid.validation.schema import read_records

from .arguments import measured_files, on_device
from .options import CatalogFiles, Facts, JobFiles, KindOfFile, OnDevice, Overwrite

records_command = Typer(help="Write templates for measurements, and records of logs.", no_args_is_help=True)


@records_command.command("new")
def new_command(
    kind: Annotated[str, Argument(help=f"What is measured: {', '.join(TEMPLATES)}.")] = "training",
    output: Annotated[Path | None, Option("--output", "-o", help="Table to write (.csv). Default: print it.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a table to fill in, with few columns and comments."""
    text = template(kind)
    if output is None:
        for line in text.splitlines():
            print_line(line, whole=True)
        return
    check_output(output, overwrite, ".csv")
    write_text(output, text)
    out.print(f"saved {output}: fill in a row for each measurement, then perfgrid validate {output}", soft_wrap=True)


@records_command.command("read")
def read_command(
    files: Annotated[list[Path], Argument(help="Tables, logs, benchmark results, traces, or folders of them.")],
    output: Annotated[Path, Option("--output", "-o", help="Records to write (.jsonl).")],
    kind: KindOfFile = None,
    job: JobFiles = None,
    on: OnDevice = None,
    facts: Facts = None,
    catalog: CatalogFiles = None,
    overwrite: Overwrite = False,
) -> None:
    """Read measurements and write them as records, with the job that they belong to.

    Exit status 1 if a line is no record; the others are written all the same.
    """
    check_output(output, overwrite, ".jsonl")
    known, device = on_device(load_catalog(*(catalog or ())), on)
    records, problems = read_records(measured_files(files, kind, job, device, facts), known)
    if not records:
        first = f"{problems[0].place}: {problems[0].reason}" if problems else "the file is empty"
        raise PerfgridError(f"no measurement in {', '.join(map(str, files))}: {first}")
    for problem in problems:
        err.print(f"{problem.place}: {problem.reason}", soft_wrap=True)
    write_text(output, "".join(f"{record.model_dump_json()}\n" for record in records))
    out.print(f"saved {count_text(len(records), 'record')} to {output}", soft_wrap=True)
    if problems:
        raise Exit(1)
