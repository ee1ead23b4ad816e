"""Switches and links: a published table, networks built port by port, and properties."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgrid.formulas.axes import INNER
from perfgrid.formulas.cost.cluster_network import (
    clos_capacity,
    clos_links,
    clos_switches,
    clos_tiers,
    dragonfly_links,
    leaf_ports,
)

from .cases import grid

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
