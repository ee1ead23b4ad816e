"""Signed bars of plain characters."""

from __future__ import annotations

HALF = 12  # characters on either side of the middle


def bar(value: float, largest: float) -> str:
    """A bar to the left of the middle for a negative value, to the right for a positive one."""
    return swing(value, 0.0, value, largest)


def swing(low: float, middle: float, high: float, largest: float) -> str:
    """A bar from a low to a high value around the middle of a tornado; ``largest`` is the widest distance from it."""
    ends = [0 if largest == 0 else round(HALF * max(-1.0, min(1.0, (v - middle) / largest))) for v in (low, high)]
    left, right = max(0, -min(ends)), max(0, *ends)
    return " " * (HALF - left) + "#" * left + "|" + "#" * right + " " * (HALF - right)
