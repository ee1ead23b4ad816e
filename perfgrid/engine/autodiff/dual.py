"""Numbers that carry their derivatives: forward mode through the very text of the formulas, in NumPy and in JAX alike.

A `Dual` is a value and tangents: by a key of the caller's choice an array [directions, *axes of the value], of size 1
along every axis on which it does not vary, so that the derivative with respect to a price lies on the axes of that
price's factor alone. A sensitivity gives each parameter a key of its own; a search gives all its directions at one
place a single one. Derivatives of primitives, exact and smooth, are in `rules`.

A comparison of dual numbers is a `Flag`, which can tell its *margin*, how far it is from turning over, so that a
constraint that says true or false becomes an inequality.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.namespace import OF_VALUES, Ruled, value_of, xp

from .rules import SLOPES, extreme, extreme_along, rounded
from .shapes import behind, joined, lifted, part, reshaped, spread, total

TOGETHER = ""  # the key of tangents that are given without one
TINY = 1e-300


class _Differentiable(Ruled):
    """A dual number or a flag of them."""

    __slots__ = ()

    def apply(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A function of ``xp`` by its rule; PerfgridError where a number with tangents meets none."""
        slopes = type(self) is Dual or name in _OF_BOTH or _holds_dual(arguments)
        if name in OF_VALUES or not slopes:
            return getattr(xp, name)(*map(value_of, arguments), **options)
        if name not in _RULES:
            raise PerfgridError(f"xp.{name} has no rule for derivatives; it is not used by formulas so far")
        return _RULES[name](*arguments, **options)


class Dual(_Differentiable):
    """A value with tangents [directions, *axes] by key, or with one array of them."""

    __slots__ = ("tangents", "unrounded", "up")

    def __init__(self, value: Any, tangents: Any, unrounded: Any = None, up: bool = False):
        self.value = value
        self.tangents: dict[Any, Any] = dict(tangents) if isinstance(tangents, Mapping) else {TOGETHER: tangents}
        self.unrounded = unrounded  # of a result of floor or ceil: what was rounded
        self.up = up

    @property
    def slope(self) -> Any:
        """Tangents that were given without a key, on all axes of the value [directions, *value]; zeros without any."""
        tangent = self.tangents.get(TOGETHER, np.zeros((1,) * (self.ndim + 1)))
        return spread(tangent, self.shape)

    def mapped(self, value: Any, change: Callable[[Any], Any]) -> Dual:
        """``value`` with every tangent changed by a linear function."""
        return Dual(value, {k: change(t) for k, t in self.tangents.items()})

    def __getitem__(self, key: Any) -> Dual:
        return self.mapped(self.value[key], lambda t: part(t, key, self.shape))


class Flag(_Differentiable):
    """True or false of dual numbers; ``margin`` is positive where it is true, and worked out when asked for."""

    __slots__ = ("_margin",)

    def __init__(self, value: Any, margin: Callable[[], Any]):
        self.value, self._margin = value, margin

    @property
    def margin(self) -> Any:
        """How far the flag is from turning over, from -1 to 1: a dual number."""
        return self._margin()

    def __getitem__(self, key: Any) -> Flag:
        return Flag(self.value[key], lambda: self.margin[key])


def margin_of(flag: Any) -> Any:
    """The margin of a flag, or of a plain true or false: 1 or -1 without slopes."""
    return flag.margin if isinstance(flag, Flag) else np.where(flag, 1.0, -1.0)


def _holds_dual(items: Any) -> bool:
    return any(isinstance(i, Dual) or (isinstance(i, (list, tuple)) and _holds_dual(i)) for i in items)


# -- tangents ----------------------------------------------------------------------------------------------------------


def _linear(value: Any, *terms: tuple[Any, Any], chosen: bool = False) -> Dual:
    """``value`` with the sum of slope times tangent over ``terms`` (operand, slope).

    ``chosen``: a tangent is dropped, not multiplied, where its slope is 0: it may be NaN there.
    """
    found: dict[Any, Any] = {}
    rank = np.ndim(value)
    for operand, slope in terms:
        if not isinstance(operand, Dual) or (type(slope) is float and slope == 0.0):
            continue
        for key, tangent in operand.tangents.items():
            term = lifted(tangent, rank)
            if type(slope) is not float or slope != 1.0:
                term = slope * term
            if chosen:
                term = xp.where(slope == 0, 0.0, term)
            found[key] = found[key] + term if key in found else term
    return Dual(value, found)


# -- rules: numbers ----------------------------------------------------------------------------------------------------


def _elementwise(name: str) -> Callable[..., Any]:
    function, slopes = SLOPES[name]

    def apply(*operands: Any) -> Any:
        values = [value_of(o) for o in operands]
        value = function(*values)
        return _linear(
            value, *((o, s(*values, value)) for o, s in zip(operands, slopes, strict=True) if isinstance(o, Dual))
        )

    return apply


def _extreme(a: Any, b: Any, largest: bool) -> Any:
    value, left, right = extreme(value_of(a), value_of(b), largest)
    return _linear(value, (a, left), (b, right), chosen=True)


def _extreme_along(a: Dual, axis: Any, keepdims: bool, largest: bool) -> Any:
    axes = behind(axis, a.ndim)
    found, weight = extreme_along(a.value, axes, largest)

    def change(tangent: Any) -> Any:
        return xp.sum(xp.where(weight == 0, 0.0, weight * tangent), axis=axes, keepdims=keepdims)

    return a.mapped(found if keepdims else xp.squeeze(found, axis=axes), change)


def _rounded(name: str) -> Callable[..., Any]:
    def apply(a: Any) -> Any:
        value, slope = rounded(name, a.value)
        return Dual(value, _linear(value, (a, slope)).tangents, a, name == "ceil")

    return apply


def _where(condition: Any, a: Any, b: Any) -> Any:
    picked, left, right = map(value_of, (condition, a, b))
    value = xp.where(picked, left, right)
    if value.dtype == bool:
        return Flag(value, lambda: xp.where(picked, margin_of(a), margin_of(b)))
    mine, others = (i.tangents if isinstance(i, Dual) else {} for i in (a, b))

    def tangent(found: Mapping[Any, Any], key: Any) -> Any:
        return lifted(found[key], value.ndim) if key in found else 0.0

    found = {k: xp.where(picked, tangent(mine, k), tangent(others, k)) for k in {**mine, **others}}
    return Dual(value, found) if isinstance(a, Dual) or isinstance(b, Dual) else value


def _sum(a: Dual, axis: Any = None, keepdims: bool = False) -> Any:
    axes = behind(axis, a.ndim)
    return a.mapped(xp.sum(a.value, axis=axes, keepdims=keepdims), lambda t: total(t, a.shape, axes, keepdims))


def _along(a: Any, axis: Any) -> list[Any]:
    """The rows of an array along an axis, each with size 1 along it."""
    (place,) = behind(axis, a.ndim)
    after = (slice(None),) * (-place - 1)
    return [a[(..., slice(i, i + 1), *after)] for i in range(a.shape[place])]


# -- rules: shapes -----------------------------------------------------------------------------------------------------


def _whole(name: str) -> Callable[..., Any]:
    """The rule of a linear function along an axis that needs every row of a tangent."""

    def apply(a: Any, *arguments: Any, axis: int) -> Any:
        function, (place,) = getattr(xp, name), behind(axis, a.ndim)
        value = function(a.value, *arguments, axis=place)
        return a.mapped(value, lambda t: function(spread(t, a.shape), *arguments, axis=place))

    return apply


def _shaped(name: str, change: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    """The rule of a function that keeps elements in order; ``change`` takes a tangent, the old and the new shape."""

    def apply(a: Any, *arguments: Any, **options: Any) -> Any:
        function = getattr(xp, name)
        value = function(a.value, *arguments, **options)
        if isinstance(a, Flag):
            return Flag(value, lambda: function(a.margin, *arguments, **options))
        found = a.mapped(value, lambda t: change(t, a.shape, np.shape(value)))
        found.unrounded = None if a.unrounded is None else function(a.unrounded, *arguments, **options)
        found.up = a.up
        return found

    return apply


def _concatenate(parts: Any, axis: int = 0) -> Any:
    value = xp.concatenate([xp.asarray(value_of(p)) for p in parts], axis=axis)
    (place,) = behind(axis, value.ndim)
    sizes = [np.shape(value_of(p))[place] for p in parts]
    keys = dict.fromkeys(k for p in parts if isinstance(p, Dual) for k in p.tangents)
    of = [p.tangents if isinstance(p, Dual) else {} for p in parts]
    return Dual(value, {k: joined([t.get(k) for t in of], sizes, place, value.dtype) for k in keys})


def _take(a: Any, indices: Any, axis: int) -> Any:
    value = xp.take(a.value, indices, axis=axis)
    if isinstance(a, Flag):
        return Flag(value, lambda: xp.take(margin_of(a), indices, axis=axis))
    (place,) = behind(axis, a.ndim)
    return a.mapped(
        value,
        lambda t: (
            t if t.shape[place] == 1 and np.ndim(indices) == 1 else xp.take(spread(t, a.shape), indices, axis=place)
        ),
    )


def _take_along_axis(a: Any, indices: Any, axis: int) -> Any:
    (place,) = behind(axis, a.ndim)

    def change(tangent: Any) -> Any:
        return xp.take_along_axis(spread(tangent, a.shape), spread(indices[None], indices.shape), axis=place)

    return a.mapped(xp.take_along_axis(a.value, indices, axis=place), change)


# -- rules: flags ------------------------------------------------------------------------------------------------------


def _comparison(function: Callable[[Any, Any], Any], margin: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda a, b: Flag(function(value_of(a), value_of(b)), lambda: margin(a, b))


def _equality(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return _comparison(function, lambda a, b: np.where(function(value_of(a), value_of(b)), 1.0, -1.0))


def _above(a: Any, b: Any) -> Any:
    return (a - b) / (xp.abs(a) + xp.abs(b) + TINY)


def _least(a: Any, b: Any) -> Any:
    """The exact smaller number, whatever companion is set."""
    return xp.where(value_of(a) <= value_of(b), a, b)


def _and(a: Any, b: Any) -> Flag:
    return Flag(xp.logical_and(value_of(a), value_of(b)), lambda: _least(margin_of(a), margin_of(b)))


def _or(a: Any, b: Any) -> Flag:
    return Flag(xp.logical_or(value_of(a), value_of(b)), lambda: -_least(-margin_of(a), -margin_of(b)))


def _not(a: Any) -> Flag:
    return Flag(xp.logical_not(value_of(a)), lambda: -margin_of(a))


_OF_BOTH: dict[str, Callable[..., Any]] = {  # flags keep their margins
    "where": _where,
    **{name: _shaped(name, reshaped) for name in ("reshape", "expand_dims", "squeeze")},
    "broadcast_to": _shaped("broadcast_to", lambda tangent, _, new: lifted(tangent, len(new))),
    "take": _take,
    "asarray": lambda a: a,
    "less": _comparison(operator.lt, lambda a, b: _above(b, a)),
    "less_equal": _comparison(operator.le, lambda a, b: _above(b, a)),
    "greater": _comparison(operator.gt, _above),
    "greater_equal": _comparison(operator.ge, _above),
    "equal": _equality(operator.eq),
    "not_equal": _equality(operator.ne),
    **dict.fromkeys(("logical_and", "bitwise_and"), _and),
    **dict.fromkeys(("logical_or", "bitwise_or"), _or),
    **dict.fromkeys(("logical_not", "invert"), _not),
}

_RULES: dict[str, Callable[..., Any]] = {
    **_OF_BOTH,
    **{name: _elementwise(name) for name in SLOPES},
    **{name: _rounded(name) for name in ("ceil", "floor", "round")},
    "rint": _rounded("round"),
    "maximum": lambda a, b: _extreme(a, b, True),
    "minimum": lambda a, b: _extreme(a, b, False),
    "max": lambda a, axis=None, keepdims=False: _extreme_along(a, axis, keepdims, True),
    "min": lambda a, axis=None, keepdims=False: _extreme_along(a, axis, keepdims, False),
    "clip": lambda a, low, high: xp.minimum(xp.maximum(a, low), high),
    "sum": _sum,
    "prod": lambda a, axis: xp.squeeze(reduce(operator.mul, _along(a, axis)), axis),
    "cumprod": lambda a, axis: xp.concatenate(list(accumulate(_along(a, axis), operator.mul)), axis),
    "cumsum": _whole("cumsum"),
    "roll": _whole("roll"),
    "concatenate": _concatenate,
    "take_along_axis": _take_along_axis,
}
