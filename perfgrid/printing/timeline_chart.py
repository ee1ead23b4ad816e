"""The pipeline of one design over time, as a chart of letters; the passes of serving in numbers."""

from __future__ import annotations

import numpy as np
import xarray as xr

from perfgrid.printing.console import out, print_line
from perfgrid.printing.tables import print_table
from perfgrid.text.numbers import number

LETTERS = {"forward": "F", "backward": "B", "input_gradient": "I", "weight_gradient": "W", "wait": "."}
PAIR = "X"  # a forward pass beside a backward pass
COLUMNS = 100  # of the chart
KINDS = ("kernel", "communication", "host", "wait")  # of what passes of serving do


MEMORY = ("memory forward", "memory backward")  # at the largest moment of such passes


def print_timeline(found: xr.Dataset) -> None:
    """The chart, and how long every device computes and waits."""
    whole = found.attrs["pipeline_time"]
    for line in chart(found, min(COLUMNS, out.width - 4)):
        print_line(line)
    out.print("F forward, B backward, I input gradient, W weight gradient, X two side by side, . waiting")
    rows = []
    for device in np.unique(found["device"]):
        own = found.isel(event=(found["device"] == device).values)
        lengths = own["end"] - own["start"]
        exchanges, waits = (float(lengths.where(own["kind"] == kind, 0.0).sum()) for kind in ("exchange", "wait"))
        idle = exchanges + waits
        times = (number(time, "s") if time else "" for time in (whole - idle, exchanges, waits))
        rows.append([str(device), *times, f"{idle / whole:.1%}", *_most_memory(own)])
    heads = ["computes", "exchanges", "waits", "idle", *(MEMORY if "memory" in found else ())]
    print_table(["device", *heads], rows, right=heads)
    closed = found.attrs["closed_form_time"]
    out.print(
        f"{found.attrs['schedule']}: {number(whole, 's')}; by the formulas {number(closed, 's')} (gradients, optimizer "
        "and stragglers come on top in step_time)"
    )


def _most_memory(own: xr.Dataset) -> list[str]:
    """The most memory that a device needs in its forward and in its backward passes; nothing where none is known."""
    if "memory" not in own:
        return []
    forward = (own["kind"] == "forward").values
    backward = own["kind"].isin(("backward", "input_gradient", "weight_gradient")).values
    return [number(float(own["memory"].values[which].max()), "byte") for which in (forward, backward)]


def print_passes(found: xr.Dataset) -> None:
    """How long the passes of serving compute, communicate and wait."""
    lengths = found["end"] - found["start"]
    rows = []
    for which in dict.fromkeys(found["pass"].values.tolist()):
        own = (found["pass"] == which).values
        kinds = {kind: float(lengths[own & (found["kind"] == kind).values].sum()) for kind in KINDS}
        whole = sum(kinds.values())
        rows.append([which, *(number(time, "s") if time else "" for time in kinds.values()), number(whole, "s")])
    print_table(["pass", *KINDS, "in all"], rows, right=(*KINDS, "in all"))
    out.print("kernels: perfgrid kernels; the order of their runs, layer by layer: -o FILE.json, for Perfetto")


def chart(found: xr.Dataset, columns: int = COLUMNS) -> list[str]:
    """One line per device: what it does in the middle of each of ``columns`` equal parts of the time."""
    moments = (np.arange(columns) + 0.5) / columns * found.attrs["pipeline_time"]
    lines = []
    for device in np.unique(found["device"]):
        own = found.isel(event=((found["device"] == device) & found["kind"].isin([*LETTERS])).values)
        line = np.full(columns, LETTERS["wait"])
        for start, end, kind in zip(own["start"].values, own["end"].values, own["kind"].values, strict=True):
            inside = (moments >= start) & (moments < end)
            line[inside] = np.where(line[inside] == LETTERS["wait"], LETTERS[str(kind)], PAIR)
        lines.append(f"{device:>3} {''.join(line)}")
    return lines
