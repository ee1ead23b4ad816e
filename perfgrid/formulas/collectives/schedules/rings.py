"""All-gather (reduce-scatter) on rings and lines, by a whole ring or by groups of every q-th rank of it.

A group has ``n`` members ``stride`` apart on a ring or line of ``length`` ranks; all such groups run at the same time
and share the links between their members. Times are for a message of B bytes, with the latency a of a step and the
bandwidth b of a link and direction.
"""

from __future__ import annotations

from typing import Any

from perfgrid.engine import xp

from .schedule import Schedule


def ring(n: Any, stride: Any = 1) -> Schedule:
    """Two rings in opposite directions, half of each part in either; the group closes round the whole ring.

    (n - 1)·a + (n - 1)/(2·n) · B/b for neighbours; ``stride`` groups that share the ring slow each other.
    Source: patarasuk2009ring.
    """
    return Schedule(n - 1, (n - 1) * stride, stride * (n - 1) / (2 * n))


def one_way_ring(n: Any, stride: Any, length: Any) -> Schedule:
    """One ring in the only direction that the links have.

    Every group's ring passes every link once, also where the last member is far from the first; the longest step is
    that one. Source: patarasuk2009ring.
    """
    back = length - (n - 1) * stride
    return Schedule(n - 1, (n - 1) * xp.maximum(stride, back), (length / n) * (n - 1) / n)


def half_hops(n: Any, stride: Any = 1) -> Schedule:
    """Whole parts travel both ways at once and meet half-way round: half of the steps, the same load.

    Source: scalingbook2025, "Sharded matrices".
    """
    steps = xp.ceil((n - 1) / 2)
    return Schedule(steps, steps * stride, stride * (n - 1) / (2 * n))


def line(n: Any, stride: Any = 1) -> Schedule:
    """Every rank passes on in both directions what it received: (n - 1)·a + (n - 1)/n · B/b, as the ends have one link.

    Source: chan2007collective.
    """
    return Schedule(n - 1, (n - 1) * stride, stride * (n - 1) / n)


def halving_doubling(n: Any) -> Schedule:
    """Exchange with partners at distance 1, 2, 4 ... along a ring, the farthest by both ways round; n a power of two.

    The part shrinks as its path grows: half a message loads the busiest link in every step, a quarter in the last.
    Source: thakur2005, section 4; jain2010bucket.
    """
    steps = xp.round(xp.log2(n))
    last = xp.where(n > 1, 1.0, 0.0)
    return Schedule(steps, n - 1, (steps - last) / 2 + last / 4)
