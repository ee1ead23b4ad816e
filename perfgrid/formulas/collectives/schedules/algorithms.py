"""Which algorithms a group has on its tiers: name -> schedule, or the reason why it has none there.

All-reduce is a reduce-scatter and an all-gather by the same algorithm unless it has a schedule of its own. Over several
tiers an algorithm is a `Route`: what each tier does, and whether one after the other, in chunks, or at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from operator import add
from typing import Any

from . import hierarchy, tier_grid, tier_routers, tier_switched
from .fabric import ROUTED, SWITCHED, Place
from .schedule import NOTHING, Coefficients, Schedule

Offer = dict[str, Schedule | str]
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv")
GATHERING = ("reduce_scatter", "all_gather")
SYNONYMS = {
    ("all_reduce", "two_shot"): "direct",
    ("all_to_all", "minimal"): "direct",
    ("all_to_all", "shortest_paths"): "direct",
}
# what "hierarchical" runs on a tier: the schedule that its kind is built for
ORDINARY: Mapping[str, str] = {
    "ring": "ring",
    "line": "line",
    "fully_connected": "direct",
    "switch": "direct",
    "torus": "rotated",
    "mesh": "rotated",
    "twisted_torus": "ring",
    "hypercube": "rotated_halving_doubling",
    "hyperx": "direct_per_dimension",
    "fat_tree": "ring",
    "dragonfly": "hierarchical",
    "flattened_butterfly": "hierarchical",
    "rail": "ring",
    "rail_only": "ring",
}


def changed(offer: Mapping[str, Schedule | str], change: Callable[[Schedule], Any]) -> dict[str, Any]:
    """An offer with its schedules changed; reasons why there is none stay."""
    return {name: s if isinstance(s, str) else change(s) for name, s in offer.items()}


def on_tier(place: Place, collective: str) -> Offer:
    """Schedules of a collective among the members of a group on one tier."""
    if place.members == 1:
        return {"direct": NOTHING}
    kind = place.tier.kind
    of: Any = tier_switched if kind in (*SWITCHED, "fully_connected") else tier_routers if kind in ROUTED else tier_grid
    if collective == "all_reduce":
        return _all_reduce(of.gather(place), place) | of.all_reduce(place)
    return of.gather(place) if collective in GATHERING else getattr(of, collective)(place)


def _all_reduce(gather: Offer, place: Place) -> Offer:
    """Reduce-scatter and all-gather by each algorithm, and everyone's whole message to everyone at once."""
    return {**changed(gather, lambda s: 2 * s), "one_shot": _schedule(gather["direct"]).load(place.members)}


def ordinary(place: Place, collective: str) -> Schedule:
    """The schedule that ``hierarchical`` runs on a tier: what its kind is built for, where the group can have it."""
    legal = {name: s for name, s in on_tier(place, collective).items() if isinstance(s, Schedule)}
    usual = ORDINARY[place.tier.kind] if collective in GATHERING else "direct"
    name = next(n for n in (usual, "bucket", "scatter_all_gather", "pipelined_tree", *legal) if n in legal)
    return legal[name]


def leanest(place: Place, collective: str) -> Schedule:
    """The schedule that ``hierarchical_pipelined`` runs on a tier: of those that load links least, the fewest steps.

    Every chunk pays the steps of the longest tier, so a ring through many ranks would forbid chunks.
    Source: rashidi2022themis.
    """
    offer = on_tier(place, collective).values()
    whole = [s for s in offer if isinstance(s, Schedule) and not s.chunk_volume]
    return min(whole, key=lambda s: (round(float(s.volume), 9), float(s.steps)))


# ---- several tiers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Route:
    """A schedule on every tier and how they follow each other: "in_sequence", "pipelined" or "together"."""

    parts: tuple[Schedule, ...]
    how: str = "in_sequence"

    def on(self, places: Sequence[Place]) -> Coefficients:
        """Coefficients on the tiers of a fabric.

        In sequence times add up. Pipelined, C chunks take the time of all tiers for one chunk, and C - 1 times that of
        the slowest; the longest latency and the slowest load may belong to different tiers. Together is one set of
        messages over the links of all tiers: the slowest load, and one step latency, the largest.
        Source: cho2019blueconnect; rashidi2022themis; dally2004, chapter 3.
        """
        tiers = [p.tier for p in places]
        each = [s.on(*t.speed) for s, t in zip(self.parts, tiers, strict=True)]
        whole = reduce(add, each)
        slowest, longest = max(c.inverse_bandwidth for c in each), max(c.latency for c in each)
        if self.how == "in_sequence":
            return whole
        if self.how == "pipelined":
            return Coefficients(whole.latency - longest, slowest, longest, whole.inverse_bandwidth - slowest)
        software = [s.steps * t.step_latency for s, t in zip(self.parts, tiers, strict=True)]
        links = sum(c.latency - own for c, own in zip(each, software, strict=True))
        return Coefficients(links + max(software), slowest)


Routes = dict[str, Route | str]


def tier_schedules(places: Sequence[Place], collective: str) -> list[Offer]:
    """What each tier offers for its share of the message when a collective goes tier by tier.

    A rank gathers from outside only its part of what its domain needs; the outermost tier of an all-reduce reduces and
    spreads in one, the others do it before and after. Source: cho2019blueconnect.
    """
    outermost = max((i for i, p in enumerate(places) if p.members > 1), default=0)
    found = []
    for i, place in enumerate(places):
        offer = on_tier(place, collective if collective != "all_reduce" or i == outermost else "all_gather")
        if collective in (*GATHERING, "all_reduce"):
            factor = 2 if collective == "all_reduce" and i != outermost else 1
            offer = changed(offer, lambda s, factor=factor, inner=place.inner: (factor * s).load(1 / inner))
        found.append(offer)
    return found


def across_tiers(places: Sequence[Place], collective: str) -> Routes:
    """Algorithms of a group on a fabric: those of its one tier, or those that combine several."""
    active = [p for p in places if p.members > 1]
    found: Routes = _alone(places, collective) if len(active) <= 1 else {}
    if len(places) == 1:
        return found
    if collective == "send_recv":  # a message to the next rank may cross every tier with several members
        farthest = tuple(_schedule(on_tier(p, "send_recv")["direct"]) for p in places)
        return found or {"direct": Route(farthest, "together")}
    found["hierarchical"] = Route(_of_each_tier(places, collective, ordinary))
    if len(active) > 1:
        if not any(p.shares_ports for p in active) and collective != "broadcast":
            found["hierarchical_pipelined"] = Route(_of_each_tier(places, collective, leanest), "pipelined")
        found |= _flat(places, collective)
    return found


def _of_each_tier(
    places: Sequence[Place], collective: str, schedule: Callable[[Place, str], Schedule]
) -> tuple[Schedule, ...]:
    """Every tier's schedule for its share of the message; an all-reduce scatters inwards and gathers outwards."""
    if collective in (*GATHERING, "all_reduce"):
        passes = 2 if collective == "all_reduce" else 1
        return tuple((passes * schedule(p, "all_gather")).load(1 / p.inner) for p in places)
    return tuple(schedule(p, collective) for p in places)


def _schedule(found: Schedule | str) -> Schedule:
    assert isinstance(found, Schedule), found
    return found


def _alone(places: Sequence[Place], collective: str) -> Routes:
    """The algorithms of the only tier on which the group has several members."""
    index = next((i for i, p in enumerate(places) if p.members > 1), 0)
    before, after = (NOTHING,) * index, (NOTHING,) * (len(places) - index - 1)
    return changed(on_tier(places[index], collective), lambda s: Route((*before, s, *after)))


def _flat(places: Sequence[Place], collective: str) -> Routes:
    """Algorithms that do not stop between tiers."""
    if collective == "broadcast":
        return {}
    pairs, found = _all_pairs(places), Routes()
    if collective == "all_to_all":
        return pairs
    passes = 2 if collective == "all_reduce" else 1
    if isinstance(direct := pairs.get("direct"), Route):
        found["direct"] = Route(tuple(passes * s for s in direct.parts), "together")
        if collective == "all_reduce":
            ranks = prod(p.members for p in places)
            found["one_shot"] = Route(tuple(s.load(ranks) for s in direct.parts), "together")
    active = [i for i, p in enumerate(places) if p.members > 1]
    if len(active) == 2 and places[active[0]].tier.kind in ("switch", "fully_connected"):
        found["multi_ring"] = _multi_ring(places, active, passes)
    return found


def _multi_ring(places: Sequence[Place], active: list[int], passes: int) -> Route | str:
    inner, outer = (places[i] for i in active)
    if outer.tier.kind not in SWITCHED:
        return f"needs an outer tier of switches, found {outer.tier.kind}"
    if inner.members == 2 and outer.members % 2:
        return f"needs an even number of domains where two ranks share one, found {outer.members}"
    inside, between = hierarchy.multi_ring(inner.members, outer.members)
    if inner.tier.kind == "fully_connected":  # each ring has links of its own
        inside = inside.load(1 / (inner.members - 1))
    if outer.shares_ports:  # the ring's hops inside leave by the same ports
        inside = inside.load(inner.members / max(inner.members - 1, 1))
    most = max(c.scarcity for c in tier_switched.levels(outer))
    between = Schedule(between.steps, between.hops / 2 * tier_switched.hops(outer), between.volume * most)
    parts = [NOTHING] * len(places)
    parts[active[0]], parts[active[1]] = passes * inside, passes * between
    return Route(tuple(parts), "together")


def _all_pairs(places: Sequence[Place]) -> Routes:
    """All-to-all with all parts under way at once."""
    kinds = [p.tier.kind for p in places if p.members > 1]
    along = Route(_dimension_order(places), "together")
    if "rail" in kinds or "rail_only" in kinds:
        found: Routes = {"rail_forward": along}
    elif "fat_tree" in kinds:
        found = {}
    else:
        found = {"dimension_order": along}
    if "rail_only" in kinds:
        found["direct"] = "needs a network between the rails, found rail_only"
    elif kinds[-1] in ("rail", "fat_tree"):
        found["direct"] = Route(_direct_parts(places), "together")
    return found


def _dimension_order(places: Sequence[Place]) -> tuple[Schedule, ...]:
    """Every part moves tier by tier to its place; ports also carry what goes on over the uplinks above them."""
    parts = [_schedule(on_tier(p, "all_to_all")["direct"]) for p in places]
    reach = 1
    for i in reversed(range(len(places))):
        reach *= places[i].members
        if not places[i].shares_ports:
            if i + 1 < len(places) and places[i + 1].shares_ports:
                parts[i] = replace(parts[i], volume=max(parts[i].volume, (reach - 1) / reach))
            reach = 1
    return tuple(parts)


def _direct_parts(places: Sequence[Place]) -> tuple[Schedule, ...]:
    """Loads of a direct all-to-all: a port carries all that leaves its domain, uplinks what passes them.

    A tier below the lowest rail carries only the parts for its own domain, as its kind routes them.
    """
    n = prod(p.members for p in places)
    first = next(i for i, p in enumerate(places) if p.tier.kind in ("rail", "fat_tree"))
    parts: list[Schedule] = []
    for i, place in enumerate(places):
        beyond = (n - place.inner) / n  # of the message, to ranks outside the domain below
        if place.members == 1:
            parts.append(NOTHING)
        elif i < first:
            local = places[first].inner  # ranks for which the inner tiers deliver
            own = _schedule(on_tier(place, "all_to_all")["direct"])
            shared = places[first].shares_ports and i == first - 1
            load = (n - 1) / n if shared else own.volume * local / n
            parts.append(Schedule(own.steps, own.hops if shared else 0.0, load, messages=place.inner * own.messages))
        elif place.tier.kind == "rail":
            spine = [*place.tier.oversubscription, 1.0][0]
            crossing = spine * (beyond - (place.members - 1) / n)
            messages = place.inner * (place.members - 1.0)
            parts.append(Schedule(1.0, 4.0, max(beyond, crossing), messages=messages))
        else:
            scarce = max(
                c.scarcity * (n - place.inner * c.inside) / n for c in tier_switched.levels(place) if c.members > 1
            )
            hops = 2.0 * sum(c.members > 1 for c in tier_switched.levels(place))
            parts.append(Schedule(1.0, hops, scarce, messages=place.inner * (place.members - 1.0)))
    return tuple(parts)
