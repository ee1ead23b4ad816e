"""Collectives among n ranks that reach each other in one step: through a switch, or over a link to every peer.

Unless its name says otherwise a function is an all-gather (or, reversed in time, a reduce-scatter); an all-reduce is
one after the other. Times are for a message of B bytes, with the latency a of a step and the bandwidth b of a link (the
alpha-beta model). ``hops`` counts the links of a path: 2 through a switch, 1 over a direct link.
"""

from __future__ import annotations

from typing import Any

from perfgrid.engine import xp

from .schedule import Schedule, exponent, several


def ring(n: Any, hops: Any = 2) -> Schedule:
    """Pass parts on round one ring: (n - 1)·a + (n - 1)/n · B/b, the bandwidth bound at the price of n - 1 steps.

    Source: patarasuk2009ring.
    """
    return Schedule(n - 1, (n - 1) * hops, (n - 1) / n)


def halving_doubling(n: Any, hops: Any = 2) -> Schedule:
    """Exchange with partners at distance 1, 2, 4 ...: log2 n · a + (n - 1)/n · B/b.

    Recursive doubling gathers, recursive halving scatters. Valid for n a power of two. Source: thakur2005, section 4.
    """
    return Schedule(exponent(n), exponent(n) * hops, (n - 1) / n)


def recursive_doubling_all_reduce(n: Any, hops: Any = 2) -> Schedule:
    """Exchange and add the whole message log2 n times: log2 n · (a + B/b), best for short messages.

    Valid for n a power of two. Source: thakur2005, section 4.5.
    """
    return Schedule(exponent(n), exponent(n) * hops, exponent(n))


def double_binary_tree_all_reduce(n: Any, hops: Any = 2) -> Schedule:
    """Reduce to the roots of two complementary binary trees and broadcast back, half of the message each, in chunks.

    In the full-duplex port model every rank is inner in one tree and leaf in the other and sends twice its message.
    Filling and draining C chunks takes 2·log2 n - 1 more steps and (2·log2 n - 3)/C more load: what a replay of the
    slots gives for 8 and 16 ranks. Source: sanders2009twotree.
    """
    depth = exponent(n)
    filling = xp.maximum(2 * depth - 3, 0.0)
    return Schedule(
        (2 * depth - 1) * several(n),
        (2 * depth - 1) * hops * several(n),
        2.0 * several(n),
        several(n),
        hops * several(n),
        filling,
    )


def in_network_all_reduce(n: Any, hops: Any = 2) -> Schedule:
    """Send the message up and receive the sum that the switch formed, both at once: a + B/b.

    Source: graham2016sharp.
    """
    return Schedule(several(n), hops * several(n), several(n))


def in_network_all_gather(n: Any, hops: Any = 2) -> Schedule:
    """Send the part once, the switch copies it; every rank still receives all others. Source: graham2016sharp."""
    return Schedule(several(n), hops * several(n), (n - 1) / n)


# ---- broadcast ------------------------------------------------------------------------------------------------------


def binomial_tree_broadcast(n: Any, hops: Any = 2) -> Schedule:
    """Those that have the message send it to as many others, log2 n times: log2 n · (a + B/b).

    Source: thakur2005, section 3.3.
    """
    return Schedule(exponent(n), exponent(n) * hops, exponent(n))


def scatter_all_gather_broadcast(n: Any, hops: Any = 2) -> Schedule:
    """Scatter the parts down a binomial tree, then gather them: (log2 n + n - 1)·a + 2·(n - 1)/n · B/b.

    The gathering goes round a ring. Source: thakur2005, section 3.3.
    """
    return Schedule(exponent(n) + n - 1, (exponent(n) + n - 1) * hops, 2 * (n - 1) / n)


def pipelined_chain_broadcast(n: Any, hops: Any = 2) -> Schedule:
    """Pass C chunks down a chain of n ranks: (n - 2 + C)·(a + B/(C·b)). Source: chan2007collective, section 7."""
    return pipelined_tree_broadcast(n - 1, hops)


def pipelined_tree_broadcast(depth: Any, hops: Any = 1) -> Schedule:
    """Pass chunks down a tree of the given depth in which every rank has a link of its own to each child.

    Source: chan2007collective, section 7.
    """
    deep = xp.where(depth > 0, 1.0, 0.0)
    return Schedule((depth - 1) * deep, (depth - 1) * hops * deep, deep, deep, hops * deep, (depth - 1) * deep)


# ---- one message ----------------------------------------------------------------------------------------------------


def send_recv(hops: Any, sharing: Any = 1) -> Schedule:
    """One message over a path whose busiest link carries ``sharing`` of them. Source: rashidi2020astrasim."""
    return Schedule(1.0, hops, sharing)
