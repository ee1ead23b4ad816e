"""Whether other values of some leaves, or another graph of them, move the quantities that count."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from perfgrid.engine.errors import PerfgridError

from .nodes import Graph

ROUNDING = 1e-12  # relative difference below which a value counts as the same


def alike(before: Any, now: Any) -> bool:
    """Whether two values differ by rounding at most; words and flags not at all."""
    before, now = np.asarray(before), np.asarray(now)
    if before.shape != now.shape or not (before.dtype.kind == now.dtype.kind == "f"):
        return np.array_equal(before, now)
    return bool(np.allclose(now, before, rtol=ROUNDING, atol=0.0, equal_nan=True))


def moves(
    before: Graph, values: Mapping[str, Any], after: Graph, leaves: Mapping[str, Any], watched: Collection[str]
) -> bool:
    """Whether a quantity of ``watched`` has another value, or a constraint that is there only afterwards is violated.

    ``values``: every quantity ``before``, as of `replay`; ``leaves``: those afterwards. Only what reads
    something that moved is worked out again, and only until one of ``watched`` moves, or has no value any more.
    """
    now: dict[str, Any] = {}

    def differs(name: str, value: Any) -> bool:
        if name in values and alike(values[name], value):
            return False
        now[name] = value
        return name in watched and (name in values or not value)

    for name in after.leaves:
        if differs(name, leaves[name]):
            return True
    with np.errstate(all="ignore"):
        for node in after.nodes.values():
            old = before.nodes.get(node.name)
            kept = old is not None and old.function == node.function and old.arguments == node.arguments
            if kept and not any(argument in now for argument in node.arguments):
                continue
            found = [now[a] if a in now else values[a] for a in node.arguments]
            try:
                value = np.asarray(node.function(*found))
            except (ArithmeticError, ValueError, LookupError, PerfgridError):  # it has none with these values
                return True
            if differs(node.name, value.item() if value.size == 1 else value):
                return True
    return False
