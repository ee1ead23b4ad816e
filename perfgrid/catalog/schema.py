"""What a catalog holds: variables with unit and bounds, entries with sources, and the conversion of stated values."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, model_validator

from perfgrid.engine.errors import PerfgridError, nearest

from .names import resolved
from .units import in_unit

Value = float | bool | str | dict[str, float]
Kind = Literal[
    "model", "device", "topology", "software", "node", "package", "memory", "link", "circuit", "budget", "price"
]  # fmt: skip

KINDS: tuple[Kind, ...] = get_args(Kind)
BLOCKS = (
    "moe",
    "mla",
    "mixer",
    "indexer",
    "published",
)  # groups of model quantities that a file states as a table of their own
AXIS_LABELS = {  # of the inner axes along which given quantities are vectors
    "load": tuple(f"node_{i}" for i in range(1, 17)),  # batches at which serving is tabulated
    "vendor": ("nvidia", "amd", "google", "intel"),
    "link_family": ("nvlink", "infinity_fabric", "ici", "pcie", "ethernet"),
    "tier": ("scale_up", "scale_out"),
    "side": ("first", "second", "third", "fourth"),
    "protocol": ("ll", "ll128", "simple"),
    "node_count": ("one", "two", "more"),
    "phase": ("forward", "input_gradient", "weight_gradient"),
    "pipeline_schedule": ("zb_h1", "zb_v", "dualpipe", "dualpipe_v"),
    "component": (
        "matrix", "vector", "registers", "shared_memory", "l2", "memory", "scale_up", "scale_out", "rest",
    ),
}  # fmt: skip
PLAUSIBLE = {  # what no stated number exceeds, far beyond any machine: products of such numbers stay finite
    "1": (1e-9, 1e18),
    "s": (1e-15, 1e9),
    "byte": (1e-3, 1e18),
    "byte/s": (1e3, 1e18),
    "FLOP/s": (1e3, 1e24),
    "W": (1e-3, 1e9),
    "USD": (1e-9, 1e15),
    "m^2": (1e-18, 1e3),
    "J/byte": (1e-18, 1e-3),
    "J": (1e-18, 1e15),
}
LARGEST_COUNT = 1e9  # of anything that is counted
OVERRIDE = "override"  # the source key of a value that the user sets
CONFIDENCES = ("measured", "datasheet", "calibrated", "estimate")


class Variable(BaseModel):
    """A given quantity: its one legal name, unit, meaning, bounds and who states it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    unit: str
    meaning: str
    of: Kind | Literal["io_node", "parallelism", "workload", "computed"]
    kind: Literal["number", "integer", "flag", "label", "code"] = "number"
    codes: tuple[str, ...] = ()  # of a code: the words that stand for 0, 1, ...
    axis: str | None = None
    block: str | None = None  # the table of a model file that states it; absent where the block is
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    optional: bool = False
    default: bool | float | str | dict[str, str] | dict[str, float] | None = (
        None  # of a code along an axis: a word for each label
    )
    differentiable: bool = False
    total: float | None = None  # of shares along an axis: what they add up to
    length: bool = False  # a length in tokens: 32k is 32,768
    reader: str = ""  # what reads it where no formula does: it counts as read
    over: str = (
        ""  # "tier_size_limit.scale_up": what a fabric states of the same, which yields where a user states this
    )

    @model_validator(mode="after")
    def _consistent(self) -> Variable:
        if self.axis is not None and self.axis not in AXIS_LABELS:
            raise ValueError(f"axis {self.axis!r} is unknown{nearest(self.axis, AXIS_LABELS)}")
        if self.block is not None and self.block not in BLOCKS:
            raise ValueError(f"block {self.block!r} is unknown{nearest(self.block, BLOCKS)}")
        if self.minimum is not None and self.above is not None:
            raise ValueError("states both minimum and above")
        if (self.optional or self.block) and self.default is None:
            raise ValueError("may be absent and needs a default")
        if (self.kind == "code") != bool(self.codes):
            raise ValueError("a code, and nothing else, lists its codes")
        words = self.default.values() if isinstance(self.default, dict) else [self.default]
        if self.kind == "code" and self.default is not None and not set(words) <= set(self.codes):
            raise ValueError(f"the default {self.default!r} is none of its codes")
        return self

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its inner axis; empty for a single number."""
        return AXIS_LABELS[self.axis] if self.axis else ()

    def default_at(self, label: str = "") -> float:
        """The default as a number, at a label of its inner axis."""
        found = self.default[label] if isinstance(self.default, dict) else self.default
        return float(self.codes.index(found)) if isinstance(found, str) else float(found or 0)

    @property
    def default_value(self) -> Value | None:
        """The default as a value of an entry: a code as a number, along an inner axis by label."""
        if self.default is None or (self.kind != "code" and self.axis is None):
            return self.default if not isinstance(self.default, dict) else None
        return {label: self.default_at(label) for label in self.labels} if self.axis else self.default_at()

    def word(self, value: Any) -> Any:
        """A code as its word, by label of its inner axis; any other value as it is."""
        if self.kind != "code":
            return value
        if isinstance(value, Mapping):
            return {label: self.word(v) for label, v in value.items()}
        return self.codes[int(value)]

    @property
    def bounds(self) -> str:
        """Its legal range in words."""
        low = f">= {self.minimum:g}" if self.minimum is not None else f"> {self.above or 0:g}"
        return low if self.maximum is None else f"{low} and <= {self.maximum:g}"


@dataclass(frozen=True)
class Detail:
    """What else an entry says of one value: its range, year, how it is known, a remark, and what it goes with.

    ``calibration``: the entries that share a calibrated value, joined by +. ``correlation``: of its logarithm with
    those of other values of the entry, of constants calibrated together.
    """

    low: float | None = None
    high: float | None = None
    year: int | None = None
    confidence: str | None = None
    note: str | None = None
    calibration: str | None = None
    correlation: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One model, device, topology or software stack: values in SI, each with the bibliography key of its source.

    ``stated``: the quantities that a user states of it, with the catalog file, or `OVERRIDE` for a single value.
    ``base``: the entry that it extends.
    """

    name: str
    kind: Kind
    title: str
    values: Mapping[str, Value]
    sources: Mapping[str, str]
    details: Mapping[str, Detail] = field(default_factory=dict)
    stated: Mapping[str, str] = field(default_factory=dict, compare=False)
    base: str = field(default="", compare=False)

    def with_value(self, quantity: str, value: Value) -> Entry:
        """A copy with one value that the user sets; what was said of the old value is dropped."""
        details = {q: d for q, d in self.details.items() if q != quantity}
        return replace(
            self,
            values={**self.values, quantity: value},
            sources={**self.sources, quantity: OVERRIDE},
            details=details,
            stated={**self.stated, quantity: OVERRIDE},
        )


def is_finite(value: Any) -> bool:
    """Whether a number is one that floating point can hold: whole numbers of any size are compared exactly."""
    return abs(value) <= sys.float_info.max


def convert(variable: Variable, value: Any, where: str) -> Value:
    """A stated value in SI: its type, unit and bounds checked. ``where`` names file and key in the error.

    Numbers may be text with a unit, a code is one of its words; along an inner axis a table of labels is expected.
    Raises PerfgridError.
    """
    if variable.axis is not None:
        return _along_axis(variable, value, where)
    if variable.kind == "flag":
        if not isinstance(value, bool):
            raise PerfgridError(f"{where} must be true or false, found {value!r}")
        return value
    if variable.kind == "label":
        if not isinstance(value, str) or not value:
            raise PerfgridError(f"{where} must be a name in quotes, found {value!r}")
        return value
    return _number(variable, value, where)


def converted(variable: Variable, value: Any, place: str) -> float:
    """A value with a unit as a number in SI units. PerfgridError for anything else."""
    found = convert(variable, value, place)
    if not isinstance(found, float):
        raise PerfgridError(f"{place}: {variable.name} is not a number")
    return found


def _along_axis(variable: Variable, value: Any, where: str) -> dict[str, float]:
    labels = variable.labels
    if not isinstance(value, Mapping):
        raise PerfgridError(
            f"{where} must be a table with the labels {', '.join(labels)} of axis {variable.axis!r}, found {value!r}"
        )
    for label in value:
        if label not in labels:
            raise PerfgridError(f"{where} has the unknown label {label!r}{nearest(label, labels)}")
    lacking = [label for label in labels if label not in value]
    if lacking and (variable.default is None or not value):
        raise PerfgridError(f"{where} lacks the label {', '.join(lacking)} of axis {variable.axis!r}")
    stated = {label: _number(variable, v, f"{where}.{label}") for label, v in value.items()}
    return {label: stated[label] if label in stated else variable.default_at(label) for label in labels}


def _number(variable: Variable, value: Any, where: str) -> float:
    if variable.kind == "code":
        if (word := resolved(str(value), variable.codes, parts=False)) is None:
            legal = ", ".join(variable.codes)
            raise PerfgridError(f"{where} must be one of {legal}, found {value!r}{nearest(str(value), variable.codes)}")
        return float(variable.codes.index(word))
    if isinstance(value, str):
        try:
            number = in_unit(value, variable.unit, variable.length)
        except ValueError as error:
            raise PerfgridError(f"{where}: {error}") from error
    elif isinstance(value, bool) or not isinstance(value, numbers.Real):
        unit = "" if variable.unit == "1" else f" ({variable.unit})"
        raise PerfgridError(f"{where} must be a number{unit}, found {value!r}")
    else:
        number = float(value) if is_finite(value) else math.inf
    if not math.isfinite(number):
        raise PerfgridError(f"{where} must be finite, found {value!r}")
    least = variable.minimum
    too_low = number < least if least is not None else number <= (variable.above or 0)
    if too_low or (variable.maximum is not None and number > variable.maximum):
        raise PerfgridError(f"{where} must be {variable.bounds}, found {value!r}")
    smallest, largest = PLAUSIBLE.get(variable.unit, (0.0, math.inf))
    largest = min(largest, LARGEST_COUNT) if variable.kind == "integer" else largest
    unit = "" if variable.unit == "1" else f" {variable.unit}"
    if number > 0 and variable.of != "computed" and not smallest <= number <= largest:
        raise PerfgridError(f"{where} must lie between {smallest:g} and {largest:g}{unit}, found {value!r}")
    if variable.kind == "integer" and number != round(number):
        raise PerfgridError(f"{where} must be a whole number, found {value!r}")
    return number
