"""The best design of every group as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from rich.measure import Measurement

from perfgrid.analysis.feasibility import nearest_reason
from perfgrid.engine.dataset import study_axes
from perfgrid.study.file import CLUSTER_SIZE, Best
from perfgrid.study.study import Study

from .console import out, show, text_table, wide
from .text import label_text, number
from .winners import bounds as bounds_of
from .winners import tie_margin

RANK = "rank"  # dimension of several best designs of one group
PACES = (  # objectives that are the step time or its inverse
    "step_time", "training_time", "device_time", "tokens_per_second", "tokens_per_second_per_device",
    "sequences_per_second", "model_flops_per_second_per_device", "model_flops_utilization",
)  # fmt: skip


def winner_rows(
    study: Study, winners: xr.Dataset, choice: Best, result: xr.Dataset | None = None
) -> list[dict[str, Any]]:
    """One row per group: its labels, the chosen labels, the outputs, what bounds it.

    Of a group without feasible designs the reason, where the whole result is at hand.
    """
    axes = study_axes(study.space)
    rows: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    groups = winners["found"].dims
    for place in np.ndindex(*(winners.sizes[d] for d in groups)):
        row = winners.isel(dict(zip(groups, place, strict=True)))
        labels = {str(d): row[d].item() for d in groups}
        if not bool(row["found"]):
            reason = "" if result is None else nearest_reason(_group(result, labels))
            rows.append({"group": labels, "feasible": False, "reason": reason})
            continue
        at = {a: row[a].item() for a in axes if a in row.coords}
        chosen = {a: at[a] for a in axes if a not in labels and a not in choice.at and a in at}
        if CLUSTER_SIZE in choice.over and CLUSTER_SIZE in row.coords:
            chosen[CLUSTER_SIZE] = row[CLUSTER_SIZE].item()
        values = {name: _word(row[name]) for name in study.outputs if row[name].ndim == 0}
        rows.append({"group": labels, "feasible": True, "chosen": chosen, "outputs": values})
        points.append(at)
        objective = choice.minimize or choice.maximize or ""
        if RANK in labels and study.file.workload == "training" and objective in PACES and objective in values:
            rows[-1]["tied"] = _tied(rows, objective, tie_margin(study, at))
    for row, words in zip((row for row in rows if row["feasible"]), bounds_of(study, points), strict=True):
        row["bound_by"] = words
    return rows


def _group(result: xr.Dataset, labels: dict[str, Any]) -> xr.Dataset:
    """The designs of one group of a result, sizes of clusters among its labels."""
    for name, label in labels.items():
        rows = np.flatnonzero(result[name].values == label)
        result = result.isel({result[name].dims[0]: rows})
    return result


def _tied(rows: Sequence[Mapping[str, Any]], objective: str, margin: float) -> bool:
    """Whether the last row lies within the model's error of the best one of its group."""
    last = rows[-1]
    place = {**last["group"], RANK: 1}
    first = next(row for row in rows if row["group"] == place)
    ratio = last["outputs"][objective] / first["outputs"][objective]
    return last is not first and max(ratio, 1 / ratio) <= 1 + margin


def _word(value: xr.DataArray) -> Any:
    """A single number, or the word that it stands for."""
    words = str(value.attrs.get("flag_meanings", "")).split()
    return words[int(value)] if words and "constraint" not in value.attrs else value.item()


def print_winners(study: Study, winners: xr.Dataset, choice: Best, result: xr.Dataset | None = None) -> None:
    """The best design of each group as a table; what is the same everywhere stands above it."""
    rows = winner_rows(study, winners, choice, result)
    objective = choice.minimize or choice.maximize or ""
    shown = list(dict.fromkeys([objective, *study.outputs]))
    first = next((r for r in rows if r["feasible"]), None)
    same = {str(d): winners[d].values[0] for d in winners["found"].dims if winners.sizes[d] == 1}
    if len(same) == len(winners["found"].dims):
        same = {}  # a single row says all
    caption = "".join(f", {axis} = {label_text(label)}" for axis, label in (choice.at | same).items())
    way = f"best by {'least' if choice.minimize else 'largest'} {objective}" if choice.over else "every design"
    out.print(f"{study.file.title}: {way}{caption}")
    if first is None:
        out.print("no group has a feasible design")
        return
    shown = [name for name in shown if name in first["outputs"]][:5]
    units = {name: winners[name].attrs.get("units", "1") for name in shown}
    while True:
        bounds = ["bound by"] if first["bound_by"] else []
        ties = ["tied"] if any(row.get("tied") for row in rows) else []
        headers = [*(n for n in first["group"] if n not in same), *first["chosen"], *shown, *bounds, *ties]
        lines = []
        for row in rows:
            labels = [label_text(v) for name, v in row["group"].items() if name not in same]
            if not row["feasible"]:
                lines.append([*labels, "no feasible design" + (f": {row['reason']}" if row["reason"] else "")])
                continue
            found = {name: row["outputs"][name] for name in shown}
            values = [v if isinstance(v, str) else number(v, units[name]) for name, v in found.items()]
            about = [*([row["bound_by"]] if bounds else []), *(["yes" if row.get("tied") else ""] if ties else [])]
            lines.append([*labels, *map(label_text, row["chosen"].values()), *values, *about])
        table = text_table(headers, lines, right=shown)
        if len(shown) <= 3 or not out.is_terminal or Measurement.get(wide, wide.options, table).maximum <= out.width:
            break
        shown.pop()  # a narrow terminal shows fewer outputs rather than broken ones
    show(table, whole=True)
    if ties:
        out.print("tied: not to be told from the first within the model's error for this software (docs/accuracy.md)")
    if left := [name for name in first["outputs"] if name not in shown]:
        out.print(f"not shown: {', '.join(left)} (--json prints them, -o FILE.nc keeps them)")
