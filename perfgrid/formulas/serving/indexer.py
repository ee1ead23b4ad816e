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


def _without(of, unit):
    return alternative(of=of, by="indexer", label=ALL, unit=unit, source="deepseek2025v32")


def _chosen(of, unit, others=None):
    return alternative(of=of, by="indexer", label=CHOSEN, unit=unit, source="deepseek2025v32", others=others)


def _only_chosen(of, unit):
    """A quantity of models with indexers; 0 without."""
    return _chosen(of, unit, {ALL: 0.0})


# ---- what a token leaves in the cache -------------------------------------------------------------------------------


@_without("kept_element_size", "byte")
def plain_kept_element_size(kv_element_size):
    """Bytes of an element that a token leaves in the cache."""
    return 1.0 * kv_element_size


@_chosen("kept_element_size", "byte")
def latent_kept_element_size(kv_element_size, kv_lora_rank, qk_rope_head_dim, activation_size, float32_size):
    """Bytes of an element that a token leaves in the cache: mean of latent, scales and a rotary key of 16 bits."""
    size = latent_token_bytes(kv_lora_rank, qk_rope_head_dim, kv_element_size, activation_size, float32_size)
    return size / (kv_lora_rank + qk_rope_head_dim)


@_only_chosen("index_cache_size", "byte")
def top_k_index_cache_size(index_layers, index_token_bytes):
    """Keys of indexers that one token leaves in the cache of all layers."""
    return index_layers * index_token_bytes


@_only_chosen("index_weight_memory", "byte")
def top_k_index_weight_memory(index_layers, index_matrix_parameters, part_weight_size):
    """Weights of the indexers of all layers on the ranks of one pipeline."""
    return index_layers * index_matrix_parameters * at(part_weight_size, weight_part="indexer")


# ---- attention to the chosen tokens ---------------------------------------------------------------------------------


def attended(read, in_window):
    """Tokens that a position reads, by mask: all, and no more than those of the window or, mean of all, the chunk."""
    return table("mask", whole=read, window=xp.minimum(read, in_window))


@_without("attended_context", "1")
def whole_attended_context(decode_context, cache_slot_tokens, window, chunked_window, prompt_tokens, output_tokens):
    """Tokens of the cache that a decoded position reads, by mask and position: where shapes are fixed, whole slots."""
    span = xp.maximum(window, 1.0)
    in_chunk = mean_in_chunk(prompt_tokens + 1, xp.maximum(output_tokens - 1, 1.0), span)
    moving = chunked_window & (cache_slot_tokens == 0)
    return attended(xp.maximum(decode_context, cache_slot_tokens), xp.where(moving, in_chunk, span))


@_chosen("attended_context", "1")
def chosen_attended_context(decode_context, index_top_k, window):
    """Tokens of the cache that a decoded position reads, by mask and position: no more than are chosen."""
    return attended(xp.minimum(decode_context, index_top_k), xp.maximum(window, 1.0))


@formula(unit="1", source="deepseek2025v32")
def chosen_pairs(prompt_tokens, computed_prompt_tokens, index_top_k):
    """Pairs of a computed token of a prompt and one that it chooses."""
    cached = xp.maximum(prompt_tokens - computed_prompt_tokens, 0.0)
    return windowed(cached + computed_prompt_tokens, index_top_k) - windowed(cached, index_top_k)


@formula(unit="FLOP", source="deepseek2025v32")
def chosen_attention_flops(
    chosen_pairs, prefill_sequences, rank_query_heads, kv_lora_rank, qk_rope_head_dim, cp, one_flop
):
    """Floating-point work of one layer's attention to chosen tokens of the prompts of one group on one rank."""
    width = 2 * kv_lora_rank + qk_rope_head_dim
    return 2 * prefill_sequences * chosen_pairs * rank_query_heads * width / cp * one_flop


@formula(unit="byte", source="deepseek2025v32")
def chosen_attention_traffic(
    prefill_sequences,
    computed_prompt_tokens,
    rank_query_heads,
    kv_lora_rank,
    qk_rope_head_dim,
    activation_size,
    prefix_traffic,
    cp,
):
    """Memory traffic of one layer's attention to chosen tokens: queries in, results out, cached latents once a pass."""
    width = 2 * kv_lora_rank + qk_rope_head_dim
    return prefill_sequences * computed_prompt_tokens * rank_query_heads * width * activation_size / cp + prefix_traffic


@formula(unit="s", source="deepseek2025v32")
def chosen_attention_time(
    chosen_attention_flops,
    unquantised_matrix_rate,
    chosen_pairs,
    prefill_sequences,
    rank_query_heads,
    score_softmax_time,
    hidden_softmax,
    rank_cache_width,
    kept_element_size,
    l2_bandwidth,
    chosen_attention_traffic,
    achieved_hbm_bandwidth,
    launch_overhead,
    cp,
):
    """Time of one layer's attention to chosen tokens of the prompts of one group, by resource.

    Every token gathers its own latents through the last-level cache.
    """
    pairs = prefill_sequences * chosen_pairs / cp
    softmax = pairs * rank_query_heads * at(score_softmax_time, phase="forward")
    return roofline_shares(
        arithmetic=side_by_side(chosen_attention_flops / unquantised_matrix_rate, softmax, hidden_softmax),
        l2=pairs * rank_cache_width * kept_element_size / l2_bandwidth,
        hbm=chosen_attention_traffic / achieved_hbm_bandwidth,
        launch=launch_overhead,
    )


@_without("prefill_attention_time", "s")
def dense_prefill_attention_time(dense_attention_time, attention_layers):
    """Time of the attention of the prompts of one group in all layers, by resource."""
    return attention_layers * dense_attention_time


@_chosen("prefill_attention_time", "s")
def chosen_prefill_attention_time(
    dense_attention_time, chosen_attention_time, attention_layers, prompt_tokens, index_top_k
):
    """Time of the attention of the prompts of one group in all layers, by resource: dense up to the chosen tokens."""
    return attention_layers * xp.where(prompt_tokens > index_top_k, chosen_attention_time, dense_attention_time)


@_without("expanded_tokens", "1")
def dense_expanded_tokens(attended_tokens):
    """Latents that a pass of the prefill multiplies up on one rank: all that its tokens attend to."""
    return 1.0 * attended_tokens


@_chosen("expanded_tokens", "1")
def chosen_expanded_tokens(
    attended_tokens, prefill_sequences, computed_prompt_tokens, prefill_passes, cp, prompt_tokens, index_top_k
):
    """Latents that a pass of the prefill multiplies up on one rank; absorbed, as many queries and results instead."""
    computed = prefill_sequences * computed_prompt_tokens / prefill_passes / cp
    return xp.where(prompt_tokens > index_top_k, computed, attended_tokens)


# ---- the indexer ----------------------------------------------------------------------------------------------------


@formula(unit="1", source="deepseek2025v32")
def index_contexts(
    prompt_tokens,
    computed_prompt_tokens,
    decode_context,
    position_weight,
    prefill_sequences,
    group_batch,
    mixed_iterations,
    cp,
):
    """Tokens of all sequences whose keys the indexer of one rank reads in a pass, by pass."""
    prompts = prefill_sequences * xp.maximum(prompt_tokens, computed_prompt_tokens)
    decoded = group_batch * total(decode_context * position_weight, "position")
    return table("pass", prefill=(prompts + mixed_iterations * decoded) / cp, decode=decoded / cp)


@formula(unit="1", source="deepseek2025v32")
def index_scores(
    prompt_tokens,
    computed_prompt_tokens,
    prefill_sequences,
    prefill_passes,
    index_contexts,
    step_tokens,
    mixed_iterations,
    cp,
):
    """Pairs of tokens that the indexer of one rank scores in a pass, by pass: all pairs under the causal mask."""
    cached = xp.maximum(prompt_tokens - computed_prompt_tokens, 0.0)
    pairs = triangle(cached + computed_prompt_tokens) - triangle(cached)
    decoded = step_tokens * at(index_contexts, **{"pass": "decode"})
    prompts = prefill_sequences * pairs / prefill_passes / cp
    return table("pass", prefill=prompts + mixed_iterations * decoded, decode=decoded)


@formula(unit="1", source="deepseek2025v32")
def index_flops(index_scores, index_query_width):
    """FLOPs of the scores of one indexer in a pass on one rank, by pass: 2 H_I d_I for each pair."""
    return 2 * index_scores * index_query_width


@formula(unit="byte", source="deepseek2025v32")
def index_pass_traffic(
    pass_tokens, index_heads, index_query_width, fp8_element_size, float32_size, index_contexts, index_token_bytes
):
    """Queries in 8 bits with a weight of each head, and keys, that one indexer reads in a pass on one rank, by pass."""
    queries = index_query_width * fp8_element_size + index_heads * float32_size
    return pass_tokens * queries + index_contexts * index_token_bytes


@formula(unit="byte", source="deepseek2025v32")
def index_product_traffic(
    index_matrix_parameters,
    part_weight_size,
    pass_tokens,
    hidden_size,
    q_lora_rank,
    index_key_width,
    index_query_width,
    activation_size,
):
    """Memory traffic of the products of one indexer with its weights in a pass, by pass."""
    width = hidden_size + q_lora_rank + index_key_width + index_query_width
    weights = index_matrix_parameters * at(part_weight_size, weight_part="indexer")
    return weights + pass_tokens * width * activation_size


@_only_chosen("indexers_product_flops", "1")
def top_k_indexers_product_flops(index_layers, pass_tokens, index_matrix_parameters):
    """FLOPs of the products of indexers with their weights in one pass through all layers, by pass; on every rank."""
    return 2 * index_layers * pass_tokens * index_matrix_parameters


@_only_chosen("indexers_time", "s")
def top_k_indexers_time(
    index_layers,
    index_matrix_parameters,
    pass_tokens,
    matrix_rate,
    library_efficiency,
    index_product_traffic,
    index_flops,
    index_rate,
    index_pass_traffic,
    index_scores,
    float32_size,
    achieved_hbm_bandwidth,
    launch_overhead,
):
    """Time of the indexers of one pass through all layers, by resource and pass.

    Two products with weights, rotation and 8-bit copies of queries and keys, scores, and the choice, which reads the
    scores that the kernel before it has written.
    """
    written = index_scores * float32_size
    products = roofline_shares(
        arithmetic=2 * pass_tokens * index_matrix_parameters / (matrix_rate * library_efficiency),
        hbm=index_product_traffic / achieved_hbm_bandwidth,
        launch=2 * launch_overhead,
    )
    scores = roofline_shares(
        arithmetic=index_flops / index_rate,
        hbm=(index_pass_traffic + written) / achieved_hbm_bandwidth,
        launch=2 * launch_overhead,
    )
    choice = roofline_shares(hbm=written / achieved_hbm_bandwidth, launch=launch_overhead)
    return index_layers * (products + scores + choice)


@_only_chosen("indexers_traffic", "byte")
def top_k_indexers_traffic(index_cache_size, index_contexts):
    """Keys of indexers that a decoding step of one group reads on one rank of each stage."""
    return index_cache_size * at(index_contexts, **{"pass": "decode"})


# ---- energy ---------------------------------------------------------------------------------------------------------


@_without("prefill_attention_energy", "J")
def dense_prefill_attention_energy(dense_attention_energy, attention_layers):
    """Energy of the attention of the prompts of one group in all layers, by resource."""
    return attention_layers * dense_attention_energy


@_chosen("prefill_attention_energy", "J")
def chosen_prefill_attention_energy(
    dense_attention_energy,
    chosen_attention_flops,
    chosen_attention_traffic,
    chosen_pairs,
    prefill_sequences,
    rank_query_heads,
    rank_cache_width,
    kept_element_size,
    flash_operations,
    unquantised_format_energy,
    half_precision_operation_energy,
    vector_operation_energy,
    l2_byte_energy,
    crossing_byte_energy,
    memory_access_energy,
    attention_layers,
    prompt_tokens,
    index_top_k,
    cp,
):
    """Energy of the attention of the prompts of one group in all layers, by resource: dense up to the chosen tokens."""
    pairs = prefill_sequences * chosen_pairs / cp
    softmax = pairs * rank_query_heads * (1 + at(flash_operations, phase="forward")) * vector_operation_energy
    gathered = pairs * rank_cache_width * kept_element_size
    sparse = energy.by_consumer(
        arithmetic=chosen_attention_flops * unquantised_format_energy * half_precision_operation_energy + softmax,
        l2=gathered * l2_byte_energy + chosen_attention_traffic * crossing_byte_energy,
        hbm=chosen_attention_traffic * memory_access_energy,
    )
    return attention_layers * xp.where(prompt_tokens > index_top_k, sparse, dense_attention_energy)


@_only_chosen("indexers_energy", "J")
def top_k_indexers_energy(
    index_layers,
    index_matrix_parameters,
    pass_tokens,
    index_flops,
    index_product_traffic,
    index_pass_traffic,
    index_scores,
    float32_size,
    format_energy,
    fp8_format_energy,
    half_precision_operation_energy,
    crossing_byte_energy,
    memory_access_energy,
):
    """Energy of the indexers of one pass through all layers, by resource and pass: operations and bytes."""
    products = 2 * pass_tokens * index_matrix_parameters * format_energy
    work = (products + index_flops * fp8_format_energy) * half_precision_operation_energy
    traffic = index_product_traffic + index_pass_traffic + 2 * index_scores * float32_size
    spent = energy.by_consumer(arithmetic=work, l2=traffic * crossing_byte_energy, hbm=traffic * memory_access_energy)
    return index_layers * spent
