"""A study as a function: agrees with its evaluation, under JAX and without, and has the derivatives of differences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import perfgrid as pg


def dies(**axes):
    given = {"module_area": "800 mm^2", "memory_in_package": "none"}
    return pg.Study.make(
        workload="manufacturing",
        outputs=["die_cost", "die_yield"],
        overrides={"dies": 2},
        axes={"node": ["n7", "n5", "n3"], "package": ["cowos-s", "emib"], **axes},
        workload_parameters={k: v for k, v in given.items() if k not in axes},
    )


def test_it_is_the_evaluation_of_the_study():
    study = dies()
    found = pg.function(study, over=["module_area"])
    exact = pg.evaluate(study, "float64")
    assert found.start == {"module_area": pytest.approx(8e-4)}
    result = found(found.start)
    for name in study.outputs:
        assert found.dims[name] == exact[name].dims
        np.testing.assert_allclose(result[name], exact[name], rtol=1e-12)


def test_an_axis_of_a_free_quantity_is_left_out():
    areas = [2e-4, 4e-4, 8e-4]
    study = dies(wafer_price={"scale": [0.5, 1.0, 2.0]}, module_area=areas)
    exact = pg.evaluate(study, "float64").die_cost
    found = pg.function(study, "die_cost", "module_area")
    assert "module_area" not in found.dims["die_cost"]
    for area in areas:
        expected = exact.sel(module_area=area).transpose(*found.dims["die_cost"])
        np.testing.assert_allclose(found({"module_area": area})["die_cost"], expected, rtol=1e-12)


def test_jax_transforms_apply():
    found = pg.function(dies(), "die_cost", ["module_area", "defect_density"])
    with jax.enable_x64(True):
        at = {"module_area": jnp.asarray(8e-4), "defect_density": jnp.asarray(1000.0)}
        slopes = jax.jit(jax.grad(lambda x: jnp.sum(found(x)["die_cost"])))(at)
        for name, value in at.items():
            h = 1e-5 * float(value)
            up, down = (float(np.sum(found({**at, name: float(value) + d})["die_cost"])) for d in (h, -h))
            assert float(slopes[name]) == pytest.approx((up - down) / (2 * h), rel=1e-6)
        areas = jnp.linspace(2e-4, 8e-4, 5)
        many = jax.vmap(lambda a: found({**at, "module_area": a})["die_cost"])(areas)
        np.testing.assert_allclose(many[-1], found(at)["die_cost"], rtol=1e-12)
    single = jax.jit(lambda a: found({"module_area": a, "defect_density": 1000.0})["die_cost"])(jnp.float32(8e-4))
    np.testing.assert_allclose(single, many[-1], rtol=1e-5)


def test_components_and_what_is_refused():
    axes = {
        "model": ["llama-3.1-8b"],
        "device": ["h100-sxm-80gb"],
        "budget": ["h100-budget"],
        "topology": ["rail-optimized"],
        "parallelism": {"devices": [8], "tp": [1, 2], "pp": [1]},
    }
    study = pg.Study.make(
        outputs=["step_time", "peak_bf16_rate"],
        axes=axes,
        workload_parameters={"sequence_length": 2048, "global_batch": 8},
    )
    found = pg.function(study, over=["area_split.matrix", "budget_power"])
    assert found.start["area_split.matrix"] == 0.102
    exact = pg.evaluate(study, "float64")
    np.testing.assert_allclose(found(found.start)["step_time"], exact.step_time, rtol=1e-12)
    assert found({**found.start, "area_split.matrix": 0.2})["peak_bf16_rate"] > exact.peak_bf16_rate
    for over, told in (
        (["budget_powr"], "did you mean 'budget_power'"),
        (["step_time"], "is computed by a formula"),
        (["global_batch"], "whole number"),
        (["area_split.tensor"], "no component"),
        ([], "at least one"),
    ):
        with pytest.raises(pg.PerfgridError, match=told):
            pg.function(study, over=over)
    with pytest.raises(pg.PerfgridError, match="has no value"):
        found({"budget_power": 500.0})
    with pytest.raises(pg.PerfgridError, match="not free"):
        found({**found.start, "budget_area": 1.0})


def test_plain_numbers_keep_to_the_bounds_of_the_glossary():
    """An area below zero is refused rather than answered with a plausible cost; what JAX traces is not looked at."""
    f = pg.function(dies(), over=["module_area"])
    with pytest.raises(pg.PerfgridError, match=r"module_area must be .*found -0\.0008"):
        f({"module_area": -8e-4})
    assert np.all(np.isfinite(f({"module_area": 8e-4})["die_cost"]))
