"""Fabrics of two tiers as tables: what the schedules of one group on one fabric ask of each tier.

Plain Python on the values of one design, called by the host formulas of `ideal`; the schedules are those of
`schedules`. A fabric that cannot exist has none, nor has a group that does not fill whole domains of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.collectives.schedules.fabric import KINDS, OUTER, TIER_KINDS, Fabric, Tier
from perfgrid.formulas.collectives.schedules.tables import ALGORITHMS, MEMBERS, group_table

ABSENT = -1.0  # volume of a schedule that a group does not have: a load is never negative
FEWEST = {"switch": 1.0, "rail": 1.0, "rail_only": 1.0, "fat_tree": 1.0, "dragonfly": 1.0, "ring": 2.0, "line": 2.0}


@dataclass(frozen=True)
class Shape:
    """A fabric without speeds: kind, sides and what the kind adds, per tier."""

    kinds: tuple[str, ...]
    sides: tuple[tuple[int, ...], ...]
    wraps: tuple[bool, ...]  # of the inner tier
    oversubscription: tuple[tuple[float, ...], ...]
    in_network: tuple[bool, ...]
    global_links: tuple[int, ...]

    def fabric(self) -> Fabric:
        """The fabric; PerfgridError where it cannot exist. An outer tier of one domain is left out."""
        tiers = []
        for index, (kind, sides) in enumerate(zip(self.kinds, self.sides, strict=True)):
            if index and int(np.prod(sides)) == 1:
                continue
            least, most, meaning = KINDS[kind]
            if not least <= len(sides) <= most:
                raise PerfgridError(f"a {kind} takes {least} to {most} sides ({meaning}), found {list(sides)}")
            if index == 0 and kind in OUTER:
                raise PerfgridError(f"a {kind} joins domains of an inner tier and cannot be the innermost")
            if kind == "hypercube" and set(sides) != {2}:
                raise PerfgridError(f"the sides of a hypercube are 2, found {list(sides)}")
            if kind == "dragonfly" and sides[2] != sides[1] * self.global_links[index] + 1:
                raise PerfgridError(f"a dragonfly has routers x global links + 1 groups, found {list(sides)}")
            tiers.append(
                Tier(
                    kind,
                    sides,
                    1.0,
                    0.0,
                    0.0,
                    wraps=self.wraps[: len(sides)] if kind == "torus" and index == 0 else (),
                    oversubscription=self.oversubscription[index] if kind in ("rail", "fat_tree") else (),
                    global_links=self.global_links[index],
                    in_network=self.in_network[index],
                    twist=short_sides_twist(sides) if kind == "twisted_torus" else (),
                    own_ports=kind == "fat_tree",
                )
            )
        return Fabric(tuple(tiers))


def shape_of(
    kind: np.ndarray,
    sides: np.ndarray,
    wraps: np.ndarray | float,
    tapers: np.ndarray,
    in_network: np.ndarray | float,
    global_links: np.ndarray | float,
) -> Shape:
    """The shape that the quantities of a topology state.

    ``kind``, ``in_network`` and ``global_links`` by tier, ``wraps`` by side, ``sides`` and ``tapers`` by side and tier.
    """
    most, tiers = sides.shape
    return Shape(
        tuple(TIER_KINDS[int(code)] for code in kind),
        tuple(tuple(int(side) for side in of_tier if side > 0) for of_tier in sides.T),
        tuple(bool(wrap) for wrap in np.broadcast_to(wraps, most)),
        tuple(tuple(map(float, levels)) for levels in np.broadcast_to(tapers.reshape(most, -1), sides.shape)[:-1].T),
        tuple(bool(flag) for flag in np.broadcast_to(in_network, tiers)),
        tuple(int(count) for count in np.broadcast_to(global_links, tiers)),
    )


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
    return FEWEST[kind]


def exists(shape: Shape) -> bool:
    """Whether there is such a fabric."""
    try:
        return bool(shape.fabric().tiers)
    except PerfgridError:
        return False


@lru_cache(maxsize=2**12)
def schedules(shape: Shape, collective: str, size: int, stride: int, spare: bool = True) -> np.ndarray:
    """What the schedules of a group ask of the links, by link_use, algorithm, span and tier.

    The first span holds the schedules of the whole group, the others those of each tier on its own. A schedule that the
    group does not have has the volume `ABSENT`. ``spare``: the cluster may leave a part of the fabric idle.
    """
    tiers = len(shape.kinds)
    found = np.zeros((len(MEMBERS), len(ALGORITHMS), 1 + tiers, tiers))
    volume = found[MEMBERS.index("volume")]
    volume[:] = ABSENT
    alone = Fabric((Tier("switch", (1,), 1.0, 0.0, 0.0),))
    try:
        fabric = shape.fabric() if size > 1 else alone  # a single rank has nothing to do, wherever it lies
    except PerfgridError:
        return found
    stride = stride if size > 1 else 1
    table = group_table(fabric, collective, [(size, stride)], tiers, spare)
    if not table.placed[0]:
        return found
    for use, member in zip(found, MEMBERS, strict=True):
        use[:, 0] = getattr(table.schedule, member)[0]
        for tier in range(tiers):
            use[:, 1 + tier] = 0.0
            use[:, 1 + tier, tier] = getattr(table.by_tier, member)[0, :, tier]
    volume[~table.offered[0], 0] = ABSENT
    for tier in range(tiers):
        volume[~table.by_tier_offered[0, :, tier], 1 + tier] = ABSENT
    return found
