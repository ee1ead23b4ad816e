"""The best designs of a study, searched tile by tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from numbers import Integral
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest, together
from perfgrid.engine.execution.evaluation import Evaluation, Progress, enable_compilation_cache
from perfgrid.engine.grid.dataset import labelled_values
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Space
from perfgrid.engine.reductions.argmin import Winners, nearest_first, points_plan
from perfgrid.engine.reductions.infeasibility import Forbidden
from perfgrid.engine.reductions.preselection import BestSearch
from perfgrid.results.memory import POINTS_AT_ONCE
from perfgrid.results.provenance import given_quantities, origin_of
from perfgrid.study.file import CLUSTER_SIZE, Ties, chosen_along, ties_of
from perfgrid.study.selection import reaching, selected
from perfgrid.study.study import Study

from .best_of_result import forbidding, lawful, masked

RANK = "rank"  # dimension of several best designs of one group
MOST_NEAR = 1024  # best designs of a group among which ties are looked for
MOST_RANKED = 1_000_000  # designs of all groups: a table, where a grid is meant to be searched


def best_of_study(
    study: Study,
    over: str | Sequence[str],
    objective: str,
    least: bool,
    at: Mapping[str, Any],
    count: int,
    tile_points: int,
    progress: Progress | None,
) -> xr.Dataset:
    """The best designs of a study along the axes ``over``; see `perfgrid.best`."""
    study = reaching(study, [objective])
    if not isinstance(count, Integral) or count < 1:
        raise PerfgridError(f"the number of best designs must be 1 or more, found {count!r}")
    over, weighed = chosen_along(over, CLUSTER_SIZE, [axis.name for axis in study.space.axes])
    space = searched_space(study, over, at)
    groups = space.points // prod(len(axis) for axis in space.axes if axis.name in over)
    if count > 1 and groups * count > MOST_RANKED:
        raise PerfgridError(
            f"{study.name}: the {count:,} best designs of each of {groups:,} groups are more than {MOST_RANKED:,} in "
            "all; ask for fewer, or narrow the study with where"
        )
    plan = replace(study, space=space).plan()  # names outputs that cannot be computed before any work
    enable_compilation_cache()
    ties = ties_of(study.file.best, objective)
    search = BestSearch(
        study.registry,
        space,
        objective,
        over,
        not least,
        None if weighed else _cluster_sizes(space, over),
        study.file.choices,
        study.file.dtype,
        tile_points,
        progress,
        ties=ties.exact,
    )
    looked = int(count) if ties.within is None else max(int(count), min(MOST_NEAR, MOST_RANKED // max(groups, 1)))
    winners = search.winners(looked)
    if ties.within is not None:
        winners = _nearly_equal(study, plan.study_space, winners, objective, least, ties, int(count))
    found = _labelled(study, plan, search, winners, over, at)
    return found.assign_attrs(points_searched=space.points, points_excluded=search.excluded)


def searched_space(study: Study, over: Sequence[str], at: Mapping[str, Any]) -> Space:
    """The space with one row of every axis in ``at``. PerfgridError for an unknown axis, and for one in both."""
    names = [axis.name for axis in study.space.axes]
    if both := sorted(set(over) & set(at)):
        raise PerfgridError(f"axis {both[0]!r} is chosen along and selected at once")
    if wrong := [axis for axis in (*over, *at) if axis not in names]:
        raise PerfgridError(together(_no_axis(study.space, axis) for axis in wrong))
    return selected(study, at).space


def _no_axis(space: Space, name: str) -> str:
    """That an axis is absent, and of a column of one how its rows are selected."""
    holder = next((axis.name for axis in space.axes if name in axis.columns), None)
    if holder is None:
        return f"the study has no axis {name!r}{nearest(name, [axis.name for axis in space.axes])}"
    return f"{name!r} is no axis but a column of {holder!r}: where = '{name} == ...' selects its rows"


def _cluster_sizes(space: Space, over: Sequence[str]) -> tuple[str, np.ndarray] | None:
    """The axis that states cluster sizes, if it is chosen along, and a number for the size of each row."""
    for axis in space.axes:
        if axis.name in over and axis.name != CLUSTER_SIZE and CLUSTER_SIZE in axis.columns:
            return axis.name, np.unique(axis.columns[CLUSTER_SIZE], return_inverse=True)[1]
    return None


def at_points(study: Study, space: Space, wanted: Sequence[str], places: Sequence[np.ndarray]) -> xr.Dataset:
    """Quantities and constraints at single points, given as rows of every axis of a space, along ``point``.

    What a wanted constraint makes illegal is NaN.
    """
    about = (study.catalog.references, given_quantities(study))
    parts: list[xr.Dataset] = []
    for start in range(0, len(places[0]), POINTS_AT_ONCE):
        some = [rows[start : start + POINTS_AT_ONCE] for rows in places]
        single = points_plan(study.registry, space, some, wanted, study.file.choices)
        values = Evaluation(single, study.file.dtype).collect()
        named = lawful(labelled_values(single, values, *about).drop_vars("point"))
        # no output may differ from design to design
        parts.append(named if "point" in named.dims else named.expand_dims(point=len(some[0])))
    whole: Any = xr.concat(parts, "point", data_vars="all", combine_attrs="override") if len(parts) > 1 else parts[0]
    return whole


def _nearly_equal(
    study: Study, space: Space, winners: Winners, objective: str, least: bool, ties: Ties, count: int
) -> Winners:
    """The best designs of every group, those within a part of the best by other quantities: of as many as are given."""
    shape, given = winners.found.shape, winners.found
    if not given.any():
        return replace(winners, index=tuple(rows[..., :count] for rows in winners.index), found=given[..., :count])
    points = [rows[given] for rows in winners.index]
    shown = {
        name: axis.columns[name][rows] for axis, rows in zip(space.axes, points, strict=True) for name in axis.shown
    }
    values = at_points(study, space, [name for name in (objective, *ties.by) if name not in shown], points)

    def placed(name: str) -> np.ndarray:
        whole = np.full(shape, np.inf)
        found = shown[name] if name in shown else values[name].values
        whole[given] = np.broadcast_to(found, int(given.sum())) * (-1 if name == objective and not least else 1)
        return whole.reshape(-1, shape[-1])

    score, *others = map(placed, (objective, *ties.by))
    order = [nearest_first(one, [own[i] for own in others], float(ties.within or 0)) for i, one in enumerate(score)]
    kept = np.reshape(order, shape)[..., :count]
    index = tuple(np.take_along_axis(rows, kept, axis=-1) for rows in winners.index)
    return replace(winners, index=index, found=np.take_along_axis(given, kept, axis=-1))


def _none_found(
    study: Study, space: Space, search: BestSearch, found: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Where a group has no design, how many of its designs each constraint forbids, and of how many (by part)."""
    none, groups = ~found, [search.axes[i] for i in search.groups]
    forbidden = Forbidden(study.registry, space, search.plan.constraints, study.file.choices, study.file.dtype)
    counts = {name: np.zeros(none.shape, np.int64) for name in search.plan.constraints}
    designs = np.zeros(len(none), np.int64)
    for part in np.flatnonzero(none.reshape(len(none), -1).any(axis=1)):
        rows = {axis: np.arange(size) for axis, size in search.sizes.items()}
        if search.parts is not None:
            rows[search.parts[0]] = np.flatnonzero(search.parts[1] == part)
        held = np.nonzero(none[part]) if groups else ()
        rows |= {axis: np.unique(places) for axis, places in zip(groups, held, strict=True)}
        axes, by_constraint = forbidden.counts(rows, search.over)
        designs[part] = np.prod([len(rows[axis]) for axis in search.over], dtype=np.int64)
        for name, count in by_constraint.items():
            here = count.transpose([axes.index(axis) for axis in groups])
            counts[name][(part, *np.ix_(*(rows[axis] for axis in groups)))] = here
    return none, counts, designs


def _labelled(
    study: Study, plan: Plan, search: BestSearch, winners: Winners, over: Sequence[str], at: Mapping[str, Any]
) -> xr.Dataset:
    """The winners with all outputs of the study, labelled like the best of a result."""
    space = plan.study_space
    names = [search.axes[i] for i in search.groups]
    single_rows = tuple(1 + i for i, name in enumerate(names) if name in at)
    groups = [name for name in names if name not in at]
    dims = ("part", *groups, RANK)
    exists, *index = (np.squeeze(array, axis=single_rows) for array in (winners.found, *winners.index))
    points, numbers = np.flatnonzero(exists), np.zeros(exists.size, int)
    numbers[points] = np.arange(len(points))
    places = [rows.reshape(-1)[points] if len(points) else np.zeros(1, int) for rows in index]
    wanted = (*plan.outputs, *(name for name in plan.constraints if name not in search.plan.constraints))
    named = at_points(study, space, wanted, places).assign_attrs(origin_of(study, plan))
    chosen = named.isel(point=xr.DataArray(numbers.reshape(exists.shape), dims=dims))
    coordinates: dict[str, Any] = {}
    for axis, rows in zip(space.axes, index, strict=True):
        if axis.name in at:
            coordinates[axis.name] = axis.labels[0]
        elif axis.name in groups:
            coordinates |= {name: (axis.name, values) for name, values in axis.coordinates().items()}
        else:
            found_there = {name: (dims, values) for name, values in axis.coordinates(rows).items()}
            coordinates |= {n: v for n, v in found_there.items() if n != CLUSTER_SIZE or search.parts is None}
    chosen = chosen.assign_coords(coordinates | {"found": (dims, exists)})
    if not winners.found[..., 0].all():
        none, counts, designs = _none_found(study, space, search, winners.found[..., 0])
        none, *every = (np.squeeze(array, axis=single_rows) for array in (none, *counts.values()))
        counts, designs = dict(zip(counts, every, strict=True)), designs.reshape(-1, *(1,) * len(groups))
        chosen = forbidding(chosen, xr.DataArray(none, dims=dims[:-1]), counts, designs)
    if search.parts is None:
        chosen = chosen.isel(part=0)
    else:
        sizes = np.unique(next(a for a in space.axes if a.name == search.parts[0]).columns[CLUSTER_SIZE])
        chosen = chosen.rename(part=CLUSTER_SIZE).assign_coords({CLUSTER_SIZE: sizes.astype(np.int64)})
    if exists.shape[-1] == 1:
        chosen = chosen.isel({RANK: 0})
    else:
        chosen = chosen.assign_coords({RANK: np.arange(1, exists.shape[-1] + 1)})
    order = [d for d in (CLUSTER_SIZE, *(a.name for a in space.axes), RANK) if d in chosen["found"].dims]
    chosen = chosen.transpose(*order, ...)
    return masked(chosen.drop_vars("found"), xr.DataArray(chosen["found"].variable), over)
