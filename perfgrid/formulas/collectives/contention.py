"""Groups that share a tier: what is left of it for traffic that runs beside the computation.

Gradients are reduced, and sharded weights gathered, while a pass is computed whose own collectives come first. On a
tier that both use the bytes add up; on different tiers they run at the same time. As a fluid: of a tier that the pass
keeps busy for a part u of its time, 1 - u is left; a collective that needs the part s of the tier takes s/(1 - u) times
as long where that is more than 1. The pass itself is not slowed: its collectives are waited for and go first.
"""

from functools import reduce

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import at, table
from perfgrid.formulas.collectives.schedules.schedule import several

from .exchange import equal_parts

LEAST_LEFT = 0.05  # of a tier, however busy the pass keeps it: nobody starves
UNUSED = 1e20  # times as fast as needed: a tier that a transfer does not use
BUCKETS = {"BUCKET": ("reduction", "gathering")}

# ---- equations ------------------------------------------------------------------------------------------------------


def part_of_time(load, time):
    """Part of the time of a transfer for which it needs each tier, by tier; 0 where nothing is sent."""
    return xp.where(time > 0, load / xp.where(time > 0, time, 1e30), 0.0)


def speed(need):
    """How many times as fast each tier could do its part of a transfer that needs it for the part ``need`` of its time.

    1/need; very many for a tier that the transfer does not use.
    """
    return xp.where(need > 0, 1 / xp.where(need > 0, need, 1.0), UNUSED)


def pace(*speeds):
    """Part of its full speed at which a transfer runs where what tiers have left is so many times as fast as needed."""
    return reduce(xp.minimum, speeds, 1.0)


def tier_load(tier_ranks, tier_bandwidth):
    """Time for which each tier is busy per byte of a message that a group gathers or scatters, by tier.

    A rank receives from outside its part of what its domain needs, and inside what its domain's members hold. Source:
    cho2019blueconnect.
    """
    part = table("tier", scale_up=1.0, scale_out=1 / at(tier_ranks, tier="scale_up"))
    return (tier_ranks - 1) / tier_ranks * part / tier_bandwidth


# ---- what the collectives of a layer need of the tiers --------------------------------------------------------------


@formula(unit="s", source="rashidi2020astrasim")
def tp_tier_time(
    layer_tp_reductions,
    layer_tp_gathers,
    sequence_parallel,
    tp,
    tp_message,
    latent_saved_bytes,
    tp_tier_ranks,
    tp_tier_bandwidth,
):
    """Time for which the tensor-parallel collectives of a layer keep each tier busy, by tier."""
    passes = layer_tp_reductions * xp.where(sequence_parallel, 1.0, 2.0) + layer_tp_gathers
    narrower = latent_saved_bytes * tp / xp.maximum(tp - 1, 1.0)  # messages, of which a rank sends (n - 1)/n
    return (passes * tp_message - narrower) * tier_load(tp_tier_ranks, tp_tier_bandwidth)


@formula(unit="s", source="rashidi2020astrasim")
def ring_tier_time(layer_key_bytes, sequence_split_tier_ranks, tier_peer_bandwidth):
    """Time for which a ring of keys and values keeps each tier busy in a layer, hidden or not, by tier.

    Some rank's neighbour is on the other tier, and all that goes round crosses each tier that the ring spans.
    """
    return layer_key_bytes * several(sequence_split_tier_ranks) / tier_peer_bandwidth


@formula(unit="s", source="rashidi2020astrasim")
def head_tier_time(
    exchanged_activations,
    head_split,
    head_split_tier_ranks,
    head_split_exchange_inverse_bandwidth,
    layer_recomputed,
):
    """Time for which all-to-alls of heads keep each tier busy in a layer, by tier."""
    sent = equal_parts(exchanged_activations, head_split, at(head_split_tier_ranks, tier="scale_out"))
    return (2 + layer_recomputed) * sent * head_split_exchange_inverse_bandwidth


@alternative(of="cp_tier_time", by="cp_method", label="hybrid", unit="s", source="rashidi2020astrasim")
def hybrid_cp_tier_time(ring_tier_time, head_tier_time):
    """Time for which rings, and all-to-alls inside their groups, keep each tier busy in a layer, by tier."""
    return ring_tier_time + head_tier_time


@alternative(of="cp_tier_time", by="cp_method", label="all_gather", unit="s", source="rashidi2020astrasim")
def all_gather_cp_tier_time(cp_message, cp_tier_ranks, cp_tier_bandwidth, cp, layer_recomputed):
    """Time for which keys, values and their gradients keep each tier busy in a layer where they are gathered."""
    passes = xp.where(cp > 1, 3 + layer_recomputed, 0.0)
    return passes * cp_message * tier_load(cp_tier_ranks, cp_tier_bandwidth)


@formula(unit="s", source="rashidi2020astrasim")
def ep_tier_time(
    ep_dispatch_tier_bytes,
    ep_combine_tier_bytes,
    ep_exchange_inverse_bandwidth,
    etp_message,
    etp_tier_ranks,
    etp_tier_bandwidth,
    kind_has_experts,
    layer_recomputed,
):
    """Time for which a layer's exchange of tokens with experts keeps each tier busy, by tier.

    Dispatch and combine, and gather and scatter of rows among the ranks that share an expert, in every pass.
    """
    exchanged = (ep_dispatch_tier_bytes + ep_combine_tier_bytes) * ep_exchange_inverse_bandwidth
    gathered = 2 * etp_message * tier_load(etp_tier_ranks, etp_tier_bandwidth)
    return (2 + layer_recomputed) * kind_has_experts * (exchanged + gathered)


@formula(unit="s", source="rashidi2020astrasim")
def tier_busy_time(tp_tier_time, cp_tier_time, ep_tier_time):
    """Time for which the collectives of a layer keep each tier busy, by tier."""
    return tp_tier_time + cp_tier_time + ep_tier_time


# ---- what that leaves to the reduction and the gathering of buckets -------------------------------------------------


@formula(unit="1", source="rashidi2020astrasim")
def reduction_tier_speed(
    scatter_message,
    scatter_tier_ranks,
    scatter_tier_bandwidth,
    shard_replica_message,
    shard_replica_tier_ranks,
    shard_replica_tier_bandwidth,
    scatter_gather_time,
    shard_replica_all_reduce_time,
    expert_replica_message,
    expert_replica_tier_ranks,
    expert_replica_tier_bandwidth,
    expert_bucket_reduction_time,
    zero,
):
    """How many times as fast each tier could do its part of a bucket's reduction if it had no other, by tier.

    The reciprocal of the part of the reduction's time for which it needs the tier, of dense buckets or those of
    experts, whichever need more: all are slowed alike. At least 1.
    """
    replicas = 2 * shard_replica_message * tier_load(shard_replica_tier_ranks, shard_replica_tier_bandwidth)
    load = scatter_message * tier_load(scatter_tier_ranks, scatter_tier_bandwidth) + replicas
    dense = part_of_time(load, scatter_gather_time + shard_replica_all_reduce_time)
    expert_load = tier_load(expert_replica_tier_ranks, expert_replica_tier_bandwidth)
    expert_load = xp.where(zero >= 1, 1.0, 2.0) * expert_replica_message * expert_load
    return speed(xp.minimum(xp.maximum(dense, part_of_time(expert_load, expert_bucket_reduction_time)), 1.0))


@formula(unit="1", source="rashidi2020astrasim")
def gathering_tier_speed(
    shard_message,
    shard_tier_ranks,
    shard_tier_bandwidth,
    shard_gather_time,
    expert_shard_message,
    expert_shard_tier_ranks,
    expert_shard_tier_bandwidth,
    expert_shard_gather_time,
):
    """How many times as fast each tier could do its part of a bucket's gathering, by tier (see reductions)."""
    load = shard_message * tier_load(shard_tier_ranks, shard_tier_bandwidth)
    expert_load = expert_shard_message * tier_load(expert_shard_tier_ranks, expert_shard_tier_bandwidth)
    of_experts = part_of_time(expert_load, expert_shard_gather_time)
    return speed(xp.maximum(part_of_time(load, shard_gather_time), of_experts))


# On the grid, tiers are quantities of their own and what is left meets what is needed in a product: an inner axis would
# be the innermost of the compiled loops, a quotient an array of its own.


@formula(unit="1", source="rashidi2020astrasim")
def scale_up_left(tier_busy_time, layer_time):
    """Part of the scale-up tier that the collectives of a pass leave to others."""
    return xp.maximum(1 - at(tier_busy_time, tier="scale_up") / layer_time, LEAST_LEFT)


@formula(unit="1", source="rashidi2020astrasim")
def scale_out_left(tier_busy_time, layer_time):
    """Part of the scale-out tier that the collectives of a pass leave to others."""
    return xp.maximum(1 - at(tier_busy_time, tier="scale_out") / layer_time, LEAST_LEFT)


@formula(unit="1", source="rashidi2020astrasim", family=BUCKETS)
def BUCKET_pace(BUCKET_tier_speed, scale_up_left, scale_out_left):
    """Part of its full speed at which the BUCKET of a bucket runs beside the collectives of a pass."""
    inside, outside = (at(BUCKET_tier_speed, tier=tier) for tier in ("scale_up", "scale_out"))
    return pace(inside * scale_up_left, outside * scale_out_left)
