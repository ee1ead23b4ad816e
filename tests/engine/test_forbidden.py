"""Counts of the designs that constraints forbid are those of the whole grid."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.reductions import infeasibility as module
from perfgrid.engine.reductions.infeasibility import Forbidden

from . import toys

REGISTRY = toys.registry()
CONSTRAINTS = ("pieces_divide", "in_time")


def violated(space, rows, over):
    """False flags of the given rows, added up along some axes: the other axes in the order of the space."""
    plan = Plan(REGISTRY, space, ["order_time"], small_points=10**9)
    values = Evaluation(plan, "float64").collect()
    found = {}
    for name in plan.constraints:
        flag = np.broadcast_to(values[name].reshape(values[name].shape[: len(plan.order)]), plan.space.shape)
        flag = flag.transpose(np.argsort(plan.order))[np.ix_(*(rows[a.name] for a in space.axes))]
        found[name] = (~flag).sum(axis=tuple(i for i, a in enumerate(space.axes) if a.name in over))
    return found


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_counts_are_those_of_the_whole_grid(data):
    """Drawn sizes, orders of axes, rows asked about, axes reduced, thresholds of the small stage and tiles."""
    space = toys.drawn_space(data)
    names = [axis.name for axis in space.axes]
    over = data.draw(st.lists(st.sampled_from(names), unique=True))
    rows = {
        a.name: np.array(data.draw(st.lists(st.integers(0, len(a) - 1), min_size=1, max_size=len(a), unique=True)))
        for a in space.axes
    }
    rows = {name: np.sort(found) for name, found in rows.items()}
    tile_points, small = data.draw(st.sampled_from([20, 300, 10**6])), data.draw(st.sampled_from([0, 60, None]))
    with mock.patch("perfgrid.engine.reductions.subgrid.SMALL_LIMIT", data.draw(st.sampled_from([0, 40, 2**18]))):
        asked = Forbidden(REGISTRY, space, CONSTRAINTS, None, "float64", tile_points, small)
        axes, found = asked.counts(rows, over)
    assert sorted(axes) == sorted(n for n in names if n not in over)
    expected = violated(space, rows, over)
    every = np.prod([len(rows[n]) for n in over], dtype=int)
    order = [axes.index(n) for n in names if n not in over]
    for name, count in found.items():
        np.testing.assert_array_equal(count.transpose(order), expected[name], name)
    if len(found) < len(CONSTRAINTS):  # those of the small stage say it all
        assert np.maximum.reduce([count for count in found.values()]).min() == every


def test_tiles_are_only_evaluated_where_small_constraints_leave_designs():
    space, rows = toys.space(), {a.name: np.arange(len(a)) for a in toys.space().axes}
    asked = Forbidden(REGISTRY, space, CONSTRAINTS, None, "float64", small_points=60)
    assert "in_time" not in asked.cut.values  # it is evaluated on tiles
    _, _, lines = (np.array(toys.layouts()).T[i] for i in (0, 2, 1))
    pieces = space.axes[0].columns["pieces"]
    never = np.flatnonzero((pieces[:, None] % lines != 0).all(axis=0))
    assert len(never) > 0
    layout = {**rows, "layout": never}
    with mock.patch.object(module, "Evaluation", wraps=module.Evaluation) as parts:
        _, found = asked.counts(layout, ["layout"])
        assert set(found) == {"pieces_divide"}
        assert parts.call_count == 1
        _, found = asked.counts(rows, ["layout"])
        assert set(found) == set(CONSTRAINTS)


@pytest.mark.parametrize("most", [0, 2**30])
def test_constraints_on_too_many_designs_are_left_out(most):
    rows = {a.name: np.arange(len(a)) for a in toys.space().axes}
    with mock.patch.object(module, "MOST_POINTS", most):
        _, found = Forbidden(REGISTRY, toys.space(), CONSTRAINTS, dtype="float64", small_points=60).counts(
            rows, ["layout"]
        )
    assert set(found) == (set(CONSTRAINTS) if most else set())
