"""The command line: data on standard output, progress on standard error; bad input ends with status 2, one sentence."""

from __future__ import annotations

import gc
import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import xarray as xr

from perfgrid.analysis.best_of_result import best as best_designs
from perfgrid.analysis.text import number, plain
from perfgrid.cli.printing.best_table import print_winners, winner_rows
from perfgrid.cli.printing.console import err, out, show, text_table
from perfgrid.cli.printing.progress import Reporter
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.registry import Constraint
from perfgrid.engine.grid.dataset import constraints_of
from perfgrid.formulas import INNER, WORKLOADS, registry_of
from perfgrid.results.evaluate import evaluate
from perfgrid.results.factored import SUFFIX
from perfgrid.results.feasibility import violations
from perfgrid.results.stream import STORE, stream
from perfgrid.results.writing import check_output, save
from perfgrid.study.file import Best
from perfgrid.study.study import load_study
from perfgrid.study.tables import unit_of

from . import stream as cli_stream
from .best import best_command
from .calibrate import calibrate_command
from .catalog import catalog_app
from .design import compare_command, explain_command, kernels_command, timeline_command
from .frontier import frontier_of, frontier_rows, print_frontier
from .optimize import optimize_command
from .options import AsJson, Settings, StudyFile
from .reduce import distribution_command
from .results import diff_command, expand_command, named, run_factored
from .sensitivity import sensitivity_command
from .uncertainty import uncertainty_command
from .validate import serving_note, validate_command

app = typer.Typer(
    name="perfgrid",
    help="Time, memory, energy and cost of LLM training and serving for millions of design points at once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(catalog_app, name="catalog")
app.command("validate")(validate_command)
app.command("calibrate")(calibrate_command)
app.command("best")(best_command)
app.command("diff")(diff_command)
app.command("distribution")(distribution_command)
app.command("expand")(expand_command)
app.command("verify")(cli_stream.verify_command)
app.command("sensitivity")(sensitivity_command)
app.command("uncertainty")(uncertainty_command)
app.command("optimize")(optimize_command)
app.command("explain")(explain_command)
app.command("kernels")(kernels_command)
app.command("timeline")(timeline_command)
app.command("compare")(compare_command)


FEW_POINTS = 100  # that are printed one by one where no best ones are asked for


@app.command()
def run(
    study: StudyFile,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Result file (.nc; .pgf: factored; no suffix: .nc up to 4 GiB), or a store (.zarr) of any size.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing result file.")] = False,
    streaming: Annotated[bool, typer.Option("--stream", help="Write tile by tile, for grids beyond memory.")] = False,
    settings: Settings = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64 on the grid.")] = None,
    memory: cli_stream.Memory = None,
    resume: cli_stream.Resume = False,
    workers: cli_stream.Workers = None,
    scheduler: cli_stream.Scheduler = None,
    tile_points: cli_stream.TilePoints = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate every design of a study, print the best ones and save the result."""
    loaded = load_study(study, settings or ())
    if output is not None and not streaming:
        output = named(loaded, output, dtype)
    how = {"resume": resume, "memory": cli_stream.bytes_of(memory), "workers": workers, "scheduler": scheduler}
    if output is not None and output.suffix == STORE:
        return cli_stream.run_to_store(loaded, output, dtype, overwrite, as_json, tile_points=tile_points, **how)
    if not streaming and any((*how.values(), tile_points)):
        raise PerfgridError("--memory, --resume, --workers, --scheduler and --tile-points need -o STORE.zarr")
    if streaming and output is None:
        raise PerfgridError("--stream needs -o FILE.nc to write to")
    if output is not None and output.suffix == SUFFIX:
        if streaming:
            raise PerfgridError(f"a factored result ({SUFFIX}) holds no values to stream: leave out --stream")
        return run_factored(loaded, output, dtype, overwrite, as_json)
    if output is not None:
        check_output(output, overwrite)
    start = time.perf_counter()
    try:
        with Reporter(loaded.space.points) as reporter:
            if streaming and output is not None:
                stream(loaded, output, dtype, overwrite, tile_points, reporter, **how)
                result = xr.open_dataset(output)
            else:
                result = evaluate(loaded, dtype, progress=reporter)
    except KeyboardInterrupt:
        err.print("perfgrid: interrupted; no result was written")
        raise typer.Exit(130) from None
    seconds = time.perf_counter() - start
    if output is not None and not streaming:
        save(result, output, overwrite)
    winners, choice = None, loaded.file.best
    if choice is None and loaded.space.points <= FEW_POINTS:
        single = [name for name in loaded.outputs if not set(result[name].dims) & set(INNER.names)] or loaded.outputs
        fewest = min(single, key=lambda name: len(constraints_of(result, name)))
        choice = Best(over=[], minimize=fewest)  # every point is shown that is feasible for any output
    if choice is not None and not streaming:
        at = {axis: loaded.label(axis, label) for axis, label in choice.at.items()}
        winners = best_designs(result, choice.over, choice.minimize, choice.maximize, at)
    counted = violations(result)
    edge = None if loaded.file.frontier is None or streaming else frontier_of(loaded, result, loaded.file.frontier)
    if as_json:
        data: dict[str, Any] = {
            "seconds": seconds,
            **asdict(counted),
            "best": [] if winners is None or choice is None else winner_rows(loaded, winners, choice),
        }
        if edge is not None:
            data["frontier"] = frontier_rows(loaded, edge)
        print(json.dumps(data, default=plain))
        return
    if winners is not None and choice is not None:
        print_winners(loaded, winners, choice)
        if loaded.file.workload == "inference" and winners is not None:
            out.print(serving_note())
    elif streaming and choice is not None:
        out.print("the best designs are not searched in a streamed run")
    elif output is None:
        out.print("nothing is kept: give -o FILE.nc to save the result, or [best] in the study for a table")
    if edge is not None and loaded.file.frontier is not None:
        print_frontier(loaded, edge, loaded.file.frontier)
    cli_stream.print_violations(counted, seconds)
    if output is not None:
        out.print(f"saved {output} ({output.stat().st_size / 1e6:.1f} MB)")


@app.command()
def plan(
    study: StudyFile,
    everything: Annotated[bool, typer.Option("--all", help="Every quantity, not only outputs.")] = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show what a study will evaluate: quantity, columns, points, bytes. Nothing is computed."""
    loaded = load_study(study, settings or ())
    found = loaded.plan()
    rows = found.describe()
    if as_json:
        data = {"points": found.space.points, "result_bytes": found.result_bytes(), "quantities": rows}
        print(json.dumps(data, default=plain))
        return
    lines = []
    for row in sorted(rows, key=lambda r: (r["stage"] != "given", r["points"])):
        if not everything and row["quantity"] not in found.outputs:
            continue
        columns = "; ".join(_columns(axis, names, everything) for axis, names in row["columns"].items())
        counts = (f"{row[name]:,}" for name in ("points", "values", "bytes"))
        mark = "* " if row["wanted"] else "  "
        unit = row["unit"] or unit_of(loaded.catalog.variables, row["quantity"])
        lines.append([mark + row["quantity"], row["stage"], unit, *counts, " x ".join(row["inner"]), columns])
    headers = ["  quantity", "stage", "unit", "points", "values", "bytes", "inner axes", "columns"]
    show(text_table(headers, lines, right=("points", "values", "bytes")))
    grid = " x ".join(f"{a.name} {len(a)}" for a in loaded.space.axes)
    out.print(
        f"{found.space.points:,} points ({grid}); {len(rows)} quantities, {sum(r['stage'] == 'grid' for r in rows)} on "
        f"the grid; results (*) take {number(found.result_bytes(), 'byte')}"
    )


@app.command()
def formulas(
    graph: Annotated[bool, typer.Option("--graph", help="The dependency graph in Graphviz DOT.")] = False,
    workload: Annotated[str, typer.Option(help="The workload whose formulas to list.")] = "training",
    as_json: AsJson = False,
) -> None:
    """List every formula: quantity, unit, arguments, source."""
    if graph and as_json:
        raise PerfgridError("--graph prints Graphviz DOT and --json JSON: give one of them")
    if workload not in WORKLOADS:
        raise PerfgridError(f"unknown workload {workload!r}; legal names: {', '.join(WORKLOADS)}")
    registry = registry_of(workload)
    rows = [
        {
            "quantity": f.name,
            "kind": f"constraint ({f.kind})" if isinstance(f, Constraint) else "formula",
            "of": f.of or "",
            "unit": f.unit,
            "arguments": list(f.arguments),
            "source": f.source,
            "meaning": f.meaning,
            "workloads": [name for name in WORKLOADS if f.name in registry_of(name).formulas],
        }
        for f in registry.formulas.values()
    ]
    if graph:
        out.print("digraph perfgrid {\n  rankdir=LR;")
        for row in rows:
            for argument in row["arguments"]:
                out.print(f'  "{argument}" -> "{row["quantity"]}";')
            if row["of"]:
                out.print(f'  "{row["quantity"]}" -> "{row["of"]}" [style=dashed];')
        out.print("}")
    elif as_json:
        print(json.dumps(rows))
    else:
        headers = ["quantity", "unit", "arguments", "source", "meaning"]
        lines = [[r["quantity"], r["unit"], ", ".join(r["arguments"]), r["source"], r["meaning"]] for r in rows]
        show(text_table(headers, lines))
        out.print(f"{len(rows)} formulas, {len(registry.choices)} quantities with alternatives")


@app.callback(invoke_without_command=True)
def common(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Time, memory, energy and cost of LLM training and serving for millions of design points at once."""
    if version:
        from importlib.metadata import version as installed

        print(f"perfgrid {installed('perfgrid')}")
        raise typer.Exit


def _columns(axis: str, names: list[str], several: bool) -> str:
    """What a quantity reads of an axis: its columns, or how many where they would fill the line."""
    if names == [axis]:
        return axis
    return f"{axis}: {_some(names)}" if several or len(names) <= 3 else f"{axis}: {len(names)} columns"


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def main() -> None:
    """Entry point: a PerfgridError ends with exit status 2 and its sentence on standard error."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that unfinished files are cleaned up
    if not gc.get_freeze_count():
        gc.freeze()  # what was imported stays: looking through it again and again takes a twentieth of a short run
    try:
        app()
    except PerfgridError as error:
        print(f"perfgrid: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except MemoryError:
        print(
            "perfgrid: not enough memory; ask for fewer outputs or shorter axes (run -o STORE.zarr takes any size)",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
