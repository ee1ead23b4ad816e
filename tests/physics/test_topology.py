"""Fabric and placement against a walk over the links of every catalog device and fabric."""

import math
from typing import Any

import pytest

from perfgrid.catalog import load_catalog
from perfgrid.formulas.axes import INNER

from .cases import design, point, rows

CATALOG = load_catalog()
STEP = {"scale_up": "ring_step_latency", "scale_out": "network_ring_step_latency"}
# every device on several fabrics, and every fabric below several devices; all pairs are slow
PAIRS = [
    pytest.param(device, topology, marks=[pytest.mark.slow] if (i + j) % 8 else [])
    for i, device in enumerate(CATALOG.tables["device"])
    for j, topology in enumerate(CATALOG.tables["topology"])
]


@pytest.mark.parametrize(("device", "topology"), PAIRS)
def test_tiers_against_a_walk(device, topology):
    d: Any = CATALOG.entry("device", device).values
    t: Any = CATALOG.entry("topology", topology).values
    q = design("llama-3.1-8b", device, topology, tp=2.0, dp=4.0)
    for tier in ("scale_up", "scale_out"):
        rate = t["tier_stated_bandwidth"].get(tier, 0) or d[f"{tier}_bandwidth"]
        payload = rate * d[f"{tier}_efficiency"] / t["tier_oversubscription"][tier]
        assert rows(q["tier_bandwidth"], "tier")[tier] == pytest.approx(payload)
        delay = 0.0
        for _ in range(int(t["tier_hops"][tier])):
            delay += t["tier_hop_latency"][tier]
        software = point("llama-3.1-8b", device, topology)[STEP[tier]]
        delay += rows(software, "protocol")["simple"]
        assert rows(q["tier_transfer_latency"], "tier")[tier] == pytest.approx(delay)
        limit = t["tier_size_limit"].get(tier, 0) or (d["scale_up_size"] if tier == "scale_up" else math.inf)
        assert rows(q["tier_size"], "tier")[tier] == min(limit, 1e9)
        ends = d["scale_up_links"] if tier == "scale_up" and not t["tier_stated_bandwidth"].get(tier, 0) else 0
        assert rows(q["tier_peer_bandwidth"], "tier")[tier] == pytest.approx(payload / ends if ends else payload)
    fits = any(d["device_link"].get(link, 0) and t["topology_link"].get(link, 0) for link in d["device_link"])
    assert q["topology_fits_device"] == fits
    assert q["cluster_fits_topology"]


@pytest.mark.parametrize(("size", "links"), [(8, 7), (8, 0), (4, 3)])
def test_bandwidth_of_a_group_against_its_links(size, links):
    """Every pair of a mesh has a link; a rank of a group sends along those that lead to other members."""
    for tp in (1, 2, 4):
        q = design("llama-3.1-8b", "mi300x", tp=float(tp), scale_up_size=float(size), scale_up_links=float(links))
        sending = 0.0
        for peer in range(1, size):
            if peer < tp or links == 0 or tp == 1:
                sending += 448e9 * 0.707 / (links or size - 1)
        assert rows(q["tp_tier_bandwidth"], "tier")["scale_up"] == pytest.approx(sending)


def test_a_fabric_with_a_limit_holds_no_larger_cluster():
    given = INNER.vector("tier", [0, 64])
    assert design("llama-3.1-8b", tp=8.0, dp=8.0, tier_size_limit=given)["cluster_fits_topology"]
    assert not design("llama-3.1-8b", tp=8.0, dp=16.0, tier_size_limit=given)["cluster_fits_topology"]
