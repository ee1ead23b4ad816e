"""The joint fit as lines of a catalog file and as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import date
from typing import Any

import numpy as np

from perfgrid.catalog import Catalog
from perfgrid.validation.calibration import TO_95, Constant
from perfgrid.validation.metrics import error_of
from perfgrid.validation.overlay import DIGITS
from perfgrid.validation.validate import CALIBRATED

from .left_out import LeftOut


def joint_lines(found: LeftOut, catalog: Catalog, today: date) -> list[str]:
    """The value of each constant of the joint fit as a catalog file states it, below its name."""
    fit, lines = found.fit, []
    deviations = fit.deviations
    correlations = fit.covariance / np.outer(deviations, deviations)
    together = zip(found.labels, fit.constants, fit.point, deviations, strict=True)
    for k, (label, constant, log, deviation) in enumerate(together):
        ends = (np.exp(log + side * TO_95 * deviation) for side in (-1, 1))
        low, high = (float(np.clip(end, constant.low, constant.high)) for end in ends)
        unit = catalog.variables[constant.name].unit
        value, *ends = (_text(v, unit) for v in (float(np.exp(log)), low, high))
        others = {c.name: correlations[k, i] for i, c in enumerate(fit.constants) if _states(constant, k, c, i)}
        joint = ", ".join(f"{name} = {value:.2f}" for name, value in others.items())
        lines += [
            f"# {label}",
            f"{constant.name} = {{ value = {value}, low = {ends[0]}, high = {ends[1]}, year = {today.year}, "
            f'confidence = "{CALIBRATED}", calibration = "{label.partition(".")[2]}"'
            + (f", correlation = {{ {joint} }} }}" if joint else " }"),
        ]
    return lines


def _text(value: float, unit: str) -> str:
    return f"{value:.{DIGITS}g}" if unit == "1" else f'"{value:.{DIGITS}g} {unit}"'


def _states(one: Constant, k: int, other: Constant, i: int) -> bool:
    """Whether a constant states its correlation with another: all of its entries have it, too, or it comes first."""
    mine, others = set(one.entries), set(other.entries)
    return mine < others or (mine == others and i > k)


def joint_stated(found: LeftOut, today: date) -> dict[str, Any]:
    """The joint fit as plain data: constants, errors in the fit, and of every record of it without its unit."""
    fit, taking_part = found.fit, [s for s in found.steps if s.unit in found.without and s.errors]
    fitted = [s for s in taking_part if s.record.share == "fitted"]
    errors = {way: {s.record.id: s.errors[way] for s in fitted} for way in ("one fit", "left out")}
    measured = {s.record.id: s.record.value for s in fitted}
    by_source: dict[str, list[str]] = {}
    for step in fitted:
        by_source.setdefault(step.record.group, []).append(step.record.id)

    def error(way: str, ids: Iterable[str]) -> dict[str, Any]:
        known = list(ids)
        predicted = [measured[i] * float(np.exp(errors[way][i])) for i in known]
        return asdict(error_of(predicted, [measured[i] for i in known]))

    return {
        "date": today.isoformat(),
        "rows": len(fitted),
        "units": len(found.without),
        "sources": sorted(by_source),
        "constants": {
            label: {"prior": c.start, "value": float(np.exp(log)), "deviation": float(d), "entries": list(c.entries)}
            for label, c, log, d in zip(found.labels, fit.constants, fit.point, fit.deviations, strict=True)
        },
        "covariance": fit.covariance.tolist(),
        "after": error("one fit", measured),
        "unseen": error("left out", measured),
        "unseen_logs": {i: round(log, 4) for i, log in errors["left out"].items()},
        "left_out": {source: error("left out", ids) for source, ids in by_source.items()},
        "headline": found.table(),
    }
