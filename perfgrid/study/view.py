"""The ``[[view]]`` tables of a study: what its pictures show."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal[
    "lines",
    "scatter",
    "bars",
    "heatmap",
    "frontier",
    "breakdown",
    "memory",
    "roofline",
    "waterfall",
    "tornado",
    "timeline",
]
ScaleName = Literal["linear", "log"]


class Published(BaseModel):
    """Published numbers beside those computed: a value of the output at some labels, as number or text with a unit."""

    model_config = ConfigDict(extra="forbid")

    name: str
    values: dict[str, float | str]
    source: str | list[str]  # keys of the bibliography


class View(BaseModel):
    """One of the ``[[view]]`` of a study: a kind of picture, and what it shows along which axis.

    A mark is the best design at its place: along axes that nothing here names, by the objective (that of ``[best]``).
    """

    model_config = ConfigDict(extra="forbid")

    name: str = ""  # for --view; that of the kind where none is stated
    title: str = ""  # that of the study where none is stated
    see: str = ""  # what to see, in a sentence
    kind: Kind = "lines"
    x: str | None = None  # axis, coordinate (devices, tp) or output
    y: str | list[str] | None = None  # outputs; of heat maps the axis of the rows
    value: str | None = None  # output in the cells of a heat map
    colour: str | None = None  # axis or coordinate with a series for each label
    facets: str | None = None  # axis or coordinate with a panel for each label
    over: str | list[str] | None = None  # axes to choose along (all others)
    minimize: str | list[str] | None = None  # of a frontier several
    maximize: str | list[str] | None = None
    at: dict[str, Any] = Field(default_factory=dict)  # labels of axes and coordinates; a list keeps several
    a: dict[str, Any] = Field(default_factory=dict)  # labels of the first and
    b: dict[str, Any] = Field(default_factory=dict)  # second design of a waterfall
    published: list[Published] = Field(default_factory=list)  # of a waterfall along x: panels beside the computed ones
    units: dict[str, str] = Field(default_factory=dict)  # of quantities, such as GiB
    x_scale: ScaleName | None = None
    y_scale: ScaleName | None = None
    count: int = Field(default=12, ge=1, strict=True)  # of the largest parts, at most

    @property
    def shown(self) -> list[str]:
        """The outputs or axes along y."""
        return [self.y] if isinstance(self.y, str) else list(self.y or ())
