"""``perfgrid kernels``: the kernels of one design."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from perfgrid.analysis.explanation.text import point_lines
from perfgrid.analysis.iteration_times import IterationTimes
from perfgrid.analysis.kernel_table import kernels
from perfgrid.formulas import INNER
from perfgrid.printing.console import out, print_json
from perfgrid.printing.tables import print_table
from perfgrid.study.own_formulas import own_formulas
from perfgrid.text.numbers import column, header

from .arguments import chosen_labels, design_labels, study_or_result
from .options import AsJson, AtDesign, Formulas, Settings, StudyOrResult, Wide


def kernels_command(
    what: StudyOrResult,
    at: AtDesign = None,
    settings: Settings = None,
    formulas: Formulas = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """List every kernel of one design with the resource that bounds it: time per run and microbatch, by phase."""
    own = own_formulas(formulas)
    subject = study_or_result(what, settings, own)
    found = kernels(subject, chosen_labels(subject, design_labels(at, "--at"), as_json), own)
    if as_json:
        violated = [{"name": v.name, "kind": v.kind, "reason": v.reason} for v in found.violated]
        rows = [asdict(kernel) for kernel in found.kernels]
        iterations = {} if found.iterations is None else {"iterations": _json(found.iterations)}
        print_json({"point": found.point, "violated": violated, "kernels": rows} | iterations)
        return
    for line in point_lines(found.point, found.violated, INNER):
        out.print(line, indent="  ")
    phases = found.kernels[0].time if found.kernels else ()
    columns = {
        "kernel": [kernel.name for kernel in found.kernels],
        "part": [kernel.part for kernel in found.kernels],
        "runs": [f"{kernel.runs:g}" for kernel in found.kernels],
    }
    for phase in phases:
        unit, times = column([kernel.time[phase] or "" for kernel in found.kernels], "s")
        width = max(map(len, times))
        bounds = [kernel.bound_by[phase] if kernel.time[phase] else "" for kernel in found.kernels]
        columns[header(phase, unit)] = [f"{t:>{width}} {b}" for t, b in zip(times, bounds, strict=True)]
    print_table(columns, list(zip(*columns.values(), strict=True)), drop=("part", "runs"))
    if found.iterations is not None:
        _print_iterations(found.iterations)


def _json(found: IterationTimes) -> dict[str, Any]:
    """Times of iterations as plain values, null where there is none."""
    times = [[time if why else None for time, why in zip(*row, strict=True)] for row in _rows(found)]
    bounds = [[why or None for why in row] for row in found.bound_by]
    return {"decoding": found.decoding, "prompting": found.prompting, "time": times, "bound_by": bounds}


def _rows(found: IterationTimes) -> list[tuple[tuple[float, ...], tuple[str, ...]]]:
    return list(zip(found.time, found.bound_by, strict=True))


def _print_iterations(found: IterationTimes) -> None:
    """The table T(b, c): a row for each number of sequences, a column for each number of prompt tokens."""
    every = [time if why else "" for row in _rows(found) for time, why in zip(*row, strict=True)]
    unit, texts = column(every, "s")
    width, shown = max(map(len, texts)), iter(texts)
    out.print()
    out.print(
        f"{header('an iteration', unit)}: sequences that decode beside prompt tokens, and what most of it waits for"
    )
    rows = [
        (f"{b}", *(f"{next(shown):>{width}} {why}" for why in bounds))
        for b, bounds in zip(found.decoding, found.bound_by, strict=True)
    ]
    names = [f"{tokens} tokens" for tokens in found.prompting]
    shown_rows = [row for row, bounds in zip(rows, found.bound_by, strict=True) if any(bounds)]
    print_table(["sequences", *names], shown_rows, keys=1)
    if not found.mixed and any(found.decoding):
        out.print("prompts have iterations of their own (prefill_first)")
