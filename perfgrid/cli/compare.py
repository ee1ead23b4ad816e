"""``perfgrid compare``: the step times of two designs, part by part."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from perfgrid.analysis.compare import compare
from perfgrid.analysis.limiting import WORDS
from perfgrid.analysis.number_text import number
from perfgrid.analysis.text import labels_of
from perfgrid.cli.printing.console import out, print_json, print_line
from perfgrid.cli.printing.tables import print_table

from .arguments import study_or_result
from .options import AsJson, At, Settings, StudyOrResult, Wide


def compare_command(
    what: StudyOrResult,
    a: Annotated[list[str], Option("--a", help="Labels of the first design: axis=label[,axis=label...].")],
    b: Annotated[list[str], Option("--b", help="Labels of the second design.")],
    at: At = None,
    settings: Settings = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Show why design B is faster than A, part by part of the step time; open axes take the best design of each."""
    found = compare(study_or_result(what, settings), labels_of(a, "--a"), labels_of(b, "--b"), labels_of(at, "--at"))
    before, after = found.step_time
    if as_json:
        parts = [{"part": n, "a": x, "b": y} for n, x, y in found.parts]
        data = {"a": found.a, "b": found.b, "step_time": [before, after], "speedup": found.speedup, "parts": parts}
        data |= {"tie_margin": found.tie_margin, "tied": found.tied}
        data["intervals"] = [[i.low, i.high] for i in found.intervals]
        print_json(data)
        return
    for name, point in (("A", found.a), ("B", found.b)):
        print_line(f"{name}  " + ", ".join(f"{axis} = {label}" for axis, label in point.items()))
    rows = [["step time", number(before, "s"), number(after, "s"), _signed(after - before), ""]]
    rows.append(
        ["90 of 100 within", *(f"{number(i.low, 's')} to {number(i.high, 's')}" for i in found.intervals), "", ""]
    )
    for part, x, y in found.parts:
        if max(x, y) > 0:
            share = f"{(y - x) / (after - before):.0%}" if after != before else ""
            rows.append([WORDS[part], number(x, "s"), number(y, "s"), _signed(y - x), share])
    print_table(["", "A", "B", "change", "of the change"], rows, right=("A", "B", "change", "of the change"))
    if before == after and all(x == y for _, x, y in found.parts):
        out.print("A and B take the same time: their differences change no part of a step")
        return
    ratio, margin = after / before, 1 + found.tie_margin
    within = f"90 of 100 within {ratio / margin:.3g} to {ratio * margin:.3g}"
    out.print(f"B takes {ratio:.3g} times as long as A, {within} (a step is {found.speedup:.3g} times as fast)")
    if found.tied:
        out.print(f"a tie: differences below {found.tie_margin:.0%} are within the model's error between them")


def _signed(seconds: float) -> str:
    return ("+" if seconds >= 0 else "-") + number(abs(seconds), "s")
