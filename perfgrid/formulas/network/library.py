"""How a real collective library times a message: NCCL's protocols and algorithms, chosen by its own estimates.

The constants of `Library` are those of NCCL's tuning model (nccl2026tuning) for a generation of GPUs and a network;
they are data, one set per fabric. To its estimate latency + size/bandwidth two things are added that it leaves out: the
launch of the kernel, and what cutting the message costs in the Simple protocol, whose chunks follow each other through
the steps of a pass and pay again a share of its latency (the g of `Coefficients`). All times in s, rates in byte/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfgrid.engine import xp
from perfgrid.engine.errors import PerfgridError

from .schedule import UNAVAILABLE, Coefficients

PROTOCOLS = ("ll", "ll128", "simple")
MODELLED = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")


@dataclass(frozen=True)
class Library:
    """Constants of one fabric; mappings are by protocol. Source: nccl2026tuning (src/graph/tuning.cc, search.cc)."""

    launch: float  # of a kernel on all ranks, until the first step
    ring_bandwidth: float  # bus bandwidth of all channels inside a node
    adapter_bandwidth: float  # payload of the network adapter of one rank
    network_latency: float  # of the network itself, beside the library's own time per step
    chunk_share: float  # part of a pass's step latencies that every further chunk pays again
    ring_base: Mapping[str, float]
    tree_base: Mapping[str, float]
    ring_step: Mapping[str, float]  # one step inside a node
    tree_step: Mapping[str, float]
    network_ring_step: Mapping[str, float]  # one step between nodes
    network_tree_step: Mapping[str, float]
    ll_ceiling: tuple[float, float, float]  # bus bandwidth of the low-latency protocol on 1, 2 and more nodes
    ll128_share: float  # payload of 128 bytes on the link
    tree_ceiling: tuple[float, float, float]  # bandwidth of all tree channels on 1, 2 and more nodes
    message_step: float  # posting one message to one peer
    nvls_bandwidth: float = 0.0  # bus bandwidth of all-reduce in the switch; 0: the switch does not add
    nvls_step: float = 25e-6
    network_nvls_step: float = 20.9e-6


def _of_nodes(values: tuple[float, float, float], nodes: Any) -> Any:
    return xp.where(nodes > 2, values[2], xp.where(nodes > 1, values[1], values[0]))


def _bus(library: Library, ranks: Any, nodes: Any) -> Any:
    """Bus bandwidth of a ring through all ranks: links inside, the members' adapters between nodes."""
    return xp.where(
        nodes > 1, xp.minimum(library.ring_bandwidth, ranks / nodes * library.adapter_bandwidth), library.ring_bandwidth
    )


def _cut(library: Library, protocol: str, latency: Any, transfer: Any) -> tuple[Any, Any]:
    """Chunk latency and load: only the Simple protocol cuts, the others flag every word or line."""
    if protocol != "simple":
        return 0.0, 0.0
    return library.chunk_share * latency, transfer


def ring(library: Library, protocol: str, ranks: Any, nodes: Any, passes: int) -> Coefficients:
    """Ring of ``ranks`` on ``nodes`` nodes: all-gather and reduce-scatter pass once, all-reduce twice.

    Source: nccl2026tuning (ring latency and bandwidth); nccl2026device (slices).
    """
    between = passes * xp.where(nodes > 1, nodes - 1, 0)
    inside = passes * (ranks - 1) - between
    step, network_step = library.ring_step[protocol], library.network_ring_step[protocol] + library.network_latency
    bus = _protocol_bandwidth(library, protocol, _bus(library, ranks, nodes), nodes)
    transfer = (ranks - 1) / ranks / bus
    steps = inside * step + between * network_step
    chunk, load = _cut(library, protocol, steps / passes, transfer)
    return Coefficients(library.launch + library.ring_base[protocol] + steps, passes * transfer, chunk, load)


def _protocol_bandwidth(library: Library, protocol: str, bus: Any, nodes: Any) -> Any:
    if protocol == "ll":
        return xp.minimum(_of_nodes(library.ll_ceiling, nodes), bus / 2)
    return bus * library.ll128_share if protocol == "ll128" else bus


def tree_all_reduce(library: Library, protocol: str, ranks: Any, nodes: Any) -> Coefficients:
    """Double binary tree between nodes, chains inside them. Source: nccl2026tuning; sanders2009twotree."""
    per_node = ranks / nodes
    between = library.network_tree_step[protocol] + library.network_latency
    steps = 2 * ((per_node - 1) * library.tree_step[protocol] + xp.log2(nodes) * between)
    bus = xp.minimum(library.ll128_share * _bus(library, ranks, nodes), _of_nodes(library.tree_ceiling, nodes))
    slower = {
        "ll": 1 / 3.8,
        "ll128": xp.where(nodes > 1, 120 / 128, 7 / 9),
        "simple": 1.0,
    }[protocol]
    transfer = 1 / (bus * slower)
    chunk, load = _cut(library, protocol, steps / 2, transfer)
    return Coefficients(library.launch + library.tree_base[protocol] + steps, 2 * transfer, chunk, load)


def nvls_all_reduce(library: Library, ranks: Any, nodes: Any) -> Coefficients:
    """Reduction in the switch of a node; between nodes a tree of the nodes, both at the same time in chunks.

    Source: nccl2026tuning (NVLS, NVLSTree).
    """
    between = 2 * xp.log2(nodes) * (library.network_nvls_step + library.network_latency)
    latency, per_node = library.nvls_step + between, ranks / nodes
    inside = 2 * (per_node - 1) / per_node / library.nvls_bandwidth
    network = xp.minimum(nodes - 1, 2) / (per_node * library.adapter_bandwidth)
    transfer = xp.maximum(inside, network)
    chunk, load = _cut(library, "simple", latency, transfer / 2)
    return Coefficients(xp.where(per_node > 1, library.launch + latency, UNAVAILABLE), transfer, chunk, load)


def ring_broadcast(library: Library, protocol: str, ranks: Any, nodes: Any) -> Coefficients:
    """Chunks down the ring from the root. Source: nccl2026tuning."""
    between = xp.where(nodes > 1, nodes - 1, 0)
    inside = ranks - 1 - between
    step, network_step = library.ring_step[protocol], library.network_ring_step[protocol] + library.network_latency
    transfer = 1 / _protocol_bandwidth(library, protocol, _bus(library, ranks, nodes), nodes)
    steps = inside * step + between * network_step
    chunk, load = _cut(library, protocol, steps, transfer)
    return Coefficients(library.launch + library.ring_base[protocol] + steps, transfer, chunk, load)


def all_to_all(library: Library, ranks: Any, nodes: Any) -> Coefficients:
    """One message to every peer, each posted on its own. Source: nccl2026tuning (point-to-point channels)."""
    per_node = ranks / nodes
    inside = (per_node - 1) / ranks / (library.ring_bandwidth)
    network = (ranks - per_node) / ranks / library.adapter_bandwidth
    step = xp.where(
        nodes > 1, library.network_ring_step["simple"] + library.network_latency, library.ring_step["simple"]
    )
    posting = (ranks - 1) * library.message_step
    transfer = xp.maximum(inside, network)
    chunk, load = _cut(library, "simple", step, transfer)
    return Coefficients(library.launch + step + posting, transfer, chunk, load)


def candidates(library: Library, collective: str, ranks: Any, nodes: Any) -> dict[str, Coefficients]:
    """What the library chooses from: algorithm and protocol -> coefficients; PerfgridError for another collective.

    Source: nccl2026tuning.
    """
    if collective == "all_to_all":
        return {"messages": all_to_all(library, ranks, nodes)}
    if collective == "broadcast":
        return {f"ring_{p}": ring_broadcast(library, p, ranks, nodes) for p in PROTOCOLS}
    if collective not in MODELLED:
        raise PerfgridError(f"the library model has no {collective}; it has {', '.join(MODELLED)}")
    passes = 2 if collective == "all_reduce" else 1
    found = {f"ring_{p}": ring(library, p, ranks, nodes, passes) for p in PROTOCOLS}
    if collective == "all_reduce":
        found |= {f"tree_{p}": tree_all_reduce(library, p, ranks, nodes) for p in PROTOCOLS}
        if library.nvls_bandwidth > 0:
            found["nvls"] = nvls_all_reduce(library, ranks, nodes)
    return found


def library_time(
    library: Library, collective: str, size: Any, ranks: Any, nodes: Any = 1, algorithm: str | None = None
) -> Any:
    """Time of a collective as the library runs it: the candidate with the least estimate, which ignores the chunks.

    ``algorithm`` restricts it to one of ring, tree and nvls. Source: nccl2026tuning.
    """
    named = candidates(library, collective, ranks, nodes)
    found = [c for name, c in named.items() if algorithm in (None, name.partition("_")[0])]
    if not found:
        raise PerfgridError(f"the library has no {algorithm!r} for {collective}; it has {', '.join(named)}")
    least, time = UNAVAILABLE, UNAVAILABLE
    for c in found:
        estimate = c.latency + c.inverse_bandwidth * size
        time = xp.where(estimate < least, c.time(size), time)
        least = xp.minimum(estimate, least)
    return time
