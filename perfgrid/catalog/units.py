"""Units at the border: text such as ``"3.35 TB/s"`` becomes a number in SI; formulas never see any other unit.

Bytes, operations and money are dimensions of their own, so a bandwidth is never taken for a rate of arithmetic.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

_NAME = r"[A-Za-z%µ]+(?:(?:\^|\*\*)\d)?"
_NUMBER_AND_UNIT = re.compile(
    rf"\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\s*(?:{_NAME}(?:\s*[/*]\s*{_NAME}|\s+{_NAME})*)?\s*"
)
_PER_UNIT = re.compile(rf"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?:\b1)?\s*/\s*({_NAME})\s*")


@cache
def unit_registry() -> Any:
    """The registry of units; made when a text is read, since importing it takes as long as opening a result."""
    import pint

    return pint.UnitRegistry(str(Path(__file__).with_name("units.txt")))


def is_unit(text: str) -> bool:
    """Whether ``text`` is a unit, "1" for pure numbers."""
    try:
        unit_registry().parse_units("" if text == "1" else text)
    except Exception:  # pint's parser raises whatever its tokenizer and evaluator meet
        return False
    return True


@cache
def in_unit(text: str, unit: str) -> float:
    """The number that ``text`` states, in ``unit``.

    Raises ValueError that says what is wrong with the text.
    """
    expected = unit_registry().parse_units("" if unit == "1" else unit)
    read = text.replace("%", " percent")
    if per := _PER_UNIT.fullmatch(text):  # "50 /s" and "50 1/s" as well as "50 Hz"
        read = f"{per[1]} 1/{per[2]}"
    elif not _NUMBER_AND_UNIT.fullmatch(text):
        raise ValueError(f"{text!r} is not one number with a unit, such as '3.35 TB/s'")
    try:
        found = unit_registry().Quantity(read)
    except Exception as error:  # pint's parser raises whatever its tokenizer and evaluator meet
        hint = "; bits are written bit, as in Gbit/s" if re.search(r"[GMTk]b(ps|/s)", text) else ""
        raise ValueError(f"{text!r} has no unit that is known{hint}") from error
    if not found.is_compatible_with(expected):
        stated = "no unit" if found.unitless else f"the unit {found.units:~}"
        raise ValueError(f"{text!r} has {stated}, expected {'a pure number' if unit == '1' else unit}")
    return float(f"{found.to(expected).magnitude:.15g}")  # 2.5 us is 2.5e-6 and nothing else
