"""The terms of a formula at one point: its value as a sum of products of its arguments.

A formula is evaluated on numbers that record every operation (`Traced`). The record is read backwards from the result.
Each element has a *weight*, what one unit of it contributes to the value: sums pass the weight to every operand,
products to one operand (the other one becomes a factor of the weight), maxima and conditions to the operand that was
taken. So every term is a weight times one argument, and the terms add up to the value. Any other operation (a root, a
rounding, a host formula) ends the path: its arguments are the factors of one term.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partialmethod
from math import prod
from typing import Any

import numpy as np

from perfgrid.engine.graph.namespace import OF_VALUES, Ruled, value_of, xp
from perfgrid.engine.graph.resolver import Node

SIGNS = {"add": "+", "subtract": "-", "multiply": "x", "divide": "/"}
WRITTEN = ("maximum", "minimum", "ceil", "floor", "sqrt", "exp", "log", "log2")
LONGEST = 40  # characters of a printed expression
ROUNDING = 1e-12
MOVING = ("getitem", "reshape", "broadcast_to", "expand_dims", "squeeze", "take", "take_along_axis", "roll", "asarray")


class Traced(Ruled):
    """A number of a formula, the operation that made it and its operands; an argument has a ``name`` instead."""

    __slots__ = ("made", "name", "names", "operands", "options", "row")

    def __init__(self, value: Any, made: str = "", operands: Any = (), options: Any = None, name: str = ""):
        self.value, self.made, self.operands, self.options, self.name = value, made, operands, options or {}, name
        self.names = (name,) if name else names_in(operands[1:] if made == "where" else operands)
        self.row = ""  # the labels of the row that it is, of an argument with inner axes

    def __float__(self) -> float:
        return float(self.value)

    def __getitem__(self, key: Any) -> Traced:
        return Traced(self.value[key], "getitem", (self,), {"key": key})

    def is_row(self, label: str) -> None:
        """Note that it is the row of a label of what it was taken from."""
        (whole,) = self.operands
        self.row = f"{whole.row},{label}" if whole.row else label

    def apply(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Apply the function ``xp.<name>`` to the values and record it."""
        value = getattr(xp, name)(*map(value_of, arguments), **{k: value_of(v) for k, v in options.items()})
        return value if name in OF_VALUES else Traced(value, name, arguments, options)


@dataclass(frozen=True)
class Factor:
    """An argument, a constant or an expression that multiplies or divides a term."""

    text: str
    names: tuple[str, ...]  # the arguments in it
    value: Any
    divides: bool = False
    unit: str = ""  # of a constant that has one

    @property
    def name(self) -> str:
        """Its name if it is an argument; empty for a constant or an expression."""
        return self.text if self.names == (self.text,) else ""


@dataclass(frozen=True)
class Rival:
    """The operand that a maximum or minimum took, and the other one."""

    taken: str
    other: str
    value: float  # what the other one would have contributed


@dataclass(frozen=True)
class Term:
    """One summand of a formula's value."""

    value: float
    factors: tuple[Factor, ...]  # whose product it is, in the order of the formula
    carrier: str | None = None  # the argument of the unit of the value, which can be split further
    weights: Any = None  # value = sum(weights * last factor), element by element
    contributions: Any = None  # of each element to the value
    rivals: tuple[Rival, ...] = ()


class Kinds:
    """Ranks arguments as carriers of a value: those of its unit first, computed ones before given ones."""

    def __init__(self, unit: str, units: Mapping[str, str], computed: Callable[[str], bool]):
        self.unit, self.units, self.computed = unit, units, computed

    def alike(self, item: Any) -> bool:
        """Whether an expression contains an argument of the value's unit."""
        return any(self.units.get(name, "") == self.unit for name in names_in(item))

    def of(self, item: Any) -> int:
        """The highest rank of an argument of an expression as carrier of the value; 0 for a constant."""
        ranks = (1 + 2 * (self.units.get(name, "") == self.unit) + self.computed(name) for name in names_in(item))
        return max(ranks, default=0)


def names_in(item: Any) -> tuple[str, ...]:
    """The arguments in an expression, except those of conditions."""
    if isinstance(item, (list, tuple)):
        return tuple(dict.fromkeys(name for part in item for name in names_in(part)))
    return item.names if isinstance(item, Traced) else ()


def terms_of(node: Node, values: Mapping[str, Any], kinds: Kinds, weights: Any) -> list[Term]:
    """The nonzero terms of sum(weights * quantity), the largest first."""
    arguments = [Traced(values[a], name=a) for a in node.arguments]
    with np.errstate(all="ignore"):
        host = node.host is not None
        result: Any = Traced(values[node.name], node.name, arguments) if host else node.function(*arguments)
    result = result if isinstance(result, Traced) else Traced(result, "constant")
    weights = np.broadcast_to(np.asarray(weights, np.float64), np.shape(values[node.name]))
    merged: dict[Any, Term] = {}
    with np.errstate(all="ignore"):
        for term in _Split(kinds).split(result, weights.reshape(result.shape), _Way()):
            key = term.carrier, tuple((f.text, f.divides) for f in term.factors), np.shape(term.contributions)
            merged[key] = _merged(merged[key], term) if key in merged else term
    scale = max((abs(t.value) for t in merged.values()), default=0.0)
    found = sorted((t for t in merged.values() if abs(t.value) > ROUNDING * scale), key=lambda t: -abs(t.value))
    return [_with_units(term, dict(node.constants)) for term in _uncancelled(found)]


def _uncancelled(terms: list[Term]) -> list[Term]:
    """Terms without pairs that cancel: neighbours in size that differ only in sign."""
    kept: list[Term] = []
    for term in terms:
        if kept and abs(kept[-1].value + term.value) <= ROUNDING * abs(term.value):
            kept.pop()
        else:
            kept.append(term)
    return kept


def _with_units(term: Term, units: Mapping[float, str]) -> Term:
    """A term whose constants have the units of those that are bound to its formula."""

    def measured(factor: Factor) -> Factor:
        constant = not factor.names and np.ndim(factor.value) == 0
        return replace(factor, unit=units.get(float(factor.value), "")) if constant else factor

    return replace(term, factors=tuple(map(measured, term.factors)))


def _merged(a: Term, b: Term) -> Term:
    weights = None if a.weights is None or b.weights is None else a.weights + b.weights
    together = a.contributions + b.contributions
    return Term(a.value + b.value, a.factors, a.carrier, weights, together, (*a.rivals, *b.rivals))


@dataclass(frozen=True)
class _Way:
    """The factors and rivals on the path from the result to an operand."""

    factors: tuple[Factor, ...] = ()
    rivals: tuple[Rival, ...] = ()
    clear: bool = True  # no other factor ranks as high as a carrier

    def times(self, item: Any, divides: bool = False, clear: bool = True) -> _Way:
        """The path with another factor."""
        return replace(self, factors=(*self.factors, *factors_in(item, divides)), clear=self.clear and clear)


def factors_in(item: Any, divides: bool = False) -> Iterator[Factor]:
    """The factors of an expression."""
    if isinstance(item, Traced) and item.made in ("multiply", "divide"):
        a, b = item.operands
        yield from factors_in(a, divides)
        yield from factors_in(b, divides != (item.made == "divide"))
    else:
        yield Factor(leading(item) or text_of(item), names_in(item), value_of(item), divides)


def leading(item: Any) -> str:
    """The argument whose value an expression passes on unchanged; empty if there is none."""
    while isinstance(item, Traced) and not item.name:
        if item.made in MOVING:
            item = item.operands[0]
        elif item.made in ("maximum", "minimum") and np.size(item.value) == 1:
            item = next(o for o in item.operands if np.all(value_of(o) == item.value))
        else:
            return ""
    return item.name if isinstance(item, Traced) else ""


def leading_row(item: Any) -> str:
    """As `leading`, with the row of the argument that is passed on: ``time_by_stage[last]``."""
    name = leading(item)
    while not item.name and not item.row:
        held = [o for o in item.operands if isinstance(o, Traced) and leading(o) == name]
        item = next((o for o in held if np.all(o.value == item.value)), held[0])
    return f"{name}[{item.row}]" if item.row else name


def text_of(item: Any) -> str:
    """An expression in the notation of formulas, shortened where it is long."""
    if not names_in(item):  # a constant
        value = np.asarray(value_of(item))
        return f"{value.item():g}" if value.size == 1 and value.dtype != bool else "constant"
    if leading(item):
        return leading(item)
    sign = SIGNS.get(item.made)
    if sign or item.made in WRITTEN:
        parts = [text_of(o) for o in item.operands]
        text = f"({f' {sign} '.join(parts)})" if sign else f"{item.made}({', '.join(parts)})"
        if len(text) <= LONGEST:
            return text
    return f"f({', '.join(names_in(item)[:2])}{', ...' if len(names_in(item)) > 2 else ''})"


class _Split:
    """The terms of a recorded expression."""

    def __init__(self, kinds: Kinds):
        self.kinds = kinds

    def split(self, item: Any, weights: Any, way: _Way) -> Iterator[Term]:
        """The terms of sum(weights * item); weights may lie on more axes than the item does."""
        if not np.any(weights):
            return
        rule = getattr(self, f"_{item.made}", None) if isinstance(item, Traced) else None
        if isinstance(item, Traced) and item.made in MOVING:
            rule = self._moving
        if rule is None or not names_in(item):
            yield self._whole(item, weights, way)
        else:
            yield from rule(item, weights, way)

    def _whole(self, item: Any, weights: Any, way: _Way) -> Term:
        """One term: an argument, a constant, or an expression that is not a sum of products."""
        brought = _times(weights, value_of(item))
        name = item.name if isinstance(item, Traced) else ""
        carries = bool(name) and way.clear and self.kinds.units.get(name, "") == self.kinds.unit
        own = fitted(weights, np.shape(value_of(item)))
        factors = (*way.factors, *factors_in(item))
        return Term(float(np.sum(brought)), factors, name if carries else None, own, brought, way.rivals)

    # -- sums -----------------------------------------------------------------------------------------------------

    def _signed(self, item: Traced, weights: Any, way: _Way, sign: float) -> Iterator[Term]:
        a, b = item.operands
        if (sign < 0 or not (names_in(a) and names_in(b))) and not self.kinds.alike(item):
            yield self._whole(item, weights, way)  # such as ranks - 1
            return
        yield from self.split(a, weights, way)
        yield from self.split(b, sign * weights, way)

    _add, _subtract = partialmethod(_signed, sign=1.0), partialmethod(_signed, sign=-1.0)

    def _negative(self, item: Traced, weights: Any, way: _Way) -> Iterator[Term]:
        yield from self.split(item.operands[0], -weights, way)

    def _sum(self, item: Traced, weights: Any, way: _Way) -> Iterator[Term]:
        (operand,) = item.operands
        axis, weights = item.options.get("axis"), fitted(weights, item.shape)
        if axis is not None and not item.options.get("keepdims"):
            weights = np.expand_dims(weights, axis)
        yield from self.split(operand, np.broadcast_to(weights, operand.shape), way)

    # -- products -------------------------------------------------------------------------------------------------

    def _multiply(self, item: Traced, weights: Any, way: _Way) -> Iterator[Term]:
        a, b = item.operands
        ranks = [(self.kinds.of(o), _is_sum(o)) for o in (a, b)]
        carrying, other = (a, b) if ranks[0] >= ranks[1] else (b, a)
        down = _times(weights, value_of(other))
        yield from self.split(carrying, down, way.times(other, clear=ranks[0][0] != ranks[1][0]))

    def _divide(self, item: Traced, weights: Any, way: _Way) -> Iterator[Term]:
        a, b = item.operands
        if names_in(a):
            down = weights / value_of(b)
            yield from self.split(a, np.where(np.isfinite(down), down, 0.0), way.times(b, True))
        else:
            yield self._whole(item, weights, way)

    # -- one of several -------------------------------------------------------------------------------------------

    def _extreme(self, item: Traced, weights: Any, way: _Way, taken: Callable[[Any, Any], Any]) -> Iterator[Term]:
        a, b = item.operands
        mask = taken(value_of(a), value_of(b))
        for operand, other, here in ((a, b, mask), (b, a, np.logical_not(mask))):
            own = way
            if weights.size == 1 and leading(other) and leading(operand):
                rival = Rival(leading_row(operand), leading_row(other), float(np.sum(_times(weights, value_of(other)))))
                own = replace(way, rivals=(*way.rivals, rival))
            yield from self.split(operand, np.where(here, weights, 0.0), own)

    _maximum = partialmethod(_extreme, taken=operator.ge)
    _minimum = partialmethod(_extreme, taken=operator.le)

    def _where(self, item: Traced, weights: Any, way: _Way) -> Iterator[Term]:
        condition, *operands = item.operands
        taken = value_of(condition)
        for operand, mask in zip(operands, (taken, np.logical_not(taken)), strict=True):
            yield from self.split(operand, np.where(mask, weights, 0.0), way)

    def _clip(self, item: Traced, weights: Any, way: _Way) -> Iterator[Term]:
        a, low, high = item.operands
        yield from self.split(xp.minimum(xp.maximum(a, low), high), weights, way)

    def _extreme_along(self, item: Traced, weights: Any, way: _Way, place: Any) -> Iterator[Term]:
        (operand,), axis = item.operands, item.options.get("axis")
        if not isinstance(axis, int):
            yield self._whole(item, weights, way)
            return
        weights = fitted(weights, item.shape)
        if not item.options.get("keepdims"):
            weights = np.expand_dims(weights, axis)
        found = np.zeros(operand.shape)
        np.put_along_axis(found, place(operand.value, axis=axis, keepdims=True), weights, axis)
        yield from self.split(operand, found, way)

    _max = partialmethod(_extreme_along, place=np.argmax)
    _min = partialmethod(_extreme_along, place=np.argmin)

    # -- shapes ---------------------------------------------------------------------------------------------------

    def _moving(self, item: Traced, weights: Any, way: _Way) -> Iterator[Term]:
        """Operations that only move or repeat elements: applied to element indices, they show where each came from."""
        operand, *rest = item.operands
        places = np.arange(prod(operand.shape)).reshape(operand.shape)
        options = {k: value_of(v) for k, v in item.options.items()}
        if item.made == "getitem":
            moved = places[options["key"]]
        else:
            moved = getattr(np, item.made)(places, *map(value_of, rest), **options)
        found = np.bincount(np.ravel(moved), np.ravel(fitted(weights, item.shape)), places.size).reshape(operand.shape)
        yield from self.split(operand, found, way)

    def _concatenate(self, item: Traced, weights: Any, way: _Way) -> Iterator[Term]:
        axis, begin, weights = item.options.get("axis", 0), 0, fitted(weights, item.shape)
        for part in item.operands[0]:
            size = np.shape(value_of(part))[axis]
            yield from self.split(part, np.take(weights, range(begin, begin + size), axis), way)
            begin += size


def fitted(weights: Any, shape: tuple[int, ...]) -> Any:
    """The weights of a result, summed to the shape of an operand that was broadcast to it."""
    weights = np.asarray(weights)
    surplus = weights.ndim - len(shape)
    axes = tuple(i for i in range(weights.ndim) if i < surplus or (shape[i - surplus] == 1 and weights.shape[i] > 1))
    return np.sum(weights, axis=axes, keepdims=True).reshape(shape) if axes else weights


def _times(weights: Any, value: Any) -> Any:
    """A product that is 0 where the weight is, whatever the value."""
    return np.where(weights == 0, 0.0, weights * np.asarray(value, np.float64))


def _is_sum(item: Any) -> bool:
    """Whether an expression is a sum of arguments."""
    return isinstance(item, Traced) and item.made == "add" and all(map(names_in, item.operands))
