"""Schedules over several tiers or levels: what each of them carries.

Every rank has ports of its own on each tier, and all groups that differ only in their position inside a domain run at
the same time, so no port is shared (cho2019blueconnect). A level that shares ports with the one below (the links
between the routers of a dragonfly) says how many ranks share a link.
"""

from __future__ import annotations

from typing import Any

from perfgrid.engine import xp

from .schedule import Schedule, several

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


# ---- levels that share ports ----------------------------------------------------------------------------------------


def router_gather(members: Any, terminals: Any) -> Schedule:
    """All-gather between routers that are joined directly, by links that the terminals of a router share.

    Source: kim2008dragonfly; kim2007butterfly.
    """
    load = xp.maximum(terminals, members - 1) / members
    return Schedule(several(members), 3 * several(members), load * several(members), messages=members - 1)


def dragonfly_group_gather(members: Any, terminals: Any, routers: Any, between: Any, local_links: Any) -> Schedule:
    """All-gather between groups: a·p ranks share the links to another group; local links carry what global ones do.

    ``between`` links join any two groups; the two routers of a local link have ``local_links`` of them.
    Source: kim2008dragonfly.
    """
    local = terminals * xp.minimum(local_links / between, 2 * (members - 1)) * several(routers)
    load = xp.maximum(xp.maximum(routers * terminals / between, local), members - 1) / members
    return Schedule(several(members), 5 * several(members), load * several(members), messages=members - 1)
