"""The best points of a grid that is never kept are those of the whole grid."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from perfgrid.engine import PerfgridError
from perfgrid.engine.candidates import BestSearch
from perfgrid.engine.plan import Plan
from perfgrid.engine.search import listed
from perfgrid.engine.stages import Evaluation

from . import toys

REGISTRY = toys.registry()
NAMES = [axis.name for axis in toys.space().axes]


def whole_grid(space, objective, maximize):
    """Every value of the objective in study order of axes, infinite where a constraint is violated."""
    plan = Plan(REGISTRY, space, [objective], small_points=10**9)
    results = Evaluation(plan, "float64").collect()
    shape = tuple(len(a) for a in plan.space.axes)
    full = {n: np.broadcast_to(v.reshape(v.shape[: len(shape)]), shape) for n, v in results.items()}
    score = full[objective] * (-1 if maximize else 1)
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
    objective = data.draw(st.sampled_from(["order_time", "throughput", "energy_cost"]))
    count = data.draw(st.integers(1, 4))
    parts = None
    if over and data.draw(st.booleans()):
        axis = next(a for a in space.axes if a.name == over[0])
        drawn = data.draw(st.lists(st.integers(0, 2), min_size=len(axis), max_size=len(axis)))
        parts = (axis.name, np.unique(drawn, return_inverse=True)[1])
    tile_points, small = data.draw(st.sampled_from([20, 300, 10**6])), data.draw(st.sampled_from([0, None]))
    with mock.patch("perfgrid.engine.search.BLOCK_ROWS", rows):
        search = BestSearch(
            REGISTRY, space, objective, over, maximize, parts, None, "float64", tile_points, small_points=small
        )
    found = search.winners(count)
    score = whole_grid(space, objective, maximize)
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
