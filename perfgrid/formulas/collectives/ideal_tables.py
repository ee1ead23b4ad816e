"""Fabrics of two tiers as tables: what the schedules of one group on one fabric ask of each tier.

Plain Python on the values of one design, called by the host formulas of `ideal`; the schedules are those of
`schedules`. A fabric that cannot exist has none, nor has a group that does not fill whole domains of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from functools import lru_cache

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.axes import INNER
from perfgrid.formulas.collectives.schedules.algorithms import Route, across_tiers, tier_schedules
from perfgrid.formulas.collectives.schedules.fabric import OUTER, TIER_KINDS, Fabric, Tier, place, shape_problem
from perfgrid.formulas.collectives.schedules.schedule import NOTHING, Schedule

ALGORITHMS = INNER.labels["algorithm"]
TIERS = len(INNER.labels["tier"])
VOLUME, ALONE_VOLUME = (INNER.labels["link_use"].index(use) for use in ("volume", "alone_volume"))
USES = len(INNER.labels["link_use"]) // 2  # those of the whole group, then those of each tier alone
FABRIC = "tier_kind tier_sides scale_up_wraps tier_tapers tier_in_network tier_global_links"  # of `fabric_of`
ABSENT = -1.0  # volume of a schedule that a group does not have: a load is never negative
ALONE = Fabric((Tier("switch", (1,)),))


def fabric_of(
    kind: np.ndarray,
    sides: np.ndarray,
    wraps: np.ndarray | float,
    tapers: np.ndarray,
    in_network: np.ndarray | float,
    global_links: np.ndarray | float,
) -> Fabric | None:
    """The fabric that the quantities of a topology state, without speeds; None where there can be none.

    ``kind``, ``in_network`` and ``global_links`` by tier, ``wraps`` by side, ``sides`` and ``tapers`` by side and tier.
    An outer tier of one domain is left out.
    """
    most = len(sides)
    tapers = np.broadcast_to(tapers.reshape(most, -1), sides.shape)[:-1]
    in_network, global_links = np.broadcast_to(in_network, TIERS), np.broadcast_to(global_links, TIERS)
    stated = tuple(
        (
            TIER_KINDS[int(code)],
            tuple(int(side) for side in sides[:, i] if side > 0),
            tuple(tapers[:, i].tolist()),
            bool(in_network[i]),
            int(global_links[i]),
        )
        for i, code in enumerate(kind)
    )
    return _fabric(stated, tuple(map(bool, np.broadcast_to(wraps, most))))


@lru_cache(maxsize=2**12)
def _fabric(
    stated: tuple[tuple[str, tuple[int, ...], tuple[float, ...], bool, int], ...], wraps: tuple[bool, ...]
) -> Fabric | None:
    """The fabric of these tiers: kind, sides, tapers, whether the switches reduce, and global links of each."""
    tiers = []
    for index, (name, shape, tapers, in_network, global_links) in enumerate(stated):
        if index and np.prod(shape) == 1:
            continue
        if shape_problem(name, shape, global_links) or (index == 0 and name in OUTER):
            return None
        tiers.append(
            Tier(
                name,
                shape,
                wraps=wraps[: len(shape)] if name == "torus" and index == 0 else (),
                oversubscription=tapers if name in ("rail", "fat_tree") else (),
                global_links=global_links,
                in_network=in_network,
                twist=short_sides_twist(shape) if name == "twisted_torus" else (),
                own_ports=name == "fat_tree",
            )
        )
    return Fabric(tuple(tiers))


def short_sides_twist(sides: Sequence[int]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Where a side shorter than the longest wraps, it arrives half of the longest side further along each longest.

    Source: camara2010twisted; jouppi2023tpuv4, section 2.8.
    """
    longest = max(sides)
    shift = tuple(side // 2 if side == longest else 0 for side in sides)
    return tuple((i, shift) for i, side in enumerate(sides) if side < longest)


def links(kind: str, sides: Sequence[int]) -> float:
    """Links (or ports) of one rank on a tier, which share what its device brings there.

    Two on every side of a torus or mesh, one to every peer of a full mesh or along a side of a HyperX.
    """
    if kind in ("torus", "twisted_torus", "mesh"):
        return max(2.0 * sum(side > 1 for side in sides), 1.0)
    if kind == "hypercube":
        return float(len(sides))
    if kind in ("fully_connected", "hyperx"):
        return max(float(sum(side - 1 for side in sides)), 1.0)
    return 2.0 if kind in ("ring", "line") else 1.0


@lru_cache(maxsize=2**12)
def schedules(fabric: Fabric | None, collective: str, size: int, stride: int, spare: bool = True) -> np.ndarray:
    """What the schedules of a group ask of the links, by link_use, algorithm and tier.

    Those of the whole group, and (``alone_``) those of each tier on its own. A schedule that the group does not have
    has the volume `ABSENT`. ``spare``: the cluster may leave a part of the fabric idle.
    """
    found = np.zeros((2 * USES, len(ALGORITHMS), TIERS))
    found[[VOLUME, ALONE_VOLUME]] = ABSENT
    if size == 1:  # a single rank has nothing to do, wherever it lies
        fabric, stride = ALONE, 1
    try:
        places = place(fabric, size, stride, spare) if fabric else ()
    except PerfgridError:
        places = ()
    if not places:
        return found
    whole, alone = found[:USES], found[USES:]
    for name, route in across_tiers(places, collective).items():
        if isinstance(route, Route):
            row = whole[:, ALGORITHMS.index(name)]
            row[:] = 0.0
            row[:, : len(route.parts)] = np.array([astuple(part) for part in route.parts]).T
    offers = [*tier_schedules(places, collective), *[{"direct": NOTHING}] * (TIERS - len(places))]
    for tier, offer in enumerate(offers):
        for name, schedule in offer.items():
            if isinstance(schedule, Schedule):
                alone[:, ALGORITHMS.index(name), tier] = astuple(schedule)
    return found
