"""Kernels that wait for the host; stages cut by cost, against the loop that does; partial recomputation; margins."""

from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgrid.formulas import BREAKDOWN
from perfgrid.formulas.kernels.host import counted

from .cases import design, evaluate, point

SMALL = {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "tp": 1.0, "dp": 8.0, "global_batch": 64.0}
EXPERTS = {"model": "mixtral-8x7b", "device": "h100-sxm-80gb", "tp": 1.0, "dp": 8.0, "ep": 2.0, "global_batch": 64.0}


# ---- the host -------------------------------------------------------------------------------------------------------


def test_a_fast_host_is_not_seen_and_a_slow_one_sets_the_pace():
    """A pass takes the longer of its kernels and its launches: with a slow host launches times their number."""
    free, fast, slow = (design(**SMALL, host_launch_time=t) for t in (0.0, 1e-6, 1e-2))
    assert free["exposed_host_time"] == fast["exposed_host_time"] == 0
    assert free["step_time"] == fast["step_time"]
    for direction in ("forward", "backward"):
        launches = slow[f"layer_{direction}_launches"]
        assert launches == round(launches, 6) > 5
        assert slow[f"layer_{direction}_time"] == pytest.approx(launches * 1e-2, rel=1e-9)
    assert slow["step_time"] == pytest.approx(sum(slow[name] for name in BREAKDOWN), rel=1e-9)
    assert slow["exposed_host_time"] / slow["step_time"] > 0.9


@settings(max_examples=20)
@given(st.floats(1e-7, 1e-3), st.floats(1.01, 10.0))
def test_a_slower_host_never_makes_a_step_faster(time, factor):
    q = point(**SMALL)
    before, after = (evaluate({**q, "host_launch_time": t})["step_time"] for t in (time, time * factor))
    assert after >= before * (1 - 1e-12)


def test_every_expert_is_a_kernel_where_the_software_says_so():
    grouped, single = (design(**EXPERTS, products_by_expert=flag) for flag in (False, True))
    assert grouped["expert_launches"] == 0
    assert single["expert_launches"] == 2 * (8 / 2 - 1)  # two matrices of three further experts
    assert single["layer_forward_launches"] - grouped["layer_forward_launches"] == pytest.approx(6)
    assert single["step_time"] == grouped["step_time"]  # a host of no time starts any number


def test_one_program_has_no_launches():
    assert counted(0.0, 0.0) == 0
    assert counted(6e-6, 3e-6) == 2


def test_pointwise_passes_multiply_the_traffic_of_element_wise_kernels_alone():
    once, twice = (design(**SMALL, pointwise_passes=p) for p in (1.0, 2.0))
    moved, more = once["stream_traffic"], twice["stream_traffic"]
    assert {round(float(r), 9) for r in more[moved > 0] / moved[moved > 0]} == {1.0, 2.0}
    assert twice["gemm_time"] == pytest.approx(once["gemm_time"])
    assert twice["step_time"] > once["step_time"]


# ---- stages by cost -------------------------------------------------------------------------------------------------


def cut(layers, head, pp):
    """Layers of every stage: a block goes to the stage at hand, which ends once the summed cost exceeds its share."""
    total, held, stage, summed = layers + head, [0] * pp, 0, 0.0
    for block in [1.0] * layers + [head]:
        summed += block
        held[stage] += block == 1.0 and sum(held) < layers
        if summed > total * (stage + 1) / pp and stage < pp - 1:
            stage += 1
    return held


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-2-7b", "llama-3.1-70b"])
def test_stages_by_cost_against_the_loop_that_cuts_them(model, pp):
    shape = {"model": model, "device": "h100-sxm-80gb", "tp": 1.0, "dp": 1.0, "pp": float(pp), "global_batch": 64.0}
    q = design(**shape, stages_by_cost=True)
    head = q["hidden_size"] * q["vocab_size"] / q["layer_matrix_parameters"]
    held = cut(int(q["layers"]), head, pp)
    assert sum(held) == q["layers"]
    assert q["stage_layers"] == max(held) == held[0]
    assert q["first_stage_layers"] == held[0]
    assert q["last_stage_layers"] == held[-1]
    if pp > 2:
        assert q["middle_stage_layers"] == max(held[1:-1])
    plain = design(**shape)
    if pp == 1:
        assert q["step_time"] == plain["step_time"]
    assert q["last_stage_layers"] <= plain["last_stage_layers"]


# ---- recomputation of as many layers as must be ---------------------------------------------------------------------


@pytest.mark.parametrize("gigabytes", range(24, 80, 8))
def test_least_recomputation_fills_the_memory_with_whole_layers(gigabytes):
    shape = {**SMALL, "sequence_length": 8192.0, "microbatch": 2.0, "zero": 3.0, "software": "megatron-core"}
    modes = {m: design(**shape, recompute=m, hbm_capacity=gigabytes * 1e9) for m in ("none", "full", "least")}
    least = modes["least"]
    share = least["layer_recomputed"]
    assert share * 32 == pytest.approx(round(share * 32), abs=1e-9)
    assert modes["none"]["step_time"] <= least["step_time"] <= modes["full"]["step_time"] * (1 + 1e-12)
    if modes["none"]["fits_memory"]:
        assert share == 0
    elif modes["full"]["fits_memory"]:
        assert 0 < share <= 1
        assert least["fits_memory"]
        one_less = modes["none"]["memory_per_device"] - (share * 32 - 1) / 32 * (
            modes["none"]["memory_per_device"] - modes["full"]["memory_per_device"]
        )
        assert one_less > gigabytes * 1e9 * 0.98  # a layer less would not fit (the working space of one aside)
    else:
        assert share == 1
    assert least["recompute_choice"] == (2 if share > 0 else 0)


# ---- intervals ------------------------------------------------------------------------------------------------------


def test_intervals_and_margins_follow_the_error_of_the_software():
    q = design(**SMALL, model_error=0.2, ranking_error=0.05)
    ratio = q["step_time_high"] / q["step_time_low"]
    assert log(ratio) == pytest.approx(2 * 1.645 * 0.2)
    assert q["step_time_low"] < q["step_time"] < q["step_time_high"]
    assert q["tie_margin"] == pytest.approx(exp(1.645 * 2**0.5 * 0.05) - 1)
    sure = design(**SMALL, model_error=0.0, ranking_error=0.0)
    assert sure["step_time_low"] == sure["step_time"] == sure["step_time_high"]
    assert sure["tie_margin"] == 0
