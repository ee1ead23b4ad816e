"""Dimensional analysis of a whole graph: every formula is traced and its dimensions followed.

FLOP, tokens and other counts are pure numbers; bytes, seconds, watts and dollars are dimensions. The literals 0, 1e10
(the time of an unavailable algorithm) and 1e30 fit any dimension; host formulas are taken at their word.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import jax
import numpy as np
import pint
from jax.extend import core as jex

from perfgrid.engine.graph.registry import same
from perfgrid.engine.graph.resolver import Node, _Names
from perfgrid.engine.grid.plan import Plan

Dimension = dict[str, Fraction] | None  # None fits anything

_REGISTRY = pint.UnitRegistry()
for definition in ("USD = [money]", "FLOP = count", "token = count", "octet = [information] = byte_"):
    _REGISTRY.define(definition)
_KEEP = {
    "broadcast_in_dim",
    "reshape",
    "squeeze",
    "slice",
    "transpose",
    "convert_element_type",
    "copy",
    "copy_p",
    "gather",
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "cumsum",
    "neg",
    "abs",
    "stop_gradient",
    "expand_dims",
    "dynamic_slice",
    "rev",
}
_JOIN = {"add", "sub", "max", "min", "concatenate", "rem", "clamp", "nextafter", "add_any"}
_COMPARE = {"eq", "ne", "lt", "le", "gt", "ge"}
_PURE = {
    "exp",
    "exp2",
    "log",
    "log2",
    "log1p",
    "expm1",
    "tanh",
    "logistic",
    "ceil",
    "floor",
    "round",
    "erf",
    "sin",
    "cos",
}
_LOGIC = {"and", "or", "not", "xor", "is_finite", "reduce_and", "reduce_or", "iota", "sign"}


class UnitError(AssertionError):
    """A formula combines what cannot be combined."""


@cache
def dimension(unit: str) -> dict[str, Fraction]:
    """The dimension of a unit text; bytes are a dimension of their own."""
    text = unit.replace("byte", "octet") if unit else "1"
    parsed = _REGISTRY.parse_units(text) if text != "1" else _REGISTRY.dimensionless
    found = {}
    for base, power in _REGISTRY.get_dimensionality(parsed).items():
        found[str(base)] = Fraction(float(str(power))).limit_denominator(12)
    return found


def _join(parts: list[Dimension], what: str) -> Dimension:
    known = [p for p in parts if p is not None]
    for other in known[1:]:
        if other != known[0]:
            raise UnitError(f"{what} combines {_text(known[0])} with {_text(other)}")
    return known[0] if known else None


def _text(found: Dimension) -> str:
    return "anything" if found is None else " ".join(f"{b}^{p}" for b, p in sorted(found.items())) or "a pure number"


def _times(a: Dimension, b: Dimension, sign: int = 1) -> Dimension:
    if a is None or b is None:
        return None
    powers = {base: a.get(base, Fraction(0)) + sign * b.get(base, Fraction(0)) for base in {*a, *b}}
    return {base: power for base, power in powers.items() if power}


def _power(a: Dimension, exponent: Fraction) -> Dimension:
    return None if a is None else {base: power * exponent for base, power in a.items() if power * exponent}


def _constant(value: Any) -> Dimension:
    array = np.asarray(value)
    return None if array.size and np.isin(array, (0, 1e10, 1e30)).all() else {}


def follow(
    jaxpr: Any, consts: list[Any], arguments: list[Dimension], values: dict[Any, Any] | None = None
) -> list[Dimension]:
    """The dimensions of a jaxpr's outputs, given those of its inputs. UnitError where unlike things are combined."""
    known: dict[Any, Dimension] = dict(zip(jaxpr.constvars, map(_constant, consts), strict=True))
    known |= dict(zip(jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Dimension:
        return _constant(variable.val) if isinstance(variable, jex.Literal) else known[variable]

    for equation in jaxpr.eqns:
        name, given = equation.primitive.name, [read(v) for v in equation.invars]
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        if inner is not None:
            closed = inner if hasattr(inner, "consts") else None
            results = follow(inner.jaxpr if closed else inner, closed.consts if closed else [], given)
        elif name in _KEEP:
            results = [given[0]]
        elif name in _JOIN:
            results = [_join(given, name)]
        elif name == "select_n":
            results = [_join(given[1:], "where")]
        elif name in _COMPARE:
            _join(given, f"comparison {name}")
            results = [{}]
        elif name in _LOGIC:
            results = [{}]
        elif name == "mul":
            results = [_times(given[0], given[1])]
        elif name == "div":
            results = [_times(given[0], given[1], -1)]
        elif name == "integer_pow":
            results = [_power(given[0], Fraction(equation.params["y"]))]
        elif name == "sqrt":
            results = [_power(given[0], Fraction(1, 2))]
        elif name == "rsqrt":
            results = [_power(given[0], Fraction(-1, 2))]
        elif name == "square":
            results = [_power(given[0], Fraction(2))]
        elif name == "pow":
            exponent = equation.invars[1]
            if isinstance(exponent, jex.Literal):
                results = [_power(given[0], Fraction(float(exponent.val)).limit_denominator(12))]
            else:
                _join([given[0], given[1], {}], "power")
                results = [{}]
        elif name in _PURE:
            _join([given[0], {}], name)
            results = [{}]
        else:
            raise UnitError(f"primitive {name!r} is not known to the unit check")
        for variable, result in zip(equation.outvars, results, strict=True):
            known[variable] = result
    return [read(v) for v in jaxpr.outvars]


def _unbound(plan: Plan, names: _Names, node: Node) -> tuple[Callable[..., Any], list[tuple[str, str]]]:
    """The function of a node before the graph bound constants to it, and its arguments, constants with their units."""
    formula = plan.registry.formulas.get(node.formula)
    if formula is None or node.function is same:
        return node.function, [(name, "") for name in node.arguments]
    meant = [names.meant(name) for name in formula.arguments]
    units = ["" if names.constant(name) is None else plan.registry.get(name).unit for name in meant]
    return formula.function, list(zip(meant, units, strict=True))


@cache
def _traced(function: Callable[..., Any], *shapes: jax.ShapeDtypeStruct) -> Any:
    """A formula as a jaxpr; plans of other labels have most of their formulas in common."""
    return jax.make_jaxpr(lambda *a: jax.numpy.asarray(function(*a)))(*shapes)


def check(plan: Plan, units: dict[str, str]) -> list[str]:
    """What is wrong with the units of a plan's formulas; ``units`` are those of the given quantities."""
    problems, space = [], plan.study_space
    names = _Names(plan.registry, set(space.names()), plan.choices, space.label_quantities())
    declared = {**units, **{n.name: n.unit for n in plan.graph.nodes.values()}}
    for node in plan.graph.nodes.values():
        if node.host is not None:  # plain Python: its unit is as declared
            continue
        function, arguments = _unbound(plan, names, node)
        shapes = []
        for argument, unit in arguments:
            quantity = plan.quantities.get(argument)
            shape = () if quantity is None else (1, *quantity.inner)
            shapes.append(jax.ShapeDtypeStruct(shape, bool if quantity is not None and quantity.flag else np.float32))
            declared[argument] = unit or declared[argument]
        closed = _traced(function, *shapes)
        try:
            (found,) = follow(closed.jaxpr, closed.consts, [dimension(declared[a]) for a, _ in arguments])
        except UnitError as error:
            problems.append(f"{node.name}: {error}")
            continue
        constant = not node.arguments  # a formula without arguments is a constant and carries its own unit
        if not constant and found is not None and found != dimension(node.unit):
            problems.append(f"{node.name}: is {_text(found)}, declared {node.unit!r}")
    return problems
