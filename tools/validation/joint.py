"""Constants that are fitted together to the training steps of all sources, and again without each unit of records.

The fit is that of `calibration`: damped errors of logarithms, priors and bounds, but each source weighs equally. Where
the host decides, the loss has several minima: the fit is repeated from the best of the points around its result.

A unit that is left out moves the constants little, so the derivatives of the joint fit serve all units: a fit to
linearised errors, repeated with the errors at its result evaluated where it moved them. A unit without which another of
the points around is better is fitted in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, cast

import numpy as np

from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.validation.calibration import NOISE, STEP, Constant, Model, damped

from . import data
from .weights import equal_weights

SOURCE_ROWS = 5.0  # independent rows that a source counts as: most of an error is shared by its rows
MOVED = 0.01  # change of an error beyond which it is evaluated again
AGAIN = 3  # most evaluations of a fit without a unit
AROUND = (-2.0, -1.0, 1.0, 2.0)  # distances of points around a fit, in deviations of a prior
ROUNDS = 4  # most fits from points around
GAIN = 0.1  # of the loss, for which another point is taken
Errors = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # errors at a point and their derivatives


def constants_of(catalog: Catalog, table: Mapping[str, Any] | None = None) -> dict[str, Constant]:
    """The constants of joint.toml by label, with the entries that the table names or else those that the catalog says.

    An entry of the catalog shares a constant whose name its value states as ``calibration``. PerfgridError for unknown
    quantities and entries.
    """
    found = {}
    for name, shared in (data("joint") if table is None else table).items():
        variable = catalog.variables.get(name)
        if variable is None or variable.of not in catalog.tables:
            raise PerfgridError(f"no entry of the catalog has the quantity {name!r}{nearest(name, catalog.variables)}")
        for own, about in shared.items():
            patterns = about.get("entries")
            entries = (
                _sharing(name, own, catalog, variable.of)
                if patterns is None
                else _matching(patterns, catalog, variable.of)
            )
            (low, high), (value, spread) = about["bounds"], about["prior"]
            start = float(np.clip(value, low, high))
            found[f"{name}.{own}"] = Constant(variable.of, entries, name, start, low, high, spread)
    return found


def _matching(patterns: Iterable[str], catalog: Catalog, table: str) -> tuple[str, ...]:
    """The entries of a table whose names match a pattern."""
    entries, found = catalog.tables[table], list[str]()
    for pattern in patterns:
        matching = [name for name in entries if fnmatchcase(name, pattern)]
        if not matching:
            raise PerfgridError(f"no {table} {pattern!r}{nearest(pattern, entries)}")
        found += matching
    return tuple(found)


def _sharing(quantity: str, constant: str, catalog: Catalog, table: str) -> tuple[str, ...]:
    """The entries of a table whose value of a quantity is a named constant."""
    details = {name: entry.details.get(quantity) for name, entry in catalog.tables[table].items()}
    return tuple(name for name, about in details.items() if about is not None and about.calibration == constant)


class Joint(Model):
    """Predictions as a function of constants that each concern a part of the rows."""

    def derivatives(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Errors at a point and their derivatives, evaluated where a constant applies."""
        count = len(self.rows)
        rows, moved = np.nonzero(self.applies)
        points = np.vstack([np.tile(point, (count, 1)), point + STEP * np.eye(len(point))[moved]])
        logs = self.pairs(np.concatenate([np.arange(count), rows]), points)
        slopes = np.zeros(self.applies.shape)
        slopes[rows, moved] = (logs[count:] - logs[rows]) / STEP
        return logs[:count], slopes

    def around(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Points that differ from a point in one constant, and the errors there, by row and point."""
        count, constants = len(self.rows), self.constants
        _, width, low, high = scales(constants)
        moved = np.repeat(np.arange(len(point)), len(AROUND))
        points = np.tile(point, (len(moved), 1))
        points[np.arange(len(moved)), moved] += np.tile(AROUND, len(point)) * width[moved]
        points = np.clip(points, low, high)
        number, rows = np.nonzero(self.applies.T[moved])
        logs = self.pairs(
            np.concatenate([np.arange(count), rows]), np.vstack([np.tile(point, (count, 1)), points[number]])
        )
        errors = np.tile(logs[:count, None], len(moved))
        errors[rows, number] = logs[count:]
        return points, errors


@dataclass(frozen=True)
class Fitted:
    """Constants at which the errors of some rows are least, as logarithms, with these errors."""

    constants: tuple[Constant, ...]
    point: np.ndarray
    errors: np.ndarray
    slopes: np.ndarray  # derivatives of the errors by the logarithms of the constants
    weights: np.ndarray
    around: tuple[np.ndarray, np.ndarray]  # points and errors by row and point

    @cached_property
    def covariance(self) -> np.ndarray:
        """Covariance of the logarithms of the constants."""
        slopes = damped(self.errors)[1][:, None] * self.slopes
        normal = (slopes.T * self.weights) @ slopes / NOISE**2
        return np.linalg.inv(normal + np.diag([c.spread**-2 for c in self.constants]))

    @property
    def deviations(self) -> np.ndarray:
        """Standard deviations of the logarithms of the constants."""
        return np.sqrt(np.diag(self.covariance))


def scales(constants: Sequence[Constant]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Logarithms of the priors, their deviations, and logarithms of the lower and upper bounds."""
    centre, low, high = (np.log([getattr(c, name) for c in constants]) for name in ("start", "low", "high"))
    return centre, np.array([c.spread for c in constants]), low, high


def loss(constants: Sequence[Constant], weights: np.ndarray, point: np.ndarray, errors: np.ndarray) -> float:
    """Squares of damped errors, and of distances from the priors."""
    centre, width, _, _ = scales(constants)
    return float(np.sum(weights * (damped(errors)[0] / NOISE) ** 2) + np.sum(((point - centre) / width) ** 2))


def source_weights(sources: Sequence[str], keep: np.ndarray) -> np.ndarray:
    """Weights of rows in a fit: each source with kept rows counts as SOURCE_ROWS rows, the other rows as none."""
    kept = [source for source, k in zip(sources, keep, strict=True) if k]
    weights = np.zeros(len(sources))
    weights[keep] = equal_weights(kept) * len(set(kept)) * SOURCE_ROWS
    return weights


def joint_fit(model: Joint, weights: np.ndarray, keep: np.ndarray | None = None) -> Fitted:
    """Fit the constants of a model to the kept rows (all of them by default)."""
    keep = np.ones(len(model.rows), bool) if keep is None else keep
    used, weights, constants = model.of(keep), weights[keep], model.constants
    kept: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}

    def at(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        key = point.tobytes()
        if key not in kept:
            kept[key] = used.derivatives(point)
        return kept[key]

    start, best = scales(constants)[0], []
    for _ in range(ROUNDS):
        point = _least(at, constants, weights, start, 1e-4)
        errors, slopes = at(point)
        around = used.around(point)
        best.append(
            (loss(constants, weights, point, errors), Fitted(constants, point, errors, slopes, weights, around))
        )
        found = _better(best[-1][1], weights, best[-1][0])
        if found is None:
            break
        start = found
    return min(best, key=lambda found: found[0])[1]


def _better(fitted: Fitted, weights: np.ndarray, known: float) -> np.ndarray | None:
    """The best of the points around a fit if it is better than what is known."""
    points, errors = fitted.around
    losses = [loss(fitted.constants, weights, p, e) for p, e in zip(points, errors.T, strict=True)]
    least = int(np.argmin(losses))
    return points[least] if losses[least] < known - GAIN else None


def without(model: Joint, fitted: Fitted, sources: Sequence[str], units: Sequence[str]) -> dict[str, np.ndarray]:
    """The constants, as logarithms, fitted without each unit in turn. ``fitted`` is the fit to all rows."""
    own = np.array(units)
    weights = {unit: source_weights(sources, own != unit) for unit in dict.fromkeys(units)}
    points = {unit: _refit(fitted, w, fitted.errors, fitted.point) for unit, w in weights.items()}
    errors = {unit: fitted.errors + fitted.slopes @ (point - fitted.point) for unit, point in points.items()}
    changed = {unit: fitted.errors for unit in points}  # since they were evaluated
    for _ in range(AGAIN):
        far = {u: np.flatnonzero((np.abs(e - changed[u]) > MOVED) & (weights[u] > 0)) for u, e in errors.items()}
        far = {unit: rows for unit, rows in far.items() if len(rows)}
        if not far:
            break
        counts = [len(rows) for rows in far.values()]
        at = np.repeat([points[unit] for unit in far], counts, axis=0)
        evaluated = np.split(model.pairs(np.concatenate(list(far.values())), at), np.cumsum(counts)[:-1])
        for (unit, rows), found in zip(far.items(), evaluated, strict=True):
            errors[unit][rows] = found
            changed[unit], before = errors[unit], points[unit]
            points[unit] = _refit(fitted, weights[unit], errors[unit], before)
            errors[unit] = errors[unit] + fitted.slopes @ (points[unit] - before)
    for unit, point in points.items():
        known = loss(fitted.constants, weights[unit], point, errors[unit])
        if _better(fitted, weights[unit], known) is not None:
            points[unit] = joint_fit(model, weights[unit], own != unit).point
    return points


def _refit(fitted: Fitted, weights: np.ndarray, errors: np.ndarray, point: np.ndarray) -> np.ndarray:
    """The best point for errors that are linear about a point."""

    def at(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return errors + fitted.slopes @ (x - point), fitted.slopes

    return _least(at, fitted.constants, weights, point, 1e-8)


def _least(
    at: Errors, constants: Sequence[Constant], weights: np.ndarray, start: np.ndarray, tolerance: float
) -> np.ndarray:
    """The point at which damped errors and distances from the priors are least."""
    from scipy.optimize import least_squares  # slow to import, not needed for predictions

    scale = np.sqrt(weights) / NOISE
    centre, width, *ends = scales(constants)
    low, high = ((end - centre) / width for end in ends)

    def residuals(moved: np.ndarray) -> np.ndarray:  # in deviations of the priors
        return np.concatenate([scale * damped(at(centre + width * moved)[0])[0], moved])

    def jacobian(moved: np.ndarray) -> np.ndarray:
        errors, slopes = at(centre + width * moved)
        return np.vstack([(scale * damped(errors)[1])[:, None] * slopes * width, np.eye(len(width))])

    first = np.clip((start - centre) / width, low + 1e-6, high - 1e-6)
    found = least_squares(
        residuals, first, cast(Any, jacobian), (low, high), xtol=tolerance, ftol=tolerance, max_nfev=30
    )
    return centre + width * found.x
