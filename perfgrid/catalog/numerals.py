"""Numbers as programs print and save them: parsed whole, or refused by name.

A pattern that takes the digits it likes reads ``5,444`` as 5 and drops ``-3``. Readers take the whole word instead, and
these functions turn it into a number or into one line that says where it stands.
"""

from __future__ import annotations

import math
import re
from typing import Any

from perfgrid.engine.errors import PerfgridError, shown

LARGEST = 1e30  # of what is measured: nothing is of more bytes, operations or nanoseconds
LARGEST_COUNT = 10**15
_WRITTEN = re.compile(r"[-+]?(?=\.?\d)(?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d*)?(?:e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
_NOT_FINITE = re.compile(r"[-+]?(?:nan|inf(?:inity)?)", re.IGNORECASE)


def number(found: Any, what: str) -> float:
    """A finite number from its text or from JSON. PerfgridError, which begins with ``what``, for anything else.

    Digits may be in groups of three with commas between, as logs have them; signs and exponents belong to a number.
    """
    if isinstance(found, str):
        text = found.strip()
        if not _WRITTEN.fullmatch(text):
            kind = "finite number" if _NOT_FINITE.fullmatch(text) else "number"
            raise PerfgridError(f"{what} needs a {kind}, found {shown(found)}")
        value = float(text.replace(",", ""))
    elif isinstance(found, (int, float)) and not isinstance(found, bool):
        value = float(found) if abs(found) < LARGEST else math.inf if found == found else math.nan
    else:
        raise PerfgridError(f"{what} needs a number, found {shown(found)}")
    if not abs(value) < LARGEST:
        raise PerfgridError(f"{what} needs a finite number below {LARGEST:g}, found {shown(found)}")
    return value


def amount(found: Any, what: str, zero: bool = False) -> float:
    """A number above zero, or with ``zero`` from zero on, such as a time. PerfgridError for anything else."""
    value = number(found, what)
    if value < 0 or (value == 0 and not zero):
        raise PerfgridError(f"{what} must {'not be negative' if zero else 'be above zero'}, found {shown(found)}")
    return value


def count(found: Any, what: str, zero: bool = False) -> int:
    """A whole number above zero, or with ``zero`` from zero on. PerfgridError for anything else."""
    value = amount(found, what, zero)
    if value != int(value) or value > LARGEST_COUNT:
        raise PerfgridError(f"{what} needs a whole number of at most {LARGEST_COUNT:g}, found {shown(found)}")
    return int(value)
