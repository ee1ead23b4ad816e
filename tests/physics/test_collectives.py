"""Collectives and the placement of groups against step-by-step simulations of who holds what."""

import math

import numpy as np
import pytest

from perfgrid.formulas import collectives, parallelism

from .cases import design, evaluate, point, rows


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
    found = collectives.sliced_pipeline_time(steps * overhead, transfer, steps * overhead, passes=1)
    assert found == pytest.approx(best, rel=0.02)
    again = collectives.sliced_pipeline_time(steps * overhead, transfer, steps * overhead, passes=2)
    assert again == pytest.approx(best + steps * overhead + transfer, rel=0.02)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_all_reduce_against_its_steps(n):
    """2·(n - 1) steps: parts are added up on their way round, then the sums go round; every rank ends with all sums."""
    held = [[{(rank, part)} for part in range(n)] for rank in range(n)]  # [rank][part]: contributions added so far
    message, latency, bandwidth, time = 1e8, 3e-6, 2e11, 0.0
    for step in range(2 * (n - 1)):
        sent = [(rank, (rank - step) % n, held[rank][(rank - step) % n]) for rank in range(n)]
        for rank, part, content in sent:
            to = (rank + 1) % n
            held[to][part] = held[to][part] | content if step < n - 1 else content
        time += latency + message / n / bandwidth
    assert all(held[rank][part] == {(r, part) for r in range(n)} for rank in range(n) for part in range(n)) or n == 1
    found = collectives.ring_time(message, n, latency, 0.0, bandwidth, passes=2)
    assert found == pytest.approx(time, rel=1e-12)


# Bytes and microseconds that nccl-tests printed on 8 A100 of one NVSwitch domain (out of place), as recorded by
# microsoft/superbenchmark in tests/benchmarks/micro_benchmarks/test_cuda_nccl_bw_performance.py
MEASURED_A100 = {
    ("gather", 16777216): 167.7,
    ("gather", 67108864): 379.7,
    ("gather", 134217728): 698.6,
    ("gather", 268435456): 1192.2,
    ("gather", 1073741824): 4413.4,
    ("all_reduce", 16777216): 226.0,
    ("all_reduce", 67108864): 584.5,
    ("all_reduce", 134217728): 1162.2,
    ("all_reduce", 268435456): 2112.2,
    ("all_reduce", 536870912): 4200.3,
    ("all_reduce", 1073741824): 8159.5,
}


def test_measured_collectives_of_8_a100(capsys):
    """Bandwidth and latencies are the catalog's; none was chosen by these rows. Worst: +14 % (all-reduce of 64 MiB).

    That an all-reduce pays its slices' overhead once and not twice was decided with these rows in view: for that part
    of the structure the table is an in-sample check.
    """
    lines = ["", "nccl-tests, 8 A100        bytes   measured  predicted   error"]
    errors = []
    for (call, size), measured in MEASURED_A100.items():
        tokens = size / (12288 * 2)
        q = design("gpt3-175b", "a100-sxm-80gb", sequence_length=tokens)
        assert q["tp_message"] == pytest.approx(size)
        found = q[f"tp_{call}_time"] * 1e6
        errors.append(found / measured - 1)
        lines.append(f"{call:16s} {size:14d} {measured:7.0f} us {found:7.0f} us {errors[-1]:+7.1%}")
    with capsys.disabled():
        print("\n".join(lines))
    assert all(abs(e) < 0.16 for e in errors)
    assert sum(map(abs, errors)) / len(errors) < 0.07


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
    for group, size in (("tp", tp), ("dp", dp), ("shard", dp)):
        message = q[f"{group}_message"]
        ranks = rows(q[f"{group}_tier_ranks"], "tier")
        inner = ranks["scale_up"]
        links = (
            (inner - 1) * 64e9 if device == "mi300x" else given["scale_up_bandwidth"]
        )  # a link per peer, or a switch
        egress = inner * given["scale_out_bandwidth"]
        outside = (ranks["scale_out"] - 1) / ranks["scale_out"] * message / egress
        inside = (inner - 1) / inner * message / links if inner > 1 else 0.0
        mixed = (size - 1) / size * message / (links + given["scale_out_bandwidth"])
        for call, passes in (("gather", 1), ("all_reduce", 2)):
            if group != "shard" or call == "gather":
                assert q[f"{group}_{call}_time"] >= passes * max(outside, inside, mixed), (group, call)


@pytest.mark.parametrize("device", ["mi300x", "mi325x"])
def test_a_full_mesh_has_one_link_per_peer(device):
    """Links of the groups counted one by one; the hand-over to one peer has one link."""
    link, efficiency = 64e9, 0.707
    for tp in (2, 4, 8):
        members = range(tp)
        used = {(a, b) for a in members for b in members if a != b}
        each = sum(1 for a, _ in used if a == 0) * link * efficiency
        q = design("llama-3.1-8b", device, tp=float(tp), direct_collectives=True)
        assert rows(q["tp_tier_bandwidth"], "tier")["scale_up"] == pytest.approx(each)
        assert q["tp_gather_time"] == pytest.approx(3.436e-6 + (tp - 1) / tp * q["tp_message"] / each, rel=1e-9)
    q = design("llama-3.1-8b", device, tp=2.0, dp=2.0, pp=2.0, global_batch=64.0)
    assert rows(q["dp_tier_bandwidth"], "tier")["scale_up"] == pytest.approx(link * efficiency)
    assert q["pp_transfer_time"] == pytest.approx(3.436e-6 + q["pp_message"] / (link * efficiency), rel=1e-9)
    spread = design("llama-3.1-8b", device, tp=8.0, dp=4.0)  # data-parallel neighbours lie in different domains
    assert rows(spread["dp_tier_bandwidth"], "tier")["scale_up"] == pytest.approx(7 * link * efficiency)
    switched = design("llama-3.1-8b", "h100-sxm-80gb", tp=2.0)
    assert rows(switched["tp_tier_bandwidth"], "tier")["scale_up"] == pytest.approx(450e9 * 0.824)


def test_direct_exchange_only_where_fabric_and_library_offer_it():
    ring = design(tp=8.0)
    direct = design(tp=8.0, direct_collectives=True)
    assert direct["tp_gather_time"] < ring["tp_gather_time"]
    assert direct["tp_all_reduce_time"] == 2 * direct["tp_gather_time"] < ring["tp_all_reduce_time"]
    assert rows(ring["tp_direct_time"], "tier") == {"scale_up": ring["unavailable"], "scale_out": 0}
    assert ring["tp_gather_time"] < 1


@pytest.mark.parametrize("tp", [1.0, 8.0, 16.0])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_a_fixed_algorithm_that_is_not_offered_is_illegal(tp, sequence_parallel):
    """Times of algorithms that are not offered stay finite in every product, and the point is told to be impossible."""
    given = point(tp=tp, dp=64.0, pp=8.0, zero=0.0, sequence_parallel=sequence_parallel)
    best = evaluate(given)
    assert best["tp_algorithms_offered"]
    assert best["dp_algorithms_offered"]
    name = "tp_tier_time" if sequence_parallel else "tp_tier_all_reduce_time"
    fixed = evaluate(given, choices=((name, "direct"), ("dp_all_reduce_time", "flat_ring")))
    # 16 ranks can still go round one ring through both domains
    assert fixed["tp_algorithms_offered"] == (tp != 8) == (fixed["tp_reduction_time"] < 1)
    assert fixed["dp_algorithms_offered"]  # 64 ranks at a stride of tp lie in several domains
    assert all(np.all(np.abs(np.asarray(v, dtype=float)) < 1e30) for v in fixed.values())


def test_one_ring_inside_one_domain_is_no_alternative():
    inside, across = design(tp=8.0), design(tp=16.0)
    assert inside["tp_flat_ring_time"] == inside["tp_flat_ring_all_reduce_time"] == inside["unavailable"]
    assert across["tp_flat_ring_time"] < 1
    assert design("llama-3.1-8b", tp=1.0)["tp_flat_ring_time"] == 0


def test_groups_of_one_cost_nothing():
    q = design("llama-3.1-8b", tp=1.0, zero=1.0)
    for name in ("tp_gather_time", "dp_gather_time", "shard_gather_time", "exposed_tp_time", "exposed_dp_time"):
        assert q[name] == 0, name
    assert q["tp_all_reduce_time"] == q["dp_all_reduce_time"] == 0
    assert q["exposed_pp_time"] == 0
    assert q["bubble_time"] == 0
