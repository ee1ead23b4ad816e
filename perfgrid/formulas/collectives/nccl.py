"""Collectives of NCCL, with the algorithm and protocol that it estimates to be the fastest.

This is NCCL's tuning model (nccl2026tuning): every algorithm (ring, tree, reduction in the switches) with every
protocol (ll, ll128, simple) has a latency and a rate, and the combination with the least

.. math:: t = \\alpha + B / \\beta

is chosen for a message of B bytes. Two costs that NCCL's estimate leaves out are added: the launch, and the cutting of
the message into chunks, which are pipelined through the steps of a pass: each adds a share of the pass's latency.

The constants (step latencies, shares of the bus bandwidth) are catalog data: topologies.toml, devices_*.toml. A study
may name one of the algorithms (ring, double_binary_tree, in_network); others are infeasible.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import bind, by_label
from perfgrid.formulas.axes import INNER, at, smallest, table
from perfgrid.formulas.collectives.schedules.schedule import UNAVAILABLE, several

from .ideal import CHOSEN
from .placement import GATHERING, gathered_share, outermost

ALGORITHMS = {"ring": "ring", "tree": "double_binary_tree", "in_switch": "in_network"}  # NCCL's names: those in studies
NUMBERS = tuple(1.0 + INNER.labels["algorithm"].index(name) for name in ALGORITHMS.values())

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


def chosen_time(message, latency, inverse_bandwidth, chunk_latency, waiting=1.0):
    """Time of the candidate with the least estimate, which does not count the chunks.

    A chunk pays ``chunk_latency``, and the part ``waiting`` of the transfer waits for the first one.
    """
    estimate = latency + inverse_bandwidth * message
    per_root = cutting(chunk_latency, inverse_bandwidth * waiting)
    return least(xp.where(estimate <= least(estimate), estimate + per_root * xp.root(message), UNAVAILABLE))


def ring_latency(ranks, tier_ranks, step_latency, base_latency, named):
    """Latency of a collective that NCCL runs only as a ring, and that of its steps, by protocol.

    Base latency, and n - 1 steps of which N - 1 leave a node; 0 for a single rank. Unavailable if the study names
    another algorithm.
    """
    step, base = at(step_latency, nccl_algorithm="ring"), at(base_latency, nccl_algorithm="ring")
    steps = ring_pass(ranks, at(tier_ranks, tier="scale_out"), at(step, tier="scale_up"), at(step, tier="scale_out"))
    named = several(ranks) * named
    return xp.where((named == 0) | (named == NUMBERS[0]), several(ranks) * (base + steps), UNAVAILABLE), steps


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


def transfer_time(message, tier_ranks, launch, latency, bandwidth):
    """Time of one message to the next rank: latency + B/bandwidth across the outermost tier of the group.

    The slowest of all neighbours; ``bandwidth`` is that from one device to one other. Source: nccl2026tuning.
    """
    return launch + outermost(latency, tier_ranks) + message / outermost(bandwidth, tier_ranks)


# ---- the fabric -----------------------------------------------------------------------------------------------------


@formula(unit="s", source="nccl2026tuning", where="src/graph/tuning.cc")
def nccl_step_latency(
    ring_step_latency,
    network_ring_step_latency,
    tree_step_latency,
    network_tree_step_latency,
    in_switch_step_latency,
    network_in_switch_step_latency,
    tier_hops,
    tier_hop_latency,
):
    """Latency of one step, by nccl_algorithm, protocol and tier: software and protocol, and the links passed.

    A reduction in the switches of a node passes no links beside.
    """
    path = tier_hops * tier_hop_latency
    return table(
        "nccl_algorithm",
        ring=table("tier", scale_up=ring_step_latency, scale_out=network_ring_step_latency) + path,
        tree=table("tier", scale_up=tree_step_latency, scale_out=network_tree_step_latency) + path,
        in_switch=table(
            "tier",
            scale_up=in_switch_step_latency,
            scale_out=network_in_switch_step_latency + at(path, tier="scale_out"),
        ),
    )


@formula(unit="s", source="nccl2026tuning")
def nccl_base_latency(ring_base_latency, tree_base_latency, collective_launch_latency):
    """Latency of a collective until its first step, by nccl_algorithm and protocol: launch, and base latency."""
    base = table("nccl_algorithm", ring=ring_base_latency, tree=tree_base_latency, in_switch=0.0)
    return collective_launch_latency + base


# ---- all-gather and reduce-scatter ----------------------------------------------------------------------------------


@alternative(
    of="GROUP_gather_time",
    by="library",
    label="nccl",
    unit="s",
    source="nccl2026tuning",
    family=GATHERING,
    where="src/graph/tuning.cc",
)
def GROUP_nccl_gather_time(
    GROUP_message,
    GROUP,
    GROUP_tier_ranks,
    GROUP_tier_bandwidth,
    nccl_step_latency,
    nccl_base_latency,
    chunk_share,
    protocol_share,
    low_latency_bandwidth,
    GROUP_named_algorithm,
):
    """Time of NCCL's all-gather in the GROUP group, in the protocol of least estimate.

    n - 1 steps, and (n - 1)/n of the message at the rate of a ring; a chunk pays ``chunk_share`` of the steps.
    """
    latency, steps = ring_latency(GROUP, GROUP_tier_ranks, nccl_step_latency, nccl_base_latency, GROUP_named_algorithm)
    rate = ring_rate(GROUP, GROUP_tier_ranks, GROUP_tier_bandwidth, protocol_share, low_latency_bandwidth)
    return chosen_time(GROUP_message, latency, gathered_share(GROUP) / rate, chunk_share * steps)


# ---- all-reduce -----------------------------------------------------------------------------------------------------

ALL_REDUCE = (  # what all-reduces are computed from
    "GROUP_message GROUP GROUP_tier_ranks GROUP_tier_bandwidth nccl_step_latency nccl_base_latency chunk_share "
    "protocol_share low_latency_bandwidth tree_share network_tree_share in_switch_gain tier_bandwidth tier_in_network "
    "GROUP_named_algorithm"
)
PEERS = "collective_launch_latency tier_transfer_latency tier_peer_bandwidth"  # what a transfer takes


def all_reduce_candidates(
    ranks,
    tier_ranks,
    tier_bandwidth,
    step_latency,
    base_latency,
    chunk_share,
    protocol_share,
    low_latency_bandwidth,
    tree_share,
    network_tree_share,
    in_switch_gain,
    device_bandwidth,
    in_network,
    named,
):
    """Latency, time per byte and latency of a chunk of all-reduces, by nccl_algorithm and protocol.

    Of the message base latency and two passes; of a chunk a share of one pass, in the switches of both. Per byte, ring:
    2·(n - 1)/n over its rate; tree: up and down, 2 over its share of the bus bandwidth; in the switches: the slower of
    the links inside a node and the adapters between nodes. A reduction in the switches requires switches that can add,
    several ranks per node, and the protocol simple. Source: nccl2026tuning.
    """
    nodes, network_adds = at(tier_ranks, tier="scale_out"), at(in_network, tier="scale_out")
    one_way = pass_latency(ranks, nodes, step_latency, network_adds)
    adds = (in_switch_gain > 0) & (at(tier_ranks, tier="scale_up") > 1)
    simple = table("protocol", ll=0.0, ll128=0.0, simple=1.0)
    offered = table("nccl_algorithm", ring=1.0, tree=1.0, in_switch=simple * xp.where(adds, 1.0, 0.0))
    named = several(ranks) * named
    whole = several(ranks) * (base_latency + 2 * one_way)
    latency = xp.where((offered > 0) & ((named == 0) | (named == numbers())), whole, UNAVAILABLE)
    inside, adapter = (at(tier_bandwidth, tier=tier) for tier in ("scale_up", "scale_out"))
    rate = ring_rate(ranks, tier_ranks, tier_bandwidth, protocol_share, low_latency_bandwidth)
    share = xp.where(nodes > 1, network_tree_share, tree_share)
    switch = xp.where(in_switch_gain > 0, in_switch_gain, 1.0) * at(device_bandwidth, tier="scale_up")
    inverse_bandwidth = table(
        "nccl_algorithm",
        ring=2 * gathered_share(ranks) / rate,
        tree=2 * several(ranks) / (bus_bandwidth(ranks, nodes, inside, adapter) * share),
        in_switch=in_switch_transfer(ranks, nodes, switch, adapter, network_adds),
    )
    return (
        latency,
        inverse_bandwidth,
        chunk_share * one_way * table("nccl_algorithm", ring=1.0, tree=1.0, in_switch=2.0),
    )


def all_reduce_time(message, *network):
    """Time of NCCL's all-reduce, in the algorithm and protocol of least estimate.

    Valid for ranks that begin together, equally many in each node, and for NCCL's own choice of channels. The second
    pass starts with the first chunk that arrives, so that half of the transfer waits for it.
    """
    return chosen_time(message, *all_reduce_candidates(*network), 0.5)


def all_reduce_algorithm(message, *network):
    """NCCL's algorithm for an all-reduce."""
    latency, inverse_bandwidth, _ = all_reduce_candidates(*network)
    estimate = latency + inverse_bandwidth * message
    return least(xp.where(estimate <= least(estimate), numbers(), 1e10))


FORMULAS = (
    *by_label(
        "library",
        {
            f"{group}_gather_algorithm": (
                *("1", "nccl2026tuning", f"Which algorithm runs all-gathers of {group}: the ring."),
                CHOSEN,
            )
            for group in GATHERING["GROUP"]
        },
        {"nccl": (NUMBERS[0],) * len(GATHERING["GROUP"])},
    ),
    *bind(
        *(all_reduce_time, "GROUP_nccl_all_reduce_time", ALL_REDUCE, "s", "nccl2026tuning"),
        *("Time of NCCL's all-reduce in the GROUP group, in the algorithm and protocol of least estimate.",),
        of=("GROUP_all_reduce_time", "library", "nccl"),
        family=GATHERING,
        where="src/graph/tuning.cc",
    ),
    *bind(
        *(all_reduce_algorithm, "GROUP_nccl_all_reduce_algorithm", ALL_REDUCE, "1", "nccl2026tuning"),
        *("NCCL's algorithm for the all-reduce in the GROUP group.",),
        of=("GROUP_all_reduce_algorithm", "library", "nccl"),
        family=GATHERING,
        flags=CHOSEN,
    ),
)
