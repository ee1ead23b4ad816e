"""What an optimisation may vary and must keep to: free quantities with bounds, limits on outputs, several workloads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfgrid.catalog import convert
from perfgrid.catalog.schema import Variable
from perfgrid.engine.autodiff.dual import Dual, value_of
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.formulas import INNER
from perfgrid.study.samples import entries_of, ranges
from perfgrid.study.study import Study, build_study

from .function import Leaf, leaf, leaves, stated

LIMIT = re.compile(r"^\s*([\w.\-]+)\s*(<=|>=|<|>)\s*(.+?)\s*$")
OPEN = 1e300  # bound of a limit that is told later
SPREAD = 20.0  # by which a share may grow or shrink against the others, from the lower to the upper end


@dataclass(frozen=True)
class Knob:
    """A free number and its range; ``share``: one of several that keep their sum, whose range is relative."""

    name: str
    leaf: Leaf
    low: float
    high: float
    start: float | None
    share: bool

    @property
    def logarithmic(self) -> bool:
        """Whether equal steps are equal factors."""
        return self.low > 0

    @property
    def span(self) -> float:
        """The logarithm of the range (its relative length where it reaches zero)."""
        if self.logarithmic:
            return float(np.log(self.high / self.low))
        return (self.high - self.low) / max(abs(self.low), abs(self.high))


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


class Knobs:
    """All free numbers of a design: points in the unit cube and the values that they stand for."""

    def __init__(self, study: Study, over: Sequence[str] | Mapping[str, Sequence[Any]]):
        bounds = dict(over) if isinstance(over, Mapping) else {name: [] for name in over}
        if not bounds:
            raise PerfgridError(
                f"{study.name}: name at least one quantity to optimise over (--over or [optimize.over])"
            )
        for name, given in bounds.items():
            if not isinstance(given, list | tuple):
                raise PerfgridError(f"{study.name}, bounds of {name}: need a low and a high value, found {given!r}")
        leaves(study, bounds)  # all wrong names are told together
        self.base: dict[str, np.ndarray] = {}
        self.knobs: list[Knob] = []
        for name, given in bounds.items():
            for item in self._leaves(study, name):
                self.knobs.append(self._knob(study, item, given))
        shares: dict[str, list[int]] = {}
        for i, knob in enumerate(self.knobs):
            if knob.share:
                shares.setdefault(knob.leaf.quantity, []).append(i)
        for quantity, members in shares.items():
            if len(members) < 2:
                raise PerfgridError(
                    f"{study.name}: the shares of {quantity!r} keep their sum, and a single one cannot vary; name two"
                )
        self.quantities = tuple(dict.fromkeys(k.leaf.quantity for k in self.knobs))

    def __len__(self) -> int:
        return len(self.knobs)

    def _leaves(self, study: Study, name: str) -> list[Leaf]:
        item = leaf(study, name)
        self.base.setdefault(item.quantity, self._stated(study, item))
        if item.variable.axis is None or item.component is not None:
            return [item]
        values = np.ravel(self.base[item.quantity])
        labels = INNER.labels[item.variable.axis]
        return [leaf(study, f"{name}.{label}") for label, value in zip(labels, values, strict=True) if value > 0]

    def _stated(self, study: Study, item: Leaf) -> np.ndarray:
        found = stated(study, item.quantity)
        if found is None and item.variable.axis is not None:
            raise PerfgridError(
                f"{study.name}: {item.quantity!r} differs along an axis of the study; keep one entry there to vary it"
            )
        return np.array(np.nan) if found is None else found

    def _knob(self, study: Study, item: Leaf, given: Sequence[Any]) -> Knob:
        value = float(np.ravel(self.base[item.quantity])[item.component or 0])
        if item.variable.total is not None:
            if value <= 0:
                raise PerfgridError(f"{study.name}: {item.name!r} has no share, so that it cannot grow; state one")
            if given:
                raise PerfgridError(
                    f"{study.name}: {item.name!r} is a share and takes no bounds: the shares that are named keep their "
                    f"sum, and each may grow or shrink {SPREAD:g} times against the others; limit what follows from it"
                )
            return Knob(item.name, item, value / SPREAD, value * SPREAD, value, True)
        low, high = self._bounds(study, item, given, value)
        start = value if low <= value <= high else None
        return Knob(item.name, item, low, high, start, False)

    def _bounds(self, study: Study, item: Leaf, given: Sequence[Any], value: float) -> tuple[float, float]:
        """Stated bounds, else the ends of the study's axis of that name, else the catalog's range."""
        place = f"{study.name}, bounds of {item.name}"
        variable = item.variable.model_copy(update={"axis": None, "default": None})
        if given:
            if len(given) != 2:
                raise PerfgridError(f"{place}: need a low and a high value, found {list(given)!r}")
            low, high = (_number(variable, v, place) for v in given)
        else:
            axis = next((a for a in study.space.axes if a.name == item.quantity), None)
            entries = entries_of(study.space.axes, study.defaults, study.catalog)
            found = ranges(study.catalog, entries, {item.quantity})
            if axis is not None and len(axis) > 1:
                values = np.prod([np.ravel(v) for _, v in study.space.parts(item.quantity)][:1], axis=0)
                factors = np.asarray(axis.scales.get(item.quantity, [1.0]))
                low, high = float(np.min(values) * factors.min()), float(np.max(values) * factors.max())
            elif item.quantity in found and np.isfinite(value):
                _, below, above = found[item.quantity]
                low, high = value * below, value * above
            else:
                raise PerfgridError(
                    f"{study.name}: {item.name!r} has no bounds, neither in the study nor in the catalog, and without "
                    f"them the best design may be infinite: state [optimize.over] {item.name} = [low, high], or "
                    f"--over {item.name}=low:high"
                )
        if not low < high:
            raise PerfgridError(f"{place}: the low end must lie below the high end, found {low:g} and {high:g}")
        return low, high

    # -- points and values ----------------------------------------------------------------------------------------

    def start(self) -> np.ndarray:
        """The design that the study states, as a point of the unit cube; the middle where it states none."""
        return np.array([0.5 if k.start is None or k.share else self._place(k, k.start) for k in self.knobs])

    @staticmethod
    def _place(knob: Knob, value: float) -> float:
        if knob.logarithmic:
            return float(np.log(value / knob.low) / np.log(knob.high / knob.low))
        return (value - knob.low) / (knob.high - knob.low)

    def directions(self, points: np.ndarray) -> list[Dual]:
        """The coordinates of points [points, knobs] as dual numbers."""
        slopes = np.eye(len(self))[:, :, None] * np.ones(len(points))
        return [Dual(points[:, i], slopes[:, i]) for i in range(len(self))]

    def values(self, coordinates: Sequence[Any]) -> dict[str, Any]:
        """Values of the free quantities [points, *components] from coordinates, one column for each knob."""
        made: dict[str, list[Any]] = {}
        plain: dict[str, Any] = {}
        for knob, u in zip(self.knobs, coordinates, strict=True):
            scaled = u * knob.span if knob.logarithmic else u * (knob.high - knob.low)
            value = np.exp(scaled) * knob.low if knob.logarithmic else scaled + knob.low
            if knob.leaf.component is None:
                plain[knob.leaf.quantity] = value
            else:
                made.setdefault(knob.leaf.quantity, []).append((knob, value))
        for quantity, parts in made.items():
            base = np.ravel(self.base[quantity])
            columns: list[Any] = [np.full(np.shape(parts[0][1]), v) for v in base]
            whole = sum(value for _, value in parts)
            kept = sum(base[knob.leaf.component] for knob, _ in parts)
            for knob, value in parts:
                columns[knob.leaf.component] = value / whole * kept if knob.share else value
            plain[quantity] = np.concatenate([np.reshape(c, (-1, 1)) for c in columns], axis=1)
        return plain

    def named(self, point: np.ndarray) -> dict[str, float]:
        """The value of every knob at one point."""
        values = self.values([point[i : i + 1] for i in range(len(self))])
        return {
            k.name: float(np.ravel(values[k.leaf.quantity])[0 if k.leaf.component is None else k.leaf.component])
            for k in self.knobs
        }


def limits(studies: Mapping[str, Study], texts: Sequence[str], against: str | None = None) -> list[Limit]:
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
            raise PerfgridError(f"limit {text.strip()!r}: no workload {workload!r}{nearest(workload, studies)}")
        held = [n for n, s in studies.items() if workload in ("", n) and quantity in _known(s)]
        if not held:
            legal = {q for n, s in studies.items() if workload in ("", n) for q in _known(s)}
            raise PerfgridError(f"limit {text.strip()!r}: unknown quantity {quantity!r}{nearest(quantity, legal)}")
        for one in held:
            place = f"limit {text.strip()!r}"
            bound = OPEN if text in opened else _number(_about(studies[one], quantity), _plain(value), place)
            found.append(Limit(text.strip(), one, quantity, sign[0] == "<", bound))
    return found


def refuse_contradictions(name: str, knobs: Knobs, held: Sequence[Limit]) -> None:
    """PerfgridError for limits that contradict each other or the bounds of a free quantity: no design keeps them."""
    free = {k.name: k for k in knobs.knobs if not k.share}
    for limit in held:
        knob = free.get(limit.quantity)
        low, high = (knob.low, knob.high) if knob is not None else (-np.inf, np.inf)
        if limit.bound < low if limit.at_most else limit.bound > high:
            raise PerfgridError(
                f"{name}: the limit {limit.text!r} contradicts the bounds of {limit.quantity}, {low:g} to {high:g} "
                f"{knob.leaf.variable.unit if knob is not None else ''}".rstrip()
            )
        for other in held:
            alike = other.quantity == limit.quantity and (knob is not None or other.workload == limit.workload)
            if alike and limit.at_most and not other.at_most and other.bound > limit.bound:
                raise PerfgridError(f"{name}: the limits {limit.text!r} and {other.text!r} contradict each other")


def _number(variable: Variable, value: Any, place: str) -> float:
    found = convert(variable, value, place)
    if not isinstance(found, float):
        raise PerfgridError(f"{place}: {variable.name} is no number")
    return found


def _plain(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _known(study: Study) -> tuple[str, ...]:
    return (*study.registry.names(), *study.space.names())


def _about(study: Study, quantity: str) -> Variable:
    """Unit and kind of a quantity."""
    if quantity in study.catalog.variables:
        return study.catalog.variables[quantity].model_copy(update={"axis": None, "kind": "number", "codes": ()})
    formula = study.registry.get(quantity)
    return Variable(name=quantity, unit=formula.unit, meaning=formula.meaning, of="computed", minimum=-np.inf)


def unit_of_quantity(study: Study, quantity: str) -> str:
    """The unit of any quantity of a study."""
    return _about(study, quantity).unit


def parts(study: Study) -> dict[str, tuple[Study, float]]:
    """The workloads of an optimisation, by name: studies with their weights; the study itself where it lists none.

    Each of ``[[workloads]]`` states what differs from the study: workload, outputs, axes, workload_parameters, choices,
    overrides; and its name and weight (1). One of another kind (`workload`) states its parameters and choices anew. An
    empty list takes an axis or a parameter away. PerfgridError for anything else.
    """
    entries = study.file.workloads
    if not entries:
        return {"": (study, 1.0)}
    base = study.file.model_dump(exclude_none=True, exclude={"workloads", "optimize", "best", "frontier"})
    merged = ("axes", "workload_parameters", "choices", "overrides")
    legal = ("name", "weight", "workload", "outputs", "where", *merged)
    found: dict[str, tuple[Study, float]] = {}
    for number, entry in enumerate(entries, 1):
        place = f"{study.name}, workloads[{number}]"
        for key in entry:
            if key not in legal:
                raise PerfgridError(f"{place}: unknown key {key!r}{nearest(key, legal)}")
        name, weight = entry.get("name"), entry.get("weight", 1.0)
        if not isinstance(name, str) or not re.fullmatch(r"[\w\-]+", name) or name in found:
            raise PerfgridError(f"{place}: needs a name of its own, of letters and digits, found {name!r}")
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < np.inf:
            raise PerfgridError(f"{place}: the weight must be a number of at least zero, found {weight!r}")
        content = {**base, **{k: v for k, v in entry.items() if k not in ("name", "weight", *merged)}}
        own = ("workload_parameters", "choices") if content.get("workload") != base.get("workload") else ()
        for key in merged:
            changed = {**({} if key in own else base.get(key, {})), **entry.get(key, {})}
            content[key] = {k: v for k, v in changed.items() if v != []}  # an empty list takes an axis away
        found[name] = (build_study(content, f"{study.name} ({name})", study.catalog, study.formulas), float(weight))
    return found
