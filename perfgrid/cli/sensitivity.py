"""``perfgrid sensitivity``: elasticities of outputs at every point of a study, ranked, and what binds where."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import xarray as xr

from perfgrid.analysis.sensitivity import cross_elasticities, sensitivity
from perfgrid.analysis.sensitivity_ranking import Rank, binding_shares, ranked, time_balance
from perfgrid.analysis.text import labels_of
from perfgrid.cli.printing.bars import bar
from perfgrid.cli.printing.console import out, show, text_table
from perfgrid.cli.printing.progress import Reporter
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.dataset import feasible
from perfgrid.results.writing import check_output, save
from perfgrid.study.study import Study, load_study

OF = typer.Option(
    "--of",
    help="Quantities, separated by commas; without it the study's objective or first output.",
)
AT = typer.Option("--at", help="axis=label[,axis=label...]: keep one label of an axis.")
SETTINGS = typer.Option("--set", help="Override, such as axes.microbatch=[1,2].")


def names_in(text: str) -> list[str]:
    """Names separated by commas; those inside square brackets belong to a name."""
    found, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [name.strip() for name in found if name.strip()]


def outputs_of(study: Study, of: str | None) -> list[str]:
    """The quantities that a command is about."""
    if of is not None:
        if not (names := names_in(of)):
            raise PerfgridError("--of names no quantity")
        return names
    best = study.file.best
    return [(best.minimize or best.maximize if best else None) or study.outputs[0]]


def sensitivity_command(
    study: Annotated[Path, typer.Argument(help="A study file (TOML).")],
    of: Annotated[str | None, OF] = None,
    wrt: Annotated[str, typer.Option(help="Given quantities, separated by commas, or all.")] = "all",
    at: Annotated[list[str] | None, AT] = None,
    smooth: Annotated[
        bool, typer.Option("--smooth", help="Smooth companions of max, min, ceil, floor, round.")
    ] = False,
    cross: Annotated[bool, typer.Option("--cross", help="Also cross-elasticities, of a single design.")] = False,
    top: Annotated[int, typer.Option(help="Parameters to print; 0 prints all.")] = 15,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Result file (.nc).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing result file.")] = False,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64 on the grid.")] = None,
    settings: Annotated[list[str] | None, SETTINGS] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Elasticities d ln output / d ln parameter at every point: ranked over feasible designs, and what binds where."""
    loaded = load_study(study, settings or ())
    if output is not None:
        check_output(output, overwrite)
    if top < 0:
        raise PerfgridError(f"--top must be 0 or more, found {top}")
    outputs, places = outputs_of(loaded, of), labels_of(at, "--at")
    parameters: str | list[str] = "all" if wrt.strip() == "all" else names_in(wrt)
    start = time.perf_counter()
    with Reporter(loaded.space.points) as reporter:
        result = sensitivity(loaded, outputs, parameters, places, smooth, dtype, progress=reporter)
    seconds = time.perf_counter() - start
    if output is not None:
        save(result, output, overwrite)
    ranks = {name: ranked(result, name) for name in outputs}
    crossed = {}
    if cross:
        for name in outputs:
            strongest = [r.parameter for r in ranks[name] if r.zero < 1][: top or None]
            crossed[name] = cross_elasticities(loaded, name, strongest, places, smooth) if strongest else None
    if as_json:
        print(json.dumps(_plain(result, ranks, crossed, seconds)))
        return
    for name, rows in ranks.items():
        _print_ranks(result, name, rows, top, parameters == "all")
        if (found := crossed.get(name)) is not None:
            _print_cross(found)
    out.print(f"derivatives: {result.attrs['derivatives']}")
    points = result[outputs[0]].size
    count = result.sizes["parameter"]
    out.print(f"{count} parameters x {len(outputs)} outputs at {points:,} points in {seconds:.1f} s")
    if output is not None:
        out.print(f"saved {output} ({output.stat().st_size / 1e6:.1f} MB)")


def _print_ranks(result: xr.Dataset, name: str, rows: list[Rank], top: int, whole: bool) -> None:
    if not feasible(result, of=name).any():
        out.print(f"no design is feasible for {name}: there is nothing to rank")
        return
    strong = [r for r in rows if r.zero < 1]
    shown = strong[: top or None]
    out.print(f"elasticities of {name} over the feasible designs")
    largest = max((abs(r.mean) for r in shown), default=0.0)
    lines = [
        [
            r.parameter,
            r.unit,
            f"{r.mean:+.4f}",
            bar(r.mean, largest),
            f"{r.low:+.4f}",
            f"{r.high:+.4f}",
            f"{r.zero:.0%}",
        ]
        for r in shown
    ]
    show(
        text_table(
            ["parameter", "unit", "mean", "", "least", "most", "zero at"], lines, ("mean", "least", "most", "zero at")
        )
    )
    if len(strong) > len(shown):
        out.print(f"and {len(strong) - len(shown)} weaker ones")
    none = [r.parameter for r in rows if r.zero == 1]
    if none:
        out.print(f"without effect at any feasible design ({len(none)}): {', '.join(none)}")
    rates = sum(r.unit.endswith("/s") for r in strong)  # of a single one there is nothing to tell apart
    if rates > 1 and (shares := binding_shares(result, name)):
        out.print("bound by: " + ", ".join(f"{n} {share:.1%}" for n, share in shares.items()))
    if whole and (balance := time_balance(result, name)) is not None:
        expected, low, high = balance
        out.print(f"fixed times minus rates: {low:.5f} to {high:.5f}, as must be {expected:g}")


def _print_cross(found: xr.Dataset) -> None:
    names = [str(n) for n in found.parameter.values]
    out.print(f"cross-elasticities of {found.attrs['output']}: change of the row's elasticity with ln of the column")
    lines = [
        [n, *("jumps" if v != v else f"{v:+.4f}" for v in row)]
        for n, row in zip(names, found.cross_elasticity.values.tolist(), strict=True)
    ]
    show(text_table(["", *names], lines, names))


def _plain(
    result: xr.Dataset, ranks: dict[str, list[Rank]], crossed: dict[str, xr.Dataset | None], seconds: float
) -> dict[str, Any]:
    found: dict[str, Any] = {"seconds": seconds, "derivatives": result.attrs["derivatives"], "outputs": {}}
    for name, rows in ranks.items():
        rates = any(r.unit.endswith("/s") for r in rows)
        found["outputs"][name] = {
            "elasticities": [asdict(r) for r in rows if r.zero < 1],
            "without_effect": [r.parameter for r in rows if r.zero == 1],
            "bound_by": binding_shares(result, name) if rates else {},
        }
        if (cross := crossed.get(name)) is not None:
            found["outputs"][name]["cross_elasticities"] = {
                "parameters": cross.parameter.values.tolist(),
                "values": cross.cross_elasticity.values.tolist(),
            }
    return found
