"""Ideal fabrics inside studies against single calls of `collective_time`; pins, flags and the sharing of links."""

from typing import Any

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.calculators.collective import algorithms_for, collective_choice, collective_time
from perfgrid.catalog import load_catalog
from perfgrid.formulas.axes import INNER
from perfgrid.formulas.collectives.ideal import NAMES
from perfgrid.formulas.collectives.schedules.fabric import TIER_KINDS
from tests.replays import assert_grid_is_replay

from .cases import design, rows

CATALOG = load_catalog()
IDEAL = [n for n, e in CATALOG.tables["topology"].items() if e.values["library"] == "ideal"]
SIDES = ("first", "second", "third", "fourth")
GPUS = [
    "rails",
    "rails-in-network",
    "rail-only",
    "rails-spine-2to1",
    "fat-tree-16x8-2to1",
    "dragonfly-72",
    "wafer-mesh-8x8",
]
CASES = [  # device, fabrics, devices of the cluster
    ("h100-sxm-80gb", GPUS, [64, 576, 1024]),
    ("mi300x", ["mi300x-mesh-400g", "rails"], [64, 96]),
    ("gaudi3", ["gaudi3-mesh-600g"], [32]),
    ("tpu-v5p", ["tpu-torus-4x4x4", "tpu-torus-8x8x8", "tpu-torus-8x8x16", "tpu-twisted-4x4x8"], [64, 128, 512, 1024]),
    ("tpu-v6e", ["tpu-torus-16x16", "tpu-mesh-8x8"], [64, 256, 512]),
]
OUTPUTS = [
    "tp_gather_time",
    "tp_all_reduce_time",
    "replica_gather_time",
    "replica_all_reduce_time",
    "pp_transfer_time",
    "step_time",
    "tp_gather_algorithm",
    "replica_all_reduce_algorithm",
    "tp_message",
    "replica_message",
    "pp_message",
]


def topology_of(device: str, fabric: str, devices: int) -> dict[str, Any]:
    """The topology of a catalog fabric on a device for `collective_time`, from the glossary and not from formulas."""
    d: Any = CATALOG.entry("device", device).values
    t: Any = CATALOG.entry("topology", fabric).values
    inside = [int(t["scale_up_sides"][s]) for s in SIDES if t["scale_up_sides"][s]]
    inside = inside or [int(t["tier_size_limit"]["scale_up"] or d["scale_up_size"])]
    between = [int(t["scale_out_sides"][s]) for s in SIDES if t["scale_out_sides"][s]]
    between = between or [-(-devices // int(np.prod(inside)))]
    tiers = []
    for name, shape in (("scale_up", inside), ("scale_out", between)):
        kind = TIER_KINDS[int(t["tier_kind"][name])]
        own = t["tier_stated_bandwidth"][name] or d[f"{name}_bandwidth"]
        links = 1
        if kind in ("torus", "mesh", "twisted_torus"):
            links = 2 * sum(s > 1 for s in shape)
        if kind == "fully_connected":
            links = shape[0] - 1
        ports = d["scale_up_ports"]
        if name == "scale_up" and not t["tier_stated_bandwidth"][name] and ports >= links:
            rate = own / ports * (ports // links)
        else:
            rate = own / links
        tier: dict[str, Any] = {
            "kind": kind,
            "shape": shape,
            "bandwidth": rate * d[f"{name}_efficiency"],
            "step_latency": t["tier_step_latency"][name],
            "hop_latency": t["tier_hop_latency"][name],
        }
        if kind in ("switch", "rail", "rail_only", "fat_tree"):
            tier["in_network"] = t["tier_in_network"][name] == 1
        if kind == "rail":
            tier["oversubscription"] = t["tier_oversubscription"][name]
        if kind == "fat_tree":
            tier |= {"oversubscription": t["tier_oversubscription"][name], "own_ports": True}
        if kind == "dragonfly":
            tier["global_links_per_router"] = int(t["tier_global_links"][name])
        if kind == "twisted_torus":
            assert shape == [4, 4, 8]
            tier["twist"] = {"0": [0, 0, 4], "1": [0, 0, 4]}
        tiers.append(tier)
    return {"tiers": tiers if np.prod(between) > 1 else tiers[:1]}


def study(device, fabrics, devices, **more):
    axes = {
        "device": [device],
        "model": ["llama-3.1-70b"],
        "topology": fabrics,
        "microbatch": [1, 4],
        "parallelism": {"devices": devices, "tp": [1, 2, 4, 8, 16, 64], "pp": [1, 2, 4]},
    }
    parameters = {"sequence_length": 4096, "global_batch": 4096}
    axes |= more.pop("axes", {})
    outputs = more.pop("outputs", OUTPUTS)
    return pg.Study.make(outputs=outputs, axes=axes, workload_parameters=parameters | more, dtype="float64")


@pytest.mark.parametrize(("device", "fabrics", "devices"), CASES)
def test_a_study_equals_single_calls(device, fabrics, devices):
    ds = pg.evaluate(study(device, fabrics, devices))
    times = [
        "tp_gather_time",
        "tp_all_reduce_time",
        "replica_gather_time",
        "replica_all_reduce_time",
        "pp_transfer_time",
    ]
    ds = ds.isel(device=0, model=0)
    legal = 0
    for fabric in fabrics:
        for layout in ds.parallelism.values:
            at = ds.sel(topology=fabric, parallelism=layout)
            tp, pp, dp, count = (int(at[n]) for n in ("tp", "pp", "dp", "devices"))
            topology = topology_of(device, fabric, count)
            size = int(np.prod([s for t in topology["tiers"] for s in t["shape"]]))
            assert bool(at.cluster_fits_topology) == (count <= size), (fabric, count)
            groups = {"tp": (tp, 1), "replica": (dp, tp), "pp": (pp, tp * dp)}
            for name in times:
                group, _, call = name.removesuffix("_time").partition("_")
                collective = {"gather": "all_gather", "all_reduce": "all_reduce", "transfer": "send_recv"}[call]
                (members, stride), message = groups[group], at[f"{group}_message"].values
                case = {"collective": collective, "topology": topology, "group": {"size": members, "stride": stride}}
                if members == 1:
                    assert np.all(at[name] == 0)
                    continue
                try:
                    algorithms_for(**case)
                except pg.PerfgridError:
                    if not at.cluster_fits_topology:
                        continue
                    assert np.all(at[name] == 1e10), (fabric, layout, name)
                    assert not at["stages_fill_tiers" if group == "pp" else f"{group}_fills_tiers"]
                    continue
                assert at["stages_fill_tiers" if group == "pp" else f"{group}_fills_tiers"]
                legal += 1
                for row, size in enumerate(np.broadcast_to(message, 2)):
                    found = float(np.broadcast_to(at[name].values, 2)[row])
                    assert found == pytest.approx(collective_time(size=float(size), **case), rel=1e-9), (fabric, layout)
                    if f"{group}_{call}_algorithm" in at:
                        choice, time = collective_choice(size=float(size), **case)
                        code = NAMES[int(np.broadcast_to(at[f"{group}_{call}_algorithm"].values, 2)[row])]
                        same = collective_time(size=float(size), algorithm=code, **case)
                        assert same == pytest.approx(time, rel=1e-5), (choice, code)
    assert legal > 10


def test_the_grid_equals_a_replay():
    """Fabrics of both libraries and pinned algorithms on one grid, in both stages."""
    axes = {
        "device": ["h100-sxm-80gb", "b200"],
        "dp_algorithm": ["best", "ring", "hierarchical", "tier_by_tier", "swing"],
        "scale_out_bandwidth": {"scale": [0.5, 1.0, 3.0]},
    }
    fabrics, generator = ["rail-optimized", "rails", "dragonfly-72", "wafer-mesh-8x8"], np.random.default_rng(3)
    collectives = [name for name in OUTPUTS if name != "step_time"]  # a whole step: `test_engine_agrees`
    for small_points in (None, 100):
        made = study("h100-sxm-80gb", fabrics, [64, 576], axes=axes, outputs=collectives)
        ds = pg.evaluate(made, "float64", 3000, small_points)
        assert_grid_is_replay(made, ds, generator, 40, 1e-9)


def test_a_named_algorithm_is_taken_or_flagged():
    axes = {"dp_algorithm": ["best", "ring", "halving_doubling", "hierarchical", "swing"]}
    made = study("h100-sxm-80gb", ["rails", "rail-optimized"], [64], axes=axes)
    ds = pg.evaluate(made).isel(device=0, model=0, microbatch=0)
    assert ds.dp_algorithm.values.tolist() == axes["dp_algorithm"]
    at = ds.sel(parallelism=(ds.tp == 1) & (ds.pp == 1)).squeeze()
    assert int(at.dp) == 64
    ideal, nccl = at.sel(topology="rails"), at.sel(topology="rail-optimized")
    topology = topology_of("h100-sxm-80gb", "rails", 64)
    legal = algorithms_for(topology, "all_gather")
    for name in axes["dp_algorithm"]:
        row = ideal.sel(dp_algorithm=name)
        assert bool(row.replica_algorithms_offered) == (name == "best" or name in legal)
        if row.replica_algorithms_offered:
            single = collective_time(
                collective="all_gather", topology=topology, size=float(row.replica_message), algorithm=name
            )
            assert float(row.replica_gather_time) == pytest.approx(single, rel=1e-9)
    assert "swing" not in legal
    assert "hierarchical" in legal
    assert nccl.replica_algorithms_offered.values.tolist() == [1, 1, 0, 0, 0]  # of these names a library knows the ring


def test_what_runs_is_reported():
    made = study("h100-sxm-80gb", ["rails", "rail-optimized"], [64])
    ds = pg.evaluate(made).isel(device=0, model=0, microbatch=0)
    told = ds.tp_gather_algorithm.attrs["flag_meanings"].split()
    assert told == ["none", *NAMES[1:]]
    assert (ds.tp_gather_algorithm.sel(topology="rail-optimized") == told.index("ring")).all()
    assert (ds.tp_gather_algorithm.sel(topology="rails") > 0).all()


def test_nccl_is_unchanged_by_ideal_fabrics_beside_it():
    both = pg.evaluate(study("h100-sxm-80gb", ["rail-optimized", "rails", "dragonfly-72"], [64, 576]))
    alone = pg.evaluate(study("h100-sxm-80gb", ["rail-optimized"], [64, 576]))
    for name in ("step_time", "tp_gather_time", "replica_all_reduce_time", "pp_transfer_time", "replica_fills_tiers"):
        np.testing.assert_array_equal(
            both[name].sel(topology="rail-optimized").transpose(*(d for d in alone[name].dims if d != "topology")),
            alone[name].squeeze("topology"),
        )


@pytest.mark.parametrize("wraps", [(1, 1), (0, 1), (0, 0)])
def test_sides_that_do_not_close(wraps):
    changed = INNER.vector("side", [*wraps, 1, 1])
    given = {"tp": 8.0, "dp": 32.0, "scale_up_wraps": changed, "zero": 1.0}
    q = design("llama-3.1-8b", "tpu-v6e", "tpu-torus-16x16", **given)
    topology = topology_of("tpu-v6e", "tpu-torus-16x16", 256)
    topology["tiers"][0]["wraps"] = [bool(w) for w in wraps]
    for group, size, stride in (("tp", 8, 1), ("replica", 32, 8)):
        case = {"topology": topology, "group": {"size": size, "stride": stride}, "size": q[f"{group}_message"]}
        assert q[f"{group}_gather_time"] == pytest.approx(collective_time(collective="all_gather", **case), rel=1e-12)


@pytest.mark.parametrize("pp", [2, 3, 4, 8])
def test_the_first_and_the_last_stage_add_up_a_shared_table(pp):
    """Over rails any two stages in different nodes are as far apart; of an odd number no pair is a regular group."""
    q = design("gpt3-175b", "h100-sxm-80gb", "rails", tp=8.0, pp=float(pp), dp=2.0)
    assert q["stages_fill_tiers"]
    topology = topology_of("h100-sxm-80gb", "rails", 16 * pp)
    if pp == 3:  # half of the message over and half of the sum back
        case = {"topology": topology, "group": {"size": 3, "stride": 16}, "size": q["tied_message"] / 2}
        single = 2 * collective_time(collective="send_recv", **case)
        assert q["tied_all_reduce_time"] == pytest.approx(single, rel=1e-12)
        return
    case = {"topology": topology, "group": {"size": 2, "stride": 16}, "size": q["tied_message"]}
    single = collective_time(collective="all_reduce", **case)
    assert q["tied_all_reduce_time"] == pytest.approx(single, rel=1e-12)


def test_impossible_fabrics_and_groups_are_flagged():
    sides = [[4, 4, 4, 0], [5, 5, 0, 0], [2, 2, 0, 0]]
    axes = {"scale_up_sides": [dict(zip(SIDES, s, strict=True)) for s in sides]}
    ds = pg.evaluate(study("tpu-v5p", ["tpu-torus-4x4x4"], [64], axes=axes)).squeeze()
    whole = ds.sel(parallelism=(ds.tp == 16) & (ds.pp == 1)).squeeze()
    assert whole.tp_fills_tiers.values.tolist() == [1, 0, 1]
    assert whole.cluster_fits_topology.values.all()  # more slices are joined
    odd = {"tier_kind": {"scale_out": "dragonfly"}, "scale_out_sides": {"first": 2, "second": 4, "third": 8}}
    made = pg.Study.make(
        CATALOG.with_values({f"topology.rails.{name}": value for name, value in odd.items()}),
        outputs=["step_time"],
        axes={
            "model": ["llama-2-7b"],
            "device": ["h100-sxm-80gb"],
            "topology": ["rails"],
            "parallelism": {"devices": [64], "tp": [8], "pp": [1]},
        },
        workload_parameters={"sequence_length": 4096, "global_batch": 64},
    )
    ds = pg.evaluate(made)
    assert not ds.topology_exists.values.any()  # four routers with no global link join one group, not eight
    assert ds.topology_exists.attrs["reason"] == "a fabric with tiers of these kinds and sides cannot be built"


@pytest.mark.parametrize(
    ("device", "fabric", "links", "rate"),
    [
        ("tpu-v5p", "tpu-torus-8x8x8", 6, 100e9 * 0.9),  # six links of 100 GB/s
        ("tpu-v6e", "tpu-torus-16x16", 4, 100e9 * 0.9),
        ("tpu-v4", "tpu-torus-16x16", 4, 50e9 * 0.9),  # two of its six links stay idle
        ("h100-sxm-80gb", "rails", 1, 450e9 * 0.824),  # all 18 links lead to the switches
        ("mi300x", "mi300x-mesh-400g", 7, 64e9 * 0.707),
        ("gaudi3", "gaudi3-mesh-600g", 7, 75e9 * 0.95),  # three ports of 200 Gbit/s to each peer
        ("h100-sxm-80gb", "wafer-mesh-5x5", 4, 2e12 * 0.824),
    ],
)
def test_a_device_shares_its_bandwidth_out_to_its_links(device, fabric, links, rate):
    q = design("llama-3.1-8b", device, fabric, tp=2.0, dp=4.0)
    assert rows(q["tier_links"], "tier")["scale_up"] == links
    assert rows(q["tier_link_bandwidth"], "tier")["scale_up"] == pytest.approx(rate)


@pytest.mark.parametrize("fabric", IDEAL)
def test_every_ideal_fabric_of_the_catalog_exists(fabric):
    device = "tpu-v5p" if fabric.startswith("tpu") else "h100-sxm-80gb"
    q = design("llama-3.1-8b", device, fabric, tp=1.0, dp=1.0)
    assert q["topology_exists"]
    assert q["cluster_fits_topology"]


def test_words_of_the_catalog_are_those_of_the_schedules():
    assert CATALOG.variables["tier_kind"].codes == TIER_KINDS
    for group in ("tp", "dp"):
        assert CATALOG.variables[f"{group}_algorithm"].codes == NAMES
