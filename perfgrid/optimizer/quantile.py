"""Quantiles over samples of uncertain estimates: exact ones, and a smooth companion that a search may descend."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfgrid.engine.graph.namespace import value_of, xp

WIDTH = 0.72  # of the logistic kernel, times spread · samples^(-1/3): the normal kernel's 1.3 at equal variance
HALVINGS = 60  # of an interval that holds a quantile


def quantile(values: Any, level: float, smooth: bool = False) -> Any:
    """The quantile of values [..., samples] along their last axis, as [...]; a smooth one with its derivatives.

    Exact: between order statistics, linearly, as `numpy.quantile`. Smooth: the t at which the distribution function
    estimated with a kernel reaches the level, mean(F((t - x)/h)) = level, where F is the logistic function and h the
    bandwidth of Azzalini (azzalini1981quantile, for n samples proportional to their standard deviation and n^(-1/3)).
    It has derivatives of any order, unlike weighted order statistics, which have kinks where two samples change places.
    """
    if values.shape[-1] == 1:
        return values[..., 0]
    if not smooth:
        plain = value_of(values)
        with np.errstate(invalid="ignore"):
            return np.quantile(plain, level, axis=-1)
    count = values.shape[-1]
    centre = xp.sum(values, axis=-1, keepdims=True) / count
    apart = values - centre
    variance = xp.sum(apart * apart, axis=-1, keepdims=True) / count
    least = (1e-9 * np.abs(value_of(centre))) ** 2 + 1e-300  # all samples alike, zeros too
    width = WIDTH * count ** (-1 / 3) * xp.sqrt(variance + least)
    places = apart / width
    root = _root(value_of(places), level)
    below = 1 / (1 + xp.exp(places - root))
    share = value_of(below)
    density = np.mean(share * (1 - share), axis=-1, keepdims=True)
    root = root - (xp.sum(below, axis=-1, keepdims=True) / count - level) / density  # carries the derivatives of it
    return (centre + width * root)[..., 0]


def _root(places: np.ndarray, level: float) -> np.ndarray:
    """The r at which mean(1/(1 + exp(places - r))) along the last axis is the level, by halving."""
    reach = abs(np.log(level / (1 - level))) + 1
    low = places.min(axis=-1, keepdims=True) - reach
    high = places.max(axis=-1, keepdims=True) + reach
    with np.errstate(over="ignore"):
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            above = np.mean(1 / (1 + np.exp(places - middle)), axis=-1, keepdims=True) > level
            low, high = np.where(above, low, middle), np.where(above, middle, high)
    return (low + high) / 2
