"""What no schedule can beat: what must pass a rank, a domain's ports or a cut, and the rounds that one port needs.

``out`` is the bandwidth (byte/s) of a rank's links in one direction, all of them together, of the rank with least.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perfgrid.formulas.collectives.schedules.fabric import ROUTED, SWITCHED, Place, Tier
from perfgrid.formulas.collectives.schedules.graphs import shortest_path_loads, torus_neighbours
from perfgrid.formulas.collectives.schedules.tier_switched import levels

# ---- equations ------------------------------------------------------------------------------------------------------


def bisection_bound(size: Any, n: Any, links: Any, bandwidth: Any, half: Any = None) -> Any:
    """All-to-all across a cut of one-way ``links`` with ``half`` ranks on one side. Source: dally2004, chapter 3."""
    half = n // 2 if half is None else half
    return size / n * half * (n - half) / (bandwidth * links)


def distance_bound(size: Any, mean_distance: Any, out: Any, n: Any) -> Any:
    """All-to-all: every part occupies as many links as its way is long. Source: dally2004, chapter 3."""
    return (n - 1) / n * size * mean_distance / out


# ---- a group on a fabric --------------------------------------------------------------------------------------------


def links_of_rank(place: Place) -> tuple[float, float]:
    """Links by which a rank sends on one tier: of the rank with least, and on average. Source: dally2004, chapter 3."""
    tier, sides = place.tier, np.array([s for s in place.tier.shape if s > 1] or [1], float)
    kind = tier.kind
    if place.shares_ports:
        return 0.0, 0.0
    if kind in (*SWITCHED, *ROUTED):
        return 1.0, 1.0
    if kind in ("fully_connected", "hyperx", "hypercube"):
        return float(np.sum(sides - 1)), float(np.sum(sides - 1))
    ways = 2.0 if tier.bidirectional else 1.0
    found = [
        (ways, ways) if ring else (1.0, 2 * (k - 1) / k)
        for k, ring in zip(tier.shape, _rings(tier), strict=True)
        if k > 1
    ]
    return sum(least for least, _ in found), sum(average for _, average in found)


def _rings(tier: Tier) -> tuple[bool, ...]:
    """Sides whose ends have as many links as their middle."""
    return (True,) * len(tier.shape) if tier.kind == "twisted_torus" else tier.rings


def lower_bound(places: Sequence[Place], collective: str, size: float, in_network: bool = False) -> float:
    """Time in s below which no algorithm of a group can be, from bandwidths alone; all such groups run at once.

    Source: chan2007collective, table 1; patarasuk2009ring; graham2016sharp; cho2019blueconnect; dally2004, chapter 3.
    """
    links = [links_of_rank(p) for p in places]
    out = sum(least * p.tier.bandwidth for (least, _), p in zip(links, places, strict=True))
    mean = sum(average * p.tier.bandwidth for (_, average), p in zip(links, places, strict=True))
    n = int(np.prod([p.members for p in places]))
    if n == 1:
        return 0.0
    if collective == "send_recv":
        return size / out
    if collective == "broadcast" or (collective == "all_reduce" and in_network):  # the message passes every rank once
        return size / mean
    if collective == "all_reduce":  # a rank's part of every sum leaves it; n - 1 additions and copies need a link each
        return max(size / out, 2 * (n - 1) / n * size / mean)
    found = [(n - 1) / n * size / out]  # all but the own part
    for place, (least, _) in zip(places, links, strict=True):
        if len(places) > 1 and least and place.inner > 1:  # into one domain, by the ports of all tiers from here on
            outside = sum(
                a * p.tier.bandwidth for (_, a), p in zip(links, places, strict=True) if p.inner >= place.inner
            )
            share = 1 if collective != "all_to_all" else place.inner
            found.append((n - place.inner) / n * size * share / (place.inner * outside))
    if collective == "all_to_all":
        found.append(_cut_bound(places[-1], size, n))  # what is between the outermost domains has no other way
    return max(found)


def _dragonfly_cuts(tier: Tier, size: float, n: int) -> float:
    """All-to-all of a whole dragonfly by any routing: out of one group, and out of one router.

    A cut between two halves of the groups gives the same as one group: the links of an average pair count, those that
    minimal routing leaves idle among them. Source: kim2008dragonfly, section 3.
    """
    p, a, g = tier.shape
    groups = p * (n - a * p) / (n * tier.global_links) if g > 1 else 0.0
    routers = p * (n - p) / (n * (a - 1 + (tier.global_links if g > 1 else 0))) if a * g > 1 else 0.0
    return max(groups, routers) * size / tier.bandwidth


def _cut_bound(place: Place, size: float, n: int) -> float:
    """All-to-all of all ranks across the middle of the longest side, over uplinks, or by the length of the ways."""
    sides, tier = place.tier.shape, place.tier
    if tier.kind == "fat_tree" and place.members > 1:
        return max(c.scarcity * (n - place.inner * c.inside) / n for c in levels(place)) * size / tier.bandwidth
    if n < int(np.prod(sides)) or place.members < n or tier.kind in SWITCHED:
        return 0.0
    if tier.kind == "dragonfly":
        return _dragonfly_cuts(tier, size, n)
    if tier.kind == "flattened_butterfly":
        cuts = [(k // 2, k) for k in sides[1:] if k > 1]
        routers = n / sides[0]
        found = [bisection_bound(size, n, h * (k - h) * routers / k, tier.bandwidth, h * n / k) for h, k in cuts]
        return max(map(float, found), default=0.0)
    if tier.kind == "twisted_torus":
        mean = float(np.mean(shortest_path_loads(torus_neighbours(sides, dict(tier.twist)), 0)[1])) * n / (n - 1)
        return float(distance_bound(size, mean, links_of_rank(place)[0] * tier.bandwidth, n))
    if not tier.bidirectional:
        return float(distance_bound(size, n / 2, tier.bandwidth, n))
    meshed = tier.kind in ("fully_connected", "hyperx", "hypercube")
    found = []
    for side, ring in ((s, r) for s, r in zip(sides, tier.rings, strict=True) if s > 1):
        half = side // 2
        across = half * (side - half) if meshed else 2 if ring else 1
        found.append(float(bisection_bound(size, n, across * n / side, tier.bandwidth, half * n / side)))
    return max(found)
