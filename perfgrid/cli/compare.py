"""``perfgrid compare``: the step times of two designs, part by part."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from perfgrid.analysis.compare import Comparison, compare
from perfgrid.analysis.limiting import WORDS
from perfgrid.analysis.number_text import column, header
from perfgrid.analysis.text import labels_of
from perfgrid.cli.printing.console import out, print_json
from perfgrid.cli.printing.tables import print_table
from perfgrid.study.own_formulas import own_formulas

from .arguments import study_or_result
from .options import AsJson, At, Formulas, Settings, StudyOrResult, Wide


def compare_command(
    what: StudyOrResult,
    a: Annotated[list[str], Option("--a", help="Labels of the first design: axis=label[,axis=label...].")],
    b: Annotated[list[str], Option("--b", help="Labels of the second design.")],
    at: At = None,
    settings: Settings = None,
    formulas: Formulas = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Show why design B is faster than A, part by part of the step time; open axes take the best design of each."""
    own, chosen = own_formulas(formulas), (labels_of(a, "--a"), labels_of(b, "--b"), labels_of(at, "--at"))
    found = compare(study_or_result(what, settings, own), *chosen, own)
    before, after = found.step_time
    if as_json:
        parts = [{"part": n, "a": x, "b": y} for n, x, y in found.parts]
        data = {"a": found.a, "b": found.b, "step_time": [before, after], "speedup": found.speedup, "parts": parts}
        data |= {"tie_margin": found.tie_margin, "tied": found.tied}
        data["intervals"] = [[i.low, i.high] for i in found.intervals]
        print_json(data)
        return
    for name, point in (("A", found.a), ("B", found.b)):
        out.print_items(name, (f"{axis} = {label}" for axis, label in point.items()))
    _print_parts(found)
    if before == after and all(x == y for _, x, y in found.parts):
        out.print("A and B take the same time: their differences change no part of a step")
        return
    ratio, margin = after / before, 1 + found.tie_margin
    within = f"90 of 100 within {ratio / margin:.3g} to {ratio * margin:.3g}"
    out.print(f"B takes {ratio:.3g} times as long as A, {within} (a step is {found.speedup:.3g} times as fast)")
    if found.tied:
        out.print(f"a tie: differences below {found.tie_margin:.0%} are within the model's error between them")


def _print_parts(found: Comparison) -> None:
    """The step times, their intervals and parts as a table, the times of A and B in one unit."""
    before, after = found.step_time
    parts = [("step time", before, after), *((WORDS[n], x, y) for n, x, y in found.parts if max(x, y) > 0)]
    ends = [end for interval in found.intervals for end in (interval.low, interval.high)]
    unit, texts = column([time for _, *times in parts for time in times] + ends, "s", (before, after))
    *texts, low_a, high_a, low_b, high_b = texts
    changed, changes = column([y - x for _, x, y in parts], "s", (before, after))
    shares = [f"{(y - x) / (after - before):.0%}" if after != before else "" for _, x, y in parts]
    signed = [text if text.startswith("-") else f"+{text}" for text in changes]
    rows = list(zip([name for name, *_ in parts], texts[::2], texts[1::2], signed, ["", *shares[1:]], strict=True))
    within = [f"{low.strip()} to {high.strip()}" for low, high in ((low_a, high_a), (low_b, high_b))]
    headers = ["", header("A", unit), header("B", unit), header("change", changed), "of the change"]
    print_table(headers, [rows[0], ["90 of 100 within", *within, "", ""], *rows[1:]], right=headers[1:])
