"""What NCCL takes for each group: the algorithm and protocol of least estimate (equations in `network.library`).

Coefficients are small tables by protocol (and algorithm) of every group on a fabric; the message comes last. A study
may name one of its algorithms (ring, double_binary_tree, in_network); another is flagged.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import INNER, at, smallest, table
from perfgrid.formulas.collectives.schedules.schedule import several
from perfgrid.formulas.collectives.schedules.tables import ALGORITHMS

from . import nccl_equations as nccl
from .collectives import GATHERING, REDUCING, gathered_share

NUMBERS = tuple(1.0 + ALGORITHMS.index(name) for name in nccl.ALGORITHMS.values())  # as a study names them

# ---- equations ------------------------------------------------------------------------------------------------------


def numbers():
    """Numbers of the library's algorithms, by library_algorithm. A new array each time: JAX may keep one."""
    return INNER.vector("library_algorithm", NUMBERS)


def least(times):
    """The least over protocols and algorithms."""
    return smallest(smallest(times, "protocol"), "library_algorithm")


def chosen_time(message, latency, inverse_bandwidth, chunk_latency, transfer, unavailable):
    """Time of the candidate with the least estimate; the estimate knows nothing of the chunks."""
    estimate = latency + inverse_bandwidth * message
    time = estimate + nccl.cutting_time(message, chunk_latency, transfer)
    return least(xp.where(estimate <= least(estimate), time, unavailable))


def ring_only(latency, named, unavailable):
    """Latency of a collective that the library runs round rings only; any other name puts it off."""
    return xp.where((named == 0) | (named == NUMBERS[0]), latency, unavailable)


# ---- bindings: the fabric -------------------------------------------------------------------------------------------


@formula(unit="s", source="nccl2026tuning", family={"ROUTE": ("ring", "tree")})
def inside_ROUTE_latency(ROUTE_step_latency, tier_path_latency):
    """Latency of one step of a ROUTE inside a scale-up domain, by protocol."""
    return ROUTE_step_latency + at(tier_path_latency, tier="scale_up")


@formula(unit="s", source="nccl2026tuning", family={"ROUTE": ("ring", "tree")})
def between_ROUTE_latency(network_ROUTE_step_latency, tier_path_latency):
    """Latency of one step of a ROUTE between scale-up domains, by protocol."""
    return network_ROUTE_step_latency + at(tier_path_latency, tier="scale_out")


@formula(unit="s", source="nccl2026tuning")
def tier_transfer_latency(inside_ring_latency, between_ring_latency):
    """Latency of one message between two members, by tier: a step in the protocol for large messages."""
    inside, between = (at(x, protocol="simple") for x in (inside_ring_latency, between_ring_latency))
    return table("tier", scale_up=inside, scale_out=between)


@formula(unit="s", source="nccl2026tuning")
def between_in_switch_latency(network_in_switch_step_latency, tier_path_latency):
    """Latency of one step between domains of a reduction in the switches."""
    return network_in_switch_step_latency + at(tier_path_latency, tier="scale_out")


# ---- bindings: a group ----------------------------------------------------------------------------------------------


@formula(unit="byte/s", source="nccl2026tuning", family=GATHERING)
def GROUP_bus_bandwidth(GROUP, GROUP_tier_ranks, GROUP_tier_bandwidth):
    """Rate of all rings through the GROUP ranks."""
    inside, adapter = (at(GROUP_tier_bandwidth, tier=tier) for tier in ("scale_up", "scale_out"))
    return nccl.bus_bandwidth(GROUP, at(GROUP_tier_ranks, tier="scale_out"), inside, adapter)


@formula(unit="byte/s", source="nccl2026tuning", family=GATHERING)
def GROUP_ring_rate(GROUP_bus_bandwidth, GROUP_tier_ranks, protocol_share, low_latency_bandwidth):
    """Rate of a ring through the GROUP ranks, by protocol: half of a line is payload in the low-latency protocol.

    Its ceiling, where one is known, falls with the number of nodes.
    """
    nodes, by_nodes = at(GROUP_tier_ranks, tier="scale_out"), ("one", "two", "more")
    ceiling = nccl.of_nodes(nodes, *(at(low_latency_bandwidth, node_count=count) for count in by_nodes))
    low_latency = xp.where(ceiling > 0, ceiling, GROUP_bus_bandwidth)
    ceilings = table("protocol", ll=low_latency, ll128=GROUP_bus_bandwidth, simple=GROUP_bus_bandwidth)
    return nccl.protocol_rate(GROUP_bus_bandwidth, protocol_share, ceilings)


@formula(unit="s", source="nccl2026tuning", family=GATHERING)
def GROUP_ring_pass_latency(GROUP, GROUP_tier_ranks, inside_ring_latency, between_ring_latency):
    """Latency of one pass through a ring of the GROUP ranks, by protocol."""
    return nccl.ring_pass(GROUP, at(GROUP_tier_ranks, tier="scale_out"), inside_ring_latency, between_ring_latency)


# ---- bindings: all-gather and reduce-scatter ------------------------------------------------------------------------


@formula(unit="s", source="nccl2026tuning", family=GATHERING)
def GROUP_library_gather_latency(
    GROUP, GROUP_ring_pass_latency, ring_base_latency, collective_launch_latency, GROUP_named_algorithm, unavailable
):
    """Latency of the library's all-gather in the GROUP group, by protocol."""
    latency = several(GROUP) * (collective_launch_latency + ring_base_latency + GROUP_ring_pass_latency)
    return ring_only(latency, several(GROUP) * GROUP_named_algorithm, unavailable)


@formula(unit="s/byte", source="nccl2026tuning", family=GATHERING)
def GROUP_library_gather_inverse_bandwidth(GROUP, GROUP_ring_rate):
    """Time per byte of the library's all-gather in the GROUP group, by protocol."""
    return gathered_share(GROUP) / GROUP_ring_rate


@formula(unit="s", source="nccl2026device", family=GATHERING)
def GROUP_library_gather_chunk_latency(GROUP_ring_pass_latency, chunk_share):
    """Latency that every chunk of the GROUP message adds to a pass, by protocol."""
    return chunk_share * GROUP_ring_pass_latency


@alternative(of="GROUP_gather_time", by="library", label="nccl", unit="s", source="nccl2026tuning", family=GATHERING)
def GROUP_library_gather_time(
    GROUP_message,
    GROUP_library_gather_latency,
    GROUP_library_gather_inverse_bandwidth,
    GROUP_library_gather_chunk_latency,
    unavailable,
):
    """Time of the library's all-gather in the GROUP group."""
    rate = GROUP_library_gather_inverse_bandwidth
    parts = (GROUP_library_gather_latency, rate, GROUP_library_gather_chunk_latency, rate)
    return chosen_time(GROUP_message, *parts, unavailable)


@alternative(of="GROUP_gather_number", by="library", label="nccl", unit="1", source="nccl2026tuning", family=GATHERING)
def GROUP_library_gather_number():
    """Number of the library's algorithm for all-gathers in the GROUP group: the ring."""
    return NUMBERS[0]


# ---- bindings: all-reduce -------------------------------------------------------------------------------------------


@formula(unit="s", source="nccl2026tuning", family=REDUCING)
def GROUP_all_reduce_pass_latency(
    GROUP,
    GROUP_tier_ranks,
    GROUP_ring_pass_latency,
    inside_tree_latency,
    between_tree_latency,
    in_switch_step_latency,
    between_in_switch_latency,
    tier_in_network,
):
    """Latency of the steps of one of two passes of an all-reduce in the GROUP group, by algorithm and protocol."""
    nodes = at(GROUP_tier_ranks, tier="scale_out")
    tree = nccl.tree_pass(GROUP, nodes, inside_tree_latency, between_tree_latency)
    network = (between_in_switch_latency, at(tier_in_network, tier="scale_out"))
    both = nccl.in_switch_latency(nodes, in_switch_step_latency, *network)
    return table("library_algorithm", ring=GROUP_ring_pass_latency, tree=tree, in_switch=both / 2)


@formula(unit="s", source="nccl2026tuning", family=REDUCING)
def GROUP_library_all_reduce_latency(
    GROUP,
    GROUP_tier_ranks,
    GROUP_all_reduce_pass_latency,
    ring_base_latency,
    tree_base_latency,
    collective_launch_latency,
    in_switch_gain,
    GROUP_named_algorithm,
    unavailable,
):
    """Latency of the library's all-reduces in the GROUP group, by algorithm and protocol.

    A reduction in the switch takes one that adds, several ranks below it, and the protocol for large messages.
    """
    base = table("library_algorithm", ring=ring_base_latency, tree=tree_base_latency, in_switch=0.0)
    latency = several(GROUP) * (collective_launch_latency + base + 2 * GROUP_all_reduce_pass_latency)
    adds = (in_switch_gain > 0) & (at(GROUP_tier_ranks, tier="scale_up") > 1)
    simple = table("protocol", ll=0.0, ll128=0.0, simple=1.0)
    offered = table("library_algorithm", ring=1.0, tree=1.0, in_switch=simple * xp.where(adds, 1.0, 0.0))
    named = several(GROUP) * GROUP_named_algorithm
    return xp.where((offered > 0) & ((named == 0) | (named == numbers())), latency, unavailable)


@formula(unit="s/byte", source="nccl2026tuning", family=REDUCING)
def GROUP_library_all_reduce_inverse_bandwidth(
    GROUP,
    GROUP_tier_ranks,
    GROUP_bus_bandwidth,
    GROUP_ring_rate,
    GROUP_tier_bandwidth,
    tree_share,
    network_tree_share,
    in_switch_gain,
    tier_bandwidth,
    tier_in_network,
):
    """Time per byte of the library's all-reduces in the GROUP group, by algorithm and protocol."""
    nodes = at(GROUP_tier_ranks, tier="scale_out")
    ring = 2 * gathered_share(GROUP) / GROUP_ring_rate
    tree = 2 * several(GROUP) / (GROUP_bus_bandwidth * xp.where(nodes > 1, network_tree_share, tree_share))
    bus = xp.where(in_switch_gain > 0, in_switch_gain, 1.0) * at(tier_bandwidth, tier="scale_up")
    network = (at(GROUP_tier_bandwidth, tier="scale_out"), at(tier_in_network, tier="scale_out"))
    in_switch = nccl.in_switch_transfer(GROUP, nodes, bus, *network)
    return table("library_algorithm", ring=ring, tree=tree, in_switch=in_switch)


@formula(unit="s", source="nccl2026device", family=REDUCING)
def GROUP_library_all_reduce_chunk_latency(GROUP_all_reduce_pass_latency, chunk_share):
    """Latency that every chunk of the GROUP message adds to a pass of an all-reduce, by algorithm and protocol."""
    return chunk_share * GROUP_all_reduce_pass_latency * table("library_algorithm", ring=1.0, tree=1.0, in_switch=2.0)


@alternative(of="GROUP_all_reduce_time", by="library", label="nccl", unit="s", source="nccl2026tuning", family=REDUCING)
def GROUP_library_all_reduce_time(
    GROUP_message,
    GROUP_library_all_reduce_latency,
    GROUP_library_all_reduce_inverse_bandwidth,
    GROUP_library_all_reduce_chunk_latency,
    unavailable,
):
    """Time of the library's all-reduce in the GROUP group: the second pass starts with the first chunk that arrives."""
    rate = GROUP_library_all_reduce_inverse_bandwidth
    parts = (GROUP_library_all_reduce_latency, rate, GROUP_library_all_reduce_chunk_latency, rate / 2)
    return chosen_time(GROUP_message, *parts, unavailable)


@alternative(
    of="GROUP_all_reduce_number", by="library", label="nccl", unit="1", source="nccl2026tuning", family=REDUCING
)
def GROUP_library_all_reduce_number(
    GROUP_message, GROUP_library_all_reduce_latency, GROUP_library_all_reduce_inverse_bandwidth
):
    """Number of the library's algorithm for the all-reduce in the GROUP group."""
    estimate = GROUP_library_all_reduce_latency + GROUP_library_all_reduce_inverse_bandwidth * GROUP_message
    return least(xp.where(estimate <= least(estimate), numbers(), 1e10))
