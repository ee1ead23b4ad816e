"""Calibration of one cluster: factors on catalog quantities by MAP, and which of them are freed by held-out error.

The posterior is that of logarithms: damped errors of the rows (pseudo-Huber) with a noise that the rows show, and the
priors of the factors. Each Gauss-Newton step evaluates the rows of all fits, with exact derivatives, at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError, nearest, together

from .calibration import NOISE
from .calibration import damped as damped_beyond
from .cluster_rows import PACE, ClusterRows, Factor
from .design import Row
from .metrics import Error, error_of
from .schema import Record, data, read_records, record_files

FEWEST = 3  # rows
FOLDS = 6  # most groups of held-out layouts
STEPS = 10  # of Gauss-Newton
DAMPED = 0.05  # error beyond which the loss grows linearly: what repeated steps of one cluster scatter
FURTHEST = 0.7  # change of a factor's logarithm in one step
SETTLED = 1e-3
USUAL_ROWS = 6.0  # rows for which the scatter that is usual within a source of the stack counts (`ranking_error`)
KIND_ROWS = 40.0  # rows as which the rows of a kind count at most: errors of a long scan are not independent
SIMPLER = (
    1.25  # the smallest set is chosen whose held-out error is at most so many times the least: few rows say no more
)

Job = tuple[tuple[str, ...], np.ndarray, np.ndarray | None]  # factors, rows to fit, where to start


@dataclass
class Fit:
    """Factors fitted to some rows."""

    names: tuple[str, ...]
    keep: np.ndarray  # rows fitted
    point: np.ndarray  # logarithms of the factors
    errors: np.ndarray = field(default_factory=lambda: np.zeros(0))  # ln(predicted / measured) of all rows
    slopes: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # their derivatives
    noise: float = 0.1
    loss: float = np.inf

    def covariance(self, factors: Sequence[Factor], weights: np.ndarray) -> np.ndarray:
        """Covariance of the logarithms (Laplace's approximation)."""
        return np.linalg.inv(self._precision(weights) + np.diag([f.spread**-2 for f in factors]))

    def _precision(self, weights: np.ndarray) -> np.ndarray:
        scaled = self.slopes * (np.sqrt(weights * self.keep) * damped(self.errors)[1] / self.noise)[:, None]
        return scaled.T @ scaled


@dataclass(frozen=True)
class Candidate:
    """A set of factors, fitted to all rows, with what it says of rows that it was fitted without."""

    name: str
    fit: Fit
    fitted: Error
    held_out: Error | None = None  # None: all rows are of one layout
    held_out_logs: np.ndarray | None = None
    score: float | None = None  # mean of held-out |ln(predicted / measured)|, rows weighted as in the fit


@dataclass(frozen=True)
class ClusterCalibration:
    """The calibration of one cluster."""

    measured: ClusterRows
    candidates: Mapping[str, Candidate]
    chosen: Candidate
    covariance: np.ndarray  # of the logarithms of its factors


def calibrate_cluster(measured: ClusterRows, sets: Mapping[str, Sequence[str]] | None = None) -> ClusterCalibration:
    """Fit each set of factors (those of `factors.toml`), and choose the smallest near the least held-out error.

    Rows of a single layout cannot show which factor is off: they fit the constant factor, without held-out error.

    Raises PerfgridError for fewer than three rows.
    """
    count = len(measured.rows)
    if count < FEWEST:
        raise PerfgridError(f"{count} of the records can be predicted, and {FEWEST} are needed")
    weights, folds = row_weights(measured), folds_of(measured)
    alone = not folds.any()
    if sets is None:
        sets = {name: own for name, own in data("factors")["sets"].items() if not alone or set(own) <= {PACE}}
    sets = _distinct(sets, measured.factors)
    whole = fitted(measured, [(names, np.ones(count, bool), None) for names in sets.values()], weights)
    if alone:
        found = {
            name: Candidate(name, fit, _error(measured, fit.errors)) for name, fit in zip(sets, whole, strict=True)
        }
        return _chosen(measured, found, [*found.values()][-1], weights)
    keeps = [folds != fold for fold in range(folds.max() + 1)]
    parts = fitted(
        measured,
        [(fit.names, keep, fit.point) for fit in whole for keep in keeps],
        weights,
    )
    found = {}
    for i, (name, fit) in enumerate(zip(sets, whole, strict=True)):
        logs = np.empty(count)
        for keep, part in zip(keeps, parts[i * len(keeps) : (i + 1) * len(keeps)], strict=True):
            logs[~keep] = part.errors[~keep]
        score = float(np.average(np.abs(logs), weights=weights))
        found[name] = Candidate(name, fit, _error(measured, fit.errors), _error(measured, logs), logs, score)
    scores = {name: candidate.score or 0.0 for name, candidate in found.items()}
    near = next(name for name, score in scores.items() if score <= SIMPLER * min(scores.values()))
    return _chosen(measured, found, found[near], weights)


def _chosen(
    measured: ClusterRows, found: Mapping[str, Candidate], chosen: Candidate, weights: np.ndarray
) -> ClusterCalibration:
    factors = [measured.factors[name] for name in chosen.fit.names]
    return ClusterCalibration(measured, found, chosen, chosen.fit.covariance(factors, weights))


def _distinct(sets: Mapping[str, Sequence[str]], known: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Sets of known factors, each once."""
    found: dict[tuple[str, ...], str] = {}
    for name, factors in sets.items():
        found.setdefault(tuple(factor for factor in factors if factor in known), name)
    return {name: factors for factors, name in found.items()}


def records_of(paths: Iterable[Any], catalog: Catalog, group: Collection[str], on: str | None) -> list[Record]:
    """The records of some sources and one device, in order.

    Raises PerfgridError for an invalid record, and for a source or a device that has none.
    """
    records, problems = read_records(record_files(paths), catalog)
    if problems:  # a fit must not ignore invalid records
        raise PerfgridError(together(f"{problem.place}: {problem.reason}" for problem in problems))
    for what, wanted, known in (
        ("group", group, {record.group for record in records}),
        ("device", [on] if on else [], {record.device for record in records}),
    ):
        if unknown := [name for name in wanted if name not in known]:
            raise PerfgridError(f"no record is of {what} {unknown[0]!r}{nearest(unknown[0], known)}")
    return [r for r in records if (not group or r.group in group) and on in (None, r.device)]


def damped(errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Residuals of the fit and their derivatives: few outliers among few rows decide little."""
    return damped_beyond(errors, DAMPED)


def row_weights(measured: ClusterRows) -> np.ndarray:
    """Weights of rows: 1, and less for kinds of records with many rows."""
    kinds = np.array([row.record.kind for row in measured.rows])
    counts = np.array([(kinds == kind).sum() for kind in kinds])
    return np.minimum(1.0, KIND_ROWS / counts)


def folds_of(measured: ClusterRows) -> np.ndarray:
    """The fold of each row: all rows of a layout are in one fold, layouts are spread over at most `FOLDS`.

    Where only the size of messages differs, each size is a layout.
    """
    layouts = [_layout(row) for row in measured.rows]
    if len(set(layouts)) == 1:
        layouts = [_layout(row, set()) for row in measured.rows]
    numbers = {layout: i for i, layout in enumerate(dict.fromkeys(layouts))}
    return np.array([numbers[layout] % FOLDS for layout in layouts])


def _layout(row: Row, but: Set[str] = frozenset({"size"})) -> tuple[str, ...]:
    record = row.record
    about = record.collective or record.kernel or record.plan
    stated = {} if about is None else about.model_dump(exclude=set(but))
    return (record.kind, str(record.devices), *(f"{k}={v}" for k, v in stated.items()))


def fitted(measured: ClusterRows, jobs: Sequence[Job], weights: np.ndarray) -> list[Fit]:
    """MAP of each job: names of factors, rows to fit, and where to start (None: at the catalog and away from it).

    A step that makes the loss larger is halved: where a bound or another resource takes over, slopes change.
    """
    every = tuple(measured.factors)
    count = len(measured.rows)
    paths = [
        (number, Fit(names, keep, point), point)
        for number, (names, keep, start) in enumerate(jobs)
        for point in ([start] if start is not None else _starts([measured.factors[name] for name in names]))
    ]
    best: dict[int, Fit] = {}
    for _ in range(STEPS if any(start is None for *_, start in jobs) else STEPS // 2):
        if not paths:
            break
        points = np.zeros((len(paths), len(every)))
        for i, (_, path, trial) in enumerate(paths):
            points[i, [every.index(name) for name in path.names]] = trial
        rows = np.tile(np.arange(count), len(paths))
        errors, slopes = measured.evaluated(rows, np.repeat(points, count, axis=0), every)
        errors, slopes = errors.reshape(len(paths), count), slopes.reshape(len(paths), count, len(every))
        going = []
        for (number, path, trial), e, s in zip(paths, errors, slopes, strict=True):
            factors = [measured.factors[name] for name in path.names]
            here = Fit(path.names, path.keep, trial, e, s[:, [every.index(name) for name in path.names]])
            here.noise = _noise(here, factors, weights, measured.scatter)
            here.loss = _loss(here, factors, weights)
            if number not in best or here.loss <= best[number].loss:
                best[number] = here
            better = here.loss <= path.loss
            moved = _next(here, factors, weights) if better else (path.point + trial) / 2
            if len(trial) and np.max(np.abs(moved - trial)) > SETTLED:
                going.append((number, here if better else path, moved))
        paths = going
    return [best[number] for number in range(len(jobs))]


def _starts(factors: Sequence[Factor]) -> list[np.ndarray]:
    """The catalog, and points at which one factor is away from it."""
    away = [math.log(factor.away or 1.0) for factor in factors]
    return [np.zeros(len(factors)), *(row for row in np.diag(away) if row.any())]


def _noise(fit: Fit, factors: Sequence[Factor], weights: np.ndarray, usual: float) -> float:
    """Scatter of the rows about the fit, for the freedom that it left; the usual one counts as some rows more.

    It is bounded: far from the measurements it would leave the priors alone to decide.
    """
    own = weights * fit.keep
    squares = float(np.sum(own * damped(fit.errors)[0] ** 2))
    fit.noise = usual
    precision = fit._precision(weights)
    prior = np.diag([f.spread**-2 for f in factors])
    used = float(np.trace(np.linalg.solve(precision + prior, precision))) if len(factors) else 0.0
    left = max(float(own.sum()) - used, 0.0)
    return min(math.sqrt((squares + USUAL_ROWS * usual**2) / (left + USUAL_ROWS)), max(usual, NOISE))


def _loss(fit: Fit, factors: Sequence[Factor], weights: np.ndarray) -> float:
    own = weights * fit.keep
    spread = np.array([f.spread for f in factors])
    misfit = np.sum(own * (damped(fit.errors)[0] / fit.noise) ** 2) + 2 * own.sum() * np.log(fit.noise)
    return float(misfit + np.sum((fit.point / spread) ** 2))


def _next(fit: Fit, factors: Sequence[Factor], weights: np.ndarray) -> np.ndarray:
    """The best point for errors that are linear about the fit, not too far from it."""
    from scipy.optimize import least_squares  # slow to import, not needed for predictions

    if not factors:
        return fit.point
    spread = np.array([f.spread for f in factors])
    scale = np.sqrt(weights * fit.keep) / fit.noise

    def at(x: np.ndarray) -> np.ndarray:
        return fit.errors + fit.slopes @ (x - fit.point)

    found = least_squares(
        lambda x: np.concatenate([scale * damped(at(x))[0], x / spread]),
        fit.point,
        cast(Any, lambda x: np.vstack([(scale * damped(at(x))[1])[:, None] * fit.slopes, np.diag(1 / spread)])),
        (fit.point - FURTHEST, fit.point + FURTHEST),
        xtol=1e-6,
        ftol=1e-8,
    )
    return found.x


def _error(measured: ClusterRows, logs: np.ndarray) -> Error:
    return error_of((measured.measured * np.exp(logs)).tolist(), measured.measured.tolist())
