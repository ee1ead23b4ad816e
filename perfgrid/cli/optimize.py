"""``perfgrid optimize``: the best design over continuous quantities and discrete choices, or a front of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
import typer
import xarray as xr

from perfgrid.analysis.text import label_text, number
from perfgrid.cli.printing.console import out, show, text_table
from perfgrid.engine.errors import PerfgridError
from perfgrid.optimizer.optimize import UNEXPLAINED, front, optimize
from perfgrid.results.writing import check_output, save
from perfgrid.study.study import load_study

from .options import AsJson, Minimize, Output, Overwrite, Settings, StudyFile

PRESSING = 5e-4  # elasticity from which a limit is told, with three decimals
MOST_OUTPUTS = 5  # of a design, and of each workload of it, that a table prints
JUMP = 0.01  # part of the objective, for a percent of one quantity, from which a step of the model is told


def optimize_command(
    study: StudyFile,
    minimize: Minimize = None,
    maximize: Annotated[str | None, typer.Option(help="Quantity to maximize.")] = None,
    over: Annotated[
        str | None, typer.Option(help="Quantities to vary: name or name=low:high, separated by commas.")
    ] = None,
    subject_to: Annotated[
        str | None, typer.Option(help="Limits, such as 'step_time < 2 s, die_area < 800 mm^2'.")
    ] = None,
    choose: Annotated[str | None, typer.Option(help="Axes along which the best label is taken; comma.")] = None,
    against: Annotated[str | None, typer.Option(help="A second quantity to be small: the front between both.")] = None,
    points: Annotated[int, typer.Option(help="Points of the front.", min=2)] = 8,
    starts: Annotated[int, typer.Option(help="Designs from which each search starts.", min=1)] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the samples.", min=0)] = 0,
    output: Output = None,
    overwrite: Overwrite = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Find the best design over continuous quantities, for every label of the axes that are not chosen along."""
    loaded = load_study(study, settings or ())
    if output is not None:
        check_output(output, overwrite)
    varied = None if over is None else _bounds(over)
    chosen = None if choose is None else [name.strip() for name in choose.split(",") if name.strip()]
    start = time.perf_counter()
    if against is None:
        found = optimize(loaded, minimize, maximize, varied, subject_to, chosen, starts, seed)
    else:
        found = front(loaded, against, points, minimize, maximize, varied, subject_to, chosen, starts, seed)
    seconds = time.perf_counter() - start
    if output is not None:
        save(found, output, overwrite)
    rows = design_rows(found)
    if as_json:
        print(json.dumps({"objective": found.attrs["objective"], "evaluations": found.attrs["evaluations"],
                          "seconds": seconds, "designs": rows}))  # fmt: skip
        return
    print_designs(found, rows)
    out.print(f"{found.attrs['evaluations']:,} model evaluations, each slope counted, in {seconds:.1f} s")
    if output is not None:
        out.print(f"saved {output}")


def _bounds(text: str) -> dict[str, list[Any]]:
    """Names with their bounds from ``name[=low:high],...``. PerfgridError for another form."""
    found: dict[str, list[Any]] = {}
    for item in text.split(","):
        name, equals, values = (part.strip() for part in item.partition("="))
        if not name:
            continue
        ends = [v.strip() for v in values.split(":")] if equals else []
        if equals and len(ends) != 2:
            raise PerfgridError(f"--over {item.strip()!r} must read name or name=low:high")
        found[name] = [_number(v) for v in ends]
    return found


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def design_rows(found: xr.Dataset) -> list[dict[str, Any]]:
    """One row per design: its labels, knobs, objective, whether it keeps all limits, what presses."""
    groups = list(found["objective"].dims)
    rows = []
    for index in np.ndindex(*(found.sizes[g] for g in groups)):
        one = found.isel(dict(zip(groups, index, strict=True)))
        labels = {str(c): one[c].item() for c in one.coords if one[c].ndim == 0}
        labels |= {str(g): i for g, i in zip(groups, index, strict=True) if g not in one.coords}
        pressing = {}
        for dim, variable in (("constraint", "shadow_price"), ("knob", "pull")):
            for name, value in zip(one[dim].values, one[variable].values, strict=True):
                if abs(value) > PRESSING:
                    pressing[str(name) if dim == "constraint" else f"bound of {name}"] = float(value)
        told = {*found["knob"].values, "objective", "feasible", "breaks", "kkt_residual"}
        outputs = [v for v in one.data_vars if one[v].ndim == 0 and v not in told]
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
                "moved": {} if "moved" not in one else {str(s): float(v) for s, v in one["moved"].to_series().items()},
                "outputs": {str(v): _output(one[v]) for v in outputs},
            }
        )
    return rows


def _output(value: xr.DataArray) -> float | None:
    """A number; None where it is illegal (JSON knows no NaN)."""
    return None if np.isnan(value) else float(value)


def _output_text(row: dict[str, Any], name: str, found: xr.Dataset) -> str:
    """An output of a design with its unit; a stroke where it has none."""
    value = row["outputs"].get(name)
    return "-" if value is None else number(value, found[name].attrs.get("units", "1"))


def _label(value: Any, about: xr.DataArray) -> str:
    """A label of a design; a limit, which is a number with a unit, like other numbers."""
    unit = about.attrs.get("units")
    return label_text(value) if unit is None else number(value, unit)


def print_designs(found: xr.Dataset, rows: list[dict[str, Any]]) -> None:
    """The designs of an optimisation: objective, outputs and knobs, those of each workload, what presses how much."""
    out.print(f"{found.attrs['title']}: {found.attrs['objective']}")
    unit = found["objective"].attrs["units"]
    knobs = list(rows[0]["knobs"])
    objective = found.attrs["objective"].split()[1]
    workloads = list(dict.fromkeys(o.partition(".")[0] for o in rows[0]["outputs"] if "." in o))
    whose = [str(d) for d in found["objective"].dims]  # what tells designs apart in further tables
    names = whose + [k for k in rows[0]["at"] if k not in whose and k.partition(".")[0] not in workloads]
    own = [[_label(row["at"][n], found[n]) if n in found.coords else str(row["at"][n]) for n in names] for row in rows]
    at = [[labels[names.index(n)] for n in whose] for labels in own]
    shown = [o for o in rows[0]["outputs"] if o != objective and o.partition(".")[0] not in workloads]
    shown, left = shown[:MOST_OUTPUTS], shown[MOST_OUTPUTS:]
    lines = []
    for row, labels in zip(rows, own, strict=True):
        told = number(row["objective"], unit) if row["feasible"] else "keeps not all limits"
        values = [_output_text(row, name, found) for name in shown]
        values += [number(row["knobs"][k], found[k].attrs["units"]) for k in knobs]
        lines.append([*labels, told, *values, f"{row['kkt_residual']:.0e}" if row["feasible"] else "-"])
    headers = [str(found[n].attrs.get("long_name", n)) if n in found.coords else n for n in names]
    show(text_table([*headers, objective, *shown, *knobs, "KKT"], lines), whole=True)
    for row, labels in zip(rows, own, strict=True):
        if not row["feasible"]:
            out.print(f"{' '.join(labels)}: the nearest design breaks {row['breaks']}")
    if workloads:
        left += _print_workloads(found, rows, workloads, whose, at)
    if left:
        out.print(f"not shown: {', '.join(left)} (--json prints them, -o FILE.nc keeps them)")
    if idle := list(np.atleast_1d(found.attrs["without_effect"])):
        out.print(f"without effect on the objective and every limit: {', '.join(map(str, idle))}")
    lines = [
        [*labels, what, f"{value:+.3f}"]
        for row, labels in zip(rows, at, strict=True)
        if row["feasible"]
        for what, value in sorted(row["pressing"].items(), key=lambda x: -abs(x[1]))
    ]
    if lines:
        out.print("What presses, and the change of the objective in percent for every percent that it is loosened:")
        show(text_table([*whose, "what presses", "elasticity"], lines, right=("elasticity",)), whole=True)
    splits = list(rows[0]["moved"])
    if splits:
        out.print(
            "How much of each split lies elsewhere than in the stated design. Much is a finding about what the model "
            "leaves out before it is advice:"
        )
        lines = [[*labels, *(f"{row['moved'][s]:.3f}" for s in splits)] for row, labels in zip(rows, at, strict=True)]
        show(text_table([*whose, *splits], lines, right=splits), whole=True)
    if unexplained := sum(row["feasible"] and row["kkt_residual"] >= UNEXPLAINED for row in rows):
        out.print(
            f"{unexplained} of {len(rows)} searches ended on a step of the model, where nothing is said to press."
        )
    jumps = {name: max((row["jump"][name] for row in rows if row["feasible"]), default=0.0) for name in knobs}
    if steep := {name: size for name, size in jumps.items() if size > JUMP}:
        told = ", ".join(f"{name} {size:.1%}" for name, size in sorted(steep.items(), key=lambda x: -x[1]))
        out.print(f"A step of the model is near: one percent of a quantity, either way, costs up to this much: {told}")
    at_bounds = sorted({w.removeprefix("bound of ") for r in rows for w in r["pressing"] if w.startswith("bound of ")})
    if at_bounds:
        out.print(
            f"The range decides {', '.join(at_bounds)} (of a share, 20 times more or less against the others): the "
            "model alone does not bound them there."
        )


def _print_workloads(
    found: xr.Dataset, rows: list[dict[str, Any]], workloads: list[str], whose: list[str], at: list[list[str]]
) -> list[str]:
    """A line for every workload of every design: the labels that were chosen for it, its outputs. Those left out."""

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
    show(text_table([*whose, "workload", *axes, *shown], lines), whole=True)
    return [f"{w}.{name}" for w, own in outputs.items() for name in own if name not in shown]
