"""Adapters against an enumeration of their matrices; recomputation chosen by the system; offloading to the host."""

from itertools import pairwise

import numpy as np
import pytest

from perfgrid.formulas.axes import INNER
from perfgrid.formulas.hardware.scaling import NAMES
from perfgrid.formulas.training.recompute import RECOMPUTED

from .cases import design, evaluate, point, rows

BASE = {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "tp": 1.0, "dp": 8.0, "global_batch": 64.0}
PARAMETERS = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096) + 2 * 128256 * 4096
TARGETS = {  # shapes (depth, columns) of the matrices with adapters, by code of lora_targets
    0.0: [(4096, 6144), (4096, 4096), (4096, 2 * 14336), (14336, 4096)],
    1.0: [(4096, 6144), (4096, 4096)],
    2.0: [(4096, 6144)],
}


def by_phase(value):
    return rows(np.sum(value, axis=INNER.position("resource"), keepdims=True), "phase")


# ---- adapters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("rank", [8, 64])
def test_adapters_against_their_matrices(targets, rank):
    q = design(**BASE, lora_rank=float(rank), lora_targets=targets)
    adapters = 32 * sum(rank * (k + n) for k, n in TARGETS[targets])
    assert q["adapter_parameters"] == q["trained_parameters"] == q["stage_trained_parameters"] == adapters
    assert q["state_memory"] == pytest.approx(2 * (PARAMETERS + adapters) + 4 * adapters + 12 * adapters)
    sharded = design(**BASE, lora_rank=float(rank), lora_targets=targets, zero=3.0, software="megatron-core")
    assert sharded["state_memory"] == pytest.approx((2 * (PARAMETERS + adapters) + 16 * adapters) / 8)
    tokens, time = 2048, by_phase(q["adapter_time"])
    bandwidth, launch = q["achieved_hbm_bandwidth"], q["launch_overhead"]
    forward = sum(
        max(tokens * 2 * (k + 3 * rank + 2 * n) / bandwidth, 2 * tokens * rank * (k + n) / q["unquantised_matrix_rate"])
        + 3 * launch
        for k, n in TARGETS[targets]
    )
    assert time["forward"] == pytest.approx(forward)
    assert set(time.values()) != {0.0}


@pytest.mark.parametrize("device", ["b200", "h100-sxm-80gb"])
def test_weights_held_in_8_bits(device):
    """One copy of 8 bits where a tensor has one scale; beside 16-bit products, or with finer scales, 16 bits."""
    given = BASE | {"device": device, "lora_rank": 16.0, "lora_targets": 2.0}
    adapters = 32 * 16 * (4096 + 6144)

    def held(**changes):
        return (design(**given | changes)["state_memory"] - 18 * adapters) / (PARAMETERS + adapters)

    eight = {"software": "nemo", "precision": "fp8"}
    assert held(**eight, scaling=float(NAMES.index("tensor"))) == pytest.approx(1, rel=1e-12)
    assert held(**eight, scaling=float(NAMES.index("block"))) == pytest.approx(2, rel=1e-12)
    assert held(software="nemo") == pytest.approx(2, rel=1e-12)


@pytest.mark.parametrize("targets", [1.0, 2.0])
def test_frozen_feed_forward_blocks_keep_no_inputs(targets):
    """Neither the result of their norm nor that of the activation function: h + 3.5 h in 16 bits for each token."""
    every, some = (design(**BASE, lora_rank=16.0, lora_targets=t)["layer_linear_activations"] for t in (0.0, targets))
    trained = design(**BASE)["layer_linear_activations"]
    assert every == pytest.approx(trained)
    assert every - some == pytest.approx(2048 * 2 * (4096 + 14336))


def test_frozen_weights_have_no_gradients():
    """4 FLOPs per weight and token instead of 6; no products for weight gradients; adapters only are reduced."""
    full, lora = design(**BASE), design(**BASE, lora_rank=16.0, lora_targets=2.0)
    weights = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 128256 * 4096
    core = 32 * 4 * 2048 * 4096
    assert full["model_flops_per_token"] == 6 * weights + 3 * core
    assert lora["model_flops_per_token"] == 4 * weights + 3 * core
    axis, phases = INNER.position("phase"), INNER.labels["phase"]
    gradient = np.take(lora["gemm_time"], phases.index("weight_gradient"), axis=axis)
    assert not gradient.any()
    for phase in ("forward", "input_gradient"):
        kept, found = (np.take(q["gemm_time"], phases.index(phase), axis=axis) for q in (full, lora))
        assert np.array_equal(kept, found)
    assert lora["gradient_message"] == 4 * 32 * 16 * (4096 + 6144)
    assert lora["step_time"] < full["step_time"]
    assert lora["memory_per_device"] < full["memory_per_device"]


def test_rank_zero_trains_everything():
    q = design(**BASE, lora_rank=0.0)
    assert not np.any(q["adapter_time"])
    assert q["adapter_parameters"] == 0
    assert q["trained_parameters"] == pytest.approx(PARAMETERS, rel=1e-5)  # the final norm is not part of a stage


def test_adapters_are_for_dense_layers():
    for model, legal in (("llama-3.1-8b", True), ("mixtral-8x7b", False), ("deepseek-v3", False)):
        assert design(**{**BASE, "model": model}, lora_rank=8.0)["adapters_fit_model"] == legal


# ---- recomputation that the system chooses --------------------------------------------------------------------------

MODES = ("none", "selective", "full")
CHOICES = [
    {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "sequence_length": 8192.0},
    {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "sequence_length": 65536.0, "tp": 2.0},
    {"model": "gpt3-175b", "device": "a100-sxm-80gb", "pp": 16.0, "global_batch": 64.0, "flash_attention": False},
    {"model": "gpt3-175b", "device": "h100-sxm-80gb", "pp": 8.0, "global_batch": 64.0, "microbatch": 2.0},
    {"model": "llama-3.1-405b", "device": "b200", "pp": 8.0, "global_batch": 64.0},
    {"model": "llama-3.1-405b", "device": "a100-sxm-40gb", "tp": 8.0},  # nothing fits
]


@pytest.mark.parametrize("given", CHOICES)
@pytest.mark.parametrize("offload", ["none", "activations"])
def test_the_least_recomputation_that_fits(given, offload):
    found = {mode: design(**given, offload=offload, recompute=mode) for mode in MODES}
    fitting = [mode for mode in MODES if found[mode]["fits_memory"]]
    chosen = fitting[0] if fitting else "full"
    q = design(**given, offload=offload, recompute="least")
    assert q["recompute_choice"] == RECOMPUTED.index(chosen)
    assert found[chosen]["recompute_choice"] == RECOMPUTED.index(chosen)
    for name in ("step_time", "memory_per_device", "hardware_flops_utilization", "layer_activations", "tp_bytes"):
        assert q[name] == pytest.approx(found[chosen][name], rel=1e-12), name
    tabulated = rows(q["mode_memory"], "recompute_mode")
    for mode in MODES:
        assert tabulated[mode] == pytest.approx(found[mode]["memory_per_device"], rel=1e-12)


def test_less_memory_never_chooses_less_recomputation():
    given = point(**CHOICES[2], recompute="least")
    chosen = [
        evaluate({**given, "hbm_capacity": size * 1e9})["recompute_choice"] for size in (400, 200, 100, 70, 50, 20)
    ]
    assert chosen == sorted(chosen)
    assert {0, 1, 3} <= set(chosen)


# ---- offloading -----------------------------------------------------------------------------------------------------


def test_optimizer_state_on_the_host():
    given = {**BASE, "software": "megatron-core", "zero": 1.0}
    here, there = design(**given), design(**given, offload="optimizer")
    assert here["state_memory"] - there["state_memory"] == pytest.approx(12 * PARAMETERS / 8)
    mine, link = PARAMETERS / 8, 63e9
    gradients, hidden = mine * 4 / link, 0.9 * 32 * there["layer_backward_time"]
    buckets = there["gradient_buckets"]
    exposed = max(gradients / buckets, gradients - hidden * (1 - 1 / buckets))
    step = mine * 42 / (there["usable_host_memory_bandwidth"])
    assert there["exposed_offload_time"] == pytest.approx(exposed + max(step, mine * 2 / link))
    assert there["optimizer_time"] == pytest.approx(4 * PARAMETERS / there["achieved_hbm_bandwidth"])  # clearing
    assert there["step_time"] > here["step_time"]


@pytest.mark.parametrize("bandwidth", [10e9, 63e9, 450e9])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_activations_on_the_host(bandwidth, recompute):
    given = {**BASE, "recompute": recompute, "host_bandwidth": bandwidth}
    here, there = design(**given), design(**given, offload="activations")
    freed = here["memory_per_device"] - there["memory_per_device"]
    assert freed == pytest.approx((32 - 2) * here["layer_activations"])
    moving, waited = here["layer_activations"] / bandwidth, 0.0
    for passes in (here["layer_forward_time"], here["layer_backward_time"]):
        waited += moving + 31 * max(moving - passes, 0.0)
    assert there["exposed_offload_time"] == pytest.approx(8 * waited)
    assert there["step_time"] == pytest.approx(here["step_time"] + there["exposed_offload_time"])


def test_faster_links_to_the_host_never_slow():
    for offload in ("optimizer", "activations"):
        times = [design(**BASE, offload=offload, host_bandwidth=b)["step_time"] for b in (1e9, 1e10, 1e11, 1e12)]
        assert all(slow >= fast for slow, fast in pairwise(times))


def test_offloading_needs_a_known_link():
    for bandwidth, offload, legal in (
        (0.0, "none", True),
        (0.0, "optimizer", False),
        (0.0, "activations", False),
        (1e10, "optimizer", True),
        (1e10, "activations", True),
    ):
        assert design(**BASE, offload=offload, host_bandwidth=bandwidth)["offload_has_link"] == legal
