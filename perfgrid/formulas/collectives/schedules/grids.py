"""All-gather (reduce-scatter) on tori, meshes, hypercubes and HyperX.

``sides`` are the sides of the grid along which the group extends, an array of numbers from 2. ``ways`` are the
directions in which one rank of a side sends at once: 2 on a ring (torus), 1 on a line (mesh), whose ends have one link.
A torus side of 2 has two parallel cables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import switched
from .schedule import Schedule


def _share(n: Any) -> Any:
    return (n - 1) / n


def bucket(sides: Any, ways: Any) -> Schedule:
    """One side after the other, a ring or line in each; only the links of one side work at a time.

    The sum of (k - 1) steps over the sides k, and (n - 1)/n of the message over the ways of one side.
    Source: jain2010bucket.
    """
    steps = np.sum(sides - 1)
    return Schedule(steps, steps, _share(np.prod(sides)) / ways)


def rotated(sides: Any, ways: Any) -> Schedule:
    """Parts of the message start at different sides, so that all links work; a barrier after each side.

    Part d passes sides d, d + 1, ... in turn. Parts in sides of unequal length step together, each as long as its side
    lasts; the one with the largest pieces sets the pace. Equal sides reach the bandwidth bound.
    Source: sack2015torus, jain2010bucket.
    """
    count = len(sides)
    steps, volume, done = 0.0, 0.0, np.ones(count)
    for phase in range(count):
        side = np.roll(sides, -phase)  # the side that part d is in
        steps = steps + np.max(side - 1)
        volume = volume + _paced(side - 1, 1 / (done * side))
        done = done * side
    return Schedule(steps, steps, volume / (ways * count))


def _paced(steps: Any, piece: Any) -> Any:
    """Sum over joint steps of the largest piece that is still moving."""
    order = np.argsort(steps)
    largest = np.maximum.accumulate(piece[order][::-1])[::-1]
    return np.sum(np.diff(steps[order], prepend=0.0) * largest)


def balanced_rotated(sides: Any, ways: Any) -> Schedule:
    """Parts of unequal size pass the sides in different orders so that every link carries the same; in chunks.

    Any sides can be balanced: the loads that an order puts on the sides are a vertex of the base polytope of
    f(S) = 1 - 1/product of S, and the equal loads (1 - 1/n)/D satisfy all its inequalities (edmonds1970). Chunks go
    through the D sides as through a pipeline of D slots, each as long as the longest side.
    Source: sack2015torus; edmonds1970.
    """
    count, longest = len(sides), np.max(sides) - 1
    best, waiting = _share(np.prod(sides)) / (ways * count), (count - 1) * longest
    return Schedule(waiting, waiting, best, longest, longest, (count - 1) * best)


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
    rounds = np.round(np.log2(sides))
    before = np.cumprod(sides) / sides
    return Schedule(np.sum(rounds), np.sum(sides - 1), np.sum(((rounds - 1) / 2 + 1 / 4) / before))


def swing(sides: Any) -> Schedule:
    """Partners swing to either side at distances 1, 1, 3, 5, 11 ..., 2·D parts at once; equal sides, a power of two.

    Source: desensi2024swing, equations 2 and 3.
    """
    count, rounds = len(sides), np.round(np.log2(np.max(sides)))
    step = np.arange(rounds)
    distance = (2.0 ** (step + 1) + (-1.0) ** step) / 3
    volume = np.sum(distance * 2.0 ** (-step * count)) * (1 - 2.0**-count)
    return Schedule(count * rounds, count * np.sum(distance), volume / (2 * count))


# ---- hypercube ------------------------------------------------------------------------------------------------------


def hypercube_rotated(n: Any) -> Schedule:
    """As many parts as dimensions, each starting at another one: all links work. Source: johnsson1989."""
    exchange = switched.halving_doubling(n, hops=1)
    return Schedule(exchange.steps, exchange.hops, exchange.volume / exchange.steps)


# ---- HyperX: a full mesh along every side ---------------------------------------------------------------------------


def direct_per_dimension(sides: Any) -> Schedule:
    """A direct exchange along one side after the other. Source: ahn2009hyperx."""
    count = len(sides)
    return Schedule(count, count, np.sum(1 / np.cumprod(sides)), messages=np.sum(sides - 1))


def rotated_direct(sides: Any) -> Schedule:
    """As many parts as sides, each starting at another one; a barrier after each side. Source: ahn2009hyperx."""
    count, load, done = len(sides), 0.0, np.ones(len(sides))
    for phase in range(count):
        side = np.roll(sides, -phase)
        load = load + np.max(1 / (done * side))
        done = done * side
    return Schedule(count, count, load / count, messages=count * np.sum(sides - 1))
