"""What a framework retains beside what the backward pass asks for: chosen results, buffers of a pipeline, pools.

PyTorch's selective checkpointing names results that stay instead of modules that go; its pipelines hold what every
microbatch of a step received and sent; its allocator reports neither driver contexts nor buffers of collectives.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.mixer_kinds import NONE
from perfgrid.formulas.pipelines.stages import largest_of_stages

# ---- results that stay when the rest of a layer is computed again ---------------------------------------------------


@alternative(of="named_attention_results", by="mixer", label=NONE, unit="byte", source="liang2024torchtitan")
def plain_named_attention_results(
    microbatch_tokens,
    sharded_tokens,
    hidden_size,
    tp,
    rank_query_width,
    rank_value_width,
    rank_context_width,
    latent_attention,
    attention_activations,
    selective_share,
    activation_size,
):
    """Results of attention that stay, for one layer and microbatch: queries, values, fused core, scattered sums.

    Of the products for queries, keys, values and output every second one is computed again; latents keep their share.
    """
    own = microbatch_tokens * (rank_query_width + rank_value_width + rank_context_width)
    sums = xp.where(tp > 1, sharded_tokens * hidden_size, 0.0)
    return xp.where(latent_attention > 0, (1 - selective_share) * attention_activations, (own + sums) * activation_size)


@formula(unit="byte", source="liang2024torchtitan")
def named_feed_forward_results(
    microbatch_tokens,
    sharded_tokens,
    hidden_size,
    tp,
    rank_ffn_size,
    ffn_input_matrices,
    keeps_unused_results,
    activation_size,
    kind_is_dense,
    kind_has_experts,
    expert_layer_activations,
    selective_share,
):
    """Results of one feed-forward block that stay, for one microbatch: those of its first product.

    The second one is computed again. No gradient asks for the result of the last, the third where the block is gated,
    nor for its scattered sums; without a compiler that sees it they stay as well. Of layers with experts a share is
    kept.
    """
    last = xp.where(ffn_input_matrices > 1, microbatch_tokens, 0.0) + xp.where(tp > 1, sharded_tokens, 0.0)
    unused = xp.where(keeps_unused_results, last * hidden_size, 0.0)
    dense = (microbatch_tokens * rank_ffn_size + unused) * activation_size
    return kind_is_dense * dense + kind_has_experts * (1 - selective_share) * expert_layer_activations


@formula(unit="byte", source="liang2024torchtitan")
def selective_linear_activations(
    layer_linear_activations,
    layer_input_activations,
    selective_share,
    keeps_named_results,
    named_attention_results,
    named_feed_forward_results,
):
    """Activations of one layer and microbatch that grow with the tokens and stay with selective recomputation.

    Where a software computes a share of the layer again, that share of its activations gives way to its input; where
    it names results that stay, these and the input remain.
    """
    share = (1 - selective_share) * layer_linear_activations + selective_share * layer_input_activations
    named = layer_input_activations + named_attention_results + named_feed_forward_results
    return xp.where(keeps_named_results, named, share)


# ---- formats of what stays ------------------------------------------------------------------------------------------


@formula(unit="byte", source="deepseek2024v3")
def function_input_size(kept_function_input_size, activation_size):
    """Bytes per element of inputs of the activation function that stay for the backward pass."""
    return xp.where(kept_function_input_size > 0, kept_function_input_size, activation_size)


@formula(unit="byte", source="deepseek2024v3")
def attention_output_size(
    kept_attention_output_size, activation_size, kept_operand_size, inputs_per_product, trains_weights
):
    """Bytes per element of the result of attention that stay: for its core, and as the product after it reads it.

    Both keep the same unless it is converted for the product or its adapter, or in one format that serves both.
    """
    own = (kept_operand_size < activation_size) | (inputs_per_product & (trains_weights == 0))
    converted = xp.where(own, kept_operand_size, 0.0)
    return xp.where(kept_attention_output_size > 0, kept_attention_output_size, activation_size + converted)


# ---- buffers of a pipeline ------------------------------------------------------------------------------------------


@formula(unit="byte", source="pytorch2025pipelining")
def buffers_by_stage(
    stage_buffers,
    pp,
    microbatches,
    chunks,
    weight_copies,
    in_flight_by_stage,
    embeddings_by_stage,
    heads_by_stage,
    layer_input_activations,
    microbatch_tokens,
    rank_vocab_size,
    activation_size,
):
    """What one device of each stage holds of every microbatch of a step: received, sent, gradients received; by stage.

    A chunk with the embedding receives no activations, one with the head sends logits and receives no gradients. What
    is in flight is counted with the layers, the logits of one microbatch with the head.
    """
    chunk_passes = microbatches * chunks
    first, last = (microbatches * weight_copies * ends for ends in (embeddings_by_stage, heads_by_stage))
    waiting = xp.maximum(chunk_passes - first - in_flight_by_stage * chunks, 0.0)
    hidden = (waiting + 2 * (chunk_passes - last)) * layer_input_activations
    logits = xp.maximum(last - weight_copies * heads_by_stage, 0.0)
    kept = hidden + logits * microbatch_tokens * rank_vocab_size * activation_size
    return xp.where(stage_buffers & (pp > 1), kept, 0.0)


# ---- what the allocator of a framework reports ----------------------------------------------------------------------


@formula(unit="byte", source="pytorch2025memory")
def allocator_gaps(
    memory_by_stage,
    state_in_passes_by_stage,
    gradient_memory_by_stage,
    gradients_kept,
    kept_activations_by_stage,
    cached_casts_by_stage,
    device_heads_by_stage,
    head_activations,
    reserved_logits,
    loss_working_memory,
    gap_share,
):
    """Segments that an allocator keeps beside the largest moment, because blocks of one use are too small for another.

    Tables of logits do not fit where gradients were, nor one that is written beside another; activations do. Beside
    them a share of what comes and goes.
    """
    logits = device_heads_by_stage * (head_activations + reserved_logits)
    freed = xp.where(gradients_kept, 0.0, gradient_memory_by_stage)
    passing = xp.maximum(freed, kept_activations_by_stage + cached_casts_by_stage) + logits
    segments = state_in_passes_by_stage + (1 + gap_share) * passing + loss_working_memory
    most = largest_of_stages(memory_by_stage)
    return xp.where(gap_share > 0, xp.maximum(largest_of_stages(segments) - most, 0.0), 0.0)


@formula(unit="byte", source="pytorch2025memory")
def allocator_memory(memory_per_device, reserved_memory, allocator_gaps):
    """Memory that a framework's allocator takes from a device of the fullest stage: without contexts and communicators.

    What PyTorch reports as reserved.
    """
    return memory_per_device - reserved_memory + allocator_gaps
