"""Limits on quantities, such as ``die_area < 800 mm^2``: what an optimisation must keep to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfgrid.catalog import Variable, converted
from perfgrid.catalog.units import number_or_text
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.graph.namespace import value_of

from .content import Content

LIMIT = re.compile(r"^\s*([\w.\-]+)\s*(<=|>=|<|>)\s*(.+?)\s*$")
KEPT = 1e-6  # a limit broken by less is kept
OPEN = 1e300  # bound of a limit that is set later


@dataclass(frozen=True)
class Limit:
    """A limit on a quantity of one workload (of all that have it, if none is named): at most or at least ``bound``."""

    text: str
    workload: str
    quantity: str
    at_most: bool
    bound: float

    def slack(self, bounds: Any, value: Any) -> Any:
        """How far a quantity is within ``bounds``: relative, by logarithms where both are positive."""
        sign = 1.0 if self.at_most else -1.0
        if np.all(bounds > 0) and np.all(value_of(value) > 0):
            return (np.log(bounds) - np.log(value)) * sign
        return (bounds - value) * (sign / np.maximum(np.abs(bounds), 1e-300))


def limits(studies: Mapping[str, Content], texts: Sequence[str], against: str | None = None) -> list[Limit]:
    """The limits ``quantity < value`` (or >, <=, >=; ``workload.quantity`` of one workload), values with a unit or SI.

    A last one on ``against``, if given, is left open: at most `OPEN`.
    PerfgridError for another form, an unknown quantity or workload, and a value of the wrong kind.
    """
    found = []
    opened = [f"{against} < limit"] if against is not None else []
    for text in (*(part for one in texts for part in one.split(",") if part.strip()), *opened):
        match = LIMIT.match(text)
        if match is None:
            raise PerfgridError(f"a limit must read 'quantity < value' or 'quantity > value', found {text.strip()!r}")
        name, sign, value = match.groups()
        first, _, rest = name.partition(".")
        workload, quantity = (first, rest) if rest else ("", name)
        if workload and workload not in studies:
            others = "; the study lists no workloads" if set(studies) == {""} else nearest(workload, studies)
            raise PerfgridError(f"limit {text.strip()!r}: no workload {workload!r}{others}")
        held = [n for n, s in studies.items() if workload in ("", n) and quantity in _known(s)]
        if not held:
            legal = {q for n, s in studies.items() if workload in ("", n) for q in _known(s)}
            raise PerfgridError(f"limit {text.strip()!r}: unknown quantity {quantity!r}{nearest(quantity, legal)}")
        for one in held:
            place = f"limit {text.strip()!r}"
            bound = OPEN if text in opened else converted(_about(studies[one], quantity), number_or_text(value), place)
            found.append(Limit(text.strip(), one, quantity, sign[0] == "<", bound))
    return found


def _known(study: Content) -> tuple[str, ...]:
    return (*study.registry.names(), *study.space.names())


def _about(study: Content, quantity: str) -> Variable:
    """Unit and kind of a quantity."""
    if quantity in study.catalog.variables:
        return study.catalog.variables[quantity].model_copy(update={"axis": None, "kind": "number", "codes": ()})
    formula = study.registry.get(quantity)
    return Variable(name=quantity, unit=formula.unit, meaning=formula.meaning, of="computed", minimum=-np.inf)


def unit_of_quantity(study: Content, quantity: str) -> str:
    """The unit of any quantity of a study."""
    return _about(study, quantity).unit


def ends(variable: Variable, given: Sequence[Any], place: str) -> tuple[float, float]:
    """A low and a high value of a quantity in SI units. PerfgridError unless they are two, and in this order."""
    if len(given) != 2:
        raise PerfgridError(f"{place}: need a low and a high value, found {list(given)!r}")
    single = variable.model_copy(update={"axis": None, "default": None})
    low, high = (converted(single, value, place) for value in given)
    check_order(low, high, place)
    return low, high


def check_order(low: float, high: float, place: str) -> None:
    """PerfgridError unless a range has a length."""
    if not low < high:
        raise PerfgridError(f"{place}: the low end must lie below the high end, found {low:g} and {high:g}")
