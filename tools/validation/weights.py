"""Errors in which sources weigh equally, and the trivial baseline with constants of other units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np


def equal_weights(sources: Sequence[Hashable]) -> np.ndarray:
    """Weights of rows with which all sources weigh equally; their sum is one."""
    rows = Counter(sources)
    return np.array([1 / (rows[source] * len(rows)) for source in sources])


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The least value that, with all below it, holds this share of the weights."""
    return float(np.quantile(values, share, weights=weights, method="inverted_cdf"))


def rates_of_others(
    work: Sequence[float],
    measured: Sequence[float],
    kinds: Sequence[Hashable],
    peaks: Sequence[float],
    sources: Sequence[str],
    units: Sequence[str],
) -> list[float]:
    """Predictions of the trivial baseline with constants from other units, whose sources weigh equally.

    The constant is the weighted median of measured / work of rows of the same kind. If no other unit has such rows, all
    rows of other units give a share of the peak rate.
    """
    times, peak = np.asarray(measured) / np.asarray(work), np.asarray(peaks)
    found = []
    for i, (own, kind) in enumerate(zip(units, kinds, strict=True)):
        others = [k for k, unit in enumerate(units) if unit != own]
        alike = [k for k in others if kinds[k] == kind]
        weights = equal_weights([sources[k] for k in alike or others])
        if alike:
            constant = weighted_quantile(times[alike], weights, 0.5)
        else:
            constant = weighted_quantile((times * peak)[others], weights, 0.5) / peak[i]
        found.append(float(work[i] * constant))
    return found
