"""Parallel groups: where their ranks lie on the fabric, what they exchange and how much of it stays exposed.

The groups are a family: ``tp`` innermost, then ``dp``, then ``pp`` (the rank order of Megatron-LM); ``shard`` is the
part of ``dp`` over which the optimizer state is sharded.
"""

from perfgrid.engine import xp
from perfgrid.engine.registry import constraint, formula

from .axes import at, table
from .collectives import PLACED

# ---- equations ------------------------------------------------------------------------------------------------------


def ranks_in_domain(size, stride, domain):
    """Ranks of a group of this size and stride inside one domain.

    A group that does not fill whole domains takes a power-of-two part of as many as it needs (64 of 72, say).
    """
    most = xp.minimum(xp.maximum(xp.floor(domain / stride), 1.0), size)
    spread = size / most
    domains = xp.where(size % most == 0, spread, 2.0 ** xp.ceil(xp.log2(spread)))
    return size / domains


def exposed_time(communication, hidden_behind):
    """What is left of a communication after the work that it runs beside."""
    return xp.maximum(communication - hidden_behind, 0.0)


# ---- placement ------------------------------------------------------------------------------------------------------


@formula(unit="1", source="narayanan2021")
def tp_stride():
    """Distance between neighbouring tensor-parallel ranks."""
    return 1.0


@formula(unit="1", source="narayanan2021")
def dp_stride(tp):
    """Distance between neighbouring data-parallel ranks."""
    return tp


@formula(unit="1", source="narayanan2021")
def pp_stride(tp, dp):
    """Distance between neighbouring pipeline stages."""
    return tp * dp


@formula(unit="1", source="rajbhandari2020zero")
def shard(dp, zero):
    """Ranks over which the optimizer state is sharded: the data-parallel ones from ZeRO stage 1 on."""
    return xp.where(zero >= 1, dp, 1.0)


@formula(unit="1", source="rajbhandari2020zero")
def shard_stride(tp):
    """Distance between neighbouring ranks of a sharding group."""
    return tp


@formula(unit="1", source="narayanan2021", family=PLACED)
def GROUP_tier_ranks(GROUP, GROUP_stride, tier_size):
    """Ranks of the GROUP group at each tier: inside one scale-up domain, and domains; by tier."""
    inside = ranks_in_domain(GROUP, GROUP_stride, at(tier_size, tier="scale_up"))
    return table("tier", scale_up=inside, scale_out=GROUP / inside)


@constraint(
    kind="illegal",
    reason="the GROUP ranks do not fill scale-up domains evenly",
    source="narayanan2021",
    family={"GROUP": ("tp", "dp")},
)
def GROUP_fills_tiers(GROUP_tier_ranks):
    """The GROUP group has a whole number of ranks in each scale-up domain that it touches."""
    inside = at(GROUP_tier_ranks, tier="scale_up")
    return inside == xp.round(inside)


@constraint(kind="illegal", reason="tp x pp x dp is not the number of devices", source="narayanan2021")
def layout_fills_cluster(tp, pp, dp, devices):
    """The parallel ranks are exactly the devices of the cluster."""
    return tp * pp * dp == devices


# ---- tensor parallelism ---------------------------------------------------------------------------------------------


@formula(unit="byte", source="korthikanti2022")
def tp_message(microbatch_tokens, hidden_size, activation_size):
    """Activations of one microbatch that a tensor-parallel collective gathers, scatters or reduces."""
    return microbatch_tokens * hidden_size * activation_size


@formula(unit="1", source="shoeybi2019megatron")
def layer_tp_blocks():
    """Blocks of a layer that begin with a matrix split by columns and end with one split by rows: attention, FFN."""
    return 2.0


@formula(unit="s", source="korthikanti2022")
def tp_reduction_time(tp_gather_time, tp_all_reduce_time, sequence_parallel):
    """Time to add partial results of the ranks: a reduce-scatter with sequence parallelism, otherwise an all-reduce."""
    return xp.where(sequence_parallel, tp_gather_time, tp_all_reduce_time)


@formula(unit="s", source="korthikanti2022")
def tp_gathering_time(tp_gather_time, sequence_parallel):
    """Time to gather what sequence parallelism has scattered over the ranks; without it nothing is gathered."""
    return xp.where(sequence_parallel, tp_gather_time, 0.0)


@formula(unit="s", source="korthikanti2022")
def layer_forward_exposed_tp_time(layer_tp_blocks, tp_gathering_time, tp_reduction_time):
    """Tensor-parallel communication of one layer's forward pass: all of it is waited for."""
    return layer_tp_blocks * (tp_gathering_time + tp_reduction_time)


@formula(unit="s", source="korthikanti2022")
def layer_backward_exposed_tp_time(
    layer_tp_blocks, tp_gathering_time, tp_reduction_time, tp_overlap, column_parallel_time
):
    """Tensor-parallel communication of one layer's backward pass that is not hidden.

    Output gradients are gathered before anything else. Inputs are gathered again beside the input-gradient products of
    the column-parallel matrices, input gradients are reduced beside their weight-gradient products.
    """
    gathering, reduction = layer_tp_blocks * tp_gathering_time, layer_tp_blocks * tp_reduction_time
    beside = tp_overlap * column_parallel_time
    return (
        gathering
        + exposed_time(gathering, at(beside, phase="input_gradient"))
        + exposed_time(reduction, at(beside, phase="weight_gradient"))
    )


@formula(unit="s", source="korthikanti2022")
def layer_exposed_tp_time(layer_forward_exposed_tp_time, layer_backward_exposed_tp_time, layer_recomputed):
    """Exposed tensor-parallel communication of one layer and microbatch, that of recomputed forward passes included."""
    return layer_forward_exposed_tp_time * (1 + layer_recomputed) + layer_backward_exposed_tp_time


@formula(unit="s", source="korthikanti2022")
def embedding_exposed_tp_time(tp_gathering_time, tp_reduction_time):
    """Exposed communication of a vocabulary-parallel embedding for one microbatch: its results are added up.

    With sequence parallelism their gradients are gathered.
    """
    return tp_reduction_time + tp_gathering_time


@formula(unit="s", source="korthikanti2022")
def head_exposed_tp_time(tp_gathering_time, tp_reduction_time):
    """Exposed communication of a vocabulary-parallel head for one microbatch: its input gradients are added up.

    With sequence parallelism its input is gathered, and again in the backward pass.
    """
    return tp_reduction_time + 2 * tp_gathering_time


# ---- data parallelism -----------------------------------------------------------------------------------------------


@formula(unit="byte", source="rajbhandari2020zero")
def dp_message(stage_parameters, gradient_size):
    """Gradients of one device that the data-parallel ranks reduce once per step."""
    return stage_parameters * gradient_size


@formula(unit="byte", source="rajbhandari2020zero")
def shard_message(stage_parameters, weight_size):
    """Weights of one device that are gathered after a sharded optimizer step."""
    return stage_parameters * weight_size


@formula(unit="s", source="rajbhandari2020zero")
def dp_reduction_time(dp_gather_time, dp_all_reduce_time, zero):
    """Time of the gradient reduction: an all-reduce or, for a sharded optimizer, a reduce-scatter."""
    return xp.where(zero >= 1, dp_gather_time, dp_all_reduce_time)


@formula(unit="s", source="narayanan2021")
def exposed_dp_time(dp_reduction_time, shard_gather_time, dp_overlap, first_stage_backward_time):
    """Data-parallel communication of one step that is not hidden.

    Gradients are reduced beside the last microbatch's backward pass of the first stage, which ends last; a sharded
    optimizer's weights are gathered before the next step.
    """
    return exposed_time(dp_reduction_time, dp_overlap * first_stage_backward_time) + shard_gather_time


# ---- pipeline parallelism -------------------------------------------------------------------------------------------


@formula(unit="byte", source="narayanan2021")
def pp_message(tp_message, tp):
    """Activations that one rank hands to the next stage: every tensor-parallel rank sends its part."""
    return tp_message / tp


@formula(unit="s", source="narayanan2021")
def pp_transfer_time(pp_message, pp_tier_ranks, tier_latency, tier_peer_bandwidth):
    """Time of one hand-over between neighbouring stages across the outermost tier that the pipeline spans."""
    by_tier = tier_latency + pp_message / tier_peer_bandwidth
    return xp.where(
        at(pp_tier_ranks, tier="scale_out") > 1, at(by_tier, tier="scale_out"), at(by_tier, tier="scale_up")
    )


@formula(unit="s", source="narayanan2021")
def pp_gathering_time(tp_gather_time, sequence_parallel, pp):
    """Time in which the receiving ranks gather the parts handed over; with sequence parallelism they keep them."""
    return xp.where(sequence_parallel | (pp <= 1), 0.0, tp_gather_time)


@formula(unit="s", source="narayanan2021")
def pp_handover_time(pp_transfer_time, pp_gathering_time):
    """Time of one hand-over."""
    return pp_transfer_time + pp_gathering_time


# ---- which calls a step makes ---------------------------------------------------------------------------------------


@formula(unit="s", source="korthikanti2022")
def tp_longest_call_time(tp_reduction_time, tp_gathering_time, pp_gathering_time):
    """Time of the longest collective of the tensor-parallel ranks in a step."""
    return xp.maximum(tp_reduction_time, xp.maximum(tp_gathering_time, pp_gathering_time))


@formula(unit="s", source="rajbhandari2020zero")
def dp_longest_call_time(dp_reduction_time, shard_gather_time):
    """Time of the longest collective of the data-parallel ranks in a step."""
    return xp.maximum(dp_reduction_time, shard_gather_time)
