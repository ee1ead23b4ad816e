"""Collectives: the cost of each algorithm at each tier of a group, and the fastest for its message.

The unit is an all-gather of a message of B bytes per rank (its gathered size). A reduce-scatter is its mirror image and
costs the same, an all-reduce is one of each.
"""

from perfgrid.engine import xp
from perfgrid.engine.registry import alternative, formula

from .axes import at, table, total

GROUPS = {"GROUP": ("tp", "dp", "shard")}

# ---- equations: an all-gather of B bytes among n ranks of bandwidth b -----------------------------------------------


def gathered_share(n):
    """Part of the message that each rank receives from others: (n - 1)/n, the bandwidth bound of every algorithm."""
    return (n - 1) / n


def sliced_pipeline_time(latency, transfer, overhead):
    """Time of a transfer that is cut into slices and forwarded from rank to rank.

    With c slices of equal size every slice costs a software overhead o, and the last rank starts transfer/c late at
    each of k steps: latency + transfer + c·o + k·transfer/c, at the best c: latency + transfer + 2·sqrt(k·o·transfer).
    The argument ``overhead`` is k·o, the software part of the latency.
    """
    product = overhead * transfer
    root = xp.sqrt(xp.where(product > 0, product, 1e30))  # the root of 0 has no gradient
    return latency + transfer + xp.where(product > 0, 2 * root, 0.0)


def ring_time(message, n, latency, overhead, bandwidth):
    """Ring: n - 1 steps of the given latency, of which ``overhead`` is software; every link carries (n - 1)/n of B."""
    return sliced_pipeline_time((n - 1) * latency, gathered_share(n) * message / bandwidth, (n - 1) * overhead)


def direct_time(message, n, latency, bandwidth):
    """Direct exchange: every rank sends its part to all others in one step."""
    return xp.where(n > 1, latency, 0.0) + gathered_share(n) * message / bandwidth


def flat_ring_time(message, ranks, latency, overhead, bandwidth):
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
    )


# ---- bindings -------------------------------------------------------------------------------------------------------


@formula(unit="s", source="thakur2005")
def unavailable():
    """Time of an algorithm that a fabric does not offer."""
    return 1e30


@formula(unit="byte", source="cho2019blueconnect", family=GROUPS)
def GROUP_tier_message(GROUP_message, GROUP_tier_ranks):
    """Part of the GROUP message that each tier gathers, by tier: ranks of a domain share what comes from outside."""
    inside = at(GROUP_tier_ranks, tier="scale_up")
    return table("tier", scale_up=GROUP_message, scale_out=GROUP_message / inside)


@alternative(of="GROUP_tier_time", label="ring", unit="s", source="chan2007collective", family=GROUPS)
def GROUP_ring_time(GROUP_tier_message, GROUP_tier_ranks, tier_latency, tier_step_latency, tier_bandwidth):
    """Time of a ring all-gather in the GROUP group, by tier."""
    return ring_time(GROUP_tier_message, GROUP_tier_ranks, tier_latency, tier_step_latency, tier_bandwidth)


@alternative(of="GROUP_tier_time", label="direct", unit="s", source="thakur2005", family=GROUPS)
def GROUP_direct_time(
    GROUP_tier_message, GROUP_tier_ranks, tier_latency, tier_bandwidth, tier_direct, direct_collectives, unavailable
):
    """Time of a direct all-gather in the GROUP group, by tier, where fabric and communication library offer it."""
    time = direct_time(GROUP_tier_message, GROUP_tier_ranks, tier_latency, tier_bandwidth)
    return xp.where((tier_direct > 0) & direct_collectives, time, unavailable)


@alternative(of="GROUP_gather_time", label="hierarchical", unit="s", source="cho2019blueconnect", family=GROUPS)
def GROUP_hierarchical_time(GROUP_tier_time):
    """Time of an all-gather in the GROUP group that goes tier by tier."""
    return total(GROUP_tier_time, "tier")


@alternative(of="GROUP_gather_time", label="flat_ring", unit="s", source="nccl2026tuning", family=GROUPS)
def GROUP_flat_ring_time(GROUP_message, GROUP_tier_ranks, tier_latency, tier_step_latency, tier_bandwidth):
    """Time of one ring all-gather through all ranks of the GROUP group."""
    pairs = [
        (at(x, tier="scale_up"), at(x, tier="scale_out"))
        for x in (GROUP_tier_ranks, tier_latency, tier_step_latency, tier_bandwidth)
    ]
    return flat_ring_time(GROUP_message, *pairs)
