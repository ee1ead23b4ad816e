"""Collectives: the cost of each algorithm at each tier of a group, and the fastest for its message.

An all-gather of a message of B bytes per rank (its gathered size); a reduce-scatter is its mirror image and costs the
same. An all-reduce is one schedule of its own: a reduce-scatter whose slices go straight on into an all-gather.
"""

from perfgrid.engine import xp
from perfgrid.engine.registry import alternative, constraint, formula

from .axes import at, table, total

PLACED = {"GROUP": ("tp", "dp", "pp", "shard", "vocab", "tied")}  # groups of ranks on the fabric
GATHERING = {"GROUP": ("tp", "dp", "shard", "vocab", "tied")}  # those that gather or reduce-scatter
REDUCING = {"GROUP": ("tp", "dp", "vocab", "tied")}  # those that all-reduce

# ---- equations: B bytes among n ranks of bandwidth b ----------------------------------------------------------------


def gathered_share(n):
    """Part of the message that each rank receives from others: (n - 1)/n, the bandwidth bound of every algorithm."""
    return (n - 1) / n


def sliced_pipeline_time(latency, transfer, overhead, passes):
    """Time of a message that is cut into slices and forwarded round a ring, once (gather) or twice (all-reduce).

    With c slices of equal size every slice costs a software overhead o, and the last rank starts transfer/c late at
    each of k steps: latency + transfer + c·o + k·transfer/c, at the best c: latency + transfer + 2·sqrt(k·o·transfer).
    The argument ``overhead`` is k·o, the software part of the latency of a pass. A reduced slice goes straight on into
    the second pass: the ring fills once, and that the slices then cost no overhead again is an assumption (the
    measured all-reduces and gathers in the tests bear it out within 15 %; nothing is fitted to them).
    """
    product = overhead * transfer
    root = xp.sqrt(xp.where(product > 0, product, 1e30))  # the root of 0 has no gradient
    return passes * (latency + transfer) + xp.where(product > 0, 2 * root, 0.0)


def ring_time(message, n, latency, overhead, bandwidth, *, passes=1):
    """Ring: n - 1 steps of the given latency, of which ``overhead`` is software; every link carries (n - 1)/n of B."""
    transfer = gathered_share(n) * message / bandwidth
    return sliced_pipeline_time((n - 1) * latency, transfer, (n - 1) * overhead, passes)


def direct_time(message, n, latency, bandwidth):
    """Direct exchange: every rank sends its part to all others in one step."""
    return xp.where(n > 1, latency, 0.0) + gathered_share(n) * message / bandwidth


def flat_ring_time(message, ranks, latency, overhead, bandwidth, *, passes=1):
    """One ring through all ranks of several domains, with as many rings side by side as a domain has ranks.

    Of n - 1 steps N - 1 leave a domain; every rank's outer link carries one of the rings. All but the message are pairs
    (inside a domain, between domains).
    """
    (inside, domains), n = ranks, ranks[0] * ranks[1]
    steps = (n - domains, domains - 1)
    slowest = xp.where(domains > 1, xp.minimum(bandwidth[0], inside * bandwidth[1]), bandwidth[0])
    return sliced_pipeline_time(
        steps[0] * latency[0] + steps[1] * latency[1],
        gathered_share(n) * message / slowest,
        steps[0] * overhead[0] + steps[1] * overhead[1],
        passes,
    )


def inside_and_between(*by_tier):
    """Each quantity by tier as a pair: inside a domain, between domains."""
    return [(at(x, tier="scale_up"), at(x, tier="scale_out")) for x in by_tier]


# ---- bindings: what a tier offers -----------------------------------------------------------------------------------


@formula(unit="s", source="thakur2005")
def unavailable():
    """Time of an algorithm that is not offered: longer than any run, small enough for products in single precision."""
    return 1e10


@formula(unit="1", source="thakur2005", family=GATHERING)
def GROUP_direct_offered(GROUP_tier_ranks, tier_direct, direct_collectives):
    """1 where fabric and communication library offer a direct exchange in the GROUP group, by tier."""
    return xp.where(((tier_direct > 0) & direct_collectives) | (GROUP_tier_ranks <= 1), 1.0, 0.0)


@alternative(
    of="GROUP_library_offered", by="library", label="nccl", unit="1", source="nccl2026tuning", family=GATHERING
)
def GROUP_nccl_offered(GROUP_named_algorithm):
    """1 where the library's own algorithms run in the GROUP group: the study names no ideal one."""
    return xp.where(GROUP_named_algorithm > 0, 0.0, 1.0)


@alternative(of="GROUP_library_offered", by="library", label="ideal", unit="1", source="thakur2005", family=GATHERING)
def GROUP_ideal_library_offered():
    """1 where a library's own algorithms run in the GROUP group: not on an ideal fabric."""
    return 0.0


@formula(unit="1", source="nccl2026device", family=GATHERING)
def GROUP_flat_ring_offered(GROUP, GROUP_tier_ranks, GROUP_library_offered):
    """1 where one ring through all ranks of the GROUP group is something else than the rings of its tiers."""
    apart = (at(GROUP_tier_ranks, tier="scale_out") > 1) | (GROUP <= 1)
    return xp.where(apart & (GROUP_library_offered > 0), 1.0, 0.0)


@formula(unit="byte", source="cho2019blueconnect", family=GATHERING)
def GROUP_tier_message(GROUP_message, GROUP_tier_ranks):
    """Part of the GROUP message that each tier gathers, by tier: ranks of a domain share what comes from outside."""
    inside = at(GROUP_tier_ranks, tier="scale_up")
    return table("tier", scale_up=GROUP_message, scale_out=GROUP_message / inside)


# ---- bindings: all-gather and reduce-scatter ------------------------------------------------------------------------


@alternative(of="GROUP_tier_time", label="ring", unit="s", source="nccl2026device", family=GATHERING)
def GROUP_ring_time(GROUP_tier_message, GROUP_tier_ranks, tier_latency, tier_step_latency, GROUP_tier_bandwidth):
    """Time of a ring all-gather in the GROUP group, by tier."""
    return ring_time(GROUP_tier_message, GROUP_tier_ranks, tier_latency, tier_step_latency, GROUP_tier_bandwidth)


@alternative(of="GROUP_tier_time", label="direct", unit="s", source="thakur2005", family=GATHERING)
def GROUP_direct_time(
    GROUP_tier_message, GROUP_tier_ranks, tier_latency, GROUP_tier_bandwidth, GROUP_direct_offered, unavailable
):
    """Time of a direct all-gather in the GROUP group, by tier, where it is offered."""
    time = direct_time(GROUP_tier_message, GROUP_tier_ranks, tier_latency, GROUP_tier_bandwidth)
    return xp.where(GROUP_direct_offered > 0, time, unavailable)


@alternative(of="GROUP_gather_time", label="hierarchical", unit="s", source="cho2019blueconnect", family=GATHERING)
def GROUP_hierarchical_time(GROUP_tier_time, GROUP_library_offered, unavailable):
    """Time of an all-gather in the GROUP group that goes tier by tier."""
    return xp.where(GROUP_library_offered > 0, total(GROUP_tier_time, "tier"), unavailable)


@alternative(of="GROUP_gather_time", label="flat_ring", unit="s", source="nccl2026device", family=GATHERING)
def GROUP_flat_ring_time(
    GROUP_message,
    GROUP_tier_ranks,
    tier_latency,
    tier_step_latency,
    GROUP_tier_bandwidth,
    GROUP_flat_ring_offered,
    unavailable,
):
    """Time of one ring all-gather through all ranks of the GROUP group, where it has several domains."""
    pairs = inside_and_between(GROUP_tier_ranks, tier_latency, tier_step_latency, GROUP_tier_bandwidth)
    return xp.where(GROUP_flat_ring_offered > 0, flat_ring_time(GROUP_message, *pairs, passes=1), unavailable)


# ---- bindings: all-reduce -------------------------------------------------------------------------------------------


@alternative(of="GROUP_tier_all_reduce_time", label="ring", unit="s", source="patarasuk2009ring", family=REDUCING)
def GROUP_ring_all_reduce_time(
    GROUP_tier_message, GROUP_tier_ranks, tier_latency, tier_step_latency, GROUP_tier_bandwidth
):
    """Time of a ring all-reduce in the GROUP group, by tier: 2·(n - 1) steps of one pipelined schedule."""
    group = (GROUP_tier_message, GROUP_tier_ranks)
    return ring_time(*group, tier_latency, tier_step_latency, GROUP_tier_bandwidth, passes=2)


@alternative(of="GROUP_tier_all_reduce_time", label="direct", unit="s", source="thakur2005", family=REDUCING)
def GROUP_direct_all_reduce_time(GROUP_direct_time, GROUP_direct_offered, unavailable):
    """Time of a direct all-reduce in the GROUP group, by tier: a direct reduce-scatter and a direct all-gather."""
    return xp.where(GROUP_direct_offered > 0, 2 * GROUP_direct_time, unavailable)


@alternative(of="GROUP_all_reduce_time", label="hierarchical", unit="s", source="cho2019blueconnect", family=REDUCING)
def GROUP_hierarchical_all_reduce_time(
    GROUP_tier_time, GROUP_tier_all_reduce_time, GROUP_tier_ranks, GROUP_library_offered, unavailable
):
    """Time of an all-reduce in the GROUP group that goes tier by tier.

    Over several domains a reduce-scatter and an all-gather inside them enclose the all-reduce between them.
    """
    (gather, _), (inside, between), (_, domains) = inside_and_between(
        GROUP_tier_time, GROUP_tier_all_reduce_time, GROUP_tier_ranks
    )
    time = xp.where(domains > 1, 2 * gather, inside) + between
    return xp.where(GROUP_library_offered > 0, time, unavailable)


@alternative(of="GROUP_all_reduce_time", label="flat_ring", unit="s", source="nccl2026device", family=REDUCING)
def GROUP_flat_ring_all_reduce_time(
    GROUP_message,
    GROUP_tier_ranks,
    tier_latency,
    tier_step_latency,
    GROUP_tier_bandwidth,
    GROUP_flat_ring_offered,
    unavailable,
):
    """Time of one ring all-reduce through all ranks of the GROUP group, where it has several domains."""
    pairs = inside_and_between(GROUP_tier_ranks, tier_latency, tier_step_latency, GROUP_tier_bandwidth)
    return xp.where(GROUP_flat_ring_offered > 0, flat_ring_time(GROUP_message, *pairs, passes=2), unavailable)


# ---- bindings: the schedules of ideal fabrics (see `fabrics`) -------------------------------------------------------


@alternative(of="GROUP_gather_time", label="ideal", unit="s", source="thakur2005", family=GATHERING)
def GROUP_schedule_time(GROUP_ideal_gather_time):
    """Time of the fastest all-gather in the GROUP group that an ideal fabric allows."""
    return GROUP_ideal_gather_time


@alternative(of="GROUP_all_reduce_time", label="ideal", unit="s", source="thakur2005", family=REDUCING)
def GROUP_schedule_all_reduce_time(GROUP_ideal_all_reduce_time):
    """Time of the fastest all-reduce in the GROUP group that an ideal fabric allows."""
    return GROUP_ideal_all_reduce_time


@alternative(of="GROUP_ideal_gather_time", by="library", label="nccl", unit="s", source="thakur2005", family=GATHERING)
def GROUP_no_ideal_gather_time(unavailable):
    """Time of an ideal all-gather in the GROUP group where a library runs it: unavailable."""
    return unavailable


@alternative(
    of="GROUP_ideal_all_reduce_time", by="library", label="nccl", unit="s", source="thakur2005", family=REDUCING
)
def GROUP_no_ideal_all_reduce_time(unavailable):
    """Time of an ideal all-reduce in the GROUP group where a library runs it: unavailable."""
    return unavailable


@formula(unit="1", source="thakur2005", family={"GROUP": ("tp", "vocab")})
def GROUP_named_algorithm(tp_algorithm):
    """Number of the ideal algorithm that the study names for the GROUP ranks; 0 for the fastest."""
    return tp_algorithm


@formula(unit="1", source="thakur2005", family={"SHARED": ("dp", "shard")})
def SHARED_named_algorithm(dp_algorithm):
    """Number of the ideal algorithm that the study names for the SHARED ranks; 0 for the fastest."""
    return dp_algorithm


@formula(unit="1", source="thakur2005", family={"FREE": ("tied", "pp")})
def FREE_named_algorithm():
    """Number of the ideal algorithm that the study names for the FREE ranks: none, 0."""
    return 0.0


# ---- what was chosen ------------------------------------------------------------------------------------------------


@constraint(
    kind="illegal",
    reason="the chosen collective algorithm of the GROUP ranks is not offered by this fabric or software",
    source="thakur2005",
    family={"GROUP": ("tp", "dp")},
)
def GROUP_algorithms_offered(GROUP_longest_call_time, unavailable):
    """The algorithms that the study fixes for the GROUP ranks exist; the fastest of those on offer always does."""
    return GROUP_longest_call_time < unavailable
