"""``perfgrid expand``: the values of a factored result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from perfgrid.results.factored import expand
from perfgrid.results.opening import open_result
from perfgrid.study.own_formulas import own_formulas
from perfgrid.text.values import labels_of

from .arguments import asks_best, places_at
from .options import AtDesigns, Formulas, Overwrite, Recompute
from .saving import Target


def expand_command(
    result: Annotated[Path, Argument(help="Factored result (.pgf).")],
    output: Annotated[Path, Option("--output", "-o", help="Result file (.nc).")],
    at: AtDesigns = None,
    recompute: Recompute = False,
    formulas: Formulas = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a factored result, or a part of it, as netCDF, which opens without perfgrid."""
    target = Target(output, overwrite)
    own = own_formulas(formulas)
    places = places_at(open_result(result, formulas=own), at) if asks_best(at) else labels_of(at, "--at")
    target.save(expand(result, places, recompute, own))
    target.tell(size=True)
