"""A trace beside the predicted step, as a table and as a picture."""

from __future__ import annotations

from pathlib import Path

from perfgrid.pictures.figures.draw import save_figure
from perfgrid.pictures.views.profile import profile_picture
from perfgrid.printing.console import out, print_json
from perfgrid.printing.tables import print_table
from perfgrid.text.numbers import column, header
from perfgrid.validation.own_profile import STEP, OwnProfile


def print_profile(found: OwnProfile, path: Path, figure: Path | None, overwrite: bool, as_json: bool) -> None:
    """Print the comparison, and draw it where a picture is asked for."""
    parts = found.parts
    if figure is not None:
        told = [f"{path.name}: {found.trace.steps} profiled steps, one device. {found.trace.note}".strip()]
        shown = [p for p in parts if p.name != STEP and not p.inside]
        names = [p.name for p in shown]
        picture = profile_picture(
            "Where the time of a step goes", names, [p.measured for p in shown], [p.predicted for p in shown], told
        )
        save_figure(picture, figure, overwrite)
    if as_json:
        print_json(found.as_data())
        return
    measured, predicted = [p.measured for p in parts], [p.predicted for p in parts]
    unit, _ = column([found.trace.step_time, found.anatomy.step_time], "s")
    like = [found.trace.step_time]
    cells = [column(values, "s", like)[1] for values in (measured, predicted)]
    shares = [f"{m / found.trace.step_time:.0%}" for m in measured]
    ratios = [f"{b / a - 1:+.0%}" if a and b else "" for a, b in zip(measured, predicted, strict=True)]
    hidden = [
        "" if not (p.hidden_measured or p.hidden_predicted) else _hidden(p.hidden_measured, p.hidden_predicted)
        for p in parts
    ]
    headers = (
        "category",
        header("profiled", unit),
        "share",
        header("predicted", unit),
        "difference",
        "hidden beside kernels",
        "most likely",
    )
    rows = list(
        zip(
            [f"{'  ' * p.inside}{p.name}" for p in parts],
            cells[0],
            shares,
            cells[1],
            ratios,
            hidden,
            [p.note for p in parts],
            strict=True,
        )
    )
    print_table(headers, rows, right=headers[1:6], drop=[headers[2], headers[5]], prose=headers[6:], names=False)
    if found.trace.note:
        out.print(found.trace.note)
    for reason in found.anatomy.violated:
        out.print(f"the design itself is predicted not to be feasible: {reason.reason}")


def _hidden(measured: float, predicted: float | None) -> str:
    unit, texts = column([measured, predicted or 0.0], "s")
    return f"{texts[0].strip()} / {texts[1].strip() if predicted is not None else '-'} {unit}"
