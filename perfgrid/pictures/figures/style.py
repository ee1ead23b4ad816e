"""Colours, marks and numbers of Matplotlib figures: told apart by the colour-blind, and in print."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perfgrid.pictures.picture import Axis
from perfgrid.text.numbers import label_text

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#B5A400")  # Okabe and Ito
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "", "++")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
GREY, PALE = "#8a8a8a", "#e6e6e6"  # of what is infeasible
SETTINGS: Mapping[str, Any] = {
    "text.parse_math": False,  # a label such as $x$ is a name
    "text.usetex": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "perfgrid",  # the same picture has the same bytes
    "pdf.fonttype": 42,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "hatch.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
}


def style(number: int) -> dict[str, Any]:
    """Colour, marker, hatch and dashes of a name by its number."""
    round_, place = divmod(number, len(COLOURS))
    return {
        "color": COLOURS[place],
        "marker": MARKERS[(place + round_) % len(MARKERS)],
        "hatch": HATCHES[(place + 3 * round_) % len(HATCHES)],
        "dashes": DASHES[(place // 2 + round_) % len(DASHES)] if number else "-",
    }


def axis_text(axis: Axis) -> str:
    """The label of an axis with its unit."""
    return f"{axis.label} [{axis.unit}]" if axis.unit and axis.label else axis.label or axis.unit


def tick_text(value: float, _: Any = None) -> str:
    """A number at an axis, without an exponent where it has few digits."""
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return label_text(float(f"{value:.6g}"))


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers along a logarithmic axis: few, and at least two."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, (last - first) // 7)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8), tuple(1 + i / 5 for i in range(45))):
        powers = range(first, last + 1, step if len(digits) == 1 else 1)
        found = [d * 10.0**e for e in powers for d in digits if low <= d * 10.0**e <= high]
        if len(found) >= 4 or (len(digits) == 1 and len(found) >= 3):
            return found
    return found
