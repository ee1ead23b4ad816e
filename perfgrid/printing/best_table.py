"""The best design of every group as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.best_of_result import FORBIDDEN
from perfgrid.analysis.limiting import bounds as bounds_of
from perfgrid.analysis.prediction_intervals import Interval, has_interval, intervals, tie_margin
from perfgrid.engine.grid.dataset import bare_variables, concerned, study_axes
from perfgrid.engine.grid.replay import index_of
from perfgrid.printing.console import out
from perfgrid.printing.tables import print_table
from perfgrid.study.file import CLUSTER_SIZE, Best
from perfgrid.study.study import Study
from perfgrid.text.numbers import column, header, number
from perfgrid.text.terms import counted
from perfgrid.text.values import flag_word

from .labels import axis_label, marks, print_legend, reason_of
from .pivot_table import print_pivot

MOST_LISTED = 40  # groups that are listed; more are a pivot if they have two axes
MOST_ROWS = 200  # of a list of one axis
RANK = "rank"  # dimension of several best designs of one group


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
            if index.get(RANK):  # a group with fewer designs is reported once
                continue
            by, forbids, designs = (row.get(name, "") for name in FORBIDDEN)
            rows.append({"group": labels, "feasible": False, "reason": reason_of(study, by) if by else ""})
            rows[-1] |= {"constraint": by, "forbids": forbids, "designs": designs} if by else {}
            continue
        at = {a: row[a] for a in axes if a in row and a in winners.coords}
        chosen = {a: at[a] for a in axes if a not in labels and a not in choice.at and a in at}
        if CLUSTER_SIZE in choice.over and CLUSTER_SIZE in row:
            chosen[CLUSTER_SIZE] = row[CLUSTER_SIZE]
        values = {name: flag_word(row[name], cells[name].attrs) for name in study.outputs if name in row}
        rows.append({"group": labels, "feasible": True, "chosen": chosen, "outputs": values})
        if broken := _broken(study, row, about):
            rows[-1]["infeasible"] = broken
        points.append(at)
    feasible = [row for row in rows if row["feasible"]]
    for row, words in zip(feasible, bounds_of(study, points), strict=True):
        row["bound_by"] = words
    objective = choice.minimize or choice.maximize or ""
    if points and objective in study.outputs and has_interval(study, objective):
        ends = intervals(study, [index_of(study.space, at) for at in points], objective)
        for row, found in zip(feasible, ends, strict=True):
            row["interval"] = [found.low, found.high]
        for row, tied in zip(feasible, _ties(feasible, ends), strict=True):
            row |= {"tied": tied} if RANK in row["group"] else {}
    return rows


def _broken(study: Study, row: Mapping[str, Any], about: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The outputs of one design that constraints make infeasible, which do not concern the objective, with reasons."""
    found: dict[str, list[str]] = {}
    for name, attributes in about.items():
        if "constraint" in attributes and not row.get(name, True):
            for output in concerned(about, name) or study.outputs:
                found.setdefault(output, []).append(attributes["reason"])
    return {output: "; ".join(reasons) for output, reasons in found.items()}


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


def print_winners(study: Study, winners: xr.Dataset, choice: Best, listed: bool = False) -> None:
    """The best design of each group: a pivot of many groups, else or if they are to be ``listed`` one row each.

    Values common to all rows are printed above. A row that is too wide loses outputs from the last to the fourth, the
    interval, what bounds it, and the other outputs, in this order; never its group, the chosen labels or the objective.
    """
    groups = [str(d) for d in winners["found"].dims if winners.sizes[d] > 1]
    same = {str(d): winners[d].values[0] for d in winners["found"].dims if str(d) not in groups}
    if not groups:
        groups, same = list(same), {}  # a single row says all
    objective = choice.minimize or choice.maximize or ""
    way = f"best by {'least' if choice.minimize else 'largest'} {objective}" if choice.over else "every design"
    out.print(f"{study.file.title}: {way}")
    if fixed := choice.at | same:
        out.print_items("", (f"{axis} = {axis_label(study, axis, label)}" for axis, label in fixed.items()))
    over = [choice.over] if isinstance(choice.over, str) else choice.over
    many = winners["found"].size > MOST_LISTED and len(groups) > 1 and RANK not in groups
    if many and not (listed or out.wide) and print_pivot(study, winners, groups, objective, over):
        return
    most = None if listed or out.wide else MOST_ROWS
    rows = winner_rows(study, winners, choice, most)
    _print_rows(study, winners, rows, groups, objective if choice.over else "")
    if most is not None and winners["found"].size > most:
        more = f"{winners['found'].size - most:,} rows more"
        out.print(f"and {more} (--rows prints them, --json prints them with every output)")


def _print_rows(
    study: Study, winners: xr.Dataset, rows: Sequence[Mapping[str, Any]], groups: list[str], objective: str
) -> None:
    """One line for each group."""
    feasible = [row for row in rows if row["feasible"]]
    if not feasible:
        few = (
            "no group"
            if RANK in groups or winners["found"].size == len(rows)
            else f"none of the first {len(rows)} groups"
        )
        out.print(f"{few} has a feasible design")
    letters = marks(row.get("constraint", "") for row in rows if not row["feasible"])
    none = [f"none ({letters[row.get('constraint', '')]})" if not row["feasible"] else "" for row in rows]
    shown = [n for n in dict.fromkeys([objective, *study.outputs]) if any(n in row["outputs"] for row in feasible)]
    objective = objective or (shown or [""])[0]
    units = {name: winners[name].attrs.get("units", "1") for name in shown}
    alike, chosen = {}, list(feasible[0]["chosen"]) if feasible else []
    for kind, names in (("chosen", chosen), ("outputs", shown[1:])):
        for name in names if len(feasible) > 1 else ():
            found = {row[kind][name] for row in feasible}
            if len(found) == 1 and (kind == "chosen" or found != {None}):
                value = found.pop()
                text = axis_label(study, name, value) if kind == "chosen" else _value_text(value, units[name])
                alike[name] = f"{name} = {text}"
    if alike:
        out.print_items("in every row:", alike.values())
    chosen, shown = ([n for n in names if n not in alike] for names in (chosen, shown))
    columns = {name: [axis_label(study, name, row["group"][name]) for row in rows] for name in groups}
    columns |= {n: [axis_label(study, n, row["chosen"][n]) if row["feasible"] else "" for row in rows] for n in chosen}
    heads, right = dict[str, str](), list[str]()
    for name in shown:
        values = [row["outputs"][name] if row["feasible"] else "" for row in rows]
        if name == objective:
            values = [mark or value for mark, value in zip(none, values, strict=True)]
        unit, texts = column(values, units[name])
        heads[name] = header(name, unit)
        columns[heads[name]] = texts
        right.append(heads[name])
    if not shown:
        columns[""] = none
    secondary = [heads[name] for name in shown if name != objective]
    drop = [*reversed(secondary[2:]), *_add_extras(columns, rows, winners, objective), *reversed(secondary[:2])]
    lines = list(zip(*columns.values(), strict=True))
    print_table(columns, lines, right, drop, groups=len(groups))
    if line := counted(shown, _precision(study)):
        out.print(line)
    if vectors := [n for n in study.outputs if n in winners and set(winners[n].dims) - set(winners["found"].dims)]:
        out.print_items("several values for each design:", vectors, "(-o FILE.nc keeps them)")
    print_legend(study, letters)
    broken = (pair for row in feasible for pair in row.get("infeasible", {}).items() if pair[0] in shown)
    for output, reason in dict.fromkeys(broken):
        out.print(f"{output}: {reason}")
    if any(row.get("tied") for row in rows):
        out.print("tied: within the model's error of the first for this software (docs/accuracy.md)")


def _precision(study: Study) -> str:
    """The number format of which utilizations are shares of the peak rate."""
    several = any("precision" in (axis.name, *axis.columns) for axis in study.space.axes)
    return "each precision" if several else str(study.space.constants.get("precision", ""))


def _add_extras(
    columns: dict[str, list[str]], rows: Sequence[Mapping[str, Any]], winners: xr.Dataset, objective: str
) -> list[str]:
    """Add interval, what bounds a design and ties, where they are known; returns those that may be left out."""
    before = len(columns)
    if any("interval" in row for row in rows):
        unit = winners[objective].attrs.get("units", "1")
        ends = [end for row in rows for end in row.get("interval", (None, None))]
        unit, texts = column(ends, unit)
        pairs = zip(texts[::2], texts[1::2], rows, strict=True)
        texts = [f"{low.strip()} to {high.strip()}" if "interval" in row else "" for low, high, row in pairs]
        columns[header("90 of 100 within", unit)] = texts
    if any(row.get("bound_by") for row in rows):
        columns["bound by"] = [row.get("bound_by", "") for row in rows]
    extras = list(columns)[before:]
    if any(row.get("tied") for row in rows):
        columns["tied"] = ["yes" if row.get("tied") else "" for row in rows]
    return extras


def _value_text(value: Any, unit: str) -> str:
    """A value, or a stroke where there is none."""
    return "-" if value is None else value if isinstance(value, str) else number(value, unit)
