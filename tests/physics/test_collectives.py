"""Collectives and the placement of groups against step-by-step simulations of who holds what."""

import math

import numpy as np
import pytest

from perfgrid.formulas import collectives, parallelism

from .cases import design, point, rows


def simulate_ring(order, latency, bandwidth, message):
    """An all-gather round a ring of ranks, step by step: every rank passes on what it received last.

    ``latency`` and ``bandwidth`` are functions of the sending and the receiving rank. Returns the time.
    """
    n = len(order)
    held = {rank: {rank} for rank in order}
    passing = {rank: rank for rank in order}
    time = 0.0
    for _ in range(n - 1):
        arrived, slowest = {}, 0.0
        for i, rank in enumerate(order):
            to = order[(i + 1) % n]
            arrived[to] = passing[rank]
            slowest = max(slowest, message / n / bandwidth(rank, to))
        delay = max(latency(rank, order[(i + 1) % n]) for i, rank in enumerate(order))
        time += delay + slowest
        passing = arrived
        for rank, part in arrived.items():
            held[rank].add(part)
    assert all(parts == set(order) for parts in held.values())
    return time


@pytest.mark.parametrize("n", [1, 2, 3, 8, 64])
def test_ring_against_its_steps(n):
    simulated = simulate_ring(list(range(n)), lambda a, b: 3e-6, lambda a, b: 2e11, 1e8)
    assert collectives.ring_time(1e8, n, 3e-6, 0.0, 2e11) == pytest.approx(simulated, rel=1e-12)


@pytest.mark.parametrize(("transfer", "steps", "overhead"), [(2e-4, 7, 2.5e-6), (8e-2, 63, 12e-6), (5e-6, 3, 2.5e-6)])
def test_slicing_against_the_best_integer_number_of_slices(transfer, steps, overhead):
    def with_slices(c):
        return transfer + steps * overhead + c * overhead + steps * transfer / c

    best = min(with_slices(c) for c in range(1, 2000))
    assert collectives.sliced_pipeline_time(steps * overhead, transfer, steps * overhead) == pytest.approx(
        best, rel=0.02
    )


@pytest.mark.parametrize(("inside", "domains"), [(4, 2), (8, 4), (1, 6), (8, 1)])
def test_flat_ring_against_its_links(inside, domains):
    """Rings side by side: ring j leaves each domain at member j, so each outer link carries one ring's traffic."""
    message, inner, outer = 1e9, 3e11, 2.5e10
    n = inside * domains
    carried: dict[tuple, float] = {}
    for leave in range(inside):  # one ring per member, each with its share of the message
        order = [(d, (leave + 1 + i) % inside) for d in range(domains) for i in range(inside)]
        for i, rank in enumerate(order):
            to = order[(i + 1) % n]
            link = ("inner", rank) if rank[0] == to[0] else ("outer", rank)
            carried[link] = carried.get(link, 0.0) + (n - 1) / n * message / inside
    slowest = max(volume / (inner if link[0] == "inner" else outer) for link, volume in carried.items())
    found = collectives.flat_ring_time(message, (inside, domains), (0.0, 0.0), (0.0, 0.0), (inner, outer))
    assert slowest * (1 - 1e-12) <= found
    if domains > 1 and inside * outer < inner:  # the outer links limit
        assert found == pytest.approx(slowest)
    steps_inside = sum(1 for i in range(n - 1) if (i + 1) % inside)
    latency = collectives.flat_ring_time(0.0, (inside, domains), (3e-6, 14e-6), (0.0, 0.0), (inner, outer))
    assert latency == pytest.approx(steps_inside * 3e-6 + (n - 1 - steps_inside) * 14e-6)


def test_hierarchical_gather_against_the_volumes_of_each_rank():
    """Outer gather among ranks of equal place, then inner gather of what the domain's members hold."""
    q = design("llama-3.1-70b", tp=16.0, microbatch=4.0)
    ranks = rows(q["tp_tier_ranks"], "tier")
    assert ranks == {"scale_up": 8, "scale_out": 2}
    message = q["tp_message"]
    part = message / 16
    received_outside = (2 - 1) * part
    received_inside = (8 - 1) * (2 * part)
    shares = rows(q["tp_tier_message"], "tier")
    assert shares["scale_out"] * (2 - 1) / 2 == received_outside
    assert shares["scale_up"] * (8 - 1) / 8 == received_inside
    assert received_outside + received_inside == pytest.approx(message * 15 / 16)


@pytest.mark.parametrize("size", [1, 2, 4, 6, 8, 16, 24, 64, 512])
@pytest.mark.parametrize("stride", [1, 2, 8, 16])
@pytest.mark.parametrize("domain", [8, 16, 72, 256])
def test_placement_against_counting_ranks(size, stride, domain):
    inside = float(parallelism.ranks_in_domain(float(size), float(stride), float(domain)))
    most = max(1, min(size, domain // stride))
    assert 1 <= inside <= most
    members = [rank for rank in range(0, domain, stride)][:size] or [0]
    assert most == max(1, len([m for m in members if m + stride <= domain or stride > domain]))
    if size % most == 0:
        assert inside == most
    elif math.log2(size).is_integer():
        assert inside == 2 ** math.floor(math.log2(most))


def test_uneven_domains_are_flagged():
    assert design(tp=8.0, dp=4.0)["tp_fills_tiers"]
    assert rows(design(tp=20.0)["tp_tier_ranks"], "tier") == {"scale_up": 5, "scale_out": 4}
    assert not design("gpt3-175b", tp=9.0)["tp_fills_tiers"]
    assert design("llama-3.1-70b", "gb200", tp=64.0)["tp_fills_tiers"]


@pytest.mark.parametrize("device", ["a100-sxm-80gb", "h100-sxm-80gb", "gb200", "mi300x"])
@pytest.mark.parametrize(("tp", "dp"), [(1.0, 8.0), (2.0, 16.0), (8.0, 64.0), (16.0, 3.0)])
def test_no_collective_beats_its_bandwidth_bound(device, tp, dp):
    given = point("llama-3.1-70b", device, tp=tp, dp=dp, zero=1.0, direct_collectives=True)
    q = design("llama-3.1-70b", device, tp=tp, dp=dp, zero=1.0, direct_collectives=True)
    fastest = max(given["scale_up_bandwidth"], given["scale_out_bandwidth"])
    for group, size in (("tp", tp), ("dp", dp), ("shard", dp)):
        message = q[f"{group}_message"]
        assert q[f"{group}_gather_time"] >= (size - 1) / size * message / fastest
        ranks = rows(q[f"{group}_tier_ranks"], "tier")
        egress = ranks["scale_up"] * given["scale_out_bandwidth"]
        outside = (ranks["scale_out"] - 1) / ranks["scale_out"] * message
        assert q[f"{group}_gather_time"] >= outside / egress


def test_direct_exchange_only_where_fabric_and_library_offer_it():
    ring = design(tp=8.0)
    direct = design(tp=8.0, direct_collectives=True)
    assert direct["tp_gather_time"] < ring["tp_gather_time"]
    assert np.all(ring["tp_direct_time"] == 1e30)
    assert ring["tp_gather_time"] < 1


def test_groups_of_one_cost_nothing():
    q = design("llama-3.1-8b", tp=1.0, zero=1.0)
    for name in ("tp_gather_time", "dp_gather_time", "shard_gather_time", "exposed_tp_time", "exposed_dp_time"):
        assert q[name] == 0, name
    assert q["exposed_pp_time"] == 0
    assert q["bubble_time"] == 0
