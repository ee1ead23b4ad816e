"""Activations of one layer that wait for the backward pass, by module and by recomputation mode."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import at, mean_of_kinds
from perfgrid.formulas.mixer_kinds import NONE


@formula(unit="byte", source="nvidia2026telinear")
def kept_operand_size(activation_size, operand_size, quantised_operands):
    """Bytes per element of inputs that products keep for the backward pass: as converted for them, or 16 bits."""
    return xp.where(quantised_operands, xp.minimum(activation_size, operand_size), activation_size)


@formula(unit="byte", source="wolf2020transformers")
def stream_size(activation_size, stream_in_weight_format, weight_size, frozen_weight_share):
    """Bytes per element of what layers pass on: 16 bits, or the format of the stored embeddings."""
    return xp.where(stream_in_weight_format, weight_size * frozen_weight_share, activation_size)


@formula(unit="1", source="wolf2020transformers")
def kept_block_inputs(layer_blocks, ffn_inputs_kept, inputs_per_product, ffn_input_matrices):
    """Inputs of the matrices behind the norms of a layer that stay: one of a block, or one of each of its products.

    Autocast and adapters convert the input of every product anew. Frozen matrices of a feed-forward block keep none.
    """
    others = xp.maximum(layer_blocks - 1, 0.0)
    of_blocks = layer_blocks - (1 - ffn_inputs_kept) * others
    return xp.where(inputs_per_product, 3 + ffn_inputs_kept * ffn_input_matrices * others, of_blocks)


@alternative(of="attention_activations", by="mixer", label=NONE, unit="byte", source="korthikanti2022")
def plain_attention_activations(
    microbatch_tokens,
    rank_context_width,
    expanded_activations,
    latent_activations,
    latents_dropped,
    attention_output_size,
):
    """Activations of one attention block and microbatch: queries, keys, values and the attention output; latents."""
    kept = (1 - latents_dropped) * expanded_activations + latent_activations
    return microbatch_tokens * rank_context_width * attention_output_size + kept


@formula(unit="byte", source="nvidia2026recompute")
def activation_function_results(
    microbatch_tokens,
    rank_ffn_size,
    kind_is_dense,
    kind_has_experts,
    rank_expert_rows,
    rank_expert_ffn_size,
    rank_shared_ffn_size,
    kept_operand_size,
):
    """Results of the activation function in one feed-forward block and microbatch: inputs of second matrices."""
    experts = rank_expert_rows * rank_expert_ffn_size + microbatch_tokens * rank_shared_ffn_size
    return (kind_is_dense * microbatch_tokens * rank_ffn_size + kind_has_experts * experts) * kept_operand_size


@formula(unit="byte", source="korthikanti2022")
def feed_forward_activations(
    microbatch_tokens,
    rank_ffn_size,
    ffn_input_matrices,
    function_input_size,
    kept_operand_size,
    activation_function_dropped,
    activation_function_results,
    kind_is_dense,
    kind_has_experts,
    expert_layer_activations,
    ffn_inputs_kept,
    gate_result_size,
):
    """Activations of one feed-forward block and microbatch: inputs of activation function and second matrix.

    Where a gate multiplies in a kernel of its own, the result of the activation function too.
    """
    inputs = ffn_input_matrices * function_input_size + gate_result_size + ffn_inputs_kept * kept_operand_size
    dense = microbatch_tokens * rank_ffn_size * inputs
    kept = kind_is_dense * dense + kind_has_experts * expert_layer_activations
    return kept - ffn_inputs_kept * activation_function_dropped * activation_function_results


@formula(unit="byte", source="korthikanti2022", where="equation 2")
def layer_linear_activations(
    sharded_tokens,
    hidden_size,
    layer_blocks,
    kept_norm_size,
    kept_operand_size,
    mask_size,
    dropout,
    attention_activations,
    feed_forward_activations,
    norms_dropped,
    kept_block_inputs,
    layer_cast_weights,
):
    """Activations of one layer and microbatch that grow with the tokens: s·b·h·(10 + 24/t) for GPT.

    Stored are for each block the input of its norm, that of the matrices after it and a dropout mask; what the blocks
    themselves keep; and copies of weights that autocast makes for the pass.
    """
    norms = layer_blocks * (kept_norm_size + xp.where(dropout, mask_size, 0.0))
    replicated = hidden_size * (norms + kept_block_inputs * (1 - norms_dropped) * kept_operand_size)
    return sharded_tokens * replicated + attention_activations + feed_forward_activations + layer_cast_weights


@alternative(of="dropped_activations", by="mixer", label=NONE, unit="byte", source="nvidia2026recompute")
def plain_dropped_activations(
    sharded_tokens,
    hidden_size,
    layer_blocks,
    activation_function_results,
    latent_width,
    expanded_activations,
    activation_size,
    kept_operand_size,
    norms_dropped,
    activation_function_dropped,
    latents_dropped,
    ffn_inputs_kept,
):
    """Activations of one layer and microbatch that single modules drop and compute again; experts drop none."""
    norms = norms_dropped * sharded_tokens * hidden_size * layer_blocks * kept_operand_size
    latents = latents_dropped * sharded_tokens * latent_width * activation_size
    function_results = ffn_inputs_kept * activation_function_dropped * activation_function_results
    results = function_results + latents_dropped * expanded_activations
    return norms + latents + results


@alternative(
    of="layer_score_activations",
    by="mixer",
    label=NONE,
    unit="byte",
    source="korthikanti2022",
    where="equation 2",
)
def plain_layer_score_activations(
    kernel_heads, rank_sequence, sequence_length, activation_size, mask_size, float32_size, dropout, flash_attention
):
    """Activations of one layer and microbatch in the attention core: 5·a·s²·b/t with dropout.

    Softmax output, dropout mask and dropout output; the fused kernel keeps one statistic per row instead.
    """
    scores = activation_size + xp.where(dropout, activation_size + mask_size, 0.0)
    return kernel_heads * rank_sequence * xp.where(flash_attention, float32_size, scores * sequence_length)


@formula(unit="byte", source="korthikanti2022")
def layer_input_activations(sharded_tokens, hidden_size, stream_size):
    """The input of one layer for one microbatch: 2·s·b·h, a t-th of it with sequence parallelism."""
    return sharded_tokens * hidden_size * stream_size


@alternative(of="layer_activations", by="recompute", label="none", unit="byte", source="korthikanti2022")
def none_layer_activations(layer_linear_activations, layer_score_activations):
    """Activations of one layer and microbatch kept for the backward pass, without recomputation."""
    return layer_linear_activations + layer_score_activations


@alternative(of="layer_activations", by="recompute", label="selective", unit="byte", source="korthikanti2022")
def selective_layer_activations(selective_linear_activations, layer_score_activations, unfused):
    """Activations of one layer and microbatch kept for the backward pass when the unfused core is recomputed."""
    return selective_linear_activations + (1 - unfused) * layer_score_activations


@formula(unit="byte", source="korthikanti2022")
def embedding_activations(sharded_tokens, hidden_size, mask_size, dropout):
    """Activations of the embedding for one microbatch: its dropout mask."""
    return sharded_tokens * hidden_size * xp.where(dropout, mask_size, 0.0)


@formula(unit="byte", source="korthikanti2022", where="section 4.3")
def head_inputs(
    sharded_tokens,
    hidden_size,
    kept_norm_size,
    activation_size,
    held_cast_size,
    trains_weights,
    rank_head_parameters,
):
    """What final norm and output head keep of their inputs for one microbatch: 4·s·b·h/t; a copy of a cast matrix."""
    cast = held_cast_size * trains_weights * rank_head_parameters
    return sharded_tokens * hidden_size * (kept_norm_size + activation_size) + cast


@formula(unit="byte", source="korthikanti2022", where="section 4.3")
def head_activations(
    head_inputs,
    held_logits,
    head_passes,
    mtp_layers,
    mtp_activations,
):
    """Activations of final norm and output head for one microbatch when the loss has its gradient: 4·s·b·h·(1 + V/h)/t.

    There a fused loss works in single precision in place; others keep several copies of the logits, and more where
    ranks have parts of the vocabulary. With them those of modules that predict further tokens.
    """
    return head_passes * (head_inputs + held_logits) + mtp_layers * mtp_activations


@formula(unit="byte", source="pytorch2025memory")
def forward_head_activations(head_activations, head_passes, held_logits, forward_logits):
    """Activations of final norm and output head for one microbatch while the loss is computed in the forward pass."""
    return head_activations + head_passes * (forward_logits - held_logits)


@formula(unit="byte", source="korthikanti2022", where="section 4.2.3")
def layer_activation_memory(stage_layers, in_flight_by_stage, kind_layers, layer_activations):
    """Activations of the layers that one device of the first stage keeps: L·(1 + (p - 1)/(p·v)) layers' worth."""
    return stage_layers * at(in_flight_by_stage, stage="first") * mean_of_kinds(kind_layers, layer_activations)
