"""``perfgrid validate``: predictions compared with published measurements, or with the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Exit, Option

from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas import INNER
from perfgrid.pictures.figures.draw import check_figure, matplotlib, save_figure
from perfgrid.pictures.views.make import picture_of
from perfgrid.printing.console import err, out, print_json, print_line
from perfgrid.printing.derivation import DEPTH, print_explanation
from perfgrid.printing.tables import print_table
from perfgrid.text.numbers import count_text, number
from perfgrid.validation.report import (
    HEADERS,
    OWN,
    WORST,
    assumptions,
    error_rows,
    own_rows,
    reason_rows,
    worst_rows,
)
from perfgrid.validation.schema import UNITS, UNSEEN, read_records
from perfgrid.validation.validate import Prediction, Validation, validate

from .arguments import measured_files, on_device
from .options import AsJson, CatalogFiles, Facts, JobFiles, KindOfFile, OnDevice, Overwrite, Records, Wide
from .saving import Target

MOST_SHOWN = 40  # records of a user's own files that are all printed
FEWEST_ERRORS = 4  # of them from which on their errors are, too


def validate_command(
    files: Records = None,
    kind: KindOfFile = None,
    job: JobFiles = None,
    on: OnDevice = None,
    facts: Facts = None,
    group: Annotated[str | None, Option("--group", help="Source whose records to use.")] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Result file (.nc), one row per record.")] = None,
    overwrite: Overwrite = False,
    catalog: CatalogFiles = None,
    bulk: Annotated[bool, Option("--bulk", help="Include records of tier bulk.")] = False,
    unseen: Annotated[
        bool, Option("--unseen", help="Use the held-out records: systems that nothing was fitted to.")
    ] = False,
    verbose: Annotated[bool, Option("--verbose", help="List every record that is not predicted.")] = False,
    derive: Annotated[str | None, Option("--explain", help="Explain the prediction of one record.")] = None,
    depth: Annotated[int | None, Option(help=f"Levels of the explanation. Default: {DEPTH}.")] = None,
    figure: Annotated[
        Path | None, Option(help="Picture of predicted against measured values (.png, .svg, .pdf).")
    ] = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Compare predictions with published measurements: error by source, worst rows, records not predicted and why.

    Exit status 1 if a line is not a valid record; the others are compared all the same.
    """
    if derive is not None and (as_json or verbose):
        raise PerfgridError("--explain prints one explanation: give it without --json and --verbose")
    if as_json and verbose:
        raise PerfgridError("--json holds every record: give it without --verbose")
    if depth is not None and derive is None:
        raise PerfgridError("--depth belongs to --explain ID")
    if depth is not None and depth < 0:
        raise PerfgridError(f"--depth must be 0 or more, found {depth}")
    if unseen and files:
        raise PerfgridError("--unseen reads records that perfgrid ships: give it without files")
    target = Target(output, overwrite)
    if figure is not None:
        matplotlib()
        check_figure(figure, overwrite)
    if not unseen and not files:
        _ask_for_unseen(group, derive)
    known, device = on_device(load_catalog(*(catalog or ())), on)
    measured = measured_files(files, kind, job, device, facts)
    found = validate(UNSEEN if unseen else measured, group, known, bulk)
    for problem in found.problems:
        err.print(f"{problem.place}: {problem.reason}", soft_wrap=True)
    if output is not None:
        target.save(found.dataset())
    if figure is not None:
        save_figure(picture_of(found.dataset()), figure, overwrite)
    if as_json:
        print_json(found.as_json())
    elif derive is not None:
        derivation = found.explain(derive)
        for line in _compared(next(p for p in found.predictions if p.record.id == derive)):
            print_line(line)
        print_explanation(derivation, INNER, DEPTH if depth is None else depth)
    else:
        own = bool(files) and len(found.predictions) <= MOST_SHOWN
        if own:
            _print_own(found)
        if not own or sum(p.predicted is not None for p in found.predictions) >= FEWEST_ERRORS:
            _print(found, verbose, worst=not own)
    if found.problems:
        raise Exit(1)


def _ask_for_unseen(group: str | None, identity: str | None) -> None:
    """PerfgridError for a group or record that is held out."""
    unseen, _ = read_records([UNSEEN]) if group or identity else ([], [])
    if group in {record.group for record in unseen} or identity in {record.id for record in unseen}:
        raise PerfgridError(f"{identity or group} is among the systems that nothing was fitted to: give --unseen")


def _compared(p: Prediction) -> list[str]:
    """What was measured, by whom, and what is predicted."""
    unit, source = UNITS[p.record.quantity], p.record.source
    lines = [f"measured: {p.record.quantity} = {number(p.record.value, unit)} [{source.title}, {source.where}]"]
    if p.record.quartiles:
        low, high = (number(end, unit) for end in p.record.quartiles)
        lines.append(f"half of the steps within {low} to {high}; {p.record.note}")
    if p.predicted is not None and p.ratio is not None:
        ends = [number(end, unit) for end in p.ends or ()]
        inside = f"; 90 of 100 within {' to '.join(ends)}" if ends else ""
        lines.append(f"predicted: {number(p.predicted, unit)}, {p.ratio:.3g} times the measured{inside}")
    if p.record.assumed:
        lines.append(f"assumed: {', '.join(p.record.assumed)}")
    if p.tuned:
        lines.append(f"not stated, the fastest taken: {', '.join(f'{name} = {n}' for name, n in p.tuned.items())}")
    return lines


def _print_own(found: Validation) -> None:
    """Every record of a user's own files, and what was assumed of them."""
    rows = own_rows(found.predictions)
    kept = [i for i in range(len(OWN)) if any(row[i] for row in rows)]
    headers = [OWN[i] for i in kept]
    rows = [[row[i] for i in kept] for row in rows]
    print_table(headers, rows, right=OWN[1:5], drop=[OWN[3]], prose=OWN[5:])
    if told := assumptions(found.predictions):
        out.print()
        out.print_items("assumed:", told)
    for name, stacks in found.assumed().items():
        out.print(f"{name}: taken to have run on {', '.join(stacks)}; the field software of a record states another")
    if found.problems:
        out.print(f"not valid records: {count_text(len(found.problems), 'line')} (listed on standard error)")


def _print(found: Validation, verbose: bool, worst: bool = True) -> None:
    """Errors by source, and of many records the largest deviations and why some are not predicted."""
    if not worst:
        out.print()
    summary = found.summary()
    rows = error_rows({**summary["groups"], **summary["parts"], **summary["totals"]}, found.whole())
    out.print(
        "error of predictions, |ln(predicted / measured)|, compared with one constant per device and with other tools"
    )
    print_table(HEADERS, rows, right=HEADERS[1:], drop=[*reversed(HEADERS[8:]), "over memory", "MAPE"])
    if not worst:
        return
    for name, stacks in found.assumed().items():
        out.print(f"{name}: taken to have run on {', '.join(stacks)}; the field software of a record states another")
    if summary["worst"]:
        out.print()
        out.print("largest deviations")
        print_table(WORST, worst_rows(summary["worst"]), right=WORST[1:4])
    left = [p for p in found.predictions if p.reasons]
    if left:
        out.print()
        out.print(f"{len(left)} of {len(found.predictions)} records are not predicted")
    if verbose:
        print_table(("record", "reasons"), [[p.record.id, "; ".join(p.reasons)] for p in left], prose=("reasons",))
    elif left:
        print_table(
            ("records", "first reason"), reason_rows(summary["reasons"]), right=("records",), prose=("first reason",)
        )
    if found.problems:
        out.print()
        out.print(f"not valid records: {count_text(len(found.problems), 'line')} (listed on standard error)")
