"""``perfgrid timeline``: what the devices of one design do over time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from perfgrid.analysis.chrome_trace import chrome_trace, event_rows
from perfgrid.analysis.timeline import searched_quantities, timeline
from perfgrid.printing.console import print_json
from perfgrid.printing.timeline_chart import print_passes, print_timeline
from perfgrid.study.own_formulas import own_formulas

from .arguments import chosen_labels, design_labels, study_or_result
from .options import AsJson, AtDesign, Formulas, Overwrite, Settings, StudyOrResult, Wide
from .saving import Target

TRACE = ".json"
TraceOrResult = Annotated[
    Path | None, Option("--output", "-o", help="Result file (.nc), or a trace for Perfetto (.json).")
]


def timeline_command(
    what: StudyOrResult,
    at: AtDesign = None,
    output: TraceOrResult = None,
    overwrite: Overwrite = False,
    settings: Settings = None,
    formulas: Formulas = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Execute the pipeline schedule of one design: when each device computes, waits and sends.

    Of serving: the kernels of a prefill pass and a decoding step.
    """
    traced = output is not None and output.suffix == TRACE
    target = Target(output, overwrite, TRACE if traced else ".nc")
    own = own_formulas(formulas)
    subject = study_or_result(what, settings, own)
    found = timeline(
        subject, chosen_labels(subject, design_labels(at, "--at"), as_json, searched_quantities(subject)), own
    )
    if traced:
        target.save_json(chrome_trace(found))
    else:
        target.save(found)
    if as_json:
        others = {str(name): v.values.tolist() for name, v in found.data_vars.items() if v.dims != ("event",)}
        print_json({**found.attrs, **others, "events": list(event_rows(found))})
        return
    (print_passes if "pass" in found else print_timeline)(found)
    target.tell()
