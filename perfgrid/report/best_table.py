"""The best design of every group as a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from rich.measure import Measurement

from perfgrid.engine.dataset import study_axes
from perfgrid.study import Study
from perfgrid.study_file import Best

from .console import out, show, text_table, wide
from .text import number
from .winners import bounds


def winner_rows(study: Study, winners: xr.Dataset, choice: Best) -> list[dict[str, Any]]:
    """One row per group: its labels, the chosen labels, the outputs, what bounds it."""
    axes = study_axes(study.space)
    rows: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    groups = winners["found"].dims
    for place in np.ndindex(*(winners.sizes[d] for d in groups)):
        row = winners.isel(dict(zip(groups, place, strict=True)))
        labels = {str(d): row[d].item() for d in groups}
        if not bool(row["found"]):
            rows.append({"group": labels, "feasible": False})
            continue
        at = {a: row[a].item() for a in axes if a in row.coords}
        chosen = {a: at[a] for a in axes if a not in labels and a not in choice.at and a in at}
        values = {name: _word(row[name]) for name in study.outputs if row[name].ndim == 0}
        rows.append({"group": labels, "feasible": True, "chosen": chosen, "outputs": values})
        points.append(at)
    for row, words in zip((row for row in rows if row["feasible"]), bounds(study, points), strict=True):
        row["bound_by"] = words
    return rows


def _word(value: xr.DataArray) -> Any:
    """A single number, or the word that it stands for."""
    words = str(value.attrs.get("flag_meanings", "")).split()
    return words[int(value)] if words and "constraint" not in value.attrs else value.item()


def print_winners(study: Study, winners: xr.Dataset, choice: Best) -> None:
    """The best design of each group as a table."""
    rows = winner_rows(study, winners, choice)
    objective = choice.minimize or choice.maximize or ""
    shown = list(dict.fromkeys([objective, *study.outputs]))
    first = next((r for r in rows if r["feasible"]), None)
    caption = "".join(f", {axis} = {label}" for axis, label in choice.at.items())
    way = f"best by {'least' if choice.minimize else 'largest'} {objective}" if choice.over else "every design"
    out.print(f"{study.file.title}: {way}{caption}")
    if first is None:
        out.print("no group has a feasible design")
        return
    shown = [name for name in shown if name in first["outputs"]][:5]
    units = {name: winners[name].attrs.get("units", "1") for name in shown}
    while True:
        bounds = ["bound by"] if first["bound_by"] else []
        headers = [*first["group"], *first["chosen"], *shown, *bounds]
        lines = []
        for row in rows:
            labels = [str(v) for v in row["group"].values()]
            if not row["feasible"]:
                lines.append([*labels, "no feasible design"])
                continue
            found = {name: row["outputs"][name] for name in shown}
            values = [v if isinstance(v, str) else number(v, units[name]) for name, v in found.items()]
            lines.append(
                [*labels, *(str(v) for v in row["chosen"].values()), *values, *([row["bound_by"]] if bounds else [])]
            )
        table = text_table(headers, lines, right=shown)
        if len(shown) <= 3 or not out.is_terminal or Measurement.get(wide, wide.options, table).maximum <= out.width:
            break
        shown.pop()  # a narrow terminal shows fewer outputs rather than broken ones
    show(table, whole=True)
