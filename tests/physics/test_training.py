"""The step: layers summed kernel by kernel, stages executed event by event, and the parts that must add up."""

import numpy as np
import pytest

from perfgrid.formulas import BREAKDOWN, PASSES
from perfgrid.formulas.axes import INNER
from perfgrid.formulas.parallelism import data_parallel, tensor_parallel

from .cases import design, rows
from .schedules import Pipeline, layers_of_chunks, stage_times

DESIGNS = [
    {"model": "megatron-22b", "microbatch": 4.0, "flash_attention": False, "sequence_parallel": False},
    {"model": "gpt3-175b", "pp": 8.0, "chunks": 3.0, "global_batch": 64.0, "flash_attention": False},
    {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "tp": 2.0, "pp": 2.0, "dp": 4.0, "global_batch": 64.0},
    {"model": "llama-3.1-405b", "device": "b200", "tp": 8.0, "pp": 18.0, "dp": 2.0, "global_batch": 72.0, "zero": 1.0},
    {"model": "llama-3.1-405b", "device": "b200", "pp": 16.0, "chunks": 8.0, "global_batch": 64.0},
    {"model": "qwen-2.5-72b", "device": "h200-sxm-141gb", "pp": 4.0, "global_batch": 16.0, "precision": "fp8"},
    {"model": "llama-2-70b", "device": "mi300x", "tp": 8.0, "pp": 4.0, "dp": 16.0, "global_batch": 512.0},
    {"model": "falcon-180b", "pp": 8.0, "global_batch": 32.0, "schedule": "gpipe", "tp_ring_overlap": 0.7},
]
NAMES = [f"{g['model']}-pp{g.get('pp', 1):g}x{g.get('chunks', 1):g}" for g in DESIGNS]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("given", DESIGNS, ids=NAMES)
def test_parts_add_up_to_the_step(given, recompute):
    q = design(**given, recompute=recompute, device_variation=0.01)
    for parts in (BREAKDOWN, PASSES):
        assert sum(q[name] for name in parts) == pytest.approx(q["step_time"], rel=1e-12)
        assert all(q[name] >= 0 for name in parts)
    waits = q["communication_time"] + q["bubble_time"] + q["straggler_time"] + q["optimizer_time"]
    waits += q["exposed_host_time"] + q["between_steps_time"]
    assert q["kernel_time"] + waits == pytest.approx(q["step_time"], rel=1e-12)
    assert (q["recompute_time"] > 0) == (recompute == "full" or (recompute == "selective" and q["unfused"] == 1))


def seconds(value, *axes):
    """A table of times with its resources added up, as a dict of labels."""
    return rows(np.sum(value, axis=INNER.position("resource"), keepdims=True), *axes)


def kernels_of_a_layer(q, flash):
    """What runs in the forward pass of one layer, in order; a parallel block shares norm and residual."""
    attention = ["norm", "qkv", *([] if q["learned_positions"] else ["rotary"])]
    attention += ["flash"] if flash else ["score", "softmax", "context"]
    attention += ["attention_output"]
    if not q["parallel_block"]:
        attention += ["residual", "norm"]
    return attention + ["ffn_up", "activation", "ffn_down", "residual"] + (["bias", "ffn_bias"] if q["biases"] else [])


def times_by_kernels(q, flash, recompute, precision):
    """(forward, backward) kernel time of one layer, of the embedding and of the head, kernel after kernel."""
    gemm = seconds(q["gemm_time"], "phase", "product")
    stream = seconds(q["stream_time"], "phase", "stream_kernel")
    core = seconds(q["core_product_time"], "phase", "attention_kernel")
    fused = seconds(q["flash_time"], "phase")

    def time(kernel, phase):
        if kernel == "flash":
            return fused[phase]
        return next(table[phase, kernel] for table in (gemm, stream, core) if (phase, kernel) in table)

    def passes(kernels):
        forward = sum(time(kernel, "forward") for kernel in kernels)
        return forward, sum(time(k, phase) for k in kernels for phase in ("input_gradient", "weight_gradient"))

    forward, backward = passes(kernels_of_a_layer(q, flash))
    if precision == "fp8":  # attention output; output gradients of both projections and of queries, keys and values
        tokens, h = q["microbatch_tokens"], q["hidden_size"]
        for width in (h, h, q["rank_query_width"] + q["rank_key_width"] + q["rank_value_width"]):
            backward += tokens * width * 4 / q["achieved_hbm_bandwidth"] + q["launch_overhead"]
        forward += tokens * q["rank_query_width"] * 4 / q["achieved_hbm_bandwidth"] + q["launch_overhead"]
    if recompute == "full":
        backward += forward
    elif recompute == "selective" and not flash:
        backward += sum(time(kernel, "forward") for kernel in ("score", "softmax", "context"))
    return {
        "layer": (forward, backward),
        "embedding": passes(["embedding"]),
        "head": passes(["norm", "logits", "loss"]),
    }


def exposed_by_calls(q, recompute, sequence_parallel):
    """(forward, backward) exposed tensor-parallel time of layer, embedding and head, call after call."""
    gemm = seconds(q["gemm_time"], "phase", "product")
    call, t, ring = q["tp_gather_time"], q["tp"], q["tp_ring_overlap"] if sequence_parallel else 0.0
    reduction = call if sequence_parallel else q["tp_all_reduce_time"]
    gather = call if sequence_parallel else 0.0
    blocks = [(("qkv",), ("attention_output",)), (("ffn_up",), ("ffn_down",))]
    if q["parallel_block"]:
        blocks = [(("qkv", "ffn_up"), ("attention_output", "ffn_down"))]

    def pieces(communication, products, phase):
        """A collective cut into t pieces, each but one beside a t-th of the products."""
        work = ring * sum(gemm[phase, p] for p in products)
        piece = communication / t
        return piece + sum(max(piece - work / t, 0.0) for _ in range(int(t) - 1))

    forward = backward = 0.0
    for columns, output in blocks:
        beside = {p: q["tp_overlap"] * sum(gemm[p, k] for k in columns) for p in ("input_gradient", "weight_gradient")}
        forward += pieces(gather, columns, "forward") + pieces(reduction, output, "forward")
        backward += pieces(gather, output, "input_gradient")
        backward += max(gather - beside["input_gradient"], 0) + max(reduction - beside["weight_gradient"], 0)
    if recompute == "full":
        backward += forward
    loss = 3 * q["vocab_all_reduce_time"]
    return {"layer": (forward, backward), "embedding": (reduction, gather), "head": (gather + loss, gather + reduction)}


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("given", DESIGNS, ids=NAMES)
def test_step_against_kernels_calls_and_schedule(given, recompute):
    q = design(**given, recompute=recompute, communication_cores=0.0, host_launch_time=0.0)
    flash, sp = given.get("flash_attention", True), given.get("sequence_parallel", True)
    kernels = times_by_kernels(q, flash, recompute, given.get("precision"))
    calls = exposed_by_calls(q, recompute, sp)
    forward, backward = ([kernels[p][i] + calls[p][i] for p in kernels] for i in (0, 1))
    for part, f, b in zip(kernels, forward, backward, strict=True):
        assert q[f"{part}_forward_time"] == pytest.approx(f, rel=1e-12), part
        assert q[f"{part}_backward_time"] == pytest.approx(b, rel=1e-9), part

    held = layers_of_chunks(int(q["layers"]), int(q["pp"]), int(q["chunks"]))
    pipeline = Pipeline(
        stage_times(held, *forward), stage_times(held, *backward), schedule=given.get("schedule", "1f1b")
    )
    found = q["microbatches"] * q["slowest_stage_time"] + q["bubble_time"]
    assert found == pytest.approx(pipeline.run(int(q["microbatches"])), rel=1e-9)


def test_a_ring_hides_all_but_one_piece():
    """T = max(product, communication) + min(product, communication)/t, as a loop over the pieces."""
    for communication, work, t in ((1.0, 5.0, 8), (5.0, 1.0, 8), (2.0, 2.0, 4), (3.0, 0.0, 8), (0.0, 1.0, 2)):
        sent = done = 0.0  # pieces are gathered one after the other; each is multiplied when it has come
        for _ in range(t):
            sent += communication / t
            done = max(done, sent) + work / t
        found = work + tensor_parallel.exposed_in_parts(communication, t, work)
        assert found == pytest.approx(done)
    assert tensor_parallel.exposed_in_parts(3.0, 8.0, 0.0) == 3.0


@pytest.mark.parametrize(("pp", "chunks"), [(1, 1), (4, 1), (4, 2), (8, 4)])
@pytest.mark.parametrize("speed", [0.1, 0.8, 1.5, 30.0])
def test_buckets_against_a_queue(pp, chunks, speed):
    """Buckets become ready in equal steps of the last pass through each chunk and are sent one after the other."""
    buckets, stage_pass = 8 * chunks, 1.0
    communication = stage_pass * speed
    clock = sent = 0.0
    for chunk in range(chunks):
        if chunk:
            clock += (pp - 1) * stage_pass / chunks  # the other microbatches' passes through this chunk come first
        for _ in range(buckets // chunks):
            clock += stage_pass / buckets
            sent = max(sent, clock) + communication / buckets
    hidden = data_parallel.hidden_in_buckets(buckets, chunks, pp, stage_pass)
    found = data_parallel.exposed_in_buckets(communication, buckets, chunks, hidden)
    assert found == pytest.approx(sent - clock)


def test_data_parallel_exposure_against_its_parts():
    given = {
        "model": "llama-3.1-8b",
        "device": "h100-sxm-80gb",
        "tp": 2.0,
        "dp": 32.0,
        "communication_cores": 0.0,
        "host_launch_time": 0.0,
        "global_batch": 64.0,
    }
    parameters = (32 * (4096 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 14336) + 2 * 128256 * 4096) / 2 + 32 * 2 * 4096
    sharded, replicated = design(**given, zero=1.0), design(**given, zero=0.0)
    buckets = parameters * 4 / 160e6  # 40 million gradients, more than a million per rank
    assert sharded["gradient_message"] == parameters * 4
    assert sharded["replica_message"] == pytest.approx(160e6)
    assert sharded["shard_message"] == pytest.approx(80e6)
    for q, call in ((sharded, "replica_gather_time"), (replicated, "replica_all_reduce_time")):
        time = q[call] * buckets
        hidden = 0.8 * 32 * q["layer_backward_time"]
        gather = q["shard_gather_time"] * buckets
        expected = max(time / buckets, time - hidden * (1 - 1 / buckets)) + gather
        assert q["exposed_dp_time"] == pytest.approx(expected)
    assert replicated["shard_gather_time"] == 0
    assert sharded["dp_bytes"] == pytest.approx(31 / 32 * parameters * (4 + 2))
    assert replicated["dp_bytes"] == pytest.approx(2 * 31 / 32 * parameters * 4)
    # gradient, master weight and moments read, all but the gradient and the 16-bit weight written; norm; clipping
    passes = [4, 4, 4, 4, 4, 4, 4, 2, 4, 4, 4]
    clearing = 4  # of the whole buffer, which no rank shares
    assert replicated["optimizer_time"] == pytest.approx(parameters * (sum(passes) + clearing) / (3.35e12 * 0.887))
    assert sharded["optimizer_time"] == pytest.approx(parameters * (sum(passes) / 32 + clearing) / (3.35e12 * 0.887))


def test_gradients_may_travel_in_another_format():
    given = {"model": "llama-3.1-8b", "tp": 2.0, "dp": 32.0, "communication_cores": 0.0, "global_batch": 64.0}
    single, half = design(**given), design(**given, gradient_communication_size=2.0)
    assert half["dp_bytes"] == single["dp_bytes"] / 2
    assert half["state_memory"] == single["state_memory"]  # they are accumulated in single precision all the same


def test_weights_return_during_the_forward_pass():
    given = {
        "model": "llama-3.1-8b",
        "tp": 2.0,
        "dp": 32.0,
        "communication_cores": 0.0,
        "global_batch": 64.0,
        "zero": 1.0,
    }
    waiting, hidden = design(**given), design(**given, parameter_overlap=1.0)
    assert waiting["exposed_gathering_time"] == waiting["dp_gathering_time"]
    beside = 32 * hidden["layer_forward_time"] * (1 - 1 / hidden["gradient_buckets"])  # all but the first bucket
    assert hidden["exposed_gathering_time"] == pytest.approx(hidden["dp_gathering_time"] - beside)
    assert hidden["step_time"] < waiting["step_time"]
    longer = design(**{**given, "sequence_length": 65536.0}, parameter_overlap=1.0)
    assert longer["exposed_gathering_time"] == pytest.approx(longer["shard_gather_time"])


def test_a_shared_table_is_reduced_between_its_stages():
    given = {"model": "megatron-22b", "pp": 4.0, "dp": 2.0, "global_batch": 16.0}
    q = design(**given)
    assert q["tied_message"] == 51200 / 8 * 6144 * 4
    bandwidth = rows(q["tier_bandwidth"], "tier")["scale_out"]
    assert q["exposed_tied_time"] >= q["tied_message"] / bandwidth  # a ring of two: each sends half of it twice
    assert q["exposed_tied_time"] == pytest.approx(q["tied_message"] / bandwidth, rel=0.2)
    assert design(**{**given, "pp": 1.0})["exposed_tied_time"] == 0
    assert design("llama-3.1-70b", pp=4.0)["exposed_tied_time"] == 0


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_wire_bytes_against_counting_calls(sequence_parallel):
    q = design("gpt3-175b", pp=8.0, dp=2.0, global_batch=32.0, sequence_parallel=sequence_parallel, recompute="full")
    message, share, microbatches, layers = 2048 * 12288 * 2, 7 / 8, 16, 12
    one, per_call = (1, 1) if sequence_parallel else (0, 2)
    forward, backward = 2 * (one + 1), 2 * (2 * one + 1)  # attention and feed-forward: gathers, reductions
    calls = layers * (2 * forward + backward)
    head = 2 * one + 1 + 3
    sent = layers * 2 * (message * share) * ((2 * one + 2 * per_call) + (2 * one + per_call))
    sent += message * share * (2 * one + per_call) + 3 * 2 * 2048 * 4 * share
    assert q["slowest_stage_heads"] == 1
    assert q["tp_calls"] == microbatches * (calls + head)
    assert q["tp_bytes"] == pytest.approx(microbatches * sent)
    assert q["pp_calls"] == 2 * microbatches
    assert q["pp_bytes"] == 2 * microbatches * message / 8


def test_expected_largest_against_drawing():
    generator = np.random.default_rng(0)
    for n in (1, 2, 3, 8, 64, 1024):
        drawn = generator.standard_normal((40_000 if n < 100 else 4_000, n)).max(axis=1).mean()
        assert data_parallel.expected_largest(float(n)) == pytest.approx(drawn, rel=0.05, abs=0.01)
    assert data_parallel.expected_largest(1.0) == 0.0


def test_stragglers_delay_all():
    given = {"model": "llama-3.1-8b", "tp": 2.0, "dp": 32.0, "communication_cores": 0.0, "global_batch": 64.0}
    none, some = design(**given, device_variation=0.0), design(**given, device_variation=0.01)
    work = none["microbatches"] * none["slowest_stage_time"]
    assert none["straggler_time"] == 0
    assert some["straggler_time"] == pytest.approx(0.01 * 2.36 * work, rel=0.03)  # of 64 devices: 2.36 deviations
    assert some["step_time"] - none["step_time"] == pytest.approx(some["straggler_time"])


def test_parallel_blocks_communicate_half_as_often():
    q = design("falcon-180b", pp=4.0, global_batch=16.0)
    apart = design("falcon-180b", pp=4.0, global_batch=16.0, parallel_block=False)
    assert q["layer_tp_bytes"] == apart["layer_tp_bytes"] / 2
    assert q["layer_forward_exposed_tp_time"] == pytest.approx(apart["layer_forward_exposed_tp_time"] / 2)


def test_a_run_follows_from_a_step():
    q = design("llama-3.1-8b", "h100-sxm-80gb", tp=2.0, dp=4.0, global_batch=64.0, training_tokens=1e12)
    tokens = 64 * 2048
    assert q["tokens_per_second"] == pytest.approx(tokens / q["step_time"])
    assert q["training_time"] == pytest.approx(1e12 / tokens * q["step_time"])
    assert q["device_time"] == pytest.approx(8 * q["training_time"])
    flops = 3 * 2 * (32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 128256 * 4096) + 12 * 32 * 2048 * 4096
    assert q["model_flops_utilization"] == pytest.approx(flops * tokens / 8 / q["step_time"] / 989.4e12)


OVERLAPS = ("tp_overlap", "tp_ring_overlap", "dp_overlap", "parameter_overlap")


@pytest.mark.parametrize("name", OVERLAPS)
@pytest.mark.parametrize("given", DESIGNS, ids=NAMES)
def test_more_overlap_never_slows(given, name):
    times = [design(**{**given, "zero": 1.0, name: value})["step_time"] for value in (0.0, 0.3, 0.7, 1.0)]
    assert np.diff(times).max() <= 1e-12 * times[0]  # rounding


@pytest.mark.parametrize("given", DESIGNS, ids=NAMES)
def test_time_between_steps_is_the_same_for_every_step(given):
    """Once per step, whatever the microbatches, stages and stragglers."""
    none, some = (design(**given, step_gap=gap, device_variation=0.01) for gap in (0.0, 0.25))
    assert some["step_time"] - none["step_time"] == pytest.approx(0.25)
    assert some["straggler_time"] == none["straggler_time"]


def test_one_device_communicates_nothing():
    q = design("llama-3.1-8b", tp=1.0, device_variation=0.05)
    for name in (
        "exposed_tp_time",
        "exposed_pp_time",
        "exposed_dp_time",
        "exposed_tied_time",
        "straggler_time",
        "bubble_time",
        "tp_bytes",
        "dp_bytes",
        "pp_bytes",
        "tp_calls",
        "dp_calls",
        "pp_calls",
    ):
        assert q[name] == 0, name
    assert q["step_time"] == pytest.approx(q["kernel_time"] + q["optimizer_time"] + q["step_gap"])


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("changes", [{"tp": 8.0, "dp": 4.0}, {"pp": 4.0, "dp": 8.0}, {"cp": 2.0, "dp": 16.0}])
def test_no_software_is_a_bound(model, changes):
    """No stack is faster than `ideal`, which waits neither for a host nor between steps."""
    given = {"devices": 32.0, "tp": 1.0, "global_batch": 64.0, "sequence_length": 4096.0} | changes
    stacks = ("megatron-core", "nemo", "nemo-graphs", "megatron-bridge", "torchtitan", "nanotron")
    bound, *others = (design(model, "h100-sxm-80gb", software=s, **given) for s in ("ideal", *stacks))
    assert bound["between_steps_time"] == bound["exposed_host_time"] == bound["straggler_time"] == 0
    for other in others:
        assert bound["step_time"] < other["step_time"]
