"""The step: layers summed kernel by kernel, stages executed event by event, and the parts that must add up."""

import numpy as np
import pytest

from perfgrid.formulas import roofline
from perfgrid.formulas.training import BREAKDOWN

from .cases import design, rows
from .schedules import simulate

DESIGNS = [
    {"model": "megatron-22b", "microbatch": 4.0, "flash_attention": False, "sequence_parallel": False},
    {"model": "gpt3-175b", "pp": 8.0, "chunks": 3.0, "global_batch": 64.0, "flash_attention": False},
    {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "tp": 2.0, "pp": 2.0, "dp": 4.0, "global_batch": 64.0},
    {"model": "llama-3.1-405b", "device": "b200", "tp": 8.0, "pp": 18.0, "dp": 2.0, "global_batch": 72.0, "zero": 1.0},
    {"model": "qwen-2.5-72b", "device": "h200-sxm-141gb", "pp": 4.0, "global_batch": 16.0, "precision": "fp8"},
    {"model": "llama-2-70b", "device": "mi300x", "tp": 8.0, "pp": 4.0, "dp": 16.0, "global_batch": 512.0},
]  # fmt: skip


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("given", DESIGNS, ids=lambda g: g["model"])
def test_parts_add_up_to_the_step(given, recompute):
    q = design(**given, recompute=recompute)
    assert sum(q[name] for name in BREAKDOWN) == pytest.approx(q["step_time"], rel=1e-12)
    assert all(q[name] >= 0 for name in BREAKDOWN)
    assert q["kernel_time"] + q["communication_time"] + q["bubble_time"] + q["optimizer_time"] == pytest.approx(
        q["step_time"], rel=1e-12
    )


def layer_by_kernels(q, flash, recompute):
    """Forward and backward kernel time of one layer, kernel after kernel, and of embedding and head."""
    gemm = rows(np.sum(q["gemm_time"], axis=-5), "phase", "gemm_kernel")
    stream = rows(np.sum(q["stream_time"], axis=-5), "phase", "stream_kernel")
    core = rows(np.sum(q["core_time"], axis=-5), "phase", "attention_kernel")
    fused = rows(np.sum(q["flash_time"], axis=-5, keepdims=True), "phase")
    runs = ["norm", "qkv", *([] if q["learned_positions"] else ["rotary"])]
    runs += ["flash"] if flash else ["score", "softmax", "context"]
    runs += ["attention_output", "residual", "norm", "ffn_up", "activation", "ffn_down", "residual"]
    runs += ["bias"] if q["biases"] else []

    def time(kernel, phase):
        if kernel == "flash":
            return fused[phase]
        return next(table[phase, kernel] for table in (gemm, stream, core) if (phase, kernel) in table)

    forward = sum(time(kernel, "forward") for kernel in runs)
    plain = forward
    backward = sum(time(kernel, phase) for kernel in runs for phase in ("input_gradient", "weight_gradient"))
    if recompute == "full":
        backward += forward
    elif recompute == "selective" and not flash:
        backward += sum(time(kernel, "forward") for kernel in ("score", "softmax", "context"))
    if q["precision"] == 1:  # attention output; output gradients of both projections and of queries, keys and values
        tokens, h = q["microbatch_tokens"], q["hidden_size"]
        widths = [q["rank_query_width"]], [h, h, q["rank_query_width"] + 2 * q["rank_key_value_width"]]
        forward += sum(tokens * w * 4 / q["achieved_hbm_bandwidth"] + q["launch_overhead"] for w in widths[0])
        backward += sum(tokens * w * 4 / q["achieved_hbm_bandwidth"] + q["launch_overhead"] for w in widths[1])
        backward += (forward - plain) if recompute == "full" else 0.0
    phases = ("forward", "input_gradient", "weight_gradient")
    head = sum(time(kernel, phase) for kernel in ("norm", "logits", "loss") for phase in phases)
    embedding = sum(time("embedding", phase) for phase in phases)
    return forward, backward, embedding, head


def exposed_by_calls(q, recompute, sequence_parallel, overlap):
    """Exposed tensor-parallel time of one layer, call after call: forward, backward."""
    call, all_reduce = q["tp_gather_time"], q["tp_all_reduce_time"]
    gemm = rows(np.sum(q["gemm_time"], axis=-5), "phase", "gemm_kernel")
    columns = {p: gemm[p, "qkv"] + gemm[p, "ffn_up"] for p in ("input_gradient", "weight_gradient")}
    if sequence_parallel:
        forward = sum([call, call] * 2)  # gather, reduce-scatter around attention and around feed-forward
        backward = 2 * call  # gathers of output gradients
        backward += max(2 * call - overlap * columns["input_gradient"], 0)
        backward += max(2 * call - overlap * columns["weight_gradient"], 0)
    else:
        forward = 2 * all_reduce
        backward = max(2 * all_reduce - overlap * columns["weight_gradient"], 0)
    if recompute == "full":
        backward += forward
    return forward, backward


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("given", DESIGNS, ids=lambda g: g["model"])
def test_step_against_kernels_calls_and_schedule(given, recompute):
    q = design(**given, recompute=recompute)
    flash, sp = given.get("flash_attention", True), given.get("sequence_parallel", True)
    forward, backward, embedding, head = layer_by_kernels(q, flash, recompute)
    exposed_forward, exposed_backward = exposed_by_calls(q, recompute, sp, q["tp_overlap"])
    assert q["layer_forward_time"] == pytest.approx(forward + exposed_forward, rel=1e-12)
    assert q["layer_backward_time"] == pytest.approx(backward + exposed_backward, rel=1e-9)

    pp, chunks, microbatches = int(q["pp"]), int(q["chunks"]), int(q["microbatches"])
    layers = [int(q["layers"]) // pp + (0 < s <= int(q["layers"]) % pp) for s in range(pp)]
    stage_forward = [n * (forward + exposed_forward) for n in layers]
    stage_backward = [n * (backward + exposed_backward) for n in layers]
    gather, all_reduce = q["tp_gather_time"], q["tp_all_reduce_time"]
    embedding += 2 * gather if sp else all_reduce  # reduce-scatter, gather of gradients
    head += 3 * gather if sp else all_reduce  # gather, gather again, reduce-scatter of gradients
    stage_forward[0] += embedding / 3
    stage_backward[0] += embedding * 2 / 3
    stage_forward[-1] += head / 3
    stage_backward[-1] += head * 2 / 3
    makespan, _ = simulate(pp, microbatches, chunks, stage_forward, stage_backward, handover=0.0)
    found = q["step_time"] - q["exposed_pp_time"] - q["exposed_dp_time"] - q["optimizer_time"]
    assert found == pytest.approx(makespan, rel=0.02)
    assert found >= makespan * (1 - 1e-9)
    if pp == 1:
        assert found == pytest.approx(makespan, rel=1e-12)


def test_data_parallel_exposure_against_its_parts():
    given = {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "tp": 2.0, "dp": 32.0, "global_batch": 64.0}
    parameters = (32 * (4096 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 14336) + 2 * 128256 * 4096) / 2 + 32 * 2 * 4096
    sharded, replicated = design(**given, zero=1.0), design(**given, zero=0.0)
    assert sharded["dp_message"] == parameters * 4
    assert sharded["shard_message"] == parameters * 2
    assert replicated["dp_all_reduce_time"] < 2 * replicated["dp_gather_time"]
    for q, reduction in ((sharded, "dp_gather_time"), (replicated, "dp_all_reduce_time")):
        hidden = 0.8 * 32 * q["layer_backward_time"]
        gather = q["shard_gather_time"]
        assert q["exposed_dp_time"] == pytest.approx(max(q[reduction] - hidden, 0) + gather)
    assert replicated["shard_gather_time"] == 0
    # gradient, master weight and moments read, all but the gradient and the 16-bit weight written; norm; clipping
    passes = [4, 4, 4, 4, 4, 4, 4, 2, 4, 4, 4]
    clearing = 4  # of the whole buffer, which no rank shares
    assert replicated["optimizer_time"] == pytest.approx(parameters * (sum(passes) + clearing) / (3.35e12 * 0.887))
    assert sharded["optimizer_time"] == pytest.approx(parameters * (sum(passes) / 32 + clearing) / (3.35e12 * 0.887))


def test_a_run_follows_from_a_step():
    q = design("llama-3.1-8b", "h100-sxm-80gb", tp=2.0, dp=4.0, global_batch=64.0, training_tokens=1e12)
    tokens = 64 * 2048
    assert q["tokens_per_second"] == pytest.approx(tokens / q["step_time"])
    assert q["training_time"] == pytest.approx(1e12 / tokens * q["step_time"])
    assert q["device_time"] == pytest.approx(8 * q["training_time"])
    flops = 3 * 2 * (32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 128256 * 4096) + 12 * 32 * 2048 * 4096
    assert q["model_flops_utilization"] == pytest.approx(flops * tokens / 8 / q["step_time"] / 989.4e12)


def test_shares_add_up_to_the_roofline():
    times = np.random.default_rng(0).uniform(0, 1, (3, 50))
    times[:, :5] = 0.5  # ties
    arithmetic, hbm, l2 = times.reshape(3, 50, 1, 1, 1, 1, 1)
    shares = roofline.roofline_shares(arithmetic, hbm, l2, 0.25)
    assert np.allclose(shares.sum(axis=-5).reshape(50), times.max(axis=0) + 0.25)
    assert np.count_nonzero(shares[:, :3]) == 50
    assert np.allclose(roofline.roofline_time(times[0], times[1], times[2]), times.max(axis=0))
