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

import numpy as np
import typer
import xarray as xr

from perfgrid.analysis import best as best_designs
from perfgrid.analysis import violations
from perfgrid.cli import stream as cli_stream
from perfgrid.cli.best import best_command
from perfgrid.cli.calibrate import calibrate_command
from perfgrid.cli.catalog import catalog_app
from perfgrid.cli.frontier import frontier_of, frontier_rows, print_frontier
from perfgrid.cli.optimize import optimize_command
from perfgrid.cli.reduce import distribution_command
from perfgrid.cli.results import diff_command, expand_command, named, run_factored
from perfgrid.cli.sensitivity import sensitivity_command
from perfgrid.cli.timeline import print_timeline
from perfgrid.cli.uncertainty import uncertainty_command
from perfgrid.cli.validate import validate_command
from perfgrid.compare import compare
from perfgrid.engine.dataset import constraints_of
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.registry import Constraint, Registry
from perfgrid.factored import SUFFIX
from perfgrid.formulas import INNER, WORKLOADS
from perfgrid.kernels import kernels
from perfgrid.report.best_table import print_winners, winner_rows
from perfgrid.report.console import err, out, print_line, show, text_table
from perfgrid.report.derivation import DEPTH, print_derivation
from perfgrid.report.progress import Reporter
from perfgrid.report.text import labels_of, number, point_lines
from perfgrid.report.winners import WORDS
from perfgrid.results import open_result
from perfgrid.run import check_output, evaluate, explain, formulas_changed, save
from perfgrid.stream import STORE, stream
from perfgrid.study.file import Best
from perfgrid.study.study import Study, load_study
from perfgrid.study.tables import unit_of
from perfgrid.timeline import timeline

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

StudyArgument = Annotated[Path, typer.Argument(help="A study file (TOML).")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override, such as device.b200.hbm_bandwidth=10e12 or axes.microbatch=[1,2]."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


FEW_POINTS = 100  # that are printed one by one where no best ones are asked for


@app.command()
def run(
    study: StudyArgument,
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
    as_json: Json = False,
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
        print(json.dumps(data, default=_plain))
        return
    if winners is not None and choice is not None:
        print_winners(loaded, winners, choice)
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
    study: StudyArgument,
    everything: Annotated[bool, typer.Option("--all", help="Every quantity, not only outputs.")] = False,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Show what a study will evaluate: quantity, columns, points, bytes. Nothing is computed."""
    loaded = load_study(study, settings or ())
    found = loaded.plan()
    rows = found.describe()
    if as_json:
        data = {"points": found.space.points, "result_bytes": found.result_bytes(), "quantities": rows}
        print(json.dumps(data, default=_plain))
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


@app.command("explain")
def explain_command(
    what: Annotated[Path, typer.Argument(help="A study (.toml) or a result (.nc).")],
    quantity: Annotated[str, typer.Argument(help="The quantity to derive.")],
    at: Annotated[list[str] | None, typer.Option("--at", help="axis=label[,axis=label...]")] = None,
    settings: Settings = None,
    depth: Annotated[int, typer.Option(help="Levels of the tree to print.")] = DEPTH,
) -> None:
    """Derive one number: every formula, value, unit and source below it, or why its point is infeasible."""
    labels = labels_of(at, "--at")
    if depth < 0:
        raise PerfgridError(f"--depth must be 0 or more, found {depth}")
    subject = _study_or_result(what, settings)
    try:
        found = explain(subject, quantity, labels)
    except PerfgridError as error:
        raise PerfgridError(f"{what}: {error}" if isinstance(subject, xr.Dataset) else str(error)) from None
    if isinstance(subject, xr.Dataset) and formulas_changed(subject):
        err.print(f"note: {what} was made with other formulas than those installed; the derivation uses the latter")
    print_derivation(found, INNER, depth)


@app.command("kernels")
def kernels_command(
    what: Annotated[Path, typer.Argument(help="A study (.toml) or a result (.nc).")],
    at: Annotated[list[str] | None, typer.Option("--at", help="axis=label[,axis=label...]")] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """List every kernel of one design: time per run and microbatch by phase, and the resource that bounds it."""
    found = kernels(_study_or_result(what, settings), labels_of(at, "--at"))
    if as_json:
        violated = [{"name": v.name, "kind": v.kind, "reason": v.reason} for v in found.violated]
        rows = [asdict(kernel) for kernel in found.kernels]
        print(json.dumps({"point": found.point, "violated": violated, "kernels": rows}))
        return
    for line in point_lines(found.point, found.violated, INNER):
        print_line(line, whole=True)
    phases = found.kernels[0].time if found.kernels else ()
    headers = ["kernel", "part", "runs", *(phase.replace("_", " ") for phase in phases)]
    lines = []
    for kernel in found.kernels:
        times = [f"{number(t, 's')} {kernel.bound_by[phase]}" if t else "" for phase, t in kernel.time.items()]
        lines.append([kernel.name, kernel.part, f"{kernel.runs:g}", *times])
    show(text_table(headers, lines))


@app.command("timeline")
def timeline_command(
    what: Annotated[Path, typer.Argument(help="A study (.toml) or a result (.nc).")],
    at: Annotated[list[str] | None, typer.Option("--at", help="axis=label[,axis=label...]")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File for the events (.nc).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Execute the pipeline schedule of one design: when each device computes, waits and hands over."""
    found = timeline(_study_or_result(what, settings), labels_of(at, "--at"))
    print_timeline(found, output, overwrite, as_json)


@app.command("compare")
def compare_command(
    what: Annotated[Path, typer.Argument(help="A study (.toml) or a result (.nc).")],
    a: Annotated[list[str], typer.Option("--a", help="axis=label[,axis=label...] of the first design.")],
    b: Annotated[list[str], typer.Option("--b", help="axis=label[,axis=label...] of the second design.")],
    at: Annotated[list[str] | None, typer.Option("--at", help="axis=label[,axis=label...] of both.")] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Tell why design B is faster than A: the parts of both step times; open axes take the best design of each."""
    found = compare(_study_or_result(what, settings), labels_of(a, "--a"), labels_of(b, "--b"), labels_of(at, "--at"))
    before, after = found.step_time
    if as_json:
        parts = [{"part": n, "a": x, "b": y} for n, x, y in found.parts]
        data = {"a": found.a, "b": found.b, "step_time": [before, after], "speedup": found.speedup, "parts": parts}
        data |= {"tie_margin": found.tie_margin, "tied": found.tied}
        data["intervals"] = [[i.low, i.high] for i in found.intervals]
        print(json.dumps(data, default=_plain))
        return
    for name, point in (("A", found.a), ("B", found.b)):
        print_line(f"{name}  " + ", ".join(f"{axis} = {label}" for axis, label in point.items()))
    rows = [["step time", number(before, "s"), number(after, "s"), _signed(after - before), ""]]
    rows.append(
        ["90 of 100 within", *(f"{number(i.low, 's')} to {number(i.high, 's')}" for i in found.intervals), "", ""]
    )
    for part, x, y in found.parts:
        if max(x, y) > 0:
            share = f"{(y - x) / (after - before):.0%}" if after != before else ""
            rows.append([WORDS[part], number(x, "s"), number(y, "s"), _signed(y - x), share])
    show(text_table(["", "A", "B", "change", "of the change"], rows, right=("A", "B", "change", "of the change")))
    ratio, margin = after / before, 1 + found.tie_margin
    within = f"90 of 100 within {ratio / margin:.3g} to {ratio * margin:.3g}"
    out.print(f"B takes {ratio:.3g} times as long as A, {within} (a step is {found.speedup:.3g} times as fast)")
    if found.tied:
        out.print(f"a tie: differences below {found.tie_margin:.0%} are within the model's error between them")


@app.command()
def formulas(
    graph: Annotated[bool, typer.Option("--graph", help="The dependency graph in Graphviz DOT.")] = False,
    workload: Annotated[str, typer.Option(help="The workload whose formulas to list.")] = "training",
    as_json: Json = False,
) -> None:
    """List every formula: quantity, unit, arguments, source."""
    if graph and as_json:
        raise PerfgridError("--graph prints Graphviz DOT and --json JSON: give one of them")
    if workload not in WORKLOADS:
        raise PerfgridError(f"unknown workload {workload!r}; legal names: {', '.join(WORKLOADS)}")
    registry = Registry.collect(WORKLOADS[workload], INNER)
    rows = [
        {
            "quantity": f.name,
            "kind": f"constraint ({f.kind})" if isinstance(f, Constraint) else "formula",
            "of": f.of or "",
            "unit": f.unit,
            "arguments": list(f.arguments),
            "source": f.source,
            "meaning": f.meaning,
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


def _study_or_result(path: Path, settings: list[str] | None) -> Study | xr.Dataset:
    if path.suffix == ".toml":
        return load_study(path, settings or ())
    if settings:
        raise PerfgridError("--set applies to a study, not to a finished result")
    try:
        return open_result(path)
    except PerfgridError as error:
        if path.suffix == SUFFIX:
            raise
        raise PerfgridError(f"{error}; give a study (.toml) or a result (.nc, .zarr, {SUFFIX})") from error


def _signed(seconds: float) -> str:
    return ("+" if seconds >= 0 else "-") + number(abs(seconds), "s")


def _columns(axis: str, names: list[str], several: bool) -> str:
    """What a quantity reads of an axis: its columns, or how many where they would fill the line."""
    if names == [axis]:
        return axis
    return f"{axis}: {_some(names)}" if several or len(names) <= 3 else f"{axis}: {len(names)} columns"


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


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
        print("perfgrid: not enough memory; ask for fewer outputs or shorter axes, or use --stream", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
