"""Attention to chosen tokens in inference: the indexer, what it keeps, and attention to the tokens that it chooses.

An indexer (DeepSeek-V3.2) scores every earlier token in 8 bits, and the best ones of each token are attended to. Up to
``index_top_k`` tokens attention is dense. Longer prompts are computed as decoding steps are: with absorbed latents,
which every token gathers for its own choice. The indexer stands whole on every tensor-parallel rank; context-parallel
ranks share out the scores.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import at, table, total
from perfgrid.formulas.kernels import energy
from perfgrid.formulas.kernels.flash import side_by_side
from perfgrid.formulas.kernels.roofline import roofline_shares
from perfgrid.formulas.mixer_kinds import ALL, CHOSEN
from perfgrid.formulas.mixers.attended import triangle, windowed
from perfgrid.formulas.mixers.widths import latent_token_bytes
from perfgrid.formulas.transformer.attention import mean_in_chunk

from .latency import in_pass, with_steps


def _chosen(of: str, unit: str, without: float | str = 0.0):
    """A quantity of models with indexers; without them a number (none), or another quantity."""
    return alternative(of=of, by="indexer", label=CHOSEN, unit=unit, source="deepseek2025v32", others={ALL: without})


# ---- what a token leaves in the cache -------------------------------------------------------------------------------


@_chosen("kept_element_size", "byte", "kv_element_size")
def latent_kept_element_size(kv_element_size, kv_lora_rank, qk_rope_head_dim, activation_size, float32_size):
    """Bytes of an element that a token leaves in the cache: mean of latent, scales and a rotary key of 16 bits."""
    size = latent_token_bytes(kv_lora_rank, qk_rope_head_dim, kv_element_size, activation_size, float32_size)
    return size / (kv_lora_rank + qk_rope_head_dim)


@_chosen("index_cache_size", "byte")
def top_k_index_cache_size(index_layers, index_token_bytes):
    """Keys of indexers that one token leaves in the cache of all layers."""
    return index_layers * index_token_bytes


@_chosen("index_weight_memory", "byte")
def top_k_index_weight_memory(index_layers, indexer_weight_size):
    """Weights of the indexers of all layers on the ranks of one pipeline."""
    return index_layers * indexer_weight_size


# ---- attention to the chosen tokens ---------------------------------------------------------------------------------


def attended(read, in_window):
    """Tokens that a position reads, by mask: all, and no more than those of the window or, mean of all, the chunk."""
    return table("mask", whole=read, window=xp.minimum(read, in_window))


@formula(unit="1", source="pope2022inference")
def whole_context(decode_context, cache_slot_tokens, window, chunked_window, prompt_tokens, output_tokens):
    """Tokens of the cache that a decoded position reads, by mask and position: where shapes are fixed, whole slots."""
    span = xp.maximum(window, 1.0)
    in_chunk = mean_in_chunk(prompt_tokens + 1, xp.maximum(output_tokens - 1, 1.0), span)
    moving = chunked_window & (cache_slot_tokens == 0)
    return attended(xp.maximum(decode_context, cache_slot_tokens), xp.where(moving, in_chunk, span))


@_chosen("attended_context", "1", "whole_context")
def chosen_attended_context(decode_context, index_top_k, window):
    """Tokens of the cache that a decoded position reads, by mask and position: no more than are chosen."""
    return attended(xp.minimum(decode_context, index_top_k), xp.maximum(window, 1.0))


@formula(unit="1", source="deepseek2025v32")
def chosen_pairs(cached_prompt_tokens, computed_prompt_tokens, index_top_k):
    """Pairs of a computed token of a prompt and one that it chooses."""
    every = windowed(cached_prompt_tokens + computed_prompt_tokens, index_top_k)
    return every - windowed(cached_prompt_tokens, index_top_k)


@formula(unit="1", source="deepseek2025v32")
def chosen_scores(chosen_pairs, prefill_sequences, rank_query_heads, cp):
    """Scores of one layer's attention to chosen tokens of the prompts of one group on one rank: one for each head."""
    return prefill_sequences * chosen_pairs * rank_query_heads / cp


@formula(unit="FLOP", source="deepseek2025v32")
def chosen_attention_flops(chosen_scores, kv_lora_rank, qk_rope_head_dim):
    """Floating-point work of one layer's attention to chosen tokens: 2 an element of a latent, as key and value."""
    return 2 * chosen_scores * (2 * kv_lora_rank + qk_rope_head_dim)


@formula(unit="byte", source="deepseek2025v32")
def chosen_gathers(chosen_scores, rank_query_heads, layer_token_cache):
    """Latents that the tokens gather through the last-level cache in one layer, each for its own choice."""
    return chosen_scores / rank_query_heads * layer_token_cache


@formula(unit="byte", source="deepseek2025v32")
def chosen_attention_traffic(
    chunk_tokens, prefill_passes, rank_query_heads, kv_lora_rank, qk_rope_head_dim, activation_size, prefix_traffic
):
    """Memory traffic of one layer's attention to chosen tokens: queries in, results out, cached latents once a pass."""
    width = rank_query_heads * (2 * kv_lora_rank + qk_rope_head_dim)
    return chunk_tokens * prefill_passes * width * activation_size + prefix_traffic


@_chosen("prefill_attention_time", "s", "dense_attention_time")
def chosen_attention_time(
    chosen_attention_flops,
    unquantised_matrix_rate,
    chosen_scores,
    score_softmax_time,
    hidden_softmax,
    chosen_gathers,
    l2_bandwidth,
    chosen_attention_traffic,
    achieved_hbm_bandwidth,
    launch_overhead,
    attention_layers,
    chooses_tokens,
    dense_attention_time,
):
    """Time of the attention of the prompts of one group in all layers, by resource: dense up to the chosen tokens."""
    softmax = chosen_scores * at(score_softmax_time, phase="forward")
    sparse = roofline_shares(
        arithmetic=side_by_side(chosen_attention_flops / unquantised_matrix_rate, softmax, hidden_softmax),
        l2=chosen_gathers / l2_bandwidth,
        hbm=chosen_attention_traffic / achieved_hbm_bandwidth,
        launch=launch_overhead,
    )
    return xp.where(chooses_tokens > 0, attention_layers * sparse, dense_attention_time)


@formula(unit="1", source="deepseek2025v32")
def chooses_tokens(prompt_tokens, index_top_k):
    """1 where prompts are longer than the tokens that one attends to."""
    return xp.where(prompt_tokens > index_top_k, 1.0, 0.0)


@_chosen("expanded_tokens", "1", "attended_tokens")
def chosen_expanded_tokens(attended_tokens, chunk_tokens, chooses_tokens):
    """Latents that a pass of the prefill multiplies up on one rank; absorbed, as many queries and results instead."""
    return xp.where(chooses_tokens > 0, chunk_tokens, attended_tokens)


# ---- the indexer ----------------------------------------------------------------------------------------------------


@formula(unit="1", source="deepseek2025v32")
def index_contexts(
    prompt_tokens, computed_prompt_tokens, mean_decode_context, prefill_sequences, group_batch, mixed_iterations, cp
):
    """Tokens of all sequences whose keys the indexer of one rank reads in a pass, by pass."""
    prompts = prefill_sequences * xp.maximum(prompt_tokens, computed_prompt_tokens)
    return with_steps(prompts, group_batch * mean_decode_context, mixed_iterations) / cp


@formula(unit="1", source="deepseek2025v32")
def mean_decode_context(decode_context, position_weight):
    """Tokens that a decoded position sees, mean over the positions."""
    return total(decode_context * position_weight, "position")


@formula(unit="1", source="deepseek2025v32")
def index_scores(
    cached_prompt_tokens, computed_prompt_tokens, pass_prompts, index_contexts, step_tokens, mixed_iterations, cp
):
    """Pairs of tokens that the indexer of one rank scores in a pass, by pass: all pairs under the causal mask."""
    pairs = triangle(cached_prompt_tokens + computed_prompt_tokens) - triangle(cached_prompt_tokens)
    return with_steps(pass_prompts * pairs / cp, step_tokens * in_pass(index_contexts, "decode"), mixed_iterations)


@formula(unit="1", source="deepseek2025v32")
def index_flops(index_scores, index_query_width):
    """FLOPs of the scores of one indexer in a pass on one rank, by pass: 2 H_I d_I for each pair."""
    return 2 * index_scores * index_query_width


@formula(unit="byte", source="deepseek2025v32")
def indexer_written(index_scores, float32_size):
    """Scores that one indexer writes, and reads again to choose, in a pass on one rank, by pass."""
    return index_scores * float32_size


@formula(unit="byte", source="deepseek2025v32")
def indexer_score_traffic(
    pass_tokens, index_heads, index_query_width, fp8_element_size, float32_size, index_contexts, index_token_bytes
):
    """Queries in 8 bits with a weight of each head, and keys, that one indexer reads in a pass on one rank, by pass."""
    queries = index_query_width * fp8_element_size + index_heads * float32_size
    return pass_tokens * queries + index_contexts * index_token_bytes


@formula(unit="1", source="deepseek2025v32")
def indexer_product_flops(pass_tokens, index_matrix_parameters):
    """FLOPs of the products of one indexer with its weights in a pass, by pass; on every rank."""
    return 2 * pass_tokens * index_matrix_parameters


@formula(unit="byte", source="deepseek2025v32")
def indexer_weight_size(index_matrix_parameters, part_weight_size):
    """Weights of one indexer, whole on every rank."""
    return index_matrix_parameters * at(part_weight_size, weight_part="indexer")


@formula(unit="byte", source="deepseek2025v32")
def indexer_product_traffic(
    indexer_weight_size, pass_tokens, hidden_size, q_lora_rank, index_key_width, index_query_width, activation_size
):
    """Memory traffic of the products of one indexer with its weights in a pass, by pass."""
    width = hidden_size + q_lora_rank + index_key_width + index_query_width
    return indexer_weight_size + pass_tokens * width * activation_size


@_chosen("indexers_product_flops", "1")
def top_k_indexers_product_flops(index_layers, indexer_product_flops):
    """FLOPs of the products of indexers with their weights in one pass through all layers, by pass; on every rank."""
    return index_layers * indexer_product_flops


@_chosen("indexers_time", "s")
def top_k_indexers_time(
    index_layers,
    indexer_product_flops,
    matrix_rate,
    library_efficiency,
    indexer_product_traffic,
    index_flops,
    index_rate,
    indexer_score_traffic,
    indexer_written,
    achieved_hbm_bandwidth,
    launch_overhead,
):
    """Time of the indexers of one pass through all layers, by resource and pass.

    Two products with weights, rotation and 8-bit copies of queries and keys, scores, and the choice, which reads the
    scores that the kernel before it has written.
    """
    kernels = (  # operations' time, bytes, launches
        (indexer_product_flops / (matrix_rate * library_efficiency), indexer_product_traffic, 2),
        (index_flops / index_rate, indexer_score_traffic + indexer_written, 2),
        (0.0, indexer_written, 1),
    )
    return index_layers * sum(
        roofline_shares(arithmetic=work, hbm=moved / achieved_hbm_bandwidth, launch=launches * launch_overhead)
        for work, moved, launches in kernels
    )


# ---- energy ---------------------------------------------------------------------------------------------------------


@_chosen("prefill_attention_energy", "J", "dense_attention_energy")
def chosen_attention_energy(
    dense_attention_energy,
    chooses_tokens,
    chosen_attention_flops,
    chosen_attention_traffic,
    chosen_scores,
    chosen_gathers,
    unquantised_operation_energy,
    score_energy,
    l2_byte_energy,
    crossing_byte_energy,
    memory_access_energy,
    attention_layers,
):
    """Energy of the attention of the prompts of one group in all layers, by resource: dense up to the chosen tokens."""
    work = chosen_attention_flops * unquantised_operation_energy + chosen_scores * score_energy
    streams = energy.streamed(chosen_attention_traffic, crossing_byte_energy, memory_access_energy, work)
    sparse = attention_layers * (streams + energy.by_consumer(l2=chosen_gathers * l2_byte_energy))
    return xp.where(chooses_tokens > 0, sparse, dense_attention_energy)


@_chosen("indexers_energy", "J")
def top_k_indexers_energy(
    index_layers,
    indexer_product_flops,
    index_flops,
    indexer_product_traffic,
    indexer_score_traffic,
    indexer_written,
    format_energy,
    fp8_format_energy,
    half_precision_operation_energy,
    crossing_byte_energy,
    memory_access_energy,
):
    """Energy of the indexers of one pass through all layers, by resource and pass: operations and bytes."""
    work = (indexer_product_flops * format_energy + index_flops * fp8_format_energy) * half_precision_operation_energy
    traffic = indexer_product_traffic + indexer_score_traffic + 2 * indexer_written
    return index_layers * energy.streamed(traffic, crossing_byte_energy, memory_access_energy, work)
