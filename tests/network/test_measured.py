"""The library model and the exchange of experts against published measurements; ``pytest -s`` prints the tables."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfgrid.calculators.collective import collective_time
from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.axes import INNER, table
from perfgrid.formulas.collectives import exchange
from perfgrid.formulas.collectives.nccl import chosen_time
from perfgrid.formulas.collectives.schedules.algorithms import COLLECTIVES
from perfgrid.formulas.collectives.workload import bus_factor
from perfgrid.formulas.parallelism.expert_parallel import DEDUPLICATED, ep_copies, places_reached

CATALOG = load_catalog()
MEASURED = json.loads(Path(__file__).with_name("measured_collectives.json").read_text(encoding="utf-8"))
LARGE = 16 * 2**20


def compare(table):
    """Sizes, measured and predicted times of one table."""
    sizes, times = np.array(table["rows"], float).T
    case = {
        "collective": table["collective"],
        "topology": topology(table["library"], table["device"], table["nodes"]),
        "algorithm": f"library_{table['algorithm']}" if table["algorithm"] else "library",
    }
    return sizes, times, np.array([collective_time(size=size, **case) for size in sizes])


def topology(library, device, nodes):
    """Nodes of eight with the rates that the catalog states."""
    d: Any = CATALOG.entry("device", device).values
    up, out = (d[f"{tier}_bandwidth"] * d[f"{tier}_efficiency"] for tier in ("scale_up", "scale_out"))
    tiers = [{"kind": "switch", "shape": [8], "bandwidth": up}, {"kind": "rail", "shape": [nodes], "bandwidth": out}]
    return {"tiers": tiers[: 1 + (nodes > 1)], "library": library, "device": device}


def test_errors_of_measured_tables():
    print(f"\n{'':38}{'from 16 MiB: median':>20} {'largest':>8}   {'below: median':>14} {'largest':>8}")
    large_errors, small_factors = [], []
    for recorded in MEASURED["tables"]:
        sizes, times, predicted = compare(recorded)
        error, factor = np.abs(predicted / times - 1), np.exp(np.abs(np.log(predicted / times)))
        large, small = error[sizes >= LARGE], factor[sizes < LARGE]
        text = f"{recorded['name']:38}{np.median(large):20.1%} {large.max():8.1%}"
        if small.size:
            text += f"   x{np.median(small):13.2f} x{small.max():7.2f}"
            assert np.median(small) <= 1.5, recorded["name"]
            assert small.max() <= 1.9, recorded["name"]
        print(text)
        assert np.median(large) <= 0.15, recorded["name"]
        assert large.max() <= 0.35, recorded["name"]
        large_errors += list(large)
        small_factors += list(small)
    print(f"{'all':38}{np.median(large_errors):20.1%} {'':8}   x{np.median(small_factors):13.2f}")
    assert np.median(large_errors) <= 0.06
    assert np.median(small_factors) <= 1.45


def bus_bandwidth(collective, size, n, time):
    return bus_factor(COLLECTIVES.index(collective), n) * size / time


def test_bus_bandwidth_as_benchmarks_print_it():
    """16 GiB among two nodes of 8: nccl-tests prints 66132 us and 487.09 GB/s (its GB are 10^9)."""
    assert bus_bandwidth("all_reduce", 2**34, 16, 66132e-6) == pytest.approx(487.09e9, rel=1e-4)
    assert bus_bandwidth("all_gather", 8e9, 8, 1.0) == pytest.approx(7e9)
    assert bus_bandwidth("broadcast", 8e9, 8, 2.0) == pytest.approx(4e9)


def test_the_algorithm_follows_the_size():
    """One node of Hopper: low latency first, in-switch reduction from 2 MiB on, as reported."""
    case = {"collective": "all_reduce", "topology": topology("hgx-h100-400g", "h200-sxm-141gb", 1)}

    def chosen(size):
        times = {a: collective_time(size=size, algorithm=f"library{a}", **case) for a in ("", "_ring", "_nvls")}
        return next(a for a, time in times.items() if a and time == times[""])

    assert {chosen(2.0**p) for p in (15, 17, 19)} == {"_ring"}
    assert {chosen(2.0**p) for p in range(22, 35, 3)} == {"_nvls"}


@pytest.mark.parametrize(
    ("library", "device", "algorithm", "published"),
    [
        ("hgx-a100-200g", "a100-sxm-80gb", "ring", 240e9),
        ("hgx-h100-400g", "h100-sxm-80gb", "ring", 368e9),
        ("hgx-h100-400g", "h100-sxm-80gb", "nvls", 476e9),
        ("hgx-b200-400g", "b200", "ring", 720e9),
    ],
)
def test_bus_bandwidths_of_nccl(library, device, algorithm, published):
    """Rates that the library reckons with, and 368 GB/s as measured among 8 H200, at a message without end."""
    case = {"topology": topology(library, device, 1), "algorithm": f"library_{algorithm}"}
    time = collective_time(collective="all_reduce", size=1e15, **case)
    assert bus_bandwidth("all_reduce", 1e15, 8, time) == pytest.approx(published, rel=0.01)


def test_steps_of_nccl():
    """Step latencies of its table: what the catalog states plus the links passed."""
    t: Any = CATALOG.entry("topology", "rail-optimized").values
    inside, between = (t["tier_hops"][tier] * t["tier_hop_latency"][tier] for tier in ("scale_up", "scale_out"))
    published = {
        ("ring_step_latency", inside): (0.6e-6, 1.9e-6, 3.4e-6),
        ("tree_step_latency", inside): (0.6e-6, 1.25e-6, 4e-6),
        ("network_ring_step_latency", between): (2.7e-6, 4e-6, 14e-6),
        ("network_tree_step_latency", between): (5e-6, 8.5e-6, 14e-6),
    }
    for (name, links), steps in published.items():
        assert [v + links for v in t[name].values()] == pytest.approx(steps)


@pytest.mark.parametrize(("ranks", "nodes"), [(8, 1), (4, 1), (16, 2), (4, 4), (512, 64)])
@pytest.mark.parametrize(("library", "device"), [("hgx-a100-200g", "a100-sxm-80gb"), ("hgx-b200-400g", "b200")])
def test_times_are_monotone_and_above_their_bound(library, device, ranks, nodes):
    case: dict[str, Any] = {"topology": topology(library, device, nodes)}
    sizes = np.geomspace(1e3, 1e11, 60)
    if ranks < 8 * nodes:
        case["group"] = {"size": ranks, "stride": 8 if nodes > 1 else 1}
    for collective in ("all_reduce", "all_gather", "broadcast", "all_to_all", "send_recv"):
        times = np.array([collective_time(collective=collective, size=s, algorithm="library", **case) for s in sizes])
        # the choice ignores what cutting costs, so it may step back a little
        assert (np.diff(times) > -0.25 * times[1:]).all()
        assert (times >= sizes * (ranks - 1) / ranks / 1.2e12).all()


def test_nccl_rejects_what_it_does_not_have():
    case = {"collective": "all_gather", "topology": topology("hgx-a100-200g", "a100-sxm-80gb", 1), "size": 1e6}
    with pytest.raises(PerfgridError, match=r"'library_tree' for all_gather"):
        collective_time(algorithm="library_tree", **case)
    with pytest.raises(PerfgridError, match=r"'library_swing' for all_gather is none.*library_nvls"):
        collective_time(algorithm="library_swing", **case)
    with pytest.raises(PerfgridError, match=r"'hgx-a100' is unknown.*hgx-a100-200g"):
        collective_time(**case | {"topology": case["topology"] | {"library": "hgx-a100"}}, algorithm="library")
    with pytest.raises(PerfgridError, match=r"topology.device: a library needs.*'a100'"):
        collective_time(**case | {"topology": case["topology"] | {"device": "a100"}}, algorithm="library")


def test_slopes_are_finite():
    latency, rate = INNER.vector("protocol", [1e-6, 2e-6, 9e-6]), INNER.vector("protocol", [8e-12, 5e-12, 4e-12])
    chunk = INNER.vector("protocol", [0.0, 0.0, 4e-6])
    with jax.enable_x64(True):
        a, b, c = (jnp.asarray(x) for x in (latency, rate, chunk))
        slope = jax.grad(lambda s: jnp.sum(chosen_time(s, a, b, c)))
        found = [float(slope(s)) for s in (0.0, 1.0, 1e5, 1e6, 1e9)]
    assert np.isfinite(found).all()
    assert min(found) > 0


# ---- DeepEP ---------------------------------------------------------------------------------------------------------

NVLINK, NETWORK = 160e9, 0.94 * 50e9  # as its authors state; 0.94 of 400 Gbit/s as measured for the same adapters
LOW_LATENCY_KERNEL = 40e-6  # start, signalling and receive of the low-latency kernels: one estimate for all rows


def exchange_time(row):
    per_node, low_latency = 8, row["kernel"] == "low_latency"
    nodes = row["ranks"] // per_node
    if low_latency:  # one copy per expert, no copies saved
        sent = exchange.equal_parts(row["size"], row["ranks"], nodes)
    else:  # eight of 256 experts on at most four nodes
        ranks, reached = (places_reached(n, 256, 8, nodes, min(nodes, 4)) for n in (row["ranks"], nodes))
        places, group = (table("tier", scale_up=u, scale_out=o) for u, o in ((ranks, reached), (per_node, nodes)))
        counted = reached if nodes > 1 else ranks  # the published payload counts nodes, or ranks of the only one
        sent = row["size"] / counted * ep_copies(DEDUPLICATED, 8, row["ranks"], group, places)
    start = LOW_LATENCY_KERNEL if low_latency else 0.0
    speed = table("tier", scale_up=1 / NVLINK, scale_out=1 / NETWORK)
    return start + float(np.squeeze(exchange.exchange_time(sent, 0.0, speed, 1.0)))


def test_expert_exchange_of_deepep():
    print("\nDeepEP on H800      ranks   measured  predicted   error")
    errors = []
    for row in MEASURED["expert_exchange"]["rows"]:
        found = exchange_time(row)
        errors.append(found / row["time"] - 1)
        label = f"{row['operation']} {row['kernel']}"
        print(f"{label:34}{row['ranks']:4d} {row['time'] * 1e6:8.0f} us {found * 1e6:7.0f} us {errors[-1]:7.1%}")
    print(f"median |error| {np.median(np.abs(errors)):.1%}, largest {np.max(np.abs(errors)):.1%}")
    assert np.median(np.abs(errors)) <= 0.10
    assert np.max(np.abs(errors)) <= 0.30
