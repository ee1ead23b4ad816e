"""The axes of a picture, with names and numbers in the units that fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfgrid.engine.errors import PerfgridError, nearest, printable
from perfgrid.pictures.picture import Axis, Scale
from perfgrid.text.numbers import READ_BACK, fitting_unit, label_text, number, units_of
from perfgrid.text.words import words

WIDE = 8.0  # largest over smallest number from which an axis is logarithmic
FEW = 10  # numbers of an axis that are all marked


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
