"""The fastest legal row that fits the memory, of records whose authors tuned what they leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from perfgrid.engine.grid.dataset import constraints_of
from perfgrid.results.evaluate import evaluate
from perfgrid.study.study import Study

from .design import Designs, Row
from .quantities import FORMULAS

WHOLE = 10**9  # evaluate all rows in the exact small stage


def column(array: xr.DataArray, count: int) -> np.ndarray:
    """Values by row, inner axes behind; what does not vary is repeated."""
    values = array.values
    return values if "row" in array.dims else np.broadcast_to(values, (count, *values.shape))


def violated(result: xr.Dataset, rows: Sequence[Row]) -> list[dict[str, str]]:
    """The constraints that make each row illegal, with their reasons."""
    illegal = {str(n): a for n, a in result.data_vars.items() if a.attrs.get("constraint") == "illegal"}
    holds = {name: column(array, len(rows)) for name, array in illegal.items()}
    concerning = {quantity: constraints_of(result, quantity) for quantity in {row.quantity for row in rows}}
    return [
        {n: illegal[n].attrs["reason"] for n in concerning[row.quantity] if n in illegal and not holds[n][i]}
        for i, row in enumerate(rows)
    ]


def fastest(rows: Sequence[Row], result: xr.Dataset, broken: Sequence[Mapping[str, str]]) -> list[int]:
    """The row of each record: the fastest legal one that fits, else the fastest legal one, else the fastest."""
    several = [i for i, row in enumerate(rows) if row.tuned]
    best = {row.record.id: i for i, row in enumerate(rows) if not row.tuned}
    if several:
        steps, fits = (column(result[name], len(rows)) for name in ("step_time", "fits_memory"))
        ranks = {i: (bool(broken[i]), not fits[i], float(np.nan_to_num(steps[i], nan=np.inf))) for i in several}
        for i in sorted(several, key=lambda i: ranks[i]):
            best.setdefault(rows[i].record.id, i)
    return sorted(best.values())


def settled(mapped: Designs) -> Designs:
    """The same with one row for each record: the fastest at the values of the catalog."""
    tuned = [row for row in mapped.rows if row.tuned]
    if not tuned:
        return mapped
    study = Study.make(
        mapped.catalog,
        FORMULAS,
        title="tuned fields",
        outputs=sorted({"step_time", *(row.quantity for row in tuned)}),
        dtype="float64",
        axes={"row": replace(mapped, rows=tuned).axis()},
    )
    result = evaluate(study, small_points=WHOLE)
    kept = {tuned[i].label for i in fastest(tuned, result, violated(result, tuned))}
    return replace(mapped, rows=[row for row in mapped.rows if not row.tuned or row.label in kept])
