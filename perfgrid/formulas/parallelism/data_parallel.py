"""Data parallelism: gradients reduced and weights gathered in buckets; waiting for the slowest device.

Gradients leave bucket by bucket during a backward pass, and sharded weights return during a forward pass, as far as the
software overlaps them. One bucket always stays exposed. Per step each of d ranks sends, for P parameters of a device
with g bytes per gradient and w bytes per weight,

* without sharding 2(d - 1)/d·P·g (an all-reduce);
* with a sharded optimizer (ZeRO stage 1) (d - 1)/d·P·(g + w): a reduce-scatter of gradients, an all-gather of weights;
* with sharded gradients and weights the same per microbatch, gathered twice (`sharding`; a layer is a bucket).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula, synonyms
from perfgrid.formulas.axes import mean_of_kinds, of_kinds
from perfgrid.formulas.collectives.placement import gathered_share

from .groups import ALSO_OF_EXPERTS
from .tensor_parallel import with_cores_taken

FORMULAS = synonyms(
    {
        "scatter_message": (
            *("replica_message", "byte", "li2020ddp"),
            "Gradients of one bucket that ranks reduce-scatter.",
        ),
        "exposed_tied_time": (
            *("tied_all_reduce_time", "s", "narayanan2021"),
            "All-reduce of a shared embedding table's gradients between both ends of a pipeline, after all others.",
        ),
    }
)


# ---- equations ------------------------------------------------------------------------------------------------------


def hidden_in_buckets(buckets, chunks, following, stage_pass):
    """Communication of b buckets that hides while a device passes once through its stage: of the last chunk, of all.

    With v chunks min(p, m) microbatches (``following``) pass through each chunk before the next: all chunks but the
    last can hide behind p·(v - 1) passes through a chunk, the last chunk only behind one: 1/v of the first result.
    """
    return stage_pass * (1 - chunks / buckets), stage_pass * ((following * (chunks - 1) + 1) / chunks - 1 / buckets)


def exposed_in_buckets(communication, buckets, chunks, hidden):
    """What is left of buckets beside a pass: one always stays (`exposed_in_parts`), of the last chunk or of all."""
    of_last_chunk, of_all = hidden
    last_chunk = xp.maximum(communication / buckets, (communication - of_last_chunk) / chunks)
    return xp.maximum(last_chunk, communication - of_all)


def expected_largest(n):
    """Expected largest of n standard normal numbers: Blom's plotting position, inverted by Hastings' approximation.

    Within 5 % from n = 2 on (Blom 1958; Abramowitz and Stegun 26.2.23).
    """
    t = xp.sqrt(-2 * xp.log(0.625 / (n + 0.25)))
    numerator = 2.515517 + t * (0.802853 + t * 0.010328)
    largest = t - numerator / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
    return xp.where(n > 1, largest, 0.0)


# ---- buckets --------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="micikevicius2018mixed")
def reduced_gradient_size(gradient_communication_size, gradient_size):
    """Bytes per gradient that data-parallel ranks send: as accumulated unless the software states another size."""
    return xp.where(gradient_communication_size > 0, gradient_communication_size, gradient_size)


@formula(unit="byte", source="rajbhandari2020zero")
def gradient_message(stage_trained_parameters, reduced_gradient_size):
    """Bytes of gradients of one device that the data-parallel ranks reduce, without routed experts."""
    return stage_trained_parameters * reduced_gradient_size


@formula(unit="1", source="li2020ddp")
def expert_layer_buckets(stage_layers, moe_layers):
    """Buckets of routed experts per layer of a full stage where weights are sharded: one in layers that have any."""
    return xp.minimum(stage_layers, moe_layers) / stage_layers


@formula(unit="1", source="li2020ddp", family=ALSO_OF_EXPERTS, where="section 3.2.2")
def EXPERT_gradient_buckets(
    EXPERT_gradient_message,
    gradient_bucket_size,
    gradient_bucket_rank_size,
    EXPERT_replica,
    chunks,
    zero,
    weights_sharded,
    stage_layers,
    EXPERT_layer_buckets,
):
    """Buckets in which the EXPERT_replica ranks reduce gradients and gather weights, at least one per chunk.

    Gradients over the bucket size; layer by layer where weights are sharded.
    """
    size = xp.maximum(gradient_bucket_size, gradient_bucket_rank_size * EXPERT_replica)
    by_layer = (zero >= 2) & (weights_sharded > 0)
    return xp.maximum(xp.where(by_layer, stage_layers * EXPERT_layer_buckets, EXPERT_gradient_message / size), chunks)


@formula(unit="byte", source="li2020ddp", family=ALSO_OF_EXPERTS)
def EXPERT_replica_message(EXPERT_gradient_message, EXPERT_gradient_buckets):
    """Gradients of one bucket of the EXPERT_replica ranks."""
    return EXPERT_gradient_message / EXPERT_gradient_buckets


@formula(unit="byte", source="zhao2023fsdp")
def shard_replica_message(scatter_message, shard):
    """Gradients of one bucket and shard, reduced inside the sharding group, which its replicas all-reduce."""
    return scatter_message / shard


@formula(unit="byte", source="rajbhandari2020zero")
def weight_message(
    weights_sharded,
    stage_parameters,
    stage_trained_parameters,
    gathered_weight_size,
    gathered_saving,
    stage_layers,
    kind_layers,
    rank_layer_matrix_parameters,
):
    """Bytes of weights of one device that are all-gathered: all if they are sharded, otherwise the trained ones.

    Quantised matrices of frozen layers as they are stored.
    """
    gathered = xp.where(weights_sharded > 0, stage_parameters, stage_trained_parameters)
    matrices = weights_sharded * stage_layers * mean_of_kinds(kind_layers, rank_layer_matrix_parameters)
    return gathered * gathered_weight_size - gathered_saving * matrices


@formula(unit="byte", source="rajbhandari2020zero")
def shard_message(weight_message, gradient_buckets):
    """Weights of one bucket."""
    return weight_message / gradient_buckets


# ---- time -----------------------------------------------------------------------------------------------------------


@formula(unit="s", source="rajbhandari2020zero")
def dp_scattering_time(scatter_gather_time, scatter, gradient_buckets, expert_bucket_reduction_time, expert_reductions):
    """Time of one reduction of all gradients of one device in its sharding group, with those of routed experts.

    Dense gradients are reduce-scattered: each rank receives the sum of its own shard.
    """
    dense = xp.where(scatter > 1, scatter_gather_time, 0.0) * gradient_buckets
    return dense + expert_bucket_reduction_time * expert_reductions


@formula(unit="s", source="zhao2023fsdp")
def shard_replica_reduction_time(shard_replica_all_reduce_time, shard_replica, gradient_buckets):
    """Time to all-reduce the gradients of one device over the replicas of its shard: all ranks without sharding."""
    return xp.where(shard_replica > 1, shard_replica_all_reduce_time, 0.0) * gradient_buckets


@formula(unit="s", source="rajbhandari2020zero")
def dp_reduction_time(dp_scattering_time, shard_replica_reduction_time):
    """Time of one reduction of all gradients of one device."""
    return dp_scattering_time + shard_replica_reduction_time


@formula(unit="s", source="rajbhandari2020zero")
def dp_gathering_time(
    shard_gather_time, gather_host_time, shard, gradient_buckets, expert_shard_gather_time, expert_reductions
):
    """Time of one all-gather of all weights of one device, bucket by bucket, with those of routed experts.

    With the host time of each where hooks of a framework gather parameters one by one.
    """
    dense = xp.where(shard > 1, shard_gather_time + gather_host_time, 0.0) * gradient_buckets
    return dense + expert_shard_gather_time * expert_reductions


@formula(unit="1", source="zhao2023fsdp")
def overlapping_chunks(chunks, folded, weights_sharded, zero, kept_in_pipeline):
    """Chunks whose other microbatches hide the communication of one chunk; 1 where every pass communicates.

    In a V both chunks of a device end with the last microbatch: neither hides behind the other.
    """
    every = (zero >= 2) & (weights_sharded > 0) & (kept_in_pipeline == 0)
    return xp.where(every | (folded > 0), 1.0, chunks)


@formula(unit="s", source="li2020ddp", where="section 3.2.3")
def exposed_reduction_time(
    dp_scattering_time,
    shard_replica_reduction_time,
    dp_gathering_time,
    reduction_passes,
    replica_passes,
    regathered,
    dp_buckets,
    overlapping_chunks,
    pp,
    microbatches,
    dp_overlap,
    first_stage_kind_layers,
    layer_backward_hiding_time,
    reduction_pace,
    communication_core_share,
):
    """Reduction of gradients that is not hidden behind the backward passes that it follows, per step.

    That of the first stage, whose backward pass ends last. Weights that are gathered again share links and passes.
    ``reduction_pace`` is the part of its full speed that other groups on the same links leave to it. Valid for buckets
    of equal size behind layers of equal length.
    """
    hidden = dp_overlap * of_kinds(first_stage_kind_layers, layer_backward_hiding_time * reduction_pace)
    inside = dp_scattering_time + regathered * dp_gathering_time
    hidden = hidden_in_buckets(dp_buckets, overlapping_chunks, xp.minimum(pp, microbatches), hidden)
    exposed, exposed_with_replicas = (
        exposed_in_buckets(sent, dp_buckets, overlapping_chunks, hidden)
        for sent in (inside, inside + shard_replica_reduction_time)
    )
    waited = (reduction_passes - replica_passes) * exposed + replica_passes * exposed_with_replicas
    communication = reduction_passes * inside + replica_passes * shard_replica_reduction_time
    return with_cores_taken(waited, communication, communication_core_share * (dp_overlap > 0))


@formula(unit="s", source="zhao2023fsdp")
def exposed_gathering_time(
    dp_gathering_time,
    gathering_passes,
    dp_buckets,
    overlapping_chunks,
    pp,
    microbatches,
    parameter_overlap,
    first_stage_kind_layers,
    layer_forward_hiding_time,
    gathering_pace,
    communication_core_share,
):
    """All-gather of weights that is not hidden behind the forward passes that need them: that of the first stage.

    Valid for buckets of equal size before layers of equal length.
    """
    hidden = parameter_overlap * of_kinds(first_stage_kind_layers, layer_forward_hiding_time * gathering_pace)
    hidden = hidden_in_buckets(dp_buckets, overlapping_chunks, xp.minimum(pp, microbatches), hidden)
    exposed = exposed_in_buckets(dp_gathering_time, dp_buckets, overlapping_chunks, hidden)
    taken = communication_core_share * (parameter_overlap > 0)
    return gathering_passes * with_cores_taken(exposed, dp_gathering_time, taken)


@formula(unit="s", source="pytorch2025fsdp2")
def dp_copy_time(
    shard,
    expert_shard,
    zero,
    weight_gatherings,
    reduction_passes,
    stage_parameters,
    stage_trained_parameters,
    stage_expert_parameters,
    gathering_copy_size,
    reduction_copy_size,
    achieved_hbm_bandwidth,
):
    """Time of one step to copy weights out of and gradients into buffers of collectives: their bytes at HBM rate."""
    experts = xp.where(expert_shard > 1, stage_expert_parameters, 0.0)
    weights = weight_gatherings * (xp.where(shard > 1, stage_parameters, 0.0) + experts) * gathering_copy_size
    trained = xp.where(shard > 1, stage_trained_parameters, 0.0) + experts
    return xp.where(zero >= 2, weights + reduction_passes * trained * reduction_copy_size, 0.0) / achieved_hbm_bandwidth


@formula(unit="s", source="rajbhandari2020zero")
def exposed_dp_time(exposed_reduction_time, exposed_gathering_time, dp_copy_time):
    """Data-parallel communication of one step that is not hidden."""
    return exposed_reduction_time + exposed_gathering_time + dp_copy_time


@formula(unit="s", source="rajbhandari2020zero")
def replica_longest_call_time(
    scatter_gather_time, shard_gather_time, shard, shard_replica_all_reduce_time, shard_replica
):
    """Time of the longest collective of the data-parallel ranks in a step."""
    inside = xp.where(shard > 1, xp.maximum(scatter_gather_time, shard_gather_time), 0.0)
    return xp.maximum(inside, xp.where(shard_replica > 1, shard_replica_all_reduce_time, 0.0))


# ---- a table shared by the first and the last stage -----------------------------------------------------------------


@formula(unit="byte", source="narayanan2021")
def tied_message(rank_head_parameters, reduced_gradient_size):
    """Bytes of gradients of an embedding table that the first and the last stage share."""
    return rank_head_parameters * reduced_gradient_size


# ---- volume ---------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="rajbhandari2020zero")
def dp_bytes(
    shard,
    shard_replica,
    gradient_message,
    weight_message,
    reduction_passes,
    replica_passes,
    weight_gatherings,
    expert_replica_bytes,
):
    """Bytes that one device sends to data-parallel ranks in one step. Valid for bandwidth-optimal algorithms.

    With q ranks in a sharding group and r replicas of it: (q - 1)/q of the gradients in every reduce-scatter and of
    the weights in every all-gather, 2(r - 1)/r of a shard of the gradients in every all-reduce.
    """
    in_group = reduction_passes * gradient_message + weight_gatherings * weight_message
    across = 2 * replica_passes * gradient_message / shard
    return gathered_share(shard) * in_group + gathered_share(shard_replica) * across + expert_replica_bytes


@formula(unit="1", source="rajbhandari2020zero")
def dp_calls(
    shard,
    shard_replica,
    gradient_buckets,
    reduction_passes,
    replica_passes,
    weight_gatherings,
    expert_replica_calls,
):
    """Data-parallel collectives of one device in one step."""
    in_group = xp.where(shard > 1, reduction_passes + weight_gatherings, 0.0)
    across = xp.where(shard_replica > 1, replica_passes, 0.0)
    return gradient_buckets * (in_group + across) + expert_replica_calls


# ---- stragglers -----------------------------------------------------------------------------------------------------


@formula(unit="1", source="sinha2022variability")
def straggler_delay(devices, device_variation):
    """Fraction by which the slowest device of the cluster takes longer than the average one; all wait for it.

    Coefficient of variation times the expected largest of as many standard normal numbers as devices. Valid for speeds
    that are independent, normal and constant in time.
    """
    return device_variation * expected_largest(devices)
