"""Commands about one design: where its numbers come from, its kernels, its schedule, why it beats another."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
import xarray as xr

from perfgrid.analysis.compare import compare
from perfgrid.analysis.explain import explain
from perfgrid.analysis.kernel_table import kernels
from perfgrid.analysis.limiting import WORDS
from perfgrid.analysis.text import labels_of, number, plain, point_lines
from perfgrid.analysis.timeline import timeline
from perfgrid.cli.printing.console import err, out, print_line, show, text_table
from perfgrid.cli.printing.derivation import DEPTH, print_derivation
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas import INNER
from perfgrid.results.factored import SUFFIX
from perfgrid.results.opening import open_result
from perfgrid.results.provenance import formulas_changed
from perfgrid.study.study import Study, load_study

from .options import AsJson, Settings
from .timeline import print_timeline


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
        writer = subject.attrs.get("source", "another version")
        err.print(f"note: {what} was written by {writer} with other formulas; the derivation uses those installed")
    print_derivation(found, INNER, depth)


def kernels_command(
    what: Annotated[Path, typer.Argument(help="A study (.toml) or a result (.nc).")],
    at: Annotated[list[str] | None, typer.Option("--at", help="axis=label[,axis=label...]")] = None,
    settings: Settings = None,
    as_json: AsJson = False,
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


def timeline_command(
    what: Annotated[Path, typer.Argument(help="A study (.toml) or a result (.nc).")],
    at: Annotated[list[str] | None, typer.Option("--at", help="axis=label[,axis=label...]")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File for the events (.nc).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Execute the pipeline schedule of one design: when each device computes, waits and hands over."""
    found = timeline(_study_or_result(what, settings), labels_of(at, "--at"))
    print_timeline(found, output, overwrite, as_json)


def compare_command(
    what: Annotated[Path, typer.Argument(help="A study (.toml) or a result (.nc).")],
    a: Annotated[list[str], typer.Option("--a", help="axis=label[,axis=label...] of the first design.")],
    b: Annotated[list[str], typer.Option("--b", help="axis=label[,axis=label...] of the second design.")],
    at: Annotated[list[str] | None, typer.Option("--at", help="axis=label[,axis=label...] of both.")] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Tell why design B is faster than A: the parts of both step times; open axes take the best design of each."""
    found = compare(_study_or_result(what, settings), labels_of(a, "--a"), labels_of(b, "--b"), labels_of(at, "--at"))
    before, after = found.step_time
    if as_json:
        parts = [{"part": n, "a": x, "b": y} for n, x, y in found.parts]
        data = {"a": found.a, "b": found.b, "step_time": [before, after], "speedup": found.speedup, "parts": parts}
        data |= {"tie_margin": found.tie_margin, "tied": found.tied}
        data["intervals"] = [[i.low, i.high] for i in found.intervals]
        print(json.dumps(data, default=plain))
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
    if before == after and all(x == y for _, x, y in found.parts):
        out.print("A and B take the same: what differs between them changes no part of a step")
        return
    ratio, margin = after / before, 1 + found.tie_margin
    within = f"90 of 100 within {ratio / margin:.3g} to {ratio * margin:.3g}"
    out.print(f"B takes {ratio:.3g} times as long as A, {within} (a step is {found.speedup:.3g} times as fast)")
    if found.tied:
        out.print(f"a tie: differences below {found.tie_margin:.0%} are within the model's error between them")


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
