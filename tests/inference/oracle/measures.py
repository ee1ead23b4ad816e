"""What requests saw: means and percentiles, each with the simulation's own 90 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import t as student

from .system import Result
from .traffic import Traffic

BATCHES = 20  # of successive requests; their spread gives the interval
STATISTICS = ("mean", "p50", "p90", "p99")
TIMES = ("first_token", "per_token", "latency")


@dataclass(frozen=True)
class Measure:
    """An estimate and half of the width of its 90 % interval."""

    value: float
    half: float

    def wide(self) -> float:
        """Half of the width over the estimate."""
        return self.half / abs(self.value) if self.value else 0.0


def times(traffic: Traffic, result: Result) -> dict[str, np.ndarray]:
    """First token, mean time per later token (NaN of one token) and latency of each request: s.

    In an endless queue a request counts from the moment when the place that it takes is free.
    """
    arrival = arrivals(traffic, result)
    later = np.where(traffic.output > 1, traffic.output - 1, np.nan)
    per_token = (result.end - result.first) / later
    return {"first_token": result.first - arrival, "per_token": per_token, "latency": result.end - arrival}


def arrivals(traffic: Traffic, result: Result) -> np.ndarray:
    """When requests came; in an endless queue, when the place that each takes was free: s."""
    if traffic.kind != "endless":
        return result.arrival
    order = np.argsort(result.admitted, kind="stable")
    freed = np.r_[np.zeros(places_of(result)), np.sort(result.end)][: len(order)]
    found = np.empty_like(freed)
    found[order] = np.minimum(freed, result.admitted[order])
    return found


def places_of(result: Result) -> int:
    """Sequences that were under way together at most."""
    return int(under_way(result)[1].max())


def under_way(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Times at which the number of sequences under way changes (s), and the number from then on."""
    at = np.r_[result.admitted, result.end]
    change = np.r_[np.ones(len(result.admitted)), -np.ones(len(result.end))]
    order = np.lexsort((change, at))  # one that ends makes room before another begins
    return at[order], np.cumsum(change[order])


def window(traffic: Traffic, result: Result, warm_up: float, ebb: float) -> tuple[np.ndarray, float, float]:
    """Requests that count, in the order of arrival or admission, and from when to when (s).

    A loop of clients counts whole: its burst and ebb are part of the load.
    """
    count = len(traffic.output)
    if traffic.kind == "clients" and warm_up == 0:
        return np.arange(count), 0.0, float(result.end.max())
    came, low, high = result.arrival, int(warm_up * count), int((1 - ebb) * count)
    if traffic.kind == "endless":  # until nobody waits, without those that began together and those that replaced them
        came, low, high = result.admitted, max(low, min(3 * places_of(result), count // 2)), count
    order = np.argsort(came, kind="stable")
    return order[low:high], float(came[order[low]]), float(came[order[high - 1]])


def measures(runs: Sequence[tuple[Traffic, Result]], warm_up: float = 0.1, ebb: float = 0.05) -> dict[str, Any]:
    """Statistics of each of `TIMES`, of ``gap``, and ``throughput`` (requests/s), over one long run or several ones.

    A run of clients counts whole. The interval follows from batches of a single run, or from the runs.
    """
    samples: dict[str, list[np.ndarray]] = {name: [] for name in (*TIMES, "gap")}
    weights, rates = [], []
    for traffic, result in runs:
        drop = (0.0, 0.0) if traffic.kind == "clients" else (warm_up, ebb)
        chosen, since, until = window(traffic, result, *drop)
        parts = 1 if len(runs) > 1 else BATCHES
        found = times(traffic, result)
        for name in TIMES:
            samples[name] += np.array_split(found[name][chosen], parts)
        edges = np.linspace(since, until, parts + 1)
        ends, gaps, counts = result.gaps[:, np.argsort(result.gaps[0], kind="stable")]
        cuts = np.searchsorted(ends, edges)
        samples["gap"] += [gaps[a:b] for a, b in pairwise(cuts)]
        weights += [counts[a:b] for a, b in pairwise(cuts)]
        ended = np.searchsorted(np.sort(result.end), edges, side="right")
        ended[0] = np.searchsorted(np.sort(result.end), edges[0])
        rates += (np.diff(ended) / np.maximum(np.diff(edges), 1e-12)).tolist()
    table: dict[str, Any] = {
        name: {s: pooled(samples[name], s, weights if name == "gap" else None) for s in STATISTICS} for name in samples
    }
    return table | {"throughput": Measure(float(np.mean(rates)), half_width(rates))}


def pooled(samples: list[np.ndarray], statistic: str, weights: list[np.ndarray] | None = None) -> Measure:
    """A statistic of all samples together, and the interval of its value in each."""
    weights = weights or [np.ones(len(one)) for one in samples]
    pairs = [(one[~np.isnan(one)], w[~np.isnan(one)]) for one, w in zip(samples, weights, strict=True)]
    pairs = [(one, w) for one, w in pairs if len(one)]
    if not pairs:
        return Measure(float("nan"), float("nan"))
    values, counts = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    return Measure(of(values, counts, statistic), half_width([of(*pair, statistic) for pair in pairs]))


def of(values: np.ndarray, weights: np.ndarray, statistic: str) -> float:
    """The mean, or the value below which this part of the weights lies."""
    if statistic == "mean":
        return float(np.average(values, weights=weights))
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    middle = (below - weights[order] / 2) / below[-1]
    return float(np.interp(float(statistic[1:]) / 100, middle, values[order]))


def half_width(values: Sequence[float]) -> float:
    """Half of the 90 % interval of the mean of values that are taken as independent."""
    if len(values) < 2:
        return float("nan")
    return float(student.ppf(0.95, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))


def little(traffic: Traffic, result: Result) -> float:
    """Mean number of requests in the system over rate times mean latency, of a whole run."""
    span = result.end.max()
    at = np.r_[arrivals(traffic, result), result.end]
    change = np.repeat([1.0, -1.0], len(result.end))
    order = np.argsort(at, kind="stable")
    inside = np.cumsum(change[order])[:-1]
    mean = np.sum(inside * np.diff(at[order])) / span
    return float(mean / (len(result.end) / span * np.mean(times(traffic, result)["latency"])))
