"""``perfgrid uncertainty``: outputs over the ranges of the catalog's estimates."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from math import prod
from typing import Annotated, Any

import numpy as np
import xarray as xr
from typer import Option

from perfgrid.analysis.uncertainty import as_stated, only, quantiles, tornado
from perfgrid.engine.errors import PerfgridError
from perfgrid.printing.bars import bar, swing
from perfgrid.printing.cells import cells
from perfgrid.printing.console import out, print_json
from perfgrid.printing.tables import print_table
from perfgrid.results.evaluate import evaluate
from perfgrid.study.samples import SAMPLE
from perfgrid.study.selection import asking, selected
from perfgrid.study.study import Study
from perfgrid.text.numbers import column, header, label_text, number

from .arguments import asks_best, chosen_labels, design_labels, names_in, outputs_of, study_of
from .options import AsJson, Formulas, Of, Output, Overwrite, Settings, StudyFile, Wide, one_of
from .saving import Target

METHODS = ("quantiles", "tornado", "morris", "sobol")
SAMPLES = {"quantiles": 256, "morris": 64, "sobol": 1024}
MOST_ROWS = 64  # of a table of quantiles
LEVELS = (0.05, 0.5, 0.95)


def uncertainty_command(
    study: StudyFile,
    of: Of = None,
    method: Annotated[
        str, Option(help="quantiles, tornado, morris or sobol.", callback=one_of("--method", METHODS))
    ] = "quantiles",
    at: Annotated[
        list[str] | None,
        Option(
            "--at",
            help="Labels to select: axis=label[,axis=label...]; best: along axes left open the best design, "
            "which a tornado always takes.",
        ),
    ] = None,
    over: Annotated[
        str | None, Option(help="Catalog tables or quantities to vary, comma-separated. Default: all.")
    ] = None,
    samples: Annotated[int | None, Option(help="Samples; trajectories of morris.")] = None,
    seed: Annotated[int, Option(help="Seed of the samples.")] = 0,
    top: Annotated[int, Option(min=0, help="Estimates to print; 0 prints all.")] = 15,
    output: Output = None,
    overwrite: Overwrite = False,
    settings: Settings = None,
    formulas: Formulas = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Quantiles, tornado, Morris or Sobol over the catalog's ranges: how sure an output is."""
    if method == "tornado" and samples is not None:
        raise PerfgridError("--samples: a tornado evaluates the ends of each range and takes no samples")
    loaded, varied = study_of(study, settings, formulas), names_in(over) if over is not None else None
    target = Target(output, overwrite)
    outputs, places = outputs_of(loaded, of), design_labels(at, "--at")
    if method != "quantiles" and len(outputs) > 1:
        raise PerfgridError(f"--method {method} looks at one output at a time, found {', '.join(outputs)}")
    if method == "tornado" or asks_best(at):
        places = chosen_labels(as_stated(loaded), places, as_json, outputs)
    places = {axis: loaded.label(axis, label) for axis, label in places.items()}
    if method == "quantiles":
        most = MOST_ROWS if output is None and not as_json else None
        found = _quantiles(loaded, outputs, places, varied, samples, seed, most)
        rows = _rows(found, outputs)
        if as_json:
            print_json({"levels": list(LEVELS), "quantiles": rows})
        elif len(rows) <= MOST_ROWS:
            _print_quantiles(found, rows)
    else:
        found = _analysis(loaded, outputs[0], method, places, varied, samples, seed)
        if as_json:
            print_json({"output": outputs[0], "method": method, "at": places, **_plain(found)})
        elif method == "tornado":
            _print_tornado(found, top)
        else:
            _print_indices(found, method, top)
    target.save(found)
    if not as_json:
        target.tell(size=True)


def _analysis(
    study: Study, output: str, method: str, at: Mapping[str, Any], of: list[str] | None, samples: int | None, seed: int
) -> xr.Dataset:
    if method == "tornado":
        return tornado(asking(study, (output,)), output, at, of)
    from perfgrid.analysis import global_sensitivity

    analysed = getattr(global_sensitivity, method)
    return analysed(study, output, at, of, SAMPLES[method] if samples is None else samples, seed)


def _quantiles(
    study: Study,
    outputs: list[str],
    at: Mapping[str, Any],
    of: list[str] | None,
    samples: int | None,
    seed: int,
    most: int | None,
) -> xr.Dataset:
    """Quantiles with the study's own axis of samples, or one that is made here; of ``most`` rows, if it is stated."""
    own = study.file.axes.get(SAMPLE)
    axes = {k: only(v, at.get(k)) for k, v in study.file.axes.items()}
    if own is None or samples is not None or of is not None:
        axes[SAMPLE] = {"num": SAMPLES["quantiles"] if samples is None else samples, "seed": seed}
        axes[SAMPLE] |= {"of": of} if of is not None else {}
    drawn = selected(asking(study, outputs, axes), at)
    plan = drawn.plan()
    along = next(len(axis) for axis in drawn.space.axes if axis.name == SAMPLE)
    rows = sum(prod(plan.result_shape(name)) for name in outputs) // along
    if most is not None and rows > most:
        raise PerfgridError(
            f"{rows:,} designs and outputs are no table (at most {most}): keep single labels with --at, take the best "
            "design (--at best), or save them all with -o FILE.nc"
        )
    found = quantiles(evaluate(drawn), LEVELS)
    if lacking := [name for name in outputs if name not in found]:
        raise PerfgridError(f"{', '.join(lacking)}: no estimate with a range moves it, or it is not a number")
    return found[outputs]


def _rows(found: xr.Dataset, outputs: list[str]) -> list[dict[str, Any]]:
    """One row per design and output."""
    rows = []
    for name in outputs:
        array = found[name].transpose(..., "quantile")
        for labels, at in cells(array, array.dims[:-1]):
            values = [None if np.isnan(v) else float(v) for v in array.values[tuple(at.values())]]
            rows.append({"output": name, "at": labels, "values": values})
    return rows


def _print_quantiles(found: xr.Dataset, rows: list[dict[str, Any]]) -> None:
    axes = [str(d) for d in found.dims if d != "quantile" and found.sizes[d] > 1]
    lines = []
    for output, own in groupby(rows, key=lambda row: row["output"]):
        designs = list(own)
        values = ["infeasible" if v is None else v for row in designs for v in row["values"]]
        unit, texts = column(values, found[output].attrs.get("units", "1"))
        for place, row in enumerate(designs):
            labels = [label_text(row["at"].get(a, "")) for a in axes]
            lines.append([header(output, unit), *labels, *texts[place * len(LEVELS) : (place + 1) * len(LEVELS)]])
    levels = [f"{level:.0%}" for level in LEVELS]
    print_table(["output", *axes, *levels], lines, right=levels, groups=1 + len(axes))


def _print_tornado(found: xr.Dataset, top: int) -> None:
    unit, stated = found.attrs.get("units", "1"), float(found.stated)
    rows = list(zip(found.assumption.values.tolist(), found.low.values, found.high.values, strict=True))
    rows = rows[: top or None]
    out.print(f"{found.attrs['output']} = {number(stated, unit)} with every estimate as stated")
    largest = max((abs(v - stated) for _, low, high in rows for v in (low, high)), default=0.0)
    common, texts = column([end for _, *ends in rows for end in ends], unit)
    swings = [swing(low, stated, high, largest) for _, low, high in rows]
    names = [name for name, *_ in rows]
    headers = [header("at its low end", common), header("at its high end", common)]
    lines = list(zip(names, texts[::2], swings, texts[1::2], strict=True))
    print_table(["estimate", headers[0], "", headers[1]], lines, right=headers, drop=("",))


def _plain(found: xr.Dataset) -> dict[str, Any]:
    if "assumption" in found.dims:
        ends = {end: found[end].values.tolist() for end in ("low", "high")}
        return {"stated": float(found.stated), "estimates": found.assumption.values.tolist(), **ends}
    designs = [
        {"at": labels} | {str(n): found[n].isel(at, missing_dims="ignore").values.tolist() for n in found.data_vars}
        for labels, at in cells(found, _of_designs(found))
    ]
    return {"estimates": found.parameter.values.tolist(), "evaluations": found.attrs["evaluations"], "designs": designs}


def _of_designs(found: xr.Dataset) -> list[str]:
    """The dimensions of designs in a result of Morris or Sobol."""
    return [str(d) for d in found.dims if d != "parameter"]


def _print_indices(found: xr.Dataset, method: str, top: int) -> None:
    unit, key = found.attrs.get("units", "1"), "total" if method == "sobol" else "mean_absolute_effect"
    columns = ("mean_effect", "mean_absolute_effect", "effect_deviation")
    columns = ("first_order", "total") if method == "sobol" else columns

    def shown(value: xr.DataArray) -> str:
        return f"{float(value):.3f}" if method == "sobol" else number(float(value), unit)

    for _, at in cells(found, _of_designs(found)):
        row = found.isel(at)
        labels = ", ".join(f"{d} = {found[d].values[i]}" for d, i in at.items() if found.sizes[d] > 1)
        labels = f" at {labels}" if labels else ""
        share = float(np.mean(row.feasible_share.values))
        out.print(
            f"{found.attrs['output']}{labels}: {method} of {found.sizes['parameter']} estimates, "
            f"{found.attrs['evaluations']:,} evaluations, {share:.0%} of them feasible"
        )
        largest = float(np.max(row[key].values, initial=0.0))
        lines = []
        for i in np.argsort(-row[key].values, kind="stable")[: top or None]:
            one, texts = row.isel(parameter=i), []
            for name in columns:
                spread = f" ± {shown(one[f'{name}_confidence'])}" if f"{name}_confidence" in one else ""
                texts.append(shown(one[name]) + spread)
            lines.append([str(one.parameter.values), *texts, bar(float(one[key]), largest).partition("|")[2]])
        headers = ["estimate", *(c.replace("_", " ") for c in columns), ""]
        print_table(headers, lines, right=headers[1:-1], drop=("",))
