"""``perfgrid timeline``: the passes of one design's pipeline as a chart of letters, as JSON or as a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import xarray as xr

from perfgrid.analysis.text import number
from perfgrid.cli.printing.console import out, print_line, show, text_table
from perfgrid.results.writing import check_output, save

LETTERS = {"forward": "F", "backward": "B", "input_gradient": "I", "weight_gradient": "W", "wait": "."}
PAIR = "X"  # a forward pass beside a backward pass
COLUMNS = 100  # of the chart


def print_timeline(found: xr.Dataset, output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Show a timeline and write it to ``output`` where one is given."""
    if output is not None:
        check_output(output, overwrite)
        save(found, output, overwrite)
    if as_json:
        rows = zip(*(variable.values.tolist() for variable in found.data_vars.values()), strict=True)
        events = [dict(zip(found.data_vars, row, strict=True)) for row in rows]
        print(json.dumps({**found.attrs, "events": events}))
        return
    whole = found.attrs["pipeline_time"]
    for line in chart(found):
        print_line(line)
    out.print("F forward, B backward, I input gradient, W weight gradient, X two side by side, . waiting")
    rows = []
    for device in np.unique(found["device"]):
        own = found.isel(event=(found["device"] == device).values)
        waits = own.isel(event=(own["kind"] == "wait").values)
        waited = float((waits["end"] - waits["start"]).sum())
        rows.append([str(device), number(whole - waited, "s"), number(waited, "s"), f"{waited / whole:.1%}"])
    show(text_table(["device", "computes", "waits", "share"], rows, right=("computes", "waits", "share")))
    closed = found.attrs["closed_form_time"]
    out.print(
        f"{found.attrs['schedule']}: {number(whole, 's')}; by the formulas {number(closed, 's')} (gradients, optimizer "
        "and stragglers come on top in step_time)"
    )
    if output is not None:
        out.print(f"saved {output}")


def chart(found: xr.Dataset, columns: int = COLUMNS) -> list[str]:
    """One line per device: what it does in the middle of each of ``columns`` equal parts of the time."""
    moments = (np.arange(columns) + 0.5) / columns * found.attrs["pipeline_time"]
    lines = []
    for device in np.unique(found["device"]):
        own = found.isel(event=((found["device"] == device) & (found["kind"] != "handover")).values)
        line = np.full(columns, LETTERS["wait"])
        for start, end, kind in zip(own["start"].values, own["end"].values, own["kind"].values, strict=True):
            inside = (moments >= start) & (moments < end)
            line[inside] = np.where(line[inside] == LETTERS["wait"], LETTERS[str(kind)], PAIR)
        lines.append(f"{device:>3} {''.join(line)}")
    return lines
