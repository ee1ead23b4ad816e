"""Data parallelism: gradients reduced and weights gathered once per step, in buckets; and waiting for the slowest.

Gradients leave bucket by bucket during the last backward pass and sharded weights return during the first forward pass,
as far as the software overlaps them. One bucket always stays exposed.
"""

from perfgrid.engine import xp
from perfgrid.engine.registry import constraint, formula

from .collectives import gathered_share
from .tensor_parallel import exposed_in_parts

# ---- equations ------------------------------------------------------------------------------------------------------


def exposed_in_buckets(communication, buckets, chunks, pp, stage_pass):
    """What is left of buckets that are sent while a device passes once through its stage.

    With several chunks p microbatches pass through each before the next one: all chunks but the last can hide behind
    p·(v - 1) passes through a chunk, the last chunk only behind one.
    """
    hidden = stage_pass * ((pp * (chunks - 1) + 1) / chunks - 1 / buckets)
    last_chunk = exposed_in_parts(communication / chunks, buckets / chunks, stage_pass / chunks)
    return xp.maximum(last_chunk, communication - hidden)


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
    """Bytes per gradient on its way between data-parallel ranks: as accumulated unless the software states another."""
    return xp.where(gradient_communication_size > 0, gradient_communication_size, gradient_size)


@formula(unit="byte", source="rajbhandari2020zero")
def gradient_message(stage_parameters, reduced_gradient_size):
    """Gradients of one device that the data-parallel ranks reduce once per step."""
    return stage_parameters * reduced_gradient_size


@formula(unit="1", source="li2020ddp")
def gradient_buckets(gradient_message, gradient_bucket_size, gradient_bucket_rank_size, dp, chunks):
    """Buckets in which gradients are reduced and weights gathered: one per chunk at least."""
    size = xp.maximum(gradient_bucket_size, gradient_bucket_rank_size * dp)
    return xp.maximum(gradient_message / size, chunks)


@formula(unit="byte", source="li2020ddp")
def dp_message(gradient_message, gradient_buckets):
    """Gradients of one bucket."""
    return gradient_message / gradient_buckets


@formula(unit="byte", source="rajbhandari2020zero")
def shard_message(stage_parameters, weight_size, weight_communication_size, gradient_buckets):
    """Weights of one bucket, which are gathered after a sharded optimizer step."""
    size = xp.where(weight_communication_size > 0, weight_communication_size, weight_size)
    return stage_parameters * size / gradient_buckets


# ---- time -----------------------------------------------------------------------------------------------------------


@formula(unit="s", source="rajbhandari2020zero")
def bucket_reduction_time(dp_gather_time, dp_all_reduce_time, zero):
    """Time of the reduction of one bucket: an all-reduce or, for a sharded optimizer, a reduce-scatter."""
    return xp.where(zero >= 1, dp_gather_time, dp_all_reduce_time)


@formula(unit="s", source="rajbhandari2020zero")
def dp_reduction_time(bucket_reduction_time, gradient_buckets):
    """Time of the reduction of all gradients of one device."""
    return bucket_reduction_time * gradient_buckets


@formula(unit="s", source="rajbhandari2020zero")
def dp_gathering_time(shard_gather_time, gradient_buckets):
    """Time of the gathering of all weights of one device after a sharded optimizer step."""
    return shard_gather_time * gradient_buckets


@formula(unit="s", source="li2020ddp")
def exposed_reduction_time(
    dp_reduction_time, gradient_buckets, chunks, pp, dp_overlap, first_stage_layers, layer_backward_time
):
    """Gradient reduction of one step that is not hidden behind the last backward pass: that of the first stage."""
    hidden = dp_overlap * first_stage_layers * layer_backward_time
    return exposed_in_buckets(dp_reduction_time, gradient_buckets, chunks, pp, hidden)


@formula(unit="s", source="zhao2023fsdp")
def exposed_gathering_time(
    dp_gathering_time, gradient_buckets, chunks, pp, parameter_overlap, first_stage_layers, layer_forward_time
):
    """Gathering of sharded weights that is not hidden behind the first forward pass: that of the first stage."""
    hidden = parameter_overlap * first_stage_layers * layer_forward_time
    return exposed_in_buckets(dp_gathering_time, gradient_buckets, chunks, pp, hidden)


@formula(unit="s", source="rajbhandari2020zero")
def exposed_dp_time(exposed_reduction_time, exposed_gathering_time):
    """Data-parallel communication of one step that is not hidden."""
    return exposed_reduction_time + exposed_gathering_time


@formula(unit="s", source="rajbhandari2020zero")
def dp_longest_call_time(bucket_reduction_time, shard_gather_time):
    """Time of the longest collective of the data-parallel ranks in a step."""
    return xp.maximum(bucket_reduction_time, shard_gather_time)


# ---- a table shared by the first and the last stage -----------------------------------------------------------------


@formula(unit="byte", source="narayanan2021")
def tied_message(rank_head_parameters, reduced_gradient_size):
    """Gradients of an embedding table that the first and the last stage share."""
    return rank_head_parameters * reduced_gradient_size


@formula(unit="s", source="narayanan2021")
def exposed_tied_time(tied_all_reduce_time):
    """Reduction between the first and the last stage of the gradients of a table that both hold: after all others."""
    return tied_all_reduce_time


# ---- volume ---------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="rajbhandari2020zero")
def dp_bytes(dp, gradient_message, shard_message, gradient_buckets, zero):
    """Bytes that one device sends to data-parallel ranks in one step (rings, as all senders).

    Gradients are scattered; they or, with a sharded optimizer, the weights are gathered.
    """
    gathered = xp.where(zero >= 1, shard_message * gradient_buckets, gradient_message)
    return gathered_share(dp) * (gradient_message + gathered)


@formula(unit="1", source="rajbhandari2020zero")
def dp_calls(dp, gradient_buckets, zero):
    """Data-parallel collectives of one device in one step."""
    return xp.where(dp > 1, gradient_buckets * xp.where(zero >= 1, 2.0, 1.0), 0.0)


@constraint(
    kind="illegal", reason="sharded weights (FSDP) are not expressed: choose other software", source="zhao2023fsdp"
)
def weights_are_whole(sharded_weights):
    """Every device holds all weights of its stage."""
    return xp.logical_not(sharded_weights)


# ---- stragglers -----------------------------------------------------------------------------------------------------


@formula(unit="1", source="sinha2022variability")
def straggler_delay(devices, device_variation):
    """What the slowest device of the cluster takes longer than an average one, as a fraction: all wait for it."""
    return device_variation * expected_largest(devices)
