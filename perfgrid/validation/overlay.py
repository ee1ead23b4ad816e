"""A calibration as lines of a catalog file and as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from typing import Any

import numpy as np

from perfgrid.catalog import Catalog

from .calibration import TO_95, Calibration
from .validate import CALIBRATED

DIGITS = 3  # of fitted values
ERRORS = ("before", "in-sample", "source left out")
CONSTANTS = ("constant", "prior", "fitted", "deviation of ln", "rows of sources", *ERRORS)


def overlay(found: Calibration, catalog: Catalog, today: date) -> str:
    """The catalog file of a calibration: fitted values of each entry with 90 % range and provenance."""
    fit = found.fit
    table = fit.constants[0].table
    sources = sorted({row.record.group for row in found.rows})
    spread = np.sqrt(np.diag(fit.covariance))
    correlations = fit.covariance / np.outer(spread, spread)
    lines = [
        f"# perfgrid calibrate, {today.isoformat()}, on {len(found.rows)} records of {', '.join(sources)}.",
        f"# Median of |ln(predicted / measured)|: {found.before.median:.3f} before, {found.after.median:.3f} after"
        + (f", {found.unseen.median:.3f} without each source in turn." if found.unseen else "; there is one source."),
        f'kind = "{table}"',
    ]
    for entry in dict.fromkeys(e for c in fit.constants for e in c.entries):
        lines += ["", f"[{entry}]", f'extends = "{entry}"']
        for k, (constant, value, deviation) in enumerate(zip(fit.constants, fit.values, spread, strict=True)):
            if entry not in constant.entries:
                continue
            low, high = (
                float(np.clip(value * np.exp(s * TO_95 * deviation), constant.low, constant.high)) for s in (-1, 1)
            )
            unit = catalog.variables[constant.name].unit
            stated = [f"{v:.{DIGITS}g}" if unit == "1" else f'"{v:.{DIGITS}g} {unit}"' for v in (value, low, high)]
            others = {c.name: correlations[k, i] for i, c in enumerate(fit.constants) if i > k and entry in c.entries}
            joint = ", ".join(f"{name} = {value:.2f}" for name, value in others.items())
            note = f"calibrated on {len(found.rows)} records of {', '.join(sources)}"
            lines.append(
                f"{constant.name} = {{ value = {stated[0]}, low = {stated[1]}, high = {stated[2]}, "
                f'year = {today.year}, confidence = "{CALIBRATED}", note = "{note}", '
                f'calibration = "{"+".join(constant.entries)}"'
                + (f", correlation = {{ {joint} }} }}" if joint else " }")
            )
    return "\n".join(lines) + "\n"


def stated(found: Calibration, today: date) -> dict[str, Any]:
    """A calibration as plain data: values, deviations and correlations, errors in-sample and without each source."""
    fit, spread = found.fit, np.sqrt(np.diag(found.fit.covariance))
    return {
        "date": today.isoformat(),
        "rows": len(found.rows),
        "sources": sorted({row.record.group for row in found.rows}),
        "constants": {
            c.label: {"before": c.start, "value": float(v), "deviation": float(s)}
            for c, v, s in zip(fit.constants, fit.values, spread, strict=True)
        },
        "covariance": fit.covariance.tolist(),
        "before": asdict(found.before),
        "after": asdict(found.after),
        "unseen": asdict(found.unseen) if found.unseen else None,
        "unseen_logs": {}
        if found.unseen_logs is None
        else {row.record.id: round(float(log), 4) for row, log in zip(found.rows, found.unseen_logs, strict=True)},
        "left_out": {name: asdict(error) for name, error in found.left_out.items()},
        "dropped": found.dropped,
    }


def calibration_rows(calibrations: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """One row per calibration and constant, with the columns CONSTANTS."""
    rows = []
    for c in calibrations.values():
        medians = [f"{c[of]['median']:.3f}" if c[of] else "one source" for of in ("before", "after", "unseen")]
        errors = [f"{c['rows']} of {len(c['sources'])}", *medians]
        for label, k in c["constants"].items():
            value = [f"{k['before']:.3g}", f"{k['value']:.3g}", f"{k['deviation']:.2f}"]
            rows.append([label.removeprefix("software."), *value, *errors])
            errors = [""] * len(errors)  # beside the first constant only
    return rows
