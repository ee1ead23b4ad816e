"""Derivatives on a grid equal central differences of the replay, however it is ordered, staged and tiled."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgrid.engine import InnerAxes, PerfgridError, Registry, formula, replay, resolve, xp
from perfgrid.engine.autodiff.parameters import parameters_of
from perfgrid.engine.autodiff.sensitivity import Sensitivity
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space

from . import toys

NAMES = ("machine_rate", "size", "distance", "early_size", "orders", "deadline")
OUTPUTS = ("order_time", "throughput", "slack", "energy_cost", "piece_time")


def differences(graph, leaves, name, output, step=1e-6):
    """d output / d ln leaf by differences to both sides, and the value."""

    def at(factor):
        return np.asarray(replay(graph, leaves | {name: leaves[name] * factor})[output], float)

    up, here, down = at(1 + step), at(1.0), at(1 - step)
    return (up - here) / step, (here - down) / step, here


def assert_slopes(plan, derivatives, parameters, relative, rtol, count=6, seed=0):
    space, generator = plan.study_space, np.random.default_rng(seed)
    graph = resolve(plan.registry, plan.wanted, space.names(), plan.choices, space.label_quantities())
    for _ in range(count):
        index = tuple(int(generator.integers(n)) for n in space.shape)
        leaves = {name: space.at(name, index) for name in graph.leaves}
        for output, array in derivatives.items():
            place = tuple(index[i] if array.shape[1 + p] > 1 else 0 for p, i in enumerate(plan.order))
            for row, parameter in enumerate(parameters):
                found = np.asarray(array[(row, *place)], float)
                right, left, here = differences(graph, leaves, parameter.quantity, output)
                kink = np.abs(right - left) > 1e-4 * (np.abs(here) + np.abs(right))
                expected, size = (right + left) / 2, np.abs(here)
                if relative:
                    expected, size = np.where(here == 0, 0.0, expected / np.where(here == 0, 1, here)), 1.0
                else:
                    expected, size = expected / leaves[parameter.quantity], size / leaves[parameter.quantity]
                close = np.abs(found - expected) <= rtol * (np.abs(expected) + size)
                assert (close | kink).all(), (output, parameter.name, index, found, expected)


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_drawn_studies(data):
    space = toys.drawn_space(data)
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    outputs = data.draw(st.lists(st.sampled_from(OUTPUTS), min_size=1, unique=True))
    relative = data.draw(st.booleans())
    plan = Plan(toys.registry(), space, outputs, small_points=data.draw(st.sampled_from([None, 0, 30])))
    names = [n for n in NAMES if n in plan.graph.leaves]
    parameters = parameters_of(plan, names)
    tiles = data.draw(st.sampled_from([60, 1000, 2**20]))
    evaluation = Sensitivity(plan, outputs, parameters, relative, None, dtype, tiles)
    values, derivatives = evaluation.derivatives()
    assert_slopes(plan, derivatives, parameters, relative, 1e-6 if dtype == "float64" else 3e-4)
    assert all(np.isfinite(v).all() for v in derivatives.values())
    plain = Sensitivity(plan, outputs, (), True, None, dtype).collect()
    for name in plan.wanted:
        # a difference is as sure as its operands; other tiles are other compiled functions
        rtol = 1e-6 if dtype == "float32" else 1e-12
        atol = rtol * space.constants["deadline"] if name == "slack" else 0.0
        np.testing.assert_allclose(values[name], plain[name], rtol, atol)


def test_more_parameters_than_a_chunk_holds(monkeypatch):
    """The grid takes parameters in equal chunks; what does not reach the grid is in none."""
    plan = Plan(toys.registry(), toys.space(), ("order_time", "slack"), small_points=0)
    parameters = parameters_of(plan, [n for n in NAMES if n in plan.graph.leaves])
    whole = Sensitivity(plan, ("order_time", "slack"), parameters, dtype="float64")
    monkeypatch.setattr("perfgrid.engine.autodiff.sensitivity.MOST_AT_ONCE", 2)
    monkeypatch.setattr("perfgrid.engine.autodiff.sensitivity.VECTOR", 1)
    parts = Sensitivity(plan, ("order_time", "slack"), parameters, dtype="float64", tile_points=500)
    assert parts.chunks > 1
    for output, array in whole.derivatives()[1].items():
        np.testing.assert_allclose(parts.derivatives()[1][output], array, rtol=1e-12)


INNER = InnerAxes({"tier": ("near", "far")})


@formula(unit="s", source="toy")
def hop_time(volume, rate):
    """Time on each tier."""
    return volume / rate


@formula(unit="s", source="toy")
def move_time(hop_time, overhead):
    """The slower tier, and what both take."""
    return INNER.largest(hop_time, "tier") + 0.1 * INNER.total(hop_time, "tier") + overhead


@formula(unit="1", source="toy")
def trips(volume, load):
    """Whole trips."""
    return xp.ceil(volume / load)


@formula(unit="1", source="toy", host=True)
def counted(load):
    """A count."""
    return np.floor(load)


@formula(unit="s", source="toy")
def journey_time(move_time, trips, counted):
    """All trips."""
    return move_time * trips + counted


def tiers():
    registry = Registry.collect([hop_time, move_time, trips, counted, journey_time], INNER)
    volumes, rates = np.linspace(3.1, 9.7, 9), np.array([[4.0, 1.0], [1.0, 4.0], [2.0, 2.0]])
    space = Space(
        (Axis("volume", volumes, {"volume": volumes}), Axis("kind", np.array(["a", "b", "c"]), {"rate": rates})),
        {"overhead": 0.5, "load": 2.3},
    )
    return registry, space


@pytest.mark.parametrize("small_points", [0, None])
def test_a_vector_has_one_parameter_for_each_label(small_points):
    registry, space = tiers()
    plan = Plan(registry, space, ("move_time",), small_points=small_points)
    parameters = parameters_of(plan, ["rate", "overhead"])
    assert [p.name for p in parameters] == ["rate[near]", "rate[far]", "overhead"]
    assert parameters_of(plan, ["rate[far]"]) == parameters[1:2]
    _, found = Sensitivity(plan, ("move_time",), parameters, relative=False, dtype="float64").derivatives()
    array = found["move_time"].reshape(3, *plan.space.shape)
    volumes = space.axes[0].labels
    kind = [a.name for a in plan.space.axes].index("kind")
    for row, (near, far) in enumerate(space.axes[1].columns["rate"]):
        of_near, of_far = (-volumes / r**2 for r in (near, far))
        shares = (1.1, 0.1) if near < far else (0.1, 1.1) if near > far else (0.6, 0.6)  # the mean at the tie
        np.testing.assert_allclose(np.take(array[0], row, axis=kind), shares[0] * of_near, rtol=1e-14)
        np.testing.assert_allclose(np.take(array[1], row, axis=kind), shares[1] * of_far, rtol=1e-14)
    np.testing.assert_array_equal(array[2], 1.0)


@formula(unit="1/s", source="toy")
def speed(rate, share, delay):
    """What is left of a rate."""
    return rate * share / delay


@formula(unit="s", source="toy")
def flight_time(volume, speed):
    """Time at that speed."""
    return volume / speed


def test_parameters_that_act_alike_are_computed_once():
    """A rate, its share and, with the other sign, a delay reach the grid through their product alone."""
    volumes, rates = np.linspace(3.1, 9.7, 9), np.array([4.0, 1.0, 2.0])
    axes = (Axis("volume", volumes, {"volume": volumes}), Axis("rate", rates, {"rate": rates}))
    space = Space(axes, {"share": 0.7, "delay": 1.3})
    plan = Plan(Registry.collect([speed, flight_time]), space, ("flight_time",), small_points=3)
    parameters = parameters_of(plan, ["rate", "volume", "delay", "share"])
    evaluation = Sensitivity(plan, ("flight_time",), parameters, dtype="float64")
    assert evaluation.stacked == [["rate", "delay", "share"], ["volume"]]
    found = evaluation.derivatives()[1]["flight_time"].reshape(4, 27)
    np.testing.assert_allclose(found, np.outer([-1.0, 1.0, 1.0, -1.0], np.ones(27)), rtol=1e-14)


def test_steps_and_counts_have_no_slope_but_a_smooth_companion():
    registry, space = tiers()
    plan = Plan(registry, space, ("journey_time", "trips"))
    parameters = parameters_of(plan, ["load", "volume"])
    exact = Sensitivity(plan, ("journey_time", "trips"), parameters, dtype="float64").derivatives()[1]
    assert not exact["trips"].any()
    assert not exact["journey_time"][0].any()  # through rounding and a count alone
    smooth = Sensitivity(plan, ("trips",), parameters, True, 8, "float64").derivatives()[1]["trips"]
    np.testing.assert_allclose(smooth[0], -smooth[1])
    volumes = space.axes[0].labels
    np.testing.assert_allclose(smooth[1].reshape(-1), volumes / 2.3 / np.ceil(volumes / 2.3), rtol=1e-12)


def test_what_cannot_be_differentiated_is_reported():
    registry, space = tiers()
    plan = Plan(registry, space, ("move_time",))
    with pytest.raises(PerfgridError, match="do not rest on a given quantity 'rates'; did you mean 'rate'"):
        parameters_of(plan, ["rates"])
    with pytest.raises(PerfgridError, match=r"'rate' has no part 'rate\[nearer\]'; did you mean 'rate\[near\]'"):
        parameters_of(plan, ["rate[nearer]"])
    plan = Plan(toys.registry(), toys.space(), ("transport_choice", "in_time"))
    for name in ("transport_choice", "in_time"):
        with pytest.raises(PerfgridError, match=f"{name!r} is a choice or a flag: it has no derivative"):
            Sensitivity(plan, (name,), ())
