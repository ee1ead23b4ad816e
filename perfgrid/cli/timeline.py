"""``perfgrid timeline``: the pipeline of one design over time."""

from __future__ import annotations

from perfgrid.analysis.timeline import COUNTS, timeline
from perfgrid.cli.printing.timeline_chart import print_timeline
from perfgrid.printing.console import print_json
from perfgrid.study.own_formulas import own_formulas

from .arguments import chosen_labels, design_labels, study_or_result
from .options import AsJson, AtDesign, Formulas, Output, Overwrite, Settings, StudyOrResult, Wide
from .saving import Target


def timeline_command(
    what: StudyOrResult,
    at: AtDesign = None,
    output: Output = None,
    overwrite: Overwrite = False,
    settings: Settings = None,
    formulas: Formulas = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Execute the pipeline schedule of one design: when each device computes, waits and sends."""
    target = Target(output, overwrite)
    own = own_formulas(formulas)
    subject = study_or_result(what, settings, own)
    found = timeline(subject, chosen_labels(subject, design_labels(at, "--at"), as_json, COUNTS), own)
    target.save(found)
    if as_json:
        rows = zip(*(variable.values.tolist() for variable in found.data_vars.values()), strict=True)
        events = [dict(zip(found.data_vars, row, strict=True)) for row in rows]
        print_json({**found.attrs, "events": events})
        return
    print_timeline(found)
    target.tell()
