"""A fabric as data, and where a group of ranks lies on it.

Tiers and the sides of their shapes are listed from the innermost outwards; the first varies fastest in the order of
ranks. This file and `algorithms` work on single fabrics with plain numbers, once per fabric and group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from perfgrid.engine.errors import PerfgridError

MOST_SIDES = 4
# what the numbers of a kind's shape mean, and how many there may be
KINDS: Mapping[str, tuple[int, int, str]] = {
    "switch": (1, 1, "ports"),
    "rail": (1, 1, "domains"),
    "rail_only": (1, 1, "domains"),
    "fat_tree": (1, MOST_SIDES, "children per switch of each level"),
    "dragonfly": (3, 3, "terminals per router, routers per group, groups"),
    "fully_connected": (1, 1, "ranks"),
    "ring": (1, 1, "ranks"),
    "line": (1, 1, "ranks"),
    "torus": (1, MOST_SIDES, "sides"),
    "mesh": (1, MOST_SIDES, "sides"),
    "twisted_torus": (2, MOST_SIDES, "sides"),
    "hypercube": (1, 20, "a 2 for each dimension"),
    "hyperx": (1, MOST_SIDES, "sides"),
    "flattened_butterfly": (2, MOST_SIDES, "terminals per router, routers along each side"),
}
TIER_KINDS = tuple(KINDS)  # in the order of the codes of the catalog's tier_kind
OUTER = ("rail", "rail_only")  # they join domains of an inner tier by equal position
SWITCHED = ("switch", "rail", "rail_only", "fat_tree")
ROUTED = ("dragonfly", "flattened_butterfly")  # terminals share routers that are joined directly


def shape_problem(kind: str, shape: Any, global_links: int) -> str:
    """What makes a shape illegal for a kind of tier; nothing where it is legal."""
    least, most, meaning = KINDS[kind]
    if not isinstance(shape, (list, tuple)) or not least <= len(shape) <= most:
        count = f"{least}" if least == most else f"{least} to {most}"
        return f"a {kind} takes {count} whole numbers ({meaning}), found {shape!r}"
    if kind == "hypercube" and set(shape) != {2}:
        return f"the sides of a hypercube are 2, found {list(shape)}; see hyperx or torus"
    if kind == "dragonfly" and shape[2] > (groups := shape[1] * global_links + 1):
        return (
            f"a dragonfly of {shape[1]} routers with {global_links} global links each joins at most {groups} groups, "
            f"one link between any two, found {shape[2]}"
        )
    return ""


@dataclass(frozen=True)
class Tier:
    """One tier: kind, shape, byte/s per link (or port) and direction, latencies in s and what its kind adds."""

    kind: str
    shape: tuple[int, ...]
    bandwidth: float = 1.0
    step_latency: float = 0.0
    hop_latency: float = 0.0
    message_latency: float = 0.0  # to post one of several messages to different ranks
    bidirectional: bool = True  # ring
    wraps: tuple[bool, ...] = ()  # torus: sides that are rings, the others are lines; all by default
    oversubscription: tuple[float, ...] = ()  # fat_tree: of each level above the leaves; rail: of the spine
    global_links: int = 0  # dragonfly: per router
    in_network: bool = False  # the switches add and multicast
    twist: tuple[tuple[int, tuple[int, ...]], ...] = ()
    own_ports: bool = False  # fat_tree: ranks have ports of their own on it; else it is the uplinks of switches below

    @property
    def size(self) -> int:
        """Ranks (or inner domains) that the tier joins."""
        return math.prod(self.shape)

    @property
    def speed(self) -> tuple[float, float, float, float]:
        """Step latency, hop latency, bandwidth and message latency, as `Schedule.on` takes them."""
        return self.step_latency, self.hop_latency, self.bandwidth, self.message_latency

    @property
    def rings(self) -> tuple[bool, ...]:
        """Which sides of the shape close to a ring."""
        return self.wraps or (self.kind in ("ring", "torus"),) * len(self.shape)


@dataclass(frozen=True)
class Fabric:
    """Tiers from the innermost outwards."""

    tiers: tuple[Tier, ...]
    nccl: tuple[str, str] | None = None  # fabric and device of the catalog that state the constants of NCCL

    @property
    def size(self) -> int:
        """Ranks of the whole fabric."""
        return math.prod(t.size for t in self.tiers)

    @property
    def name(self) -> str:
        """Kinds and shapes, for messages."""
        return " of ".join(f"{t.kind} {'x'.join(map(str, t.shape))}" for t in reversed(self.tiers))


@dataclass(frozen=True)
class GlobalLinks:
    """Links between the groups of a dragonfly: how many join any two, and how a group's routers share them out.

    The a·h links of a group are dealt out to its g - 1 peers in equal numbers; those left over would only help some
    pairs and stay idle. One router after the other takes a link, so the fullest has one more than the emptiest.
    Source: kim2008dragonfly, section 3; teh2017dragonfly.
    """

    between: int  # links between any two groups; at least 1
    fullest: int  # links in use at the router with most
    two_fullest: int  # and at the two with most


def global_links(tier: Tier) -> GlobalLinks:
    """Links between the groups of a dragonfly of any number of groups."""
    _, routers, groups = tier.shape
    between = routers * tier.global_links // (groups - 1) if groups > 1 else 1
    used = between * (groups - 1)
    fullest = math.ceil(used / routers)
    return GlobalLinks(between, fullest, fullest + math.ceil(max(used - 1, 0) / routers) if routers > 1 else fullest)


@dataclass(frozen=True)
class Side:
    """A group's part of one side: ``members`` of its ``length`` positions, ``stride`` apart."""

    length: int
    members: int
    stride: int
    ring: bool = False  # the side wraps around

    @property
    def whole(self) -> bool:
        """The group has all positions of the side."""
        return self.members == self.length

    @property
    def closed(self) -> bool:
        """On a ring, and the last member is as far from the first as any two neighbours."""
        return self.ring and self.members * self.stride == self.length

    @property
    def owned(self) -> bool:
        """No other group shares the links between the members: a whole ring, or a line without gaps."""
        return self.whole if self.ring else self.stride == 1


@dataclass(frozen=True)
class Place:
    """A group's part of one tier."""

    tier: Tier
    sides: tuple[Side, ...]
    inner: int  # members of the group inside one domain below this tier
    below: int  # ranks in one domain below this tier
    ports_below: int = 0  # levels of switches below that this tier's paths pass through the same ports
    port_load: float = 1.0  # load of a rank's port by what this tier carries, relative to this tier's own bandwidth
    members: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", math.prod(s.members for s in self.sides))

    @property
    def shares_ports(self) -> bool:
        """The tier is made of the uplinks of the switches below it."""
        return self.ports_below > 0

    @property
    def active(self) -> tuple[Side, ...]:
        """Sides along which the group extends."""
        return tuple(s for s in self.sides if s.members > 1)


def place(fabric: Fabric, size: int, stride: int, spare: bool = False) -> tuple[Place, ...]:
    """Where a group of ``size`` ranks ``stride`` apart lies; PerfgridError if it does not fill whole domains.

    The members inside a domain of S ranks are clamp(S/stride, 1, size); the rule holds for every side of every tier.
    With ``spare`` the groups need not fill the outermost side: a cluster may leave a part of it idle (eight of the nine
    groups of a dragonfly). Source: narayanan2021, section 3.
    """
    if size * stride > fabric.size:
        raise PerfgridError(
            f"group: {size} ranks {stride} apart span {size * stride} ranks, but the topology has {fabric.size}"
        )
    if fabric.size % (size * stride) and not spare:
        raise PerfgridError(
            f"group: {size} ranks {stride} apart do not divide the {fabric.size} ranks of the topology; "
            f"size times stride must be one of {_divisors(fabric.size)}"
        )
    places: list[Place] = []
    below, inner, ports, port = 1, 1, 0, math.inf
    for index, tier in enumerate(fabric.tiers):
        sides, start, inside = [], below, inner
        for length, ring in zip(tier.shape, tier.rings, strict=True):
            outermost = spare and length * below == fabric.size
            side = _side(length, below, size, stride, f"tier {index} ({tier.kind})", outermost)
            sides.append(replace(side, ring=ring))
            below *= length
            inner *= sides[-1].members
        if tier.kind != "fat_tree" or tier.own_ports or not ports:
            ports, port = 0, tier.bandwidth
        places.append(Place(tier, tuple(sides), inside, start, ports, max(1.0, tier.bandwidth / port)))
        if tier.kind == "twisted_torus" and 1 < places[-1].members < tier.size:
            raise PerfgridError(
                f"group: a twisted torus has no sides that a part of its ranks could own, found a group of "
                f"{places[-1].members} of {tier.size}; legal: all of them, or groups inside or outside of this tier"
            )
        ports += len(tier.shape) if tier.kind in SWITCHED else 0
    return tuple(places)


def _side(length: int, below: int, size: int, stride: int, where: str, spare: bool) -> Side:
    """The part of a side whose positions are ``below`` ranks apart; ``spare`` positions may be left over."""
    span, domain = size * stride, length * below
    if below % span == 0 or stride % domain == 0:  # inside one position, or every member in a domain of its own
        return Side(length, 1, 1)
    apart, covered = max(stride, below), min(span, domain)
    if spare and span <= domain:
        domain = covered
    if not (apart % min(stride, below) or domain % apart or domain % covered or span % covered or covered % apart):
        return Side(length, covered // apart, apart // below)
    raise PerfgridError(
        f"group: {size} ranks {stride} apart do not fill whole domains of {where}, which joins {length} domains of "
        f"{below}; the stride must divide a domain or be a multiple of it, and so must size times stride"
    )


def _divisors(n: int) -> str:
    found = [d for d in range(1, n + 1) if n % d == 0] if n <= 1 << 20 else [1, n]
    return ", ".join(map(str, found[:12])) + (" ..." if len(found) > 12 else "")
