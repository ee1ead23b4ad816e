"""Error statistics of predictions, and the trivial baseline of one constant per device."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

FEWEST_RANKED = 3  # rows needed for a rank correlation


@dataclass(frozen=True)
class Error:
    """Statistics of ln(predicted / measured) over some rows; None if undefined."""

    rows: int
    median: float | None = None  # of the magnitudes
    p90: float | None = None  # of the magnitudes
    largest: float | None = None  # of the magnitudes
    mape: float | None = None  # mean of |predicted / measured - 1|
    bias: float | None = None  # mean with sign
    rank: float | None = None  # Spearman's correlation of the throughputs


def error_of(predicted: Sequence[float], measured: Sequence[float], rates: Sequence[float] | None = None) -> Error:
    """The error statistics of some rows.

    ``rates`` are what a row would achieve in one unit of time (work per device, say): ranks are those of rate / time;
    without them of the values themselves.
    """
    if len(predicted) == 0:
        return Error(0)
    p, m = np.asarray(predicted, float), np.asarray(measured, float)
    logs = np.log(p / m)
    work = np.asarray(rates, float) if rates is not None else None
    rank = spearman(p, m) if work is None else spearman(work / p, work / m)
    return Error(
        rows=len(p),
        median=float(np.median(np.abs(logs))),
        p90=float(np.percentile(np.abs(logs), 90)),
        largest=float(np.abs(logs).max()),
        mape=float(np.mean(np.abs(p / m - 1))),
        bias=float(np.mean(logs)),
        rank=rank,
    )


def spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """Spearman's rank correlation, equal values sharing their mean rank; None for few or constant values."""
    if len(a) < FEWEST_RANKED:
        return None
    # rounded, so that values that differ in the last bits are equal
    first, second = (pd.Series([float(f"{v:.12g}") for v in values]).rank() for values in (a, b))
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def constant_rate(work: Sequence[float], measured: Sequence[float], kinds: Sequence[Hashable]) -> list[float]:
    """Predictions of the trivial baseline: work times one constant for each kind of row, fitted to these rows.

    The constant is the median of measured / work, which makes the median error least.
    """
    ratios: dict[Hashable, list[float]] = {}
    for w, m, kind in zip(work, measured, kinds, strict=True):
        ratios.setdefault(kind, []).append(m / w)
    constants = {kind: float(np.median(r)) for kind, r in ratios.items()}
    return [w * constants[kind] for w, kind in zip(work, kinds, strict=True)]
