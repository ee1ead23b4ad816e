"""The axis ``sample``: estimates of the catalog varied within their ranges.

A row of the axis is a factor on every sampled quantity. Draws are halves below and halves above the stated value, each
spread evenly to the end of its range, so that the stated value is the median. Where a study uses several entries of a
table, a quantity varies by the factors that the ranges of all of them allow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from perfgrid.catalog import Catalog, Variable
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.space import Axis

from .entries import OWN, OWN_PREFIX, STATED
from .values import check_keys

SAMPLE = "sample"
METHODS = ("sobol", "latin_hypercube", "one_at_a_time")
LARGEST = 1_000_000


def ranges(catalog: Catalog, entries: Mapping[str, Collection[str]], names: Collection[str]) -> dict[str, Any]:
    """(table, low, high) as factors on the stated value, for each quantity of ``names`` with a range in its entries.

    ``entries`` as `entries_of` finds them: what a device has of its own varies by the ranges of its own entries.
    """
    found = {}
    for variable in catalog.variables.values():
        if variable.kind != "number" or variable.axis is not None:
            continue
        for prefix in ("", OWN_PREFIX, STATED):
            if (name := prefix + variable.name) not in names:
                continue
            used = entries.get(OWN_PREFIX + variable.of if prefix == OWN_PREFIX else variable.of, ())
            ends = [_factors_of(catalog, variable, entry) for entry in used] or [(1.0, 1.0)]
            low, high = max(low for low, _ in ends), min(high for _, high in ends)
            if low < high:
                found[name] = (variable.of, low, high)
    return found


def _factors_of(catalog: Catalog, variable: Variable, entry: str) -> tuple[float, float]:
    """The ends of an entry's range over its stated value; (1, 1) without a range."""
    stated = catalog.tables[variable.of][entry]
    value, detail = stated.values.get(variable.name), stated.details.get(variable.name)
    if not isinstance(value, float) or value <= 0 or detail is None:
        return 1.0, 1.0
    low, high = (value if end is None else end for end in (detail.low, detail.high))
    return low / value, high / value


def chosen(found: Mapping[str, Any], wanted: Any, place: str) -> dict[str, Any]:
    """The ranges of the tables and quantities that a study names; all of them where it names none."""
    if wanted is None:
        return dict(found)
    tables = {table for table, _, _ in found.values()}
    plain = {name: name.removeprefix("stated_").removeprefix("native_") for name in found}
    legal = sorted(tables | set(found) | set(plain.values()))
    if not isinstance(wanted, list) or not all(isinstance(w, str) for w in wanted):
        raise PerfgridError(f"{place}.of: needs a list of tables or quantities, found {wanted!r}")
    for name in wanted:
        if name not in legal:
            raise PerfgridError(f"{place}.of: {name!r} has no range that the outputs depend on{nearest(name, legal)}")
    return {name: about for name, about in found.items() if {name, plain[name], about[0]} & set(wanted)}


def factors(uniform: np.ndarray, low: float, high: float) -> np.ndarray:
    """Factors of median 1 from uniform numbers: half of them spread over [low, 1], half over [1, high]."""
    below, above = low + (1 - low) * 2 * uniform, 1 + (high - 1) * (2 * uniform - 1)
    return np.where(uniform < 0.5, below, above)


def sample_axis(spec: Any, found: Mapping[str, Any], place: str) -> Axis:
    """The axis of a study's ``[axes.sample]``: method, num, seed, of. PerfgridError for anything else."""
    if not isinstance(spec, Mapping):
        raise PerfgridError(f"{place}: needs a table with num and method, found {spec!r}")
    check_keys(spec, ("num", "method", "seed", "of"), place)
    method, seed = spec.get("method", "sobol"), spec.get("seed", 0)
    if method not in METHODS:
        raise PerfgridError(f"{place}.method must be one of {', '.join(METHODS)}, found {method!r}")
    varied = chosen(found, spec.get("of"), place)
    if not varied:
        raise PerfgridError(f"{place}: nothing that the outputs depend on has a range in the catalog")
    if method == "one_at_a_time":
        if "num" in spec:
            raise PerfgridError(f"{place}: one_at_a_time has two rows for each quantity; leave num out")
        return _one_at_a_time(varied)
    num = spec.get("num", 256)
    for key, value, least in (("num", num, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            raise PerfgridError(
                f"{place}.{key} must be a whole number between {least} and {LARGEST:,}, found {value!r}"
            )
    draws = _draws(method, len(varied), num, seed)
    scales = {name: factors(draws[:, i], low, high) for i, (name, (_, low, high)) in enumerate(varied.items())}
    return Axis(SAMPLE, np.arange(num), {}, scales)


def _draws(method: str, dimensions: int, num: int, seed: int) -> np.ndarray:
    from scipy.stats import qmc  # takes longer to import than all the rest of a study

    if method == "latin_hypercube":
        return qmc.LatinHypercube(dimensions, rng=seed).random(num)
    return qmc.Sobol(dimensions, rng=seed).random(2 ** int(np.ceil(np.log2(max(num, 2)))))[:num]


def _one_at_a_time(varied: Mapping[str, Any]) -> Axis:
    """The stated values, and each quantity at the ends of its range while all others stay."""
    labels = ["stated", *(f"{name}.{end}" for name in varied for end in ("low", "high"))]
    scales = {name: np.ones(len(labels)) for name in varied}
    for i, (name, (_, low, high)) in enumerate(varied.items()):
        scales[name][1 + 2 * i : 3 + 2 * i] = low, high
    return Axis(SAMPLE, np.array(labels), {}, scales)


def entries_of(axes: Iterable[Axis], defaults: Mapping[str, str], catalog: Catalog) -> dict[str, set[str]]:
    """The catalog entries that axes name or defaults, by table; by ``native_<table>`` the devices' own."""
    used: dict[str, set[str]] = {table: set() for table in catalog.tables}
    for axis in axes:
        for table, names in {axis.name: axis.labels, **axis.columns}.items():
            if table in used:
                used[table] |= set(map(str, np.asarray(names).tolist())) & set(catalog.tables[table])
    for table, name in defaults.items():
        used[table] |= {name} & set(catalog.tables[table])
    for table, key in OWN.items():
        own = {str(catalog.tables["device"][device].values[key]) for device in used["device"]}
        used[OWN_PREFIX + table] = own & set(catalog.tables[table])
    return used
