"""Algorithms of the kinds whose terminals share routers that are joined directly: dragonfly and flattened butterfly.

Every rank has one link to its router; the links between routers are shared by their terminals. Routing is minimal (one
local link, one global link, one local link of a dragonfly; at most one link along each side of a flattened butterfly),
or, where that loads the busiest link less, by way of all routers in equal shares (Valiant's). So few groups of ranks
need not pass the few links between their routers. Source: kim2008dragonfly, section 4; kim2007butterfly, section 3.
"""

from __future__ import annotations

from dataclasses import replace

from . import alltoall, hierarchy, switched
from .fabric import Place, global_links
from .schedule import NOTHING, Schedule, exponent

Offer = dict[str, Schedule | str]


def gather(place: Place) -> Offer:
    """All-gather (reduce-scatter) level by level: terminals of a router, then routers, then groups; or all at once."""
    terminals, *outer = place.sides
    parts = [alltoall.switch(terminals.members)]
    if place.tier.kind == "dragonfly":
        links = global_links(place.tier)
        routers, groups = outer
        shape = (terminals.length, routers.length, links.between, links.two_fullest)
        parts.append(hierarchy.router_gather(routers.members, terminals.length))
        parts.append(hierarchy.dragonfly_group_gather(groups.members, *shape))
    else:
        parts += [hierarchy.router_gather(side.members, terminals.length) for side in outer]
    found, left = NOTHING, 1
    for part, side in zip(parts, place.sides, strict=True):
        sent = (side.members - 1) / side.members
        found, left = found + spread(part, place, sent).load(1 / left), left * side.members
    return {"hierarchical": found, **all_to_all(place)}


def all_reduce(_: Place) -> Offer:
    """No all-reduce that is not a reduce-scatter and an all-gather."""
    return {}


def all_to_all(place: Place) -> Offer:
    """All parts at once."""
    if all(s.members == 1 for s in place.sides[1:]):
        return {"direct": alltoall.switch(place.members)}
    return {"direct": spread(minimal_all_to_all(place), place, (place.members - 1) / place.members)}


def minimal_all_to_all(place: Place) -> Schedule:
    """All parts at once by minimal routing."""
    if place.tier.kind == "flattened_butterfly":
        return alltoall.flattened_butterfly(place.sides[0].length, [s.members for s in place.sides])
    if all(s.whole for s in place.sides):
        return whole_dragonfly_all_to_all(place)
    return part_of_dragonfly_all_to_all(place)


def whole_dragonfly_all_to_all(place: Place) -> Schedule:
    """All parts of all ranks of a dragonfly at once by minimal routing."""
    (p, a, g), links = place.tier.shape, global_links(place.tier)
    return alltoall.dragonfly(p, a, g, links.between, links.two_fullest)


def part_of_dragonfly_all_to_all(place: Place) -> Schedule:
    """All parts at once in a part of a dragonfly: terminal, local and global links, each at the most it may carry.

    Which local links lead to the groups of a part depends on the cabling, so this is a bound from above.
    """
    (p, a), links = (s.length for s in place.sides[:2]), global_links(place.tier)
    terminals, routers, groups = (s.members for s in place.sides)
    n, beyond = place.members, min(links.two_fullest / links.between, 2.0 * (groups - 1))
    local = p * terminals * ((routers > 1) + beyond * routers)
    across = a * p * routers * terminals / links.between if groups > 1 else 0
    return Schedule(1.0, 5.0 if groups > 1 else 3.0, float(max(n - 1, local, across)) / n, messages=n - 1)


def broadcast(place: Place) -> Offer:
    """Scatter down a binomial tree from the root, then all-gather level by level."""
    n, gathered = place.members, gather(place)["hierarchical"]
    assert isinstance(gathered, Schedule)
    steps, longest = float(exponent(n)), longest_path(place)
    return {"scatter_all_gather": Schedule(steps, longest * steps, (n - 1) / n) + gathered}


def send_recv(place: Place) -> Offer:
    """From every member to the next in rank order: of the members below a link one sends over it."""
    terminals, routers, *_ = place.sides
    if all(s.members == 1 for s in place.sides[1:]):
        return {"direct": switched.send_recv(2)}
    sharing = terminals.length / terminals.members  # messages of as many groups leave a router
    load = max(1.0, sharing)
    if place.tier.kind == "dragonfly" and place.sides[2].members > 1:
        between = global_links(place.tier).between
        load = max(load, 2 * sharing, sharing * routers.length / routers.members / between)
    return {"direct": spread(switched.send_recv(longest_path(place), load), place, 1.0)}


# ---- routing --------------------------------------------------------------------------------------------------------


def longest_path(place: Place) -> int:
    """Links of the longest path: out of and into a rank, and along every side; both local links of a dragonfly."""
    if place.tier.kind == "dragonfly":
        return 5 if place.sides[2].members > 1 else 3
    return 2 + sum(side.members > 1 for side in place.sides[1:])


def spread(minimal: Schedule, place: Place, sent: float) -> Schedule:
    """A schedule by minimal routing or by way of all routers of the fabric, whichever loads the busiest link less.

    By all routers any pattern in which a rank sends and receives ``sent`` of the message loads links as two all-to-alls
    of the whole fabric do. Source: kim2008dragonfly, section 4.1; dally2004, section 9.1.
    """
    p, *shape = place.tier.shape
    if place.tier.kind == "dragonfly":
        uniform, links = whole_dragonfly_all_to_all(place).volume, 8.0 if shape[0] > 1 else 4.0
    else:
        uniform, links = max((p / side for side in shape if side > 1), default=0.0), 2.0 + 2 * sum(s > 1 for s in shape)
    volume = float(max(sent, 2 * uniform * sent))
    return minimal if minimal.volume <= volume else replace(minimal, volume=volume, hops=minimal.steps * links)
