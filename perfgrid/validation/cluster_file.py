"""The calibration of a cluster as a catalog file, and as lines and tables to print."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from perfgrid.catalog.schema import Detail, Value
from perfgrid.catalog.writing import key_text, quoted, stated_text, value_text
from perfgrid.text.numbers import number

from .cluster import ClusterCalibration
from .cluster_rows import PACE, TO_95, legal
from .validate import CALIBRATED

DIGITS = 4
NEAR = 1.03  # of a bound: the measurements ask for what is beyond
LARGEST_CORRELATION, SMALLEST_CORRELATION = 0.99, 0.005  # that a file states
SHARE = 0.9  # of held-out rows within the stated scatter
USUAL = {"training": "training_software", "inference": "serving_software"}
MACHINE = {"device": ("scale_up_size", "scale_out_bandwidth"), "topology": ("tier_stated_bandwidth",)}
FITTED = ("parameter", "catalog", "90 % before", "fitted", "90 % after", "at a bound")
SETS = ("free", "held out: median", "mean", "in sample: median")


@dataclass(frozen=True)
class Moved:
    """A quantity of an entry that the fit moved."""

    table: str
    entry: str
    name: str
    before: Value
    value: Value
    low: float | None  # None: a vector has no range
    high: float | None
    gradient: np.ndarray  # of its logarithm by those of the free factors
    asks: str  # "less" or "more" where the measurements ask for a value beyond a bound


def moved(found: ClusterCalibration) -> list[Moved]:
    """The quantities that the free factors move, with their central 90 % after the fit.

    What the factor on everything moves keeps the relative range of the catalog beside what the fit left open.
    """
    measured, fit = found.measured, found.chosen.fit
    catalog, factors = measured.catalog, [measured.factors[name] for name in fit.names]
    result = []
    for name in dict.fromkeys(q for factor in factors for q in factor.powers):
        variable = catalog.variables[name]
        gradient = np.array([factor.powers.get(name, 0) for factor in factors], float)
        scale, variance = math.exp(float(gradient @ fit.point)), float(gradient @ found.covariance @ gradient)
        least, most = legal(catalog, name)

        def scaled(before: float, scale: float, least: float = least, most: float = most) -> float:
            return float(f"{np.clip(before * scale, min(least, before), most):.{DIGITS}g}")

        for entry in measured.scope.entries(str(variable.of)):
            before = catalog.entry(str(variable.of), entry).values[name]
            detail = (PACE in fit.names and catalog.entry(str(variable.of), entry).details.get(name)) or Detail()
            asks = ""
            if isinstance(before, dict):
                after, ends = {label: scaled(v, scale) for label, v in before.items()}, (None, None)
            elif isinstance(before, float) and before > 0:
                after = scaled(before, scale)
                low, high = (math.sqrt(variance + _kept(before, end)) for end in (detail.low, detail.high))
                ends = scaled(before, scale * math.exp(-TO_95 * low)), scaled(before, scale * math.exp(TO_95 * high))
                near = before * scale < NEAR * least, before * scale > most / NEAR > before
                asks = "less" if near[0] else "more" if near[1] else ""
            else:
                continue
            result.append(Moved(str(variable.of), entry, name, before, after, *ends, gradient, asks))
    return result


def _kept(value: float, end: float | None) -> float:
    """Variance of the logarithm of a value that one end of its range states."""
    return (math.log(end / value) / TO_95) ** 2 if end else 0.0


def scatter(found: ClusterCalibration) -> float | None:
    """Deviation that covers nine of ten held-out steps (a cross-validated quantile); None for fewer than nine steps.

    The same errors chose the set of factors: new steps may scatter more.
    """
    if found.chosen.held_out_logs is None:
        return None
    steps = np.array([row.quantity == "step_time" for row in found.measured.rows])
    errors = np.sort(np.abs(found.chosen.held_out_logs[steps]))
    rank = math.ceil(SHARE * (len(errors) + 1))
    return float(f"{errors[rank - 1] / TO_95:.3g}") if 0 < rank <= len(errors) else None


def cluster_file(found: ClusterCalibration, today: date) -> str:
    """The catalog file: what the fit moved, with ranges and correlations, and what the cluster is used with."""
    measured, catalog = found.measured, found.measured.catalog
    note = f"calibrated on {len(measured.rows)} rows, free: {found.chosen.name}"
    lines = [
        f"# perfgrid calibrate, {today.isoformat()}: {note}.",
        "# Median of held-out |ln(predicted / measured)|: " + _held_out(found),
    ]
    every = moved(found)
    for table in ("device", "topology", "software"):
        for entry in measured.scope.entries(table):
            lines += ["", f"[{table}.{key_text(entry)}]", f"extends = {quoted(entry)}"]
            lines += _recorded(found, table, entry)
            own = [m for m in every if (m.table, m.entry) == (table, entry)]
            for i, m in enumerate(own):
                detail = Detail(m.low, m.high, today.year, CALIBRATED, correlation=_correlations(found, own, i))
                lines.append(f"{m.name} = {stated_text(catalog.variables[m.name], m.value, detail, None)}")
            if table == "software" and (wide := scatter(found)) is not None:
                about = f'{{ value = {wide}, confidence = "measured", note = "nine of ten held-out steps" }}'
                lines += [f"{name} = {about}" for name in ("model_error", "unexplained_error")]
    return "\n".join(lines) + "\n"


def _held_out(found: ClusterCalibration) -> str:
    texts = [f"{c.held_out.median:.3f} {name}" for name, c in found.candidates.items() if c.held_out]
    return (", ".join(texts) or "none, all rows are of one layout") + "."


def _correlations(found: ClusterCalibration, own: list[Moved], i: int) -> dict[str, float]:
    """Correlations of a quantity with those behind it of the same entry."""
    if own[i].low is None:
        return {}

    def deviation(m: Moved) -> float:
        return math.log(float(m.high or 0) / float(m.low or math.nan)) / (2 * TO_95) if m.low else math.inf

    result = {}
    for other in own[i + 1 :]:
        if other.low is not None:
            shared = float(own[i].gradient @ found.covariance @ other.gradient)
            share = shared / max(deviation(own[i]) * deviation(other), 1e-12)
            share = float(np.clip(share, -LARGEST_CORRELATION, LARGEST_CORRELATION))
            if abs(share) >= SMALLEST_CORRELATION:
                result[other.name] = round(share, 2)
    return result


def _recorded(found: ClusterCalibration, table: str, entry: str) -> list[str]:
    """Properties of a machine that all records state alike and the catalog states otherwise.

    Of the device also what `train` and `serve` take with it where no other stack is named: the measured one.
    """
    scope, catalog = found.measured.scope, found.measured.catalog
    rows, lines = [row for row in found.measured.rows if row.record.kind != "kernel"], list[str]()
    for name in MACHINE.get(table, ()):
        values = [row.columns[name] for row in rows if name in row.columns and row.columns.get(table) == entry]
        if values and all(v == values[0] for v in values) and values[0] != catalog.entry(table, entry).values[name]:
            lines.append(f"{name} = {value_text(catalog.variables[name], values[0])}")
    if table == "device":
        lines += [f"usual_topology = {quoted(name)}" for name in scope.topology[:1]]
        kinds = {row.record.kind for row in rows}
        lines += [f"{key} = {quoted(scope.software[0])}" for kind, key in USUAL.items() if kind in kinds]
    return lines


def fitted_rows(found: ClusterCalibration) -> list[list[str]]:
    """One row for each parameter of the chosen set, with the columns FITTED."""
    measured, fit = found.measured, found.chosen.fit
    factors = {name: measured.factors[name] for name in fit.names}
    if list(factors) == [PACE]:
        (factor,) = factors.values()
        at, wide = float(fit.point[0]), math.sqrt(float(found.covariance[0, 0]))
        before, after = (_ends(x, s) for x, s in ((0.0, factor.spread), (at, wide)))
        return [["all rates; times / it", "1", before, f"{math.exp(at):.3g}", after, ""]]
    every = {m.name: m for m in reversed(moved(found))}
    rows = []
    for factor in factors.values():
        shown = next((every[q] for q in factor.powers if q in every and every[q].low is not None), None)
        if shown is None or not isinstance(shown.before, float) or not isinstance(shown.value, float):
            continue
        unit = measured.catalog.variables[shown.name].unit
        ends = [shown.before * math.exp(side * TO_95 * factor.spread) for side in (-1, 1)]
        texts = [number(v, unit) for v in (shown.before, *ends, shown.value, shown.low or 0.0, shown.high or 0.0)]
        more = len([q for q in factor.powers if q in every]) - 1
        label = shown.name + (f" and {more} more" if more else "")
        before, after = (f"{low} to {high}" for low, high in (texts[1:3], texts[4:]))
        rows.append([label, texts[0], before, texts[3], after, shown.asks])
    return rows


def _ends(log: float, deviation: float) -> str:
    return " to ".join(f"{math.exp(log + side * TO_95 * deviation):.3g}" for side in (-1, 1))


def set_rows(found: ClusterCalibration) -> list[list[str]]:
    """One row for each set of factors, with the columns SETS; the chosen one is marked."""
    return [
        [
            name + (" *" if c is found.chosen else ""),
            f"{c.held_out.median:.3f}" if c.held_out else "-",
            "-" if c.score is None else f"{c.score:.3f}",
            f"{c.fitted.median:.3f}",
        ]
        for name, c in found.candidates.items()
    ]


def bound_lines(found: ClusterCalibration) -> list[str]:
    """A line for each factor of which a quantity is at its bound: which, where, and what to check."""
    variables, lines = found.measured.catalog.variables, list[str]()
    beyond = {m.name: m for m in moved(found) if m.asks and isinstance(m.value, float)}
    for factor in (found.measured.factors[name] for name in found.chosen.fit.names):
        for name in [name for name in factor.powers if name in beyond]:
            m = beyond.pop(name)
            at = number(float(str(m.value)), variables[name].unit)
            lines.append(f"{name} is at its bound {at}: the measurements ask for {m.asks}; check {factor.check}")
    return lines


def cluster_stated(found: ClusterCalibration, today: date) -> dict[str, Any]:
    """The calibration as plain data."""
    fit = found.chosen.fit
    return {
        "date": today.isoformat(),
        "rows": len(found.measured.rows),
        "scope": asdict(found.measured.scope),
        "chosen": found.chosen.name,
        "factors": dict(zip(fit.names, map(float, np.exp(fit.point)), strict=True)),
        "covariance": found.covariance.tolist(),
        "quantities": {
            f"{m.table}.{m.entry}.{m.name}": {"before": m.before, "value": m.value, "low": m.low, "high": m.high}
            for m in moved(found)
        },
        "sets": {
            name: {"held_out": c.held_out and asdict(c.held_out), "score": c.score, "in_sample": asdict(c.fitted)}
            for name, c in found.candidates.items()
        },
        "at_a_bound": [*bound_lines(found)],
        "exceeding_memory": found.measured.exceeding,
        "not_predicted": {k: "; ".join(v) for k, v in found.measured.unpredicted.items()},
    }


def next_command(found: ClusterCalibration, output: Path) -> str:
    """A command that uses the catalog file."""
    rows = found.measured.rows
    steps = [row.record for row in rows if row.record.kind in USUAL]
    command = "serve" if steps and steps[0].kind == "inference" else "train"
    known = found.measured.catalog.tables["model"]
    models = [r.model.name for r in steps if r.model is not None and r.model.name in known]
    size = "--rate N" if command == "serve" else f"--devices {max((r.devices or 0 for r in steps), default=0) or 'N'}"
    words = (command, models[0] if models else "MODEL", "--on", found.measured.scope.device, size, "--catalog", output)
    return " ".join(map(str, ("perfgrid", *words)))
