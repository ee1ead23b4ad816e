"""A report: one HTML file with the numbers in it, which can be mailed and opened without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import xarray as xr

from perfgrid.engine.errors import PerfgridError
from perfgrid.study.study import Study

from .content import content, pictures
from .embedded import embedded, part
from .grid import Grid
from .page import page


def report(
    result: xr.Dataset, name: str, formulas: Iterable[Callable[..., Any]] = (), study: Study | None = None
) -> str:
    """The report of a result as HTML. ``name``: of its file; ``formulas``: the user's own with which it was made.

    ``study``: that of the result where it is at hand, for views that have to evaluate other designs.

    A grid of more than 1.6 million designs is shown in part: some axes are held at a label, which the report states.
    Raises PerfgridError for a result without numbers.
    """
    grid = Grid(result)
    if not grid.quantities:
        raise PerfgridError(f"{name} holds no quantity that could be shown")
    shown, held = part(grid)
    shown.result.load()
    stored, arrays = embedded(shown)
    formulas = tuple(formulas)
    told: dict[str, Any] = content(shown, name, formulas) | {"pictures": pictures(shown.result, formulas, study)}
    if held:
        told["summary"].append(f"Shown is the part with {', '.join(f'{a} {v}' for a, v in held.items())}.")
    about = shown.about()
    about["quantities"] = [q for q in about["quantities"] if q["name"] in stored["numbers"]]
    hint = (
        "Choose a quantity and axes, move the sliders, filter the designs. Numbers are within 0.01 % of the result's."
    )
    if stored["left_out"]:
        hint += f" Not in this file: {', '.join(stored['left_out'])} (perfgrid explore shows them)."
    return page(
        told
        | {
            "kind": f"perfgrid report of {name}",
            "live": False,
            "grid": about,
            "stored": stored,
            "hint": hint,
            "knobs": [],
        },
        arrays,
    )
