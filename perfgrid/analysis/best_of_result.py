"""The best design of every group of a result."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from math import prod
from operator import and_
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.dataset import bare_variables, constraints_of, feasible
from perfgrid.engine.reductions.argmin import nearest_first, ranked
from perfgrid.results.factored import selected
from perfgrid.results.provenance import GROUPED, stated_best
from perfgrid.study.file import chosen_along, ties_of

FORBIDDEN = ("forbidden_by", "forbids", "designs")  # coordinates of a group without feasible designs


def best_of_result(
    dataset: xr.Dataset, over: str | Sequence[str], objective: str, least: bool, at: Mapping[str, Any]
) -> xr.Dataset:
    """The best design of a result along the axes ``over``; see `perfgrid.best`."""
    grouped = dataset.attrs.get(GROUPED)
    over, weighed = chosen_along(over, grouped, list(map(str, dataset.dims)))
    if both := sorted(set(over) & set(at)):
        raise PerfgridError(f"axis {both[0]!r} is chosen along and selected at once")
    dataset = selected(dataset, at)
    for axis in over:
        if axis not in dataset.dims:
            raise PerfgridError(f"the result has no axis {axis!r}{nearest(axis, map(str, dataset.dims))}")
    if grouped in dataset.coords and grouped not in dataset.dims and not weighed:
        axis = next(iter(dataset[grouped].dims), None)
        if axis in over:
            sizes = np.unique(dataset[grouped].values)
            parts = [dataset.isel({axis: dataset[grouped].values == n}) for n in sizes]
            chosen = [_best(p.drop_vars(str(grouped)), over, objective, least) for p in parts]
            groups = xr.Variable(grouped, sizes.astype(np.int64))
            labels = {c for c, v in dataset.coords.items() if set(v.dims) & set(over)} | {"found", *FORBIDDEN}
            varying = [c for c, v in chosen[0].coords.items() if c not in chosen[0].dims and (v.ndim or c in labels)]
            return _without_reasons(xr.concat(chosen, dim=groups, join="outer", coords=varying))
    return _without_reasons(_best(dataset, over, objective, least))


def _without_reasons(winners: xr.Dataset) -> xr.Dataset:
    """Winners without reasons where every group has one."""
    return winners.drop_vars(FORBIDDEN) if bool(winners["found"].all()) else winners


def _best(dataset: xr.Dataset, over: list[str], objective: str, least: bool) -> xr.Dataset:
    possible, score = feasible(dataset, of=objective), dataset[objective] if least else -dataset[objective]
    ties = ties_of(stated_best(dataset.attrs), objective)
    held = all(name in dataset for name in ties.by)
    if ties.exact is not None and held:
        score = xr.apply_ufunc(ranked, score.astype(float), dataset[ties.exact])
    score = score.where(possible & np.isfinite(score), np.inf)
    others = [d for d in dataset.attrs.get("study_axes", "").split() if d in dataset.dims]
    constant = [d for d in dict.fromkeys([*over, *others]) if d not in score.dims]  # other outputs may vary there
    score = score.expand_dims({d: dataset.sizes[d] for d in constant})
    groups = [d for d in score.dims if d not in over]
    score = score.transpose(*groups, *over)
    flat = score.values.reshape(*(score.sizes[d] for d in groups), -1)
    winner = np.argmin(flat, axis=-1)
    if ties.within is not None and held:
        others = [_flat(dataset[name], score, len(groups)) for name in ties.by]
        chosen = [nearest_first(flat[i], [o[i] for o in others], ties.within)[0] for i in np.ndindex(flat.shape[:-1])]
        winner = np.reshape(chosen, flat.shape[:-1])
    found = np.isfinite(np.take_along_axis(flat, winner[..., None], axis=-1)[..., 0])
    rows = np.unravel_index(winner, [score.sizes[d] for d in over] or [1])  # without axes a point is its own group
    index = {d: xr.DataArray(r, dims=groups) for d, r in zip(over, rows, strict=False)}
    exists = xr.DataArray(found, dims=groups)
    return _explained(masked(lawful(dataset.isel(index)), exists, over), dataset, over, objective, exists)


def _flat(values: xr.DataArray, like: xr.DataArray, groups: int) -> np.ndarray:
    """Values on the dimensions of another array: those of groups, and the others as one."""
    whole = values.broadcast_like(like).transpose(*like.dims).values
    return whole.reshape(*whole.shape[:groups], -1)


def _explained(
    winners: xr.Dataset, dataset: xr.Dataset, over: Sequence[str], objective: str, exists: xr.DataArray
) -> xr.Dataset:
    """Winners with the constraint that forbids most designs of each group that has none."""
    groups, counts = exists.dims, {}
    for name in constraints_of(dataset, objective) if not bool(exists.all()) else ():
        violated = dataset[name].variable == 0
        alike = prod(dataset.sizes[d] for d in over if d not in violated.dims)
        count = violated.sum([d for d in over if d in violated.dims]) * alike
        counts[name] = count.set_dims({d: exists.sizes[d] for d in groups}).transpose(*groups).values
    return forbidding(winners, ~exists, counts, prod(dataset.sizes[d] for d in over))


def forbidding(
    winners: xr.Dataset, none: xr.DataArray, counts: Mapping[str, np.ndarray], designs: int | np.ndarray
) -> xr.Dataset:
    """Winners with the constraint that forbids most designs of each group without: name, count, designs of the group.

    ``none`` marks these groups, ``counts`` the designs that each constraint forbids, of the shape of ``none``.
    """
    most, named = np.zeros(none.shape, np.int64), np.full(none.shape, "", object)
    for name, count in sorted(counts.items()):  # of equal ones the first by name
        more = none.values & (count > most)
        most, named = np.where(more, count, most), np.where(more, name, named)
    of = np.where(none.values, designs, 0)
    about = (
        "the constraint that forbids most designs of a group without a feasible one",
        "designs of the group that it forbids",
        "designs of the group",
    )
    found = zip(FORBIDDEN, (named.astype(str), most, of), about, strict=True)
    return winners.assign_coords({n: (none.dims, value, {"long_name": text}) for n, value, text in found})


def masked(chosen: xr.Dataset, exists: xr.DataArray, over: Collection[str] = ()) -> xr.Dataset:
    """Nothing that looks like a design where there is none: NaN, choices -1, labels empty."""
    if bool(exists.all()):
        return chosen.assign_coords(found=exists)
    masked = {}
    for name, variable in (*chosen.data_vars.items(), *chosen.coords.items()):
        if name in chosen.dims or name in FORBIDDEN or "constraint" in variable.attrs:
            continue
        if name in chosen.coords and name not in over and not set(exists.dims) & set(variable.dims):
            continue
        masked[name] = _where(variable, exists)
    return chosen.assign(masked).assign_coords(found=exists)


def lawful(designs: xr.Dataset) -> xr.Dataset:
    """Designs without the outputs that are illegal there: NaN, choices -1."""
    variables = bare_variables(designs)
    flags = {n: v != 0 for n, v in variables.items() if v.attrs.get("constraint") == "illegal"}
    broken = {name for name, flag in flags.items() if not bool(flag.all())}
    kept = {}
    for name, variable in variables.items() if broken else ():
        mine = [] if "constraint" in variable.attrs else broken.intersection(constraints_of(designs, name))
        if mine:
            kept[name] = _where(designs[name], xr.DataArray(reduce(and_, (flags[n] for n in mine))))
    return designs.assign(kept)


def _where(variable: xr.DataArray, kept: xr.DataArray) -> xr.DataArray:
    empty = {"f": np.nan, "i": -1, "U": ""}.get(variable.dtype.kind)
    return variable if empty is None else variable.where(kept, empty)
