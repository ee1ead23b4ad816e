"""Quantities at the border: text such as ``"3.35 TB/s"``, ``"128Ki"`` or ``"2x"`` becomes a number in SI.

Every number that a user writes as text is read here: options, studies, catalog files, brackets behind a name, Python
arguments. Formulas never see any other unit. Bytes, operations and money are dimensions of their own, so a bandwidth is
never taken for a rate of arithmetic.
"""

from __future__ import annotations

import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any

_NUMBER = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NAME = r"[A-Za-z%µ$]+(?:(?:\^|\*\*)\d)?"
_NUMBER_AND_UNIT = re.compile(rf"\s*{_NUMBER}\s*(?:{_NAME}(?:\s*[/*]\s*{_NAME}|\s+{_NAME})*)?\s*")
_PER_UNIT = re.compile(rf"\s*({_NUMBER})\s*(?:\b1)?\s*/\s*({_NAME})\s*")
_MULTIPLE = re.compile(rf"\s*({_NUMBER})\s*[x\u00d7]\s*")
_COUNT = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]+?)\s*(?:tokens?)?\s*")
LARGE = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}  # of counts: B is a billion, not bytes
LARGE |= {letter.upper(): size for letter, size in LARGE.items()}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
# Of lengths in tokens: published contexts of 128K are 131,072 (grattafiori2024llama3), benchmarks of 8k and 1k take
# 8,192 and 1,024. vLLM reads 1k as 1,000 and 1K as 1,024, so a note states the number taken.
LENGTHS = {"k": 2.0**10, "K": 2.0**10, "m": 2.0**20, "M": 2.0**20}
COUNTED = ("1", "USD")  # units of what is counted in thousands and millions


class Taken(UserWarning):
    """A text that different programs read as different numbers was taken as one of them."""


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


def multiple(text: Any) -> float | None:
    """The factor that a text such as ``2x`` or ``0.5x`` states; None for any other value."""
    found = _MULTIPLE.fullmatch(text) if isinstance(text, str) else None
    return float(found[1]) if found else None


def number_or_text(text: Any) -> Any:
    """The number that a text spells without a unit; anything else, such as a text with a unit, as it is."""
    try:
        return float(text) if isinstance(text, str) else text
    except ValueError:
        return text


def whole(text: str) -> int:
    """The whole number that ``text`` states: 64, 1k, 1Ki. ValueError for anything else."""
    if text.strip().isdecimal():
        return int(text)
    number = in_unit(text, "1")
    if number != number // 1:  # also of infinity
        raise ValueError(f"{text!r} is no whole number")
    return int(number)


def in_unit(text: str, unit: str, length: bool = False) -> float:
    """The number that ``text`` states, in ``unit``; ``length``: of a length in tokens, where 32k is 32,768.

    Raises ValueError that says what is wrong with the text.
    """
    if unit in COUNTED and (found := _count(text, length)) is not None:
        return found
    return _in_unit(text, unit)


def _count(text: str, length: bool) -> float | None:
    """The number of a text such as 32k, 128Ki or 15T; None without such an end."""
    found = _COUNT.fullmatch(text)
    sizes = LARGE | BINARY | (LENGTHS if length else {})
    if found is None or found[2] not in sizes:
        return None
    number = float(f"{float(found[1]) * sizes[found[2]]:.15g}")  # 1.1k is 1100 and nothing else
    if length and found[2] in LENGTHS:
        size = f"{found[2]} is {LENGTHS[found[2]]:,g}"
        told = f"{text.strip()} is read as {number:,.15g} tokens: of lengths {size}"
        warnings.warn(f"{told}, of other counts {LARGE[found[2]]:,g}", Taken, stacklevel=2)
    return number


_DOLLARS = re.compile(r"^\s*\$\s*([0-9][0-9.,]*)")
_EXAMPLES = {"byte/s": "TB/s"}


@cache
def _in_unit(text: str, unit: str) -> float:
    expected = unit_registry().parse_units("" if unit == "1" else unit)
    text = _DOLLARS.sub(r"\1 $", text)  # "$2.10/h" as "2.10 $/h"
    read = text.replace("%", " percent").replace("$", "USD")
    if per := _PER_UNIT.fullmatch(text):  # "50 /s" and "50 1/s" as well as "50 Hz"
        read = f"{per[1]} 1/{per[2]}"
    elif unit == "1" and not _NUMBER_AND_UNIT.fullmatch(text):
        raise ValueError(f"{text!r} is not a number such as 64, 32k, 128Ki, 1.5M or 15T")
    elif not _NUMBER_AND_UNIT.fullmatch(text):
        raise ValueError(f"{text!r} is not one number with a unit, such as '3.35 {_EXAMPLES.get(unit, unit)}'")
    try:
        found = unit_registry().Quantity(read)
    except Exception as error:  # pint's parser raises whatever its tokenizer and evaluator meet
        hint = "; bits are written bit, as in Gbit/s" if re.search(r"[GMTk]b(ps|/s)", text) else ""
        if unit == "1":
            raise ValueError(f"{text!r} is not a number such as 64, 32k, 128Ki, 1.5M or 15T") from error
        raise ValueError(f"{text!r} has no unit that is known{hint}") from error
    if not found.is_compatible_with(expected):
        stated = "no unit" if found.unitless else f"the unit {found.units:~}"
        raise ValueError(f"{text!r} has {stated}, expected {'a pure number' if unit == '1' else unit}")
    return float(f"{found.to(expected).magnitude:.15g}")  # 2.5 us is 2.5e-6 and nothing else
