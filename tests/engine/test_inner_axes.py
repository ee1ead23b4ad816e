"""Arrays of a plan have only the inner axes on which their quantity varies; formulas get those that they need."""

import numpy as np
import pytest

from perfgrid.engine import Registry, formula, xp
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.graph.inner_axes import AbsentAxis, InnerAxes
from perfgrid.engine.graph.resolver import replay
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space

from . import toys

pytestmark = pytest.mark.optimised


@formula(unit="s", source="toy")
def night_only(order_time):
    """A time that a verb puts on an axis which its argument does not have."""
    return order_time * toys.only("shift", "night")


@formula(unit="s", source="toy")
def both_shifts(night_only):
    """A sum along an axis that its argument has."""
    return toys.total(night_only, "shift")


@formula(unit="s", source="toy")
def counted(night_only):
    """A sum along an axis number, as if arrays had all inner axes."""
    return xp.sum(night_only, axis=-2, keepdims=True)


REGISTRY = Registry.collect([*toys.PARTS, night_only, both_shifts], toys.INNER)


@pytest.mark.parametrize("small", [0, 10**9])
def test_arrays_have_the_inner_axes_of_their_quantity(small):
    outputs = ("tool_time", "night_only", "both_shifts", "piece_time")
    plan = Plan(REGISTRY, toys.space(), outputs, small_points=small)
    axes = {name: (plan.quantities[name].axes, plan.quantities[name].called_on) for name in outputs}
    assert axes == {
        "tool_time": ((0, 1), (0, 1)),
        "night_only": ((0,), (0,)),
        "both_shifts": ((), (0,)),
        "piece_time": ((), (0, 1)),
    }
    found = Evaluation(plan, "float64").collect()
    rank = len(plan.space.axes)
    assert [found[name].shape[rank:] for name in outputs] == [(2, 3), (2,), (), ()]
    index = tuple(len(axis) - 1 for axis in plan.space.axes)
    values = replay(plan.graph, {name: plan.space.at(name, index) for name in plan.graph.leaves})
    for name in outputs:
        place = tuple(-1 if size > 1 else 0 for size in found[name].shape[:rank])
        np.testing.assert_allclose(found[name][place], np.squeeze(values[name]), rtol=1e-12)


@pytest.mark.parametrize("small", [0, 10**9])
def test_a_formula_that_counts_axes_is_refused(small):
    registry = Registry.collect([*toys.PARTS, night_only, counted], toys.INNER)
    with pytest.raises(PerfgridError, match="formula 'counted'"):
        Plan(registry, toys.space(), ("counted",), small_points=small)


def test_positions_are_those_among_the_axes_that_arrays_have():
    inner, value = toys.INNER, np.ones((4, 3))
    assert [inner.position(axis) for axis in ("shift", "tool")] == [-2, -1]
    with inner.only_axes(("tool",)):
        assert inner.position("tool") == -1
        assert inner.extent(value, "shift") == 1
        np.testing.assert_array_equal(inner.total(value, "shift"), 2 * value)
        with pytest.raises(AbsentAxis):
            inner.only("shift", "day")
    assert inner.position("shift") == -2


def test_one_function_of_two_quantities_on_different_axes_of_one_size():
    inner = InnerAxes({"shift": ["day", "night"], "side": ["left", "right"]})

    @formula(unit="s", source="toy")
    def shift_time(start):
        """A time on one axis."""
        return start * inner.only("shift", "day")

    @formula(unit="s", source="toy")
    def side_time(start):
        """A time on another axis of the same size."""
        return start * inner.only("side", "left")

    @formula(unit="s", source="toy", family={"AXIS": ["shift", "side"]})
    def AXIS_sum(AXIS_time):
        """A sum over one of the two."""
        return inner.total(AXIS_time, "shift")

    registry = Registry.collect([shift_time, side_time, AXIS_sum], inner)
    space = Space((Axis("start", np.array([1.0, 2.0]), {"start": np.array([1.0, 2.0])}),))
    for small in (0, 10**9):
        plan = Plan(registry, space, ("shift_sum", "side_sum"), small_points=small)
        assert plan.quantities["shift_sum"].inner == (1, 1)
        assert plan.quantities["side_sum"].inner == (1, 2)
