"""Fabrics of several tiers or levels: what each tier carries, and how the parts of a schedule follow one another.

Every rank has ports of its own on each tier, and all groups that differ only in their position inside a domain run at
the same time, so no port is shared (cho2019blueconnect). A level that shares ports with the one below (the uplinks of a
fat tree, the links between the routers of a dragonfly) says how many ranks share a link.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from perfgrid.engine import xp

from .schedule import Coefficients, Schedule, several

# ---- composition ----------------------------------------------------------------------------------------------------


def in_sequence(parts: Sequence[Coefficients]) -> Coefficients:
    """One part after the other, as the tiers of a hierarchical collective: times add up. Source: cho2019blueconnect."""
    return reduce(lambda a, b: a + b, parts)


def pipelined(parts: Sequence[Coefficients]) -> Coefficients:
    """The message in chunks that follow each other through the parts, which use different links.

    C chunks take the time of all parts for one chunk, and C - 1 times that of the slowest. Longest latency and slowest
    load may belong to different parts. Valid for parts that are not chunked themselves.
    Source: rashidi2022themis; cho2019blueconnect.
    """
    latency, load = [p.latency for p in parts], [p.inverse_bandwidth for p in parts]
    longest, slowest = reduce(xp.maximum, latency), reduce(xp.maximum, load)
    return Coefficients(sum(latency) - longest, slowest, longest, sum(load) - slowest)


def together(parts: Sequence[Coefficients]) -> Coefficients:
    """One set of messages over the links of all parts at once: the longest path, the busiest link.

    The latency of a part is that of its piece of the path; pass the step latency with one of them only.
    Source: dally2004, chapter 3.
    """
    return Coefficients(sum(p.latency for p in parts), reduce(xp.maximum, [p.inverse_bandwidth for p in parts]))


# ---- flat rings through all ranks of two tiers ----------------------------------------------------------------------


def multi_ring(inside: Any, domains: Any) -> tuple[Schedule, Schedule]:
    """All-gather on as many rings as a domain has members, each leaving a domain over another rail: (inner, outer).

    Every step waits for the rank whose neighbour is in another domain. Source: nccl2026tuning; patarasuk2009ring.
    """
    n = inside * domains
    per_ring = (n - 1) / (n * inside)
    return (
        Schedule(0.0, 0.0, per_ring * (inside - 1)),
        Schedule(n - 1, 2 * (n - 1), per_ring),
    )


# ---- all-to-all through rails ---------------------------------------------------------------------------------------


def rail_direct(inside: Any, domains: Any, oversubscription: Any = 1) -> tuple[Schedule, Schedule]:
    """All-to-all of node-local parts inside, all others over the network: (inner, outer).

    Parts for another rail cross the spine, which may be oversubscribed. Source: nvidia2022pxn; alfares2008fattree.
    """
    n = inside * domains
    outside, crossing = (n - inside) / n, (n - inside - domains + 1) / n
    return (
        Schedule(0.0, 0.0, (inside - 1) / n, messages=inside - 1),
        Schedule(
            several(domains),
            4 * several(domains),
            xp.maximum(outside, oversubscription * crossing),
            messages=n - inside,
        ),
    )


def rail_forward(inside: Any, domains: Any) -> tuple[Schedule, Schedule]:
    """All-to-all that moves each part to its destination's rail inside the node first: (inner, outer).

    Source: nvidia2022pxn; wang2023railonly, section 4.
    """
    return (
        Schedule(several(inside), 2 * several(inside), (inside - 1) / inside, messages=inside - 1),
        Schedule(several(domains), 2 * several(domains), (domains - 1) / domains, messages=domains - 1),
    )


# ---- levels that share ports ----------------------------------------------------------------------------------------


def fat_tree_uplinks(schedule: Schedule, oversubscription: Any) -> Schedule:
    """A schedule between leaf switches: each path up and down again, the uplinks ``oversubscription`` times as loaded.

    Source: alfares2008fattree.
    """
    return Schedule(schedule.steps, 2 * schedule.hops, schedule.volume * oversubscription)


def fat_tree_levels(n: Any, sizes: Any, oversubscription: Any) -> Any:
    """Load of a uniform all-to-all over the levels of a fat tree, per byte of message.

    Level i joins domains of ``sizes`` ranks (trailing axis, innermost first) by links that are ``oversubscription``
    times too few, counted from the ports. Source: alfares2008fattree.
    """
    n = xp.asarray(n)[..., None]
    return xp.max(oversubscription * xp.maximum(n - sizes, 0.0) / n, axis=-1)


def dragonfly_router_gather(members: Any, terminals: Any) -> Schedule:
    """All-gather between the routers of a group, whose direct links are shared by the terminals of a router.

    Source: kim2008dragonfly.
    """
    load = xp.maximum(terminals, members - 1) / members
    return Schedule(several(members), 3 * several(members), load * several(members), messages=members - 1)


def dragonfly_group_gather(members: Any, terminals: Any, routers: Any, global_links: Any) -> Schedule:
    """All-gather between groups: all a·p ranks share the one link to another group, p·h pass a local link at each end.

    Source: kim2008dragonfly.
    """
    local = 2 * terminals * xp.minimum(global_links, members - 1)
    load = xp.maximum(xp.maximum(routers * terminals, local), members - 1) / members
    return Schedule(several(members), 5 * several(members), load * several(members), messages=members - 1)


def tree_gather_load(degrees: Any, child_bandwidth: Any, sharded: Any = 1) -> Any:
    """Inverse bandwidth (s/byte) of an all-gather overlapped over the levels of a tree.

    ``degrees`` children per node of a level and their bandwidth upwards (byte/s), innermost first along the trailing
    axis; ``sharded``: ways in which an inner axis already splits the array. Source: scalingbook2025, "GPUs".
    """
    below = xp.cumprod(degrees, axis=-1) / degrees
    return xp.max((degrees - 1) / (degrees * xp.maximum(sharded / below, 1.0) * child_bandwidth), axis=-1)
