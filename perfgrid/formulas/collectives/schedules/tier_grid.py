"""Algorithms of the kinds whose ranks are linked to neighbours: ring, line, torus, mesh, hypercube and HyperX."""

from __future__ import annotations

import numpy as np

from . import alltoall, graphs, grids, rings, switched
from .fabric import Place
from .schedule import Schedule
from .tier_switched import Offer, power_of_two

ALONE = "needs a group that fills whole sides of the shape"
ALIKE = "needs sides that all wrap around or all do not"


def sides(place: Place) -> np.ndarray:
    """The group's sides, for formulas."""
    return np.array([s.members for s in place.active], float)


# ---- all-gather and reduce-scatter ----------------------------------------------------------------------------------


def gather(place: Place) -> Offer:
    """All-gather (reduce-scatter) schedules; every kind can also send all parts to everyone at once (direct)."""
    direct, kind, n = all_to_all(place), place.tier.kind, place.members
    if kind == "hypercube":
        return {
            "halving_doubling": switched.halving_doubling(n, hops=1),
            "rotated_halving_doubling": grids.hypercube_rotated(n),
            **direct,
        }
    if kind == "hyperx":
        own = {
            "direct_per_dimension": grids.direct_per_dimension(sides(place)),
            "rotated_direct": grids.rotated_direct(sides(place)),
        }
        return {**own, **direct}
    if kind == "twisted_torus":
        two = len(place.active) == 2 and min(sides(place)) > 2
        pair = grids.hamiltonian_rings(n, 2) if two else "needs two sides of at least 3"
        return {"ring": grids.hamiltonian_rings(n), "hamiltonian_rings": pair, **direct}
    if kind == "ring" and not place.tier.bidirectional:
        side = place.active[0]
        return {"ring": rings.one_way_ring(side.members, side.stride, side.length), **direct}
    if kind in ("ring", "line"):
        return {**_single_side(place), **direct}
    return {**_several_sides(place), **_single_side(place), **direct}


def _along(place: Place) -> list[Schedule]:
    return [(rings.ring if s.closed else rings.line)(s.members, s.stride) for s in place.active]


def _single_side(place: Place) -> Offer:
    """A ring or line; a group that does not close round its ring is a line there, under the ring's name."""
    if sum(s.members > 1 for s in place.sides) > 1:
        return {}
    side, schedule = next(iter(place.active)), _along(place)[0]
    if not side.ring:
        return {"line": schedule}
    return {
        "ring": schedule,
        "ring_half_hops": rings.half_hops(side.members, side.stride) if side.closed else ALONE,
        "halving_doubling": _owned(place, power_of_two(rings.halving_doubling(side.members), side.members)),
    }


def _owned(place: Place, schedule: Schedule | str) -> Schedule | str:
    """The schedule where no other group shares the group's links, else the reason why there is none."""
    return schedule if all(s.owned for s in place.active) else ALONE


def _several_sides(place: Place) -> Offer:
    """Torus and mesh."""
    n, lengths, torus = place.members, sides(place), all(s.ring for s in place.active)
    if not torus and any(s.ring for s in place.active):
        return {"bucket": _bucket(place), **dict.fromkeys(("rotated", "rotated_balanced"), ALIKE)}
    ways = 2 if torus else 1
    found: Offer = {
        "bucket": _bucket(place),
        "rotated": _owned(place, grids.rotated(lengths, ways)),
        "rotated_balanced": _owned(place, grids.balanced_rotated(lengths, ways)),
    }
    if len(place.active) == 1:
        return found
    even = torus or n % 2 == 0
    found["ring"] = _owned(
        place, grids.hamiltonian_rings(n) if even else f"needs an even number of ranks on a mesh, found {n}"
    )
    if torus:
        found["halving_doubling"] = _owned(place, power_of_two(grids.halving_doubling(lengths), *lengths))
        several = grids.hamiltonian_rings(n, len(lengths)) if min(lengths) > 2 else "needs sides of at least 3"
        found["hamiltonian_rings"] = _owned(place, several)
    return found


def _bucket(place: Place) -> Schedule:
    """One side after the other, each with what is left of the message; sides may be shared with other groups."""
    if len({s.ring for s in place.active}) == 1 and _owned(place, "") != ALONE:
        return grids.bucket(sides(place), 2 if place.active[0].ring else 1)
    found, left = Schedule(0.0, 0.0, 0.0), 1
    for schedule, side in zip(_along(place), place.active, strict=True):
        found, left = found + schedule.load(1 / left), left * side.members
    return found


# ---- the others -----------------------------------------------------------------------------------------------------


def all_reduce(place: Place) -> Offer:
    """All-reduces that are not a reduce-scatter and an all-gather of this module."""
    lengths = sides(place)
    if not all(s.ring for s in place.active) or not place.tier.bidirectional:
        return {}
    if len(set(lengths)) > 1:
        return {"swing": f"needs equal sides, found {' and '.join(str(int(s)) for s in lengths)}"}
    return {"swing": _owned(place, power_of_two(2 * grids.swing(lengths), lengths[0]))}


def all_to_all(place: Place) -> Offer:
    """All parts at once by the shortest ways."""
    kind, tier = place.tier.kind, place.tier
    if kind == "twisted_torus":
        return {"direct": graphs.twisted_torus_all_to_all(tier.shape, dict(tier.twist))}
    if kind == "ring" and not tier.bidirectional:
        side = place.active[0]
        return {"direct": alltoall.one_way_ring(side.members, side.stride, side.length)}
    if kind in ("hyperx", "hypercube"):
        along = [alltoall.full_mesh(s.members) for s in place.active]
    else:
        along = [(alltoall.ring if s.closed else alltoall.line)(s.members, s.stride) for s in place.active]
    longest, busiest = sum(s.hops for s in along), max(s.volume for s in along)
    return {"direct": Schedule(1.0, longest, busiest, messages=place.members - 1.0)}


def broadcast(place: Place) -> Offer:
    """Broadcast schedules: down a chain through all ranks, or down a tree as deep as the shape."""
    n, tier = place.members, place.tier
    apart = max(s.stride for s in place.active)
    chain = switched.pipelined_chain_broadcast(n, hops=apart).load(apart)
    if tier.kind == "ring" and not tier.bidirectional:
        return {"pipelined_chain": chain}
    tree = switched.pipelined_tree_broadcast(float(_depth(place)), hops=apart).load(apart)
    found: Offer = {"pipelined_chain": chain, "pipelined_tree": tree}
    if tier.kind == "hypercube":
        found["binomial_tree"] = switched.binomial_tree_broadcast(n, hops=1)
    return found


def _depth(place: Place) -> int:
    """Links from the root (a corner of a mesh, the end of a line) to the farthest rank."""
    if place.tier.kind in ("hyperx", "hypercube"):
        return len(place.active)
    if place.tier.kind == "twisted_torus":
        return int(graphs.twisted_torus_all_to_all(place.tier.shape, dict(place.tier.twist)).hops)
    return sum(s.members // 2 if s.closed else s.members - 1 for s in place.active)


def send_recv(place: Place) -> Offer:
    """From every member to the next in rank order, all at the same time.

    The longest way is the one that carries into the last side: every earlier side goes back to its start. Groups that
    share a side share its links.
    """
    if place.tier.kind in ("hyperx", "hypercube"):
        return {"direct": switched.send_recv(len(place.active))}
    *earlier, last = place.active
    back = [s.stride if s.closed else (s.members - 1) * s.stride for s in earlier]
    return {"direct": switched.send_recv(sum(back) + last.stride, max(s.stride for s in place.active))}
