"""The workload "collectives": one group, one message, every collective; bandwidths as benchmarks print them.

On an ideal fabric every collective takes the fastest schedule that the links allow. Where NCCL runs them the group
stands in the place of the data-parallel ranks of training (``replica``), whose gathers and all-reduces these are.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import WORKLOAD, alternative, constraint, formula, synonyms
from perfgrid.engine.graph.tables import bind, by_label, positive
from perfgrid.formulas.axes import at, table
from perfgrid.formulas.collectives.schedules.algorithms import COLLECTIVES
from perfgrid.formulas.collectives.schedules.schedule import UNAVAILABLE, several

from .exchange import equal_parts, exchange_time
from .ideal import ASKED, CHOSEN, LINKS, any_offered, fastest_algorithm, fastest_time, group_times
from .ideal_tables import ALGORITHMS, FABRIC, fabric_of, schedules
from .nccl import NUMBERS, chosen_time, ring_latency, ring_rate, transfer_time
from .placement import placed

DIRECT = 1.0 + ALGORITHMS.index("direct")  # as a study names it


def collective_schedules(*given):
    """What the schedules of a collective ask of the tiers, by link_use, algorithm and tier."""
    *fabric, collective, size, stride = given
    return schedules(fabric_of(*fabric), COLLECTIVES[int(collective)], int(size), int(stride))


COLLECTIVE = f"message_size collective_schedules {LINKS} replica_named_algorithm"
FORMULAS = (
    *synonyms(  # the group stands in the place of the data-parallel ranks of training
        {
            "replica": ("group_size", "1", "nccltests2024", "Ranks of the group."),
            "replica_stride": ("group_stride", "1", "nccltests2024", "Distance between neighbouring ranks."),
            "replica_message": ("message_size", "byte", "nccltests2024", "Message of the group."),
            "replica_named_algorithm": (
                *("algorithm", "1", "thakur2005"),
                "Number of the ideal algorithm that the study names; 0 for the fastest.",
            ),
            "collective_launch_latency": (
                *("library_launch_latency", "s", "nccltests2024"),
                "Latency of a collective until its first step, as benchmarks see it.",
            ),
        },
        workload="collectives",
    ),
    *bind(
        *(placed, "group_tier_ranks", "replica replica_stride tier_size", "1", "nccltests2024"),
        of=("replica_tier_ranks", WORKLOAD, "collectives"),
    ),
    *bind(
        *(collective_schedules, "collective_schedules", f"{FABRIC} collective group_size group_stride"),
        *("1", "cho2019blueconnect"),
        host=ASKED,
    ),
    *bind(
        *(group_times, "algorithm_time", f"message_size collective_schedules {LINKS}", "s", "thakur2005"),
        "Time of every algorithm of an ideal fabric, by algorithm.",
    ),
    *bind(
        *(fastest_time, "ideal_collective_time", COLLECTIVE, "s", "thakur2005"),
        of=("collective_time", "library", "ideal"),
    ),
    *bind(
        *(fastest_algorithm, "ideal_collective_algorithm", COLLECTIVE, "1", "thakur2005", "Which is the fastest."),
        of=("collective_algorithm", "library", "ideal"),
        flags=CHOSEN,
    ),
    *bind(
        *(any_offered, "group_fills_shape", "collective_schedules", "1", "narayanan2021"),
        of=("group_fills", "library", "ideal"),
    ),
    *by_label(
        "library",
        {"group_fills": ("1", "narayanan2021", "1 where the group fills whole scale-up domains.")},
        {"nccl": ("replica_fills_domains",)},
    ),
    *positive(
        *("group_fills_tiers", "group_fills", "narayanan2021"),
        "The group fills whole domains of every tier that it touches.",
        "the group does not fill the domains of the fabric evenly",
    ),
)


# ---- NCCL -----------------------------------------------------------------------------------------------------------


@formula(unit="s", source="nccl2026tuning")
def broadcast_time(
    message_size,
    replica,
    replica_tier_ranks,
    replica_tier_bandwidth,
    nccl_step_latency,
    nccl_base_latency,
    chunk_share,
    protocol_share,
    low_latency_bandwidth,
    replica_named_algorithm,
):
    """Time of NCCL's broadcast: chunks down the ring from the root.

    The whole message passes every link of the ring: n - 1 steps, B over the rate of the ring.
    """
    latency, steps = ring_latency(
        replica, replica_tier_ranks, nccl_step_latency, nccl_base_latency, replica_named_algorithm
    )
    rate = ring_rate(replica, replica_tier_ranks, replica_tier_bandwidth, protocol_share, low_latency_bandwidth)
    return chosen_time(message_size, latency, several(replica) / rate, chunk_share * steps)


@formula(unit="s", source="nccl2026tuning")
def messages_time(
    message_size,
    replica,
    replica_tier_ranks,
    replica_tier_bandwidth,
    tier_transfer_latency,
    tier_message_latency,
    collective_launch_latency,
):
    """Time of NCCL's all-to-all: a message to every other rank, each posted on its own."""
    inside = at(replica_tier_ranks, tier="scale_up")
    posting = tier_message_latency * table("tier", scale_up=inside - 1, scale_out=replica - inside)
    latency = several(replica_tier_ranks) * (collective_launch_latency + tier_transfer_latency + posting)
    sent = equal_parts(message_size, replica, at(replica_tier_ranks, tier="scale_out"))
    return exchange_time(sent, latency, 1 / replica_tier_bandwidth, 1.0)


@formula(unit="s", source="nccl2026tuning")
def neighbour_time(
    message_size, replica, replica_tier_ranks, tier_transfer_latency, tier_peer_bandwidth, collective_launch_latency
):
    """Time of NCCL's message from every rank to the next."""
    peers = (collective_launch_latency, tier_transfer_latency, tier_peer_bandwidth)
    return several(replica) * transfer_time(message_size, replica_tier_ranks, *peers)


@alternative(of="collective_time", by="library", label="nccl", unit="s", source="nccl2026tuning")
def nccl_collective_time(
    collective,
    replica_nccl_gather_time,
    replica_nccl_all_reduce_time,
    broadcast_time,
    messages_time,
    neighbour_time,
    replica_named_algorithm,
):
    """Time of a collective as NCCL runs it."""
    direct = (replica_named_algorithm == 0) | (replica_named_algorithm == DIRECT)
    found = {
        "all_reduce": replica_nccl_all_reduce_time,
        "broadcast": broadcast_time,
        "all_to_all": xp.where(direct, messages_time, UNAVAILABLE),
        "send_recv": xp.where(direct, neighbour_time, UNAVAILABLE),
    }
    time = replica_nccl_gather_time
    for name, of_it in found.items():
        time = xp.where(collective == COLLECTIVES.index(name), of_it, time)
    return time


@alternative(of="collective_algorithm", by="library", label="nccl", unit="1", source="nccl2026tuning", flags=CHOSEN)
def nccl_collective_algorithm(collective, replica_nccl_all_reduce_algorithm):
    """Which algorithm NCCL runs."""
    direct = collective == COLLECTIVES.index("all_to_all")
    direct = direct | (collective == COLLECTIVES.index("send_recv"))
    found = xp.where(collective == COLLECTIVES.index("all_reduce"), replica_nccl_all_reduce_algorithm, NUMBERS[0])
    return xp.where(direct, DIRECT, found)


# ---- what benchmarks print ------------------------------------------------------------------------------------------


@formula(unit="1", source="nccltests2024")
def bus_factor(collective, group_size):
    """What a ring sends over every link per byte of the message."""
    share = (group_size - 1) / group_size
    once = (collective == COLLECTIVES.index("broadcast")) | (collective == COLLECTIVES.index("send_recv"))
    return xp.where(collective == COLLECTIVES.index("all_reduce"), 2 * share, xp.where(once, 1.0, share))


@formula(unit="byte/s", source="nccltests2024")
def algorithm_bandwidth(message_size, collective_time):
    """Message over time."""
    return xp.where(collective_time > 0, message_size / xp.where(collective_time > 0, collective_time, 1e30), 0.0)


@formula(unit="byte/s", source="nccltests2024")
def bus_bandwidth(algorithm_bandwidth, bus_factor):
    """Algorithm bandwidth times what a ring sends per byte of message: comparable to the bandwidth of a link."""
    return algorithm_bandwidth * bus_factor


# ---- constraints ----------------------------------------------------------------------------------------------------


@constraint(reason="the group is larger than the cluster", source="narayanan2021")
def group_fits_cluster(group_size, group_stride, devices):
    """The cluster holds a whole number of groups."""
    return devices % (group_size * group_stride) == 0


@constraint(reason="this fabric or library has no such collective or algorithm", source="thakur2005")
def collective_offered(collective_time):
    """The collective, and the algorithm that the study names, exist."""
    return collective_time < UNAVAILABLE
