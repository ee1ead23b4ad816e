"""Switches and links: a published table, networks built port by port, and properties."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfgrid as pg
from perfgrid.formulas.axes import INNER
from perfgrid.formulas.cost.cluster_network import (
    clos_capacity,
    clos_links,
    clos_switches,
    clos_tiers,
    dragonfly_links,
    leaf_ports,
)

from .cases import AXES, PARAMETERS, grid

# gpucluster2024sheet: H100 nodes of eight on rails of 64-port switches; devices, switches, price of cables
SHEET = [
    (512, 8, 675_840),
    (1_024, 48, 2_621_440),
    (2_048, 96, 5_242_880),
    (4_096, 192, 10_485_760),
    (8_192, 384, 20_971_520),
    (16_384, 768, 41_943_040),
    (32_768, 2_560, 124_518_400),
    (65_536, 5_120, 249_036_800),
    (131_072, 10_240, 498_073_600),
    (262_144, 20_480, 996_147_200),
    (524_288, 40_960, 1_992_294_400),
]


def plugged(cables: int, ports: int) -> int:
    """Switches that so many cables fill, one port after the other."""
    switches, free = 0, 0
    for _ in range(cables):
        if free == 0:
            switches, free = switches + 1, ports
        free -= 1
    return switches


def built(endpoints: int, radix: int, oversubscription: float) -> int:
    """Switches of a folded Clos network, plugged together layer by layer: leaves, then two halves up to the top."""
    down = math.floor(radix * oversubscription / (1 + oversubscription))
    if endpoints <= 2:
        return 0
    if endpoints <= radix:
        return 1
    leaves = plugged(endpoints, down)
    raised = leaves * (radix - down)
    if leaves <= radix:  # every top switch reaches every leaf
        return leaves + plugged(raised, radix)
    middle = plugged(raised, radix // 2)
    return leaves + middle + plugged(middle * (radix // 2), radix)


def test_the_published_table_of_switches_exactly_and_of_cables_within_3_5_percent():
    devices, switches, cables = map(list, zip(*SHEET, strict=True))
    found = grid(
        ["network_switches", "cable_cost", "switch_cost"],
        {"parallelism": {"devices": devices, "tp": [8], "pp": [1]}},
        global_batch=524_288,
    )
    assert found["network_switches"].tolist() == switches
    np.testing.assert_allclose(found["cable_cost"], cables, rtol=0.035)
    np.testing.assert_allclose(found["switch_cost"], np.multiply(switches, 36_000.0))


@given(st.integers(1, 4000), st.sampled_from([8, 16, 32, 64]), st.sampled_from([1.0, 3.0]))
def test_switches_are_those_of_a_network_built_port_by_port(endpoints, radix, oversubscription):
    if endpoints > clos_capacity(radix, oversubscription):
        return
    assert clos_switches(float(endpoints), radix, oversubscription) == built(endpoints, radix, oversubscription)


@pytest.mark.parametrize("radix", [8, 16, 64])
def test_full_networks_are_those_of_al_fares(radix):
    """A fat tree of k ports: k^3/4 hosts, 5k^2/4 switches, as many links between any two layers as hosts."""
    hosts = radix**3 / 4
    assert clos_capacity(radix, 1.0) == hosts
    assert clos_tiers(hosts, radix, 1.0) == 3
    assert clos_switches(hosts, radix, 1.0) == 5 * radix**2 / 4
    assert np.sum(clos_links(hosts, radix, 1.0)) == 3 * hosts
    assert clos_switches(radix**2 / 2, radix, 1.0) == 3 * radix / 2


def test_a_dragonfly_has_the_links_of_its_graph():
    """Kim 2008, p = h = a/2: every pair of routers of a group and every pair of groups joined once."""
    for h in (1, 2, 4):
        p, a = h, 2 * h
        g = a * h + 1
        links: Counter[str] = Counter()
        for group in range(g):
            links["hosts"] += p * a
            links["local"] += sum(1 for one in range(a) for other in range(one) if other != one)
            links["global"] += sum(1 for other in range(g) if other < group)
        found = dragonfly_links(p * a * g, a, g, g, h)
        assert dict(zip(INNER.labels["reach"], np.ravel(found), strict=True)) == {
            "device": links["hosts"],
            "group": links["local"],
            "network": links["global"],
        }


@given(st.integers(3, 60_000), st.sampled_from([1.0, 2.0, 3.0, 7.0]))
def test_oversubscription_and_larger_switches_never_need_more_switches(endpoints, oversubscription):
    if endpoints > clos_capacity(64, 1.0):
        return
    assert np.sum(clos_links(endpoints, 64, oversubscription)) <= np.sum(clos_links(endpoints, 64, 1.0))
    assert clos_switches(endpoints, 128, 1.0) <= clos_switches(endpoints, 64, 1.0)
    assert leaf_ports(64, oversubscription) >= 32


def test_rails_save_what_their_authors_say():
    """Wang 2023: 38 to 77 % of the cost of a fat tree over all devices, here where it needs a tier more."""
    for devices in (512, 16_384):
        rails, whole = 8 * clos_switches(devices / 8, 64, 1.0), clos_switches(devices, 64, 1.0)
        assert 0.38 <= 1 - rails / whole <= 0.77


def test_ports_are_split_and_joined():
    """A device at half the rate of a port needs half of one, at twice the rate two; one domain needs no network."""
    rates = {"scale_out_bandwidth": ["200 Gbit/s", "400 Gbit/s", "800 Gbit/s"]}
    found = grid(["network_switches", "network_links"], rates)
    assert found["network_links"].tolist() == [1024, 2048, 4096]
    assert found["network_switches"].tolist() == [8, 48, 96]
    alone = grid(["network_switches", "network_capital"], {"parallelism": {"devices": [8], "tp": [8], "pp": [1]}})
    assert alone["network_switches"] == 0
    assert alone["network_capital"] == 0


def test_kinds_of_networks_in_the_catalog():
    topologies = [
        "rail-optimized",
        "fat-tree-2to1",
        "rail-only",
        "fat-tree-16x8-2to1",
        "dragonfly-72",
        "dragonfly-1056",
    ]
    found = grid(
        ["network_switches", "network_capital"],
        {"topology": topologies, "parallelism": {"devices": [576], "tp": [8], "pp": [1]}},
        global_batch=576,
    )
    counts = dict(zip(topologies, found["network_switches"].tolist(), strict=True))
    assert counts["rail-optimized"] == counts["rail-only"] == 8 * (3 + 2)  # 72 domains: three leaves, two spines a rail
    assert counts["fat-tree-2to1"] == 8 * (2 + 1)  # 42 ports down, 22 up
    assert counts["dragonfly-72"] == 8 * 4 * 9
    assert counts["dragonfly-1056"] == 8 * 8 * 3  # of its 33 groups the three that 72 domains need
    assert found["routers_are_switches"].all()


def test_networks_that_cannot_be_built_are_flagged():
    small = grid(
        ["network_capital"], {"parallelism": {"devices": [4096], "tp": [8], "pp": [8]}}, overrides={"switch_ports": 8}
    )
    assert not small["network_is_large_enough"]


# ---- kinds of networks, link by link --------------------------------------------------------------------------------

# kind, sides (of a dragonfly, of a butterfly: terminals first), global links, domains
SHAPES = [
    ("torus", (4, 3, 2), 0, 24),
    ("ring", (9,), 0, 9),
    ("mesh", (4, 3), 0, 12),
    ("line", (5,), 0, 5),
    ("hypercube", (2, 2, 2), 0, 8),
    ("hyperx", (4, 3), 0, 12),
    ("fully_connected", (6,), 0, 6),
    ("flattened_butterfly", (3, 4, 2), 0, 24),
    ("flattened_butterfly", (2, 5), 0, 10),
    ("dragonfly", (2, 4, 9), 2, 72),
    ("dragonfly", (2, 4, 5), 2, 40),  # two links between any two groups
    ("dragonfly", (2, 4, 8), 2, 64),  # eight links for seven peers
    ("dragonfly", (2, 4, 9), 2, 24),  # of nine groups the three that 24 domains fill
    ("dragonfly", (3, 4, 1), 0, 12),
    ("flattened_butterfly", (2, 3, 4), 0, 12),  # half of the last side
]


def wired(kind, sides, links, domains):
    """Links of a network by reach, joined one by one; those of a dragonfly in equal shares between groups."""
    found = {"device": 0.0, "group": 0.0, "network": 0.0}
    if kind == "dragonfly":
        p, a, g = sides
        groups = math.ceil(domains / (p * a))
        found["device"] = domains
        found["group"] = sum(1 for _ in range(groups) for one in range(a) for other in range(one) if other != one)
        found["network"] = sum(a * links / (g - 1) for one in range(groups) for other in range(one) if other != one)
        return found
    routed = kind == "flattened_butterfly"
    lengths = sides[1:] if routed else sides
    found["device"] = domains if routed else 0
    nodes = list(itertools.product(*map(range, reversed(lengths))))[: domains // (sides[0] if routed else 1)]
    for node in nodes:
        for axis, length in enumerate(reversed(lengths)):
            first = axis == len(lengths) - 1
            for to in range(length):
                other = (*node[:axis], to, *node[axis + 1 :])
                if kind in ("torus", "ring"):
                    found["group"] += other[axis] == (node[axis] + 1) % length
                elif kind in ("mesh", "line"):
                    found["group"] += to == node[axis] + 1
                elif to > node[axis] and other in nodes:
                    found["group" if first else "network"] += 1
    return found


def of_shape(kind, sides, links, domains, overrides=None, **changes):
    """Quantities of a network of this shape between domains of 8, a collective study."""
    stated = {
        "tier_kind": {"scale_up": "switch", "scale_out": kind},
        "scale_out_sides": dict(zip(INNER.labels["side"], (*sides, 0, 0, 0), strict=False)),
        "tier_global_links": {"scale_up": 0, "scale_out": links},
        "tier_size_limit": {"scale_up": 8, "scale_out": 0},
    }
    outputs = [
        *("network_reach_links", "network_switches", "network_router_ports", "network_link_ends", "network_capital"),
        *("switch_cost", "cable_cost", "network_rate", "collective_time", "network_power", "adapter_cost"),
        *("network_routing_switches", "tier_link_bandwidth"),
    ]
    made = pg.Study.make(
        workload="collectives",
        outputs=outputs,
        axes={"device": ["h100-sxm-80gb"], "topology": ["rails"]},
        workload_parameters={"devices": 8 * domains, "group_size": 8 * domains, "collective": "all_to_all"}
        | {"message_size": "1 GiB"}
        | changes,
        overrides=stated | (overrides or {}),
        dtype="float64",
    )
    found = pg.evaluate(made)
    return {str(name): found[name].values.squeeze() for name in found.data_vars}


@pytest.mark.parametrize(("kind", "sides", "links", "domains"), SHAPES)
def test_links_are_those_of_the_network_wired_one_by_one(kind, sides, links, domains):
    found = of_shape(kind, sides, links, domains)
    by_reach = dict(zip(INNER.labels["reach"], found["network_reach_links"], strict=True))
    assert by_reach == pytest.approx({reach: 8 * n for reach, n in wired(kind, sides, links, domains).items()})
    ports = {"dragonfly": sum(sides[:2]) - 1 + (links if sides[-1] > 1 else 0)}.get(kind, sum(sides) - len(sides) + 1)
    if kind in ("dragonfly", "flattened_butterfly"):
        assert found["network_switches"] == 8 * math.ceil(domains / sides[0])
        assert found["network_router_ports"] == ports
        assert found["switch_cost"] == pytest.approx(found["network_switches"] * 36_000 * ports / 64)
    else:
        assert found["network_switches"] == 0
        assert found["network_link_ends"].sum() == 8 * domains  # one port of each device, split among its neighbours
    routed = kind not in ("dragonfly", "flattened_butterfly")  # two ports of a switch inside each device
    assert found["network_routing_switches"] == pytest.approx(routed * 8 * domains * 2 / 64)
    routers = 36_000 * found["network_routing_switches"]
    assert found["network_capital"] == pytest.approx(found["switch_cost"] + routers + found["cable_cost"])


@pytest.mark.parametrize(("kind", "sides", "links", "domains"), SHAPES[::3])
def test_a_budget_buys_its_rate(kind, sides, links, domains):
    """The network costs the budget; at the listed price the rate is the listed one, more needs adapters of 1600 USD."""
    listed = of_shape(kind, sides, links, domains)
    price = float(listed["network_capital"]) / (8 * domains)
    times = {}
    for factor in (1, 4):
        bought = of_shape(
            kind, sides, links, domains, network_sizing="budget", network_budget=factor * price, message_size="64 GiB"
        )
        assert bought["network_capital"] / (8 * domains) == pytest.approx(factor * price)
        ports = 1 + (factor - 1) * price / (price + 1600)
        assert bought["network_rate"] == pytest.approx(ports * 50e9)
        assert bought["adapter_cost"] == pytest.approx((ports - 1) * 1600 * 8 * domains)
        assert bought["network_power"] == pytest.approx(ports * listed["network_power"])
        times[factor] = bought["collective_time"]
    assert times[4] < times[1]


@pytest.mark.parametrize(("rate", "lanes"), [(200, 4), (400, 8), (800, 16)])
@pytest.mark.parametrize(("kind", "sides"), [("torus", (4, 3, 2)), ("torus", (4, 4)), ("fully_connected", (4,))])
def test_links_of_a_device_that_routes_are_whole_lanes(kind, sides, rate, lanes):
    """Of eight lanes of 50 Gbit/s each of six links gets one, each of four or three links two; the others are idle."""
    links = 2 * len(sides) if kind == "torus" else sides[0] - 1
    stated = {"scale_out_bandwidth": f"{rate} Gbit/s", "scale_out_efficiency": 1}
    found = of_shape(kind, sides, 0, math.prod(sides), overrides=stated)
    assert found["links_have_lanes"] == found["ports_have_lanes"] == (lanes >= links)
    if lanes >= links:
        assert found["tier_link_bandwidth"][-1] == pytest.approx(lanes // links * 50e9 / 8)


def test_what_a_budget_buys_has_a_slope():
    """Rate and step fall and rise with the budget: finite slopes for every kind of network."""
    fabrics = ["clos", "rails", "fat-tree-512-2to1", "dragonfly-512", "hyperx-512", "full-mesh-512", "torus-512"]
    made = pg.Study.make(
        outputs=["step_time", "network_rate"],
        axes=AXES | {"topology": fabrics, "parallelism": {"devices": [4096], "tp": [8], "pp": [8]}},
        workload_parameters=PARAMETERS | {"network_sizing": "budget", "network_budget": 3000.0, "global_batch": 4096},
    )
    slopes = np.ravel(pg.gradient(made, "step_time", "network_budget").step_time_gradient)
    assert np.isfinite(slopes).all()
    assert (slopes <= 0).all()
    assert slopes.min() < 0


def test_copper_and_what_cannot_be_built():
    """Copper replaces transceivers inside a group; too many neighbours or ports are flagged; no budget is flagged."""
    optical = of_shape("dragonfly", (2, 4, 5), 2, 40)
    copper = of_shape("dragonfly", (2, 4, 5), 2, 40, overrides={"copper_reach": "group"})
    links = optical["network_reach_links"]
    assert optical["cable_cost"] == pytest.approx(1280 * links.sum())
    assert copper["cable_cost"] == pytest.approx(150 * links[:2].sum() + 1280 * links[2])
    assert optical["ports_have_lanes"]
    assert optical["routers_are_switches"]
    assert not of_shape("fully_connected", (10,), 0, 10)["ports_have_lanes"]
    assert not of_shape("flattened_butterfly", (2, 65), 0, 130)["routers_are_switches"]
    assert not of_shape("torus", (4, 4), 0, 16, network_sizing="budget")["network_budget_is_stated"]
