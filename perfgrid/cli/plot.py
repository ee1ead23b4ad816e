"""``perfgrid plot``: a view of a study or a result as a picture."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Option

from perfgrid.engine.errors import PerfgridError
from perfgrid.pictures.figures.draw import check_figure, matplotlib, save_figure
from perfgrid.pictures.views.make import changed, picture_of, subject_of, view_in, views_of
from perfgrid.printing.console import out, print_json, print_line
from perfgrid.printing.tables import print_table
from perfgrid.study.own_formulas import own_formulas

from .arguments import design_labels, study_or_result
from .options import AsJson, At, Formulas, Overwrite, Settings, StudyOrResult, Wide


def plot_command(
    what: StudyOrResult,
    view: Annotated[
        str | None, Option(help="Name of a view of the study, or a kind such as heatmap. Default: the first.")
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Picture (.png, .svg, .pdf). Without one the views are listed.")
    ] = None,
    at: At = None,
    a: Annotated[list[str] | None, Option("--a", help="Labels of the first design of a waterfall.")] = None,
    b: Annotated[list[str] | None, Option("--b", help="Labels of its second design.")] = None,
    overwrite: Overwrite = False,
    settings: Settings = None,
    formulas: Formulas = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Draw a view of a study or a result as a picture. Without -o its views are listed."""
    if output is not None:
        matplotlib()
        check_figure(output, overwrite)
    own = own_formulas(formulas)
    subject = subject_of(study_or_result(what, settings, own))
    known = views_of(subject)
    labels, sides = design_labels(at, "--at"), {"a": design_labels(a, "--a"), "b": design_labels(b, "--b")}
    sides = {side: named for side, named in sides.items() if named}
    view = view or ("waterfall" if sides else None)
    chosen = view_in(known, view) if view is not None else known[0]
    if sides and chosen.kind != "waterfall":
        raise PerfgridError(f"--a and --b are the designs of a waterfall, found the view {chosen.name!r}")
    if labels or settings or sides:
        chosen = changed(chosen, at={**chosen.at, **labels}, **sides)
    if output is None and view is None and not as_json:
        rows = [[one.name, one.kind, one.see or one.title] for one in known]
        print_table(["view", "kind", "what to see"], rows, prose=("what to see",))
        out.print("-o FILE.png draws the first, --view NAME another one")
        return
    picture = picture_of(subject, chosen, own)
    if output is not None:
        save_figure(picture, output, overwrite)
    if as_json:
        print_json(asdict(picture))
        return
    if picture.see:
        out.print(picture.see)
    if output is not None:
        print_line(f"saved {output}", whole=True)
