"""Memory of one device: parameters with gradients and optimizer state, activations in flight, working space."""

from perfgrid.engine import xp
from perfgrid.engine.registry import alternative, constraint, formula

from .stages import STAGES, pick_largest

# ---- state ----------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="rajbhandari2020zero")
def parameter_state_size(weight_size, gradient_size, optimizer_state_size, shard):
    """Bytes per parameter: weight, accumulated gradient and this rank's part of the optimizer state."""
    return weight_size + gradient_size + optimizer_state_size / shard


@formula(unit="byte", source="korthikanti2022")
def layer_state_memory(stage_layers, rank_layer_matrix_parameters, parameter_state_size):
    """State of the layers on one device, matrices only: the 12·L·h²/(p·t) parameters of Korthikanti et al."""
    return stage_layers * rank_layer_matrix_parameters * parameter_state_size


@formula(unit="1", source="shoeybi2019megatron", family=STAGES)
def STAGE_stage_parameters(
    STAGE_stage_layers,
    STAGE_stage_embeddings,
    STAGE_stage_heads,
    rank_layer_parameters,
    rank_embedding_parameters,
    rank_head_parameters,
    tied_embeddings,
):
    """Parameters of one device of the STAGE stage; a head that shares the table needs a copy only on another stage."""
    own_heads = xp.where(tied_embeddings, STAGE_stage_heads * (1 - STAGE_stage_embeddings), STAGE_stage_heads)
    return (
        STAGE_stage_layers * rank_layer_parameters
        + STAGE_stage_embeddings * rank_embedding_parameters
        + own_heads * rank_head_parameters
    )


@formula(unit="1", source="shoeybi2019megatron")
def stage_parameters(first_stage_parameters, middle_stage_parameters, last_stage_parameters):
    """Parameters of one device of the fullest stage."""
    return xp.maximum(first_stage_parameters, xp.maximum(middle_stage_parameters, last_stage_parameters))


# ---- activations ----------------------------------------------------------------------------------------------------


@formula(unit="byte", source="korthikanti2022")
def layer_linear_activations(
    sharded_tokens,
    microbatch_tokens,
    hidden_size,
    rank_query_width,
    rank_key_value_width,
    rank_ffn_size,
    ffn_input_matrices,
    activation_size,
    mask_size,
    dropout,
    layer_blocks,
):
    """Activations of one layer and microbatch that grow with the tokens: s·b·h·(10 + 24/t) for GPT, eq. 2.

    Stored are for each block the input of its norm, that of the matrices after it and a dropout mask; queries, keys,
    values and the attention output; the inputs of the activation function and of the second feed-forward matrix.
    """
    replicated = hidden_size * layer_blocks * (2 * activation_size + xp.where(dropout, mask_size, 0.0))
    attention = 2 * (rank_query_width + rank_key_value_width)
    feed_forward = rank_ffn_size * (ffn_input_matrices + 1)
    return sharded_tokens * replicated + microbatch_tokens * (attention + feed_forward) * activation_size


@formula(unit="byte", source="korthikanti2022")
def layer_score_activations(
    rank_heads, sequence_length, activation_size, mask_size, float32_size, dropout, flash_attention
):
    """Activations of one layer and microbatch in the attention core: 5·a·s²·b/t with dropout, eq. 2.

    Softmax output, dropout mask and dropout output; the fused kernel keeps one statistic per row instead.
    """
    scores = activation_size + xp.where(dropout, activation_size + mask_size, 0.0)
    return rank_heads * sequence_length * xp.where(flash_attention, float32_size, scores * sequence_length)


@formula(unit="byte", source="korthikanti2022")
def layer_input_activations(sharded_tokens, hidden_size, activation_size):
    """The input of one layer for one microbatch: 2·s·b·h, a t-th of it with sequence parallelism."""
    return sharded_tokens * hidden_size * activation_size


@alternative(of="layer_activations", by="recompute", label="none", unit="byte", source="korthikanti2022")
def none_layer_activations(layer_linear_activations, layer_score_activations):
    """Activations of one layer and microbatch kept for the backward pass, without recomputation."""
    return layer_linear_activations + layer_score_activations


@alternative(of="layer_activations", by="recompute", label="selective", unit="byte", source="korthikanti2022")
def selective_layer_activations(layer_linear_activations, layer_score_activations, unfused):
    """Activations of one layer and microbatch kept for the backward pass when the unfused core is recomputed."""
    return layer_linear_activations + (1 - unfused) * layer_score_activations


@alternative(of="layer_activations", by="recompute", label="full", unit="byte", source="korthikanti2022")
def full_layer_activations(layer_input_activations):
    """Activations of one layer and microbatch kept for the backward pass when the layer is recomputed: its input."""
    return layer_input_activations


@formula(unit="byte", source="korthikanti2022")
def embedding_activations(sharded_tokens, hidden_size, mask_size, dropout):
    """Activations of the embedding for one microbatch: its dropout mask."""
    return sharded_tokens * hidden_size * xp.where(dropout, mask_size, 0.0)


@formula(unit="byte", source="korthikanti2022")
def head_activations(sharded_tokens, microbatch_tokens, hidden_size, rank_vocab_size, activation_size, float32_size):
    """Activations of final norm and output head for one microbatch: 4·s·b·h·(1 + V/h)/t, section 4.3."""
    return 2 * sharded_tokens * hidden_size * activation_size + microbatch_tokens * rank_vocab_size * float32_size


@formula(unit="byte", source="korthikanti2022")
def layer_activation_memory(stage_layers, first_stage_in_flight, layer_activations):
    """Activations of the layers that one device of the first stage keeps: L·(1 + (p - 1)/(p·v)) layers' worth."""
    return stage_layers * first_stage_in_flight * layer_activations


# ---- working space --------------------------------------------------------------------------------------------------


@formula(unit="byte", source="korthikanti2022")
def recomputed_activations(
    layer_linear_activations, layer_score_activations, layer_recomputed, core_recomputed, unfused
):
    """Activations of the one layer that is being recomputed."""
    core = unfused * core_recomputed + (1 - unfused) * layer_recomputed
    return layer_recomputed * layer_linear_activations + core * layer_score_activations


@formula(unit="byte", source="korthikanti2022")
def working_memory(recomputed_activations, tp_message, sequence_parallel):
    """Space in use for moments: a recomputed layer, and with sequence parallelism a gathered input and its gradient."""
    return recomputed_activations + xp.where(sequence_parallel, 2.0, 0.0) * tp_message


# ---- a device -------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="rajbhandari2020zero", family=STAGES)
def STAGE_stage_state_memory(STAGE_stage_parameters, parameter_state_size):
    """Weights, gradients and optimizer state of one device of the STAGE stage."""
    return STAGE_stage_parameters * parameter_state_size


@formula(unit="byte", source="korthikanti2022", family=STAGES)
def STAGE_stage_activation_memory(
    STAGE_stage_in_flight,
    STAGE_stage_layers,
    STAGE_stage_embeddings,
    STAGE_stage_heads,
    layer_activations,
    embedding_activations,
    head_activations,
):
    """Activations of one device of the STAGE stage; the head keeps those of one microbatch."""
    stored = STAGE_stage_layers * layer_activations + STAGE_stage_embeddings * embedding_activations
    return STAGE_stage_in_flight * stored + STAGE_stage_heads * head_activations


@formula(unit="byte", source="korthikanti2022", family=STAGES)
def STAGE_stage_memory(STAGE_stage_state_memory, STAGE_stage_activation_memory):
    """Memory of one device of the STAGE stage without working space."""
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
    """KIND part of the memory of one device of the fullest stage."""
    return pick_largest(
        first_stage_memory,
        middle_stage_memory,
        last_stage_memory,
        first_stage_KIND_memory,
        middle_stage_KIND_memory,
        last_stage_KIND_memory,
    )


@formula(unit="byte", source="korthikanti2022")
def memory_per_device(first_stage_memory, middle_stage_memory, last_stage_memory, working_memory, reserved_memory):
    """Memory of one device of the fullest stage, with working space and what no tensor of the model uses."""
    fullest = xp.maximum(first_stage_memory, xp.maximum(middle_stage_memory, last_stage_memory))
    return fullest + working_memory + reserved_memory


@constraint(
    kind="exceeds", reason="weights, optimizer state and activations exceed the device memory", source="korthikanti2022"
)
def fits_memory(memory_per_device, hbm_capacity):
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
