"""Multi-head latent attention in training, not absorbed: keys, values and queries are expanded from narrow latents.

The joint projection of a token down to its latents stands in the place of the query, key and value projection; each
latent is normalised and then projected up to the heads. Tensor-parallel ranks split the heads, so the latents and the
weights that make them are replicated. With sequence parallelism each rank makes the latents of its own tokens, and the
narrow latents are what is gathered (Megatron-LM). The sum of the gradients of replicated weights over these ranks, once
per step, is left out as it is for norms.

Where queries are not compressed (DeepSeek-V2-Lite) they come straight from the layer's input, which is gathered then.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import only
from perfgrid.formulas.collectives.placement import gathered_share
from perfgrid.formulas.mixer_kinds import ALL, NONE

# ---- widths ---------------------------------------------------------------------------------------------------------


@formula(unit="1", source="deepseek2024v2")
def latent_attention(kv_lora_rank):
    """1 where keys and values are expanded from a latent, 0 where they are projected directly."""
    return xp.where(kv_lora_rank > 0, 1.0, 0.0)


@formula(unit="1", source="deepseek2024v2")
def compressed_queries(latent_attention, q_lora_rank):
    """1 where queries are expanded from a latent as well, otherwise 0."""
    return latent_attention * xp.where(q_lora_rank > 0, 1.0, 0.0)


@formula(unit="1", source="deepseek2024v2")
def latent_width(latent_attention, q_lora_rank, kv_lora_rank):
    """Width of the latents of one token: of queries, and of keys with values; 0 without latent attention."""
    return latent_attention * (q_lora_rank + kv_lora_rank)


@formula(unit="1", source="deepseek2024v2")
def rank_expanded_width(latent_attention, heads, tp, qk_nope_head_dim, v_head_dim):
    """Width of keys (without their rotary part) and values of one rank, expanded from their latent."""
    return latent_attention * heads / tp * (qk_nope_head_dim + v_head_dim)


@formula(unit="1", source="deepseek2024v2")
def rank_qkv_width(
    rank_query_width,
    rank_key_width,
    rank_value_width,
    own_key_share,
    latent_attention,
    compressed_queries,
    latent_width,
    qk_rope_head_dim,
    attention_gate,
):
    """Columns of the first product of attention on one rank: queries, keys, values, or what they are expanded from.

    All heads share the rotary part of a key, which stands beside the latents. An output gate is as wide as the queries.
    Mean of layers with and without keys and values of their own.
    """
    queries = rank_query_width * xp.where(attention_gate, 2.0, 1.0)
    full = queries + own_key_share * (rank_key_width + rank_value_width)
    latent = latent_width + qk_rope_head_dim + (1 - compressed_queries) * rank_query_width
    return xp.where(latent_attention > 0, latent, full)


# ---- kernels --------------------------------------------------------------------------------------------------------


@alternative(of="latent_gemms", by="mixer", label=NONE, unit="1", source="deepseek2024v2")
def plain_latent_gemms(latent_attention, compressed_queries):
    """How often the projections up from latents run in one layer, by product."""
    queries, keys = only("product", "query_up"), only("product", "key_up")
    return compressed_queries * queries + latent_attention * keys


@alternative(of="latent_expansion_flops", by="mixer", label=NONE, unit="1", source="deepseek2024v2")
def plain_latent_expansion_flops(
    compressed_queries, heads, query_width, q_lora_rank, kv_lora_rank, qk_nope_head_dim, v_head_dim
):
    """FLOPs per token of the projections up from latents of one layer; 0 without latents, which have a rank of 0."""
    queries = compressed_queries * q_lora_rank * query_width
    keys = kv_lora_rank * heads * (qk_nope_head_dim + v_head_dim)
    return 2 * (queries + keys)


# ---- communication --------------------------------------------------------------------------------------------------


@formula(unit="byte", source="nvidia2026latent")
def latent_message(microbatch_tokens, hidden_size, latent_width, qk_rope_head_dim, compressed_queries, activation_size):
    """Inputs of attention's first column-parallel products for one microbatch: the latents, or the layer's input."""
    width = xp.where(compressed_queries > 0, latent_width + qk_rope_head_dim, hidden_size)
    return microbatch_tokens * width * activation_size


@alternative(of="attention_gathering_time", by="mixer", label=NONE, unit="s", source="nvidia2026latent")
def plain_attention_gathering_time(operand_gathering_time, latent_gather_time, compressed_queries, sequence_parallel):
    """Time to gather the input of attention's column-parallel products: the latents, or the layer's input."""
    latents = xp.where(sequence_parallel, latent_gather_time, 0.0)
    return xp.where(compressed_queries > 0, latents, operand_gathering_time)


@alternative(of="attention_reduction_time", by="mixer", label=NONE, unit="s", source="nvidia2026latent")
def plain_attention_reduction_time(
    tp_reduction_time, latent_gather_time, latent_all_reduce_time, compressed_queries, sequence_parallel
):
    """Time to add partial input gradients of attention's column-parallel products: of latents, or of the input."""
    latents = xp.where(sequence_parallel, latent_gather_time, latent_all_reduce_time)
    return xp.where(compressed_queries > 0, latents, tp_reduction_time)


@alternative(of="latent_saved_bytes", by="mixer", label=NONE, unit="byte", source="nvidia2026latent")
def plain_latent_saved_bytes(
    compressed_queries,
    attention_tp_blocks,
    layer_recomputed,
    latents_recomputed,
    sequence_parallel,
    tp,
    tp_message,
    operand_message,
    latent_message,
):
    """Bytes that one device sends less for one layer and microbatch because latents are narrower than its input.

    Where they are gathered (forward, recomputed, for weight gradients) and where their gradients are added up.
    """
    gathers = xp.where(sequence_parallel, 2 + layer_recomputed + latents_recomputed, 0.0)
    added = xp.where(sequence_parallel, 1.0, 2.0)
    narrower = gathers * (operand_message - latent_message) + added * (tp_message - latent_message)
    return compressed_queries * attention_tp_blocks * gathered_share(tp) * narrower


# ---- memory ---------------------------------------------------------------------------------------------------------


@alternative(of="expanded_activations", by="mixer", label=NONE, unit="byte", source="deepseek2024v2")
def plain_expanded_activations(microbatch_tokens, expanded_width, activation_size):
    """What the core of attention reads and the projections of latents keep, of one layer and microbatch."""
    return microbatch_tokens * expanded_width * activation_size


@alternative(of="expanded_width", by="indexer", label=ALL, unit="1", source="deepseek2024v2")
def dense_expanded_width(rank_query_width, rank_key_width, rank_value_width, own_key_share):
    """Queries, keys and values of one token on one rank, mean of layers with and without keys of their own."""
    return rank_query_width + own_key_share * (rank_key_width + rank_value_width)


@alternative(of="latent_activations", by="indexer", label=ALL, unit="byte", source="deepseek2024v2")
def dense_latent_activations(sharded_tokens, latent_width, latents_dropped, activation_size):
    """Latents of one layer and microbatch: as projected, and normalised unless that is computed again."""
    normalised = latent_width * (1 - latents_dropped)
    return sharded_tokens * (latent_width + normalised) * activation_size
