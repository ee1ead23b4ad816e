"""``perfgrid verify``: a store checked whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from perfgrid.engine.errors import PerfgridError
from perfgrid.printing.console import print_json, print_line
from perfgrid.printing.progress import Reporter
from perfgrid.results.store.verify import verify
from perfgrid.results.stream import STORE
from perfgrid.text.numbers import count_text, number

from .arguments import study_of
from .options import AsJson, Formulas, Settings


def verify_command(
    store: Annotated[Path, Argument(help="Store (.zarr).")],
    study: Annotated[Path | None, Option(help="Study file that it must belong to.")] = None,
    settings: Settings = None,
    formulas: Formulas = None,
    as_json: AsJson = False,
) -> None:
    """Check that a store is complete, unchanged and of its study, and finite where feasible. Exit status 1 if not."""
    if store.suffix != STORE:
        raise PerfgridError(f"cannot verify {str(store)!r}: only stores (.zarr) have a journal")
    if (settings or formulas) and study is None:
        raise PerfgridError("--set and --formulas apply to the study: give --study as well")
    with Reporter(0) as reporter:
        found = verify(store, study_of(study, settings, formulas) if study else None, reporter)
    if as_json:
        print_json(vars(found) | {"path": str(found.path), "sound": not found.problems})
    else:
        for name, (least, most) in found.ranges.items():
            low, high = (number(value, found.units[name]) for value in (least, most))
            print_line(f"  {name}: {low} to {high} at feasible points")
        for note in found.notes:
            print_line(f"note: {note}")
        for problem in found.problems:
            print_line(f"wrong: {problem}", whole=True)
        verdict = "sound" if not found.problems else count_text(len(found.problems), "problem")
        print_line(f"{found.path}: {count_text(found.points, 'point')} in {count_text(found.tiles, 'tile')}; {verdict}")
        if found.problems:
            print_line("--resume adds missing tiles; --overwrite writes the store anew")
    if found.problems:
        raise Exit(1)
