"""What files store of results beside their values, checked where it is read: nothing behind this door is of wrong type.

Whatever is wrong is one PerfgridError that names the attribute, the place in it and what was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from perfgrid.catalog.naming import NAMES, is_name
from perfgrid.engine.errors import PerfgridError, mistake_text, shown
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE
from perfgrid.study.file import WorkloadName

STUDY_ATTRIBUTE = "perfgrid_study"  # global attribute: what is needed beside the design space to explain a result
STORE_ATTRIBUTE = "perfgrid_store"  # global attribute of a store: which run it belongs to


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError(NAMES)
    return text


def _array(value: Any) -> Any:
    """Numbers and truth values, or texts, in lists of equal lengths: what becomes an array; or its shape and values."""
    if isinstance(value, dict):
        shape, values = value.get("shape"), value.get("values")
        if not (set(value) == {"shape", "values"} and isinstance(shape, list) and isinstance(values, list)):
            raise ValueError("should be a shape and values")
        if not all(isinstance(n, int) and n > 0 for n in shape) or prod(shape) != len(values):
            raise ValueError("should have as many values as its shape says")
        _array(values)
        return value
    found = np.array(value)
    texts = {isinstance(v, str) for v in (value if isinstance(value, list) else [value])}
    if found.dtype.kind not in "biuf" and not (found.dtype.kind == "U" and found.ndim <= 1 and texts == {True}):
        raise ValueError("should be numbers or texts in lists of equal lengths")
    return value


def _axis(axis: Any) -> Any:
    for name, values in {**axis["columns"], **axis["scales"]}.items():
        rows = values["shape"][:1] if isinstance(values, dict) else np.shape(values)[:1]
        if list(rows) != [len(axis["labels"])]:
            raise ValueError(f"{name} should have a row for each of the {len(axis['labels'])} labels")
    if lacking := set(axis["shown"]) - set(axis["columns"]):
        raise ValueError(f"shown should name columns, found {min(lacking)!r}")
    return axis


Name = Annotated[str, AfterValidator(_name)]
Values = Annotated[Any, AfterValidator(_array)]
Count = Annotated[int, Field(ge=1)]
Precision = Literal["float32", "float64"]


class Axis(TypedDict):
    """One axis of a design space."""

    name: Name
    labels: Annotated[list[bool | int | float | str], Field(min_length=1), AfterValidator(_array)]
    columns: dict[str, Values]
    scales: dict[str, Values]
    shown: list[str]


class Space(TypedDict):
    """A design space with the outputs and choices of its result."""

    axes: list[Annotated[Axis, AfterValidator(_axis)]]
    constants: dict[str, Values]
    outputs: list[Name]
    choices: dict[str, str]


class Origin(TypedDict):
    """What is needed beside the design space to explain a result."""

    workload: WorkloadName
    where: str | None
    overrides: dict[str, Any]
    formulas: list[str]
    stated: list[str]
    implied: NotRequired[dict[str, str]]  # what follows from a stated quantity; earlier results do not say
    tables: NotRequired[list[str]]  # of which its axes state entries; results of earlier releases do not say
    sources: dict[str, dict[str, dict[str, str]]]


class Cut(TypedDict):
    """How the grid of a store is cut into tiles."""

    axes: list[Name]
    sizes: list[Count]
    cut: Annotated[int, Field(ge=-1)]
    chunk: Count


class Identity(TypedDict):
    """Which run a store belongs to."""

    study: dict[str, Any]
    dtype: Precision
    small_points: int
    regions: Cut
    variables: list[Name]
    tables: list[Name]
    formulas: str
    versions: dict[str, str]
    seal: str


class About(TypedDict):
    """Attributes of a variable that are read; it may have others."""

    units: NotRequired[str]
    long_name: NotRequired[str]
    ancillary_variables: NotRequired[str]
    flag_values: NotRequired[Annotated[Any, AfterValidator(lambda v: _array(np.asarray(v).tolist()))]]
    constraint: NotRequired[Literal["illegal", "exceeds"]]
    reason: NotRequired[str]


class Global(TypedDict):
    """Global attributes that are read as they are; there may be others."""

    study_axes: NotRequired[str]
    formula_hash: NotRequired[str]
    always_grouped: NotRequired[str]


class Coordinate(TypedDict):
    """A coordinate of a factored result."""

    dims: list[Name]
    attributes: About


class Variable(TypedDict):
    """A variable of a factored result."""

    dims: list[Name]
    dtype: Literal["float32", "float64", "int8"]
    attributes: About


class Stored(TypedDict):
    """A quantity of a factored result: the axes that it varies along, the classes of their rows, its inner axes."""

    axes: list[Name]
    key: list[Annotated[int, Field(ge=0)] | None]
    inner: list[Count]
    called_on: list[Annotated[int, Field(ge=0)]]
    flag: bool
    stored: bool


class Format(TypedDict):
    """What the header of every version of a factored result says first."""

    format: int


class Header(TypedDict):
    """The header of a factored result."""

    perfgrid: str
    dtype: Precision
    sizes: dict[Name, Count]
    attributes: dict[str, str]
    variables: dict[Name, Variable]
    coordinates: dict[Name, Coordinate]
    quantities: dict[Name, Stored]


for kind in (About, Global, Identity):
    kind.__pydantic_config__ = ConfigDict(extra="allow")  # pyright: ignore[reportAttributeAccessIssue]  # set as pydantic documents

ATTRIBUTES: dict[str, Any] = {SPACE_ATTRIBUTE: Space, STUDY_ATTRIBUTE: Origin, STORE_ATTRIBUTE: Identity}


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def checked(what: str, value: Any, kind: Any) -> Any:
    """A value, or what a text (JSON) holds, of a kind. PerfgridError that says what is wrong where in ``what``.

    Text is parsed while it is checked, five times as fast as by `perfgrid.catalog.reading.from_json` and then checked.
    """
    reader = _reader(kind)
    try:
        return reader.validate_json(value) if isinstance(value, str | bytes) else reader.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise PerfgridError(
            f"{what} is damaged: {place + ': ' if place else ''}{mistake_text(first)}, found {shown(first['input'])}"
        ) from error


def stored(attributes: Mapping[Any, Any], name: str) -> Any:
    """What a result stores in a JSON attribute. PerfgridError where it is absent or damaged."""
    if name not in attributes:
        raise PerfgridError(f"this is no perfgrid result: it has no attribute {name}")
    return checked(f"attribute {name}", attributes[name], ATTRIBUTES[name.split(".")[-1]])


def check_attributes(attributes: Mapping[Any, Any], variables: Mapping[Any, Mapping[Any, Any]]) -> None:
    """PerfgridError where attributes of a result, or of one of its variables, are of wrong type."""
    checked("the global attributes", dict(attributes), Global)
    for name in map(str, attributes):
        if name.split(".")[-1] in ATTRIBUTES:
            stored(attributes, name)
    for name, about in variables.items():
        checked(f"variable {name}", dict(about), About)
