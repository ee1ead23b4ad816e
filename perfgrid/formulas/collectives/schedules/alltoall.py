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


def one_way_ring(n: Any, stride: Any = 1, length: Any = None) -> Schedule:
    """All parts in the only direction that the links have. Source: dally2004, section 5.2."""
    length = n * stride if length is None else length
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


def along_sides(of_side: Any, sides: Any) -> Schedule:
    """A grid in dimension order: each side carries all parts, the busiest decides; ``of_side`` is ring, line or mesh.

    Source: dally2004, section 8.4.
    """
    side = of_side(sides)
    return Schedule(
        xp.max(side.steps, axis=-1),
        xp.sum(side.hops, axis=-1),
        xp.max(side.volume, axis=-1),
        messages=xp.prod(sides, axis=-1) - 1,
    )


def fat_tree(n: Any, leaf: Any, oversubscription: Any) -> Schedule:
    """Leaf switches of ``leaf`` ports whose uplinks carry 1/oversubscription of them.

    Source: alfares2008fattree.
    """
    beyond = xp.where(n > leaf, 1.0, 0.0)
    uplink = oversubscription * (n - leaf) / n * beyond
    return Schedule(several(n), (2 + 2 * beyond) * several(n), xp.maximum((n - 1) / n, uplink), messages=n - 1)


def dragonfly(terminals: Any, routers: Any, global_links: Any) -> Schedule:
    """Minimal routing on a·h + 1 groups of a routers with p terminals and h global links each.

    The busiest of the terminal link, the only link between two groups, and a local link, which carries its routers' own
    parts and those on their way to and from another group. Source: kim2008dragonfly, section 3.
    """
    a, p, h = routers, terminals, global_links
    n = p * a * (a * h + 1)
    busiest = xp.maximum(xp.maximum(n - 1, (a * p) ** 2), p * p + 2 * a * p * p * h)
    return Schedule(1.0, 5.0, busiest / n, messages=n - 1)


def imbalanced(schedule: Schedule, imbalance: Any) -> Schedule:
    """Skewed parts: the rank that receives most decides; ``imbalance`` is most over mean. Source: deepseek2024v3."""
    return schedule.load(imbalance)


# ---- mixture of experts: what is sent -------------------------------------------------------------------------------


MOST_CHOSEN = 32  # experts per token


def distinct_destinations(places: Any, experts: Any, chosen: Any) -> Any:
    """Expected number of ``places`` (ranks or nodes) that the ``chosen`` different experts of one token lie in.

    Each place holds experts/places; a place is missed with probability C(E - E/x, k)/C(E, k), k at most 32.
    Source: deepseek2025deepep (one copy per destination); drawing without replacement.
    """
    missed = 1.0
    for drawn in range(MOST_CHOSEN):
        elsewhere, left = xp.maximum(experts - experts / places - drawn, 0.0), xp.maximum(experts - drawn, 1.0)
        missed = missed * xp.where(drawn < chosen, elsewhere / left, 1.0)
    return places * (1 - missed)


def node_limited_destinations(nodes: Any, experts: Any, chosen: Any, groups: Any) -> Any:
    """Expected nodes of one token whose experts are drawn from at most ``groups`` nodes.

    Source: deepseek2024v3, section 2.1.2.
    """
    groups = xp.minimum(groups, nodes)
    return distinct_destinations(groups, experts * groups / nodes, chosen)


def expert_exchange(ranks_reached: Any, nodes_reached: Any, per_node: Any, nodes: Any) -> tuple[Schedule, Schedule]:
    """Dispatch (or combine) with one copy per destination node, fanned out inside it: (inside a node, between nodes).

    The message is one copy of all local tokens; copies for the own node do not leave it, those for the own rank (or the
    rank that received them) use no link. Both tiers work at the same time. Source: deepseek2025deepep.
    """
    return (
        Schedule(several(per_node), 2 * several(per_node), ranks_reached * (per_node - 1) / per_node),
        Schedule(several(nodes), 2 * several(nodes), nodes_reached * (nodes - 1) / nodes),
    )
