"""Energy and cost of requests: against counted operations and bytes, additivity, and what devices are known to draw."""

from __future__ import annotations

import numpy as np
import pytest

import perfgrid as pg

from .designs import IDEAL, evaluate, of_resource, value

PJ = 1e-12


@pytest.mark.parametrize(
    "design",
    [
        {"batch": 1.0},
        {"batch": 64.0, "tp": 4.0, "dp": 2.0},
        {"model": "deepseek-v3", "batch": 256.0, "dp": 8.0, "ep": 8.0},
        {"model": "mixtral-8x7b", "batch_rule": "memory", "tp": 2.0, "pp": 2.0},
        {"batch_rule": "rate", "request_rate": 3.0, "precision": "int8", "weight_precision": "int4"},
    ],
)
def test_the_parts_add_up(design):
    parts = evaluate("request_kernel_energy", "request_link_energy", "request_static_energy", **design)
    names = ("energy_per_request", "energy_per_output_token", "energy_per_token", "average_power", "served_rate")
    whole = evaluate(*names, **design)
    devices = design.get("tp", 1) * design.get("pp", 1) * design.get("dp", 1)
    assert sum(map(np.sum, parts.values())) == pytest.approx(whole["energy_per_request"], rel=1e-12)
    assert min(map(np.min, parts.values())) >= 0
    assert parts["request_static_energy"] > 0
    assert whole["energy_per_output_token"] * 128 == pytest.approx(whole["energy_per_request"], rel=1e-12)
    assert whole["energy_per_token"] * (512 + 128) == pytest.approx(whole["energy_per_request"], rel=1e-12)
    power = whole["energy_per_request"] * whole["served_rate"] / devices
    assert whole["average_power"] == pytest.approx(power, rel=1e-12)


@pytest.mark.parametrize("tp", [1.0, 4.0])
@pytest.mark.parametrize("pp", [1.0, 2.0])
@pytest.mark.parametrize("dp", [1.0, 2.0])
def test_operations_are_those_of_the_model(tp, pp, dp):
    """Two operations for every weight and token, and attention's, times the energy of one, however the model is split.

    Multiplications by hand: Llama 2 7B has 32 layers of 4·4096² + 3·4096·11008 weights and a head of 32000·4096.
    """
    units = {"matrix_energy": 1.0 * PJ, "vector_energy": 0.0, "operation_energy": 1.0}
    design = {"batch": 32.0 * dp, "tp": tp, "pp": pp, "dp": dp, "prompt_tokens": 512.0, "output_tokens": 2.0}
    energy = of_resource("request_kernel_energy", "arithmetic", **design, **units)
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    dense = 2 * weights * (512 + 1) + 2 * 32000 * 4096 * 2
    steps = 2 * 2 * 4096 * 513 * 32
    attention = energy / PJ - dense - steps
    lower_triangle = 2 * 2 * 512 * (512 + 1) / 2 * 4096 * 32
    assert lower_triangle <= attention <= 1.4 * lower_triangle  # whole blocks along the diagonal


def test_decoding_reads_weights_and_cache_once():
    """Memory traffic of one step of a single sequence: stored weights of all layers and the head, and the cache."""
    units = {"memory_byte_energy": 1.0 * PJ, "memory_port_energy": 0.0}
    two, three = (
        of_resource("request_kernel_energy", "hbm", prompt_tokens=4000.0, output_tokens=n, **units) / PJ
        for n in (2.0, 3.0)
    )
    weights = 2 * (32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096)
    cache = 2 * 32 * 2 * 4096 * 4002
    assert three - two == pytest.approx(weights + cache, rel=0.01)  # and a little for activations


def test_more_work_draws_more_power():
    """H100 under Llama 70B: more than when idle, less than its limit."""
    drawn = [
        value(
            "power_fraction",
            model="llama-3.1-70b",
            tp=8.0,
            batch=b,
            precision="fp8",
            weight_precision="fp8",
            kv_precision="fp8",
        )
        for b in (1.0, 16.0, 256.0)
    ]
    assert 0.25 < drawn[0] < drawn[1] < drawn[2] < 1


def test_experts_that_no_token_visits_are_not_read():
    """One token on eight ranks reads the weights of the eight experts that it visits, wherever they lie."""
    design = {"model": "deepseek-v3", "tp": 8.0, "batch": 1.0, "prompt_tokens": 100.0, "memory_byte_energy": 1.0}
    spread, split = (
        of_resource("request_kernel_energy", "hbm", output_tokens=102.0, **design, **how)
        - of_resource("request_kernel_energy", "hbm", output_tokens=2.0, **design, **how)
        for how in ({"ep": 8.0}, {"ep": 1.0, "etp": 8.0})
    )
    assert spread == pytest.approx(split, rel=0.02)


def test_the_last_round_of_a_run_has_its_own_energy():
    common = {"batch_rule": "run", "batch_limit": 100.0, "model": "llama-3.1-8b", "memory_byte_energy": 1.0}
    full, alone = (
        of_resource("request_kernel_energy", "hbm", requests=100.0, **common),
        of_resource("request_kernel_energy", "hbm", requests=1.0, **common),
    )
    mean = of_resource("request_kernel_energy", "hbm", requests=101.0, **common)
    assert mean == pytest.approx((100 * full + alone) / 101, rel=0.01)


def test_less_work_never_takes_more_energy():
    base = {"model": "llama-3.1-70b", "tp": 4.0, "batch": 16.0, "prompt_tokens": 2000.0}
    reference = value("energy_per_request", **base)
    for change in (
        {"prefix_hit_rate": 0.5},
        {"weight_precision": "int4"},
        {"kv_precision": "fp8"},
        {"output_tokens": 64.0},
        {"batch": 32.0},
        {"precision": "fp8"},
    ):
        assert value("energy_per_request", **base | change) < reference, change


def test_costs_are_those_of_the_cluster_over_its_tokens():
    axes = {
        "model": ["llama-3.1-70b"],
        "device": ["h100-sxm-80gb", "mi300x"],
        "topology": ["rail-optimized"],
        "software": ["vllm"],
        "parallelism": {"devices": [8, 64], "tp": [8], "pp": [1]},
        "batch": [64],
    }
    outputs = [
        "cost_per_million_output_tokens",
        "cost_per_million_tokens",
        "tokens_per_dollar",
        "cost_per_device_hour",
        "output_tokens_per_second_per_device",
        "output_tokens_per_second",
        "utilization",
    ]
    sizes = {"prompt_tokens": 300, "output_tokens": 100}
    made = pg.Study.make(workload="inference", outputs=outputs, axes=axes, workload_parameters=sizes, dtype="float64")
    ds = pg.evaluate(made).squeeze()
    hour = ds.cost_per_device_hour / ds.utilization
    expected = hour / 3600 / ds.output_tokens_per_second_per_device * 1e6
    np.testing.assert_allclose(*np.broadcast_arrays(ds.cost_per_million_output_tokens, expected), rtol=1e-12)
    np.testing.assert_allclose(ds.cost_per_million_output_tokens, 4 * ds.cost_per_million_tokens, rtol=1e-12)
    np.testing.assert_allclose(ds.tokens_per_dollar * ds.cost_per_million_tokens, 1e6, rtol=1e-12)


def test_without_losses_static_power_lasts_as_long_as_the_request():
    found = evaluate("request_static_energy", "request_latency", batch=1.0, **IDEAL)
    power = value("static_power")
    assert found["request_static_energy"] == pytest.approx(power * found["request_latency"], rel=1e-12)
