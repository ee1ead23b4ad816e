"""``perfgrid compare``: the times of two designs, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from perfgrid.analysis.compare import ROUNDING, Comparison, compare
from perfgrid.analysis.limiting import WORDS
from perfgrid.analysis.number_text import column, header
from perfgrid.cli.printing.progress import Reporter
from perfgrid.printing.console import out, print_json
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
    if found.per_token:
        out.print(f"times per token: a {whole} of A has {found.tokens[0]:,.0f} tokens, of B {found.tokens[1]:,.0f}")
    _print_parts(found)
    if before == after and all(x == y for _, x, y in found.parts):
        out.print(f"A and B take the same time: their differences change no part of a {whole}")
        return
    ratio, margin = 1 / found.speedup, 1 + found.tie_margin
    within = f", 90 of 100 within {ratio / margin:.3g} to {ratio * margin:.3g}" if found.intervals else ""
    longer, what_for = ("per token ", "a token") if found.per_token else ("", f"a {whole}")
    out.print(
        f"B takes {ratio:.3g} times as long {longer}as A{within} ({what_for} is {found.speedup:.3g} times as fast)"
    )
    if not found.intervals:
        from .validate import serving_note

        out.print(serving_note())
    elif found.tied:
        out.print(f"a tie: differences below {found.tie_margin:.0%} are within the model's error between them")


def _print_parts(found: Comparison) -> None:
    """The times of A and B, as such or per token, with intervals and parts, as a table in one unit."""
    of_a, of_b = found.work
    whole = "time per token" if found.per_token else found.quantity.replace("_", " ")
    times = [(whole, *found.times), *((WORDS[n], x, y) for n, x, y in found.parts if max(x, y) > 0)]
    parts = [(name, x / of_a, y / of_b) for name, x, y in times]
    _, before, after = parts[0]
    ends = [end / work for i, work in zip(found.intervals, found.work, strict=False) for end in (i.low, i.high)]
    unit, texts = column([time for _, *times in parts for time in times] + ends, "s", (before, after))
    texts, limits = texts[: 2 * len(parts)], [text.strip() for text in texts[2 * len(parts) :]]
    moved = [y - x if abs(y - x) > ROUNDING * max(x, y) else 0.0 for _, x, y in parts]
    changed, changes = column(moved, "s", (before, after))
    shares = [f"{(y - x) / (after - before):.0%}" if after != before else "" for _, x, y in parts]
    signed = [text if text.startswith("-") else f"+{text}" for text in changes]
    rows = list(zip([name for name, *_ in parts], texts[::2], texts[1::2], signed, ["", *shares[1:]], strict=True))
    within = [f"{low} to {high}" for low, high in zip(limits[::2], limits[1::2], strict=True)]
    headers = ["", header("A", unit), header("B", unit), header("change", changed), "of the change"]
    between = [["90 of 100 within", *within, "", ""]] if within else []
    print_table(headers, [rows[0], *between, *rows[1:]], right=headers[1:])
