"""Memory of one device: parameters with gradients and optimizer state, activations in flight, working space."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.axes import largest_of_kinds, of_kinds
from perfgrid.formulas.pipelines.stages import STAGES, pick_largest

from .token_prediction import module_parameters

# ---- state ----------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="rajbhandari2020zero")
def parameter_state_size(shard_weight_size, shard_held_gradient_size, shard_optimizer_size):
    """Bytes per trained parameter on a device: weight, accumulated gradient, optimizer state, or its part of them."""
    return shard_weight_size + shard_held_gradient_size + shard_optimizer_size


@formula(unit="byte", source="lepikhin2021gshard")
def expert_parameter_state_size(expert_shard_weight_size, expert_shard_held_gradient_size, expert_shard_optimizer_size):
    """Bytes per parameter of routed experts, which have replicas of their own."""
    return expert_shard_weight_size + expert_shard_held_gradient_size + expert_shard_optimizer_size


@formula(unit="byte", source="korthikanti2022")
def layer_state_memory(stage_layers, rank_layer_matrix_parameters, parameter_state_size):
    """State of the layers on one device, matrices only: the 12·L·h²/(p·t) parameters of Korthikanti et al."""
    return stage_layers * rank_layer_matrix_parameters * parameter_state_size


@formula(unit="1", source="shoeybi2019megatron", family=STAGES)
def STAGE_stage_parameters(
    STAGE_stage_kind_layers,
    STAGE_stage_embeddings,
    STAGE_stage_heads,
    rank_layer_parameters,
    rank_embedding_parameters,
    rank_head_parameters,
    tied_embeddings,
    STAGE_stage_mtp_layers,
    rank_mtp_parameters,
    weight_copies,
):
    """Parameters of one device of the STAGE stage apart from routed experts.

    A head that shares the table needs a copy only on another device.
    """
    other_heads = xp.maximum(STAGE_stage_heads - STAGE_stage_embeddings, 0.0)
    own_heads = xp.where(tied_embeddings, other_heads, STAGE_stage_heads)
    embeddings = weight_copies * STAGE_stage_embeddings
    modules = (STAGE_stage_mtp_layers, embeddings, tied_embeddings, rank_mtp_parameters, rank_embedding_parameters)
    return weight_copies * (
        of_kinds(STAGE_stage_kind_layers, rank_layer_parameters)
        + STAGE_stage_embeddings * rank_embedding_parameters
        + own_heads * rank_head_parameters
    ) + module_parameters(*modules)


@formula(unit="1", source="lepikhin2021gshard", family=STAGES)
def STAGE_stage_expert_parameters(
    STAGE_stage_kind_layers,
    STAGE_stage_mtp_layers,
    last_kind,
    kind_has_experts,
    rank_expert_parameters,
    weight_copies,
):
    """Parameters of routed experts on one device of the STAGE stage."""
    layers = weight_copies * STAGE_stage_kind_layers + STAGE_stage_mtp_layers * last_kind
    return of_kinds(layers, kind_has_experts) * rank_expert_parameters


def in_fullest(others, experts, values):
    """The value of the stage with most parameters: those of routed experts, and all others; three stages each."""
    first, middle, last = (dense + routed for dense, routed in zip(others, experts, strict=True))
    of_first, of_middle, of_last = values
    return pick_largest(first, middle, last, of_first, of_middle, of_last)


@formula(unit="1", source="shoeybi2019megatron")
def stage_parameters(
    first_stage_parameters,
    middle_stage_parameters,
    last_stage_parameters,
    first_stage_expert_parameters,
    middle_stage_expert_parameters,
    last_stage_expert_parameters,
):
    """Parameters on one device of the fullest stage, routed experts apart."""
    others = (first_stage_parameters, middle_stage_parameters, last_stage_parameters)
    experts = (first_stage_expert_parameters, middle_stage_expert_parameters, last_stage_expert_parameters)
    return in_fullest(others, experts, others)


@formula(unit="1", source="lepikhin2021gshard")
def stage_expert_parameters(
    first_stage_parameters,
    middle_stage_parameters,
    last_stage_parameters,
    first_stage_expert_parameters,
    middle_stage_expert_parameters,
    last_stage_expert_parameters,
):
    """Parameters of routed experts on one device of the fullest stage."""
    others = (first_stage_parameters, middle_stage_parameters, last_stage_parameters)
    experts = (first_stage_expert_parameters, middle_stage_expert_parameters, last_stage_expert_parameters)
    return in_fullest(others, experts, experts)


# ---- working space --------------------------------------------------------------------------------------------------


def repeated_activations(linear, score, expanded, layer_recomputed, core_recomputed, latents_dropped, unfused):
    """Activations of a layer that come back when it is recomputed; a fused core belongs to the rest of the layer.

    Of layers that stay, expanded latents come back where they were dropped.
    """
    core = unfused * core_recomputed + (1 - unfused) * layer_recomputed
    return layer_recomputed * linear + core * score + latents_dropped * (1 - layer_recomputed) * expanded


@formula(unit="byte", source="korthikanti2022")
def recomputed_activations(
    layer_linear_activations,
    dropped_activations,
    layer_score_activations,
    expanded_activations,
    layer_recomputed,
    core_recomputed,
    latents_dropped,
    unfused,
):
    """Activations of the one layer that is being recomputed, as far as it is."""
    parts = (layer_linear_activations + dropped_activations, layer_score_activations, expanded_activations)
    return repeated_activations(*parts, layer_recomputed, core_recomputed, latents_dropped, unfused)


@formula(unit="byte", source="korthikanti2022")
def steady_working_memory(tp_message, sequence_parallel, tp, cp_memory, gathering_memory, expert_buffers):
    """Space in use for moments whatever is recomputed: buffers of context parallelism, gathered weights and inputs.

    With sequence parallelism those of one matrix, with their gradient; of experts what is sent and received.
    """
    gathered = xp.where(sequence_parallel & (tp > 1), 2.0, 0.0) * tp_message
    return cp_memory + gathering_memory + gathered + expert_buffers


@formula(unit="byte", source="korthikanti2022")
def working_memory(kind_layers, recomputed_activations, layers_in_transit, layer_activations, steady_working_memory):
    """Space in use for moments, beside state_memory and activation_memory and in neither.

    A recomputed layer, layers on their way to the host or back, and what is gathered. Of several kinds of layers that
    count which need most.
    """
    of_layers = recomputed_activations + layers_in_transit * layer_activations
    return largest_of_kinds(kind_layers, of_layers) + steady_working_memory


# ---- a device -------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="rajbhandari2020zero", family=STAGES)
def STAGE_stage_state_memory(
    STAGE_stage_parameters,
    STAGE_stage_adapter_parameters,
    STAGE_stage_trained_parameters,
    shard_weight_size,
    shard_held_gradient_size,
    shard_optimizer_size,
    STAGE_stage_expert_parameters,
    expert_parameter_state_size,
):
    """Weights, and gradients and optimizer state of those that are trained, of one device of the STAGE stage."""
    weights = (STAGE_stage_parameters + STAGE_stage_adapter_parameters) * shard_weight_size
    trained = STAGE_stage_trained_parameters * (shard_held_gradient_size + shard_optimizer_size)
    return weights + trained + STAGE_stage_expert_parameters * expert_parameter_state_size


@formula(unit="byte", source="korthikanti2022", family=STAGES)
def STAGE_stage_outer_activations(
    STAGE_stage_in_flight,
    STAGE_stage_embeddings,
    STAGE_stage_heads,
    embedding_activations,
    head_activations,
    weight_copies,
    cp_memory,
    STAGE_stage_buffers,
):
    """Activations of one device of the STAGE stage outside its layers; the head keeps those of one microbatch.

    While the loss is computed no layer attends: of the head counts what is beyond the buffers of context parallelism.
    """
    embeddings = STAGE_stage_in_flight * STAGE_stage_embeddings * embedding_activations
    head = xp.maximum(weight_copies * STAGE_stage_heads * head_activations - cp_memory, 0.0)
    return embeddings + head + STAGE_stage_buffers


@formula(unit="byte", source="korthikanti2022", family=STAGES)
def STAGE_stage_activation_memory(
    STAGE_stage_in_flight,
    STAGE_stage_kind_layers,
    STAGE_stage_mtp_layers,
    last_kind,
    resident_share,
    layer_activations,
    STAGE_stage_outer_activations,
):
    """Activations of one device of the STAGE stage; prediction modules keep those of one microbatch."""
    layers = STAGE_stage_in_flight * STAGE_stage_kind_layers * resident_share + STAGE_stage_mtp_layers * last_kind
    return of_kinds(layers, layer_activations) + STAGE_stage_outer_activations


@formula(unit="byte", source="korthikanti2022", family=STAGES)
def STAGE_stage_memory(STAGE_stage_state_memory, STAGE_stage_activation_memory):
    """State and activations of one device of the STAGE stage: its memory without working and reserved space."""
    return STAGE_stage_state_memory + STAGE_stage_activation_memory


@formula(unit="byte", source="korthikanti2022", family={"KIND": ("state", "activation")})
def KIND_memory(
    first_stage_memory,
    middle_stage_memory,
    last_stage_memory,
    first_stage_KIND_memory,
    middle_stage_KIND_memory,
    last_stage_KIND_memory,
):
    """The KIND that a device of the fullest stage keeps, as a part of its memory beside working_memory."""
    return pick_largest(
        first_stage_memory,
        middle_stage_memory,
        last_stage_memory,
        first_stage_KIND_memory,
        middle_stage_KIND_memory,
        last_stage_KIND_memory,
    )


@alternative(of="memory_per_device", by="workload", label="training", unit="byte", source="korthikanti2022")
def training_memory_per_device(
    first_stage_memory, middle_stage_memory, last_stage_memory, working_memory, reserved_memory
):
    """Memory of a device of the fullest stage: state_memory + activation_memory + working_memory + reserved_memory."""
    fullest = xp.maximum(first_stage_memory, xp.maximum(middle_stage_memory, last_stage_memory))
    return fullest + working_memory + reserved_memory


@constraint(
    kind="exceeds",
    reason="weights, optimizer state and activations exceed the device memory",
    source="korthikanti2022",
    of="fits_memory",
    workload="training",
)
def training_fits_memory(memory_per_device, hbm_capacity):
    """The fullest stage fits the memory of its devices."""
    return memory_per_device <= hbm_capacity


@formula(unit="1", source="korthikanti2022")
def memory_utilization(memory_per_device, hbm_capacity):
    """Part of the device memory that is used."""
    return memory_per_device / hbm_capacity


@formula(unit="byte", source="korthikanti2022")
def memory_headroom(memory_per_device, hbm_capacity):
    """Device memory left over; negative where the design does not fit."""
    return hbm_capacity - memory_per_device
