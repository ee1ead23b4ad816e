"""Names and numbers as they stand in a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfgrid.analysis.number_text import READ_BACK, fitting_unit, label_text, number, units_of, whole_number
from perfgrid.analysis.terms import UTILIZATIONS
from perfgrid.engine.errors import PerfgridError, nearest, printable
from perfgrid.pictures.picture import Axis, Scale

ACRONYMS = {"hbm": "HBM", "l2": "L2", "flops": "FLOPs", "flop": "FLOP", "kv": "KV", "io": "I/O", "mtp": "MTP"}
WIDE = 8.0  # largest over smallest number from which an axis is logarithmic
GROUPED = 1e4  # pure numbers from which digits are grouped: 10,000, 1 trillion
FEW = 10  # numbers of an axis that are all marked


def words(name: str) -> str:
    """A name in words: step time, HBM bandwidth."""
    if name in UTILIZATIONS:
        return UTILIZATIONS[name]
    return " ".join(ACRONYMS.get(word, word) for word in printable(name).replace("_", " ").split())


def item_text(value: Any, unit: str = "1") -> str:
    """A label or a value of a study as text, with its unit."""
    if isinstance(value, list):
        return " or ".join(item_text(one, unit) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return printable(str(value))
    pure = unit in ("1", "")
    if unit in READ_BACK or (pure and not (value >= GROUPED and value == round(value))):
        return label_text(float(value), unit)
    return whole_number(value, unit) if pure else number(value, unit)


def unit_for(quantity: str, unit: str, values: Sequence[float], stated: Mapping[str, str]) -> tuple[str, float]:
    """The unit in which numbers of a quantity are printed, and its size; PerfgridError for one that does not fit."""
    sizes = units_of(unit)
    if quantity in stated:
        name = stated[quantity]
        if name not in sizes:
            raise PerfgridError(f"units.{quantity}: {name!r} is no unit of it{nearest(name, [n for n in sizes if n])}")
        return name, sizes[name]
    name = fitting_unit(values, unit)
    return name, sizes[name]


def value_axis(
    quantity: str,
    unit: str,
    values: Sequence[float],
    stated: Mapping[str, str],
    scale: Scale | None = None,
    label: str = "",
) -> Axis:
    """The axis of numbers of a quantity: in the unit that fits them, logarithmic where that is asked for."""
    name, size = unit_for(quantity, unit, values, stated)
    return Axis(label or words(quantity), name, scale or "linear", quantity=quantity, size=size)


def label_axis(name: str, unit: str, labels: Sequence[Any], scaled: bool, scale: Scale | None) -> Axis:
    """The axis of numbers that label designs, each in the unit that fits it where these are few."""
    numbers = np.array([float(label) for label in labels])
    wide = len(numbers) > 2 and numbers.min() > 0 and numbers.max() >= WIDE * numbers.min()
    scale = scale or ("log" if wide else "linear")
    text, unit = (f"{words(name)}, times that stated", "1") if scaled else (words(name), unit)
    marked = numbers[:: -(-len(numbers) // FEW)] if len(numbers) <= FEW or unit in READ_BACK else []
    if unit in READ_BACK and len(marked):  # each number with its unit
        return Axis(text, "", scale, quantity=name, ticks=tuple((float(v), label_text(float(v), unit)) for v in marked))
    unit_name, size = unit_for(name, unit, [] if unit in ("1", "") else numbers.tolist(), {})
    ticks = tuple((float(v) / size, label_text(float(v) / size)) for v in marked)
    return Axis(text, unit_name, scale, quantity=name, size=size, ticks=ticks)


def category_axis(name: str, labels: Sequence[str]) -> Axis:
    """The axis of names."""
    return Axis(words(name), scale="categories", categories=tuple(map(printable, labels)), quantity=name)


def quantity_text(value: float, unit: str) -> str:
    """A number with its unit, or a dash."""
    return number(float(value), unit)


def digits(value: float, significant: int = 4) -> str:
    """A number of a picture without its unit, with so many digits; empty where there is none."""
    return number(float(f"{value:.{significant}g}")) if np.isfinite(value) else ""
