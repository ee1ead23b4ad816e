"""`collective_time` against replayed schedules kept beside this file, published figures, and mistakes of its users."""

import ast
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest

from perfgrid.calculators.collective import algorithms_for, collective_choice, collective_time
from perfgrid.calculators.collective_input import placed
from perfgrid.catalog.references import read_references
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.collectives import schedules as network
from perfgrid.formulas.collectives.schedules import graphs, grids, switched
from perfgrid.formulas.collectives.schedules.algorithms import Route
from tests.network import bounds
from tests.network.bounds import lower_bound

ROOT = Path(network.__file__).parents[3]
CASES = json.loads(Path(__file__).with_name("collective_cases.json").read_text(encoding="utf-8"))["cases"]
REFERENCES = read_references(ROOT / "catalog" / "references.bib")


# ---- the cases ------------------------------------------------------------------------------------------------------


def test_every_replayed_case():
    assert len(CASES) == 535
    for entry in CASES:
        found = collective_time(**entry["case"])
        assert found == pytest.approx(entry["time"], rel=entry["tolerance"]), entry
        best = collective_time(**{**entry["case"], "algorithm": "best"})
        assert best <= found * (1 + 1e-12), entry
        assert entry["source"] in REFERENCES


def test_the_choice_follows_the_message():
    """Small messages take few steps, large ones spread over all links."""
    torus = topology(("torus", [8, 8, 8], 45e9), step=1e-6, hop=2e-7)
    small, large = (collective_choice(collective="all_reduce", topology=torus, size=s) for s in (1e2, 1e9))
    assert small[0] in ("direct", "one_shot")
    assert large[0] == "rotated"
    for name, time in (small, large):
        size = 1e2 if name == small[0] else 1e9
        assert time == collective_time(collective="all_reduce", topology=torus, size=size, algorithm=name)
        case = {"collective": "all_reduce", "topology": torus, "size": size}
        assert collective_time(**case, return_algorithm=True) == (time, name)


def test_bounds_of_the_cases():
    """The cases carry a lower bound each: ours is nowhere below, except where theirs assumes equal ends of a line."""
    for entry in CASES:
        case, theirs = entry["case"], entry["lower_bound"]
        if theirs is None:
            continue
        _, places = placed(case["collective"], case["topology"], case.get("group"))
        ours = lower_bound(places, case["collective"], case["size"], in_network=case["algorithm"] == "in_network")
        uneven = case["collective"] == "all_reduce" and places[0].tier.kind in ("line", "mesh")
        assert ours >= theirs * (1 - 1e-9) * (0.5 if uneven else 1), entry
        assert ours <= entry["time"] * (1 + entry["tolerance"]), entry


# ---- published figures ----------------------------------------------------------------------------------------------


def topology(*tiers, step=0.0, hop=0.0):
    return {
        "tiers": [dict(zip(("kind", "shape", "bandwidth"), t[:3], strict=True), **dict(*t[3:])) for t in tiers],
        "step_latency": step,
        "hop_latency": hop,
    }


def test_tpu_pod():
    """TPU v4, 16x16x16 (jouppi2023tpuv4): all links of all chips carry an all-reduce, 512 links cross the middle."""
    n, b = 16**3, 45e9
    links = topology(("torus", [16, 16, 16], b))
    time = collective_time(collective="all_reduce", topology=links, size=1e9, algorithm="rotated")
    assert 2 * (n - 1) / n * 1e9 / time * n == pytest.approx(1.10592e15)
    exchange = collective_time(collective="all_to_all", topology=links, size=1e9, algorithm="direct")
    assert 1e9 / n * (n / 2) ** 2 / exchange == pytest.approx(2 * 16 * 16 * b)
    assert float(bounds.bisection_bound(1e9, n, 512, b)) == pytest.approx(exchange)


def test_scaling_book():
    """Worked answers of scalingbook2025, their "bidirectional" bandwidth being twice ours."""
    v5e = topology(("ring", [4], 45e9))
    gathered = 2 * 2048 * 8192
    time = collective_time(collective="all_gather", topology=v5e, size=gathered, algorithm="ring")
    assert time / (3 / 4) == pytest.approx(3.728270222e-4)  # the book rounds (n - 1)/n to 1
    v4p = topology(("torus", [4, 4, 4], 45e9))
    one_axis = {"size": 4, "stride": 1}
    small = collective_time(collective="all_gather", topology=v4p, size=2 * 1024 * 4096 / 4, group=one_axis)
    assert small / (3 / 4) == pytest.approx(2.330168889e-05)
    both = {"size": 16, "stride": 1}
    large = collective_time(
        collective="all_gather", topology=v4p, size=2 * 1024 * 4096, group=both, algorithm="rotated"
    )
    assert large / (15 / 16) == pytest.approx(4.660337778e-05)
    h100 = topology(("switch", [8], 450e9))
    assert collective_time(collective="all_gather", topology=h100, size=512 * 2**20) == pytest.approx(1.0439156622e-3)
    per_global_byte = collective_time(collective="all_to_all", topology=h100, size=1.0) / 8
    assert per_global_byte == pytest.approx(2.430555556e-13)


@pytest.mark.parametrize(
    ("shape", "twist", "published"),
    [
        ([4, 4, 8], {"0": [0, 0, 4], "1": [0, 0, 4]}, 1.745),
        ([4, 8, 8], {"0": [0, 4, 4]}, 1.391),
        ([4, 8], {"0": [0, 4]}, 1.524),
        ([8, 16], {"0": [0, 8]}, 1.506),
    ],
)
def test_twisting_speeds_up_all_to_all(shape, twist, published):
    plain = collective_time(collective="all_to_all", topology=topology(("torus", shape, 45e9)), size=1e9)
    twisted = topology(("twisted_torus", shape, 45e9, [("twist", twist)]))
    found = plain / collective_time(collective="all_to_all", topology=twisted, size=1e9)
    assert found == pytest.approx(published, abs=6e-4)


@pytest.mark.parametrize(
    ("shape", "twist"), [((4, 8), {0: (0, 4)}), ((2, 4, 4), {0: (0, 2, 2)}), ((3, 5), {}), ((4, 4), {})]
)
def test_one_source_stands_for_all_of_a_twisted_torus(shape, twist):
    """Counted from every source on the link graph, and link by link over the paths of one pair at a time."""
    neighbours = graphs.torus_neighbours(shape, twist)
    counted = [graphs.shortest_path_loads(neighbours, source) for source in range(len(neighbours))]
    loads, diameter = np.sum([each for each, _ in counted], axis=0), max(distance.max() for _, distance in counted)
    found = graphs.twisted_torus_all_to_all(shape, twist)
    assert found.volume * len(neighbours) == pytest.approx(loads.max())
    assert found.hops == diameter

    def ways(at, to, length):  # all paths of a length, as lists of (rank, port)
        if length == 0:
            return [[]] if at == to else []
        return [[(at, p), *rest] for p, there in enumerate(neighbours[at]) for rest in ways(there, to, length - 1)]

    counted = np.zeros_like(loads)
    for to in range(1, len(neighbours)):
        paths = next(found for d in range(1, 20) if (found := ways(0, to, d)))
        for path in paths:
            for rank, port in path:
                counted[rank, port] += 1 / len(paths)
    np.testing.assert_allclose(counted, graphs.shortest_path_loads(neighbours, 0)[0], atol=1e-12)


@pytest.mark.parametrize(
    ("sides", "published"),
    [([8], 1.285714), ([16], 1.533333), ([8, 8], 1.095238), ([16, 16], 1.141176), ([8] * 3, 1.027397)],
)
def test_congestion_of_swing(sides, published):
    """desensi2024swing: more time than the bandwidth bound."""
    schedule = grids.swing(np.array(sides, float))
    n = np.prod(sides)
    assert float(schedule.volume) / ((n - 1) / n / (2 * len(sides))) == pytest.approx(published, abs=1e-6)


def test_rotation_on_unequal_sides_and_its_balance():
    """Equal parts on unequal sides take 1.55 and 1.70 times the bandwidth bound (110 MB, 50 GB/s, 1.25 us per step)."""
    for sides, slower in (((4.0, 8.0), 1.549), ((4.0, 4.0, 8.0), 1.70)):
        rotated, balanced = (f(np.array(sides), 2) for f in (grids.rotated, grids.balanced_rotated))
        time = float(rotated.on(1e-6, 2.5e-7, 5e10).time(110100480.0))
        assert time / (float(balanced.volume) * 110100480.0 / 5e10) == pytest.approx(slower, abs=0.006)


def test_two_phases_cost_the_ratio_of_bandwidths():
    """wang2023railonly, section 4: forwarding first costs 50/450 and 25/300 of the direct exchange."""
    for inner, outer, published in ((450e9, 50e9, 0.111), (300e9, 25e9, 0.0833)):
        nodes = topology(("switch", [10**6], inner), ("rail", [10**6], outer))
        serial, overlapped = (
            collective_time(collective="all_to_all", topology=nodes, size=1e9, algorithm=algorithm)
            for algorithm in ("hierarchical", "rail_forward")
        )
        assert serial / overlapped - 1 == pytest.approx(published, abs=1e-3)


@pytest.mark.parametrize("outer", ["rail", "rail_only", "fat_tree", "switch"])
def test_chunks_hide_the_inner_tier_behind_any_network(outer):
    """A large all-reduce over 8 x 512 takes what its part of the message takes through the ports, give or take 4 %."""
    more = [("own_ports", True)] if outer == "fat_tree" else []
    tiers = topology(("switch", [8], 4e11), (outer, [512], 5e10, more), step=12e-6, hop=5e-7)
    found = collective_time(collective="all_reduce", topology=tiers, size=16e9)
    assert found == pytest.approx(2 * 16e9 / 8 / 5e10, rel=0.04)


def test_parts_compose():
    tiers = topology(("switch", [8], 4e11), ("rail", [4], 5e10), step=1e-6, hop=1e-7)
    _, places = placed("all_gather", tiers, None)
    rings = switched.ring(8.0), switched.ring(4.0)
    a, b = (ring.on(*place.tier.speed) for ring, place in zip(rings, places, strict=True))
    for size in (1e3, 1e6, 1e9):
        chunks = np.arange(1, 4000)
        by_hand = min(
            a.latency
            + b.latency
            + (a.inverse_bandwidth + b.inverse_bandwidth) * size / c
            + (c - 1) * (b.inverse_bandwidth * size / c + max(a.latency, b.latency))
            for c in chunks
        )
        assert float(Route(rings, "pipelined").on(places).time(size)) == pytest.approx(by_hand, rel=2e-3)
        assert Route(rings).on(places).time(size) == pytest.approx(float(a.time(size) + b.time(size)))
    exchange = {"collective": "all_to_all", "topology": topology(("switch", [8], 4e11)), "size": 1e9}
    skewed = collective_time(options={"imbalance": 1.5}, **exchange)
    assert skewed == pytest.approx(1.5 * collective_time(**exchange), rel=1e-12)


# ---- what users get wrong -------------------------------------------------------------------------------------------

SWITCH = topology(("switch", [8], 4e11), ("rail", [4], 5e10), step=1e-6)
NAMED = {**SWITCH, "library": "hgx-h100-400g", "device": "h100-sxm-80gb"}
GOOD = {"collective": "all_reduce", "topology": SWITCH, "size": 1e6}


def changed(**values):
    return {**GOOD, **values}


def one(kind, shape, **more):
    return {"tiers": [{"kind": kind, "shape": shape, "bandwidth": 1e10, **more}]}


MISTAKES = [
    ({"collective": "all_reduce", "size": 1}, ["lacks 'topology'"]),
    (changed(sise=3), ["unknown key 'sise'", "'size'"]),
    (changed(collective="allreduce"), ["collective", "'allreduce'", "'all_reduce'", "broadcast"]),
    (changed(collective=3), ["collective", "3", "broadcast"]),
    (changed(size=-1), ["size", "-1", "at least 0"]),
    (changed(size=float("nan")), ["size", "nan"]),
    (changed(size=float("inf")), ["size", "inf"]),
    (changed(size="1 MB"), ["size", "'1 MB'"]),
    (changed(size=True), ["size", "True"]),
    (changed(algorithm="rings"), ["'rings'", "all_reduce", "rail 4 of switch 8", "multi_ring", "best"]),
    (changed(algorithm=None), ["None", "legal", "best"]),
    (changed(algorithm="swing"), ["'swing'", "does not exist", "hierarchical"]),
    (changed(collective="all_to_all", algorithm="ring"), ["'ring'", "all_to_all", "rail_forward"]),
    (changed(devices=64), ["32 devices", "64"]),
    (changed(devices=0), ["devices", "at least 1"]),
    (changed(group={"size": 3}), ["3 ranks 1 apart", "divide the 32 ranks", "16, 32"]),
    (changed(group={"size": 64}), ["span 64", "has 32"]),
    (changed(group={"size": 8, "stride": 8}), ["span 64", "has 32"]),
    (changed(group={"size": 2.5}), ["group.size", "2.5"]),
    (changed(group={"size": 4, "strid": 2}), ["'strid'", "'stride'"]),
    (changed(group={"stride": 2}), ["group", "lacks 'size'"]),
    (changed(group={"size": 4, "stride": 0}), ["group.stride", "at least 1", "0"]),
    (changed(group=4), ["group", "table", "4"]),
    (
        changed(topology=topology(("switch", [6], 1e11), ("rail", [4], 1e10)), group={"size": 4}),
        ["do not fill whole domains", "switch"],
    ),
    (changed(options={"chunk": 3}), ["options", "'chunk'", "'chunks'"]),
    (changed(options={"chunks": 0}), ["options.chunks", "at least 1"]),
    (changed(options={"imbalance": 0.5}), ["options.imbalance", "at least 1", "0.5"]),
    (changed(topology=[1]), ["topology", "table", "[1]"]),
    (changed(topology={**SWITCH, "library": "nccl"}), ["topology.library", "'nccl'", "hgx-a100-200g"]),
    (changed(topology=NAMED | {"device": "h1000"}), ["topology.device", "'h1000'", "'h100-sxm-80gb'"]),
    (changed(algorithm="library"), ["'library'", "names its library", "hgx-h100-efa-400g"]),
    (changed(topology=NAMED, algorithm="library_swing"), ["'library_swing'", "all_reduce", "library_nvls"]),
    (changed(topology=NAMED, algorithm="library_tree", collective="send_recv"), ["'library_tree'", "send_recv"]),
    (changed(topology={}), ["topology", "lacks 'tiers'"]),
    (changed(topology={"tiers": []}), ["topology.tiers", "[]"]),
    (changed(topology={"tiers": [3]}), ["topology.tiers[0]", "3"]),
    (changed(topology={**SWITCH, "latency": 1}), ["'latency'", "step_latency"]),
    (changed(topology={**SWITCH, "hop_latency": -1e-6}), ["topology.hop_latency", "-1e-06"]),
    (changed(topology={**SWITCH, "message_latency": -1}), ["topology.message_latency", "-1"]),
    (changed(topology=one("tours", [4])), ["topology.tiers[0].kind", "'tours'", "'torus'", "dragonfly"]),
    (changed(topology=one("torus", 4)), ["topology.tiers[0].shape", "1 to 4", "4"]),
    (changed(topology=one("torus", [2] * 5)), ["1 to 4", "[2, 2, 2, 2, 2]"]),
    (changed(topology=one("torus", [4, 2.5])), ["shape", "2.5"]),
    (changed(topology=one("torus", (2.5, 3, 4, 5, 6))), ["1 to 4", "(2.5, 3, 4, 5, 6)"]),
    (changed(topology=one("torus", [4, 0])), ["shape", "at least 1", "0"]),
    (changed(topology=one("switch", [4, 4])), ["a switch takes 1", "[4, 4]"]),
    (changed(topology=one("hypercube", [2, 4])), ["hypercube", "[2, 4]", "hyperx"]),
    (changed(topology=one("rail", [4])), ["'rail'", "innermost", "switch"]),
    (changed(topology=one("torus", [4], oversubscription=2)), ["'oversubscription'", "(torus)"]),
    (changed(topology=one("fat_tree", [4, 2], oversubscription=0.5)), ["oversubscription", "at least 1", "0.5"]),
    (changed(topology=one("torus", [4, 4], wraps=[True])), ["wraps", "each of the 2 sides", "[True]"]),
    (changed(topology=one("torus", [4, 4], wraps=[True, 0])), ["wraps", "true or false", "0"]),
    (changed(topology=one("torus", [4, 4], wraps=[True, False]), algorithm="rotated"), ["all wrap around", "bucket"]),
    (changed(topology=one("ring", [4], bidirectional=1)), ["bidirectional", "true or false", "1"]),
    (changed(topology=one("dragonfly", [1, 2, 3])), ["lacks 'global_links_per_router'"]),
    (changed(topology=one("dragonfly", [1, 2, 4], global_links_per_router=1)), ["at most 3 groups", "found 4"]),
    (changed(topology=one("twisted_torus", [4, 8], twist={"0": [4]})), ["twist", '{"0": [0, 4]}', "[4]"]),
    (changed(topology=one("twisted_torus", [4, 8], twist={"2": [0, 4]})), ["twist", "'2'"]),
    (changed(topology=one("twisted_torus", [4, 8], twist=3)), ["twist", "3"]),
    (
        changed(topology=one("twisted_torus", [4, 8], twist={"0": [0, 4]}), group={"size": 4}),
        ["twisted torus", "4 of 32"],
    ),
    (
        changed(topology={"tiers": [{"kind": "ring", "shape": [4], "bandwidth": 0}]}),
        ["bandwidth", "greater than 0", "0"],
    ),
    (changed(topology={"tiers": [{"kind": "ring", "shape": [4]}]}), ["lacks 'bandwidth'"]),
    (changed(topology=one("switch", [6]), algorithm="halving_doubling"), ["power of two", "6", "ring"]),
    (changed(topology=one("switch", [6]), algorithm="recursive_doubling"), ["power of two", "6"]),
    (changed(topology=one("torus", [6, 6]), algorithm="swing"), ["power of two", "6", "rotated"]),
    (changed(topology=one("torus", [4, 8]), algorithm="swing"), ["equal sides", "4 and 8"]),
    (changed(topology=one("torus", [4, 12]), algorithm="halving_doubling"), ["power of two", "12"]),
    (changed(topology=one("mesh", [3, 5]), algorithm="ring"), ["even number", "15"]),
    (changed(topology=one("torus", [4, 8]), group={"size": 2}, algorithm="rotated"), ["fills whole sides", "bucket"]),
    (changed(topology=one("switch", [8], in_network=False), algorithm="in_network"), ["'in_network'", "direct"]),
    (
        changed(
            collective="all_to_all",
            topology=topology(("switch", [8], 4e11), ("rail_only", [4], 5e10)),
            algorithm="direct",
        ),
        ["between the rails", "rail_forward"],
    ),
]


@pytest.mark.parametrize(("case", "parts"), MISTAKES)
def test_mistakes_are_one_sentence(case, parts):
    with pytest.raises(PerfgridError) as caught:
        collective_time(**case)
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_two_mistakes_read_alike():
    sentences = set()
    for case, _ in MISTAKES:
        with pytest.raises(PerfgridError) as caught:
            collective_time(**case)
        sentences.add(str(caught.value))
    assert len(sentences) == len(MISTAKES)


def test_numbers_of_any_library_are_read():
    base = collective_time(**GOOD)
    assert collective_time(**changed(size=np.float64(1e6), group={"size": np.int64(32)}, devices=32)) == base
    assert "hierarchical" in algorithms_for(SWITCH, "all_reduce")


# ---- sources --------------------------------------------------------------------------------------------------------

FILES = sorted((ROOT / "formulas" / "collectives" / "schedules").glob("*.py"))
EQUATIONS = ("switched", "rings", "grids", "alltoall", "hierarchy", "bounds", "graphs")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_equation_names_its_source(path):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            text = inspect.cleandoc(ast.get_docstring(node) or "")
            assert text, node.name
            keys = re.findall(r"\b[a-z]+(?:19|20)\d\d[a-z0-9]*\b", text)
            assert set(keys) <= set(REFERENCES), node.name
            assert path.stem not in EQUATIONS or ("Source: " in text and keys), node.name
