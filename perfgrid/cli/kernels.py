"""``perfgrid kernels``: the kernels of one design."""

from __future__ import annotations

from dataclasses import asdict

from perfgrid.analysis.kernel_table import kernels
from perfgrid.analysis.number_text import number
from perfgrid.analysis.text import labels_of, point_lines
from perfgrid.cli.printing.console import print_json, print_line
from perfgrid.cli.printing.tables import print_table
from perfgrid.formulas import INNER

from .arguments import study_or_result
from .options import AsJson, At, Settings, StudyOrResult, Wide


def kernels_command(
    what: StudyOrResult, at: At = None, settings: Settings = None, wide: Wide = False, as_json: AsJson = False
) -> None:
    """List every kernel of one design with the resource that bounds it: time per run and microbatch, by phase."""
    found = kernels(study_or_result(what, settings), labels_of(at, "--at"))
    if as_json:
        violated = [{"name": v.name, "kind": v.kind, "reason": v.reason} for v in found.violated]
        rows = [asdict(kernel) for kernel in found.kernels]
        print_json({"point": found.point, "violated": violated, "kernels": rows})
        return
    for line in point_lines(found.point, found.violated, INNER):
        print_line(line, whole=True)
    phases = found.kernels[0].time if found.kernels else ()
    headers = ["kernel", "part", "runs", *(phase.replace("_", " ") for phase in phases)]
    lines = []
    for kernel in found.kernels:
        times = [f"{number(t, 's')} {kernel.bound_by[phase]}" if t else "" for phase, t in kernel.time.items()]
        lines.append([kernel.name, kernel.part, f"{kernel.runs:g}", *times])
    print_table(headers, lines)
