"""Splits a number into the parts that add up to it, largest first, and each part in the same way (`perfgrid explain`).

`graph.terms` finds the parts; quantities that only pass on a value are skipped. A product is followed by its factors,
each in its own unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from perfgrid.engine.graph.inner_axes import InnerAxes
from perfgrid.engine.graph.registry import same
from perfgrid.engine.graph.resolver import Graph, Node

from .terms import Factor, Kinds, Rival, Term, fitted, terms_of

FOLDED = 0.01  # share of a value below which its smallest parts are printed together in one line
WORTH = 0.02  # share of a value below which a part is not split
FACTORS = 1 / 3  # importance of splitting a factor relative to its product
MOST_FACTORS = 6  # listed for a formula that is not a product
LITTLE = 0.005  # elasticity up to which an argument is not listed
ROUNDING = 1e-9


@dataclass(frozen=True)
class Folded:
    """Small parts that are not listed: their number, their sum, and the largest of them."""

    count: int = 0
    value: float = 0.0
    largest: float = 0.0


NONE = Folded()


@dataclass
class Part:
    """A part of a number, or a factor of one. The parts ``below`` and those ``folded`` add up to its value."""

    name: str  # the quantity, the product of quantities, or the label of an inner axis
    value: Any  # of a part its contribution; of a factor its own value, or the elements of a vector that contribute
    unit: str
    quantity: str = ""  # to split further; empty for a product of several, and for a constant
    factor: str = ""  # "x": multiplies the parent, "/": divides it, "of": an argument of its formula; empty for a part
    factors: tuple[Factor, ...] = ()  # whose product it is
    rival: Rival | None = None  # the closest operand that a maximum or minimum did not take
    taken: str = ""  # the alternative that was taken
    axis: str = ""  # the inner axis of a label
    below: list[Part] = field(default_factory=list)
    folded: Folded = NONE  # the small parts that are not listed below
    weights: Any = field(default=None, repr=False)  # value = sum(weights * quantity)
    term: Term | None = field(default=None, repr=False)

    @property
    def parts(self) -> list[Part]:
        """The parts below, without factors."""
        return [p for p in self.below if not p.factor]


@dataclass(frozen=True)
class Replayed:
    """One point: graph, values, (unit, meaning, source) of given quantities, and known sums (name: its parts)."""

    graph: Graph
    values: Mapping[str, Any]
    given: Mapping[str, tuple[str, str, str]]
    inner: InnerAxes
    breakdowns: Mapping[str, Sequence[str]] = field(default_factory=dict)


def about_of(graph: Graph, given: Mapping[str, tuple[str, str, str]], name: str) -> tuple[str, str, str]:
    """Unit, meaning and source of a quantity; empty for anything else."""
    node = graph.nodes.get(name)
    return (node.unit, node.meaning, node.source) if node else given.get(name, ("", "", ""))


def story_of(
    point: Replayed,
    quantity: str,
    depth: int,
    lines: int | None = None,
    matters: Callable[[Node], Mapping[str, float]] = lambda _: {},
) -> Part:
    """The parts of a quantity down to ``depth`` levels, the largest split first, in at most ``lines`` lines.

    ``matters`` gives the elasticities of a formula, which select the arguments to list if it is not a sum of products.
    """
    parts = _Parts(point, matters)
    root = parts.root(quantity)
    used, order = 1, count()
    waiting = [(-1.0, next(order), 0, root.value, root)]  # importance, number, level, value of the tree, part
    while waiting:
        least, _, level, whole, part = heappop(waiting)
        if level >= depth or (lines is not None and not part.factor and abs(part.value) < WORTH * abs(whole)):
            continue
        below, folded = parts.below(part)
        needed = len(below) + (folded.count > 0)
        if lines is not None and used + needed > lines and level > 0:
            continue
        used += needed
        part.below, part.folded = below, folded
        for child in below:
            if child.factor:
                importance, tree = -least * FACTORS, child.value
            else:
                importance, tree = -least * abs(child.value / part.value) if part.value else 0.0, whole
            heappush(waiting, (-importance, next(order), level + 1, tree, child))
    return root


class _Parts:
    """Finds the parts and factors below a part."""

    def __init__(self, point: Replayed, matters: Callable[[Node], Mapping[str, float]]):
        self.point, self.values, self.nodes, self.matters = point, point.values, point.graph.nodes, matters
        self.units = {name: about_of(point.graph, point.given, name)[0] for name in point.values}

    def root(self, name: str) -> Part:
        """The part of the quantity itself; a vector along inner axes is summed."""
        array, node = np.asarray(self.values[name]), self.nodes.get(name)
        plain = array.dtype == bool or (node is not None and node.flags)
        value = self.values[name] if plain else float(np.sum(array))
        return Part(name, value, self.units[name], name, weights=np.ones(array.shape))

    def below(self, part: Part) -> tuple[list[Part], Folded]:
        """The parts below a part, the largest first, and the small ones that are folded."""
        name, weights, term, node = part.quantity, part.weights, part.term, self.nodes.get(part.quantity)
        if term is None and np.count_nonzero(weights) > 1 and not part.below:
            brought = np.where(weights == 0, 0.0, weights * self.values[name])
            return _folded(self.by_label(part, brought, range(-brought.ndim, 0)), part.value)
        while name in self.nodes and bool(np.all(np.isfinite(np.asarray(self.values[name], float)))):
            node = self.nodes[name]
            found = terms_of(node, self.values, Kinds(node.unit, self.units, self.nodes.__contains__), weights)
            children = self.broken_down(name, weights, [self.part(t, part.unit) for t in found])
            if not found:  # no contribution: list the arguments
                return [self.factor(n, 1.0, "of") for n in dict.fromkeys(node.arguments)][:MOST_FACTORS], NONE
            if len(children) > 1:
                return _folded(part.below or children, part.value)
            (term,) = found
            if not node.formula and term.carrier and not part.rival:
                part.taken = part.taken or term.carrier
            if len(part.factors) < 2:
                part.factors = _notable(term)
            part.rival = part.rival or _closest(term)
            name, weights = term.carrier or "", term.weights
        if part.below:  # the rest of a breakdown
            return _folded(part.below, part.value)
        if term is None:
            return [], NONE
        below = self.last(part, term, node)
        return _folded(below, part.value) if below and not below[0].factor else (below, NONE)

    def part(self, term: Term, unit: str) -> Part:
        """A term as a part."""
        factors = _notable(term)
        named = [f for f in factors if f.names]
        name = " x ".join(f.text for f in named if not f.divides) or term.carrier or "constant"
        name += "".join(f" / {f.text}" for f in named if f.divides)
        quantity, rival = term.carrier or "", _closest(term)
        return Part(name, term.value, unit, quantity, "", factors, rival, weights=term.weights, term=term)

    def broken_down(self, name: str, weights: Any, children: list[Part]) -> list[Part]:
        """Parts of a known sum: summands not among ``children`` go below the one child that is not a summand."""
        known = [self.meant(n) for n in self.point.breakdowns.get(name, ())]
        if not known or np.size(weights) != 1 or not children:
            return children
        weight = float(np.sum(weights))
        own = [Part(n, weight * float(self.values[n]), children[0].unit, n, weights=weight) for n in known]
        lacking = [c for c in children if c.quantity not in known or len(c.factors) > 1]
        rest = [p for p in own if p.value and p.quantity not in {c.quantity for c in children if c not in lacking}]
        total = sum(c.value for c in lacking)
        if len(lacking) == 1 and abs(sum(p.value for p in rest) - total) <= ROUNDING * abs(total):
            lacking[0].below = rest
        return children

    def meant(self, name: str) -> str:
        """The quantity that a name stands for: synonyms are followed."""
        while (node := self.nodes.get(name)) is not None and node.function is same:
            (name,) = node.arguments
        return name

    # -- where a path ends ----------------------------------------------------------------------------------------

    def last(self, part: Part, term: Term, node: Node | None) -> list[Part]:
        """Below a product: the contribution of each label of an inner axis, if it varies along one, or its factors."""
        shapes = [np.shape(f.value) for f in term.factors]
        axes = {i - len(shape) for shape in shapes for i, size in enumerate(shape) if size > 1}
        if labels := self.by_label(part, term.contributions, axes, term):
            return labels
        plain = [f for f in _notable(term) if f.names]
        if plain and all(f.name for f in plain):
            signs = {f.name: "/" if f.divides else "x" for f in plain}
        else:  # not a plain product: the arguments with the largest elasticities
            names = list(dict.fromkeys(n for f in plain for n in f.names) or (node.arguments if node else ()))
            strong = {n: abs(e) for n, e in (self.matters(node) if node else {}).items() if n in names}
            moving = sorted((n for n in names if strong.get(n, 0.0) > LITTLE), key=lambda n: -strong[n])
            signs = dict.fromkeys((moving or names)[:MOST_FACTORS], "of")
        below = [self.factor(n, term.contributions, sign) for n, sign in signs.items() if n != part.name]
        passed_on = len(below) == 1 and below[0].name not in self.nodes and np.array_equal(below[0].value, part.value)
        return [] if passed_on else below

    def factor(self, name: str, contributions: Any, sign: str) -> Part:
        """A factor with its own value; of a vector, the elements that contribute to the product."""
        value, weights = self.values[name], np.ones(())
        if np.size(value) > 1:
            brings = np.asarray(contributions != 0, float)
            wide = brings * np.ones(np.shape(value))  # np.broadcast_shapes takes no more than 32 axes
            weights = np.minimum(fitted(wide, np.shape(value)), 1.0)
            found = np.unique(value[weights != 0])
            if np.count_nonzero(weights) != 1:
                return Part(name, found[0] if found.size == 1 else found, self.units[name], factor=sign)
            value = found[0]
        number = value if isinstance(value, bool) else float(value)
        return Part(name, number, self.units[name], name, sign, weights=weights)

    def by_label(self, part: Part, brought: Any, axes: Iterable[int], term: Term | None = None) -> list[Part]:
        """The parts by label, along the innermost of ``axes`` on which several labels contribute.

        An axis of another length is one that a formula has within itself, such as the steps of an integral.
        """
        brought, inner = np.asarray(brought), self.point.inner
        sizes = {a: len(inner.labels[inner.names[a]]) for a in axes if -min(brought.ndim, len(inner)) <= a}
        for axis in sorted((a for a, size in sizes.items() if brought.shape[a] == size), reverse=True):
            others = tuple(a for a in range(-brought.ndim, 0) if a != axis)
            rows = np.flatnonzero(np.any(brought, axis=others))
            if len(rows) > 1:
                break
        else:
            return []
        name = inner.names[axis]
        found, labels = [], inner.labels[name]
        for row in rows:
            mask = np.zeros(brought.shape[axis])
            mask[row] = 1.0
            mask = mask.reshape((-1,) + (1,) * (-axis - 1))
            child = Part(labels[row], float(np.sum(brought * mask)), part.unit, axis=name)
            if term is None:
                child.quantity, child.weights = part.quantity, np.asarray(part.weights) * mask
            else:
                child.term = replace(term, contributions=brought * mask, carrier=None)
            found.append(child)
        return found


def _notable(term: Term) -> tuple[Factor, ...]:
    """The factors of a term, without those equal to 1."""
    found = [f for f in term.factors if f.text == term.carrier or not np.all(np.asarray(f.value) == 1)]
    return tuple(sorted(found, key=lambda f: f.divides))


def _closest(term: Term) -> Rival | None:
    """The operand closest to the term among those that a maximum or minimum did not take."""
    return min(term.rivals, key=lambda rival: abs(rival.value - term.value), default=None)


def _folded(parts: list[Part], value: Any) -> tuple[list[Part], Folded]:
    """The parts, largest first, with the smallest folded if together below `FOLDED`; a single small one is listed."""
    ordered = sorted(parts, key=lambda p: -abs(p.value))
    keep, rest = len(ordered), 0.0
    while keep > 1 and rest + abs(ordered[keep - 1].value) <= FOLDED * abs(value):
        keep -= 1
        rest += abs(ordered[keep].value)
    if len(ordered) - keep < 2:
        return ordered, NONE
    small = [p.value for p in ordered[keep:]]
    return ordered[:keep], Folded(len(small), sum(small), max(map(abs, small)))
