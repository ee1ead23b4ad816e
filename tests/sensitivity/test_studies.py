"""Elasticities of whole studies: against differences, Euler sums, zero and infeasible points, what is refused."""

from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import perfgrid as pg
from perfgrid import PerfgridError
from perfgrid.analysis.sensitivity import numbers_of
from perfgrid.analysis.sensitivity_ranking import binding, binding_shares, ranked, time_balance
from perfgrid.catalog.units import unit_registry
from perfgrid.engine.autodiff.parameters import parameters_of
from perfgrid.engine.autodiff.sensitivity import Sensitivity
from perfgrid.engine.graph.resolver import replay, resolve
from perfgrid.study.selection import asking, selected
from perfgrid.study.study import load_study
from tests import small

STUDIES = Path(__file__).parents[2] / "studies"
STEP = 1e-5


def exponent_of(unit, dimension):
    found: Any = unit_registry().parse_units("" if unit == "1" else unit).dimensionality.get(dimension, 0)
    return float(found)


def assert_differences(study, result, output, draws, each, seed=0):
    """At drawn points some of the strongest and some other parameters against central differences of the replay."""
    space, generator = study.space, np.random.default_rng(seed)
    graph = resolve(study.registry, (output,), space.names(), study.file.choices, space.label_quantities())
    found, compared = result[f"{output}_elasticity"], 0
    own = asking(study, (output,)).plan()
    parameters = {p.name: p for p in parameters_of(own, numbers_of(study, own)) if p.quantity in graph.leaves}
    for _ in range(draws):
        index = tuple(int(generator.integers(n)) for n in space.shape)
        leaves = {name: space.at(name, index) for name in graph.leaves}
        here = found.isel({a.name: i for a, i in zip(space.axes, index, strict=True) if a.name in found.dims})
        order = np.argsort(-np.abs(here.values))
        chosen = [*order[:each], *generator.choice(order[each:], 3, replace=False)]
        for name in here.parameter.values[chosen]:
            parameter = parameters.get(str(name))
            if parameter is None:  # of another output alone
                assert here.sel(parameter=name) == 0
                continue
            value = np.asarray(leaves[parameter.quantity], float)

            def at(step, value=value, parameter=parameter, leaves=leaves):
                mask = parameter.mask(value.reshape((1,) * (len(parameter.inner) - value.ndim) + value.shape))
                moved = value * (1 + step * mask.reshape(value.shape))
                return float(replay(graph, leaves | {parameter.quantity: moved})[output])

            middle, up, down = at(0.0), at(STEP), at(-STEP)
            if abs((up - middle) - (middle - down)) > 1e-3 * abs(up - down) + 1e-9 * abs(middle):
                continue  # a kink between the two
            expected, tangent = (up - down) / (2 * STEP * middle), float(here.sel(parameter=name))
            assert abs(tangent - expected) <= 1e-6 * abs(expected) + 1e-9, (name, index, tangent, expected)
            compared += 1
    assert compared >= draws * each * 0.7


@pytest.fixture(scope="module")
def trained():
    return small.study(), pg.sensitivity(small.study(), dtype="float64")


@pytest.mark.parametrize("output", ["step_time", "memory_per_device"])
def test_a_training_study_against_differences(trained, output):
    study, result = trained
    assert_differences(study, result, output, draws=2, each=6 if output == "step_time" else 3)


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("bill_of_materials", "manufacturing_cost"),
        ("collectives", "collective_time"),
        pytest.param("papers/gpu_generations", "step_time", marks=pytest.mark.slow),
    ],
)
def test_other_studies_against_differences(name, output):
    study = asking(load_study(STUDIES / f"{name}.toml"), (output,))
    many = max(study.space.axes, key=len).name
    study = selected(study, {a.name: a.labels[-1] for a in study.space.axes if a.name != many})
    result = pg.sensitivity(study, dtype="float64")
    assert_differences(study, result, output, draws=1, each=5, seed=3)
    assert np.isfinite(result[f"{output}_elasticity"]).all()


def test_serving_against_differences():
    study = asking(load_study(STUDIES / "serving.toml", ["axes.parallelism.devices=[8]"]), ("time_per_output_token",))
    first = {a.name: a.labels[0] for a in study.space.axes if a.name != "parallelism"}
    result = pg.sensitivity(study, at=first, dtype="float64")
    assert_differences(selected(study, first), result, "time_per_output_token", draws=2, each=4)


def test_elasticities_of_rates_and_fixed_times_add_up_to_minus_one(trained):
    """Euler: a step whose rates double and whose fixed times halve takes half the time, feasible or not."""
    _, result = trained
    exponent = np.array([exponent_of(u, "[time]") for u in result.parameter_unit.values])
    total = np.tensordot(-exponent, result.step_time_elasticity.values, 1)
    np.testing.assert_allclose(total, -1.0, rtol=1e-9)
    expected, low, high = cast(tuple, time_balance(result, "step_time"))
    assert (expected, round(low, 9), round(high, 9)) == (1.0, 1.0, 1.0)
    assert time_balance(result, "memory_per_device") is None


def test_smooth_elasticities_keep_the_sum_and_reach_what_max_hides(trained):
    study, _ = trained
    at = {"hbm_bandwidth": 1.0, "scale_up_bandwidth": 1.0}
    exact = pg.sensitivity(study, "step_time", at=at, dtype="float64")
    smooth = pg.sensitivity(study, "step_time", at=at, smooth=True, dtype="float64")
    expected, low, high = cast(tuple, time_balance(smooth, "step_time"))
    assert expected == pytest.approx(low, rel=1e-6) == pytest.approx(high, rel=1e-6)
    np.testing.assert_array_equal(smooth.step_time, exact.step_time)  # values are exact
    hidden = [r for r in ranked(exact, "step_time") if r.zero == 1]
    reached = {r.parameter for r in ranked(smooth, "step_time") if r.zero < 1}
    assert "l2_bandwidth" in reached
    assert reached & {r.parameter for r in hidden}
    assert "smooth" in smooth.attrs["derivatives"]
    assert "exact" in exact.attrs["derivatives"]


def test_money_is_of_the_first_order_in_prices():
    """All prices doubled double a cost: their elasticities add up to 1."""
    study = load_study(STUDIES / "bill_of_materials.toml")
    result = pg.sensitivity(study, "manufacturing_cost", dtype="float64")
    exponent = [exponent_of(u, "[currency]") for u in result.parameter_unit.values]
    assert any(exponent)
    total = np.tensordot(np.array(exponent), result.manufacturing_cost_elasticity.values, 1)
    np.testing.assert_allclose(total, 1.0, rtol=1e-9)


def test_which_resource_binds(trained):
    _, result = trained
    which = binding(result, "step_time")
    names = which.flag_meanings.split(" ")
    assert "peak_bf16_rate" in names
    assert not any(n.endswith("efficiency") for n in names)  # rates only
    point = dict.fromkeys(which.dims, 1)
    strongest = np.argmax(np.abs(result.step_time_elasticity.isel(point).sel(parameter=names).values))
    assert int(which.isel(point)) == int(strongest)
    shares = binding_shares(result, "step_time")
    assert sum(shares.values()) == pytest.approx(1)
    assert binding_shares(result, "memory_per_device") == {"none": 1.0}


def test_parameters_without_effect_are_named(trained):
    _, result = trained
    ranks = {r.parameter: r for r in ranked(result, "memory_per_device")}
    assert ranks["hbm_bandwidth"].zero == 1
    assert ranks["optimizer_state_size"].zero == 0
    assert next(r.parameter for r in ranked(result, "step_time")) in ("peak_bf16_rate", "matrix_efficiency")


def test_gradients_are_elasticities_times_value_over_parameter(trained):
    study, result = trained
    found = pg.gradient(study, "step_time", ["hbm_bandwidth", "launch_overhead"], dtype="float64")
    assert found.step_time_gradient.attrs["units"] == "s per unit of the parameter"
    assert found.parameter_unit.values.tolist() == ["byte/s", "s"]
    space = study.space
    device = [a.name for a in space.axes].index("device")
    scale = [a.name for a in space.axes].index("hbm_bandwidth")
    values = [
        [
            space.at("hbm_bandwidth", tuple(d if i == device else s if i == scale else 0 for i in range(8)))
            for s in range(3)
        ]
        for d in range(3)
    ]
    bandwidth = xr.DataArray(values, dims=("device", "hbm_bandwidth"))
    elasticity = result.step_time_elasticity.sel(parameter="hbm_bandwidth")
    gradient = found.step_time_gradient.sel(parameter="hbm_bandwidth")
    xr.testing.assert_allclose(
        gradient, (elasticity * result.step_time / bandwidth).transpose(*gradient.dims), rtol=1e-9
    )


def test_one_label_of_an_axis(trained):
    study, result = trained
    at = {"device": "h100-sxm-80gb", "hbm_bandwidth": 2.0}
    found = pg.sensitivity(study, "step_time", ["hbm_bandwidth"], at=at, dtype="float64")
    expected = result.step_time_elasticity.sel(
        parameter=["hbm_bandwidth"], device=["h100-sxm-80gb"], hbm_bandwidth=[2.0]
    )
    np.testing.assert_allclose(found.step_time_elasticity, expected, rtol=1e-12)


def test_cross_elasticities_are_symmetric_and_sum_to_zero():
    """d2 ln t / (d ln a d ln b) is symmetric, and elasticities do not change if all rates and times change together."""
    study = load_study(STUDIES / "papers" / "korthikanti.toml")
    at = {a.name: a.labels[0] for a in study.space.axes if len(a) > 1}
    plan = selected(asking(study, ("step_time",)), at).plan()
    names = [p.name for p in parameters_of(plan, numbers_of(study, plan))]
    cross = pg.sensitivity(study, "step_time", names, at, cross=True).step_time_cross_elasticity.values
    jumps = np.isnan(cross).any(axis=0)
    assert jumps.sum() <= 2  # of a size at which another tile is chosen
    smooth = cross[np.ix_(~jumps, ~jumps)]
    np.testing.assert_allclose(smooth, smooth.T, rtol=1e-4, atol=1e-6)
    exponent = np.array([_seconds(study, n.partition("[")[0]) for n in names])[~jumps]
    np.testing.assert_allclose(smooth @ exponent, 0.0, atol=1e-5)
    assert np.abs(smooth).max() > 0.01


def _seconds(study, name):
    return exponent_of(study.catalog.variables[name].unit, "[time]")


@pytest.mark.parametrize(
    ("wrt", "sentence"),
    [
        ("hbm_bandwith", "it is unknown; did you mean 'hbm_bandwidth'"),
        ("tp", "it is a whole number; make it an axis, or take smooth derivatives"),
        ("precision", "it is a choice, not a number"),
        ("model", "no output asked for rests on it"),
        ("step_time", "it is computed, not given"),
        ("wafer_price", "no output asked for rests on it"),
    ],
)
def test_what_has_no_derivative_is_reported(wrt, sentence):
    with pytest.raises(PerfgridError, match=f"no derivative with respect to '{wrt}': {sentence}"):
        pg.sensitivity(small.study(), "step_time", [wrt])


def test_other_wrong_questions_are_reported():
    study = small.study()
    for call, sentence in [
        (lambda: pg.sensitivity(study, "step_tim"), "unknown quantity 'step_tim'"),
        (lambda: pg.sensitivity(study, "tp_gather_algorithm"), "is a choice or a flag: it has no derivative"),
        (lambda: pg.sensitivity(study, "step_time", []), "no parameter is named"),
        (lambda: pg.sensitivity(study, "step_time", at={"devise": 1}), "no axis 'devise'; did you mean 'device'"),
        (lambda: pg.sensitivity(study, "step_time", smooth=1), "whole number of at least 2, found 1"),
        (lambda: pg.sensitivity(cast(pg.Study, "study.toml"), "step_time"), "a derivative needs a Study"),
        (lambda: pg.sensitivity(study, "step_time", ["hbm_bandwidth"], cross=True), "need a single design"),
    ]:
        with pytest.raises(PerfgridError, match=sentence):
            call()


def test_wrong_questions_to_derivatives_are_reported(trained):
    for call, sentence in [
        (lambda: binding(trained[1], "step_time", "bandwidths"), "'rates' or 'all', found 'bandwidths'"),
        (lambda: time_balance(trained[1], "step_tim"), "step_tim"),
    ]:
        with pytest.raises(PerfgridError, match=sentence):
            call()


def test_smooth_derivatives_take_whole_numbers_as_continuous():
    at = {"hbm_bandwidth": 1.0, "scale_up_bandwidth": 1.0}
    kernels = small.study(overrides={"host_launch_time": 0.0})  # a host that sets the pace counts no tokens
    found = pg.sensitivity(kernels, "step_time", ["sequence_length"], at, smooth=True)
    assert float(found.step_time_elasticity.mean()) == pytest.approx(1, abs=0.3)  # about linear in the tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "least", "relative", "sharpness"),
    [((), 1_000_000, True, None), (("axes.hbm_bandwidth.scale=[1.0, 3.0]",), 100_000, False, 8)],
)
def test_no_gradient_of_a_million_points_is_no_number(settings, least, relative, sharpness):
    """Every given number at every point of the quickstart's grid, feasible or not; smooth derivatives of a part."""
    study = asking(load_study(STUDIES / "quickstart.toml", settings), ("step_time", "memory_per_device"))
    plan = study.plan()
    assert plan.space.points > least
    parameters = parameters_of(plan, numbers_of(study, plan))
    evaluation = Sensitivity(plan, plan.outputs, parameters, relative, sharpness)
    assert evaluation.chunks > 1
    for found in evaluation.small_tangents.values():
        assert all(np.isfinite(tangent).all() for tangent in found.values())
    for number in range(evaluation.chunks):
        evaluation.chunk(number)
        for tile in evaluation.run():
            for name in evaluation.results:
                array = np.asarray(tile.values[name])
                assert np.isfinite(array).all(), name
                assert array.any()


def test_reverse_mode_of_jax_agrees():
    """JAX differentiates the same formulas by rules of its own; at a design of the bill of materials."""
    study = asking(load_study(STUDIES / "bill_of_materials.toml"), ("manufacturing_cost",))
    space, plan, output = study.space, study.plan(), "manufacturing_cost"
    graph = resolve(study.registry, (output,), space.names(), study.file.choices, space.label_quantities())
    index = (2, 1)  # an H100 with harvest
    leaves = {name: space.at(name, index) for name in graph.leaves}
    names = [n for n in numbers_of(study, plan) if n in graph.leaves]

    def cost(given):
        values = leaves | given
        for node in graph.nodes.values():
            values[node.name] = node.function(*(values[a] for a in node.arguments))
        return jnp.reshape(values[output], ())

    with jax.enable_x64(True):
        value, slopes = jax.jit(jax.value_and_grad(cost))({n: jnp.asarray(leaves[n], jnp.float64) for n in names})
    found = pg.sensitivity(study, output, names, dtype="float64").manufacturing_cost_elasticity
    here = found.isel(device=index[0], yield_model=index[1])
    for name in names:
        assert float(here.sel(parameter=name)) == pytest.approx(
            float(slopes[name]) * leaves[name] / float(value), rel=1e-9
        )
