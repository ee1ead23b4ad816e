"""Collectives of NCCL and the placement of groups against walks over rings, trees and links."""

import math

import numpy as np
import pytest

from perfgrid.formulas.collectives import nccl
from perfgrid.formulas.collectives.ideal import NAMES
from perfgrid.formulas.collectives.placement import ranks_in_domain
from perfgrid.formulas.collectives.schedules.schedule import UNAVAILABLE

from .cases import design, evaluate, point, rows

TREE = float(NAMES.index("double_binary_tree"))


def ring_orders(inside, domains):
    """Rings side by side: ring j leaves every domain at member j and takes the others first."""
    return [[(d, (j + 1 + i) % inside) for d in range(domains) for i in range(inside)] for j in range(inside)]


@pytest.mark.parametrize(("inside", "domains"), [(4, 2), (8, 4), (1, 6), (8, 1), (2, 2)])
def test_rings_against_their_links(inside, domains):
    """Latency of a pass: its slowest way round but for one step; rate: the busiest link of all rings together."""
    message, inner, outer, n = 1e9, 3e11, 2.5e10, inside * domains
    carried: dict[tuple, float] = {}
    for order in ring_orders(inside, domains):
        hops = list(zip(order, [*order[1:], order[0]], strict=True))
        between = [a[0] != b[0] for a, b in hops]
        latency = sum(14e-6 if far else 3e-6 for far in between) - (14e-6 if domains > 1 else 3e-6)
        assert nccl.ring_pass(n, domains, 3e-6, 14e-6) == pytest.approx(latency)
        for (a, _), far in zip(hops, between, strict=True):
            link = ("outer", a) if far else ("inner", a)
            carried[link] = carried.get(link, 0.0) + (n - 1) / n * message / inside
    slowest = max(volume / (inner if link[0] == "inner" else outer) for link, volume in carried.items())
    found = (n - 1) / n * message / nccl.bus_bandwidth(n, domains, inner, outer)
    assert slowest * (1 - 1e-12) <= found
    if domains > 1:  # the outer links limit
        assert found == pytest.approx(slowest)


@pytest.mark.parametrize(("transfer", "chunk"), [(2e-4, 7e-6), (8e-2, 63e-6), (5e-5, 3e-6)])
def test_cutting_against_the_best_integer_number_of_chunks(transfer, chunk):
    best = min(c * chunk + transfer / c for c in range(1, 2000))
    assert nccl.cutting(chunk, transfer / 1e8) * 1e4 == pytest.approx(best, rel=0.02)


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_tree_pass_against_its_longest_way(depth):
    """Nodes in a binary tree, a chain of eight ranks in each."""
    nodes = 2**depth
    longest = max(len(bin(node)) - 3 for node in range(1, nodes + 1))  # depth of node i of a heap
    assert nccl.tree_pass(8 * nodes, nodes, 4e-6, 14e-6) == pytest.approx(7 * 4e-6 + longest * 14e-6)


@pytest.mark.parametrize(("nodes", "adds", "sends"), [(1, 0, 0), (2, 0, 1), (8, 0, 2), (2, 1, 1), (8, 1, 1)])
def test_a_reduction_in_switches_sends_over_each_adapter(nodes, adds, sends):
    """In a tree of nodes most send up what their switch added, and down what they received; two nodes just exchange."""
    found = nccl.in_switch_transfer(8 * nodes, nodes, 1e15, 5e10, adds)
    assert found == pytest.approx(sends / 8 / 5e10, abs=1e-14)
    inside = nccl.in_switch_transfer(8 * nodes, nodes, 4.76e11, 1e15, adds)
    assert inside == pytest.approx(2 * 7 / 8 / 4.76e11)


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
    """What a training step counts: without the launch of benchmarks. Bandwidths and latencies are the catalog's."""
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
    assert all(abs(e) < 0.23 for e in errors)
    assert sum(map(abs, errors)) / len(errors) < 0.07


@pytest.mark.parametrize("size", [1, 2, 4, 6, 8, 16, 24, 64, 512])
@pytest.mark.parametrize("stride", [1, 2, 8, 16])
@pytest.mark.parametrize("domain", [8, 16, 72, 256])
def test_placement_against_counting_ranks(size, stride, domain):
    inside = float(ranks_in_domain(float(size), float(stride), float(domain)))
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
    given = point("llama-3.1-70b", device, tp=tp, dp=dp, zero=1.0)
    q = design("llama-3.1-70b", device, tp=tp, dp=dp, zero=1.0)
    for group, size in (("tp", tp), ("replica", dp), ("shard", dp)):
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
    """Links of the groups counted one by one; the point-to-point transfer to one peer has one link."""
    link, efficiency = 64e9, 0.707
    for tp in (2, 4, 8):
        members = range(tp)
        used = {(a, b) for a in members for b in members if a != b}
        each = sum(1 for a, _ in used if a == 0) * link * efficiency
        q = design("llama-3.1-8b", device, tp=float(tp))
        assert rows(q["tp_tier_bandwidth"], "tier")["scale_up"] == pytest.approx(each)
    q = design("llama-3.1-8b", device, tp=2.0, dp=2.0, pp=2.0, global_batch=64.0)
    assert rows(q["replica_tier_bandwidth"], "tier")["scale_up"] == pytest.approx(link * efficiency)
    assert q["pp_transfer_time"] == pytest.approx(3e-6 + 3.4e-6 + q["pp_message"] / (link * efficiency), rel=1e-9)
    spread = design("llama-3.1-8b", device, tp=8.0, dp=4.0)  # data-parallel neighbours lie in different domains
    assert rows(spread["replica_tier_bandwidth"], "tier")["scale_up"] == pytest.approx(7 * link * efficiency)
    switched = design("llama-3.1-8b", "h100-sxm-80gb", tp=2.0)
    assert rows(switched["tp_tier_bandwidth"], "tier")["scale_up"] == pytest.approx(450e9 * 0.824)


@pytest.mark.parametrize("tp", [1.0, 8.0, 16.0])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_a_fixed_algorithm_that_is_not_offered_is_illegal(tp, sequence_parallel):
    """Times of algorithms that are not offered stay finite in every product, and the point is flagged as impossible."""
    given = point(tp=tp, dp=64.0, zero=0.0, sequence_parallel=sequence_parallel)
    best = evaluate(given)
    assert best["tp_algorithms_offered"]
    assert best["replica_algorithms_offered"]
    fixed = evaluate(given | {"tp_algorithm": TREE, "dp_algorithm": TREE})
    # a tree adds up, it neither gathers nor scatters
    assert fixed["tp_algorithms_offered"] == (tp == 1 or not sequence_parallel) == (fixed["tp_reduction_time"] < 1)
    assert fixed["replica_algorithms_offered"]
    assert all(np.all(np.abs(np.asarray(v, dtype=float)) <= 1e30) for v in fixed.values())


@pytest.mark.parametrize(("tp", "dp"), [(8.0, 8.0), (16.0, 4.0), (1.0, 1.0)])
def test_a_switch_that_adds_is_taken_where_the_device_has_one(tp, dp):
    for device, has in (("h100-sxm-80gb", True), ("a100-sxm-80gb", False), ("h100-pcie-80gb", False)):
        q = point("llama-3.1-70b", device, tp=tp, dp=dp)
        q |= design("llama-3.1-70b", device, tp=tp, dp=dp)
        given = [q[name.replace("GROUP", "tp")] for name in nccl.ALL_REDUCE.split()[1:]]
        latency = rows(nccl.all_reduce_candidates(*given)[0], "nccl_algorithm", "protocol")
        offered = {key for key, value in latency.items() if value < UNAVAILABLE}
        routes = {("ring", p) for p in ("ll", "ll128", "simple")} | {("tree", p) for p in ("ll", "ll128", "simple")}
        assert offered == routes | ({("in_switch", "simple")} if has and tp > 1 else set())


def test_groups_of_one_cost_nothing():
    q = design("llama-3.1-8b", tp=1.0, zero=1.0)
    for name in ("tp_gather_time", "replica_gather_time", "shard_gather_time", "exposed_tp_time", "exposed_dp_time"):
        assert q[name] == 0, name
    assert q["tp_all_reduce_time"] == q["replica_all_reduce_time"] == 0
    assert q["exposed_pp_time"] == 0
    assert q["bubble_time"] == 0
