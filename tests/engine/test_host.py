"""Host formulas: plain Python on one design at a time, evaluated once per distinct arguments, in the small stage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfgrid.analysis.explanation.derivation import explain_point
from perfgrid.engine import PerfgridError, Registry, constraint, formula, replay, resolve
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.grid.dataset import formula_hash
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space
from tests.units import check

from .test_grid import assert_equals_replay
from .toys import INNER, total

CALLS: list[tuple] = []


@formula(unit="1", source="toy")
def rounded_lanes(lanes):
    """Lanes in pairs."""
    return 2.0 * (lanes // 2.0)


@formula(unit="1", source="toy", host=True, inner=("shift", "tool"))
def crew_table(rounded_lanes, lines, weights):
    """Workers by shift and tool: digits of a number that no array formula would find."""
    CALLS.append((rounded_lanes, lines, tuple(weights)))
    assert isinstance(rounded_lanes, float)
    assert weights.shape == (3,)
    digits = [int(d) for d in f"{int(rounded_lanes * lines) ** 3:06d}"[-6:]]
    return np.array(digits, float).reshape(2, 3) * weights


@formula(unit="1", source="toy")
def crew(crew_table, rate):
    """Workers in all, at a rate."""
    return total(total(crew_table, "tool"), "shift") * rate


@constraint(kind="illegal", reason="nobody works", source="toy")
def somebody_works(crew_table):
    """There are workers."""
    return total(total(crew_table, "tool"), "shift") > 0


PARTS = [rounded_lanes, crew_table, crew, somebody_works]
WEIGHTS = INNER.vector("tool", [1.0, 2.0, 3.0])


def registry(*more):
    return Registry.collect([*PARTS, *more], INNER)


def space(lanes=6, lines=5, rates=40):
    axes = (
        Axis("lanes", np.arange(2.0, 2.0 + lanes), {"lanes": np.arange(2.0, 2.0 + lanes)}),
        Axis("lines", np.arange(1.0, 1.0 + lines), {"lines": np.arange(1.0, 1.0 + lines)}),
        Axis("rate", np.linspace(1, 2, rates), {"rate": np.linspace(1, 2, rates)}),
    )
    return Space(axes, {"weights": WEIGHTS})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("small_points", "tile_points"), [(None, 2**21), (0, 2**21), (0, 97), (40, 61)])
def test_the_grid_equals_a_replay(dtype, small_points, tile_points):
    outputs = ("crew", "crew_table")
    assert_equals_replay(registry(), space(), outputs, dtype, small_points=small_points, tile_points=tile_points)


def test_it_is_called_once_for_distinct_arguments():
    CALLS.clear()
    weights = INNER.vector("tool", [1.0, 2.0, 3.5])  # no other test has asked for these
    made = Space(space(lanes=6).axes, {"weights": weights})
    for _ in range(2):
        Evaluation(Plan(registry(), made, ("crew",), small_points=0)).collect()
    assert len(CALLS) == len(set(CALLS)) == 3 * 5  # lanes come in pairs


def test_what_it_needs_is_small_whatever_its_size():
    plan = Plan(registry(), space(), ("crew",), small_points=0)
    assert plan.quantities["rounded_lanes"].small
    assert plan.quantities["crew_table"].small
    assert not plan.quantities["crew"].small
    assert plan.quantities["crew_table"].inner == (2, 3)


def test_a_shape_other_than_declared_is_reported_by_name():
    @formula(unit="1", source="toy", host=True, inner=("tool",))
    def short_table(lines):
        """Two of three."""
        return np.ones(2)

    plan = Plan(registry(short_table), space(), ("short_table",))
    with pytest.raises(PerfgridError, match=r"'short_table' returns shape \(2,\), declared \(3,\)"):
        Evaluation(plan)


def test_inner_axes_are_named_in_order_and_by_host_formulas_only():
    @formula(unit="1", source="toy", host=True, inner=("tool", "shift"))
    def turned_table(lines):
        """The wrong way round."""
        return np.ones((3, 2))

    with pytest.raises(PerfgridError, match="'turned_table' names inner axes"):
        Plan(registry(turned_table), space(), ("turned_table",))
    with pytest.raises(PerfgridError, match="'plain': only a host formula declares inner axes"):

        @formula(unit="1", source="toy", inner=("tool",))
        def plain(lines):
            """An array formula."""
            return lines


def test_under_jax_it_is_a_constant():
    graph = resolve(registry(), ["crew"], space().names())

    def workers(lanes, rate):
        values = {"lanes": lanes, "lines": jnp.asarray(3.0), "rate": rate, "weights": jnp.asarray(WEIGHTS)}
        for node in graph.nodes.values():
            values[node.name] = node.function(*(values[a] for a in node.arguments))
        return jnp.reshape(values["crew"], ())

    exact = replay(graph, {"lanes": 5.0, "lines": 3.0, "rate": 1.5, "weights": WEIGHTS})["crew"]
    value, slopes = jax.jit(jax.value_and_grad(workers, argnums=(0, 1)))(5.0, 1.5)
    assert float(value) == pytest.approx(exact)
    assert float(slopes[0]) == 0
    assert float(slopes[1]) == pytest.approx(exact / 1.5)


def test_derivations_units_and_the_hash_know_it():
    found = explain_point(registry(), space(), "crew", {"lanes": 4.0, "lines": 2.0, "rate": 1.0})
    table = next(child for child in found.derivation.below if child.name == "crew_table")
    assert [child.elasticity for child in table.below] == [None] * 3
    plan = Plan(registry(), space(), ("crew",))
    assert not check(plan, dict.fromkeys(("lanes", "lines", "rate", "weights"), "1"))

    @formula(unit="1", source="toy", host=True, inner=("shift", "tool"))
    def crew_table(rounded_lanes, lines, weights):
        """Workers by shift and tool: one each."""
        return np.ones((2, 3))

    changed = registry().extended([crew_table])
    assert formula_hash(Plan(changed, space(), ("crew",))) != formula_hash(plan)
