"""Moments of a training step at which a device may be fullest: its memory is that of the largest, not a sum of parts.

| moment | beside weights and optimizer state |
|---|---|
| forward_end | activations in flight, logits as the loss computes them, 16-bit copies of weights that autocast caches |
| loss_gradient | activations in flight, logits with their gradient, or gradients of the head if these are more |
| layer_backward | activations in flight, one recomputed layer, buffers of its collectives; the logits are freed |
| gradients_complete | all gradients, the layer whose backward pass comes last, activations of other microbatches |
| optimizer_step | all gradients, temporaries of the optimizer; no activations |

Gradients that a framework makes in the backward pass and frees after the step are not there before, unless an earlier
microbatch made them.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import INNER, at, largest, largest_of_kinds, of_kinds, table
from perfgrid.formulas.pipelines.stages import largest_of_stages, of_largest

from .optimizers import TENSOR

MOMENTS = INNER.labels["memory_moment"]
GROUP = 2.0  # code of optimizer_step: fused, tensor, group, all

# ---- equations ------------------------------------------------------------------------------------------------------


def forward_end(state, kept, heads, head_activations):
    """What stages hold while the loss or its gradient is computed."""
    return state + kept + heads * head_activations


def gradients_complete(state, kept, in_flight):
    """What stages hold when the last layer has run backward: of the activations those of other microbatches."""
    return state + kept * (1 - 1 / xp.maximum(in_flight, 1.0))


def of_peak(memory_by_moment, values):
    """The value that belongs to the largest moment (of equals the first)."""
    sizes = [at(memory_by_moment, memory_moment=moment) for moment in MOMENTS]
    most, found = sizes[0], values[0]
    for size, value in zip(sizes[1:], values[1:], strict=True):
        found = xp.where(size > most, value, found)
        most = xp.maximum(size, most)
    return found


# ---- what comes and goes --------------------------------------------------------------------------------------------


@formula(unit="byte", source="korthikanti2022")
def loss_working_memory(tp_message, sequence_parallel, tp, gathering_memory):
    """Space in use while the loss is computed: gathered weights, and with sequence parallelism the gathered inputs.

    Those of one matrix, with their gradient.
    """
    return gathering_memory + xp.where(sequence_parallel & (tp > 1), 2.0, 0.0) * tp_message


@formula(unit="byte", source="ren2021offload")
def transit_memory(kind_layers, layers_in_transit, layer_activations):
    """Activations of layers that are on their way to the host when the loss is computed."""
    return largest_of_kinds(kind_layers, layers_in_transit * layer_activations)


@formula(unit="byte", source="deepspeed2025")
def reduction_buckets(held_buckets, gradient_bucket_size, zero, replica):
    """Buffers in which gradients are collected before they are reduced: those that a framework allocates whole."""
    return xp.where((replica > 1) & (zero < 3), held_buckets, 0.0) * gradient_bucket_size


@formula(unit="byte", source="korthikanti2022")
def steady_working_memory(loss_working_memory, cp_memory, expert_buffers, reduction_buckets, dequantised_matrix):
    """Space in use while a layer runs backward, whatever is recomputed.

    Buffers of context parallelism, gathered weights and inputs, what experts send and receive, buckets of gradients; a
    frozen matrix in 16 bits.
    """
    return loss_working_memory + cp_memory + expert_buffers + reduction_buckets + dequantised_matrix


@formula(unit="byte", source="korthikanti2022")
def layer_working_memory(
    kind_layers, recomputed_activations, layers_in_transit, layer_activations, steady_working_memory
):
    """Space in use while a layer runs backward: that layer if recomputed, and layers on their way to the host or back.

    Of several kinds of layers that count which need most.
    """
    of_layers = recomputed_activations + layers_in_transit * layer_activations
    return largest_of_kinds(kind_layers, of_layers) + steady_working_memory


@formula(unit="byte", source="rajbhandari2020zero")
def gradient_memory_by_stage(
    parameters_by_stage,
    adapter_parameters_by_stage,
    trains_weights,
    shard_held_gradient_size,
    expert_parameters_by_stage,
    expert_shard_held_gradient_size,
):
    """Gradients of one device of each stage when all are there, by stage."""
    trained = xp.where(trains_weights > 0, parameters_by_stage, adapter_parameters_by_stage)
    return trained * shard_held_gradient_size + expert_parameters_by_stage * expert_shard_held_gradient_size


@formula(unit="byte", source="pytorch2025memory")
def state_in_passes_by_stage(state_memory_by_stage, gradient_memory_by_stage, gradients_kept, microbatches):
    """State of one device of each stage until the last backward pass begins, by stage.

    Without gradients where they are freed after every step, and the step has one microbatch.
    """
    return state_memory_by_stage - xp.where(gradients_kept | (microbatches > 1), 0.0, gradient_memory_by_stage)


@formula(unit="byte", source="pytorch2026amp")
def held_cast_size(weight_cast_size, weights_sharded):
    """Bytes per weight of the copies that autocast makes of stored ones; shards are gathered in their format."""
    return xp.where(weights_sharded > 0, 0.0, weight_cast_size)


@formula(unit="byte", source="pytorch2026amp")
def layer_cast_weights(held_cast_size, trains_weights, rank_layer_matrix_parameters, rank_adapter_parameters):
    """16-bit copies of the trained matrices of a layer."""
    return held_cast_size * xp.where(trains_weights > 0, rank_layer_matrix_parameters, rank_adapter_parameters)


@formula(unit="byte", source="pytorch2026amp")
def cached_casts_by_stage(kind_layers_by_stage, layer_cast_weights, layer_recomputed):
    """Copies of weights of recomputed layers that autocast caches until the forward pass ends, by stage.

    Of other layers they stay with the activations.
    """
    return layer_recomputed * of_kinds(kind_layers_by_stage, layer_cast_weights)


@formula(unit="1", source="pytorch2026adam")
def largest_tensor(
    trains_weights, rank_head_parameters, rank_embedding_parameters, hidden_size, rank_ffn_size, lora_rank
):
    """Elements of the largest trained tensor of a device: a table of embeddings, or a matrix of a layer."""
    tables = xp.maximum(rank_head_parameters, rank_embedding_parameters)
    width = xp.maximum(rank_ffn_size, hidden_size)
    return xp.where(trains_weights > 0, xp.maximum(tables, hidden_size * width), lora_rank * width)


@formula(unit="byte", source="pytorch2026adam")
def optimizer_copies_by_stage(
    parameters_by_stage,
    adapter_parameters_by_stage,
    trains_weights,
    shard,
    zero,
    step_scope,
    step_copy_size,
    optimizer_group_size,
    largest_tensor,
    on_device_optimizer,
):
    """Temporaries of the optimizer step of one device of each stage, by stage.

    A fused step needs none. One tensor after another: the root of its second moment, and its quotient. A framework that
    flattens its state works on the whole shard at once, with sharded weights on groups of parameters.
    """
    trained = xp.where(trains_weights > 0, parameters_by_stage, adapter_parameters_by_stage)
    by_group = (step_scope == GROUP) & (zero >= 3)
    limit = xp.where(step_scope == TENSOR, 2 * largest_tensor, xp.where(by_group, optimizer_group_size, 1e18))
    size = xp.where(step_scope > 0, on_device_optimizer, 0.0) * step_copy_size
    return size * xp.minimum(trained / xp.where(zero >= 1, shard, 1.0), limit)


# ---- the moments ----------------------------------------------------------------------------------------------------


@formula(unit="1", source="deepseek2024v3")
def device_heads_by_stage(weight_copies, heads_by_stage):
    """Output heads on one device of each stage, by stage."""
    return weight_copies * heads_by_stage


@formula(unit="byte", source="pytorch2025memory")
def forward_end_by_stage(
    state_in_passes_by_stage,
    kept_activations_by_stage,
    device_heads_by_stage,
    forward_head_activations,
    cached_casts_by_stage,
):
    """What one device of each stage holds at the end of a forward pass, with the loss, by stage."""
    kept = kept_activations_by_stage + cached_casts_by_stage
    return forward_end(state_in_passes_by_stage, kept, device_heads_by_stage, forward_head_activations)


@formula(unit="byte", source="pytorch2025memory")
def loss_gradient_by_stage(
    state_in_passes_by_stage, kept_activations_by_stage, device_heads_by_stage, head_activations
):
    """What one device of each stage holds when a backward pass starts, with the gradient of the loss, by stage."""
    return forward_end(state_in_passes_by_stage, kept_activations_by_stage, device_heads_by_stage, head_activations)


@formula(unit="byte", source="korthikanti2022")
def layer_backward_by_stage(state_in_passes_by_stage, kept_activations_by_stage):
    """What one device of each stage holds when the backward pass of its last layer runs: no logits, by stage."""
    return state_in_passes_by_stage + kept_activations_by_stage


@formula(unit="byte", source="pytorch2025memory")
def gradients_complete_by_stage(state_memory_by_stage, kept_activations_by_stage, in_flight_by_stage):
    """What one device of each stage holds when the backward pass of its first layer runs, by stage.

    All gradients are there; activations of other microbatches wait.
    """
    return gradients_complete(state_memory_by_stage, kept_activations_by_stage, in_flight_by_stage)


@formula(unit="byte", source="pytorch2026adam")
def optimizer_step_by_stage(state_memory_by_stage, optimizer_copies_by_stage):
    """What one device of each stage holds in the optimizer step: no activations, by stage."""
    return state_memory_by_stage + optimizer_copies_by_stage


@formula(unit="byte", source="korthikanti2022")
def memory_by_moment(
    forward_end_by_stage,
    loss_gradient_by_stage,
    layer_backward_by_stage,
    gradients_complete_by_stage,
    optimizer_step_by_stage,
    loss_working_memory,
    transit_memory,
    layer_working_memory,
):
    """Memory of a device of the fullest stage without reserved_memory, by memory_moment."""
    beside_loss = loss_working_memory + transit_memory
    return table(
        "memory_moment",
        forward_end=largest_of_stages(forward_end_by_stage) + beside_loss,
        loss_gradient=largest_of_stages(loss_gradient_by_stage) + beside_loss,
        layer_backward=largest_of_stages(layer_backward_by_stage) + layer_working_memory,
        gradients_complete=largest_of_stages(gradients_complete_by_stage) + layer_working_memory,
        optimizer_step=largest_of_stages(optimizer_step_by_stage),
    )


@formula(unit="byte", source="korthikanti2022")
def memory_by_stage(
    forward_end_by_stage,
    loss_gradient_by_stage,
    layer_backward_by_stage,
    gradients_complete_by_stage,
    optimizer_step_by_stage,
    loss_working_memory,
    transit_memory,
    layer_working_memory,
):
    """Memory of one device of each stage at its largest moment, without reserved_memory, by stage."""
    loss = xp.maximum(forward_end_by_stage, loss_gradient_by_stage) + loss_working_memory + transit_memory
    layer = xp.maximum(layer_backward_by_stage, gradients_complete_by_stage) + layer_working_memory
    return xp.maximum(xp.maximum(loss, layer), optimizer_step_by_stage)


@alternative(
    of="memory_per_device", by="workload", label="training", unit="byte", sense="least", source="korthikanti2022"
)
def training_memory_per_device(memory_by_moment, reserved_memory):
    """Fullest stage, largest moment: state_memory + activation_memory + working_memory + reserved_memory."""
    return largest(memory_by_moment, "memory_moment") + reserved_memory


@formula(unit="byte", source="rajbhandari2020zero")
def state_memory(
    memory_by_moment,
    forward_end_by_stage,
    loss_gradient_by_stage,
    layer_backward_by_stage,
    gradients_complete_by_stage,
    optimizer_step_by_stage,
    state_memory_by_stage,
    state_in_passes_by_stage,
):
    """Weights, gradients and optimizer state of a device of the fullest stage at the largest moment of a step."""
    passes = (forward_end_by_stage, loss_gradient_by_stage, layer_backward_by_stage)
    after = (gradients_complete_by_stage, optimizer_step_by_stage)
    of_passes = [of_largest(held, state_in_passes_by_stage) for held in passes]
    return of_peak(memory_by_moment, [*of_passes, *(of_largest(held, state_memory_by_stage) for held in after)])


@formula(unit="byte", source="korthikanti2022")
def working_memory(
    memory_by_moment,
    loss_working_memory,
    transit_memory,
    layer_working_memory,
    optimizer_step_by_stage,
    optimizer_copies_by_stage,
):
    """Temporary space at the largest moment of a step, beside state_memory and activation_memory and in neither.

    Gathered weights and inputs, a recomputed layer, buckets and buffers, or temporaries of the optimizer.
    """
    loss = loss_working_memory + transit_memory
    step = of_largest(optimizer_step_by_stage, optimizer_copies_by_stage)
    return of_peak(memory_by_moment, (loss, loss, layer_working_memory, layer_working_memory, step))


@formula(unit="byte", source="korthikanti2022")
def activation_memory(memory_per_device, reserved_memory, state_memory, working_memory):
    """Activations of a device of the fullest stage at the largest moment of a step, with the copies of autocast."""
    return xp.maximum(memory_per_device - reserved_memory - state_memory - working_memory, 0.0)
