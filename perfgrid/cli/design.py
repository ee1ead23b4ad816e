"""``perfgrid explain``: the derivation of one number."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import xarray as xr

from perfgrid.analysis.explain import explain
from perfgrid.analysis.text import labels_of
from perfgrid.cli.printing.console import err
from perfgrid.cli.printing.derivation import DEPTH, print_derivation
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas import INNER
from perfgrid.results.provenance import formulas_changed

from .arguments import study_or_result
from .options import Settings


def explain_command(
    what: Annotated[Path, typer.Argument(help="A study (.toml) or a result (.nc).")],
    quantity: Annotated[str, typer.Argument(help="The quantity to derive.")],
    at: Annotated[list[str] | None, typer.Option("--at", help="axis=label[,axis=label...]")] = None,
    settings: Settings = None,
    depth: Annotated[int, typer.Option(help="Levels of the tree to print.")] = DEPTH,
) -> None:
    """Derive one number: every formula, value, unit and source below it, or why its point is infeasible."""
    labels = labels_of(at, "--at")
    if depth < 0:
        raise PerfgridError(f"--depth must be 0 or more, found {depth}")
    subject = study_or_result(what, settings)
    try:
        found = explain(subject, quantity, labels)
    except PerfgridError as error:
        raise PerfgridError(f"{what}: {error}" if isinstance(subject, xr.Dataset) else str(error)) from None
    if isinstance(subject, xr.Dataset) and formulas_changed(subject):
        writer = subject.attrs.get("source", "another version")
        err.print(f"note: {what} was written by {writer} with other formulas; the derivation uses those installed")
    print_derivation(found, INNER, depth)
