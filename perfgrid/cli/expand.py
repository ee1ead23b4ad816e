"""``perfgrid expand``: the values of a factored result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from perfgrid.analysis.text import labels_of
from perfgrid.results.factored import expand
from perfgrid.study.own_formulas import own_formulas

from .options import At, Formulas, Overwrite, Recompute
from .saving import Target


def expand_command(
    result: Annotated[Path, Argument(help="Factored result (.pgf).")],
    output: Annotated[Path, Option("--output", "-o", help="Result file (.nc).")],
    at: At = None,
    recompute: Recompute = False,
    formulas: Formulas = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a factored result, or a part of it, as netCDF, which opens without perfgrid."""
    target = Target(output, overwrite)
    target.save(expand(result, labels_of(at, "--at"), recompute, own_formulas(formulas)))
    target.tell(size=True)
