"""Predicted versus measured as a picture: one panel for each kind of record, one colour for each source."""

from __future__ import annotations

from pathlib import Path

from perfgrid.engine.errors import PerfgridError

from .validate import KINDS, Validation

AXES = {"training": "step time [s]", "kernel": "kernel time [s]", "memory": "memory per device [byte]"}


def draw(found: Validation, path: str | Path) -> None:
    """Write the picture; the ending of the path (.png, .pdf, .svg) tells the format.

    Raises PerfgridError without matplotlib, without predictions and for a path that cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PerfgridError("a figure needs matplotlib: pip install 'perfgrid[plot]'") from None
    shown = {k: [p for p in found.predictions if p.record.kind == k and p.predicted is not None] for k in KINDS}
    shown = {kind: rows for kind, rows in shown.items() if rows}
    if not shown:
        raise PerfgridError("there is nothing to draw: no record is predicted")
    figure = Figure(figsize=(5 * len(shown), 5), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for panel, (kind, rows) in zip(panels, shown.items(), strict=True):
        for group in dict.fromkeys(p.record.group for p in rows):
            points = [(p.record.value, p.predicted) for p in rows if p.record.group == group]
            panel.scatter(*zip(*points, strict=True), s=14, alpha=0.7, label=group)
        ends = [min(p.record.value for p in rows), max(p.record.value for p in rows)]
        panel.plot(ends, ends, color="0.3", linewidth=0.8)
        panel.fill_between(ends, [e / 1.2 for e in ends], [e * 1.2 for e in ends], color="0.9", zorder=0)
        panel.set(xscale="log", yscale="log", xlabel=f"measured {AXES[kind]}", ylabel=f"predicted {AXES[kind]}")
        panel.legend(fontsize=7)
    figure.suptitle("Predicted versus measured (band: 20 %)", fontsize=11)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise PerfgridError(f"cannot write {str(path)!r}: {error}") from None
