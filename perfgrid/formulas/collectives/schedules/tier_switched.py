"""Algorithms of the kinds that route any part to any rank: switch, rail, fat tree and full mesh."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from . import alltoall, switched
from .fabric import Place
from .schedule import Schedule

Offer = dict[str, Schedule | str]


@dataclass(frozen=True)
class Level:
    """One level of switches that a group crosses: its members there, those below, and how few uplinks there are."""

    members: int
    inside: int
    scarcity: float  # ports per uplink, counted from the ports


def levels(place: Place) -> list[Level]:
    """The levels of a tier of switches, leaves first; only a fat tree has several."""
    tier = place.tier
    if tier.kind != "fat_tree":
        return [Level(place.members, 1, 1.0)]
    above = len(place.sides) - (not place.shares_ports)  # else the tier below brings the leaves
    ratios = list(accumulate((*tier.oversubscription, *[1.0] * above)[:above], mul))
    scarcity = ratios if place.shares_ports else [1.0, *ratios]
    inside = accumulate((s.members for s in place.sides), mul, initial=1)
    return [Level(s.members, i, c) for s, i, c in zip(place.sides, inside, scarcity, strict=False)]


def hops(place: Place) -> int:
    """Links of the longest path: up to the highest level that the group crosses, and down."""
    if place.tier.kind == "fully_connected":
        return 1
    top = max(i for i, level in enumerate(levels(place)) if level.members > 1)
    return 2 * (top + 1 + place.ports_below)


def power_of_two(schedule: Schedule, *numbers: float) -> Schedule | str:
    """The schedule where all numbers are powers of two, else the reason why there is none."""
    odd = [str(int(n)) for n in numbers if int(n) & (int(n) - 1)]
    return f"needs a power of two, found {' and '.join(odd)}" if odd else schedule


def _along_levels(place: Place, kind: str) -> float:
    """Load of a schedule on the uplinks (or ports) that slow it most, per byte of message."""
    crossed = [level for level in levels(place) if level.members > 1]
    n, port = place.members, place.port_load
    if kind == "all pairs":
        return max(port * (n - 1) / n, *(level.scarcity * (n - level.inside) / n for level in crossed))
    if kind == "one sender":  # of the members below an uplink one at a time sends up
        return max(port, *(level.scarcity / level.inside for level in crossed))
    if kind == "exchange":  # farthest partners first, while the parts are small
        return sum(max(port, c.scarcity) * (c.members - 1) / (c.members * c.inside) for c in crossed)
    return max(port, *(level.scarcity for level in crossed))  # anything else: as if all sent up at the same time


# ---- switches and full mesh -----------------------------------------------------------------------------------------


def gather(place: Place) -> Offer:
    """All-gather (reduce-scatter) schedules."""
    n, path = place.members, hops(place)
    mesh = place.tier.kind == "fully_connected"
    found: Offer = {
        "direct": all_to_all(place)["direct"],
        "ring": switched.ring(n, path).load(_along_levels(place, "one sender")),
        "halving_doubling": power_of_two(
            _loaded(switched.halving_doubling(n, path), _along_levels(place, "exchange")), n
        ),
    }
    if place.tier.in_network and not mesh:
        found["in_network"] = switched.in_network_all_gather(n, path).load(_along_levels(place, "any"))
    return found


def _loaded(schedule: Schedule, volume: float) -> Schedule:
    return replace(schedule, volume=volume)


def all_reduce(place: Place) -> Offer:
    """All-reduces that are not a reduce-scatter and an all-gather."""
    n, path, most = place.members, hops(place), _along_levels(place, "any")
    found: Offer = {
        "recursive_doubling": power_of_two(switched.recursive_doubling_all_reduce(n, path).load(most), n),
        "double_binary_tree": switched.double_binary_tree_all_reduce(n, path).load(most),
    }
    if place.tier.in_network:
        found["in_network"] = switched.in_network_all_reduce(n, path).load(_along_levels(place, "one sender"))
    return found


def all_to_all(place: Place) -> Offer:
    """All parts at once."""
    n = place.members
    if place.tier.kind == "fully_connected":
        return {"direct": alltoall.full_mesh(n)}
    return {"direct": _loaded(alltoall.switch(n, hops(place)), _along_levels(place, "all pairs"))}


def broadcast(place: Place) -> Offer:
    """Broadcast schedules."""
    n, path, most = place.members, hops(place), _along_levels(place, "one sender")
    return {
        "binomial_tree": switched.binomial_tree_broadcast(n, path).load(most),
        "scatter_all_gather": switched.scatter_all_gather_broadcast(n, path).load(most),
        "pipelined_chain": switched.pipelined_chain_broadcast(n, path).load(most),
    }


def send_recv(place: Place) -> Offer:
    """From every member to the next in rank order, all at the same time."""
    sharing = max(place.port_load, *(c.scarcity / c.inside for c in levels(place) if c.members > 1))
    return {"direct": switched.send_recv(hops(place), sharing)}
