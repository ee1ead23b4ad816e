"""One number explained: the parts that add up to it, and every formula below it with value, unit and source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import Graph, Node, replay, resolve
from perfgrid.engine.grid.replay import index_of, point_of, replay_point
from perfgrid.engine.grid.space import Space

from .story import Part, Replayed, about_of, story_of


@dataclass
class Derivation:
    """One quantity of a derivation tree."""

    name: str
    value: Any
    unit: str
    meaning: str
    source: str
    elasticity: float | None = None  # d ln(reader) / d ln(this)
    repeated: bool = False  # its own derivation is printed further up
    below: list[Derivation] = field(default_factory=list)


@dataclass
class Violated:
    """A constraint that a point violates: its kind, its reason and the quantities that it compares."""

    name: str
    kind: str
    reason: str
    sides: list[Derivation]


@dataclass
class Explanation:
    """A quantity at a point: its value, its derivation and parts, and the constraints that the point violates."""

    point: dict[str, Any]
    quantity: str
    value: Any
    violated: list[Violated]
    replayed: Replayed = field(repr=False)
    derive: Callable[[], Derivation] = field(repr=False)
    elasticities: Callable[[], dict[str, float]] = field(default=dict, repr=False)  # by given numbers, largest first
    interval: Callable[[], tuple[float, float] | None] = field(default=lambda: None, repr=False)  # where it is known

    def story(self, depth: int, lines: int | None = None) -> Part:
        """What adds up to the number, and what its parts are made of, ``depth`` levels down (see `story.story_of`)."""
        values = self.replayed.values
        return story_of(self.replayed, self.quantity, depth, lines, lambda node: elasticities(node, values))

    @cached_property
    def derivation(self) -> Derivation:
        """The quantity with every formula below it, worked out when first asked for."""
        return self.derive()

    def about(self, name: str) -> tuple[str, str, str]:
        """Unit, meaning and source of a quantity; empty for anything else."""
        return about_of(self.replayed.graph, self.replayed.given, name)

    def formula(self, name: str) -> str:
        """The formula of a quantity with its arguments; empty for a given one."""
        node = self.replayed.graph.nodes.get(name)
        return f"{node.formula or node.name}({', '.join(node.arguments)})" if node else ""

    @property
    def illegal(self) -> bool:
        """Whether the value means nothing at this point."""
        return any(v.kind == "illegal" for v in self.violated)


def explain_point(
    registry: Registry,
    space: Space,
    quantity: str,
    at: Mapping[str, Any],
    choices: Mapping[str, str] | None = None,
    units: Mapping[str, tuple[str, str, str]] | None = None,
    breakdowns: Mapping[str, Sequence[str]] | None = None,
) -> Explanation:
    """Replay one point and derive one quantity.

    ``at`` names a label of every axis that has more than one. ``units`` holds unit, meaning and source of given
    quantities, ``breakdowns`` the quantities that are known to add up to others. PerfgridError for an unknown
    quantity, axis or label, or an axis left open.
    """
    resolve(registry, (quantity,), space.names(), choices, space.label_quantities())  # an unknown name comes first
    index = index_of(space, at)
    graph, values = replay_point(registry, space, (quantity,), index, choices)
    labels = space.label_quantities()
    units, breakdowns = units or {}, breakdowns or {}
    violated = violated_at(graph, values, units)
    parts = [n for name, names in breakdowns.items() if name in graph.nodes for n in names]
    if not all(n in values for n in parts):
        graph = resolve(registry, (*graph.wanted, *parts), space.names(), choices, labels)
        values = replay(graph, {name: space.at(name, index) for name in graph.leaves})

    point = Replayed(graph, values, units, registry.inner, breakdowns)
    value = _shown_value(point, quantity, labels)
    derive = partial(_derivation, point, quantity, labels)
    return Explanation(point_of(space, index), quantity, value, violated, point, derive)


def _shown_value(point: Replayed, name: str, labels: Mapping[str, Sequence[str]]) -> Any:
    """The value of a quantity; of a given label its text."""
    value = point.values[name]
    return labels[name][int(value)] if name in labels and name not in point.graph.nodes else value


def _derivation(point: Replayed, quantity: str, labels: Mapping[str, Sequence[str]]) -> Derivation:
    """The tree of formulas below a quantity, in it each once."""
    shown: set[str] = set()

    def derive(name: str, elasticity: float | None) -> Derivation:
        node, about = point.graph.nodes.get(name), about_of(point.graph, point.given, name)
        found = Derivation(name, _shown_value(point, name, labels), *about, elasticity, name in shown)
        if node is not None and not found.repeated:
            shown.add(name)
            strengths = elasticities(node, point.values, labels)
            below = sorted(dict.fromkeys(node.arguments), key=lambda a: -abs(strengths.get(a) or 0.0))
            found.below = [derive(a, strengths.get(a)) for a in below]
        return found

    return derive(quantity, None)


def violated_at(
    graph: Graph, values: Mapping[str, Any], units: Mapping[str, tuple[str, str, str]] | None = None
) -> list[Violated]:
    """The constraints of a replayed graph that do not hold; ``units`` as for `explain_point`."""
    found = []
    for node in graph.constraints:
        if not bool(np.all(values[node.name])):
            assert node.constraint is not None
            sides = [Derivation(a, values[a], *about_of(graph, units or {}, a)) for a in node.compared]
            found.append(Violated(node.name, node.constraint.kind, node.constraint.reason, sides))
    return found


def elasticities(node: Node, values: Mapping[str, Any], labels: Collection[str] = ()) -> dict[str, float]:
    """d ln(quantity) / d ln(argument) of one formula at one point, by differences in float64.

    Rounding and comparisons jump. A slope across a jump grows as the step shrinks and is dropped; the slope of the
    other side, that of the branch that holds, then counts alone. An argument with a jump on both sides is left out, as
    are ``labels``. Where operands of a maximum tie each has the mean of its two slopes, as in `autodiff.rules`. Along
    inner axes all labels move together and absolute values are summed.
    """

    def size(changed: str, factor: float) -> float:
        given = (values[a] * factor if a == changed else values[a] for a in node.arguments)
        with np.errstate(all="ignore"):
            return float(np.sum(np.abs(np.asarray(node.function(*given), dtype=np.float64))))

    found: dict[str, float] = {}
    if node.host is not None:  # counts have no slopes
        return found
    here = size("", 1.0)
    if node.constraint is not None or node.flags or not np.isfinite(here) or here == 0:
        return found
    for name in dict.fromkeys(node.arguments):
        if name in labels or isinstance(values[name], bool) or np.asarray(values[name]).dtype == bool:
            continue
        slopes = []
        for side in (1, -1):
            coarse, fine = ((size(name, 1 + side * step) / here - 1) / (side * step) for step in (1e-5, 1e-6))
            if abs(fine) <= 2 * abs(coarse) + 1e-3:
                slopes.append(fine)
        if slopes:
            found[name] = sum(slopes) / len(slopes)
    return found
