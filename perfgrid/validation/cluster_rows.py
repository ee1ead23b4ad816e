"""Measurements of one cluster beside predictions as a function of factors on catalog quantities."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfgrid.analysis.prediction_intervals import SHARED_SCATTER
from perfgrid.catalog import Catalog
from perfgrid.engine.autodiff.parameters import parameters_of
from perfgrid.engine.autodiff.sensitivity import Sensitivity
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Space
from perfgrid.engine.reductions.argmin import listed
from perfgrid.formulas import registry_of
from perfgrid.results.evaluate import evaluate
from perfgrid.study.study import Study

from .design import Designs, Row, designs
from .fastest import WHOLE, column, settled, violated
from .limits import readable
from .schema import Record, data
from .validate import FITS, WORKLOAD_ROWS, workload_of

PACE = "pace"  # the factor on everything: a constant factor on all times
TO_95 = 1.645  # a stated range is the central 90 %
STEPS = ("training", "inference")
TIMED = (*STEPS, "kernel", "collective")  # kinds of records that calibrate
MOST_ROWS = 100  # of a kind
LARGEST_STEP = 500  # points evaluated together


@dataclass(frozen=True)
class Factor:
    """A factor on catalog quantities: 1 where the cluster is as the catalog says."""

    name: str
    powers: Mapping[str, int]  # quantity -> 1 where it is multiplied, -1 where it is divided
    spread: float  # standard deviation of its logarithm before any measurement
    check: str  # what to look at where a quantity is at its bound
    away: float | None = None  # where fits start as well: rows may not respond to it at 1


@dataclass(frozen=True)
class Scope:
    """The catalog entries of one cluster by table."""

    device: str
    topology: tuple[str, ...]
    software: tuple[str, ...]

    def entries(self, table: str) -> tuple[str, ...]:
        """The entries of a table."""
        return (self.device,) if table == "device" else self.topology if table == "topology" else self.software


def factors_of(catalog: Catalog, scope: Scope, kinds: Collection[str]) -> dict[str, Factor]:
    """The factors of `factors.toml` that these kinds of records inform, by name.

    A range that the catalog states makes a prior no narrower than itself. Without steps, what moves everything moves
    what the other factors move.
    """
    stated, concerns = data("factors")["factors"], data("factors")["concerns"]
    powers = {name: _powers(about) for name, about in stated.items()}
    names = {name for kind in kinds for name in concerns.get(kind, stated)}
    if PACE not in names:
        reached = {quantity for name in names for quantity in powers[name]}
        powers[PACE] = {quantity: power for quantity, power in powers[PACE].items() if quantity in reached}
    found = {}
    for name, about in stated.items():
        if name in names or name == PACE:
            own = _stated_spread(catalog, scope, *powers[name]) if len(powers[name]) == 1 else 0.0
            found[name] = Factor(name, powers[name], max(own, about["spread"]), about["check"], about.get("away"))
    return found


def _powers(about: Mapping[str, Any]) -> dict[str, int]:
    """The quantities that a factor moves, with its exponents."""
    exponents = {"multiplies": 1, "divides": -1}
    return {q: power for key, power in exponents.items() for of in about.get(key, {}).values() for q in of}


def _stated_spread(catalog: Catalog, scope: Scope, quantity: str) -> float:
    """Standard deviation of the logarithm of a quantity by the range that the catalog states; 0 without one."""
    table = str(catalog.variables[quantity].of)
    details = (catalog.entry(table, entry).details.get(quantity) for entry in scope.entries(table))
    return max((float(np.log(d.high / d.low)) / (2 * TO_95) for d in details if d and d.low and d.high), default=0.0)


def legal(catalog: Catalog, quantity: str) -> tuple[float, float]:
    """The lowest and highest value that a calibration gives a quantity."""
    return data("factors")["lowest"].get(quantity, 0.0), catalog.variables[quantity].maximum or np.inf


@dataclass(frozen=True)
class _Part:
    """Rows of one workload."""

    numbers: np.ndarray  # of the rows among all
    study: Study
    quantities: list[str]  # that predict the rows
    base: Mapping[str, np.ndarray]  # moved quantity -> values by row at factors of 1
    ends: Mapping[str, tuple[float, float]]  # moved quantity -> lowest and highest legal value


class ClusterRows:
    """Rows of one cluster; errors are ln(predicted / measured).

    ``unpredicted``: reasons by record that is not used; ``exceeding``: used ones that by prediction exceed the memory.
    """

    def __init__(self, catalog: Catalog, records: Sequence[Record]):
        self.unpredicted = _left_out(records)
        self.exceeding: list[str] = []
        records, mapped = [r for r in records if r.id not in self.unpredicted], {}
        for workload, (mapper, _, _) in WORKLOAD_ROWS.items():
            mine = [record for record in records if workload_of(record) == workload]
            if not mine:
                continue
            if workload == "pools":
                self.unpredicted |= {r.id: ("separate pools are not calibrated",) for r in mine}
                continue
            made = designs(mine, catalog, registry_of(workload), mapper)
            self.unpredicted |= made.unpredicted
            if workload == "training":
                made = settled(made)
            if made.rows:
                made, broken, large = _legal(made, workload)
                self.unpredicted |= broken
                self.exceeding += large
            if made.rows:
                mapped[workload] = made
        self.rows: list[Row] = [row for made in mapped.values() for row in made.rows]
        if not self.rows:
            why = next(iter(self.unpredicted.values()), ("there is none",))
            raise PerfgridError(f"no record can be predicted: {'; '.join(why)}")
        self.catalog = catalog
        self.scope = _scope(catalog, self.rows)
        self.factors = factors_of(catalog, self.scope, {row.record.kind for row in self.rows})
        self.measured = np.array([row.record.value for row in self.rows])
        self._parts, first = [], 0
        moved = list(dict.fromkeys(q for factor in self.factors.values() for q in factor.powers))
        for workload, made in mapped.items():
            numbers = np.arange(first, first + len(made.rows))
            first += len(made.rows)
            self._parts.append(_part(workload, made.catalog, made.rows, numbers, moved))

    @property
    def scatter(self) -> float:
        """Deviation of errors within a source of the stack, beyond what its rows share: the noise to expect."""
        entries = self.scope.software[:1]
        values = [self.catalog.entry("software", name).values[SHARED_SCATTER] for name in entries]
        return float(str(values[0])) if values else self.catalog.variables[SHARED_SCATTER].default_at()

    def evaluated(
        self, rows: np.ndarray, points: np.ndarray, names: Sequence[str], slopes: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Errors [pair] of rows, by number, each at its own logarithms of the named factors, and their derivatives.

        Raises PerfgridError for a row whose prediction or derivative is not a finite number.
        """
        errors, found = np.empty(len(rows)), np.zeros((len(rows), len(names)))
        for part in self._parts:
            here = np.flatnonzero(np.isin(rows, part.numbers))
            for some in np.array_split(here, -(-len(here) // LARGEST_STEP) or 1):
                if len(some):
                    own = rows[some] - part.numbers[0]
                    errors[some], found[some] = self._at(part, own, points[some], names, slopes)
        errors -= np.log(self.measured[rows])
        if bad := np.flatnonzero(~(np.isfinite(errors) & np.isfinite(found).all(axis=1))).tolist():
            row = self.rows[int(rows[bad[0]])]
            what = "derivatives" if np.isfinite(errors[bad[0]]) else "prediction"
            raise PerfgridError(f"{row.record.id}: the {what} of {row.quantity} is not finite: leave this record out")
        return errors, found

    def _at(
        self, part: _Part, rows: np.ndarray, points: np.ndarray, names: Sequence[str], slopes: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """ln(predicted) of rows of a part at points, and its derivatives."""
        powers = {q: np.array([self.factors[n].powers.get(q, 0) for n in names]) for q in part.base}
        columns, inside = {}, {}
        for quantity, base in part.base.items():
            if powers[quantity].any():
                scale = np.exp(points @ powers[quantity]).reshape(-1, *(1,) * (base.ndim - 1))
                whole = base[rows] * scale
                low, high = part.ends[quantity]
                columns[quantity] = np.clip(whole, np.minimum(low, base[rows]), high)  # some have 0 for unknown
                inside[quantity] = (columns[quantity] == whole).reshape(len(rows), -1).all(axis=1)
        space = listed(part.study.space, [rows])
        (axis,) = space.axes
        axis = replace(axis, columns={**axis.columns, **columns})
        space = Space((axis,), {k: v for k, v in space.constants.items() if k not in columns})
        outputs = tuple(dict.fromkeys(part.quantities[row] for row in rows))
        plan = Plan(
            part.study.registry, space, outputs, part.study.file.choices, small_points=len(rows), constraints=False
        )
        moved = [q for q in columns if q in plan.graph.leaves] if slopes else []
        parameters = parameters_of(plan, moved)
        with np.errstate(all="ignore"):
            values, derivatives = Sensitivity(plan, outputs, parameters, False, None, "float64").derivatives()
        value, slope = np.empty(len(rows)), np.zeros((len(rows), len(names)))
        for output in outputs:
            own = np.array([part.quantities[row] == output for row in rows])
            whole = _by_row(values[output], len(rows))
            value[own] = whole[own].reshape(own.sum(), -1).sum(axis=1)
            for parameter, derivative in zip(parameters, derivatives[output], strict=True):
                changed = _by_row(derivative, len(rows))[own].reshape(own.sum(), -1).sum(axis=1)
                label = parameter.mask(np.ones(plan.quantities[parameter.quantity].inner)).ravel()
                held = columns[parameter.quantity].reshape(len(rows), -1)[own] @ label
                of_quantity = held * inside[parameter.quantity][own]
                by_log = np.where(of_quantity == 0, 0.0, changed * of_quantity / value[own])  # 0 and held ones stay
                slope[own] += by_log[:, None] * powers[parameter.quantity]
        with np.errstate(all="ignore"):  # `evaluated` names rows that are not finite
            return np.log(value), slope


def _left_out(records: Sequence[Record]) -> dict[str, tuple[str, ...]]:
    """Records that a calibration does not use, with the reason: no times, repetitions, the rest of a long scan."""
    found = {r.id: (f"of kind {r.kind}, tier {r.tier}",) for r in records if r.kind not in TIMED or r.tier != "core"}
    for kind in TIMED:
        mine = [r.id for r in records if r.kind == kind and r.id not in found]
        if len(mine) > MOST_ROWS:
            kept = {mine[i] for i in np.linspace(0, len(mine) - 1, MOST_ROWS).round().astype(int)}
            found |= {
                name: (f"{MOST_ROWS} of kind {kind}, evenly chosen, are enough",) for name in mine if name not in kept
            }
    return found


def _legal(made: Designs, workload: str) -> tuple[Designs, dict[str, tuple[str, ...]], list[str]]:
    """The rows that break no constraint, as `validate` scores them; the reasons of the others; which exceed the memory.

    A measured row fitted its memory, whatever is predicted: it stays.
    """
    fits = [name for name in FITS if name in registry_of(workload).formulas]
    study = Study.make(
        made.catalog,
        WORKLOAD_ROWS[workload][1],
        title="legal rows",
        workload=workload,
        outputs=sorted({*fits, *(row.quantity for row in made.rows)}),
        dtype="float64",
        axes={"row": made.axis() | {"labels": [f"{i} {row.label}" for i, row in enumerate(made.rows)]}},
    )
    result = evaluate(study, small_points=WHOLE)
    broken = violated(result, made.rows)
    why = {
        row.record.id: tuple(f"not modelled: {reason}" for reason in reasons.values())
        for row, reasons in zip(made.rows, broken, strict=True)
        if reasons and row.record.kind != "kernel"
    }
    fit = np.all([np.ones(len(made.rows), bool), *(column(result[name], len(made.rows)) for name in fits)], axis=0)
    kept = [(row, fit) for row, fit in zip(made.rows, fit, strict=True) if row.record.id not in why]
    large = [row.record.id for row, fit in kept if not fit and row.record.kind in STEPS]
    return replace(made, rows=[row for row, _ in kept]), why, large


def _by_row(array: np.ndarray, count: int) -> np.ndarray:
    """Values with rows first; what does not vary is repeated."""
    return np.broadcast_to(array, (count, *array.shape[1:]))


def _scope(catalog: Catalog, rows: Sequence[Row]) -> Scope:
    """The entries that rows use. PerfgridError for several devices: each has rates of its own."""
    devices = dict.fromkeys(row.columns["device"] for row in rows)
    if len(devices) > 1:
        raise PerfgridError(
            f"the records are of {len(devices)} devices ({', '.join(devices)}): calibrate one at a time, "
            "with --only DEVICE"
        )
    topologies = dict.fromkeys(row.columns["topology"] for row in rows if row.record.kind != "kernel")
    software = dict.fromkeys(row.columns["software"] for row in rows if row.record.kind in STEPS)
    return Scope(next(iter(devices)), tuple(topologies), tuple(software))


def _part(workload: str, catalog: Catalog, rows: list[Row], numbers: np.ndarray, moved: Sequence[str]) -> _Part:
    registry = registry_of(workload)
    _, formulas, _ = WORKLOAD_ROWS[workload]
    read = readable(registry)
    columns: dict[str, list[Any]] = {name: [row.columns[name] for row in rows] for name in rows[0].columns}
    base = {}
    for name in moved:
        variable = catalog.variables[name]
        if name not in read or str(variable.of) not in columns:
            continue
        own = [
            row.columns.get(name, catalog.entry(str(variable.of), row.columns[str(variable.of)]).values[name])
            for row in rows
        ]
        columns[name] = own
        base[name] = np.array([list(v.values()) if isinstance(v, dict) else v for v in own], float)
    study = Study.make(
        catalog,
        formulas,
        title="calibration",
        workload=workload,
        outputs=sorted({row.quantity for row in rows}),
        dtype="float64",
        axes={"row": {"labels": [f"{i} {row.label}" for i, row in enumerate(rows)], "zip": columns}},
    )
    shaped = {}
    for name, values in base.items():  # as the engine lays out inner axes
        known = study.space.along(name)
        shaped[name] = values.reshape(len(rows), *known.shape[1:])
    ends = {name: legal(catalog, name) for name in base}
    return _Part(numbers, study, [row.quantity for row in rows], shaped, ends)
