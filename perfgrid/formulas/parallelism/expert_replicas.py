"""Data parallelism of routed experts: gradients and weights that fewer ranks share than those of the other matrices.

Each of ep·etp ranks holds other experts, so edp = tp·cp·dp/(ep·etp) ranks hold the same ones (`expert_replica`) and
reduce their gradients, in buckets of their own that alternate with those of `data_parallel` on the same links.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.collectives.placement import gathered_share


@formula(unit="byte", source="rajbhandari2020zero")
def expert_gradient_message(stage_expert_parameters, reduced_gradient_size):
    """Bytes of gradients of the routed experts of one device."""
    return stage_expert_parameters * reduced_gradient_size


@formula(unit="1", source="rajbhandari2020zero")
def expert_reductions(experts, expert_replica, expert_gradient_buckets):
    """Buckets of routed experts that ranks reduce: 0 without experts or without replicas of them."""
    return xp.where((experts > 0) & (expert_replica > 1), expert_gradient_buckets, 0.0)


@formula(unit="1", source="li2020ddp")
def dp_buckets(gradient_buckets, expert_reductions):
    """Buckets of all gradients of one device."""
    return gradient_buckets + expert_reductions


@formula(unit="byte", source="rajbhandari2020zero")
def expert_shard_message(stage_expert_parameters, gathered_weight_size, expert_gradient_buckets):
    """Bytes of weights of routed experts in one bucket, which ranks all-gather."""
    return stage_expert_parameters * gathered_weight_size / expert_gradient_buckets


@formula(unit="s", source="rajbhandari2020zero")
def expert_bucket_reduction_time(expert_replica_gather_time, expert_replica_all_reduce_time, zero):
    """Time to reduce one bucket of routed experts: an all-reduce or, for a sharded optimizer, a reduce-scatter."""
    return xp.where(zero >= 1, expert_replica_gather_time, expert_replica_all_reduce_time)


@formula(unit="s", source="rajbhandari2020zero")
def expert_replica_longest_call_time(expert_bucket_reduction_time, expert_shard_gather_time):
    """Time of the longest collective of the ranks that hold the same experts in a step."""
    return xp.maximum(expert_bucket_reduction_time, expert_shard_gather_time)


@formula(unit="byte", source="rajbhandari2020zero")
def expert_replica_bytes(
    expert_replica,
    expert_replica_message,
    expert_shard_message,
    expert_reductions,
    reduction_passes,
    weight_gatherings,
    zero,
):
    """Bytes that one device sends in one step for gradients and weights of routed experts, as `dp_bytes`.

    With n replicas (n - 1)/n of the gradients in every reduce-scatter and of the weights in every all-gather, or twice
    that in an all-reduce. Valid for rings and other bandwidth-optimal algorithms.
    """
    sharded = reduction_passes * expert_replica_message + weight_gatherings * expert_shard_message
    moved = xp.where(zero >= 1, sharded, 2 * expert_replica_message)
    return gathered_share(expert_replica) * expert_reductions * moved


@formula(unit="1", source="rajbhandari2020zero")
def expert_replica_calls(expert_reductions, reduction_passes, weight_gatherings):
    """Collectives of one device in one step for gradients and weights of routed experts."""
    return expert_reductions * (reduction_passes + weight_gatherings)
