"""Preselection: winners are those of every point, and the points that constraints exclude beforehand are counted."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from perfgrid.engine.execution import materialised
from perfgrid.engine.reductions import preselection
from perfgrid.engine.reductions.preselection import BestSearch

from . import toys
from .test_search import REGISTRY, whole_grid

pytestmark = pytest.mark.optimised


@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_winners_are_those_of_every_point(data):
    """Drawn sizes, axes, objectives, parts of axes and tiles, numbers of candidates and of winners."""
    space = toys.drawn_space(data, 6)
    names = [axis.name for axis in space.axes]
    over = data.draw(st.lists(st.sampled_from(names), unique=True))
    maximize, count = data.draw(st.booleans()), data.draw(st.integers(1, 3))
    objective = data.draw(st.sampled_from(["order_time", "throughput", "energy_cost", "slack"]))
    parts = None
    if over and data.draw(st.booleans()):
        axis = next(a for a in space.axes if a.name == over[0])
        drawn = data.draw(st.lists(st.integers(0, 2), min_size=len(axis), max_size=len(axis)))
        parts = (axis.name, np.unique(drawn, return_inverse=True)[1])
    small = data.draw(st.sampled_from([0, 20, 60]))
    most_rows = data.draw(st.sampled_from([20, 10**6]))
    part = mock.patch.object(materialised, "PART_POINTS", data.draw(st.sampled_from([2**17, 200, 10])))
    with part, mock.patch.multiple(preselection, PRESELECT_FROM=0, MOST_ROWS=most_rows):
        search = BestSearch(REGISTRY, space, objective, over, maximize, parts, None, "float64", small_points=small)
        found = search.winners(count)
    assert 0 <= search.excluded < space.points
    assert search.rows or not search.excluded
    score = whole_grid(space, objective, maximize)
    groups = [search.axes[i] for i in search.groups]
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


def best_order(**limits: Any) -> BestSearch:
    space = toys.space(product=2, rate=16, distance=3)
    with mock.patch.multiple(preselection, **limits):
        return BestSearch(REGISTRY, space, "order_time", ["layout"], dtype="float64", small_points=40)


def test_excluded_points_are_counted():
    """Layouts whose lines do not divide the pieces are known before any tile; ties go to the same row as ever."""
    search, every = best_order(PRESELECT_FROM=0), best_order(PRESELECT_FROM=2**62)
    space = search.plan.study_space
    _, lines, _ = np.array(toys.layouts()).T
    impossible = (
        int((space.axes[0].columns["pieces"][:, None] % lines > 0).sum()) * 2 * 3 * 16
    )  # materials, distances, rates
    assert (search.excluded, every.excluded) == (impossible, 0)
    assert 0 < impossible < space.points
    first, second = search.winners(), every.winners()
    np.testing.assert_array_equal(first.found, second.found)
    for mine, theirs in zip(first.index, second.index, strict=True):
        np.testing.assert_array_equal(mine[first.found], theirs[first.found])


def test_too_many_candidates_are_searched_whole():
    assert not best_order(PRESELECT_FROM=0, MOST_PLANE=1).rows
    assert not best_order(PRESELECT_FROM=0, MOST_ROWS=1).rows
