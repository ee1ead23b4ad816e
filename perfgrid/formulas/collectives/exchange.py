"""All-to-all: what every rank sends to other ranks on each tier, and how long that takes.

The exchange of tokens with experts sends unlike amounts on the tiers (one copy per node goes through the network and
fans out inside it), so the bytes come by tier; an all-to-all of equal parts is the special case. Both tiers work at the
same time, or one after the other.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import bind
from perfgrid.formulas.axes import at, table, total
from perfgrid.formulas.collectives.schedules.schedule import UNAVAILABLE, several

from .ideal import any_offered, asks
from .topology import group_bandwidth

ALL_TO_ALL, TWO_PHASE, DEDUPLICATED = 0, 1, 2  # the codes of token_dispatch
EXCHANGING = {"GROUP": ("head_split", "ep")}  # groups that run all-to-all

# ---- equations ------------------------------------------------------------------------------------------------------


def exchange_time(tier_bytes, latency, inverse_bandwidth, together):
    """Time of an exchange: the slower tier where both work ``together``, else one after the other.

    ``tier_bytes``: what the busiest rank sends (or receives) on each tier. Source: deepseek2025deepep, nvidia2022pxn.
    """
    by_tier = latency + tier_bytes * inverse_bandwidth
    slower = xp.maximum(at(by_tier, tier="scale_up"), at(by_tier, tier="scale_out"))
    return xp.where(together > 0, slower, total(by_tier, "tier"))


def equal_parts(message, n, nodes):
    """Bytes by tier of a message of equal parts for every rank, each sent straight to its rank."""
    per_node = n / nodes
    return table("tier", scale_up=(per_node - 1) / n * message, scale_out=(n - per_node) / n * message)


# ---- NCCL and ideal fabrics -----------------------------------------------------------------------------------------


@alternative(
    of="GROUP_exchange_latency", by="library", label="nccl", unit="s", source="nccl2026tuning", family=EXCHANGING
)
def GROUP_nccl_exchange_latency(
    GROUP_tier_ranks, GROUP_messages, collective_launch_latency, tier_transfer_latency, tier_message_latency
):
    """Latency of an exchange in the GROUP group as NCCL runs it, by tier: each message is posted on its own."""
    each = collective_launch_latency + tier_transfer_latency + GROUP_messages * tier_message_latency
    return several(GROUP_tier_ranks) * each


@alternative(
    of="GROUP_exchange_inverse_bandwidth",
    by="library",
    label="nccl",
    unit="s/byte",
    source="nccl2026tuning",
    family=EXCHANGING,
)
def GROUP_nccl_exchange_inverse_bandwidth(tier_bandwidth, tier_peer_bandwidth, GROUP_tier_ranks, congestion):
    """Time per byte that a GROUP rank sends to others as NCCL runs it, by tier."""
    bandwidth = group_bandwidth(tier_bandwidth, tier_peer_bandwidth, GROUP_tier_ranks, congestion)
    return several(GROUP_tier_ranks) / bandwidth


def of_each_tier(schedules, use):
    """What the direct schedule of each tier on its own asks of its links, by tier."""
    return at(schedules, link_use=f"alone_{use}", algorithm="direct")


@alternative(of="GROUP_exchange_latency", by="library", label="ideal", unit="s", source="dally2004", family=EXCHANGING)
def GROUP_ideal_exchange_latency(
    GROUP_all_to_all_schedules,
    GROUP_tier_ranks,
    GROUP_messages,
    tier_step_latency,
    tier_hop_latency,
    tier_message_latency,
):
    """Latency of an exchange in the GROUP group on the links of the fabric, by tier."""
    steps, hops, volume = (of_each_tier(GROUP_all_to_all_schedules, use) for use in ("steps", "hops", "volume"))
    found = xp.where(volume >= 0, steps * tier_step_latency + hops * tier_hop_latency, UNAVAILABLE)
    return found + several(GROUP_tier_ranks) * GROUP_messages * tier_message_latency


@alternative(
    of="GROUP_exchange_inverse_bandwidth",
    by="library",
    label="ideal",
    unit="s/byte",
    source="dally2004",
    family=EXCHANGING,
)
def GROUP_ideal_exchange_inverse_bandwidth(GROUP_all_to_all_schedules, GROUP_tier_ranks, tier_link_bandwidth):
    """Time per byte that a GROUP rank sends to others over the busiest link of the fabric, by tier.

    The tables count a message with the part that a rank keeps: n/(n - 1) of what it sends.
    """
    load = xp.maximum(of_each_tier(GROUP_all_to_all_schedules, "volume"), 0.0) / tier_link_bandwidth
    return load * GROUP_tier_ranks / xp.maximum(GROUP_tier_ranks - 1, 1.0)


# ---- experts --------------------------------------------------------------------------------------------------------


@formula(unit="s", source="deepseek2025deepep, liu2025folding")
def expert_exchange_time(
    ep_dispatch_tier_bytes,
    ep_combine_tier_bytes,
    ep_exchange_latency,
    ep_exchange_inverse_bandwidth,
    token_dispatch,
    etp_gather_time,
):
    """Communication of one pass through a layer with experts: dispatch, combine, and gather and scatter of its rows.

    The same forward and, with gradients, backward. In two phases one tier works after the other.
    """
    together = token_dispatch != TWO_PHASE
    dispatch, combine = (
        exchange_time(sent, ep_exchange_latency, ep_exchange_inverse_bandwidth, together)
        for sent in (ep_dispatch_tier_bytes, ep_combine_tier_bytes)
    )
    return dispatch + combine + 2 * etp_gather_time


# ---- heads ----------------------------------------------------------------------------------------------------------


@formula(unit="1", source="jacobs2023ulysses")
def head_split_messages(head_split, head_split_tier_ranks):
    """Messages that a rank posts in one all-to-all of the ranks that share out heads, by tier: one to every other."""
    inside = at(head_split_tier_ranks, tier="scale_up")
    return table("tier", scale_up=inside - 1, scale_out=head_split - inside)


@formula(unit="s", source="jacobs2023ulysses")
def head_exchange_time(
    exchanged_activations,
    head_split,
    head_split_tier_ranks,
    head_split_exchange_latency,
    head_split_exchange_inverse_bandwidth,
):
    """Mean time of the four all-to-alls of a pass through a layer: equal parts to every rank, on both tiers at once."""
    sent = equal_parts(exchanged_activations / 4, head_split, at(head_split_tier_ranks, tier="scale_out"))
    return exchange_time(sent, head_split_exchange_latency, head_split_exchange_inverse_bandwidth, 1.0)


FORMULAS = (
    *asks(
        *("GROUP_all_to_all_schedules", "all_to_all", "GROUP GROUP_stride", "all-to-alls of the GROUP group"),
        EXCHANGING,
    ),
    *bind(
        *(any_offered, "ep_fills_shape", "ep_all_to_all_schedules", "1", "narayanan2021"),
        of=("ep_fills", "library", "ideal"),
    ),
)
