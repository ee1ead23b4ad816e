"""All-to-all: every rank sends a part of B/n to every other, all at once (B counts the part that stays).

A direct all-gather (every rank sends its part of B/n to all others at once) loads the links in the same way.
"""

from __future__ import annotations

from typing import Any

from perfgrid.engine import xp

from .schedule import Schedule, several


def ring(n: Any, stride: Any = 1) -> Schedule:
    """Shortest way round, half of the parts for the opposite rank by either way.

    The busiest link carries n/8 of the message (n even): a part travels n/4 links on average, over two links per rank.
    Source: dally2004, section 5.2.
    """
    return Schedule(several(n), xp.floor(n / 2) * stride, stride * xp.floor(n * n / 4) / (2 * n), messages=n - 1)


def one_way_ring(n: Any, stride: Any, length: Any) -> Schedule:
    """All parts in the only direction that the links have. Source: dally2004, section 5.2."""
    back = xp.maximum(length - stride, stride) * several(n)  # from the second member forward to the first
    around = (length / n) * (n - 1) / 2  # a part to a member and the answer pass the whole ring together
    return Schedule(several(n), back, around, messages=n - 1)


def line(n: Any, stride: Any = 1) -> Schedule:
    """All parts between the halves pass the middle link: n/4 · B (n even). Source: dally2004, section 5.2."""
    return Schedule(several(n), (n - 1) * stride, stride * xp.floor(n / 2) * xp.ceil(n / 2) / n, messages=n - 1)


def full_mesh(n: Any) -> Schedule:
    """Every part has a link of its own. Source: dally2004, section 5.2."""
    return Schedule(several(n), several(n), several(n) / n, messages=n - 1)


def switch(n: Any, hops: Any = 2) -> Schedule:
    """Non-blocking, so only the ports count: (n - 1)/n of the message leaves each. Source: thakur2005, section 3.4."""
    return Schedule(several(n), hops * several(n), (n - 1) / n, messages=n - 1)


def dragonfly(terminals: Any, routers: Any, global_links: Any) -> Schedule:
    """Minimal routing on a·h + 1 groups of a routers with p terminals and h global links each.

    The busiest of the terminal link, the only link between two groups, and a local link, which carries its routers' own
    parts and those on their way to and from another group. Source: kim2008dragonfly, section 3.
    """
    a, p, h = routers, terminals, global_links
    n = p * a * (a * h + 1)
    busiest = xp.maximum(xp.maximum(n - 1, (a * p) ** 2), p * p + 2 * a * p * p * h)
    return Schedule(1.0, 5.0, busiest / n, messages=n - 1)
