"""The best points of a grid that is never kept are those of the whole grid."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from perfgrid.engine import PerfgridError, Registry, formula
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.reductions.argmin import listed
from perfgrid.engine.reductions.preselection import BestSearch

from . import toys

REGISTRY = toys.registry()
ALIKE = Registry.collect([part for part in toys.PARTS if part is not toys.in_time], toys.INNER)  # many points are equal
NAMES = [axis.name for axis in toys.space().axes]


def whole_grid(space, objective, maximize, registry=REGISTRY):
    """Every value of the objective in study order of axes, infinite where it is none or a constraint is violated."""
    plan = Plan(registry, space, [objective], small_points=10**9)
    results = Evaluation(plan, "float64").collect()
    shape = tuple(len(a) for a in plan.space.axes)
    full = {n: np.broadcast_to(v.reshape(v.shape[: len(shape)]), shape) for n, v in results.items()}
    score = np.where(np.isfinite(full[objective]), full[objective] * (-1 if maximize else 1), np.inf)
    for name in plan.constraints:
        score = np.where(full[name], score, np.inf)
    return score.transpose(np.argsort(plan.order))


@pytest.mark.parametrize("rows", [8, 2])
@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_winners_are_those_of_the_whole_grid(rows, data):
    """Drawn sizes, axes, objectives, parts, thresholds of the small stage, tiles and numbers of winners.

    With blocks of 8 rows these axes are too short for blocks, with 2 rows most have some.
    """
    space = toys.drawn_space(data)
    names = [axis.name for axis in space.axes]
    over = data.draw(st.lists(st.sampled_from(names), unique=True))
    maximize = data.draw(st.booleans())
    registry, objectives = data.draw(
        st.sampled_from(
            [(REGISTRY, ["order_time", "throughput", "energy_cost"]), (ALIKE, ["transport", "piece_time", "line_time"])]
        )
    )
    objective = data.draw(st.sampled_from(objectives))
    count = data.draw(st.integers(1, 4))
    parts = None
    if over and data.draw(st.booleans()):
        axis = next(a for a in space.axes if a.name == over[0])
        drawn = data.draw(st.lists(st.integers(0, 2), min_size=len(axis), max_size=len(axis)))
        parts = (axis.name, np.unique(drawn, return_inverse=True)[1])
    tile_points, small = data.draw(st.sampled_from([20, 300, 10**6])), data.draw(st.sampled_from([0, None]))
    with mock.patch("perfgrid.engine.reductions.argmin.BLOCK_ROWS", rows):
        search = BestSearch(
            registry, space, objective, over, maximize, parts, None, "float64", tile_points, small_points=small
        )
    found = search.winners(count)
    score = whole_grid(space, objective, maximize, registry)
    groups = [search.plan.space.axes[i].name for i in search.groups]
    labels = parts[1] if parts else np.zeros(1, int)
    for place in np.ndindex(found.found.shape[:-1]):
        part, *rows = place
        index: list[Any] = [slice(None)] * len(names)
        for name, row in zip(groups, rows, strict=True):
            index[names.index(name)] = slice(row, row + 1)
        if parts:
            index[names.index(parts[0])] = np.flatnonzero(labels == part)
        expected = np.sort(score[tuple(index)].reshape(-1))[:count]
        expected = expected[np.isfinite(expected)]
        assert found.found[place].sum() == len(expected)
        points = [tuple(int(axis[place][k]) for axis in found.index) for k in range(len(expected))]
        assert len(set(points)) == len(points)
        np.testing.assert_allclose([score[p] for p in points], expected, rtol=1e-12)
        for point in points:
            assert all(point[names.index(name)] == row for name, row in zip(groups, rows, strict=True))
            assert not parts or labels[point[names.index(parts[0])]] == part


@pytest.mark.parametrize("over", [["material", "machine_rate"], ["material", "machine_rate", "distance"], ["product"]])
@pytest.mark.parametrize("objective", ["transport", "piece_time"])
@pytest.mark.parametrize(("tile_points", "small"), [(7, 0), (60, 0), (10**6, None)])
def test_equal_points_have_a_rank_each(over, objective, tile_points, small):
    """Whether or not tiles cut an axis on which the objective does not depend."""
    space = toys.space(product=3, rate=4, distance=6)
    search = BestSearch(ALIKE, space, objective, over, False, None, None, "float64", tile_points, small_points=small)
    found = search.winners(4)
    score = whole_grid(space, objective, False, ALIKE)
    groups = [search.axes[i] for i in search.groups]
    for place in np.ndindex(found.found.shape[:-1]):
        index: list[Any] = [slice(None)] * len(NAMES)
        for name, row in zip(groups, place[1:], strict=True):
            index[NAMES.index(name)] = row
        expected = np.sort(score[tuple(index)].reshape(-1))[:4]
        points = {tuple(int(axis[place][k]) for axis in found.index) for k in range(4) if found.found[place][k]}
        np.testing.assert_allclose(sorted(score[p] for p in points), expected[np.isfinite(expected)], rtol=1e-12)


@formula(unit="s", source="toy")
def ratio(order_time, distance, machine_rate):
    """Zero over zero at one distance and rate."""
    hole = (distance - 50.0) ** 2 + (machine_rate - 20.0) ** 2
    return order_time * hole / hole + distance


@pytest.mark.parametrize(("tile_points", "small"), [(10, 0), (60, 0), (300, 0), (10**6, None)])
def test_what_is_no_number_wins_nothing_and_hides_nothing(tile_points, small):
    registry = Registry.collect([*toys.PARTS, ratio], toys.INNER)
    space = toys.space(product=3, rate=4, distance=6)
    score = whole_grid(space, "ratio", False, registry)
    search = BestSearch(registry, space, "ratio", NAMES, False, None, None, "float64", tile_points, small_points=small)
    found = search.winners()
    assert found.found.all()
    assert score[tuple(int(rows.item()) for rows in found.index)] == score.min()


def test_listed_points_are_points_of_the_grid():
    space = toys.space()
    generator = np.random.default_rng(1)
    index = [generator.integers(0, n, 7) for n in space.shape]
    plan = Plan(REGISTRY, space, ["order_time"])
    grid = Evaluation(plan, "float64").collect()["order_time"]
    grid = np.broadcast_to(grid.reshape(grid.shape[: len(space.axes)]), plan.space.shape)
    single = Plan(REGISTRY, listed(space, index), ["order_time"])
    values = Evaluation(single, "float64").collect()["order_time"].reshape(-1)
    np.testing.assert_allclose(values, grid[tuple(index[i] for i in plan.order)], rtol=1e-12)


def test_an_objective_has_one_value():
    with pytest.raises(PerfgridError, match="several values"):
        BestSearch(REGISTRY, toys.space(), "tool_time", ["product"])
