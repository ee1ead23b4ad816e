"""Collectives of NCCL, with the algorithm and protocol that it estimates to be the fastest.

This is NCCL's tuning model (nccl2026tuning): every algorithm (ring, tree, reduction in the switches) with every
protocol (ll, ll128, simple) has a latency and a rate, and the combination with the least

.. math:: t = \\alpha + B / \\beta

is chosen for a message of B bytes. Two costs that NCCL's estimate leaves out are added: the launch, and the cutting of
the message into chunks, which are pipelined through the steps of a pass: each adds a share of the pass's latency.

The coefficients do not depend on the message: they are small tables by protocol (and algorithm) for every group of
ranks and network. The constants (step latencies, shares of the bus bandwidth) are catalog data: topologies.toml,
devices_*.toml. A study may name one of the algorithms (ring, double_binary_tree, in_network); others are infeasible.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import INNER, at, smallest, table
from perfgrid.formulas.collectives.schedules.schedule import UNAVAILABLE, several

from .ideal import CHOSEN
from .placement import GATHERING, RANKS, gathered_share

ALGORITHMS = {"ring": "ring", "tree": "double_binary_tree", "in_switch": "in_network"}  # NCCL's names: those in studies
NUMBERS = tuple(1.0 + INNER.labels["algorithm"].index(name) for name in ALGORITHMS.values())

FORMULAS = by_label(
    "library",
    {
        f"{group}_gather_algorithm": (
            *("1", "nccl2026tuning", f"Which algorithm runs all-gathers of {group}: the ring."),
            CHOSEN,
        )
        for group in GATHERING["GROUP"]
    },
    {"nccl": (NUMBERS[0],) * len(GATHERING["GROUP"])},
)

# ---- equations: ranks, nodes (scale-up domains that the group touches), times in s, rates in byte/s -----------------


def bus_bandwidth(ranks, nodes, inside, adapter):
    """Rate of all rings together: limited by the links inside a node and by the network adapters of its ranks.

    min(inside, n/N · adapter) for n ranks in N > 1 nodes: each ring leaves a node through another rank's adapter.
    Source: nccl2026tuning.
    """
    return xp.where(nodes > 1, xp.minimum(inside, ranks / nodes * adapter), inside)


def of_nodes(nodes, one, two, more):
    """The value for one, two or more nodes. Source: nccl2026tuning."""
    return xp.where(nodes > 2, more, xp.where(nodes > 1, two, one))


def ring_rate(ranks, tier_ranks, tier_bandwidth, protocol_share, low_latency_bandwidth):
    """Rate of a ring by protocol: bus bandwidth times the payload share of a line, up to a limit.

    In the low-latency protocol (ll) half of a line is payload; its limit, where known, decreases with the number of
    nodes. Source: nccl2026tuning.
    """
    nodes = at(tier_ranks, tier="scale_out")
    bus = bus_bandwidth(ranks, nodes, at(tier_bandwidth, tier="scale_up"), at(tier_bandwidth, tier="scale_out"))
    ceiling = of_nodes(nodes, *(at(low_latency_bandwidth, node_count=count) for count in ("one", "two", "more")))
    ceilings = table("protocol", ll=xp.where(ceiling > 0, ceiling, bus), ll128=bus, simple=bus)
    return xp.minimum(bus * protocol_share, ceilings)


def ring_pass(ranks, nodes, step, network_step):
    """Latency of one pass through a ring: n - 1 steps, of which N - 1 leave a node. Source: nccl2026tuning."""
    between = xp.where(nodes > 1, nodes - 1, 0)
    return (ranks - 1 - between) * step + between * network_step


def tree_pass(ranks, nodes, step, network_step):
    """Latency of one traversal of a tree, up or down: a chain inside each node, a binary tree of the nodes.

    (n/N - 1) steps inside and log2 N steps between nodes. Source: nccl2026tuning.
    """
    return (ranks / nodes - 1) * step + xp.log2(nodes) * network_step


def in_switch_latency(nodes, step, network_step, network_adds):
    """Latency of a reduction in the switches: inside a node, and up and down a tree of nodes or the network's switches.

    Source: nccl2026tuning (NVLS, NVLSTree); graham2016sharp.
    """
    between = xp.where(network_adds > 0, several(nodes), 2 * xp.log2(nodes))
    return step + between * network_step


def in_switch_transfer(ranks, nodes, bus, adapter, network_adds):
    """Time per byte of a reduction in the switch of a node, overlapped chunk by chunk with the network.

    In a tree of nodes a rank sends its part up and down, unless the network switches reduce. Source: nccl2026tuning.
    """
    per_node = ranks / nodes
    inside = 2 * (per_node - 1) / per_node / bus
    passes = xp.where(network_adds > 0, several(nodes), xp.minimum(nodes - 1, 2))
    return xp.maximum(inside, passes / (per_node * adapter))


def cutting(chunk_latency, transfer):
    """Cost of cutting a message of B bytes into chunks, per root of B.

    The least over the number of chunks C of C·chunk latency + transfer·B/C is 2·sqrt(chunk latency·transfer)·sqrt(B).
    Source: nccl2026device.
    """
    return 2 * xp.root(chunk_latency * transfer)


def numbers():
    """Numbers of NCCL's algorithms, by nccl_algorithm. A new array each time, as JAX may hold a reference."""
    return INNER.vector("nccl_algorithm", NUMBERS)


def least(times):
    """The least over protocols and algorithms."""
    return smallest(smallest(times, "protocol"), "nccl_algorithm")


def chosen_time(message, latency, inverse_bandwidth, waiting=1.0):
    """Time of the candidate with the least estimate, which does not count the chunks.

    A chunk pays the latency of a chunk, and the part ``waiting`` of the transfer waits for the first one.
    """
    estimate = at(latency, per="message") + inverse_bandwidth * message
    per_root = cutting(at(latency, per="chunk"), inverse_bandwidth * waiting)
    return least(xp.where(estimate <= least(estimate), estimate + per_root * xp.root(message), UNAVAILABLE))


def ring_latency(ranks, tier_ranks, step_latency, base_latency, chunk_share, named):
    """Latency of a collective that NCCL runs only as a ring, per message and per chunk, by protocol.

    Base latency, and n - 1 steps of which N - 1 leave a node; 0 for a single rank. Unavailable if the study names
    another algorithm.
    """
    step, base = at(step_latency, nccl_algorithm="ring"), at(base_latency, nccl_algorithm="ring")
    steps = ring_pass(ranks, at(tier_ranks, tier="scale_out"), at(step, tier="scale_up"), at(step, tier="scale_out"))
    named = several(ranks) * named
    whole = xp.where((named == 0) | (named == NUMBERS[0]), several(ranks) * (base + steps), UNAVAILABLE)
    return table("per", message=whole, chunk=chunk_share * steps)


# ---- the fabric -----------------------------------------------------------------------------------------------------


@formula(unit="s", source="nccl2026tuning", where="src/graph/tuning.cc")
def nccl_step_latency(
    ring_step_latency,
    network_ring_step_latency,
    tree_step_latency,
    network_tree_step_latency,
    in_switch_step_latency,
    network_in_switch_step_latency,
    tier_path_latency,
):
    """Latency of one step, by nccl_algorithm, protocol and tier: software and protocol, and the links passed.

    A reduction in the switches of a node passes no links beside.
    """
    ring = table("tier", scale_up=ring_step_latency, scale_out=network_ring_step_latency) + tier_path_latency
    tree = table("tier", scale_up=tree_step_latency, scale_out=network_tree_step_latency) + tier_path_latency
    network_step = network_in_switch_step_latency + at(tier_path_latency, tier="scale_out")
    in_switch = table("tier", scale_up=in_switch_step_latency, scale_out=network_step)
    return table("nccl_algorithm", ring=ring, tree=tree, in_switch=in_switch)


@formula(unit="s", source="nccl2026tuning")
def nccl_base_latency(ring_base_latency, tree_base_latency, collective_launch_latency):
    """Latency of a collective until its first step, by nccl_algorithm and protocol: launch, and base latency."""
    base = table("nccl_algorithm", ring=ring_base_latency, tree=tree_base_latency, in_switch=0.0)
    return collective_launch_latency + base


@formula(unit="s", source="nccl2026tuning")
def tier_transfer_latency(nccl_step_latency):
    """Latency of one message between two members, by tier: a step in the protocol for large messages (simple)."""
    return at(nccl_step_latency, nccl_algorithm="ring", protocol="simple")


# ---- all-gather and reduce-scatter ----------------------------------------------------------------------------------


@formula(unit="s", source="nccl2026tuning", family=RANKS)
def GROUP_nccl_gather_latency(
    GROUP, GROUP_tier_ranks, nccl_step_latency, nccl_base_latency, chunk_share, GROUP_named_algorithm
):
    """Latency of NCCL's all-gather (reduce-scatter) in the GROUP group, per message and chunk, by protocol.

    A chunk pays ``chunk_share`` of the n - 1 steps.
    """
    return ring_latency(
        GROUP, GROUP_tier_ranks, nccl_step_latency, nccl_base_latency, chunk_share, GROUP_named_algorithm
    )


@formula(unit="s/byte", source="nccl2026tuning", family=RANKS, where="src/graph/tuning.cc")
def GROUP_nccl_gather_inverse_bandwidth(
    GROUP, GROUP_tier_ranks, GROUP_tier_bandwidth, protocol_share, low_latency_bandwidth
):
    """Time per byte of NCCL's all-gather in the GROUP group, by protocol: (n - 1)/n over the rate of a ring."""
    rate = ring_rate(GROUP, GROUP_tier_ranks, GROUP_tier_bandwidth, protocol_share, low_latency_bandwidth)
    return gathered_share(GROUP) / rate


@alternative(of="GROUP_gather_time", by="library", label="nccl", unit="s", source="nccl2026tuning", family=GATHERING)
def GROUP_nccl_gather_time(GROUP_message, GROUP_nccl_gather_latency, GROUP_nccl_gather_inverse_bandwidth):
    """Time of NCCL's all-gather in the GROUP group, in the protocol of least estimate."""
    return chosen_time(GROUP_message, GROUP_nccl_gather_latency, GROUP_nccl_gather_inverse_bandwidth)


# ---- all-reduce -----------------------------------------------------------------------------------------------------


def pass_latency(ranks, nodes, step_latency, network_adds):
    """Latency of the steps of one of the two passes of an all-reduce, by nccl_algorithm and protocol.

    Ring: n - 1 steps. Tree: (n/N - 1) steps inside a node and log2 N between the N nodes. In the switches: half of the
    way up and down.
    """
    ring, tree, switch = (
        tuple(at(step_latency, nccl_algorithm=name, tier=tier) for tier in ("scale_up", "scale_out"))
        for name in ("ring", "tree", "in_switch")
    )
    return table(
        "nccl_algorithm",
        ring=ring_pass(ranks, nodes, *ring),
        tree=tree_pass(ranks, nodes, *tree),
        in_switch=in_switch_latency(nodes, switch[0], switch[1], network_adds) / 2,
    )


@formula(unit="s", source="nccl2026tuning", family=RANKS, where="src/graph/tuning.cc")
def GROUP_nccl_all_reduce_latency(
    GROUP,
    GROUP_tier_ranks,
    nccl_step_latency,
    nccl_base_latency,
    chunk_share,
    tier_in_network,
    in_switch_gain,
    GROUP_named_algorithm,
):
    """Latency of NCCL's all-reduces in the GROUP group, per message and chunk, by nccl_algorithm and protocol.

    Of a message base latency and two passes; of a chunk a share of one pass, in the switches of both. A reduction in
    the switches requires switches that can add, several ranks per node, and the protocol simple.
    """
    one_way = pass_latency(
        *(GROUP, at(GROUP_tier_ranks, tier="scale_out")), nccl_step_latency, at(tier_in_network, tier="scale_out")
    )
    latency = several(GROUP) * (nccl_base_latency + 2 * one_way)
    adds = (in_switch_gain > 0) & (at(GROUP_tier_ranks, tier="scale_up") > 1)
    simple = table("protocol", ll=0.0, ll128=0.0, simple=1.0)
    offered = table("nccl_algorithm", ring=1.0, tree=1.0, in_switch=simple * xp.where(adds, 1.0, 0.0))
    named = several(GROUP) * GROUP_named_algorithm
    whole = xp.where((offered > 0) & ((named == 0) | (named == numbers())), latency, UNAVAILABLE)
    passes = table("nccl_algorithm", ring=1.0, tree=1.0, in_switch=2.0)
    return table("per", message=whole, chunk=chunk_share * one_way * passes)


@formula(unit="s/byte", source="nccl2026tuning", family=RANKS, where="src/graph/tuning.cc")
def GROUP_nccl_all_reduce_inverse_bandwidth(
    GROUP,
    GROUP_tier_ranks,
    GROUP_tier_bandwidth,
    protocol_share,
    low_latency_bandwidth,
    tree_share,
    network_tree_share,
    in_switch_gain,
    tier_bandwidth,
    tier_in_network,
):
    """Time per byte of NCCL's all-reduces in the GROUP group, by algorithm and protocol.

    Ring: 2·(n - 1)/n over its rate. Tree: up and down, 2 over its share of the bus bandwidth. In the switches: the
    slower of the links inside a node and the adapters between nodes.
    """
    nodes = at(GROUP_tier_ranks, tier="scale_out")
    inside, adapter = (at(GROUP_tier_bandwidth, tier=tier) for tier in ("scale_up", "scale_out"))
    rate = ring_rate(GROUP, GROUP_tier_ranks, GROUP_tier_bandwidth, protocol_share, low_latency_bandwidth)
    ring = 2 * gathered_share(GROUP) / rate
    share = xp.where(nodes > 1, network_tree_share, tree_share)
    tree = 2 * several(GROUP) / (bus_bandwidth(GROUP, nodes, inside, adapter) * share)
    switch = xp.where(in_switch_gain > 0, in_switch_gain, 1.0) * at(tier_bandwidth, tier="scale_up")
    in_switch = in_switch_transfer(GROUP, nodes, switch, adapter, at(tier_in_network, tier="scale_out"))
    return table("nccl_algorithm", ring=ring, tree=tree, in_switch=in_switch)


@alternative(
    of="GROUP_all_reduce_time", by="library", label="nccl", unit="s", source="nccl2026tuning", family=GATHERING
)
def GROUP_nccl_all_reduce_time(GROUP_message, GROUP_nccl_all_reduce_latency, GROUP_nccl_all_reduce_inverse_bandwidth):
    """Time of NCCL's all-reduce in the GROUP group, in the algorithm and protocol of least estimate.

    Valid for ranks that begin together, equally many in each node, and for NCCL's own choice of channels.

    The second pass starts with the first chunk that arrives, so that half of the transfer waits for it.
    """
    return chosen_time(GROUP_message, GROUP_nccl_all_reduce_latency, GROUP_nccl_all_reduce_inverse_bandwidth, 0.5)


@alternative(
    of="GROUP_all_reduce_algorithm",
    by="library",
    label="nccl",
    unit="1",
    source="nccl2026tuning",
    family=GATHERING,
    flags=CHOSEN,
)
def GROUP_nccl_all_reduce_algorithm(
    GROUP_message, GROUP_nccl_all_reduce_latency, GROUP_nccl_all_reduce_inverse_bandwidth
):
    """NCCL's algorithm for the all-reduce in the GROUP group."""
    latency = at(GROUP_nccl_all_reduce_latency, per="message")
    estimate = latency + GROUP_nccl_all_reduce_inverse_bandwidth * GROUP_message
    return least(xp.where(estimate <= least(estimate), numbers(), 1e10))
