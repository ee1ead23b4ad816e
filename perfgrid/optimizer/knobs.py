"""What an optimisation varies: free quantities with their bounds, as points of the unit cube."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfgrid.engine.autodiff.dual import Dual
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas import INNER
from perfgrid.study.free import Leaf, leaf, leaves
from perfgrid.study.limits import Limit, check_order, ends
from perfgrid.study.samples import entries_of, ranges
from perfgrid.study.study import Study

from .function import stated

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

    def place(self, value: float) -> float:
        """The coordinate, from 0 to 1, of a value."""
        if self.logarithmic:
            return float(np.log(value / self.low) / self.span)
        return (value - self.low) / (self.high - self.low)


class Knobs:
    """All free numbers of a design: points in the unit cube and the values that they stand for."""

    def __init__(self, study: Study, over: Sequence[str] | Mapping[str, Sequence[Any]]):
        bounds = dict(over) if isinstance(over, Mapping) else {name: [] for name in over}
        if not bounds:
            raise PerfgridError(
                f"{study.name}: name at least one quantity to optimize over (--over or [optimize.over])"
            )
        for name, given in bounds.items():
            if not isinstance(given, list | tuple):
                raise PerfgridError(f"{study.name}, bounds of {name}: need a low and a high value, found {given!r}")
        leaves(study, bounds)  # one error for all wrong names
        self.base: dict[str, np.ndarray] = {}
        self.knobs: list[Knob] = []
        for name, given in bounds.items():
            self.knobs += [self._knob(study, item, given) for item in self._leaves(study, name)]
        self.shares: dict[str, list[Knob]] = {}  # by quantity, those that keep their sum
        for knob in self.knobs:
            if knob.share:
                self.shares.setdefault(knob.leaf.quantity, []).append(knob)
        for quantity, members in self.shares.items():
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
        if given:
            return ends(item.variable, given, place)
        else:
            axis = next((a for a in study.space.axes if a.name == item.quantity), None)
            entries = entries_of(study.space.axes, study.defaults, study.catalog)
            found = ranges(study.catalog, entries, {item.quantity})
            if axis is not None and len(axis) > 1:
                values = study.space.parts(item.quantity)[0][1]
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
        check_order(low, high, place)
        return low, high

    # -- points and values ----------------------------------------------------------------------------------------

    def start(self) -> np.ndarray:
        """The design that the study states, as a point of the unit cube; the middle where it states none."""
        return np.array([0.5 if k.start is None or k.share else k.place(k.start) for k in self.knobs])

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


def once(held: Sequence[Limit], knobs: Knobs) -> list[Limit]:
    """Limits without those on a free quantity that another workload has too: the design has it once."""
    free, seen, found = {k.name for k in knobs.knobs}, set[str](), list[Limit]()
    for limit in held:
        if limit.quantity not in free or limit.text not in seen:
            found.append(limit)
        seen.add(limit.text)
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
