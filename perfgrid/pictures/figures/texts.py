"""Texts beside marks and along axes, placed where they cover neither marks nor each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from perfgrid.engine.errors import shortened
from perfgrid.pictures.picture import Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONG = 32  # letters of a name along an axis or in a legend
POINTS = 72.0  # in an inch
LETTER = 4.7  # points: the width of a letter of a tick
SMALL, NARROW = 7.0, 3.9  # points: the size of a text beside a mark, and the width of its letters
PLOT = 0.72  # of the width of a figure, left by legend and labels
AROUND = (  # places of a text: points to the right and up, and where it begins
    (0, 5, "center", "bottom"),
    (4, 2, "left", "bottom"),
    (0, -5, "center", "top"),
    (-4, -2, "right", "top"),
    (5, 0, "left", "center"),
    (-5, 0, "right", "center"),
    (0, 15, "center", "bottom"),
    (0, -15, "center", "top"),
)
BEGINS = {"left": 0.0, "center": 0.5, "right": 1.0, "bottom": 0.0, "top": 1.0}
Box = tuple[float, float, float, float]


def size_of(ax: Axes) -> tuple[float, float]:
    """About the width and the height of a panel in points, before it is laid out."""
    spec = ax.get_subplotspec()
    rows, columns = spec.get_gridspec().get_geometry() if spec is not None else (1, 1)
    width, height = ax.get_figure(root=True).get_size_inches()  # pyright: ignore[reportOptionalMemberAccess]
    return width * POINTS * PLOT / columns, height * POINTS * PLOT / rows


def short(text: str, most: int = LONG) -> str:
    """A name that leaves room for the marks: the middle of a long one is left out."""
    return shortened(text, most)


def overlap(ax: Axes, names: Sequence[str]) -> bool:
    """Whether names along x would touch each other."""
    wide = max((len(a) + len(b) for a, b in pairwise(names)), default=0) / 2 + 1.5
    return wide * LETTER > size_of(ax)[0] / len(names)


def write_beside(ax: Axes, panel: Panel) -> None:
    """The texts of lines and points, once the limits of the axes are known."""
    places = [place for s in panel.series if s.shape == "points" for place in _placed(ax, s.x, s.y)]
    for series in (s for s in panel.series if s.shape == "line" and any(s.texts)):
        places += _along(list(_placed(ax, series.x, series.y)))
    taken: list[Box] = [(x - 2, y - 2, x + 2, y + 2) for x, y in places]
    for series in (s for s in panel.series if s.shape in ("line", "points")):
        for (x, y), text, at in zip(
            _placed(ax, series.x, series.y), series.texts, zip(series.x, series.y, strict=True), strict=False
        ):
            if text:
                right, up, across, along = min(AROUND, key=lambda how: _covered(_box(x, y, text, how), taken, ax))
                taken.append(_box(x, y, text, (right, up, across, along)))
                look = {"ha": across, "va": along, "fontsize": SMALL, "color": "#222222"}
                ax.annotate(text, at, (right, up), textcoords="offset points", **look)


def _placed(ax: Axes, x: Sequence[float], y: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Where marks are, in points from the lower left corner."""
    wide, high = size_of(ax)
    shares = ax.transLimits.transform(ax.transScale.transform(np.column_stack([x, y])))
    yield from ((float(a * wide), float(b * high)) for a, b in shares)


def _along(places: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Places along the segments of a line."""
    for (x, y), (right, up) in pairwise(places):
        yield from ((x + (right - x) * share, y + (up - y) * share) for share in np.linspace(0, 1, 12))


def _box(x: float, y: float, text: str, how: tuple[float, float, str, str]) -> Box:
    right, up, across, along = how
    width = NARROW * len(text)
    left, low = x + right - BEGINS[across] * width, y + up - BEGINS.get(along, 0.5) * SMALL
    return left, low, left + width, low + SMALL


def _covered(box: Box, taken: Sequence[Box], ax: Axes) -> float:
    """How many boxes a box meets, and how far it sticks out of the panel."""
    meets = sum(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken)
    return meets + 3 * (box[0] < 0) + 3 * (box[2] > size_of(ax)[0])
