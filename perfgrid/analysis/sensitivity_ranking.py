"""What a dataset of elasticities says: parameters by strength, those without effect, and the resource that binds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.catalog.units import unit_registry
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.dataset import feasible

ELASTICITY = "_elasticity"


@dataclass(frozen=True)
class Rank:
    """One parameter's elasticities over the feasible points of a result."""

    parameter: str
    unit: str
    mean: float
    low: float
    high: float
    zero: float  # share of points at which it is 0


def elasticities_of(result: xr.Dataset, output: str) -> xr.DataArray:
    """The elasticities of one output. PerfgridError if the result has none."""
    if output + ELASTICITY not in result:
        raise PerfgridError(f"the result holds no elasticities of {output!r}; perfgrid.sensitivity makes them")
    return result[output + ELASTICITY]


def _feasible_rows(result: xr.Dataset, found: xr.DataArray, output: str) -> np.ndarray:
    """One column per point of the output's axes that is feasible in some design, one row per parameter."""
    possible = feasible(result, of=output)
    possible = possible.any([d for d in possible.dims if d not in found.dims])
    points = found.isel(parameter=0, drop=True)
    kept = possible.broadcast_like(points).transpose(*points.dims).values
    return found.values.reshape(found.shape[0], -1)[:, kept.reshape(-1)]


def ranked(result: xr.Dataset, output: str) -> list[Rank]:
    """The parameters of a result by the mean size of their elasticity over feasible points, the strongest first."""
    found = elasticities_of(result, output)
    rows = _feasible_rows(result, found, output)
    ranks = []
    for name, unit, row in zip(found.parameter.values, result.parameter_unit.values, rows, strict=True):
        row = row if row.any() else np.zeros(1)
        mean, low, high = (float(f(row)) + 0.0 for f in (np.mean, np.min, np.max))
        rank = Rank(str(name), str(unit), mean, low, high, float((row == 0).mean()))
        ranks.append((float(np.abs(row).mean()), rank))
    return [rank for _, rank in sorted(ranks, key=lambda r: -r[0])]


def binding(result: xr.Dataset, output: str, among: str = "rates") -> xr.DataArray:
    """Which resource binds where: at every point the parameter of the largest elasticity, as a flag variable.

    ``among`` "rates" looks at parameters per second (bandwidths and rates of arithmetic), "all" at every one; -1 where
    none has an effect. Raises PerfgridError where there is no such parameter.
    """
    if among not in ("rates", "all"):
        raise PerfgridError(f"among must be 'rates' or 'all', found {among!r}")
    found = elasticities_of(result, output)
    rates = [str(u).endswith("/s") for u in result.parameter_unit.values]
    rows = np.flatnonzero(rates if among == "rates" else np.ones(len(rates), bool))
    if rows.size == 0:
        raise PerfgridError("no parameter of this result is a rate; give among='all'")
    best = np.zeros(found.shape[1:], found.dtype)
    winner = np.full(found.shape[1:], -1, np.int16)
    for code, row in enumerate(rows):  # one parameter at a time: the whole array may be large
        size = np.abs(found.values[row])
        stronger = size > best
        best[stronger], winner[stronger] = size[stronger], code
    names = [str(found.parameter.values[row]) for row in rows]
    attributes = {
        "long_name": f"the parameter of the largest elasticity of {output}",
        "flag_values": np.arange(len(names), dtype=np.int16),
        "flag_meanings": " ".join(names),
    }
    return xr.DataArray(
        winner, found.isel(parameter=0, drop=True).coords, found.dims[1:], f"{output}_bound_by", attributes
    )


def binding_shares(result: xr.Dataset, output: str) -> Mapping[str, float]:
    """The share of feasible points at which each rate binds an output, the most frequent first."""
    which = binding(result, output)
    codes = _feasible_rows(result, which.expand_dims("parameter"), output)[0]
    names = which.flag_meanings.split(" ")
    none, *counts = np.bincount(codes + 1, minlength=1 + len(names)).tolist()  # the code of none is -1
    shares = [*zip(names, counts, strict=True), ("none", none)]
    return {n: c / codes.size for n, c in sorted(shares, key=lambda i: -i[1]) if c}


def time_balance(result: xr.Dataset, output: str) -> tuple[float, float, float] | None:
    """Euler's theorem in units of time: the exponent of seconds in an output, and the least and largest sum it gives.

    If every rate is halved and every fixed time doubled, a time doubles: elasticities with respect to parameters,
    weighted by the exponent of seconds in their units, add up to that of the output, as far as all are among the
    parameters. None for an output without seconds in its unit or without feasible designs.
    """
    found = elasticities_of(result, output)
    expected = _seconds(result[output].attrs.get("units", "1"))
    rows = _feasible_rows(result, found, output)
    if expected == 0 or rows.shape[1] == 0:
        return None
    total = np.zeros(rows.shape[1])
    for unit, row in zip(result.parameter_unit.values, rows, strict=True):
        if (weight := _seconds(str(unit))) != 0:
            total += weight * row
    return expected, float(total.min()), float(total.max())


def _seconds(unit: str) -> float:
    """The exponent of time in a unit."""
    exponent: Any = unit_registry().parse_units("" if unit == "1" else unit).dimensionality.get("[time]", 0)
    return float(exponent)
