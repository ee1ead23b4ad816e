"""Memory of one device: parameters with gradients and optimizer state, activations in flight, working space."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import constraint, formula
from perfgrid.formulas.axes import of_kinds, rows
from perfgrid.formulas.pipelines.stages import of_largest

from .token_prediction import module_parameters

PARAMETERS = {"PART": ("parameters", "expert_parameters", "adapter_parameters", "mtp_layers")}
MEMORY = {"PART": ("state_memory", "activation_memory", "kept_activations", "outer_activations", "buffers", "memory")}
FORMULAS = (
    *rows(
        *("STAGE_stage_PART", "PART_by_stage", "1", "shoeybi2019megatron", "The PART of the STAGE stage."),
        PARAMETERS,
        stage="STAGE",
    ),
    *rows(
        *("STAGE_stage_PART", "PART_by_stage", "byte", "korthikanti2022", "The PART of the STAGE stage."),
        MEMORY,
        stage="STAGE",
    ),
)

# ---- state ----------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="rajbhandari2020zero")
def parameter_state_size(shard_weight_size, shard_held_gradient_size, shard_optimizer_size):
    """Bytes per trained parameter on a device: weight, accumulated gradient, optimizer state, or its part of them."""
    return shard_weight_size + shard_held_gradient_size + shard_optimizer_size


@formula(unit="byte", source="lepikhin2021gshard")
def expert_parameter_state_size(expert_shard_weight_size, expert_shard_held_gradient_size, expert_shard_optimizer_size):
    """Bytes per parameter of routed experts, which have replicas of their own: weight + gradient + optimizer state."""
    return expert_shard_weight_size + expert_shard_held_gradient_size + expert_shard_optimizer_size


@formula(unit="byte", source="korthikanti2022")
def layer_state_memory(stage_layers, rank_layer_matrix_parameters, parameter_state_size):
    """State of the layers on one device, matrices only: the 12·L·h²/(p·t) parameters of Korthikanti et al."""
    return stage_layers * rank_layer_matrix_parameters * parameter_state_size


@formula(unit="1", source="shoeybi2019megatron")
def parameters_by_stage(
    kind_layers_by_stage,
    embeddings_by_stage,
    heads_by_stage,
    rank_layer_parameters,
    rank_embedding_parameters,
    rank_head_parameters,
    tied_embeddings,
    mtp_layers_by_stage,
    rank_mtp_parameters,
    weight_copies,
):
    """Parameters of one device of each stage apart from routed experts, by stage.

    A head that shares the table needs a copy only on another device.
    """
    other_heads = xp.maximum(heads_by_stage - embeddings_by_stage, 0.0)
    own_heads = xp.where(tied_embeddings, other_heads, heads_by_stage)
    embeddings = weight_copies * embeddings_by_stage
    modules = (mtp_layers_by_stage, embeddings, tied_embeddings, rank_mtp_parameters, rank_embedding_parameters)
    return weight_copies * (
        of_kinds(kind_layers_by_stage, rank_layer_parameters)
        + embeddings_by_stage * rank_embedding_parameters
        + own_heads * rank_head_parameters
    ) + module_parameters(*modules)


@formula(unit="1", source="lepikhin2021gshard")
def expert_parameters_by_stage(
    kind_layers_by_stage, mtp_layers_by_stage, last_kind, kind_has_experts, rank_expert_parameters, weight_copies
):
    """Parameters of routed experts on one device of each stage, by stage."""
    layers = weight_copies * kind_layers_by_stage + mtp_layers_by_stage * last_kind
    return of_kinds(layers, kind_has_experts) * rank_expert_parameters


@formula(unit="1", source="shoeybi2019megatron")
def stage_parameters(parameters_by_stage, expert_parameters_by_stage):
    """Parameters on one device of the fullest stage, routed experts apart."""
    return of_largest(parameters_by_stage + expert_parameters_by_stage, parameters_by_stage)


@formula(unit="1", source="lepikhin2021gshard")
def stage_expert_parameters(parameters_by_stage, expert_parameters_by_stage):
    """Parameters of routed experts on one device of the fullest stage."""
    return of_largest(parameters_by_stage + expert_parameters_by_stage, expert_parameters_by_stage)


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
    """Activations of the one layer that is being recomputed: repetitions·bytes, of its core and of the rest of it."""
    parts = (layer_linear_activations + dropped_activations, layer_score_activations, expanded_activations)
    return repeated_activations(*parts, layer_recomputed, core_recomputed, latents_dropped, unfused)


# ---- a device -------------------------------------------------------------------------------------------------------


@formula(unit="1", source="hu2021lora")
def frozen_weight_share(frozen_weight_size, weight_size, trains_weights):
    """Bytes of a stored weight of the model over those of a trained one: less where frozen weights are narrower."""
    frozen = (frozen_weight_size > 0) & (trains_weights == 0)
    return xp.where(frozen, frozen_weight_size / weight_size, 1.0)


@formula(unit="1", source="dettmers2023qlora")
def stage_matrix_parameters(kind_layers_by_stage, rank_layer_matrix_parameters, weight_copies):
    """Parameters of the matrices of layers on one device of each stage, by stage."""
    return weight_copies * of_kinds(kind_layers_by_stage, rank_layer_matrix_parameters)


@formula(unit="1", source="dettmers2023qlora")
def quantisation_saving(dequantised, frozen_matrix_size, frozen_weight_size, weight_size):
    """What quantised matrices of frozen layers save of a stored weight, over the bytes of a trained one."""
    stored = xp.where(frozen_weight_size > 0, frozen_weight_size, weight_size)
    return dequantised * (stored - frozen_matrix_size) / weight_size


@formula(unit="byte", source="rajbhandari2020zero", where="section 3.1")
def state_memory_by_stage(
    parameters_by_stage,
    adapter_parameters_by_stage,
    trains_weights,
    shard_weight_size,
    frozen_weight_share,
    quantisation_saving,
    stage_matrix_parameters,
    shard_held_gradient_size,
    shard_optimizer_size,
    wide_tables_by_stage,
    replicated_scales_by_stage,
    expert_parameters_by_stage,
    expert_parameter_state_size,
):
    """Weights, and gradients and optimizer state of those that are trained, of one device of each stage, by stage.

    N·(bytes of a weight + gradient + optimizer state), each over the ranks that shard it; 2 + 2 + 12 bytes for mixed
    precision with Adam, unsharded.
    """
    frozen = frozen_weight_share * parameters_by_stage - quantisation_saving * stage_matrix_parameters
    weights = (frozen + adapter_parameters_by_stage) * shard_weight_size
    trained = xp.where(trains_weights > 0, parameters_by_stage, adapter_parameters_by_stage)
    states = trained * (shard_held_gradient_size + shard_optimizer_size)
    apart = wide_tables_by_stage + replicated_scales_by_stage
    return weights + states + apart + expert_parameters_by_stage * expert_parameter_state_size


@formula(unit="byte", source="korthikanti2022")
def outer_activations_by_stage(in_flight_by_stage, embeddings_by_stage, embedding_activations, buffers_by_stage):
    """Activations of one device of each stage outside its layers and its head, by stage."""
    return in_flight_by_stage * embeddings_by_stage * embedding_activations + buffers_by_stage


def layer_activations_by_stage(in_flight, kind_layers, modules, last_kind, resident_share, layer_activations):
    """Activations of the layers of each stage; prediction modules keep those of one microbatch."""
    return of_kinds(in_flight * kind_layers * resident_share + modules * last_kind, layer_activations)


@formula(unit="byte", source="korthikanti2022")
def kept_activations_by_stage(
    in_flight_by_stage,
    kind_layers_by_stage,
    mtp_layers_by_stage,
    last_kind,
    resident_share,
    layer_activations,
    outer_activations_by_stage,
):
    """Activations of one device of each stage without its head: in flight·layers·bytes of a layer, by stage."""
    layers = (in_flight_by_stage, kind_layers_by_stage, mtp_layers_by_stage, last_kind, resident_share)
    return layer_activations_by_stage(*layers, layer_activations) + outer_activations_by_stage


@formula(unit="byte", source="korthikanti2022")
def activation_memory_by_stage(kept_activations_by_stage, weight_copies, heads_by_stage, head_activations):
    """Activations of one device of each stage when the loss is known: the head keeps those of one microbatch."""
    return kept_activations_by_stage + weight_copies * heads_by_stage * head_activations


@formula(unit="byte", source="jcgm2008gum")
def usable_memory(hbm_capacity, headroom):
    """Device memory that a training step may take: what is not kept free, as predictions of memory may be too low."""
    return hbm_capacity * (1 - headroom)


@constraint(
    kind="exceeds",
    reason="weights, optimizer state and activations exceed the device memory",
    source="korthikanti2022",
    of="fits_memory",
    workload="training",
)
def training_fits_memory(memory_per_device, usable_memory):
    """The fullest stage fits the memory of its devices, without what is kept free."""
    return memory_per_device <= usable_memory


@formula(unit="1", source="korthikanti2022")
def memory_utilization(memory_per_device, hbm_capacity):
    """Part of the device memory that is used."""
    return memory_per_device / hbm_capacity


@formula(unit="byte", source="korthikanti2022")
def memory_headroom(memory_per_device, hbm_capacity):
    """Device memory left over; negative where the design does not fit."""
    return hbm_capacity - memory_per_device
