"""``perfgrid compare``: the times of two designs, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from perfgrid.analysis.compare import compare
from perfgrid.analysis.compare_text import comparison_table, outcome_lines, tokens_line
from perfgrid.printing.console import out, print_json
from perfgrid.printing.progress import Reporter
from perfgrid.printing.tables import print_table
from perfgrid.study.own_formulas import own_formulas
from perfgrid.study.study import Study

from .arguments import design_labels, study_or_result
from .options import AsJson, AtDesign, Formulas, Settings, StudyOrResult, Wide


def compare_command(
    what: StudyOrResult,
    other: Annotated[Path | None, Argument(help="Study or result of design B.", show_default="that of A")] = None,
    a: Annotated[
        list[str] | None, Option("--a", help="Labels of the first design: axis=label[,axis=label...].")
    ] = None,
    b: Annotated[list[str] | None, Option("--b", help="Labels of the second design.")] = None,
    at: AtDesign = None,
    settings: Settings = None,
    formulas: Formulas = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Show why design B is faster than A, part by part of a step or a request; of two studies the best designs."""
    own = own_formulas(formulas)
    labels = (design_labels(a, "--a"), design_labels(b, "--b"), design_labels(at, "--at"))
    first = study_or_result(what, settings, own)
    second = None if other is None else study_or_result(other, settings, own)
    with Reporter(first.space.points if isinstance(first, Study) else 1) as reporter:
        found = compare(first, *labels, own, second, reporter)
    before, after = found.times
    whole = "step" if found.intervals else "request"
    if as_json:
        parts = [{"part": n, "a": x, "b": y} for n, x, y in found.parts]
        data = {"a": found.a, "b": found.b, found.quantity: [before, after], "speedup": found.speedup, "parts": parts}
        data |= {f"tokens_per_{whole}": found.tokens, "per_token": found.per_token}
        if found.intervals:
            data |= {"tie_margin": found.tie_margin, "tied": found.tied}
            data["intervals"] = [[i.low, i.high] for i in found.intervals]
        print_json(data)
        return
    for name, point, chosen in zip("AB", (found.a, found.b), found.chosen, strict=True):
        out.print_items(name, (f"{axis} = {label}" for axis, label in point.items()))
        if chosen.objective:
            out.print(f"{name} is the best design ({chosen.objective}) along the axes left open")
    if line := tokens_line(found):
        out.print(line)
    headers, rows = comparison_table(found)
    print_table(headers, rows, right=headers[1:])
    for line in outcome_lines(found):
        out.print(line)
    if not found.intervals and not found.same:
        from perfgrid.analysis.published_errors import serving_note

        out.print(serving_note())
