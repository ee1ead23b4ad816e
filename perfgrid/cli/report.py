"""``perfgrid report``: a result as one HTML page that can be mailed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from perfgrid.pictures.pages.report import report
from perfgrid.pictures.pages.shown import shown
from perfgrid.printing.console import out
from perfgrid.results.files import check_output, write_text
from perfgrid.study.own_formulas import own_formulas
from perfgrid.study.study import Study

from .arguments import study_or_result
from .options import Formulas, Overwrite, Settings, StudyOrResult


def report_command(
    what: StudyOrResult,
    output: Annotated[Path, Option("--output", "-o", help="The page to write (.html).")],
    overwrite: Overwrite = False,
    settings: Settings = None,
    formulas: Formulas = None,
) -> None:
    """Write one HTML page with tables, pictures, derivations, sources and their numbers. It needs no network."""
    check_output(output, overwrite, ".html")
    own = own_formulas(formulas)
    subject = study_or_result(what, settings, own)
    with shown(subject) as result:
        text = report(result, what.name, own, subject if isinstance(subject, Study) else None)
    write_text(output, text)
    out.print(f"saved {output} ({len(text.encode()) / 1e6:.1f} MB)")
