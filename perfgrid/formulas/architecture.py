"""The floating-point work of one token, the part of a layer on one rank, and what divides what."""

from perfgrid.engine import xp
from perfgrid.engine.registry import constraint, formula


@formula(unit="1", source="chowdhery2022palm")
def layer_blocks(parallel_block):
    """Blocks of a layer that run one after the other: attention and feed-forward, or both as one."""
    return xp.where(parallel_block, 1.0, 2.0)


@formula(unit="1", source="beltagy2020longformer")
def attended_length(sequence_length, window, windowed_layers_fraction, causal):
    """Tokens that one token may attend to, mean of layers with and without a window; a causal mask is not exploited.

    A window reaches backwards or, without a causal mask, to both sides.
    """
    sides = xp.where(causal, 1.0, 2.0)
    return sequence_length - windowed_layers_fraction * xp.maximum(sequence_length - sides * window, 0.0)


@formula(unit="1", source="korthikanti2022")
def core_forward_flops(attended_length, query_width):
    """FLOPs per token of scores and context of one layer's forward pass: 4·s·h (no causal mask exploited)."""
    return 4 * attended_length * query_width


@formula(unit="1", source="korthikanti2022")
def layer_forward_flops(layer_matrix_parameters, core_forward_flops):
    """FLOPs per token of one layer's forward pass: 2 per weight, and those of scores and context."""
    return 2 * layer_matrix_parameters + core_forward_flops


@formula(unit="1", source="korthikanti2022")
def model_flops_per_token(layers, layer_forward_flops, output_head_parameters):
    """Model FLOPs per token, backward twice the forward pass: 72·L·h²·(1 + s/6h + V/12hL) for GPT (eq. 7, per token).

    The convention of Korthikanti et al. and of Megatron-LM: look-ups cost nothing, causal attention counts in full,
    recomputation does not count.
    """
    return 3 * (layers * layer_forward_flops + 2 * output_head_parameters)


@formula(unit="1", source="korthikanti2022")
def hardware_flops_per_token(
    model_flops_per_token,
    layers,
    layer_forward_flops,
    core_forward_flops,
    unfused,
    layer_recomputed,
    core_recomputed,
):
    """Model FLOPs per token plus the forward FLOPs that recomputation repeats (in the same convention)."""
    core_repeated = unfused * core_recomputed + (1 - unfused) * layer_recomputed
    repeated = layer_recomputed * (layer_forward_flops - core_forward_flops) + core_repeated * core_forward_flops
    return model_flops_per_token + layers * repeated


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
def rank_query_width(query_width, tp):
    """Width of the query heads of one tensor-parallel rank."""
    return query_width / tp


@formula(unit="1", source="shoeybi2019megatron")
def rank_key_value_width(kv_heads, head_dim, tp):
    """Width of the key heads of one tensor-parallel rank; with fewer key heads than ranks they are replicated."""
    return xp.maximum(kv_heads / tp, 1.0) * head_dim


@formula(unit="1", source="shoeybi2019megatron")
def rank_ffn_size(ffn_size, tp):
    """Feed-forward width of one tensor-parallel rank."""
    return ffn_size / tp


@formula(unit="1", source="shoeybi2019megatron")
def rank_vocab_size(vocab_size, tp):
    """Vocabulary entries of one tensor-parallel rank."""
    return vocab_size / tp


@formula(unit="1", source="shoeybi2019megatron")
def rank_layer_matrix_parameters(
    hidden_size, rank_query_width, rank_key_value_width, rank_ffn_size, ffn_input_matrices
):
    """Matrix weights of one layer on one tensor-parallel rank."""
    attention = 2 * hidden_size * (rank_query_width + rank_key_value_width)
    return attention + hidden_size * rank_ffn_size * (ffn_input_matrices + 1)


@formula(unit="1", source="shoeybi2019megatron")
def rank_layer_parameters(rank_layer_matrix_parameters, layer_vector_parameters):
    """Parameters of one layer on one tensor-parallel rank, norms and biases replicated."""
    return rank_layer_matrix_parameters + layer_vector_parameters


@formula(unit="1", source="shoeybi2019megatron")
def rank_embedding_parameters(rank_vocab_size, learned_positions, hidden_size):
    """Parameters of the embedding on one tensor-parallel rank: tokens sharded, positions replicated."""
    return (rank_vocab_size + learned_positions) * hidden_size


@formula(unit="1", source="shoeybi2019megatron")
def rank_head_parameters(rank_vocab_size, hidden_size):
    """Weights of the output head on one tensor-parallel rank."""
    return rank_vocab_size * hidden_size


@formula(unit="1", source="shoeybi2019megatron")
def microbatch_tokens(microbatch, sequence_length):
    """Tokens of one microbatch."""
    return microbatch * sequence_length


@formula(unit="1", source="korthikanti2022")
def sharded_tokens(microbatch_tokens, tp, sequence_parallel):
    """Tokens that norms, residuals and dropout of one rank see: a tp-th of them with sequence parallelism."""
    return microbatch_tokens / xp.where(sequence_parallel, tp, 1.0)


# ---- what divides what ----------------------------------------------------------------------------------------------


@constraint(
    kind="illegal", reason="tensor-parallel ranks do not divide the attention heads", source="shoeybi2019megatron"
)
def heads_divide(heads, tp):
    """Every tensor-parallel rank has the same number of query heads."""
    return heads % tp == 0


@constraint(
    kind="illegal",
    reason="tensor-parallel ranks neither divide the key-value heads nor are a multiple of them",
    source="ainslie2023gqa",
)
def kv_heads_divide(kv_heads, tp):
    """Key-value heads are split evenly, or replicated evenly where there are fewer than ranks."""
    return xp.where(tp <= kv_heads, kv_heads % tp == 0, tp % kv_heads == 0)


@constraint(
    kind="illegal", reason="tensor-parallel ranks do not divide the feed-forward width", source="shoeybi2019megatron"
)
def ffn_divides(ffn_size, tp):
    """Every tensor-parallel rank has the same feed-forward width."""
    return ffn_size % tp == 0


@constraint(kind="illegal", reason="tensor-parallel ranks do not divide the vocabulary", source="shoeybi2019megatron")
def vocabulary_divides(vocab_size, tp):
    """Every tensor-parallel rank has the same part of the vocabulary."""
    return vocab_size % tp == 0


@constraint(
    kind="illegal",
    reason="with sequence parallelism the tensor-parallel ranks must divide the sequence",
    source="korthikanti2022",
)
def sequence_divides(sequence_length, tp, sequence_parallel):
    """Every rank has the same part of the sequence where norms and dropout are sharded."""
    return xp.where(sequence_parallel, sequence_length % tp == 0, True)
