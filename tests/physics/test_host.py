"""Kernels that wait for the host; stages cut by cost, against the loop that does; partial recomputation; margins."""

from itertools import pairwise
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgrid.formulas import BREAKDOWN
from perfgrid.formulas.kernels.host import ATTENTION, LAYER, counted

from .cases import design, evaluate, point, rows

SMALL = {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "tp": 1.0, "dp": 8.0, "global_batch": 64.0}
EXPERTS = {"model": "mixtral-8x7b", "device": "h100-sxm-80gb", "tp": 1.0, "dp": 8.0, "ep": 2.0, "global_batch": 64.0}


# ---- the host -------------------------------------------------------------------------------------------------------


def test_a_fast_host_is_not_seen_and_a_slow_one_sets_the_pace():
    """A pass takes the longer of its kernels and its launches: with a slow host launches times their number."""
    free, fast, slow = (design(**SMALL, host_launch_time=t) for t in (0.0, 1e-6, 1e-2))
    assert free["exposed_host_time"] == fast["exposed_host_time"] == 0
    assert free["step_time"] == fast["step_time"]
    for direction in ("forward", "backward"):
        launches = slow[f"layer_{direction}_host_launches"]
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


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_layer_takes_the_longer_of_host_and_device_both_passes_together(recompute):
    """A host that is late in one pass catches up in the other; without that a pass takes as long as the host."""
    free = design(**SMALL, recompute=recompute, host_launch_time=0.0)
    device = {d: free[f"layer_{d}_time"] for d in ("forward", "backward")}
    launches = {d: free[f"layer_{d}_host_launches"] for d in device}
    per_launch = sorted(device[d] / launches[d] for d in device)  # one pass is late from here on, both from there on
    together = sum(device.values()) / sum(launches.values())
    slow, fast = per_launch[1], per_launch[0]
    times = [0.5 * fast, (fast + together) / 2, (together + slow) / 2, 2 * slow]
    found = [design(**SMALL, recompute=recompute, host_launch_time=t) for t in times]
    for time, q in zip(times, found, strict=True):
        host = {d: launches[d] * time for d in device}
        assert q["layer_time"] == pytest.approx(max(sum(device.values()), sum(host.values())), rel=1e-12)
        for d in device:
            assert q[f"layer_{d}_exposed_host_time"] == q[f"layer_{d}_time"] - device[d] == 0 or (
                q[f"layer_{d}_time"] == pytest.approx(device[d] + q[f"layer_{d}_exposed_host_time"], rel=1e-12)
            )
            assert q[f"layer_{d}_exposed_host_time"] <= max(host[d] - device[d], 0) * (1 + 1e-12)
    early, hidden, caught_up, late = found
    assert early["exposed_host_time"] == hidden["exposed_host_time"] == 0
    (first,) = [d for d in device if caught_up[f"layer_{d}_exposed_host_time"] > 0]  # only the pass that is late
    assert launches[first] * times[2] > device[first]
    for d in device:
        assert late[f"layer_{d}_time"] == pytest.approx(launches[d] * times[3], rel=1e-12)


def test_gradients_hide_behind_what_the_host_leaves_of_a_layer():
    """Where it sets the pace a faster device hides no less: with all else equal the step is never slower."""
    slow = {**SMALL, "dp": 64.0, "global_batch": 64.0, "host_launch_time": 1e-3, "communication_cores": 0.0}
    q = design(**slow, optimizer_traffic=0.0)
    backward = q["layer_backward_host_launches"] * 1e-3
    assert q["layer_backward_hiding_time"] == pytest.approx(backward, rel=1e-12)
    assert q["layer_forward_hiding_time"] == pytest.approx(q["layer_forward_host_launches"] * 1e-3, rel=1e-12)
    tiny = {
        **slow,
        "sequence_length": 64.0,
        "dp_overlap": 0.01,
    }  # gradients are added up for longer than all else takes
    per_launch = [design(**{**tiny, "host_launch_time": 0.0})[f"layer_{d}_time"] for d in ("forward", "backward")]
    at_times = [sum(per_launch) / n for n in (20, 25, 30, 35, 40)]
    for time in at_times:
        steps = [design(**{**tiny, "host_launch_time": time, "matrix_efficiency": e}) for e in (0.4, 0.41, 0.6)]
        for slower, faster in pairwise(steps):
            assert faster["step_time"] <= slower["step_time"] * (1 + 1e-12)
            assert faster["layer_backward_hiding_time"] <= slower["layer_backward_hiding_time"] * (1 + 1e-12)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    ("given_", "forward", "weights"),
    [
        (EXPERTS, 2 + 1 + 1 + 2 + 1 + 1, 2),  # products, routing, two ways there, a sort each way, way back, activation
        ({**SMALL, "tp": 2.0}, 2 + 1, 2),  # products, activation
    ],
    ids=["experts", "dense"],
)
def test_graphs_leave_the_kernels_of_feed_forward_parts_or_none(given_, forward, weights, recompute):
    """Backward as many as forward and products of weight gradients; with full recomputation the forward ones again."""
    left = {"forward": forward, "backward": forward * (1 + (recompute == "full")) + weights}
    free = design(**given_, recompute=recompute, host_launch_time=0.0)
    slow = {**given_, "recompute": recompute, "host_launch_time": 1e-2}
    found = {scope: design(**slow, graph_scope=float(scope)) for scope in range(4)}  # none, attention, layer, step
    for d, kernels in left.items():
        every, calls = free[f"layer_{d}_host_launches"], free[f"layer_{d}_tp_calls"] * (given_["tp"] > 1)
        assert every > kernels
        for scope, (launches, of_tp) in enumerate(((every, calls), (kernels, calls / 2), (0, 0), (0, 0))):
            q = found[scope]
            assert q[f"layer_{d}_host_launches"] == pytest.approx(launches, rel=1e-12), scope
            assert q[f"layer_{d}_host_time"] == pytest.approx((launches + of_tp) * 1e-2, rel=1e-12), scope
            if launches:
                assert q[f"layer_{d}_time"] == pytest.approx((launches + of_tp) * 1e-2, rel=1e-12), scope
    for scope in (LAYER, LAYER + 1):
        assert found[scope]["exposed_host_time"] == 0
        assert found[scope]["step_time"] == free["step_time"]


def test_graphs_of_attention_leave_the_products_of_single_experts():
    single = design(**EXPERTS, graph_scope=float(ATTENTION), products_by_expert=True)
    grouped = design(**EXPERTS, graph_scope=float(ATTENTION), products_by_expert=False)
    for d, passes in (("forward", 1), ("backward", 2)):  # two matrices of three further experts
        further = single[f"layer_{d}_host_launches"] - grouped[f"layer_{d}_host_launches"]
        assert further == pytest.approx(6 * passes)


@pytest.mark.parametrize(
    ("sequence_parallel", "recompute", "forward", "backward"),
    [
        (True, "none", 4, 6),  # a gather and a scatter for each of two blocks; backward inputs are gathered once more
        (True, "full", 4, 10),
        (False, "none", 2, 2),  # a reduction each
        (False, "full", 2, 4),
    ],
)
@pytest.mark.parametrize("tp", [1.0, 2.0, 4.0, 8.0])
def test_a_checked_collective_costs_a_message_from_every_further_rank(
    sequence_parallel, recompute, forward, backward, tp
):
    plan = {"sequence_parallel": sequence_parallel, "recompute": recompute, "tp": tp}
    given_ = {**SMALL, **plan, "host_launch_time": 0.0, "collective_check_time": 1e-2}
    unchecked, q = design(**given_), design(**given_, checked_collectives=True)
    started = design(**{**given_, "host_launch_time": 1e-3}, checked_collectives=True)
    assert unchecked["exposed_host_time"] == 0
    for d, calls in {"forward": forward, "backward": backward}.items():
        assert q[f"layer_{d}_tp_calls"] == calls
        if tp > 1:
            checks = calls * 1e-2 * (tp - 1)
            assert q[f"layer_{d}_time"] == pytest.approx(checks, rel=1e-12)
            launches = started[f"layer_{d}_host_launches"] + calls  # a collective is one, too
            assert started[f"layer_{d}_time"] == pytest.approx(launches * 1e-3 + checks, rel=1e-12)
        else:
            assert q[f"layer_{d}_time"] == unchecked[f"layer_{d}_time"]


def test_every_expert_is_a_kernel_where_the_software_says_so():
    grouped, single = (design(**EXPERTS, products_by_expert=flag) for flag in (False, True))
    assert grouped["expert_launches"] == 0
    assert single["expert_launches"] == 2 * (8 / 2 - 1)  # two matrices of three further experts
    assert single["layer_forward_host_launches"] - grouped["layer_forward_host_launches"] == pytest.approx(6)
    free = [design(**EXPERTS, products_by_expert=flag, host_launch_time=0.0)["step_time"] for flag in (False, True)]
    assert free[0] == free[1]  # a host of no time starts any number


def test_one_program_has_no_launches():
    assert counted(0.0, 0.0) == 0
    assert counted(6e-6, 3e-6) == 2


@pytest.mark.parametrize(
    ("passes", "kernels"),
    [
        ("pointwise_passes", {"residual", "activation", "rotary", "softmax", "shared_activation"}),
        ("norm_passes", {"norm", "latent_norm"}),
    ],
)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt3-175b", "deepseek-v3"])
def test_passes_multiply_the_traffic_of_their_kernels_alone(model, passes, kernels):
    """Norms and other element-wise kernels each have passes of their own; tables, loss and sums have none."""
    plan = {**SMALL, "model": model, "tp": 8.0, "host_launch_time": 0.0, "flash_attention": False, "biases": True}
    once, twice = (design(**plan, **{passes: p}) for p in (1.0, 2.0))
    moved, more = (rows(q["stream_traffic"], "phase", "stream_kernel") for q in (once, twice))
    for (phase, kernel), value in moved.items():
        assert more[phase, kernel] == value * (2 if kernel in kernels else 1), (phase, kernel)
    assert any(moved["forward", kernel] > 0 for kernel in kernels)
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
    assert least["recompute_choice"] == (3 if share == 1 else 2 if share > 0 else 0)


# ---- intervals ------------------------------------------------------------------------------------------------------


def test_intervals_follow_the_error_of_the_software():
    q = design(**SMALL, model_error=0.2)
    ratio = q["step_time_high"] / q["step_time_low"]
    assert log(ratio) == pytest.approx(2 * 1.645 * 0.2)
    assert q["step_time_low"] < q["step_time"] < q["step_time_high"]
    sure = design(**SMALL, model_error=0.0)
    assert sure["step_time_low"] == sure["step_time"] == sure["step_time_high"]
