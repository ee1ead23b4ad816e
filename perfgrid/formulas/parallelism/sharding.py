"""Sharded state: ZeRO stages, fully sharded weights (FSDP), hybrid sharding; what is stored, gathered and reduced.

Of q ranks a sharding group, m microbatches per step:

| ZeRO stage | sharded over q | all-gathers of weights | reduce-scatters of gradients |
|---|---|---|---|
| 0 | nothing | 0 | 0 (an all-reduce) |
| 1 | optimizer state | 1 | 1 |
| 2 | gradients too | 1, or m where the software stores shards of weights | m |
| 3 | weights too | 2·m | m |

Sharded weights are gathered layer by layer before they are used. In stage 3 they are dropped after each pass, so every
microbatch gathers them for its forward and again for its backward pass; in stage 2 of software that stores shards they
are kept from the forward to the backward pass. In a pipeline some software gathers once per step, keeps weights and
gradients whole and reduces them once (``pipeline_sharding = "kept"``).

A sharding group of fewer than all ranks with the same weights (hybrid sharding) has replicas, which all-reduce their
shards of the gradients after every backward pass, or once per step.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import constraint, formula
from perfgrid.formulas.axes import at, largest_of_kinds
from perfgrid.formulas.hardware.scaling import of_recipe

KEPT = 1.0  # codes of pipeline_sharding: refused, kept, gathered
SHARDS = {"SHARD": ("shard", "expert_shard")}

# ---- equations ------------------------------------------------------------------------------------------------------


def several(ranks, expert_ranks, experts):
    """Several ranks hold the same dense weights, or the same experts where the model has any."""
    return (ranks > 1) | ((experts > 0) & (expert_ranks > 1))


# ---- what is sharded, and how often it is gathered and reduced ------------------------------------------------------


@formula(unit="1", source="zhao2023fsdp")
def weights_sharded(zero, sharded_weights):
    """1 where ranks store only a shard of the weights: in ZeRO stage 3, or in any stage of such software."""
    return xp.where((zero >= 3) | sharded_weights, 1.0, 0.0)


@formula(unit="1", source="liang2024torchtitan")
def kept_in_pipeline(zero, pp, pipeline_sharding):
    """1 where weights and gradients of a pipeline stage stay whole from the first to the last microbatch of a step."""
    return xp.where((zero >= 2) & (pp > 1) & (pipeline_sharding == KEPT), 1.0, 0.0)


@formula(unit="1", source="rajbhandari2020zero")
def regathered(zero, kept_in_pipeline):
    """1 where weights are dropped after the forward pass and gathered again for the backward pass."""
    return xp.where((zero >= 3) & (kept_in_pipeline == 0), 1.0, 0.0)


@formula(unit="1", source="pytorch2025fsdp2")
def gathering_passes(zero, weights_sharded, kept_in_pipeline, microbatches):
    """Forward passes of a step before which weights are gathered: the first after a sharded optimizer step, or all."""
    every = (zero >= 2) & (weights_sharded > 0) & (kept_in_pipeline == 0)
    return xp.where(every, microbatches, 1.0)


@formula(unit="1", source="pytorch2025fsdp2")
def reduction_passes(zero, kept_in_pipeline, microbatches):
    """Backward passes of a step after which gradients are reduced: the last, or all if gradients are sharded."""
    return xp.where((zero >= 2) & (kept_in_pipeline == 0), microbatches, 1.0)


@formula(unit="1", source="pytorch2025fsdp2")
def replica_passes(reduction_passes, deferred_replicas):
    """Backward passes of a step after which replicas of a sharding group all-reduce their gradients."""
    return xp.where(deferred_replicas, 1.0, reduction_passes)


@formula(unit="1", source="rajbhandari2020zero")
def weight_gatherings(gathering_passes, regathered, microbatches, zero, shard, expert_shard, experts):
    """All-gathers of all weights of a device in one step: 2·m if they are dropped after each pass, otherwise m or 1."""
    gathers = (zero >= 1) & several(shard, expert_shard, experts)
    return xp.where(gathers, gathering_passes + regathered * microbatches, 0.0)


# ---- bytes per parameter --------------------------------------------------------------------------------------------


@formula(unit="byte", source="zhao2023fsdp")
def gathered_weight_size(weight_size, weight_communication_size, quantised_gathering, scaling_recipe, operand_size):
    """Bytes per weight that ranks gather: as stored, in the software's format, or as quantised operands.

    Shards can be quantised before they are gathered if all of a weight has one scale (nvidia2026nemo). Finer scales lie
    along rows for one product and along columns for the other, so that there are two copies to gather.
    """
    size = xp.where(weight_communication_size > 0, weight_communication_size, weight_size)
    one_scale = of_recipe(scaling_recipe, 2) > 0
    return xp.where(quantised_gathering & one_scale, xp.minimum(size, operand_size), size)


@formula(unit="byte", source="rajbhandari2020zero", family=SHARDS)
def SHARD_weight_size(
    weight_size,
    quantised_weights,
    SHARD,
    zero,
    weights_sharded,
    kept_in_pipeline,
    gathered_weight_size,
    gathering_buffer_size,
    resident_weights,
):
    """Bytes per parameter of weights whose state is spread over SHARD ranks: stored, and gathered for a whole pass.

    w/q stored where weights are sharded over q ranks, otherwise w, or operands alone, in the format gathered
    (nvidia2026fp8; transposed copies of 8-bit weights, as Hopper needs, are taken to live for one layer). A sharded
    optimizer beside whole weights adds buffers for the gathering of all weights and for a shard.
    """
    held = xp.where(quantised_weights, xp.minimum(weight_size, gathered_weight_size), weight_size)
    stored = resident_weights * xp.where(weights_sharded > 0, weight_size / SHARD, held)
    whole = (kept_in_pipeline > 0) | ((zero == 2) & (weights_sharded > 0))
    buffers = (zero >= 1) & (SHARD > 1) & (weights_sharded == 0)
    gathered = xp.where(whole & (SHARD > 1) & (weights_sharded > 0), gathered_weight_size, 0.0)
    return stored + gathered + xp.where(buffers, gathering_buffer_size * (1 + 1 / SHARD), 0.0)


@formula(unit="byte", source="rajbhandari2020zero", family=SHARDS)
def SHARD_gradient_size(gradient_size, reduced_gradient_size, SHARD, zero, kept_in_pipeline):
    """Bytes per trained parameter of gradients that are accumulated by SHARD ranks."""
    kept = (kept_in_pipeline > 0) & (SHARD > 1)
    whole = xp.where(kept, xp.maximum(gradient_size, reduced_gradient_size), gradient_size)
    return xp.where((zero >= 2) & (kept_in_pipeline == 0), gradient_size / SHARD, whole)


@formula(unit="byte", source="pytorch2025fsdp2", family=SHARDS)
def SHARD_held_gradient_size(
    SHARD_gradient_size, gradient_size, SHARD, kept_in_pipeline, microbatches, pp, chunks, resident_weights
):
    """Bytes per trained parameter of gradients that a device of SHARD ranks holds at most.

    Those that a pipeline keeps whole are reduced into shards that need space of their own, chunk by chunk: with no more
    microbatches than stages all backward passes of one chunk come before those of the next.
    """
    at_once = xp.where(microbatches <= pp, 1 / chunks, 1.0)
    reduced = at_once * SHARD_gradient_size + gradient_size / SHARD
    return resident_weights * xp.where((kept_in_pipeline > 0) & (SHARD > 1), reduced, SHARD_gradient_size)


@formula(unit="1", source="deepseek2024v3")
def state_copies(zero, weight_copies):
    """Devices of one pipeline that share the optimizer state of a stage: all with a copy of it if it is sharded."""
    return xp.where(zero >= 1, weight_copies, 1.0)


@formula(unit="byte", source="rajbhandari2020zero", family=SHARDS)
def SHARD_optimizer_size(state_size, offloaded_state_size, SHARD, state_copies):
    """Bytes per trained parameter of optimizer state on a device of SHARD ranks, and their copies, that share it."""
    return (state_size - offloaded_state_size) / (SHARD * state_copies)


# ---- temporary memory -----------------------------------------------------------------------------------------------


@formula(unit="byte", source="pytorch2025fsdp2")
def gathering_memory(
    kind_layers,
    kind_has_experts,
    rank_layer_parameters,
    rank_expert_parameters,
    rank_head_parameters,
    shard,
    expert_shard,
    regathered,
    weights_sharded,
    zero,
    gathered_weight_size,
    reduced_gradient_size,
    activation_size,
    trains_weights,
    gathered_saving,
    rank_layer_matrix_parameters,
    root_unit,
    rank_embedding_parameters,
    tied_embeddings,
    resident_weights,
):
    """Gathered weights of two layers, and gradients of one before and while they are reduced.

    The second layer is gathered while the first one computes; the head takes the place of a layer where it is larger.
    Where embedding and head are one unit they stay gathered between both passes.
    """
    experts = xp.where((kind_has_experts > 0) & (expert_shard > 1), rank_expert_parameters, 0.0)
    comes = (shard > 1) | (resident_weights == 0)
    layer = largest_of_kinds(kind_layers, xp.where(comes, rank_layer_parameters, 0.0) + experts)
    largest = xp.maximum(layer, xp.where(comes, rank_head_parameters, 0.0))
    saved = largest_of_kinds(kind_layers, xp.where(comes, rank_layer_matrix_parameters, 0.0)) * gathered_saving
    size, head = layer * gathered_weight_size - saved, rank_head_parameters * gathered_weight_size
    tables = head + xp.where(tied_embeddings, 0.0, rank_embedding_parameters * gathered_weight_size)
    head, tables = (xp.where(comes, held, 0.0) for held in (head, tables))
    weights = regathered * (size + xp.where(root_unit, size + tables, xp.maximum(size, head)))
    gradients = trains_weights * largest * (activation_size + reduced_gradient_size)
    return weights + xp.where((zero >= 2) & (weights_sharded > 0), gradients, 0.0)


# ---- constraints ----------------------------------------------------------------------------------------------------


@constraint(
    reason="the software does not shard that much: lower the ZeRO stage or choose other software",
    source="rajbhandari2020zero",
)
def software_shards(zero, largest_zero, replica, expert_replica, experts):
    """The software has this ZeRO stage."""
    return (zero <= largest_zero) | xp.logical_not(several(replica, expert_replica, experts))


@constraint(reason="the software stores shards of weights (FSDP): zero must be 2 or 3", source="zhao2023fsdp")
def shards_are_gathered(sharded_weights, zero, replica, expert_replica, experts):
    """Software that stores shards of weights shards gradients and optimizer state too."""
    return xp.logical_not(sharded_weights & several(replica, expert_replica, experts)) | (zero >= 2)


@constraint(
    reason="the software does not combine sharded gradients or weights (zero 2 and 3) with a pipeline",
    source="deepspeed2025",
)
def pipelines_shard(zero, pp, pipeline_sharding, replica, expert_replica, experts):
    """Sharded gradients and weights fit the software's pipelines."""
    alone = xp.logical_not(several(replica, expert_replica, experts))
    return (zero <= 1) | (pp == 1) | (pipeline_sharding > 0) | alone


@constraint(
    reason="the sharding group (zero_size) divides neither the ranks that hold the same weights nor their domains",
    source="zhao2023fsdp",
)
def shards_fill_replicas(shard, replica, shard_tier_ranks, replica_tier_ranks):
    """Sharding groups fill the ranks that hold the same weights, and scale-up domains or parts of them."""
    part, inside = (at(ranks, tier="scale_up") for ranks in (shard_tier_ranks, replica_tier_ranks))
    return (replica % shard == 0) & (shard % part == 0) & (inside % part == 0)


@constraint(
    reason="the sharding group (zero_size) has more ranks than hold the same weights (cp x dp): choose fewer, or 0",
    source="zhao2023fsdp",
)
def replicas_fill_shards(zero, zero_size, replica):
    """There are enough ranks with the same weights for one sharding group."""
    return (zero == 0) | (zero_size <= replica)


@constraint(reason="hybrid sharding of experts is not modelled: zero_size must be 0", source="zhao2023fsdp")
def experts_shard_fully(experts, shard, replica, zero):
    """The state of experts is sharded over all ranks that hold them."""
    return (experts == 0) | (zero == 0) | (shard == replica)
