"""``perfgrid expand``: the values of a factored result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfgrid.analysis.text import labels_of
from perfgrid.cli.printing.console import out
from perfgrid.results.factored import expand
from perfgrid.results.files import check_output
from perfgrid.results.save import save

from .options import At, Overwrite, Recompute


def expand_command(
    result: Annotated[Path, typer.Argument(help="Factored result (.pgf).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Result file (.nc).")],
    at: At = None,
    recompute: Recompute = False,
    overwrite: Overwrite = False,
) -> None:
    """Write a factored result, or a part of it, as netCDF, which opens without perfgrid."""
    check_output(output, overwrite)
    found = expand(result, labels_of(at, "--at"), recompute)
    save(found, output, overwrite)
    out.print(f"saved {output} ({output.stat().st_size / 1e6:.1f} MB)")
