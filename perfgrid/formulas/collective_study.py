"""The workload "collectives": one group, one message, every collective; bandwidths as benchmarks print them.

On an ideal fabric every collective takes the fastest schedule that the links allow. Where a library runs them (nccl)
gathers and all-reduces are those of the data-parallel ranks of training, in whose place the group stands.
"""

from perfgrid.engine import xp
from perfgrid.engine.registry import alternative, constraint, formula

from . import collectives, fabrics, parallelism, topology
from .axes import at, largest
from .fabric_tables import demand, shape_of
from .fabrics import CHOSEN, TABLE, coefficients, fastest, schedule_time, which_fastest
from .network.algorithms import COLLECTIVES
from .network.library import library_time
from .network.library_constants import LIBRARIES

BORROWED = (  # from training: the fabric, and what a library does for data-parallel ranks
    topology,
    parallelism.GROUP_tier_ranks, parallelism.GROUP_fills_domains,
    collectives.unavailable, collectives.GROUP_direct_offered, collectives.GROUP_nccl_offered,
    collectives.GROUP_ideal_library_offered, collectives.GROUP_flat_ring_offered, collectives.GROUP_tier_message,
    collectives.GROUP_ring_time, collectives.GROUP_direct_time, collectives.GROUP_hierarchical_time,
    collectives.GROUP_flat_ring_time, collectives.GROUP_ring_all_reduce_time, collectives.GROUP_direct_all_reduce_time,
    collectives.GROUP_hierarchical_all_reduce_time, collectives.GROUP_flat_ring_all_reduce_time,
    fabrics.tier_sides, fabrics.shape_size, fabrics.tier_traits, fabrics.tier_links, fabrics.shape_exists,
    fabrics.ideal_exists, fabrics.tier_link_bandwidth,
)  # fmt: skip

# ---- the group ------------------------------------------------------------------------------------------------------


@formula(unit="1", source="nccltests2024")
def dp(group_size):
    """Ranks of the group: it stands in the place of the data-parallel ranks of training."""
    return group_size


@formula(unit="1", source="nccltests2024")
def dp_stride(group_stride):
    """Distance between neighbouring ranks of the group."""
    return group_stride


@formula(unit="byte", source="nccltests2024")
def dp_message(message_size):
    """Message of the group."""
    return message_size


@formula(unit="1", source="thakur2005")
def dp_named_algorithm(algorithm):
    """Number of the ideal algorithm that the study names; 0 for the fastest."""
    return algorithm


# ---- ideal fabrics --------------------------------------------------------------------------------------------------


@formula(**TABLE)
def collective_demand(tier_traits, collective, group_size, group_stride):
    """What the schedules of a collective ask of the tiers, by demand, algorithm and tier."""
    return demand(shape_of(tier_traits), COLLECTIVES[int(collective)], int(group_size), int(group_stride))


@formula(unit="s", source="thakur2005")
def collective_latency(collective_demand, tier_step_latency, tier_hop_latency, tier_message_latency):
    """Latency of a collective, by algorithm and span."""
    return coefficients(collective_demand, tier_step_latency, tier_hop_latency, 1.0, tier_message_latency).latency


@formula(unit="s/byte", source="thakur2005")
def collective_inverse_bandwidth(collective_demand, tier_link_bandwidth):
    """Time of a collective per byte of its message, by algorithm and span."""
    return coefficients(collective_demand, 0.0, 0.0, tier_link_bandwidth, 0.0).inverse_bandwidth


@formula(unit="s", source="sanders2009twotree")
def collective_chunk_latency(collective_demand, tier_step_latency, tier_hop_latency):
    """Latency that every chunk of the message adds, by algorithm and span."""
    return coefficients(collective_demand, tier_step_latency, tier_hop_latency, 1.0, 0.0).chunk_latency


@formula(unit="s/byte", source="sanders2009twotree")
def collective_chunk_inverse_bandwidth(collective_demand, tier_step_latency, tier_hop_latency, tier_link_bandwidth):
    """Time per byte of a chunk that the message waits for its first chunk, by algorithm and span."""
    return coefficients(
        collective_demand, tier_step_latency, tier_hop_latency, tier_link_bandwidth, 0.0
    ).chunk_inverse_bandwidth


@formula(unit="s", source="thakur2005")
def algorithm_time(
    message_size,
    collective_latency,
    collective_inverse_bandwidth,
    collective_chunk_latency,
    collective_chunk_inverse_bandwidth,
):
    """Time of every algorithm of an ideal fabric, by algorithm and span."""
    parts = (collective_chunk_latency, collective_chunk_inverse_bandwidth)
    return schedule_time(message_size, collective_latency, collective_inverse_bandwidth, *parts)


@alternative(of="collective_time", by="library", label="ideal", unit="s", source="thakur2005")
def ideal_collective_time(algorithm_time, dp_named_algorithm, unavailable):
    """Time of the fastest schedule that the links allow."""
    return fastest(algorithm_time, dp_named_algorithm, unavailable)


@alternative(of="schedule_number", by="library", label="ideal", unit="1", source="thakur2005")
def ideal_schedule_number(algorithm_time, dp_named_algorithm, unavailable):
    """Number of the fastest algorithm."""
    return which_fastest(algorithm_time, dp_named_algorithm, unavailable)


@alternative(of="group_fills", by="library", label="ideal", unit="1", source="narayanan2021")
def group_fills_shape(collective_demand):
    """1 where the group fills whole domains of every tier."""
    return largest(at(collective_demand, demand="offered", tier="scale_up"), "algorithm")


# ---- a library ------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="nccltests2024")
def one_byte():
    """A byte: the constants of a library are plain numbers in bytes and seconds."""
    return 1.0


@formula(unit="s", source="nccltests2024")
def one_second():
    """A second."""
    return 1.0


@formula(unit="s", source="nccl2026tuning")
def tuned_time(
    library_constants, collective, message_size, group_size, dp_tier_ranks, one_byte, one_second, unavailable
):
    """Time of what the library chooses by its own estimates, where the fabric names its constants."""
    time, nodes = unavailable, at(dp_tier_ranks, tier="scale_out")
    for number, constants in enumerate(LIBRARIES.values(), 1):
        for code, name in enumerate(COLLECTIVES[:-1]):  # it has no schedule for send_recv
            found = library_time(constants, name, message_size / one_byte, group_size, nodes) * one_second
            time = xp.where((library_constants == number) & (collective == code), found, time)
    return xp.where(group_size > 1, time, 0.0)


@alternative(of="collective_time", by="library", label="nccl", unit="s", source="nccl2026device")
def library_collective_time(
    library_constants, collective, tuned_time, dp_gather_time, dp_all_reduce_time, dp_named_algorithm, unavailable
):
    """Time of a collective as the library runs it: by its constants, or all-reduces and gathers as in training."""
    gather = xp.where(collective <= COLLECTIVES.index("all_gather"), dp_gather_time, unavailable)
    rings = xp.where(collective == COLLECTIVES.index("all_reduce"), dp_all_reduce_time, gather)
    return xp.where((library_constants > 0) & (dp_named_algorithm == 0), tuned_time, rings)


@alternative(of="schedule_number", by="library", label="nccl", unit="1", source="nccl2026device")
def library_schedule_number():
    """Number of the fastest algorithm: 0, the library's own."""
    return 0.0


@alternative(of="group_fills", by="library", label="nccl", unit="1", source="narayanan2021")
def group_fills_domains(dp_fills_domains):
    """1 where the group fills whole scale-up domains."""
    return dp_fills_domains


# ---- what benchmarks print ------------------------------------------------------------------------------------------


@formula(unit="1", source="thakur2005", flags=CHOSEN)
def collective_algorithm(schedule_number):
    """Which algorithm is the fastest."""
    return schedule_number


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


@constraint(kind="illegal", reason="the group does not fill the domains of the fabric evenly", source="narayanan2021")
def group_fills_tiers(group_fills):
    """The group fills whole domains of every tier that it touches."""
    return group_fills > 0


@constraint(kind="illegal", reason="the group is larger than the cluster", source="narayanan2021")
def group_fits_cluster(group_size, group_stride, devices):
    """The cluster holds a whole number of groups."""
    return devices % (group_size * group_stride) == 0


@constraint(kind="illegal", reason="this fabric or library has no such collective or algorithm", source="thakur2005")
def collective_offered(collective_time, unavailable):
    """The collective, and the algorithm that the study names, exist."""
    return collective_time < unavailable
