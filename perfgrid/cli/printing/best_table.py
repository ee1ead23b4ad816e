"""The best design of every group as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import xarray as xr
from rich.measure import Measurement

from perfgrid.analysis.best_of_result import FORBIDDEN
from perfgrid.analysis.limiting import bounds as bounds_of
from perfgrid.analysis.prediction_intervals import Interval, intervals, tie_margin
from perfgrid.analysis.text import label_text, number
from perfgrid.engine.graph.registry import Constraint
from perfgrid.engine.grid.dataset import bare_variables, concerned, study_axes
from perfgrid.engine.grid.explain import index_of
from perfgrid.study.file import CLUSTER_SIZE, Best
from perfgrid.study.study import Study

from .console import out, print_table, text_table, wide

MOST_ROWS = 200  # that a table prints
RANK = "rank"  # dimension of several best designs of one group
PACES = (  # objectives that are the step time or its inverse
    "step_time",
    "training_time",
    "device_time",
    "tokens_per_second",
    "tokens_per_second_per_device",
    "sequences_per_second",
    "model_flops_per_second_per_device",
    "model_flops_utilization",
)


def winner_rows(
    study: Study,
    winners: xr.Dataset,
    choice: Best,
    most: int | None = None,
) -> list[dict[str, Any]]:
    """One row per group, of the first ``most`` ones: its labels, the chosen labels, the outputs, what bounds it.

    Of a group without feasible designs the constraint that forbids most of them; of a design the outputs that others
    make infeasible, and why.
    """
    axes = study_axes(study.space)
    about = {name: v.attrs for name, v in bare_variables(winners).items()}
    rows: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    groups = winners["found"].dims
    cells = {str(name): v for name, v in winners.variables.items() if set(v.dims) <= set(groups)}
    arrays = {name: v.values for name, v in cells.items()}
    for place in islice(np.ndindex(*(winners.sizes[d] for d in groups)), most):
        index = dict(zip(groups, place, strict=True))
        row = {name: arrays[name][tuple(index[d] for d in v.dims)].item() for name, v in cells.items()}
        labels = {str(d): row[str(d)] for d in groups}
        if not row["found"]:
            by, forbids, designs = (row.get(name, "") for name in FORBIDDEN)
            rows.append({"group": labels, "feasible": False, "reason": _reason(study, by) if by else ""})
            rows[-1] |= {"constraint": by, "forbids": forbids, "designs": designs} if by else {}
            continue
        at = {a: row[a] for a in axes if a in row and a in winners.coords}
        chosen = {a: at[a] for a in axes if a not in labels and a not in choice.at and a in at}
        if CLUSTER_SIZE in choice.over and CLUSTER_SIZE in row:
            chosen[CLUSTER_SIZE] = row[CLUSTER_SIZE]
        values = {name: _word(row[name], cells[name].attrs) for name in study.outputs if name in row}
        rows.append({"group": labels, "feasible": True, "chosen": chosen, "outputs": values})
        if broken := _broken(study, row, about):
            rows[-1]["infeasible"] = broken
        points.append(at)
    feasible = [row for row in rows if row["feasible"]]
    for row, words in zip(feasible, bounds_of(study, points), strict=True):
        row["bound_by"] = words
    objective = choice.minimize or choice.maximize or ""
    if study.file.workload == "training" and objective in PACES and objective in study.outputs:
        ends = intervals(study, [index_of(study.space, at) for at in points], objective)
        for row, found in zip(feasible, ends, strict=True):
            row["interval"] = [found.low, found.high]
        for row, tied in zip(feasible, _ties(feasible, ends), strict=True):
            row |= {"tied": tied} if RANK in row["group"] else {}
    return rows


def _reason(study: Study, constraint: str) -> str:
    """The reason of a constraint."""
    found = study.registry.get(constraint)
    return found.reason if isinstance(found, Constraint) else ""


def _broken(study: Study, row: Mapping[str, Any], about: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The outputs of one design that constraints make infeasible, which do not concern the objective, with reasons."""
    found: dict[str, list[str]] = {}
    for name, attributes in about.items():
        if "constraint" in attributes and not row.get(name, True):
            for output in concerned(about, name) or study.outputs:
                found.setdefault(output, []).append(attributes["reason"])
    return {output: "; ".join(reasons) for output, reasons in found.items()}


def _none_found(row: Mapping[str, Any]) -> str:
    """That a group has no design, or no more of them, and what forbids most."""
    if "constraint" not in row:
        return "no more feasible designs" if row["group"].get(RANK, 1) > 1 else "no feasible design"
    return f"no feasible design: {row['constraint']} forbids {row['forbids']:,} of {row['designs']:,}"


def _print_reasons(rows: Sequence[Mapping[str, Any]], shown: Sequence[str]) -> None:
    """The reasons of constraints in a table, and of outputs without a value."""
    for name, reason in dict.fromkeys((row["constraint"], row["reason"]) for row in rows if "constraint" in row):
        out.print(f"{name}: {reason}")
    broken = (pair for row in rows for pair in row.get("infeasible", {}).items() if pair[0] in shown)
    for output, reason in dict.fromkeys(broken):
        out.print(f"{output}: {reason}")


def _told(value: Any, unit: str) -> str:
    """A value, or a stroke where there is none."""
    return "-" if value is None else value if isinstance(value, str) else number(value, unit)


def _ties(rows: Sequence[Mapping[str, Any]], ends: Sequence[Interval]) -> list[bool]:
    """Whether each row is tied with another design, the best one of its group."""

    def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(label for name, label in row["group"].items() if name != RANK)

    best = {place(row): own for row, own in zip(rows, ends, strict=True) if row["group"].get(RANK) == 1}
    found = []
    for row, own in zip(rows, ends, strict=True):
        first = best.get(place(row), own)
        ratio = own.value / first.value
        found.append(first is not own and max(ratio, 1 / ratio) <= 1 + tie_margin(own, first))
    return found


def _word(value: Any, attributes: Mapping[str, Any]) -> Any:
    """A single number, or the word that it stands for; None where there is none."""
    words = str(attributes.get("flag_meanings", "")).split()
    if words and "constraint" not in attributes:
        return words[int(value)] if int(value) >= 0 else None
    return None if np.isnan(value) else value


def print_winners(study: Study, winners: xr.Dataset, choice: Best) -> None:
    """The best design of each group as a table; what is the same everywhere stands above it."""
    rows = winner_rows(study, winners, choice, MOST_ROWS)
    objective = choice.minimize or choice.maximize or ""
    unit = winners[objective].attrs.get("units", "1") if objective in winners else "1"
    shown = list(dict.fromkeys([objective, *study.outputs] if choice.over else study.outputs))
    first = next((r for r in rows if r["feasible"]), None)
    same = {str(d): winners[d].values[0] for d in winners["found"].dims if winners.sizes[d] == 1}
    if len(same) == len(winners["found"].dims):
        same = {}  # a single row says all
    caption = "".join(f", {axis} = {label_text(label)}" for axis, label in (choice.at | same).items())
    way = f"best by {'least' if choice.minimize else 'largest'} {objective}" if choice.over else "every design"
    out.print(f"{study.file.title}: {way}{caption}")
    names = [name for name in rows[0]["group"] if name not in same]
    if first is None:
        few = "no group" if winners["found"].size <= MOST_ROWS else f"none of the first {MOST_ROWS} groups"
        out.print(f"{few} has a feasible design")
        lines = [[*(label_text(row["group"][name]) for name in names), _none_found(row)] for row in rows]
        print_table([*names, ""], lines, whole=True)
        _print_reasons(rows, shown)
        return
    shown = [name for name in shown if name in first["outputs"]][:5]
    units = {name: winners[name].attrs.get("units", "1") for name in shown}
    extras = {  # beside labels and outputs, where they are known
        "90 of 100 within": ("interval" in first, lambda row: " to ".join(number(v, unit) for v in row["interval"])),
        "bound by": (first["bound_by"], lambda row: row["bound_by"]),
        "tied": (any(row.get("tied") for row in rows), lambda row: "yes" if row.get("tied") else ""),
    }
    extras = {name: text for name, (known, text) in extras.items() if known}
    while True:
        headers, lines = [*names, *first["chosen"], *shown, *extras], []
        for row in rows:
            lines.append([label_text(row["group"][name]) for name in names])
            if row["feasible"]:
                lines[-1] += [label_text(label) for label in row["chosen"].values()]
                lines[-1] += [_told(row["outputs"][name], units[name]) for name in shown]
                lines[-1] += [text(row) for text in extras.values()]
            else:
                lines[-1].append(_none_found(row))
        table = text_table(headers, lines, shown)
        if len(shown) <= 3 or not out.is_terminal or Measurement.get(wide, wide.options, table).maximum <= out.width:
            break
        shown.pop()  # a narrow terminal shows fewer outputs rather than broken ones
    print_table(headers, lines, shown, whole=True)
    if winners["found"].size > MOST_ROWS:
        out.print(f"and {winners['found'].size - MOST_ROWS:,} rows more (--json prints them, -o FILE.nc keeps them)")
    _print_reasons(rows, shown)
    if "tied" in extras:
        out.print("tied: within the model's error of the first for this software (docs/accuracy.md)")
    if left := [name for name in first["outputs"] if name not in shown]:
        out.print(f"not shown: {', '.join(left)} (--json prints them, -o FILE.nc keeps them)")
