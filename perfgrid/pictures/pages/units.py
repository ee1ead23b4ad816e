"""Units of quantities as pages print them."""

from __future__ import annotations

from typing import Any

from perfgrid.text.numbers import LEAST, units_of


def about_unit(unit: str) -> dict[str, Any]:
    """A unit with those in which its quantity is printed, largest first: name, size, smallest value printed in it."""
    return {"unit": unit, "units": [[name, size, LEAST.get(name, size)] for name, size in units_of(unit).items()]}
