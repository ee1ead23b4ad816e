"""The floating-point work of one token, the part of a layer on one rank, and what divides what."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.axes import of_kinds
from perfgrid.formulas.mixer_kinds import ALL, NONE

from .parameters import LAID_OUT, feed_forward_weights, router_columns


@formula(unit="1", source="chowdhery2022palm")
def layer_blocks(parallel_block, ffn_free_layers, layers):
    """Blocks of a layer that run one after the other: attention and feed-forward, or both as one.

    Mean of all layers, some of which may have no feed-forward part.
    """
    return xp.where(parallel_block, 1.0, 2.0 - ffn_free_layers / layers)


@alternative(of="attended_length", by="indexer", label=ALL, unit="1", source="beltagy2020longformer")
def dense_attended_length(sequence_length, window, windowed_layers_fraction, chunked_window, causal):
    """Tokens that one token may attend to, mean of layers with and without a window; a causal mask is not exploited.

    A window reaches backwards or, without a causal mask, to both sides; a chunk is as long with and without one.
    """
    sides = xp.where(causal | chunked_window, 1.0, 2.0)
    return sequence_length - windowed_layers_fraction * xp.maximum(sequence_length - sides * window, 0.0)


@alternative(of="causal_attended_length", by="indexer", label=ALL, unit="1", source="dao2023flash2")
def dense_causal_attended_length(
    dense_attended_length, sequence_length, window, windowed_layers_fraction, chunked_window, causal
):
    """Tokens that one token attends to under the mask, mean of a sequence and of layers with and without a window.

    s/2 of the whole sequence, w/2 of a chunk, w - w^2/2s of a sliding window; without a causal mask all.
    """
    inside = xp.minimum(window, sequence_length)
    of_window = xp.where(chunked_window, inside / 2, inside * (1 - inside / (2 * sequence_length)))
    masked = sequence_length / 2 - windowed_layers_fraction * (sequence_length / 2 - of_window)
    return xp.where(causal, masked, dense_attended_length)


@alternative(of="masked_core_flops", by="mixer", label=NONE, unit="1", source="dao2023flash2")
def plain_masked_core_flops(attended_length, causal_attended_length, heads, query_head_width, value_head_width):
    """FLOPs per token of scores and context of one layer's forward pass that the causal mask leaves out."""
    return 2 * (attended_length - causal_attended_length) * heads * (query_head_width + value_head_width)


@alternative(of="core_forward_flops", by="mixer", label=NONE, unit="1", source="korthikanti2022")
def plain_core_forward_flops(attended_length, heads, query_head_width, value_head_width):
    """FLOPs per token of scores and context of one layer's forward pass: 4·s·h (no causal mask exploited)."""
    return 2 * attended_length * heads * (query_head_width + value_head_width)


@formula(unit="1", source="fedus2022switch")
def active_ffn_parameters(
    hidden_size,
    expert_width,
    dense_width,
    expert_ffn_size,
    ffn_input_matrices,
    kind_is_dense,
    kind_has_experts,
    experts,
    expert_latent_size,
    experts_per_token,
    shared_experts,
):
    """Matrix weights that one token multiplies in one feed-forward block: of experts those that it visits."""
    dense = feed_forward_weights(hidden_size, dense_width, ffn_input_matrices)
    routed, shared = (feed_forward_weights(w, expert_ffn_size, ffn_input_matrices) for w in (expert_width, hidden_size))
    routing = hidden_size * router_columns(experts, expert_latent_size)
    chosen = routing + experts_per_token * routed + shared_experts * shared
    return kind_is_dense * dense + kind_has_experts * chosen


@alternative(of="layer_forward_flops", by="mixer", label=NONE, unit="1", source="korthikanti2022")
def plain_layer_forward_flops(attention_matrix_parameters, active_ffn_parameters, core_forward_flops):
    """FLOPs per token of one layer's forward pass: 2 per weight, and those of scores and context."""
    return 2 * (attention_matrix_parameters + active_ffn_parameters) + core_forward_flops


@formula(unit="1", source="korthikanti2022")
def model_flops_per_token(
    kind_layers,
    layer_forward_flops,
    core_forward_flops,
    output_head_parameters,
    mtp_layers,
    mtp_forward_flops,
    trains_weights,
):
    """Model FLOPs per token, backward twice the forward pass: 72·L·h²·(1 + s/6h + V/12hL) for GPT (eq. 7, per token).

    The convention of Korthikanti et al. and of Megatron-LM: look-ups cost nothing, causal attention counts in full,
    recomputation does not count. Frozen weights have no gradients: 4 FLOPs per weight instead of 6 (adapters nothing).
    """
    core = of_kinds(kind_layers, core_forward_flops)
    weights = of_kinds(kind_layers, layer_forward_flops - core_forward_flops) + 2 * output_head_parameters
    return (2 + trains_weights) * weights + 3 * (core + mtp_layers * mtp_forward_flops)


@formula(unit="1", source="zhao2025insights")
def causal_model_flops_per_token(model_flops_per_token, kind_layers, mtp_kind_layers, masked_core_flops):
    """Model FLOPs per token with the causal mask exploited: as FlashAttention and DeepSeek-V3 count."""
    return model_flops_per_token - 3 * of_kinds(kind_layers + mtp_kind_layers, masked_core_flops)


@formula(unit="1", source="korthikanti2022")
def hardware_flops_per_token(
    model_flops_per_token,
    kind_layers,
    mtp_kind_layers,
    layer_forward_flops,
    core_forward_flops,
    unfused,
    layer_recomputed,
    core_recomputed,
    latents_recomputed,
    latent_expansion_flops,
):
    """Model FLOPs per token plus the forward FLOPs that recomputation repeats (in the same convention)."""
    core_repeated = unfused * core_recomputed + (1 - unfused) * layer_recomputed
    repeated = layer_recomputed * (layer_forward_flops - core_forward_flops) + core_repeated * core_forward_flops
    repeated = repeated + latents_recomputed * latent_expansion_flops
    return model_flops_per_token + of_kinds(kind_layers + mtp_kind_layers, repeated)


@formula(unit="1", source="korthikanti2022")
def tokens_per_step(global_batch, sequence_length):
    """Tokens of one optimizer step."""
    return global_batch * sequence_length


@formula(unit="1", source="korthikanti2022")
def model_flops_per_step(model_flops_per_token, tokens_per_step):
    """Model FLOPs of one optimizer step on all devices together."""
    return model_flops_per_token * tokens_per_step


# ---- one tensor-parallel rank ---------------------------------------------------------------------------------------


@formula(unit="1", source="shoeybi2019megatron")
def rank_query_width(heads, query_head_width, tp):
    """Width of the queries of one tensor-parallel rank: one of tp equal parts."""
    return heads * query_head_width / tp


@formula(unit="1", source="nvidia2026megatroncore")
def rank_vocab_size(vocab_size, vocab_padding, tp):
    """Vocabulary entries of one tensor-parallel rank: one of tp equal parts, padded as the software does."""
    step = xp.maximum(vocab_padding, 1.0)
    part = vocab_size / tp
    return xp.where(vocab_padding > 0, xp.ceil(part / step) * step, part)


@formula(unit="1", source="shoeybi2019megatron")
def rank_ffn_size(dense_width, tp):
    """Width of the dense feed-forward block of one tensor-parallel rank."""
    return dense_width / tp


@formula(unit="1", source="shoeybi2019megatron")
def rank_context_width(heads, value_head_width, tp):
    """Width of the results of the heads of one tensor-parallel rank."""
    return heads * value_head_width / tp


def key_heads(heads, kv_heads, kv_lora_rank):
    """Key and value heads of one layer: every head has its own where they are expanded from a latent."""
    return xp.where(kv_lora_rank > 0, heads, kv_heads)


@formula(unit="1", source="shoeybi2019megatron")
def rank_key_heads(heads, kv_heads, kv_lora_rank, tp):
    """Key heads of one tensor-parallel rank; with fewer key heads than ranks they are replicated."""
    return xp.maximum(key_heads(heads, kv_heads, kv_lora_rank) / tp, 1.0)


@formula(unit="1", source="shoeybi2019megatron")
def rank_key_width(rank_key_heads, query_head_width):
    """Width of the key heads of one tensor-parallel rank."""
    return rank_key_heads * query_head_width


@formula(unit="1", source="shoeybi2019megatron")
def rank_value_width(rank_key_heads, value_head_width):
    """Width of the value heads of one tensor-parallel rank."""
    return rank_key_heads * value_head_width


@alternative(of="rank_attention_parameters", by="indexer", label=ALL, unit="1", source="shoeybi2019megatron")
def dense_rank_attention_parameters(
    hidden_size,
    rank_qkv_width,
    rank_query_width,
    rank_expanded_width,
    rank_context_width,
    q_lora_rank,
    kv_lora_rank,
    compressed_queries,
):
    """Weights of the attention matrices of one layer on one tensor-parallel rank."""
    up = compressed_queries * q_lora_rank * rank_query_width + kv_lora_rank * rank_expanded_width
    return hidden_size * (rank_qkv_width + rank_context_width) + up


@formula(unit="1", source="shoeybi2019megatron")
def rank_layer_matrix_parameters(rank_attention_parameters, hidden_size, rank_ffn_size, ffn_input_matrices):
    """Matrix weights of one dense layer on one tensor-parallel rank."""
    return rank_attention_parameters + feed_forward_weights(hidden_size, rank_ffn_size, ffn_input_matrices)


@alternative(of="rank_layer_parameters", by="mixer", label=NONE, unit="1", source="shoeybi2019megatron")
def plain_rank_layer_parameters(
    rank_layer_matrix_parameters,
    layer_vector_parameters,
    rank_attention_parameters,
    attention_vector_parameters,
    hidden_size,
    experts,
    expert_latent_size,
    shared_experts,
    expert_parameters,
    expert_width,
    tp,
    kind_has_experts,
):
    """Parameters of one layer on one tensor-parallel rank apart from routed experts; norms and router replicated."""
    dense = rank_layer_matrix_parameters + layer_vector_parameters
    shared = shared_experts * expert_parameters * hidden_size / expert_width / tp
    around = hidden_size * router_columns(experts, expert_latent_size) + shared
    with_experts = rank_attention_parameters + attention_vector_parameters + around
    return xp.where(kind_has_experts > 0, with_experts, dense)


@formula(unit="1", source="lepikhin2021gshard")
def rank_expert_parameters(experts, expert_parameters, ep, etp):
    """Parameters of the routed experts of one layer on one rank."""
    return experts * expert_parameters / (ep * etp)


@formula(unit="1", source="shoeybi2019megatron")
def rank_embedding_parameters(rank_vocab_size, learned_positions, hidden_size, looked_up_width):
    """Parameters of the embeddings on one tensor-parallel rank: tokens sharded, positions replicated."""
    return rank_vocab_size * looked_up_width + learned_positions * hidden_size


@formula(unit="1", source="shoeybi2019megatron")
def rank_head_parameters(rank_vocab_size, hidden_size):
    """Weights of the output head on one tensor-parallel rank."""
    return rank_vocab_size * hidden_size


@formula(unit="1", source="shoeybi2019megatron")
def microbatch_tokens(microbatch, sequence_length, cp):
    """Tokens of one microbatch on one rank: context-parallel ranks have a part of every sequence."""
    return microbatch * sequence_length / cp


@formula(unit="1", source="korthikanti2022")
def sharded_tokens(microbatch_tokens, tp, sequence_parallel):
    """Tokens that norms, residuals and dropout of one rank see: a tp-th of them with sequence parallelism."""
    return microbatch_tokens / xp.where(sequence_parallel, tp, 1.0)


# ---- what divides what ----------------------------------------------------------------------------------------------


@constraint(
    reason="tensor-parallel ranks do not divide the attention heads", source="shoeybi2019megatron", workload=LAID_OUT
)
def heads_divide(heads, tp):
    """Every tensor-parallel rank has the same number of query heads."""
    return heads % tp == 0


@constraint(
    reason="tensor-parallel ranks neither divide the key-value heads nor are a multiple of them",
    source="ainslie2023gqa",
    workload=LAID_OUT,
)
def kv_heads_divide(heads, kv_heads, kv_lora_rank, tp):
    """Key-value heads are split evenly, or replicated evenly where there are fewer than ranks."""
    keys = key_heads(heads, kv_heads, kv_lora_rank)
    return xp.where(tp <= keys, keys % tp == 0, tp % keys == 0)


@constraint(
    reason="tensor-parallel ranks do not divide the feed-forward width", source="shoeybi2019megatron", workload=LAID_OUT
)
def ffn_divides(ffn_size, tp):
    """Every tensor-parallel rank has the same feed-forward width."""
    return ffn_size % tp == 0


@constraint(
    reason="layers that share keys and values, or have embeddings of their own, must be on one stage: pp must be 1",
    source="google2025gemma3n",
    workload=LAID_OUT,
)
def shared_keys_stay_on_a_stage(shared_key_layers, layer_embedding_size, pp):
    """Keys, values and embeddings that later layers read are not sent from stage to stage."""
    return ((shared_key_layers == 0) & (layer_embedding_size == 0)) | (pp == 1)


@constraint(
    reason="tensor-parallel ranks do not divide the vocabulary, which the software does not pad",
    source="shoeybi2019megatron",
)
def vocabulary_divides(vocab_size, vocab_padding, tp):
    """Every tensor-parallel rank has the same part of the vocabulary: padded, or divisible."""
    return (vocab_padding > 0) | (vocab_size % tp == 0)


@constraint(
    reason="with sequence parallelism the tensor-parallel ranks must divide the sequence", source="korthikanti2022"
)
def sequence_divides(sequence_length, tp, cp, sequence_parallel):
    """Every rank has the same part of the sequence where norms and dropout are sharded."""
    return xp.where(sequence_parallel, sequence_length % (tp * cp) == 0, True)
