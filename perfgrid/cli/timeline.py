"""``perfgrid timeline``: the pipeline of one design over time."""

from __future__ import annotations

import json

from perfgrid.analysis.text import labels_of
from perfgrid.analysis.timeline import timeline
from perfgrid.cli.printing.console import out
from perfgrid.cli.printing.timeline_chart import print_timeline
from perfgrid.results.files import check_output
from perfgrid.results.save import save

from .arguments import study_or_result
from .options import AsJson, At, Output, Overwrite, Settings, StudyOrResult


def timeline_command(
    what: StudyOrResult,
    at: At = None,
    output: Output = None,
    overwrite: Overwrite = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Execute the pipeline schedule of one design: when each device computes, waits and sends."""
    found = timeline(study_or_result(what, settings), labels_of(at, "--at"))
    if output is not None:
        check_output(output, overwrite)
        save(found, output, overwrite)
    if as_json:
        rows = zip(*(variable.values.tolist() for variable in found.data_vars.values()), strict=True)
        events = [dict(zip(found.data_vars, row, strict=True)) for row in rows]
        print(json.dumps({**found.attrs, "events": events}))
        return
    print_timeline(found)
    if output is not None:
        out.print(f"saved {output}")
