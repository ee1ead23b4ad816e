"""Names and labels in words, as screens and pictures have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfgrid.engine.errors import printable

from .numbers import READ_BACK, label_text, number, whole_number
from .terms import UTILIZATIONS

ACRONYMS = {"hbm": "HBM", "l2": "L2", "flops": "FLOPs", "flop": "FLOP", "kv": "KV", "io": "I/O", "mtp": "MTP"}
GROUPED = 1e4  # pure numbers from which digits are grouped: 10,000, 1 trillion


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


def digits(value: float, significant: int = 4) -> str:
    """A number of a picture without its unit, with so many digits; empty where there is none."""
    return number(float(f"{value:.{significant}g}")) if np.isfinite(value) else ""
