"""Calibration: fit few physical constants of a software stack or a device to measurements.

The fit is one of least squares in the logarithms of predictions and of constants, through the model itself: all rows
are evaluated with every constant moved, in one evaluation, and its differences are the derivatives. Outliers are damped
(pseudo-Huber). A constant starts from its catalog value, has the catalog's range as a prior, and stays within physical
bounds. Constants informed by fewer than ten rows each are not fitted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from perfgrid.catalog import Catalog, load_catalog
from perfgrid.engine.errors import PerfgridError, nearest, together
from perfgrid.formulas import registry_of
from perfgrid.results.evaluate import evaluate
from perfgrid.study.study import Study

from .design import Row, designs
from .fastest import WHOLE, column, settled
from .inference import serves
from .measurements.measured import Measured
from .metrics import Error, error_of
from .quantities import FORMULAS
from .schema import Record, data, read_records, record_files
from .validate import CALIBRATED

ROWS_PER_CONSTANT = 10
MOST_CONSTANTS = {"software": 4, "device": 6}  # of one entry
DAMPED = 0.15  # error in logarithms beyond which the loss grows linearly
NOISE = 0.15  # error of a record that no constant explains: structure, congestion, software versions
FREE = 0.5  # standard deviation of the logarithm of a constant for which the catalog states no range
TO_95 = 1.645  # a stated range is the central 90 %
STEP = 1e-4  # of a logarithm, for derivatives
TRIVIAL = 0.005  # change of ln(prediction) over that of ln(constant) below which a row does not inform it
BOUNDS = {name: tuple(about["bounds"]) for name, about in data("constants").items()}
PRIORS = {name: tuple(about["prior"]) for name, about in data("constants").items() if "prior" in about}
DEFAULTS = {  # constants fitted by default
    "software": ("host_launch_time", "pointwise_passes", "library_efficiency"),
    "device": ("matrix_efficiency", "fp8_matrix_efficiency", "hbm_efficiency"),
}


@dataclass(frozen=True)
class Constant:
    """A constant of one catalog entry, or shared by several."""

    table: str
    entries: tuple[str, ...]
    name: str
    start: float
    low: float
    high: float
    spread: float  # standard deviation of its logarithm before any measurement

    @property
    def label(self) -> str:
        """Table, entries and quantity."""
        return f"{self.table}.{'+'.join(self.entries)}.{self.name}"


@dataclass
class Fit:
    """Constants fitted to some rows."""

    constants: tuple[Constant, ...]
    values: np.ndarray
    covariance: np.ndarray  # of their logarithms
    logs: np.ndarray  # ln(predicted / measured) of the rows, after the fit


@dataclass
class Calibration:
    """A calibration, with its errors on fitted rows and on held-out sources."""

    fit: Fit
    rows: list[Row]
    before: Error
    after: Error
    left_out: dict[str, Error] = field(default_factory=dict)  # source -> error when fitted without it
    unseen: Error | None = None  # of all rows, each predicted by the fit without its source
    unseen_logs: np.ndarray | None = None  # ln(predicted / measured) of these
    dropped: dict[str, str] = field(default_factory=dict)  # constant -> why it was not fitted


def constants_of(catalog: Catalog, table: str, entries: Sequence[str], names: Iterable[str] = ()) -> list[Constant]:
    """The constants of entries that share them. PerfgridError for unknown entries and quantities without bounds."""
    if table not in DEFAULTS:
        raise PerfgridError(f"constants belong to software or device, not to {table!r}")
    found, entries = [], [catalog.entry(table, entry).name for entry in entries]
    chosen = tuple(names) or DEFAULTS[table]
    if len(chosen) > MOST_CONSTANTS[table]:
        raise PerfgridError(f"at most {MOST_CONSTANTS[table]} constants of one {table} are fitted, found {len(chosen)}")
    for name in chosen:
        variable = catalog.variables.get(name)
        if variable is None or variable.of != table:
            known = [v.name for v in catalog.variables.values() if v.of == table]
            raise PerfgridError(f"{table} has no quantity {name!r}{nearest(name, known)}")
        if name not in BOUNDS:
            raise PerfgridError(f"{name} cannot be fitted; constants that can: {', '.join(sorted(BOUNDS))}")
        entry = catalog.entry(table, entries[0])
        value, (low, high) = float(cast(float, entry.values[name])), BOUNDS[name]
        detail = entry.details.get(name)
        fitted = detail is not None and detail.confidence == CALIBRATED
        if name in PRIORS and (fitted or value == variable.default):
            value, spread = PRIORS[name]
        elif detail is not None and detail.low and detail.high:
            spread = max(np.log(detail.high / detail.low) / (2 * TO_95), 0.01)
        else:
            spread = FREE
        found.append(Constant(table, tuple(entries), name, float(np.clip(value, low, high)), low, high, spread))
    return found


class Model:
    """Predictions of rows as a function of constants."""

    def __init__(self, catalog: Catalog, rows: list[Row], constants: Sequence[Constant]):
        self.catalog, self.rows, self.constants = catalog, rows, tuple(constants)
        self.measured = np.array([row.record.value for row in rows])
        self.applies = np.array([[self._follows(row, c) for c in constants] for row in rows], bool)

    def of(self, keep: np.ndarray) -> Self:
        """The same for some of the rows."""
        rows = [row for row, kept in zip(self.rows, keep, strict=True) if kept]
        return type(self)(self.catalog, rows, self.constants)

    def logs(self, trials: np.ndarray) -> np.ndarray:
        """ln(predicted / measured) by row and trial; ``trials`` are logarithms of the constants, one row each."""
        rows, points = np.tile(np.arange(len(self.rows)), len(trials)), np.repeat(trials, len(self.rows), axis=0)
        return self.pairs(rows, points).reshape(len(trials), len(self.rows)).T

    def pairs(self, rows: np.ndarray, points: np.ndarray) -> np.ndarray:
        """ln(predicted / measured) of rows, by number, each at its own logarithms of the constants."""
        chosen = [self.rows[i] for i in rows]
        columns = {name: [row.columns[name] for row in chosen] for name in self.rows[0].columns}
        for name in dict.fromkeys(c.name for c in self.constants):
            values = np.array([self._own(row, name) for row in chosen])
            for k, constant in enumerate(self.constants):
                if constant.name == name:
                    values = np.where(self.applies[rows, k], np.exp(points[:, k]), values)
            columns[name] = values.tolist()
        study = Study.make(
            self.catalog,
            FORMULAS,
            title="calibration",
            outputs=sorted({row.quantity for row in chosen}),
            dtype="float64",
            axes={"row": {"labels": [f"{row.label} {i}" for i, row in enumerate(chosen)], "zip": columns}},
        )
        result = evaluate(study, small_points=WHOLE)
        predicted = {name: column(result[name], len(chosen)) for name in {row.quantity for row in chosen}}
        return np.log([predicted[row.quantity][i].sum() for i, row in enumerate(chosen)] / self.measured[rows])

    def _own(self, row: Row, name: str) -> float:
        """The value of a constant's quantity that a row has without the fit."""
        table = str(self.catalog.variables[name].of)
        return float(row.columns.get(name, cast(float, self.catalog.entry(table, row.columns[table]).values[name])))

    def _follows(self, row: Row, constant: Constant) -> bool:
        """Whether a row takes a constant: its entry is among those that share it, and its record states no other."""
        if row.columns[constant.table] not in constant.entries:
            return False
        entry = self.catalog.entry(constant.table, row.columns[constant.table])
        return self._own(row, constant.name) == entry.values[constant.name]

    def derivatives(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Errors of the rows at a point, and their derivatives by the logarithms of the constants."""
        moved = np.vstack([point, *(point + STEP * row for row in np.eye(len(point)))])
        logs = self.logs(moved)
        return logs[:, 0], (logs[:, 1:] - logs[:, :1]) / STEP


def damped(errors: np.ndarray, beyond: float = DAMPED) -> tuple[np.ndarray, np.ndarray]:
    """Residuals whose squares grow linearly beyond an error (pseudo-Huber), and their derivatives."""
    root = np.sqrt(1 + (errors / beyond) ** 2)
    residual = np.sign(errors) * beyond * np.sqrt(np.maximum(2 * (root - 1), 0.0))
    slope = np.where(np.abs(errors) > 1e-9, np.abs(errors) / (root * np.maximum(np.abs(residual), 1e-30)), 1.0)
    return residual, slope


def fit(model: Model, chosen: np.ndarray | None = None, start: np.ndarray | None = None) -> Fit:
    """Fit the constants of a model to the chosen rows (all of them by default)."""
    keep = np.ones(len(model.rows), bool) if chosen is None else chosen
    used = model.of(keep)
    centre = np.log([c.start for c in model.constants])
    width = np.array([c.spread for c in model.constants])
    low, high = (np.log([getattr(c, end) for c in model.constants]) for end in ("low", "high"))
    kept: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}

    def at(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        key = point.tobytes()
        if key not in kept:
            kept.clear()
            kept[key] = used.derivatives(point)
        return kept[key]

    def residuals(point: np.ndarray) -> np.ndarray:
        return np.concatenate([damped(at(point)[0])[0] / NOISE, (point - centre) / width])

    def jacobian(point: np.ndarray) -> np.ndarray:
        errors, slopes = at(point)
        return np.vstack([damped(errors)[1][:, None] * slopes / NOISE, np.diag(1 / width)])

    from scipy.optimize import least_squares  # slow to import, not needed for predictions

    first = np.clip(centre + width / 2 if start is None else np.log(start), low + 1e-6, high - 1e-6)
    found = least_squares(residuals, first, cast(Any, jacobian), (low, high), xtol=1e-3, ftol=1e-3, max_nfev=12)
    errors = at(found.x)[0]
    scale = (1.4826 * np.median(np.abs(errors)) / NOISE) ** 2
    normal = found.jac.T @ found.jac
    covariance = np.linalg.inv(normal) * max(scale, 1.0)
    return Fit(model.constants, np.exp(found.x), covariance, errors)


def calibrate(
    paths: Iterable[str | Path | Measured] | str | Path = (),
    table: str = "software",
    entries: Collection[str] = (),
    names: Iterable[str] = (),
    catalog: Catalog | None = None,
    group: Collection[str] = (),
    across: bool = True,
) -> Calibration:
    """Fit constants of catalog entries to measurements.

    Parameters
    ----------
    paths
        Record files (.jsonl) or folders. Default: those of perfgrid.
    table
        "software" or "device".
    entries
        Entries that share the constants.
    names
        Quantities to fit. Default: those of the table.
    catalog
        A loaded catalog. Default: the built-in one.
    group
        Keep some sources.
    across
        Fit again without each source in turn.

    Returns
    -------
    Calibration
        Fitted constants with their covariance, and errors before and after.

    Raises
    ------
    PerfgridError
        For an invalid record, where no record concerns the entries, and where none of the constants is informed by ten
        records.
    """
    catalog = catalog or load_catalog()
    constants = constants_of(catalog, table, tuple(entries), names)  # report wrong names first
    records, problems = read_records(record_files([paths] if isinstance(paths, str | Path) else paths), catalog)
    if problems:  # a fit must not ignore invalid records
        raise PerfgridError(together(f"{problem.place}: {problem.reason}" for problem in problems))
    known = {record.group for record in records}
    if unknown := [name for name in group if name not in known]:
        raise PerfgridError(f"no record belongs to group {unknown[0]!r}{nearest(unknown[0], known)}")
    entries = constants[0].entries  # as the catalog calls them
    rows, catalog = _rows(records, catalog, table, entries, group)
    model = Model(catalog, rows, constants)
    centre = np.log([c.start for c in constants])
    errors, slopes = model.derivatives(centre)
    within = np.minimum(centre + [c.spread for c in constants], np.log([c.high for c in constants]) - STEP)
    derived = (slopes, model.derivatives(within)[1])  # here, and one standard deviation away
    informing = (np.max(np.abs(derived), axis=0) > TRIVIAL).sum(axis=0)
    dropped, kept = dict[str, str](), list(range(len(constants)))
    for k in sorted(kept, key=lambda k: informing[k]):
        if informing[k] < ROWS_PER_CONSTANT:
            dropped[constants[k].label] = f"{informing[k]} rows inform it"
        elif len(kept) * ROWS_PER_CONSTANT > len(rows):
            dropped[constants[k].label] = f"{len(rows)} rows carry no more than {len(rows) // ROWS_PER_CONSTANT}"
        else:
            break
        kept.remove(k)
    if not kept:
        raise PerfgridError(
            f"too few rows inform a constant of {', '.join(entries)}: {len(rows)} found, {ROWS_PER_CONSTANT} "
            "needed for each"
        )
    model = Model(catalog, rows, [constants[k] for k in kept])
    found, measured = fit(model), model.measured
    before, after = _error(errors, measured), _error(found.logs, measured)
    result = Calibration(found, rows, before, after, dropped=dropped)
    sources = sorted({row.record.group for row in rows})
    if across and len(sources) > 1:
        unseen = np.empty(len(rows))
        for source in sources:
            away = np.array([row.record.group == source for row in rows])
            without = fit(model, ~away, found.values)
            logs = model.logs(np.log(without.values)[None, :])[:, 0]
            unseen[away] = logs[away]
            result.left_out[source] = _error(logs[away], measured[away])
        result.unseen, result.unseen_logs = _error(unseen, measured), unseen
    return result


def _error(logs: np.ndarray, measured: np.ndarray) -> Error:
    return error_of((measured * np.exp(logs)).tolist(), measured.tolist())


def _rows(
    records: list[Record], catalog: Catalog, table: str, entries: tuple[str, ...], group: Collection[str]
) -> tuple[list[Row], Catalog]:
    """The rows of some entries, with the catalog that contains their models."""
    mine = [
        r
        for r in records
        if r.tier == "core"
        and r.kind in ("training", "kernel")
        and not serves(r)
        and (not group or r.group in group)
        and (table != "device" or r.device in entries)
    ]
    mapped = settled(designs(mine, catalog, registry_of("training")))
    kinds = ("training", "kernel") if table == "device" else ("training",)
    rows = [row for row in mapped.rows if row.columns[table] in entries and row.record.kind in kinds]
    if not rows:
        others = ", ".join(sorted({row.columns[table] for row in mapped.rows}))
        hint = f"; records use {others}" if others else ""
        raise PerfgridError(f"no predictable record uses {table} {', '.join(entries)}{hint}")
    return rows, mapped.catalog
