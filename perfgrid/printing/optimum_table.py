"""The designs of an optimisation as rows and as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.optimizer.described import UNEXPLAINED
from perfgrid.printing.console import out
from perfgrid.printing.tables import print_table
from perfgrid.text.numbers import column, header, label_text, number

from .cells import cells

PRESSING = 5e-4  # least elasticity that is printed, with three decimals
MOST_OUTPUTS = 5  # of a design, and of each of its workloads, in a table
LEAST_CHANGE = 1e-6  # of the objective that is printed when a limit moves
JUMP = 0.01  # least step of the model that is printed: a part of the objective per percent of one quantity


def design_rows(found: xr.Dataset) -> list[dict[str, Any]]:
    """One row per design: labels, free quantities, objective, feasibility, limits and bounds that press."""
    rows = []
    for _, at in cells(found, found["objective"].dims):
        one = found.isel(at)
        labels = {str(c): one[c].item() for c in one.coords if one[c].ndim == 0}
        labels |= {group: place for group, place in at.items() if group not in one.coords}
        pressing = {}
        for dim, variable in (("constraint", "shadow_price"), ("knob", "pull")):
            for name, value in zip(one[dim].values, one[variable].values, strict=True):
                if abs(value) > PRESSING:
                    pressing[str(name) if dim == "constraint" else f"bound of {name}"] = float(value)
        known = {*found["knob"].values, "objective", "feasible", "breaks", "kkt_residual"}
        outputs = [v for v in one.data_vars if one[v].ndim == 0 and v not in known]
        bought = {} if "loosened" not in one else _bought(one["loosened"])
        rows.append(
            {
                "at": labels,
                "objective": float(one["objective"]),
                "feasible": bool(one["feasible"]),
                "breaks": str(one["breaks"].item()),
                "jump": {str(k): float(v) for k, v in one["jump"].to_series().items()},
                "kkt_residual": float(one["kkt_residual"]),
                "knobs": {str(k): float(one[k]) for k in found["knob"].values},
                "pressing": pressing,
                "loosened": bought,
                "labels": {} if "by_label" not in one else _by_label(one["by_label"]),
                "moved": {} if "moved" not in one else {str(s): float(v) for s, v in one["moved"].to_series().items()},
                "outputs": {str(v): None if np.isnan(one[v]) else float(one[v]) for v in outputs},  # JSON has no NaN
            }
        )
    return rows


def _bought(loosened: xr.DataArray) -> dict[str, dict[str, float]]:
    """The change of the objective by limit and share of loosening, of limits that change it."""
    steps = [f"{share:+g}" for share in loosened["by"].values]
    names = map(str, loosened["constraint"].values)
    rows = {n: dict(zip(steps, map(float, v), strict=True)) for n, v in zip(names, loosened.values, strict=True)}
    return {n: {b: v for b, v in of.items() if not np.isnan(v)} for n, of in rows.items() if _moves(of)}


def _moves(changes: dict[str, float]) -> bool:
    return any(abs(change) > LEAST_CHANGE for change in changes.values())


def _by_label(tried: xr.DataArray) -> dict[str, dict[str, float]]:
    """How much worse each joint label is than the best one, the others at their best: by axis and label."""
    found = {}
    for dim in map(str, tried.dims):
        best = tried.min([d for d in tried.dims if d != dim])
        lost = best / best.min() - 1
        labels = zip(best[dim].values.tolist(), lost.values.tolist(), strict=True)
        found[dim.removeprefix("tried_")] = {str(label): value for label, value in labels if np.isfinite(value)}
    return found


def _output_text(row: dict[str, Any], name: str, found: xr.Dataset) -> str:
    """An output of a design with its unit; a dash where it has none."""
    value = row["outputs"].get(name)
    return "-" if value is None else number(value, found[name].attrs.get("units", "1"))


def _label(value: Any, about: xr.DataArray) -> str:
    """A label of a design; the limit of a front with its unit."""
    unit = about.attrs.get("units")
    return label_text(value) if unit is None else number(value, unit)


def print_designs(found: xr.Dataset, rows: list[dict[str, Any]]) -> None:
    """The designs of an optimisation: objective, outputs, free quantities, workloads, and what presses."""
    out.print(f"{found.attrs['title']}: {found.attrs['objective']}")
    unit = found["objective"].attrs["units"]
    knobs = list(rows[0]["knobs"])
    objective = found.attrs["objective"].split()[1]
    workloads = list(dict.fromkeys(o.partition(".")[0] for o in rows[0]["outputs"] if "." in o))
    groups = [str(d) for d in found["objective"].dims]  # name designs in further tables
    names = groups + [k for k in rows[0]["at"] if k not in groups and k.partition(".")[0] not in workloads]
    own = [[_label(row["at"][n], found[n]) if n in found.coords else str(row["at"][n]) for n in names] for row in rows]
    at = [[labels[names.index(n)] for n in groups] for labels in own]
    shown = [o for o in rows[0]["outputs"] if o != objective and o.partition(".")[0] not in workloads]
    shown, left = shown[:MOST_OUTPUTS], shown[MOST_OUTPUTS:]
    headers = [str(found[n].attrs.get("long_name", n)) if n in found.coords else n for n in names]
    columns, right = {n: [labels[i] for labels in own] for i, n in enumerate(headers)}, list[str]()
    values = {objective: [row["objective"] if row["feasible"] else "infeasible" for row in rows]}
    values |= {name: [row["outputs"].get(name) for row in rows] for name in shown}
    values |= {knob: [row["knobs"][knob] for row in rows] for knob in knobs}
    for name, numbers in values.items():
        own_unit = unit if name == objective else found[name].attrs.get("units", "1")
        common, texts = column(numbers, own_unit)
        right.append(header(name, common))
        columns[right[-1]] = texts
    columns["KKT"] = [f"{row['kkt_residual']:.0e}" if row["feasible"] else "-" for row in rows]
    print_table(columns, list(zip(*columns.values(), strict=True)), right, keys=len(headers))
    for row, labels in zip(rows, own, strict=True):
        if not row["feasible"]:
            out.print(f"{' '.join(labels)}: the nearest design breaks {row['breaks']}")
    if workloads:
        left += _print_workloads(found, rows, workloads, groups, at)
    if left:
        out.print_items("not shown:", left, "(--json prints them, -o FILE.nc saves them)")
    if idle := list(np.atleast_1d(found.attrs["without_effect"])):
        out.print(f"without effect on the objective and every limit: {', '.join(map(str, idle))}")
    _print_pressing(rows, groups, at)
    _print_bought(rows, groups, at)
    _print_labels(rows, groups, at)


def _print_bought(rows: list[dict[str, Any]], groups: list[str], at: list[list[str]]) -> None:
    """What a limit that is loosened or tightened changes."""
    steps = list(dict.fromkeys(b for row in rows for of in row["loosened"].values() for b in of))
    lines = [
        [*labels, limit, *(f"{of[b]:+.3%}" if b in of else "-" for b in steps)]
        for row, labels in zip(rows, at, strict=True)
        for limit, of in row["loosened"].items()
    ]
    if lines:
        out.print("Change of the objective when one limit is loosened by a share, searched again:")
        print_table([*groups, "limit", *steps], lines, right=steps, groups=len(groups))


def _print_labels(rows: list[dict[str, Any]], groups: list[str], at: list[list[str]]) -> None:
    """How much worse joint labels are, by the rough search."""
    lines = [
        [*labels, axis, ", ".join(f"{label} {lost:+.1%}" for label, lost in sorted(of.items(), key=lambda x: x[1]))]
        for row, labels in zip(rows, at, strict=True)
        for axis, of in row["labels"].items()
        if len(of) > 1
    ]
    if lines:
        out.print("Labels that all workloads share, by the rough search (counts open), the others at their best:")
        print_table([*groups, "axis", "objective against the best label"], lines, groups=len(groups))


def _print_pressing(rows: list[dict[str, Any]], groups: list[str], at: list[list[str]]) -> None:
    """What limits each optimum, how far shares moved, and where multipliers do not hold."""
    lines = [
        [*labels, what, f"{value:+.3f}"]
        for row, labels in zip(rows, at, strict=True)
        if row["feasible"]
        for what, value in sorted(row["pressing"].items(), key=lambda x: -abs(x[1]))
    ]
    if lines:
        out.print("Limits and bounds that press, and the change of the objective in percent per percent of loosening:")
        print_table([*groups, "what presses", "elasticity"], lines, right=("elasticity",), groups=len(groups))
    splits = list(rows[0]["moved"])
    if splits:
        out.print(
            "Share of each split that differs from the stated design. A large share may point at an effect that the "
            "model leaves out:"
        )
        lines = [[*labels, *(f"{row['moved'][s]:.3f}" for s in splits)] for row, labels in zip(rows, at, strict=True)]
        print_table([*groups, *splits], lines, right=splits, keys=len(groups))
    if unexplained := sum(row["feasible"] and row["kkt_residual"] >= UNEXPLAINED for row in rows):
        out.print(f"{unexplained} of {len(rows)} searches ended at a step of the model, where multipliers do not hold.")
    jumps = {n: max((row["jump"][n] for row in rows if row["feasible"]), default=0.0) for n in rows[0]["knobs"]}
    if steep := {name: size for name, size in jumps.items() if size > JUMP}:
        costs = ", ".join(f"{name} {size:.1%}" for name, size in sorted(steep.items(), key=lambda x: -x[1]))
        out.print(f"A step of the model is near: changing a quantity by 1 % costs up to this much: {costs}")
    at_bounds = sorted({w.removeprefix("bound of ") for r in rows for w in r["pressing"] if w.startswith("bound of ")})
    if at_bounds:
        out.print(
            f"The range decides {', '.join(at_bounds)} (a share: 20 times more or less than stated); the model alone "
            "sets no bound there."
        )


def _print_workloads(
    found: xr.Dataset, rows: list[dict[str, Any]], workloads: list[str], groups: list[str], at: list[list[str]]
) -> list[str]:
    """A line for every workload of every design: chosen labels and outputs. Returns the outputs left out."""

    def of(names: Iterable[str]) -> dict[str, list[str]]:
        return {w: [n.partition(".")[2] for n in names if n.partition(".")[0] == w] for w in workloads}

    chosen, outputs = of(rows[0]["at"]), of(rows[0]["outputs"])
    axes = list(dict.fromkeys(axis for own in chosen.values() for axis in own))
    shown = list(dict.fromkeys(name for own in outputs.values() for name in own[:MOST_OUTPUTS]))
    lines = []
    for row, labels in zip(rows, at, strict=True):
        for w in workloads:
            label = [label_text(row["at"].get(f"{w}.{axis}", "-")) for axis in axes]
            lines.append([*labels, w, *label, *(_output_text(row, f"{w}.{name}", found) for name in shown)])
    print_table([*groups, "workload", *axes, *shown], lines, keys=len(groups) + 1)
    return [f"{w}.{name}" for w, own in outputs.items() for name in own if name not in shown]
