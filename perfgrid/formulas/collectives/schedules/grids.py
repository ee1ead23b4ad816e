"""All-gather (reduce-scatter) on tori, meshes, hypercubes and HyperX.

``sides`` are the sides of the grid along a trailing axis, 1 where a side is absent (at most 4 count). ``ways`` are the
directions in which one rank of a side sends at once: 2 on a ring (torus), 1 on a line (mesh), whose ends have one link.
A torus side of 2 has two parallel cables.
"""

from __future__ import annotations

from typing import Any

from perfgrid.engine import xp

from . import switched
from .schedule import Schedule


def ranks(sides: Any) -> Any:
    """Ranks of a grid. Source: dally2004, chapter 5."""
    return xp.prod(sides, axis=-1)


def dimensions(sides: Any) -> Any:
    """Sides longer than 1. Source: dally2004, chapter 5."""
    return xp.sum(xp.where(sides > 1, 1.0, 0.0), axis=-1)


def _share(n: Any) -> Any:
    return (n - 1) / n


def bucket(sides: Any, ways: Any) -> Schedule:
    """One side after the other, a ring or line in each; only the links of one side work at a time.

    The sum of (k - 1) steps over the sides k, and (n - 1)/n of the message over the ways of one side.
    Source: jain2010bucket.
    """
    steps = xp.sum(sides - 1, axis=-1)
    return Schedule(steps, steps, _share(ranks(sides)) / ways)


def rotated(sides: Any, ways: Any) -> Schedule:
    """Parts of the message start at different sides, so that all links work; a barrier after each side.

    Part d passes sides d, d + 1, ... in turn. Parts in sides of unequal length step together, each as long as its side
    lasts; the one with the largest pieces sets the pace. Equal sides reach the bandwidth bound.
    Source: sack2015torus, jain2010bucket.
    """
    sides = _packed(sides)
    most = sides.shape[-1]
    total = None
    for count in range(1, most + 1):  # each number of sides has its own cycle of phases
        schedule = _rotated(sides[..., :count], ways)
        if total is None:
            total = schedule
        else:
            use = dimensions(sides) >= count
            total = Schedule(*(xp.where(use, a, b) for a, b in zip(_main(schedule), _main(total), strict=True)))
    assert total is not None
    return total


def _main(schedule: Schedule) -> tuple[Any, Any, Any]:
    return schedule.steps, schedule.hops, schedule.volume


def _rotated(sides: Any, ways: Any) -> Schedule:
    """Rotated parts in exactly as many sides as the trailing axis is long."""
    count = sides.shape[-1]
    steps, volume, done = 0.0, 0.0, xp.ones_like(sides)
    for phase in range(count):
        side = xp.roll(sides, -phase, axis=-1)  # the side that part d is in
        piece = 1 / (done * side)
        steps = steps + xp.max(side - 1, axis=-1)
        volume = volume + _paced(side - 1, piece)
        done = done * side
    return Schedule(steps, steps, volume / (ways * count))


def _paced(steps: Any, piece: Any) -> Any:
    """Sum over joint steps of the largest piece that is still moving, over the trailing axis."""
    order = xp.argsort(steps, axis=-1)
    steps, piece = xp.take_along_axis(steps, order, axis=-1), xp.take_along_axis(piece, order, axis=-1)
    total, largest = 0.0, 0.0
    for i in reversed(range(steps.shape[-1])):
        largest = xp.maximum(largest, piece[..., i])
        before = steps[..., i - 1] if i > 0 else 0.0
        total = total + (steps[..., i] - before) * largest
    return total


def _packed(sides: Any) -> Any:
    """Sides with the absent ones last, the others in order."""
    sides = xp.asarray(sides) * 1.0
    order = xp.argsort(xp.where(sides > 1, 0, 1), axis=-1, stable=True)
    return xp.take_along_axis(sides, order, axis=-1)


def balanced_rotated(sides: Any, ways: Any) -> Schedule:
    """Parts of unequal size pass the sides in different orders so that every link carries the same; in chunks.

    Any sides can be balanced: the loads that an order puts on the sides are a vertex of the base polytope of
    f(S) = 1 - 1/product of S, and the equal loads (1 - 1/n)/D satisfy all its inequalities (edmonds1970). Chunks go
    through the D sides as through a pipeline of D slots, each as long as the longest side.
    Source: sack2015torus; edmonds1970.
    """
    count, longest = dimensions(sides), xp.max(sides, axis=-1) - 1
    best = _share(ranks(sides)) / (ways * xp.maximum(count, 1))
    waiting = xp.maximum(count - 1, 0) * longest
    return Schedule(waiting, waiting, best, longest, longest, xp.maximum(count - 1, 0) * best)


def hamiltonian_rings(n: Any, cycles: Any = 1) -> Schedule:
    """Edge-disjoint rings through all ranks, both directions each.

    A mesh with an even number of ranks has one, a torus of D sides (each at least 3) has D.
    Source: alspach1990, hoefler2022hammingmesh.
    """
    return Schedule(n - 1, n - 1, _share(n) / (2 * cycles))


def halving_doubling(sides: Any) -> Schedule:
    """Exchange along one side after the other with partners at distance 1, 2, 4 ...; sides powers of two.

    Source: thakur2005, section 4; jain2010bucket.
    """
    rounds = xp.round(xp.log2(sides))
    last = xp.where(sides > 1, 1.0, 0.0)
    done = xp.cumprod(sides, axis=-1) / sides
    return Schedule(
        xp.sum(rounds, axis=-1),
        xp.sum(sides - 1, axis=-1),
        xp.sum(((rounds - last) / 2 + last / 4) / done, axis=-1),
    )


def swing(sides: Any) -> Schedule:
    """Partners swing to either side at distances 1, 1, 3, 5, 11 ..., 2·D parts at once; equal sides, a power of two.

    Source: desensi2024swing, equations 2 and 3.
    """
    count = xp.maximum(dimensions(sides), 1)
    rounds = xp.round(xp.log2(xp.max(sides, axis=-1)))
    hops, volume = 0.0, 0.0
    for s in range(16):  # sides up to 2^16
        distance = xp.where(s < rounds, (2.0 ** (s + 1) + (-1.0) ** s) / 3, 0.0)
        hops = hops + count * distance
        volume = volume + distance * 2.0 ** (-s * count) * (1 - 2.0**-count)
    return Schedule(count * rounds, hops, volume / (2 * count))


# ---- hypercube ------------------------------------------------------------------------------------------------------


def hypercube_halving_doubling(n: Any) -> Schedule:
    """One dimension after the other over direct links; n a power of two. Source: johnsson1989."""
    return switched.halving_doubling(n, hops=1)


def hypercube_rotated(n: Any) -> Schedule:
    """As many parts as dimensions, each starting at another one: all links work. Source: johnsson1989."""
    exchange = switched.halving_doubling(n, hops=1)
    return Schedule(exchange.steps, exchange.hops, exchange.volume / xp.maximum(exchange.steps, 1))


# ---- HyperX: a full mesh along every side ---------------------------------------------------------------------------


def direct_per_dimension(sides: Any) -> Schedule:
    """A direct exchange along one side after the other. Source: ahn2009hyperx."""
    several = xp.where(sides > 1, 1.0, 0.0)
    count = xp.sum(several, axis=-1)
    return Schedule(
        count, count, xp.sum(several / xp.cumprod(sides, axis=-1), axis=-1), messages=xp.sum(sides - 1, axis=-1)
    )


def rotated_direct(sides: Any) -> Schedule:
    """As many parts as sides, each starting at another one; a barrier after each side. Source: ahn2009hyperx."""
    sides = _packed(sides)
    steps, volume = 0.0, 0.0
    for count in range(1, sides.shape[-1] + 1):
        part, done, load = sides[..., :count], xp.ones_like(sides[..., :count]), 0.0
        for phase in range(count):
            side = xp.roll(part, -phase, axis=-1)
            load = load + xp.max(1 / (done * side), axis=-1)
            done = done * side
        use = dimensions(sides) >= count
        steps, volume = xp.where(use, 1.0 * count, steps), xp.where(use, load / count, volume)
    return Schedule(steps, steps, volume, messages=dimensions(sides) * xp.sum(sides - 1, axis=-1))
