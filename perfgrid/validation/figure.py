"""Predicted against measured values as a picture, with one panel for each kind of record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from perfgrid.engine.errors import PerfgridError

from .groups import KINDS, Prediction
from .schema import SHARES
from .validate import Validation

AXES = {
    "training": "step time [s]",
    "inference": "latency [s] or rate [1/s]",
    "kernel": "kernel time [s]",
    "collective": "collective time [s] or bus bandwidth [byte/s]",
    "memory": "memory per device [byte]",
}


def draw(found: Validation, path: str | Path) -> None:
    """Write one panel for each kind of record, one colour for each source; the suffix of ``path`` sets the format.

    Raises PerfgridError without Matplotlib, without predictions and for a path that cannot be written.
    """
    _draw(found.predictions, path, lambda p: p.record.group, KINDS)


def draw_shares(found: Validation, path: str | Path) -> None:
    """Write the picture of docs/accuracy.md: training steps and serving, one colour for each share of records."""
    order = list(SHARES)
    rows = sorted(found.predictions, key=lambda p: order.index(p.record.share))
    _draw(rows, path, lambda p: p.record.share, ("training", "inference"), size=4, dots=6)


def _draw(
    rows: Sequence[Prediction],
    path: str | Path,
    label: Callable[[Prediction], str],
    kinds: Sequence[str],
    size: float = 5,
    dots: float = 14,
) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PerfgridError("a figure needs matplotlib: pip install 'perfgrid[plot]'") from None
    by_kind = {kind: [p for p in rows if p.record.kind == kind and p.predicted is not None] for kind in kinds}
    shown = {kind: predicted for kind, predicted in by_kind.items() if predicted}
    if not shown:
        raise PerfgridError("nothing to draw: no record is predicted")
    figure = Figure(figsize=(size * len(shown), size), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for panel, (kind, predicted) in zip(panels, shown.items(), strict=True):
        for name in dict.fromkeys(map(label, predicted)):
            points = [(p.record.value, p.predicted) for p in predicted if label(p) == name]
            panel.scatter(*zip(*points, strict=True), s=dots, alpha=0.6, label=name, linewidths=0)
        ends = [min(p.record.value for p in predicted), max(p.record.value for p in predicted)]
        panel.plot(ends, ends, color="0.3", linewidth=0.8)
        panel.fill_between(ends, [e / 1.2 for e in ends], [e * 1.2 for e in ends], color="0.9", zorder=0)
        panel.set(xscale="log", yscale="log", xlabel=f"measured {AXES[kind]}", ylabel=f"predicted {AXES[kind]}")
        panel.legend(fontsize=7)
    figure.suptitle("Predicted against measured (band: 20 %)", fontsize=11)
    try:
        figure.savefig(path, dpi=96, metadata={"Software": None} if str(path).endswith(".png") else None)
    except (OSError, ValueError) as error:
        raise PerfgridError(f"cannot write {str(path)!r}: {error}") from None
