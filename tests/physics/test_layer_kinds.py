"""Layers of two kinds: where they stand in a pipeline, and what a step takes, counted layer by layer."""

from __future__ import annotations

import numpy as np
import pytest

from perfgrid.formulas.axes import at

from .cases import design, point

DEEPSEEK = {"tp": 1.0, "dp": 64.0, "ep": 64.0, "global_batch": 1024.0, "sequence_length": 4096.0, "mtp_layers": 0.0}
H = 7168


def deepseek(**changes):
    return design("deepseek-v3", "h100-sxm-80gb", **DEEPSEEK | {"recompute": "none"} | changes)


def by_kind(value):
    """Of dense layers, and of layers with experts."""
    dense, experts = np.broadcast_to(np.ravel(value), 2)
    return float(dense), float(experts)


def dealt(layers, dense, stages):
    """Kinds of the layers of each stage, handed out one by one: the stages have so many."""
    kinds = iter(["dense"] * dense + ["experts"] * (layers - dense))
    held = [[next(kinds) for _ in range(n)] for n in stages]
    return [(stage.count("dense"), stage.count("experts")) for stage in held]


# ---- a model that is all of one kind -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama-3.1-70b", "megatron-22b", "mixtral-8x7b"])
@pytest.mark.parametrize(
    "changes",
    [
        {"pp": 8.0},
        {"pp": 5.0, "recompute": "full"},
        {"pp": 4.0, "chunks": 2.0},
        {"pp": 4.0, "schedule": "zb_h1"},
        {"pp": 4.0, "chunks": 2.0, "schedule": "zb_v"},
        {"pp": 4.0, "schedule": "dualpipe"},
        {"pp": 4.0, "recompute": "least", "zero": 1.0},
    ],
)
def test_one_kind_of_layers_is_the_same_as_a_kind_and_none_of_the_other(model, changes):
    """Every quantity of a step, its memory and its bytes is the same by both sets of formulas."""
    given = {"tp": 2.0, "dp": 8.0, "global_batch": 512.0} | changes
    one, two = (design(model, layer_pattern=pattern, **given) for pattern in ("uniform", "dense_first"))
    kind = 1 if one["experts"] > 0 else 0
    assert by_kind(two["kind_layers"])[kind] == one["layers"]
    assert by_kind(two["kind_layers"])[1 - kind] == 0
    compared = 0
    for name, value in one.items():
        if "leading_layers" in name or name.startswith("dense_first_"):  # a uniform model does not tell them apart
            continue
        if np.size(two[name]) == np.size(value):
            assert np.ravel(two[name]) == pytest.approx(np.ravel(value), rel=1e-12, abs=1e-300), name
            compared += 1
    assert compared > 600
    for name in ("layer_time", "layer_activations", "rank_layer_parameters"):
        assert by_kind(two[name])[kind] == pytest.approx(by_kind(one[name])[kind], rel=1e-12), name


# ---- where they stand ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dense", [1, 3, 5])
@pytest.mark.parametrize("pp", [1, 2, 3, 4, 6, 10, 12, 20, 60])
def test_every_layer_stands_on_one_stage(pp, dense):
    """Of 60 layers whatever divides them; the sum over all stages has every layer of each kind once."""
    q = deepseek(layers=60.0, dense_layers=float(dense), pp=float(pp))
    expected = dealt(60, dense, [60 // pp] * pp)
    assert by_kind(q["first_stage_kind_layers"]) == expected[0]
    assert by_kind(q["last_stage_kind_layers"]) == expected[-1]
    if pp > 2:
        assert by_kind(q["middle_stage_kind_layers"]) == expected[-2]
    held = np.sum(expected, axis=0)
    assert tuple(held) == by_kind(q["kind_layers"]) == (dense, 60 - dense)


@pytest.mark.parametrize("pp", [2, 3, 4, 5, 7, 8, 9, 16])
def test_stages_of_a_model_that_does_not_divide(pp):
    """61 layers: the last stage, then the first, then the latest others have one less."""
    q = deepseek(pp=float(pp))
    full, missing = -(-61 // pp), -61 % pp
    stages = [full] * pp
    for stage in [pp - 1, 0, *range(pp - 2, 0, -1)][:missing]:
        stages[stage] -= 1
    assert sum(stages) == 61
    expected = dealt(61, 3, stages)
    assert by_kind(q["first_stage_kind_layers"]) == expected[0]
    assert by_kind(q["last_stage_kind_layers"]) == expected[-1]
    if pp > 2:
        latest = max(i for i in range(1, pp - 1) if stages[i] == max(stages[1:-1]))
        assert by_kind(q["middle_stage_kind_layers"]) == expected[latest]
    assert tuple(np.sum(expected, axis=0)) == (3, 58)


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 48])
@pytest.mark.parametrize("leading", [0, 2, 5])
def test_every_second_layer_has_experts(pp, leading):
    """Llama 4 Maverick, also behind more dense layers: of the fullest middle stages one with most experts is taken."""
    experts = (48 - leading) // 2
    layers = leading + 2 * experts
    q = design("llama-4-maverick", layers=float(layers), dense_layers=float(layers - experts), pp=float(pp))
    kinds = iter(["dense"] * leading + ["dense", "experts"] * experts)
    full, missing = -(-layers // pp), -layers % pp
    stages = [full] * pp
    for stage in [pp - 1, 0, *range(pp - 2, 0, -1)][:missing]:
        stages[stage] -= 1
    held = [[next(kinds) for _ in range(n)] for n in stages]
    expected = [(stage.count("dense"), stage.count("experts")) for stage in held]
    assert by_kind(q["first_stage_kind_layers"]) == expected[0]
    assert by_kind(q["last_stage_kind_layers"]) == expected[-1]
    if pp > 2:
        assert by_kind(q["middle_stage_kind_layers"])[1] == max(
            e for d, e in expected[1:-1] if d + e == max(stages[1:-1])
        )
    assert by_kind(q["kind_layers"]) == (layers - experts, experts)
    assert q["dense_layers_fit_the_step"]


@pytest.mark.parametrize(("chunks", "whole"), [(1, True), (2, False), (3, True), (6, False)])
def test_interleaved_chunks_hold_whole_periods(chunks, whole):
    """On 8 stages with two chunks of three layers each second stage would have two of three with experts twice."""
    q = design("llama-4-maverick", pp=8.0, chunks=float(chunks))
    assert q["chunks_hold_periods"] == whole


@pytest.mark.parametrize("changes", [{"dense_layers": 20.0}, {"expert_layer_step": 3.0}, {"dense_layers": 0.0}])
def test_dense_layers_that_do_not_fit_their_step_are_flagged(changes):
    assert not design("llama-4-maverick", **changes)["dense_layers_fit_the_step"]


def test_layers_with_experts_cost_the_same_wherever_they_stand():
    """Without a pipeline 24 dense layers before 24 with experts take the time of those in turn."""
    given = {"tp": 2.0, "dp": 128.0, "ep": 64.0, "global_batch": 1024.0, "sequence_length": 8192.0}
    turned, first = (design("llama-4-maverick", "h100-sxm-80gb", expert_layer_step=n, **given) for n in (2.0, 1.0))
    assert turned["step_time"] == pytest.approx(float(first["step_time"]), rel=1e-12)
    assert turned["memory_per_device"] == pytest.approx(float(first["memory_per_device"]), rel=1e-12)
    four, four_first = (
        design("llama-4-maverick", "h100-sxm-80gb", expert_layer_step=n, pp=4.0, **given) for n in (2.0, 1.0)
    )
    assert four["slowest_stage_time"] < four_first["slowest_stage_time"]  # stages are alike


# ---- what they take ------------------------------------------------------------------------------------------------


def test_three_dense_layers_stand_on_the_first_stage():
    """Weights of attention, norms, feed-forward parts, routers, shared and routed experts, stage by stage."""
    q = deepseek(pp=4.0)
    attention = 187_105_280 + 2 * H + 1536 + 512
    dense, expert, router = 3 * H * 18432, 3 * H * 2048, 256 * H
    stages = dealt(61, 3, [15, 16, 15, 15])
    vocabulary = 129_280 * H
    for name, (first, others), table in zip(
        ("first", "middle", "last"), (stages[0], stages[1], stages[3]), (vocabulary, 0, vocabulary), strict=True
    ):
        weights = first * (attention + dense) + others * (attention + router + expert) + table
        assert q[f"{name}_stage_parameters"] == pytest.approx(weights, rel=1e-12)
        assert q[f"{name}_stage_expert_parameters"] == pytest.approx(others * 256 / 64 * expert, rel=1e-12)
        times = [q[f"{part}_time"] for part in ("embedding", "head")]
        seconds = sum(n * t for n, t in zip((first, others), by_kind(q["layer_time"]), strict=True))
        seconds += times[0] * (name == "first") + times[1] * (name == "last")
        assert q[f"{name}_stage_time"] == pytest.approx(seconds, rel=1e-12)
    slower = by_kind(q["layer_time"])
    assert slower[0] < slower[1]  # without an exchange
    assert q["first_stage_time"] < q["middle_stage_time"]
    assert q["slowest_stage_time"] == pytest.approx(max(q[f"{s}_stage_time"] for s in ("first", "middle", "last")))


def test_layers_of_each_kind_are_those_of_a_model_of_that_kind():
    """A dense layer of DeepSeek-V3 takes and keeps what one of a model without experts does; the others alike."""
    mixed = deepseek()
    dense, experts = deepseek(dense_layers=61.0), deepseek(dense_layers=0.0)
    assert point("deepseek-v3", dense_layers=61.0)["layer_pattern"] == "uniform"
    for name in (
        "layer_time",
        "layer_forward_time",
        "layer_activations",
        "rank_layer_parameters",
        "layer_forward_flops",
    ):
        assert by_kind(mixed[name]) == pytest.approx((dense[name], experts[name]), rel=1e-12), name


@pytest.mark.parametrize("changes", [{}, {"pp": 2.0}, {"pp": 2.0, "recompute": "full"}, {"dp": 128.0, "zero": 1.0}])
def test_more_dense_layers_move_from_one_end_to_the_other(changes):
    """Step, memory and work of n dense layers of 60 lie between those of none and of all, in order."""
    found = [deepseek(layers=60.0, dense_layers=float(n), **changes) for n in (0, 1, 3, 20, 59, 60)]
    for name in ("step_time", "memory_per_device", "state_memory", "model_flops_per_token", "total_parameters"):
        values = [q[name] for q in found]
        falling = values[0] > values[-1]
        ordered = sorted(values, reverse=falling)
        buffers = name == "memory_per_device"  # a single layer with experts needs theirs when it runs backward
        assert values == pytest.approx(ordered, rel=2e-3 if buffers else 1e-9), name


def test_a_step_of_one_stage_counts_every_layer():
    """Without a pipeline: microbatches of 3 dense layers, 58 with experts, embedding and head."""
    q = deepseek()
    dense, experts = by_kind(q["layer_time"])
    passes = 3 * dense + 58 * experts + q["embedding_time"] + q["head_time"]
    assert q["slowest_stage_time"] == pytest.approx(passes, rel=1e-12)
    assert q["ep_calls"] == pytest.approx(q["microbatches"] * 58 * 2 * 2)
    flops = [n * f for n, f in zip((3, 58), by_kind(q["layer_forward_flops"]), strict=True)]
    assert q["model_flops_per_token"] == pytest.approx(3 * (sum(flops) + 2 * 129_280 * H), rel=1e-12)


@pytest.mark.parametrize("schedule", ["zb_v", "dualpipe_v"])
def test_chunks_of_a_v(schedule):
    """64 layers as eight chunks on four devices: the first chunk has the dense layers, all others have none."""
    q = deepseek(layers=64.0, pp=4.0, chunks=2.0, schedule=schedule)
    expected = dealt(64, 3, [8] * 8)
    first, inner, last = (at(q["kind_layers_by_chunk"], stage=stage) for stage in ("first", "middle", "last"))
    assert by_kind(first) == expected[0]
    assert by_kind(inner) == pytest.approx(expected[3])
    assert by_kind(last) == expected[7]
    device = np.sum([expected[0], expected[7]], axis=0)
    assert by_kind(q["first_stage_kind_layers"]) == pytest.approx(tuple(device))
