"""Numbers that carry their derivatives: forward mode through the very text of the formulas, in NumPy and in JAX alike.

A `Dual` is a value and, per direction, its tangent. Tangents have the rank of the value but size 1 along every axis on
which they do not vary, so the derivative with respect to a price lies on the axes of that price's factor alone.

Derivatives are exact wherever a formula has one. Where it has none:

* `maximum`, `minimum`, `max`, `min`, `clip` and `abs` at a tie: the mean over the tied operands (of two, the mean of
  the one-sided derivatives);
* `ceil`, `floor`, `round`: 0, the slope on either side of the jump; `sqrt`, `log` and powers at 0: 0;
* `where`, comparisons, sorting: the branch and the order that hold.

With a ``sharpness`` p, values stay what they are and two of these rules become smooth: the tangent of `maximum`
(`minimum`) of non-negative operands is that of their p-norm (-p-norm), scaled to the exact value, so that elasticities
are weighted means with weights a^p / (a^p + b^p) and every Euler sum is kept; `ceil`, `floor` and `round` let tangents
pass straight through (Bengio, Leonard and Courville, arXiv 1308.3432).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .errors import PerfgridError
from .namespace import Ruled, xp

Tangents = Mapping[Any, Any]


class Dual(Ruled):
    """A value with tangents by direction; ``sharpness`` None for exact derivatives."""

    __array_ufunc__ = None  # NumPy arrays leave arithmetic with it to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any, tangents: Tangents, sharpness: float | None = None):
        self.value, self.tangents, self.sharpness = value, tangents, sharpness

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return np.shape(self.value)

    @property
    def ndim(self) -> int:
        """The rank of the value."""
        return np.ndim(self.value)

    @property
    def dtype(self) -> Any:
        """The kind of number."""
        return self.value.dtype if hasattr(self.value, "dtype") else np.asarray(self.value).dtype

    def linear(self, value: Any, *terms: tuple[Any, Any]) -> Any:
        """``value`` with the sum of coefficient times tangent over ``terms`` (operand, coefficient; None stands for 1).

        Operands without tangents are skipped; without any this is the plain value.
        """
        found: dict[Any, Any] = {}
        for operand, coefficient in terms:
            if isinstance(operand, Dual):
                for key, tangent in operand.tangents.items():
                    part = tangent if coefficient is None else coefficient * tangent
                    found[key] = found[key] + part if key in found else part
        return Dual(value, found, self.sharpness) if found else value

    def mapped(self, value: Any, change: Callable[[Any], Any]) -> Dual:
        """``value`` with every tangent changed by a linear function."""
        return Dual(value, {k: change(t) for k, t in self.tangents.items()}, self.sharpness)

    def apply(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A function of ``xp`` by its rule; PerfgridError where there is none."""
        if name in _OF_VALUES:
            return getattr(xp, name)(*map(plain, arguments), **options)
        if name not in _RULES:
            raise PerfgridError(f"xp.{name} has no rule for derivatives; it is not used by formulas so far")
        return _RULES[name](self, *arguments, **options)

    # -- operators ------------------------------------------------------------------------------------------------

    def __neg__(self) -> Any:
        return self.mapped(-self.value, lambda t: -t)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return _abs(self, self)

    def __add__(self, other: Any) -> Any:
        return self.linear(self.value + plain(other), (self, None), (other, None))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self.linear(self.value - plain(other), (self, None), (other, -1.0))

    def __rsub__(self, other: Any) -> Any:
        return self.mapped(plain(other) - self.value, lambda t: -t)

    def __mul__(self, other: Any) -> Any:
        value = plain(other)
        return self.linear(self.value * value, (self, value), (other, self.value))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return _quotient(self, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _quotient(self, other, self)

    def __pow__(self, other: Any) -> Any:
        return _power(self, self, other)

    def __rpow__(self, other: Any) -> Any:
        return _power(self, other, self)

    def __mod__(self, other: Any) -> Any:
        return _remainder(self, self, other)

    def __rmod__(self, other: Any) -> Any:
        return _remainder(self, other, self)

    def __lt__(self, other: Any) -> Any:
        return self.value < plain(other)

    def __le__(self, other: Any) -> Any:
        return self.value <= plain(other)

    def __gt__(self, other: Any) -> Any:
        return self.value > plain(other)

    def __ge__(self, other: Any) -> Any:
        return self.value >= plain(other)

    def __eq__(self, other: Any) -> Any:
        return self.value == plain(other)

    def __ne__(self, other: Any) -> Any:
        return self.value != plain(other)

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        simple = all(k is Ellipsis or k is None or isinstance(k, (int, slice)) for k in keys)
        if not simple:
            return self.mapped(self.value[key], lambda t: xp.broadcast_to(t, self.shape)[key])
        behind = keys[::-1].index(Ellipsis) if Ellipsis in keys else 0
        front = keys[: len(keys) - behind - 1] if Ellipsis in keys else keys

        def narrowed(tangent: Any) -> Any:
            """The key for a tangent: along an axis on which it does not vary its one row stands for all."""
            sizes = (1,) * (self.ndim - np.ndim(tangent)) + np.shape(tangent)

            def along(part: tuple[Any, ...], axes: Iterable[int]) -> tuple[Any, ...]:
                axis = iter(axes)
                found = []
                for k in part:
                    one = k is not None and sizes[next(axis)] == 1
                    found.append(0 if one and isinstance(k, int) else slice(None) if one else k)
                return tuple(found)

            count = sum(k is not None for k in keys[len(keys) - behind :]) if behind else 0
            inside = along(front, range(self.ndim))
            outside = along(keys[len(keys) - behind :], range(self.ndim - count, self.ndim)) if behind else ()
            middle = (Ellipsis,) if Ellipsis in keys else ()
            return xp.reshape(tangent, sizes)[(*inside, *middle, *outside)]

        return self.mapped(self.value[key], narrowed)


def plain(value: Any) -> Any:
    """A value without its tangents; tuples and lists of them too."""
    if isinstance(value, Dual):
        return value.value
    return type(value)(map(plain, value)) if isinstance(value, (list, tuple)) else value


def _raised(array: Any, rank: int) -> Any:
    shape = np.shape(array)
    return array if len(shape) == rank else xp.reshape(xp.asarray(array), (1,) * (rank - len(shape)) + shape)


# -- rules: arithmetic -----------------------------------------------------------------------------------------------


def _quotient(self: Dual, a: Any, b: Any) -> Any:
    over, under = plain(a), plain(b)
    value, inverse = over / under, 1.0 / under
    return self.linear(value, (a, inverse), (b, -value * inverse if isinstance(b, Dual) else None))


def _power(self: Dual, a: Any, b: Any) -> Any:
    base, exponent = plain(a), plain(b)
    value, terms = base**exponent, []
    if isinstance(a, Dual):
        fine = (base != 0) | (exponent >= 1)
        terms.append((a, exponent * xp.where(fine, base, 1.0) ** (exponent - 1.0) * xp.where(fine, 1.0, 0.0)))
    if isinstance(b, Dual):
        terms.append((b, value * xp.log(xp.where(base > 0, base, 1.0))))
    return self.linear(value, *terms)


def _remainder(self: Dual, a: Any, b: Any) -> Any:
    over, under = plain(a), plain(b)
    return self.linear(over % under, (a, None), (b, -xp.floor(over / under)))


def _smooth(name: str, slope: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """The rule of a function of one argument from its derivative, given argument and value."""

    def apply(self: Dual, a: Any) -> Any:
        value = getattr(xp, name)(a.value)
        return self.linear(value, (a, slope(a.value, value)))

    return apply


def _guarded(condition: Any, safe: Any, slope: Callable[[Any], Any]) -> Any:
    """A slope where it exists, 0 elsewhere; never evaluated where it does not."""
    return xp.where(condition, slope(xp.where(condition, safe, 1.0)), 0.0)


def _straight(name: str) -> Callable[..., Any]:
    def apply(self: Dual, a: Any) -> Any:
        value = getattr(xp, name)(a.value)
        return value if self.sharpness is None else Dual(value, a.tangents, self.sharpness)

    return apply


def _abs(self: Dual, a: Any) -> Any:
    return self.linear(abs(a.value), (a, xp.sign(a.value)))


# -- rules: choices --------------------------------------------------------------------------------------------------


def _where(self: Dual, condition: Any, a: Any, b: Any) -> Any:
    condition, value = plain(condition), xp.where(plain(condition), plain(a), plain(b))
    mine = a.tangents if isinstance(a, Dual) else {}
    others = b.tangents if isinstance(b, Dual) else {}
    found = {k: xp.where(condition, mine.get(k, 0.0), others.get(k, 0.0)) for k in {**mine, **others}}
    return Dual(value, found, self.sharpness) if found else value


def _extreme(name: str, sign: float) -> Callable[..., Any]:
    """The rule of ``maximum`` and ``minimum``."""

    def apply(self: Dual, a: Any, b: Any) -> Any:
        left, right = plain(a), plain(b)
        value = getattr(xp, name)(left, right)
        share = xp.where(left == right, 0.5, xp.where((left > right) if sign > 0 else (left < right), 1.0, 0.0))
        of_left, of_right = share, 1.0 - share
        if self.sharpness is not None:
            most, least = xp.maximum(left, right), xp.minimum(left, right)
            smooth = (least > 0) & (most < np.inf)
            ratio = xp.where(smooth, least, 0.0) / xp.where(smooth, most, 1.0)
            lesser = ratio**self.sharpness / (1.0 + ratio**self.sharpness)  # weight of the operand that gives way
            weight = xp.where(smooth, xp.where(share == 0.5, 0.5, share + (1.0 - 2.0 * share) * lesser), share)
            of_left = weight * xp.where(smooth, value, 1.0) / xp.where(smooth, left, 1.0)
            of_right = (1.0 - weight) * xp.where(smooth, value, 1.0) / xp.where(smooth, right, 1.0)
        return self.linear(value, _chosen(a, of_left), _chosen(b, of_right))

    return apply


def _chosen(operand: Any, weight: Any) -> tuple[Any, Any]:
    """An operand whose tangent is dropped, not multiplied, where its weight is 0: it may be no number there."""
    if isinstance(operand, Dual):
        operand = operand.mapped(operand.value, lambda t: xp.where(weight == 0, 0.0, t))
    return operand, weight


def _extreme_along(name: str, sign: float) -> Callable[..., Any]:
    """The rule of ``max`` and ``min`` along axes."""

    def apply(self: Dual, a: Any, axis: Any = None, keepdims: bool = False) -> Any:
        found = getattr(xp, name)(a.value, axis=axis, keepdims=True)
        tied = xp.where(a.value == found, 1.0, 0.0)
        weight = tied / xp.sum(tied, axis=axis, keepdims=True)
        if self.sharpness is not None:
            smooth = (xp.min(a.value, axis=axis, keepdims=True) > 0) & (found < np.inf)
            safe, of = xp.where(smooth, a.value, 1.0), xp.where(smooth, found, 1.0)
            power = (safe / of if sign > 0 else of / safe) ** self.sharpness
            soft = power / xp.sum(power, axis=axis, keepdims=True) * of / safe
            weight = xp.where(smooth, soft, weight)
        value = found if keepdims else xp.squeeze(found, axis=axis)

        def change(tangent: Any) -> Any:
            return xp.sum(xp.where(weight == 0, 0.0, weight * tangent), axis=axis, keepdims=keepdims)

        return a.mapped(value, change)

    return apply


def _clip(self: Dual, a: Any, low: Any, high: Any) -> Any:
    return xp.minimum(xp.maximum(a, low), high)


# -- rules: shapes ---------------------------------------------------------------------------------------------------


def _sum(self: Dual, a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    axes = range(a.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)

    def change(tangent: Any) -> Any:
        raised = _raised(tangent, a.ndim)
        once = int(np.prod([a.shape[i] for i in axes if raised.shape[i] == 1], dtype=np.int64))
        total = xp.sum(raised, axis=axis, keepdims=keepdims)
        return total * float(once) if once != 1 else total

    return a.mapped(xp.sum(a.value, axis=axis, keepdims=keepdims), change)


def _whole(name: str) -> Callable[..., Any]:
    """The rule of a linear function that needs every row of a tangent."""

    def apply(self: Dual, a: Any, *arguments: Any, **options: Any) -> Any:
        function = getattr(xp, name)
        value = function(a.value, *arguments, **options)
        return a.mapped(value, lambda t: function(xp.broadcast_to(t, a.shape), *arguments, **options))

    return apply


def _reshape(self: Dual, a: Any, shape: tuple[int, ...]) -> Any:
    value, added = xp.reshape(a.value, shape), len(shape) - a.ndim
    if added >= 0 and tuple(shape[added:]) == a.shape and set(shape[:added]) <= {1}:
        return a.mapped(value, lambda t: _raised(t, len(shape)))
    return a.mapped(value, lambda t: xp.reshape(xp.broadcast_to(t, a.shape), shape))


def _broadcast_to(self: Dual, a: Any, shape: tuple[int, ...]) -> Any:
    return Dual(xp.broadcast_to(a.value, shape), a.tangents, self.sharpness)


def _asarray(self: Dual, a: Any) -> Any:
    return Dual(xp.asarray(a.value), a.tangents, self.sharpness)


def _concatenate(self: Dual, parts: Any, axis: int = 0) -> Any:
    value = xp.concatenate([xp.asarray(plain(p)) for p in parts], axis=axis)
    rank, place = value.ndim, axis % value.ndim
    sizes = [np.shape(plain(p))[place] for p in parts]
    found: dict[Any, Any] = {}
    for key in dict.fromkeys(k for p in parts if isinstance(p, Dual) for k in p.tangents):
        tangents = [_raised(p.tangents.get(key, 0.0) if isinstance(p, Dual) else 0.0, rank) for p in parts]
        common = [max(t.shape[i] for t in tangents) for i in range(rank)]
        shapes = [tuple(size if i == place else n for i, n in enumerate(common)) for size in sizes]
        found[key] = xp.concatenate(
            [xp.asarray(xp.broadcast_to(t, s), dtype=value.dtype) for t, s in zip(tangents, shapes, strict=True)],
            axis=axis,
        )
    return Dual(value, found, self.sharpness)


_OF_VALUES = (
    "logical_not", "logical_and", "logical_or", "zeros_like", "ones_like", "ndim", "shape", "argsort", "argmax",
    "argmin", "isfinite", "sign",
)  # fmt: skip

_SLOPES: dict[str, Callable[[Any, Any], Any]] = {
    "exp": lambda a, value: value,
    "expm1": lambda a, value: value + 1.0,
    "log": lambda a, value: _guarded(a > 0, a, lambda x: 1.0 / x),
    "log2": lambda a, value: _guarded(a > 0, a, lambda x: 1.4426950408889634 / x),
    "log1p": lambda a, value: _guarded(a > -1, 1.0 + a, lambda x: 1.0 / x),
    "sqrt": lambda a, value: _guarded(a > 0, value, lambda root: 0.5 / root),
}

_RULES: dict[str, Callable[..., Any]] = {
    **{name: _smooth(name, slope) for name, slope in _SLOPES.items()},
    **{name: _straight(name) for name in ("ceil", "floor", "round")},
    "abs": _abs,
    "where": _where,
    "maximum": _extreme("maximum", 1.0),
    "minimum": _extreme("minimum", -1.0),
    "max": _extreme_along("max", 1.0),
    "min": _extreme_along("min", -1.0),
    "clip": _clip,
    "sum": _sum,
    "cumsum": _whole("cumsum"),
    "expand_dims": _whole("expand_dims"),
    "roll": _whole("roll"),
    "reshape": _reshape,
    "broadcast_to": _broadcast_to,
    "asarray": _asarray,
    "concatenate": _concatenate,
}
