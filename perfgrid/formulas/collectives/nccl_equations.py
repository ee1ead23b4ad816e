"""How a real collective library times a message: NCCL's algorithms and protocols, chosen by its own estimates.

The structure is that of NCCL's tuning model (nccl2026tuning): every algorithm in every protocol has a latency and a
rate, and the least sum latency + size/rate is run. To it two things are added that the estimate leaves out: the launch,
and what cutting the message costs, whose chunks follow each other through the steps of a pass and pay a share of its
latency again (the square root of `Coefficients`). All equations are element-wise: ranks, nodes (scale-up domains that
the group touches), times in s, rates in byte/s; what depends on the protocol comes as an array along that axis. The
constants are catalog data (topologies.toml, devices_*.toml).
"""

from __future__ import annotations

from typing import Any

from perfgrid.engine import xp
from perfgrid.formulas.collectives.schedules.schedule import several

PROTOCOLS = ("ll", "ll128", "simple")
ALGORITHMS = {
    "ring": "ring",
    "tree": "double_binary_tree",
    "in_switch": "in_network",
}  # NCCL's, in the words of `tables`


def bus_bandwidth(ranks: Any, nodes: Any, inside: Any, adapter: Any) -> Any:
    """Rate of all rings through all ranks: the links inside a node, the members' adapters between nodes.

    Source: nccl2026tuning.
    """
    return xp.where(nodes > 1, xp.minimum(inside, ranks / nodes * adapter), inside)


def of_nodes(nodes: Any, one: Any, two: Any, more: Any) -> Any:
    """The value for one, two or more nodes. Source: nccl2026tuning."""
    return xp.where(nodes > 2, more, xp.where(nodes > 1, two, one))


def protocol_rate(bus: Any, share: Any, ceiling: Any) -> Any:
    """Rate of a ring by protocol: the part of a line that is payload, and a ceiling. Source: nccl2026tuning."""
    return xp.minimum(bus * share, ceiling)


def ring_pass(ranks: Any, nodes: Any, step: Any, network_step: Any) -> Any:
    """Latency of one pass through a ring: n - 1 steps, of which N - 1 leave a node. Source: nccl2026tuning."""
    between = xp.where(nodes > 1, nodes - 1, 0)
    return (ranks - 1 - between) * step + between * network_step


def tree_pass(ranks: Any, nodes: Any, step: Any, network_step: Any) -> Any:
    """Latency of one way through a tree: a chain inside a node, a binary tree of the nodes. Source: nccl2026tuning."""
    return (ranks / nodes - 1) * step + xp.log2(nodes) * network_step


def in_switch_latency(nodes: Any, step: Any, network_step: Any, network_adds: Any) -> Any:
    """Latency of a reduction in the switches: inside a node, and up and down a tree of nodes or the network's switches.

    Source: nccl2026tuning (NVLS, NVLSTree); graham2016sharp.
    """
    between = xp.where(network_adds > 0, several(nodes), 2 * xp.log2(nodes))
    return step + between * network_step


def in_switch_transfer(ranks: Any, nodes: Any, bus: Any, adapter: Any, network_adds: Any) -> Any:
    """Time per byte of a reduction in the switch of a node, whose chunks go on through the network meanwhile.

    In a tree of nodes a rank sends its part up and down again, unless the network adds. Source: nccl2026tuning.
    """
    per_node = ranks / nodes
    inside = 2 * (per_node - 1) / per_node / bus
    passes = xp.where(network_adds > 0, several(nodes), xp.minimum(nodes - 1, 2))
    return xp.maximum(inside, passes / (per_node * adapter))


def all_to_all(ranks: Any, nodes: Any, inside: Any, adapter: Any) -> Any:
    """Time per byte of an all-to-all: parts for the node over its links, all others over the rank's own adapter.

    Source: nccl2026tuning (point-to-point channels).
    """
    per_node = ranks / nodes
    return xp.maximum((per_node - 1) / ranks / inside, (ranks - per_node) / ranks / adapter)


def cutting_time(message: Any, chunk_latency: Any, transfer: Any) -> Any:
    """What cutting a message adds: the least over C of C·chunk latency + transfer·B/C. Source: nccl2026device."""
    return 2 * _root(chunk_latency * transfer) * _root(message)


def _root(x: Any) -> Any:
    """Square root with a finite (zero) gradient at 0."""
    return xp.where(x > 0, xp.sqrt(xp.where(x > 0, x, 1e30)), 0.0)
