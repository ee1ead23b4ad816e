"""A picture before it is drawn: titles, axes, marks and their numbers.

Views make one, renderers draw what it holds and compute nothing. Numbers are in the unit that their axis names; along
an axis of categories a number is a position among their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

from perfgrid.engine.errors import printable

Shape = Literal["line", "points", "bars", "limits"]
Scale = Literal["linear", "log", "categories"]


@dataclass(frozen=True)
class Axis:
    """An axis: what it shows, in which unit, and how; the names along one of categories."""

    label: str
    unit: str = ""  # as it is printed, such as GiB; empty for pure numbers
    scale: Scale = "linear"
    categories: tuple[str, ...] = ()
    quantity: str = ""  # the variable or axis of the study behind it; empty where there is no single one
    size: float = 1.0  # of the unit, in that of the quantity: a number of the picture times it is that of the dataset
    ticks: tuple[tuple[float, str], ...] = ()  # numbers that are marked, and as what; none: as the renderer likes


@dataclass(frozen=True)
class Series:
    """Marks of one name and colour: at ``x`` and ``y``, one entry of each tuple per mark.

    Bars lie along the axis that has no categories, from ``base`` (zero where it is empty) to their number; limits are
    short lines across them, such as the capacity of a memory. ``low`` and
    ``high`` are the ends of the interval of that number, of lines and points of ``y``. A mark that is not there has NaN
    and, where a constraint forbids it, a reason. An empty tuple says nothing of any mark.
    """

    name: str
    shape: Shape
    x: tuple[float, ...]
    y: tuple[float, ...]
    base: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    width: float = 0.8  # of bars and limits, across
    labels: tuple[str, ...] = ()  # of a mark, for a tooltip: its design and its number
    reasons: tuple[str, ...] = ()  # why a mark is infeasible; empty texts for feasible ones
    texts: tuple[str, ...] = ()  # written beside a mark


@dataclass(frozen=True)
class Cells:
    """The cells of a heat map, a row for each category of ``y``, a column for each of ``x``."""

    value: Axis  # of the numbers
    numbers: tuple[tuple[float, ...], ...]  # NaN where there is no feasible design
    texts: tuple[tuple[str, ...], ...]  # written in a cell: its number, or a reason in a word
    labels: tuple[tuple[str, ...], ...]
    reasons: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Rule:
    """A straight line at a number, such as the capacity of a memory."""

    name: str
    along: Literal["x", "y"]  # the axis that has the number
    at: float


@dataclass(frozen=True)
class Panel:
    """One pair of axes with its marks."""

    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()
    cells: Cells | None = None
    rules: tuple[Rule, ...] = ()
    title: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture: panels side by side, what to see in them, and what they rest on.

    Its texts hold no control characters, whatever it is made of: labels come from files of strangers, and an SVG with
    such a character is no XML.
    """

    name: str  # of the view
    kind: str
    title: str
    panels: tuple[Panel, ...]
    see: str = ""  # a sentence
    caption: tuple[str, ...] = ()  # lines: what was chosen, assumptions, sources
    legend: str = ""  # what the names of series are labels of, such as device

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _printable(getattr(self, field.name)))

    def names(self) -> dict[str, int]:
        """The names of all series with the number of their colour, alike in every panel."""
        return {name: i for i, name in enumerate(dict.fromkeys(s.name for s in self.every_series()))}

    def every_series(self) -> Iterator[Series]:
        """The series of all panels."""
        return (series for panel in self.panels for series in panel.series)


def _printable(part: Any) -> Any:
    """A part of a picture whose texts hold no control characters."""
    if isinstance(part, str):
        return printable(part)
    if isinstance(part, tuple):
        return part if part and isinstance(part[0], float) else tuple(map(_printable, part))
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{field.name: _printable(getattr(part, field.name)) for field in fields(part)})
    return part
