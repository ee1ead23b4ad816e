"""Derivatives of the primitives that formulas are made of, for plain arrays: one table, in NumPy and in JAX alike.

Derivatives are exact wherever a primitive has one. Where it has none:

* `maximum`, `minimum`, `max`, `min`, `clip` and `abs` at a tie: the mean over the tied operands (of two, the mean of
  the one-sided derivatives);
* `ceil`, `floor`, `round`: 0, the slope on either side of the jump; `sqrt`, `log` and powers at 0: 0;
* `where`, comparisons, sorting: the branch and the order that hold.

Two smooth companions stand beside the exact rules, each chosen for a block of code (`smoothing`):

* a *sharpness* p keeps every value. Slopes of `maximum` (`minimum`) of non-negative operands are those of their p-norm
  (-p-norm), scaled to the exact value, so that elasticities are weighted means with weights a^p / (a^p + b^p) and every
  Euler sum is kept; `ceil`, `floor` and `round` let slopes pass straight through (Bengio, Leonard and Courville, arXiv
  1308.3432). It shows what nearly binds.
* a *temperature* changes values to a smooth function with the slopes of that function, which a search may descend: the
  larger and the smaller of two numbers are rounded off over that relative width, `ceil` and `floor` follow their mean.
  `max` and `min` along an axis stay exact: formulas compare with them to find which one it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfgrid.engine.graph.namespace import xp


@dataclass(frozen=True)
class Companion:
    """Which rules hold: exact ones unless one of the two is set."""

    temperature: float = 0.0
    sharpness: float | None = None


EXACT = Companion()
COMPANION: ContextVar[Companion] = ContextVar("companion", default=EXACT)


@contextmanager
def smoothing(temperature: float = 0.0, sharpness: float | None = None) -> Iterator[None]:
    """Rules of a smooth companion within the block; without either, exact values and derivatives."""
    token = COMPANION.set(Companion(temperature, sharpness))
    try:
        yield
    finally:
        COMPANION.reset(token)


# -- one operand or two: value, then the slope by each operand ---------------------------------------------------------


def _power_base(a: Any, b: Any, value: Any) -> Any:
    fine = (a != 0) | (b >= 1)
    return b * xp.where(fine, a, 1.0) ** (b - 1.0) * xp.where(fine, 1.0, 0.0)


def _guarded(condition: Any, safe: Any, slope: Callable[[Any], Any]) -> Any:
    """A slope where it exists, 0 elsewhere; never evaluated where it does not."""
    return xp.where(condition, slope(xp.where(condition, safe, 1.0)), 0.0)


def _one(*_: Any) -> float:
    return 1.0


def _less_one(*_: Any) -> float:
    return -1.0


Slope = Callable[..., Any]  # from the operands and the value; a float 1.0 or 0.0 spares the multiplication

SLOPES: dict[str, tuple[Callable[..., Any], tuple[Slope, ...]]] = {
    "add": (operator.add, (_one, _one)),
    "subtract": (operator.sub, (_one, _less_one)),
    "multiply": (operator.mul, (lambda a, b, y: b, lambda a, b, y: a)),
    "divide": (operator.truediv, (lambda a, b, y: 1.0 / b, lambda a, b, y: -y * (1.0 / b))),
    "power": (operator.pow, (_power_base, lambda a, b, y: y * xp.log(xp.where(a > 0, a, 1.0)))),
    "remainder": (operator.mod, (_one, lambda a, b, y: -xp.floor(a / b))),
    "negative": (operator.neg, (_less_one,)),
    "positive": (operator.pos, (_one,)),
    "absolute": (operator.abs, (lambda a, y: xp.sign(a),)),
    "abs": (operator.abs, (lambda a, y: xp.sign(a),)),
    "exp": (xp.exp, (lambda a, y: y,)),
    "expm1": (xp.expm1, (lambda a, y: y + 1.0,)),
    "log": (xp.log, (lambda a, y: _guarded(a > 0, a, lambda x: 1.0 / x),)),
    "log2": (xp.log2, (lambda a, y: _guarded(a > 0, a, lambda x: 1.4426950408889634 / x),)),
    "log1p": (xp.log1p, (lambda a, y: _guarded(a > -1, 1.0 + a, lambda x: 1.0 / x),)),
    "sqrt": (xp.sqrt, (lambda a, y: _guarded(a > 0, y, lambda root: 0.5 / root),)),
}


# -- what has kinks and steps: the exact rule and its companions -------------------------------------------------------


def extreme(a: Any, b: Any, largest: bool) -> tuple[Any, Any, Any]:
    """The larger or the smaller of two numbers and its slopes by both."""
    value = xp.maximum(a, b) if largest else xp.minimum(a, b)
    share = xp.where(a == b, 0.5, xp.where((a > b) if largest else (a < b), 1.0, 0.0))
    companion = COMPANION.get()
    if companion.sharpness is not None:
        return value, *_norm(a, b, value, share, companion.sharpness)
    if companion.temperature:
        return _rounded_off(a, b, value, share, largest, companion.temperature)
    return value, share, 1.0 - share


def _norm(a: Any, b: Any, value: Any, share: Any, sharpness: float) -> tuple[Any, Any]:
    """Slopes of the p-norm, scaled to the exact value."""
    most, least = xp.maximum(a, b), xp.minimum(a, b)
    smooth = (least > 0) & (most < np.inf)
    ratio = xp.where(smooth, least, 0.0) / xp.where(smooth, most, 1.0)
    lesser = ratio**sharpness / (1.0 + ratio**sharpness)  # weight of the operand that gives way
    weight = xp.where(smooth, xp.where(share == 0.5, 0.5, share + (1.0 - 2.0 * share) * lesser), share)
    scale = xp.where(smooth, value, 1.0)
    return weight * scale / xp.where(smooth, a, 1.0), (1.0 - weight) * scale / xp.where(smooth, b, 1.0)


def _rounded_off(a: Any, b: Any, value: Any, share: Any, largest: bool, temperature: float) -> tuple[Any, Any, Any]:
    """Rounded off by (sqrt(d^2 + 4 t^2 |ab|) - |d|)/2 with d = a - b.

    That is t times the number where both are equal, t^2 of the smaller one far from there, nothing beside a zero.
    """
    distance, ab = a - b, a * b
    width = 4 * temperature**2
    square = distance**2 + width * xp.abs(ab)
    met = square > 0
    root, sign = xp.sqrt(xp.where(met, square, 1.0)), 0.5 * width * xp.sign(ab)
    gap = xp.where(met, 0.5 * width * xp.abs(ab) / (root + xp.abs(distance)), 0.0)
    side = xp.sign(distance)
    gap_a = xp.where(met, 0.5 * ((distance + sign * b) / root - side), 0.0)
    gap_b = xp.where(met, 0.5 * ((sign * a - distance) / root + side), 0.0)
    way = 1.0 if largest else -1.0
    return value + way * gap, share + way * gap_a, 1.0 - share + way * gap_b


def extreme_along(a: Any, axis: Any, largest: bool) -> tuple[Any, Any]:
    """The largest or smallest value along axes, kept with size 1, and the slope by each element."""
    found = (xp.max if largest else xp.min)(a, axis=axis, keepdims=True)
    tied = xp.where(a == found, 1.0, 0.0)
    weight = tied / xp.sum(tied, axis=axis, keepdims=True)
    sharpness = COMPANION.get().sharpness
    if sharpness is not None:
        smooth = (xp.min(a, axis=axis, keepdims=True) > 0) & (found < np.inf)
        safe, of = xp.where(smooth, a, 1.0), xp.where(smooth, found, 1.0)
        power = (safe / of if largest else of / safe) ** sharpness
        weight = xp.where(smooth, power / xp.sum(power, axis=axis, keepdims=True) * of / safe, weight)
    return found, weight


def rounded(name: str, a: Any) -> tuple[Any, Any]:
    """`ceil`, `floor` or `round` and its slope; the mean of a rounding is x + 1/2 from 1 upwards, x - 1/2 down to 0."""
    companion = COMPANION.get()
    if companion.temperature and name == "ceil":
        return extreme(a + 0.5, 1.0, True)[:2]
    if companion.temperature and name == "floor":
        return xp.where(a > 0.5, a - 0.5, 0.0), xp.where(a > 0.5, 1.0, 0.0)
    return getattr(xp, name)(a), 0.0 if companion.sharpness is None else 1.0
