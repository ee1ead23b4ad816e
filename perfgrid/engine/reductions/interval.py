"""Intervals through the formulas: given `Interval` numbers, a formula returns bounds of all that it can return.

Bounds hold for the rounded values of a compiled function as well: every operation moves them outwards by sixteen times
its rounding error, so that cancellation, another order of a sum and fused operations are covered. They are of the
precision of the function that they bound. A flag is an interval too: ``lo`` where it surely holds, ``hi`` where it may.
Where nothing is known the bound is infinite, or not a number (which no comparison then takes for a bound).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import jax
import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.namespace import Arraylike, xp

MARGIN = 16  # times the rounding error of one operation
FUNCTION = 64.0  # roundings that a function such as an exponential may be off


class NoBounds(PerfgridError):
    """A function without a rule for intervals."""


class Interval(Arraylike):
    """All numbers from ``lo`` to ``hi``, arrays of one shape in NumPy or JAX."""

    __slots__ = ("extreme_of", "hi", "lo", "positive")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, lo: Any, hi: Any, positive: bool = False, extreme_of: Any = None):
        self.lo, self.hi = lo, hi
        self.positive = positive  # known to hold no number below zero, whatever its values: fewer products then
        self.extreme_of = extreme_of  # the function and whose least or largest value along axes this is

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of both bounds."""
        return np.shape(self.lo)

    @property
    def ndim(self) -> int:
        """Rank of both bounds."""
        return np.ndim(self.lo)

    @property
    def dtype(self) -> Any:
        """Type of both bounds."""
        return self.lo.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Interval:
        return Interval(self.lo[index], self.hi[index], self.positive)

    def astype(self, kind: Any) -> Interval:
        """Both bounds in another type."""
        return Interval(self.lo.astype(kind), self.hi.astype(kind), self.positive)

    def apply(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The function of NumPy of that name; what is an interval already stays one."""
        return arguments[0] if name == "asarray" else getattr(np, name)(*arguments, **options)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc not in UFUNCS:
            raise NoBounds(f"numpy.{ufunc.__name__} has no rule for intervals")
        return UFUNCS[ufunc](*alike(inputs))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function not in FUNCTIONS:
            raise NoBounds(f"numpy.{function.__name__} has no rule for intervals")
        return FUNCTIONS[function](*args, **options)


jax.tree_util.register_pytree_node(Interval, lambda i: ((i.lo, i.hi), None), lambda _, bounds: Interval(*bounds))


def interval(item: Any, kind: Any = None) -> Interval:
    """A number as an interval of its own, a constant in the precision ``kind``."""
    if isinstance(item, Interval):
        return item
    if isinstance(item, jax.Array):
        return Interval(item, item)
    item = np.asarray(item)
    positive = bool(np.all(item >= 0))
    item = item if item.dtype == bool or kind is None else item.astype(kind)
    return Interval(item, item, positive)


def alike(items: Sequence[Any]) -> list[Interval]:
    """All as intervals, constants in the precision of the others: it decides how far bounds move."""
    kinds = [i.dtype for i in items if isinstance(i, (Interval, jax.Array)) and i.dtype != bool]
    return [interval(item, kinds[0] if kinds else None) for item in items]


def outwards(lo: Any, hi: Any, scale: float = 1.0, positive: bool = False) -> Interval:
    """Bounds moved outwards by the rounding of ``scale`` operations; what is next to zero may become zero."""
    kind = np.finfo(lo.dtype)
    error, tiny = float(kind.eps) / 2 * MARGIN * scale, 2 * float(kind.tiny)
    if positive:
        return Interval(xp.maximum(lo * (1 - error) - tiny, 0.0), xp.where(hi == 0, hi, hi * (1 + error) + tiny), True)
    lo = xp.where(lo == 0, lo, lo - (error * abs(lo) + tiny))
    return Interval(lo, xp.where(hi == 0, hi, hi + (error * abs(hi) + tiny)))


def _hull(*ends: Any) -> tuple[Any, Any]:
    return reduce(xp.minimum, ends), reduce(xp.maximum, ends)


# ---- rules of operations --------------------------------------------------------------------------------------------


def _multiply(a: Interval, b: Interval) -> Interval:
    if a.positive and b.positive:
        return outwards(a.lo * b.lo, a.hi * b.hi, positive=True)
    if a.lo is a.hi or b.lo is b.hi:  # of a plain number two products will do
        return outwards(*_hull(a.lo * b.lo, a.hi * b.hi))
    if a.positive or b.positive:
        a, b = (a, b) if a.positive else (b, a)
        return outwards(xp.minimum(a.lo * b.lo, a.hi * b.lo), xp.maximum(a.lo * b.hi, a.hi * b.hi))
    return outwards(*_hull(a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi))


def _known_where(safe: Any, found: Interval) -> Interval:
    return Interval(xp.where(safe, found.lo, -np.inf), xp.where(safe, found.hi, np.inf))


def _divide(a: Interval, b: Interval) -> Interval:
    if a.positive and b.positive:
        some, all_ = b.hi > 0, b.lo > 0
        found = outwards(a.lo / xp.where(some, b.hi, 1.0), a.hi / xp.where(all_, b.lo, 1.0), positive=True)
        return Interval(xp.where(some, found.lo, 0.0), xp.where(all_, found.hi, np.inf), True)
    safe = (b.lo > 0) | (b.hi < 0)
    low, high = xp.where(safe, b.lo, 1.0), xp.where(safe, b.hi, 1.0)
    return _known_where(safe, outwards(*_hull(a.lo / low, a.lo / high, a.hi / low, a.hi / high)))


def _power(a: Interval, b: Interval) -> Interval:
    safe = a.lo > 0
    low, high = xp.where(safe, a.lo, 1.0), xp.where(safe, a.hi, 1.0)
    return _known_where(safe, outwards(*_hull(low**b.lo, low**b.hi, high**b.lo, high**b.hi), FUNCTION))


def _remainder(a: Interval, b: Interval) -> Interval:
    """Anything between zero and the divisor."""
    return Interval(xp.minimum(b.lo, 0.0) + 0.0 * a.lo, xp.maximum(b.hi, 0.0) + 0.0 * a.lo)


def _absolute(a: Interval) -> Interval:
    lo, hi = _hull(abs(a.lo), abs(a.hi))
    return Interval(xp.where((a.lo <= 0) & (a.hi >= 0), 0.0 * lo, lo), hi, True)


def _square(a: Interval) -> Interval:
    a = _absolute(a)
    return outwards(a.lo * a.lo, a.hi * a.hi, positive=True)


def _rising(function: Callable[[Any], Any]) -> Callable[[Interval], Interval]:
    """The rule of a function that nowhere falls."""
    return lambda a: outwards(function(a.lo), function(a.hi), FUNCTION)


def _not(a: Interval) -> Interval:
    return Interval(xp.logical_not(a.hi), xp.logical_not(a.lo))


def _less(a: Interval, b: Interval) -> Interval:
    return Interval(a.hi < b.lo, xp.logical_not(a.lo >= b.hi))


def _less_equal(a: Interval, b: Interval) -> Interval:
    sure, maybe = a.hi <= b.lo, xp.logical_not(a.lo > b.hi)
    for whole, least in ((a, b), (b, a)):
        if least.extreme_of and least.extreme_of[1] is whole:  # of the least among them: the only one that may be it is
            axes = tuple(i for i, (n, one) in enumerate(zip(whole.shape, least.shape, strict=True)) if n != one)
            sure = sure | (maybe & (xp.sum(maybe * 1.0, axis=axes, keepdims=True) == 1))
    return Interval(sure, maybe)


def _equal(a: Interval, b: Interval) -> Interval:
    sure = (a.lo == a.hi) & (b.lo == b.hi) & (a.lo == b.lo)
    return Interval(sure, xp.logical_not((a.lo > b.hi) | (a.hi < b.lo)))


def _numeric(a: Interval) -> Interval:
    return Interval(a.lo * 1.0, a.hi * 1.0, True) if a.dtype == bool else a


def _both(function: Callable[..., Any], positive: Callable[..., bool] = all) -> Callable[..., Interval]:
    """The rule of a function that rises in every argument and is exact; of positive numbers it is positive."""

    def rule(*items: Interval) -> Interval:
        known = positive(i.positive for i in items)
        return Interval(function(*(i.lo for i in items)), function(*(i.hi for i in items)), known)

    return rule


UFUNCS: dict[Any, Callable[..., Interval]] = {
    np.add: lambda a, b: outwards(a.lo + b.lo, a.hi + b.hi, positive=a.positive and b.positive),
    np.subtract: lambda a, b: outwards(a.lo - b.hi, a.hi - b.lo),
    np.multiply: lambda a, b: _multiply(_numeric(a), _numeric(b)),
    np.divide: lambda a, b: _divide(_numeric(a), _numeric(b)),
    np.power: _power,
    np.remainder: _remainder,
    np.square: _square,
    np.absolute: _absolute,
    np.negative: lambda a: Interval(-a.hi, -a.lo),
    np.positive: lambda a: a,
    np.maximum: _both(xp.maximum, any),
    np.minimum: _both(xp.minimum),
    np.floor: _both(xp.floor),
    np.ceil: _both(xp.ceil),
    np.rint: _both(xp.round),
    np.sign: _both(xp.sign),
    np.exp: _rising(xp.exp),
    np.expm1: _rising(xp.expm1),
    np.less: _less,
    np.less_equal: _less_equal,
    np.greater: lambda a, b: _less(b, a),
    np.greater_equal: lambda a, b: _less_equal(b, a),
    np.equal: _equal,
    np.not_equal: lambda a, b: _not(_equal(a, b)),
    np.logical_and: _both(lambda a, b: a & b),
    np.bitwise_and: _both(lambda a, b: a & b),
    np.logical_or: _both(lambda a, b: a | b),
    np.bitwise_or: _both(lambda a, b: a | b),
    np.logical_not: _not,
    np.invert: _not,
}


def _from_zero(function: Callable[[Any], Any], least: float) -> Callable[[Interval], Interval]:
    """The rule of a rising function of numbers above (or from) a least one; below it nothing is known."""

    def rule(a: Interval) -> Interval:
        safe = a.lo > 0 if least < 0 else a.lo >= 0
        lo, hi = (function(xp.where(safe, end, 1.0)) for end in (a.lo, a.hi))
        return _known_where(safe, outwards(lo, hi, FUNCTION))

    return rule


UFUNCS |= {np.sqrt: _from_zero(xp.sqrt, 0.0), np.log: _from_zero(xp.log, -1.0), np.log2: _from_zero(xp.log2, -1.0)}
UFUNCS |= {np.log1p: _from_zero(xp.log1p, 0.0)}


# ---- rules of functions of arrays ------------------------------------------------------------------------------------


def _where(condition: Any, a: Any, b: Any) -> Interval:
    sure, maybe = (condition.lo, condition.hi) if isinstance(condition, Interval) else (condition, condition)
    a, b = alike((a, b))
    if a.dtype == bool and b.dtype == bool:
        lo, hi = a.lo & b.lo, a.hi | b.hi
    else:
        lo, hi = xp.minimum(a.lo, b.lo), xp.maximum(a.hi, b.hi)
    low, positive = xp.where(sure, a.lo, xp.where(maybe, lo, b.lo)), a.positive and b.positive
    return Interval(low, xp.where(sure, a.hi, xp.where(maybe, hi, b.hi)), positive)


def _sum(x: Interval, axis: Any = None, keepdims: bool = False) -> Interval:
    x = _numeric(x)
    lo, hi = (xp.sum(end, axis=axis, keepdims=keepdims) for end in (x.lo, x.hi))
    size = xp.sum(
        xp.maximum(abs(x.lo), abs(x.hi)), axis=axis, keepdims=keepdims
    )  # what the terms' rounding scales with
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    error = float(np.finfo(x.dtype).eps) / 2 * MARGIN * prod(x.shape[a] for a in axes)
    lo = xp.maximum(lo - error * size, 0.0) if x.positive else lo - error * size
    return Interval(lo, hi + error * size, x.positive)


def _ends(function: Any) -> Callable[..., Interval]:
    """The rule of a function that moves numbers only, or takes the larger or smaller of them."""

    def rule(x: Interval, *args: Any, **options: Any) -> Interval:
        return Interval(function(x.lo, *args, **options), function(x.hi, *args, **options), x.positive)

    return rule


def _concatenated(parts: Any, axis: int = 0) -> Interval:
    parts = alike(parts)
    if any(p.dtype != bool for p in parts):
        parts = [_numeric(p) for p in parts]
    lo, hi = (xp.concatenate([end(p) for p in parts], axis=axis) for end in (lambda p: p.lo, lambda p: p.hi))
    return Interval(lo, hi, all(p.positive for p in parts))


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: _where,
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.sum: _sum,
    np.concatenate: _concatenated,
    np.clip: lambda x, low, high: np.minimum(np.maximum(x, low), high),
    np.round: _ends(xp.round),
    np.zeros_like: lambda x: xp.zeros_like(x.lo),
    np.ones_like: lambda x: xp.ones_like(x.lo),
} | {f: _ends(getattr(xp, f.__name__)) for f in (np.reshape, np.broadcast_to, np.expand_dims, np.take, np.roll)}


def _extreme(function: Any) -> Callable[..., Interval]:
    def rule(x: Interval, axis: Any = None, keepdims: bool = False) -> Interval:
        lo, hi = (function(end, axis=axis, keepdims=keepdims) for end in (x.lo, x.hi))
        whole = x.extreme_of[1] if x.extreme_of and x.extreme_of[0] is function else x
        return Interval(lo, hi, x.positive, (function, whole) if keepdims else None)

    return rule


FUNCTIONS |= {np.max: _extreme(xp.max), np.min: _extreme(xp.min)}
