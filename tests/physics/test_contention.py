"""Traffic beside a pass that uses the same tier, against a queue served slice by slice; and where it counts."""

import numpy as np
import pytest

from perfgrid.formulas.axes import INNER
from perfgrid.formulas.collectives.contention import LEAST_LEFT, pace, scale_out_left, scale_up_left, tier_load

from .cases import design, rows


@pytest.mark.parametrize("busy", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("needed", [0.1, 0.6, 1.0])
def test_against_a_queue(needed, busy):
    """Every period the pass takes the tier first; the transfer hands it work at its own pace and waits for the rest."""
    periods, backlog, sent, time = 1000, 0.0, 0.0, 0
    while sent < periods * needed * (1 - 1e-9):
        time += 1
        backlog += needed if time <= periods else 0.0
        served = min(1 - busy, backlog)
        backlog, sent = backlog - served, sent + served
    assert 1 / pace((1 - busy) / needed) == pytest.approx(time / periods, abs=2e-3)


def test_nobody_starves():
    busy = INNER.vector("tier", [[1.0, 2.0], [4.0, 1.8]])
    assert np.ravel(scale_up_left(busy, 2.0)) == pytest.approx([0.5, LEAST_LEFT])
    assert np.ravel(scale_out_left(busy, 2.0)) == pytest.approx([LEAST_LEFT, 0.1])


def occupied(q, name="tier_busy_time"):
    """Part of a layer's time for which its collectives, or those of a group, keep each tier busy."""
    return rows(q[name] / q["layer_time"], "tier")


@pytest.mark.parametrize(("tp", "dp", "device"), [(4.0, 64.0, "h100-sxm-80gb"), (8.0, 64.0, "h100-sxm-80gb")])
def test_groups_on_different_tiers_do_not_meet(tp, dp, device):
    """Tensor-parallel ranks inside a node, gradients through the network: each has its tier."""
    q = design("llama-3.1-70b", device, software="megatron-core", tp=tp, dp=dp, zero=1.0, global_batch=512.0)
    assert occupied(q)["scale_up"] > 0.1
    assert occupied(q)["scale_out"] == 0
    assert q["reduction_pace"] == q["gathering_pace"] == 1


def test_groups_on_one_tier_do():
    plan = {"tp": 16.0, "dp": 32.0, "zero": 1.0, "global_batch": 512.0, "host_launch_time": 0.0}
    across = design("llama-3.1-70b", "h100-sxm-80gb", software="megatron-core", **plan)
    busy, speed = occupied(across)["scale_out"], rows(across["reduction_tier_speed"], "tier")["scale_out"]
    assert 1 / across["reduction_pace"] == pytest.approx(1 / speed / (1 - busy))
    assert across["reduction_pace"] < 0.9
    passes = across["layer_tp_reductions"] + across["layer_tp_gathers"]
    received = passes * across["tp_message"] * (2 - 1) / 2 / 8  # from the other node, over one adapter
    assert busy == pytest.approx(received / (50e9 * 0.94) / across["layer_time"])


@pytest.mark.parametrize("method", ["ring", "all_gather", "ulysses", "hybrid"])
def test_context_parallel_ranks_use_their_tiers_hidden_or_not(method):
    """16 ranks in two nodes; of the bytes of a layer what the busiest rank of a method sends inside and out, by hand.

    In a ring the last rank of a node hands on everything to the next node; gathered keys arrive from the other node
    once and are spread inside; of an all-to-all 7 and 8 of 16 parts stay and leave; of a hybrid only the ring leaves.
    """
    q = design(
        "llama-3.1-70b",
        "h100-sxm-80gb",
        software="megatron-core",
        tp=1.0,
        cp=16.0,
        dp=8.0,
        zero=1.0,
        ulysses_ranks=8.0,
        cp_method=method,
        sequence_length=131072.0,
        global_batch=64.0,
        heads=64.0,
        kv_heads=16.0,
        recompute="full",
    )
    message, exchanged = q["cp_message"], q["exchanged_activations"]
    inside, outside = {
        "ring": (4 * message * 15 / 16, 4 * message * 15 / 16),
        "all_gather": (4 * message * 7 / 8, 4 * message * 1 / 2 / 8),
        "ulysses": (3 * exchanged * 7 / 16, 3 * exchanged * 8 / 16),
        "hybrid": (3 * exchanged * 7 / 8, 4 * message * 1 / 2),
    }[method]
    bandwidth = rows(q["tier_bandwidth"], "tier")
    found = occupied(q, "cp_tier_time")
    assert found["scale_up"] == pytest.approx(inside / bandwidth["scale_up"] / q["layer_time"], rel=1e-9)
    assert found["scale_out"] == pytest.approx(outside / bandwidth["scale_out"] / q["layer_time"], rel=1e-9)
    assert outside > 0 < inside
    if method != "all_gather":
        assert found["scale_up"] * bandwidth["scale_up"] + found["scale_out"] * bandwidth["scale_out"] >= (
            q["layer_cp_bytes"] / q["layer_time"] * (1 - 1e-9)
        )
    assert rows(q["reduction_tier_speed"], "tier")["scale_out"] * (1 - found["scale_out"]) >= q["reduction_pace"]


def test_a_hidden_ring_slows_gradients():
    q = design(
        "llama-3.1-8b",
        "h100-sxm-80gb",
        software="megatron-core",
        tp=1.0,
        cp=16.0,
        dp=8.0,
        zero=1.0,
        cp_method="ring",
        cp_overlap=1.0,
        communication_cores=0.0,
        sequence_length=131072.0,
        global_batch=64.0,
    )
    assert q["exposed_cp_time"] == 0
    busy, speed = occupied(q, "cp_tier_time")["scale_out"], rows(q["reduction_tier_speed"], "tier")["scale_out"]
    assert 1 / q["reduction_pace"] == pytest.approx(1 / speed / (1 - busy))
    assert q["reduction_pace"] < 0.9


@pytest.mark.parametrize("zero", [0.0, 1.0])
def test_buckets_of_experts_need_their_tier_too(zero):
    """A copy of all experts fills a node, so their gradients leave it whole; dense ones are added up inside first."""
    q = design(
        "mixtral-8x7b", "h100-sxm-80gb", software="megatron-core", tp=1.0, dp=32.0, ep=8.0, zero=zero, global_batch=64.0
    )
    load = q["expert_replica_message"] * 3 / 4 / rows(q["tier_bandwidth"], "tier")["scale_out"] * (2 - zero)
    need = 1 / rows(q["reduction_tier_speed"], "tier")["scale_out"]
    own = load / q["expert_bucket_reduction_time"]
    scattered, added_up = (
        rows(tier_load(q[f"{x}_tier_ranks"], q[f"{x}_tier_bandwidth"]), "tier")["scale_out"]
        for x in ("shard", "shard_replica")
    )
    dense = q["scatter_message"] * scattered + 2 * q["shard_replica_message"] * added_up
    assert dense / (q["scatter_gather_time"] + q["shard_replica_all_reduce_time"]) < own < 1
    assert need == pytest.approx(own, rel=1e-9)
    gathered = 1 / rows(q["gathering_tier_speed"], "tier")["scale_out"]
    assert gathered * q["expert_shard_gather_time"] >= load * zero / 2 * (1 - 1e-9)  # weights of 16, gradients of 32


@pytest.mark.parametrize(("model", "narrower"), [("deepseek-v3", True), ("llama-3.1-8b", False)])
def test_tensor_parallel_occupancy_is_that_of_the_bytes_sent(model, narrower):
    q = design(model, "h100-sxm-80gb", software="megatron-core", tp=8.0, dp=8.0, global_batch=64.0)
    assert (q["latent_saved_bytes"] > 0) == narrower
    inside = rows(q["tier_bandwidth"], "tier")["scale_up"]
    busy = np.asarray(q["tp_tier_time"] / q["layer_time"])
    sent = np.ravel(q["layer_tp_bytes"]) / inside / np.ravel(q["layer_time"])
    assert np.ravel(INNER.at(busy, tier="scale_up")) == pytest.approx(sent, rel=1e-9)
    assert np.all(INNER.at(busy, tier="scale_out") == 0)


def test_ranks_that_share_experts_keep_their_tier_busy():
    q = design("mixtral-8x7b", "h100-sxm-80gb", tp=2.0, dp=8.0, ep=4.0, etp=2.0, global_batch=64.0, recompute="full")
    exchanged = 3 * (q["ep_dispatch_tier_bytes"] + q["ep_combine_tier_bytes"]) * q["ep_exchange_inverse_bandwidth"]
    busy = rows((q["ep_tier_time"] - exchanged) / q["layer_time"], "tier")
    sent = 2 * 3 * q["etp_message"] / 2
    assert q["layer_etp_bytes"] == pytest.approx(sent)
    one_of_all = rows(q["etp_tier_bandwidth"], "tier")["scale_up"]
    assert busy["scale_up"] == pytest.approx(sent / one_of_all / q["layer_time"], rel=1e-9)
    parts = sum(occupied(q, f"{group}_tier_time")["scale_up"] for group in ("tp", "cp", "ep"))
    assert occupied(q)["scale_up"] == pytest.approx(parts, rel=1e-12)


@pytest.mark.parametrize("zero", [0.0, 1.0])
@pytest.mark.parametrize(("tp", "dp"), [(1.0, 8.0), (2.0, 16.0), (8.0, 64.0), (16.0, 4.0)])
def test_no_tier_is_needed_for_longer_than_the_transfer_takes(tp, dp, zero):
    q = design("llama-3.1-70b", "h100-sxm-80gb", tp=tp, dp=dp, zero=zero, global_batch=512.0)
    assert min(rows(q["reduction_tier_speed"], "tier").values()) >= 1
    assert max(occupied(q, "tp_tier_time").values()) < 1 if tp > 1 else q["tp_message"] > 0
