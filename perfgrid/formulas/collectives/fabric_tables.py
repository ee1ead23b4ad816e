"""Fabrics of two tiers as tables: what the schedules of one group on one fabric ask of each tier.

Plain Python on the numbers of one design, called by the host formulas of `fabrics`; the schedules are those of
`network`. A fabric that cannot exist, or a group that does not fill whole domains of it, has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.collectives.schedules.fabric import KINDS, OUTER, Fabric, Tier
from perfgrid.formulas.collectives.schedules.tables import ALGORITHMS, MEMBERS, group_table

# the words of the catalog's tier_kind, in its order
TIER_KINDS = (
    "switch", "rail", "rail_only", "fat_tree", "dragonfly", "fully_connected", "ring", "line", "torus", "mesh",
    "twisted_torus", "hypercube", "hyperx",
)  # fmt: skip
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


def shape_of(traits: np.ndarray) -> Shape:
    """A shape from the traits of its tiers, by trait and tier (see `fabrics.tier_traits`)."""
    kinds = tuple(TIER_KINDS[int(kind)] for kind in traits[0])
    return Shape(
        kinds,
        tuple(tuple(int(side) for side in sides if side > 0) for sides in traits[1:5].T),
        tuple(bool(wraps) for wraps in traits[5:9, 0]),
        tuple((float(first), float(above), float(above)) for first, above in traits[9:11].T),
        tuple(bool(flag) for flag in traits[11]),
        tuple(int(count) for count in traits[12]),
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
def demand(shape: Shape, collective: str, size: int, stride: int, spare: bool = True) -> np.ndarray:
    """What the schedules of a group ask of the tiers, by demand, algorithm and tier; all 0 where there are none.

    The last rows are what each tier offers on its own; ``spare``: the cluster may leave a part of the fabric idle.
    """
    found = np.zeros((2 * len(MEMBERS) + 3, len(ALGORITHMS), len(shape.kinds)))
    alone = Fabric((Tier("switch", (1,), 1.0, 0.0, 0.0),))
    try:
        fabric = shape.fabric() if size > 1 else alone  # a single rank has nothing to do, wherever it lies
    except PerfgridError:
        return found
    stride = stride if size > 1 else 1
    table = group_table(fabric, collective, [(size, stride)], len(shape.kinds), spare)
    if not table.placed[0]:
        return found
    for row, member in enumerate(MEMBERS):
        found[row] = getattr(table.schedule, member)[0]
        found[len(MEMBERS) + 2 + row] = getattr(table.by_tier, member)[0]
    found[len(MEMBERS)] = table.how[0][:, None]
    found[len(MEMBERS) + 1] = table.offered[0][:, None]
    found[-1] = table.by_tier_offered[0]
    return found
