"""What ``${A...}`` does to a known text: parts of it, patterns cut off or replaced, upper and lower case."""

from __future__ import annotations

import re

from .script import MANY, UNREAD, Abandoned

LONGEST_MATCHED = 500  # characters that are tried against a pattern


def cut(value: str, operation: str, wanted: str) -> str:
    """Without the shortest (``%``, ``#``) or longest (``%%``, ``##``) part at an end that a pattern fits."""
    places, compiled = range(len(value) + 1), re.compile(wanted)
    at_end = operation[0] == "%"
    for place in reversed(places) if at_end == (len(operation) == 1) else places:
        span = (place, len(value)) if at_end else (0, place)
        if compiled.fullmatch(value, *span):
            return value[:place] if at_end else value[place:]
    return value


def replaced(value: str, operation: str, wanted: str, new: str) -> str:
    """With the first or every part that a pattern fits replaced, at each place the longest."""
    inner = wanted[:-2]  # without the end of the text
    if "(?>" in inner:  # several stars, of which `translate` makes the shortest match
        return UNREAD
    if operation == "/#":
        found = re.match(inner, value)
    elif operation == "/%":
        found = re.search(inner + r"\Z", value)
    elif re.fullmatch(wanted, ""):
        return value if inner == "(?s:)" else new if value else UNREAD
    else:
        return re.sub(inner, lambda _: new, value, count=1 if operation == "/" else 0)
    return value if found is None else value[: found.start()] + new + value[found.end() :]


def cased(value: str, operation: str) -> str:
    """The first character, or all, in upper or lower case; unread beyond ASCII."""
    if not value.isascii():
        return UNREAD
    count = 1 if len(operation) == 1 else len(value)
    head = value[:count].upper() if operation[0] == "^" else value[:count].lower()
    return head + value[count:]


def _bounds(length: int, numbers: list[int | None]) -> tuple[int, int] | None:
    """First place and end of ``:first:count``; None where they are not known."""
    first, count = numbers[0], numbers[1] if len(numbers) > 1 else length
    if first is None or count is None:
        return None
    first += length if first < 0 else 0
    return first, length if len(numbers) == 1 else count + length if count < 0 else first + count


def piece(value: str, numbers: list[int | None]) -> str:
    """``${A:first:count}`` of a text."""
    bounds = _bounds(len(value), numbers)
    if bounds is None:
        return UNREAD
    return value[slice(*_within(bounds, len(value)))]


def slices(values: list[str], numbers: list[int | None]) -> list[str]:
    """``${A[@]:first:count}`` of elements."""
    bounds = _bounds(len(values), numbers)
    if bounds is None or any(MANY in text for text in values):
        return [MANY]
    return values[slice(*_within(bounds, len(values)))]


def _within(bounds: tuple[int, int], length: int) -> tuple[int, int]:
    """Bounds, both 0 for a first place that there is not; an end before the first place is an error."""
    if not 0 <= bounds[0] <= length:
        return 0, 0
    if bounds[1] < bounds[0]:
        raise Abandoned
    return bounds
