"""All-to-all: every rank sends a part of B/n to every other, all at once (B counts the part that stays).

A direct all-gather (every rank sends its part of B/n to all others at once) loads the links in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
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


def dragonfly(terminals: Any, routers: Any, groups: Any, between: Any, local_links: Any) -> Schedule:
    """Minimal routing on g groups of a routers with p terminals; ``between`` links join any two groups.

    The busiest of the terminal link, a global link, which carries its share of the (a·p)² parts between two groups, and
    a local link, which carries its routers' own parts and those on their way over the ``local_links`` global links of
    its two ends. Source: kim2008dragonfly, section 3.
    """
    a, p = routers, terminals
    n = p * a * groups
    across = several(groups) * (a * p) ** 2 / between
    inside = several(a) * (p * p + local_links * a * p * p / between)
    busiest = xp.maximum(xp.maximum(n - 1, across), inside)
    hops = xp.where(groups > 1, 5.0, xp.where(a > 1, 3.0, 2.0 * several(n)))
    return Schedule(several(n), hops, busiest / n, messages=n - 1)


def flattened_butterfly(terminals: Any, members: Sequence[int]) -> Schedule:
    """Parts go side after side; p terminals share the link between two routers. ``members`` of a group per side.

    Along a side of m members every link carries p·n/m of the n parts of a message, whatever part of the fabric a group
    has. Source: kim2007butterfly, section 3; ahn2009hyperx, section 2.
    """
    p, sides = terminals, members[1:]
    n, active = prod(members), [m for m in sides if m > 1]
    busiest = max([(n - 1) / n, *(p / m for m in active)])
    return Schedule(several(n), (2.0 + len(active)) * several(n), busiest, messages=n - 1)
