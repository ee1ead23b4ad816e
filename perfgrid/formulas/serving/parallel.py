"""What ranks exchange in inference: all-reduces of tensor parallelism, tokens of experts, point-to-point transfers.

Messages of a decoding step are small: what counts is the start of a collective and its number of steps. A library sends
them with its low-latency protocol, which flags every word and so reaches half of the links' rate. Serving stacks also
have kernels of their own, in which every rank reads its peers' buffers directly (``direct_collectives``): all of them
(one shot), or its own part, which it then offers (two shots).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import WORKLOAD, alternative, formula, synonyms
from perfgrid.engine.graph.tables import bind, by_label
from perfgrid.formulas.axes import at, largest, only, table, total
from perfgrid.formulas.collectives.nccl import ALL_REDUCE, all_reduce_time
from perfgrid.formulas.collectives.placement import gathered_share
from perfgrid.formulas.collectives.schedules.fabric import TIER_KINDS
from perfgrid.formulas.collectives.schedules.schedule import UNAVAILABLE
from perfgrid.formulas.parallelism.context_parallel import exposed_in_ring

from .latency import in_pass

PEERS = tuple(float(TIER_KINDS.index(kind)) for kind in ("switch", "fully_connected"))  # tiers whose members all meet


START = "Latency of a collective until its first step: what the stack takes to start it on all ranks."

FORMULAS = (
    *synonyms(
        {"collective_launch_latency": ("collective_overhead", "s", "nccl2026tuning", START)}, workload="inference"
    ),
    *by_label(WORKLOAD, {"tp_named_algorithm": ("1", "thakur2005", "Algorithm that is named.")}, {"inference": (0.0,)}),
    *bind(
        *(all_reduce_time, "tp_nccl_time", ALL_REDUCE.replace("GROUP", "tp"), "s", "nccl2026tuning"),
        "Time of one all-reduce of the tensor-parallel ranks by NCCL, by pass.",
    ),
)

# ---- equations: an all-reduce of B bytes among n ranks ---------------------------------------------------------------


def one_shot_all_reduce(message, n, step, bandwidth):
    """Every rank reads the whole buffers of its peers in one step."""
    return xp.where(n > 1, step, 0.0) + (n - 1) * message / bandwidth


def two_shot_all_reduce(message, n, step, bandwidth):
    """Every rank adds up its part of the buffers, then reads the parts of its peers."""
    return xp.where(n > 1, 2 * step, 0.0) + 2 * gathered_share(n) * message / bandwidth


def expected_distinct(groups, draws):
    """Distinct groups among so many random draws: g·(1 - (1 - 1/g)^d)."""
    return groups * (1 - xp.exp(draws * xp.log1p(-1 / xp.maximum(groups, 1.0 + 1e-6))))


# ---- tensor parallelism ---------------------------------------------------------------------------------------------


def across(value, crosses):
    """The value of the tier that a group spans: of the network where it crosses scale-up domains."""
    return xp.where(crosses > 0, at(value, tier="scale_out"), at(value, tier="scale_up"))


def by_domain(message, tier_ranks):
    """Part of a message that each tier carries, by tier: a domain shares what leaves it."""
    return message / table("tier", scale_up=1.0, scale_out=at(tier_ranks, tier="scale_up"))


@alternative(of="tp_message", by="workload", label="inference", unit="byte", source="shoeybi2019megatron")
def serving_tp_message(pass_tokens, hidden_size, activation_size):
    """Partial results that the tensor-parallel ranks add up, by pass."""
    return pass_tokens * hidden_size * activation_size


@formula(unit="s", source="nvidia2024customallreduce")
def tp_direct_time(tp_message, tp_tier_ranks, nccl_step_latency, tp_tier_bandwidth, tier_kind, direct_collectives):
    """Time of one all-reduce by kernels that read the buffers of their peers word by word, by pass, from their start.

    A step takes as long as with a message of few bytes: low-latency protocol and links passed.
    """
    inside, kind = at(tp_tier_ranks, tier="scale_up"), at(tier_kind, tier="scale_up")
    step = at(nccl_step_latency, nccl_algorithm="ring", protocol="ll", tier="scale_up")
    bandwidth = at(tp_tier_bandwidth, tier="scale_up") / 2
    one = one_shot_all_reduce(tp_message, inside, step, bandwidth)
    two = two_shot_all_reduce(tp_message, inside, step, bandwidth)
    meet = (kind == PEERS[0]) | (kind == PEERS[1])
    offered = direct_collectives & meet & (at(tp_tier_ranks, tier="scale_out") <= 1)
    return xp.where(offered, xp.minimum(one, two), UNAVAILABLE)


@formula(unit="s", source="graham2016sharp")
def tp_in_network_time(tp_message, tp_tier_ranks, tier_transfer_latency, tier_bandwidth, tier_in_network):
    """Time of one all-reduce that the switches add up, by pass, from its start: all send, and get the sum."""
    moved = (1 + 1 / tp_tier_ranks) * by_domain(tp_message, tp_tier_ranks) / tier_bandwidth
    time = xp.where(tp_tier_ranks > 1, 2 * tier_transfer_latency + moved, 0.0)
    offered = (tier_in_network > 0) | (tp_tier_ranks <= 1)
    return total(xp.where(offered, time, UNAVAILABLE), "tier")


@alternative(of="tp_all_reduce_time", by="workload", label="inference", unit="s", source="pope2022inference")
def serving_tp_all_reduce_time(tp_nccl_time, tp_direct_time, tp_in_network_time, collective_launch_latency, tp):
    """Time of one all-reduce of the tensor-parallel ranks by the fastest means that there is, by pass."""
    others = collective_launch_latency + xp.minimum(tp_direct_time, tp_in_network_time)
    return xp.where(tp > 1, xp.minimum(tp_nccl_time, others), 0.0)


@formula(unit="1", source="shoeybi2019megatron")
def tp_all_reduces(layers, layer_blocks, looked_up_width, hidden_size, tp):
    """All-reduces of one pass through all layers: one at the end of each block, and one of the split embedding.

    Embeddings of layers count as their width over that of the hidden state.
    """
    return xp.where(tp > 1, layers * layer_blocks + looked_up_width / hidden_size, 0.0)


@formula(unit="s", source="shoeybi2019megatron")
def logits_gather_time(
    pass_sequences,
    vocab_size,
    activation_size,
    tp_tier_ranks,
    tier_transfer_latency,
    tier_bandwidth,
    collective_overhead,
):
    """Time to gather the logits of the next tokens, by pass: a ring of n - 1 steps on each tier."""
    message = by_domain(pass_sequences * vocab_size * activation_size, tp_tier_ranks)
    ring = (tp_tier_ranks - 1) * tier_transfer_latency + gathered_share(tp_tier_ranks) * message / tier_bandwidth
    return total(ring + xp.where(tp_tier_ranks > 1, collective_overhead, 0.0), "tier")


@formula(unit="s", source="pope2022inference")
def tp_time(tp_all_reduce_time, tp_all_reduces, logits_gather_time):
    """Time of the collectives of tensor parallelism in one pass, by pass."""
    return tp_all_reduces * tp_all_reduce_time + logits_gather_time


# ---- experts --------------------------------------------------------------------------------------------------------


@formula(unit="1", source="lepikhin2021gshard")
def moe_exchanges(tp, ep, etp, moe_layers):
    """Layers in which tokens travel to their experts, as these lie on more ranks than hold the token already."""
    return xp.where(ep * etp > tp, moe_layers, 0.0)


@formula(unit="1", source="deepseek2025deepep")
def tier_copies(ep_tier_ranks, experts_per_token, groups, groups_per_token, etp, tp):
    """Copies of a token that each tier carries, by pass and tier.

    Beyond the scale-up domain of the token, in the prefill: one for each other domain that holds a chosen expert (at
    most the groups that a token may visit), spread inside it; in decoding one for each expert, for the sake of latency.
    Where tensor-parallel ranks that hold other tokens share an expert all of them take a copy, each rank at most one.
    """
    inside, domains = at(ep_tier_ranks, tier="scale_up"), at(ep_tier_ranks, tier="scale_out")
    ranks = inside * xp.maximum(etp / tp, 1.0)
    shared = xp.minimum(experts_per_token * ranks / inside, ranks) * (1 - 1 / ranks)
    near = xp.where(etp > tp, shared, experts_per_token * (1 - 1 / inside))
    limit = xp.where(groups > 0, xp.minimum(groups_per_token, domains), domains)
    visited = xp.minimum(expected_distinct(domains, experts_per_token), limit)
    away = 1 - 1 / xp.maximum(domains, 1.0)
    return table(
        "tier",
        scale_up=near * table("pass", prefill=1.0, decode=1 / xp.maximum(domains, 1.0)),
        scale_out=away * table("pass", prefill=visited, decode=experts_per_token),
    )


@formula(unit="byte", source="deepseek2025deepep")
def token_message(pass_tokens, tp, expert_width, operand_size, activation_size):
    """Bytes of one copy of the tokens of a rank to experts and back, by pass: operands go, 16 bits return."""
    return pass_tokens / tp * expert_width * (operand_size + activation_size)


@formula(unit="s", source="deepseek2025deepep")
def exchange_time(
    moe_exchanges, tier_copies, token_message, ep_tier_ranks, tier_transfer_latency, tier_bandwidth, collective_overhead
):
    """Time in which tokens travel to experts and results back in one pass through all layers, by pass."""
    starts = xp.where(ep_tier_ranks > 1, 2 * tier_transfer_latency, 0.0)
    by_tier = tier_copies * token_message / tier_bandwidth + starts
    return moe_exchanges * (largest(by_tier, "tier") + 2 * collective_overhead)


# ---- pipeline -------------------------------------------------------------------------------------------------------


@formula(unit="1", source="narayanan2021")
def pipeline_transfer_crosses(tp, cp, pp, tier_size):
    """1 where the stages of a pipeline span several scale-up domains."""
    return xp.where(tp * cp * pp > at(tier_size, tier="scale_up"), 1.0, 0.0)


@formula(unit="byte", source="narayanan2021")
def pipeline_message(pass_tokens, hidden_size, activation_size, tp):
    """Bytes that a rank hands to the next stage of a pipeline, by pass."""
    return pass_tokens * hidden_size * activation_size / tp


@formula(unit="s", source="narayanan2021")
def pipeline_transfer_time(
    pipeline_message, pp, pipeline_transfer_crosses, tier_transfer_latency, tier_bandwidth, collective_overhead
):
    """Time of the point-to-point transfers between stages in one pass, by pass, across the outermost tier they span."""
    by_tier = tier_transfer_latency + pipeline_message / tier_bandwidth
    return (pp - 1) * (across(by_tier, pipeline_transfer_crosses) + collective_overhead)


@formula(unit="1", source="liu2023ring")
def context_crosses(tp, cp, tier_size):
    """1 where context-parallel ranks span several scale-up domains."""
    return xp.where(tp * cp > at(tier_size, tier="scale_up"), 1.0, 0.0)


@formula(unit="byte", source="liu2023ring, yang2024context, dao2023flash2")
def context_message(
    pass_tokens,
    attended_tokens,
    rank_cache_width,
    index_layers,
    index_head_dim,
    attention_layers,
    rank_query_width,
    activation_size,
    cp,
):
    """What a context-parallel rank sends to the next at a time, by pass.

    Prefill: keys and values of its part of all that a pass attends to, and keys of indexers. Decoding: queries of its
    part of the sequences.
    """
    queries = pass_tokens * rank_query_width * activation_size / cp
    index_width = index_layers / xp.maximum(attention_layers, 1.0) * index_head_dim
    keys = attended_tokens * (rank_cache_width + index_width) * activation_size
    return keys * only("pass", "prefill") + queries * only("pass", "decode")


@formula(unit="s", source="liu2023ring, yang2024context")
def context_exchange_time(
    context_message,
    context_crosses,
    cp,
    attention_layers,
    tier_bandwidth,
    tier_transfer_latency,
    collective_overhead,
    prefill_attention_time,
    prefill_passes,
    cp_overlap,
):
    """Time for which context-parallel ranks wait in all layers for what they pass round, by pass.

    Keys of a prefill travel while a rank attends to those that it has. In a decoding step queries go round, and the
    results over all parts of the cache return at once; nothing hides them.
    """
    start = collective_overhead + tier_transfer_latency
    moved = context_message / tier_bandwidth
    sends, returns = (
        across(time, context_crosses) for time in (start + moved, xp.where(cp > 1, start + (cp - 1) * moved, 0.0))
    )
    attention = total(prefill_attention_time, "resource") / prefill_passes / xp.maximum(attention_layers, 1.0)
    keys = exposed_in_ring(cp, in_pass(sends, "prefill"), cp_overlap * attention)
    decoding = (cp - 1) * in_pass(sends, "decode") + in_pass(returns, "decode")
    return attention_layers * table("pass", prefill=keys, decode=decoding)
