"""Training with sparse attention (DeepSeek-V3.2): an indexer scores all earlier tokens, attention sees the chosen ones.

Attention multiplies queries with latents, which all heads share, and every token gathers its own choice of them. Its
backward pass has five products to the two of its forward pass; gradients of latents are added up in the cache. The
indexer learns from the attention of each token to its choice (Kullback-Leibler divergence), so that its backward pass
sees the chosen tokens alone; what it reads is detached, and its products have no gradients of inputs. Sequences of no
more tokens than are chosen are attended to as a whole. Tensor-parallel ranks each run the whole indexer. Not counted:
adding up, over tensor-parallel ranks, the attention that the indexer learns from.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.axes import only, table
from perfgrid.formulas.kernels import energy
from perfgrid.formulas.kernels.flash import side_by_side
from perfgrid.formulas.kernels.roofline import roofline_shares
from perfgrid.formulas.mixer_kinds import CHOSEN
from perfgrid.formulas.mixers.attended import triangle, windowed

INDEX_BYTES = 4.0  # of the place of a chosen token: a 32-bit integer


def _chosen(of, unit):
    return alternative(of=of, by="indexer", label=CHOSEN, unit=unit, source="deepseek2025v32")


def both_ways(forward, backward):
    """A quantity of the forward pass and of the whole backward pass, which stands as input gradient; by phase."""
    return table("phase", forward=forward, input_gradient=backward, weight_gradient=0.0)


# ---- pairs ----------------------------------------------------------------------------------------------------------


@formula(unit="1", source="deepseek2025v32")
def scored_pairs(sequence_length, attended_span, microbatch, sequence_split):
    """Pairs of tokens of a microbatch that the indexer of one rank scores: all under the causal mask."""
    return microbatch * sequence_length / attended_span * triangle(attended_span) / sequence_split


@formula(unit="1", source="deepseek2025v32")
def attended_pairs(sequence_length, attended_span, index_top_k, microbatch, sequence_split):
    """Pairs of a token of a microbatch on one rank and one that it chooses."""
    return microbatch * sequence_length / attended_span * windowed(attended_span, index_top_k) / sequence_split


@formula(unit="1", source="deepseek2025v32")
def indexer_share(index_layers, attention_layers):
    """Part of the layers with attention that runs an indexer of its own."""
    return index_layers / xp.maximum(attention_layers, 1.0)


# ---- attention to the chosen tokens ---------------------------------------------------------------------------------


@formula(unit="1", source="deepseek2025v32")
def sparse_core_heads(rank_query_width, query_head_width):
    """Query heads on one tensor-parallel rank."""
    return rank_query_width / query_head_width


@formula(unit="1", source="deepseek2025v32")
def sparse_core_flops(attended_pairs, sparse_core_heads, kv_lora_rank, qk_rope_head_dim):
    """FLOPs of attention to the chosen tokens on one rank, by phase: two products forward, five backward."""
    key, value = kv_lora_rank + qk_rope_head_dim, kv_lora_rank
    return 2 * attended_pairs * sparse_core_heads * both_ways(key + value, 3 * key + 2 * value)


@formula(unit="byte", source="deepseek2025v32")
def gathered_latents(attended_pairs, kv_lora_rank, qk_rope_head_dim, activation_size, float32_size):
    """Latents that tokens gather through the last-level cache, by phase; backward their gradients are added there."""
    return (
        attended_pairs * (kv_lora_rank + qk_rope_head_dim) * both_ways(activation_size, activation_size + float32_size)
    )


@formula(unit="byte", source="deepseek2025v32")
def sparse_core_traffic(microbatch_tokens, sparse_core_heads, kv_lora_rank, qk_rope_head_dim, activation_size):
    """Memory traffic of attention to the chosen tokens on one rank, by phase.

    Queries, results and latents; backward results and their gradients, queries, latents, and the gradients of both.
    """
    key, value = kv_lora_rank + qk_rope_head_dim, kv_lora_rank
    elements = both_ways(sparse_core_heads * (key + value) + key, sparse_core_heads * 2 * (key + value) + 2 * key)
    return microbatch_tokens * elements * activation_size


@formula(unit="s", source="deepseek2025v32")
def sparse_core_time(
    sparse_core_flops,
    unquantised_matrix_rate,
    attended_pairs,
    sparse_core_heads,
    score_softmax_time,
    hidden_softmax,
    gathered_latents,
    l2_bandwidth,
    sparse_core_traffic,
    achieved_hbm_bandwidth,
    launch_overhead,
):
    """Time of one layer's attention to the chosen tokens, by resource and phase."""
    softmax = attended_pairs * sparse_core_heads * score_softmax_time
    hidden = hidden_softmax * only("phase", "forward")
    return roofline_shares(
        arithmetic=side_by_side(sparse_core_flops / unquantised_matrix_rate, softmax, hidden),
        l2=gathered_latents / l2_bandwidth,
        hbm=sparse_core_traffic / achieved_hbm_bandwidth,
        launch=launch_overhead * both_ways(1.0, 3.0),
    )


# ---- the indexer ----------------------------------------------------------------------------------------------------


@formula(unit="1", source="deepseek2025v32")
def trained_index_flops(
    scored_pairs, attended_pairs, index_query_width, sparse_core_heads, kv_lora_rank, qk_rope_head_dim
):
    """FLOPs of the scores of one indexer on one rank, by phase: of all pairs; gradients, of the chosen ones.

    Backward the attention that it learns from is computed again, and scores, which have gradients of queries and keys.
    """
    target = sparse_core_heads * (kv_lora_rank + qk_rope_head_dim)
    return 2 * both_ways(scored_pairs * index_query_width, attended_pairs * (3 * index_query_width + target))


@formula(unit="1", source="deepseek2025v32")
def index_product_flops(microbatch_tokens, index_matrix_parameters):
    """FLOPs of the products of one indexer with its weights on one rank, by phase: no gradients of detached inputs."""
    passes = table("phase", forward=1.0, input_gradient=0.0, weight_gradient=1.0)
    return 2 * microbatch_tokens * index_matrix_parameters * passes


@formula(unit="byte", source="deepseek2025v32")
def trained_index_traffic(
    microbatch_tokens,
    index_query_width,
    index_key_width,
    scored_pairs,
    attended_pairs,
    activation_size,
    float32_size,
):
    """Memory traffic of one indexer on one rank, by phase: queries, keys, scores written and read to choose.

    Backward queries and keys with their gradients, and the scores of the chosen pairs.
    """
    operands = microbatch_tokens * (index_query_width + index_key_width) * activation_size
    return both_ways(operands + 2 * scored_pairs * float32_size, 2 * operands + 2 * attended_pairs * float32_size)


@formula(unit="s", source="deepseek2025v32")
def indexer_time(
    index_product_flops,
    matrix_rate,
    library_efficiency,
    trained_index_flops,
    index_rate,
    unquantised_matrix_rate,
    trained_index_traffic,
    achieved_hbm_bandwidth,
    launch_overhead,
):
    """Time of one indexer for one microbatch, by resource and phase: products with weights, scores, choice."""
    forward = only("phase", "forward")
    rate = index_rate * forward + unquantised_matrix_rate * (1 - forward)
    launches = table("phase", forward=5.0, input_gradient=2.0, weight_gradient=2.0)
    products = roofline_shares(arithmetic=index_product_flops / (matrix_rate * library_efficiency))
    scores = roofline_shares(
        arithmetic=trained_index_flops / rate,
        hbm=trained_index_traffic / achieved_hbm_bandwidth,
        launch=launches * launch_overhead,
    )
    return products + scores


# ---- in the place of attention to all tokens ------------------------------------------------------------------------


@_chosen("flash_time", "s")
def chosen_flash_time(dense_flash_time, sparse_core_time, indexer_share, indexer_time, attended_span, index_top_k):
    """Time of attention and of its indexer, mean of all layers with attention, by resource and phase."""
    return xp.where(attended_span > index_top_k, sparse_core_time, dense_flash_time) + indexer_share * indexer_time


@_chosen("flash_energy", "J")
def chosen_flash_energy(
    dense_flash_energy,
    sparse_core_flops,
    gathered_latents,
    sparse_core_traffic,
    indexer_share,
    index_product_flops,
    trained_index_flops,
    trained_index_traffic,
    attended_pairs,
    sparse_core_heads,
    flash_operations,
    unquantised_format_energy,
    half_precision_operation_energy,
    vector_operation_energy,
    l2_byte_energy,
    crossing_byte_energy,
    memory_access_energy,
    attended_span,
    index_top_k,
):
    """Energy of attention and of its indexer, mean of all layers with attention, by resource and phase."""
    operation = unquantised_format_energy * half_precision_operation_energy
    softmax = attended_pairs * sparse_core_heads * (both_ways(1.0, 1.0) + flash_operations) * vector_operation_energy
    core = energy.by_consumer(
        arithmetic=sparse_core_flops * operation + softmax,
        l2=gathered_latents * l2_byte_energy + sparse_core_traffic * crossing_byte_energy,
        hbm=sparse_core_traffic * memory_access_energy,
    )
    work = (index_product_flops + trained_index_flops) * operation
    index = energy.streamed(trained_index_traffic, crossing_byte_energy, memory_access_energy, work)
    return xp.where(attended_span > index_top_k, core, dense_flash_energy) + indexer_share * index


@_chosen("attended_length", "1")
def chosen_attended_length(
    dense_attended_length,
    sequence_length,
    index_top_k,
    heads,
    query_head_width,
    value_head_width,
    kv_lora_rank,
    qk_rope_head_dim,
    indexer_share,
    index_matrix_parameters,
    index_query_width,
):
    """Tokens whose full attention takes the FLOPs of indexer and attention to the chosen tokens, mean of a sequence.

    No causal mask is exploited. The products of the indexer with its weights are counted with it.
    """
    width = heads * (query_head_width + value_head_width)
    sparse = index_top_k * heads * (2 * kv_lora_rank + qk_rope_head_dim) / width
    attention = xp.where(sequence_length > index_top_k, sparse, dense_attended_length)
    return attention + indexer_share * (index_matrix_parameters + sequence_length * index_query_width) / width


@_chosen("causal_attended_length", "1")
def chosen_causal_attended_length(
    chosen_attended_length,
    dense_causal_attended_length,
    dense_attended_length,
    sequence_length,
    index_top_k,
    heads,
    query_head_width,
    value_head_width,
    kv_lora_rank,
    qk_rope_head_dim,
    indexer_share,
    index_query_width,
    causal,
):
    """The same under the mask: the first tokens choose among fewer, and the indexer scores half of all pairs."""
    width = heads * (query_head_width + value_head_width)
    kept = xp.minimum(index_top_k, sequence_length)
    unchosen = kept**2 / (2 * sequence_length) * heads * (2 * kv_lora_rank + qk_rope_head_dim) / width
    dense = dense_attended_length - dense_causal_attended_length
    unscored = indexer_share * sequence_length / 2 * index_query_width / width
    left_out = xp.where(sequence_length > index_top_k, unchosen, dense) + unscored
    return chosen_attended_length - xp.where(causal, left_out, 0.0)


@_chosen("cp_message", "byte")
def chosen_cp_message(
    microbatch, sequence_length, kv_lora_rank, qk_rope_head_dim, indexer_share, index_head_dim, activation_size
):
    """Latents, and keys of the indexer, of one microbatch that a context-parallel group gathers."""
    width = kv_lora_rank + qk_rope_head_dim + indexer_share * index_head_dim
    return microbatch * sequence_length * width * activation_size


@_chosen("rank_attention_parameters", "1")
def chosen_rank_attention_parameters(
    dense_rank_attention_parameters, indexer_share, index_matrix_parameters, index_head_dim
):
    """Weights of attention and indexer of one layer on one rank, which has all of the indexer with its norm."""
    return dense_rank_attention_parameters + indexer_share * (index_matrix_parameters + 2 * index_head_dim)


@_chosen("expanded_width", "1")
def chosen_expanded_width(
    dense_expanded_width,
    sparse_core_heads,
    kv_lora_rank,
    qk_nope_head_dim,
    qk_rope_head_dim,
    attended_span,
    index_top_k,
):
    """Elements of one token on one rank: queries before and after they absorb a matrix, and the results in latents."""
    absorbed = sparse_core_heads * (qk_nope_head_dim + 2 * kv_lora_rank + qk_rope_head_dim)
    return xp.where(attended_span > index_top_k, absorbed, dense_expanded_width)


@_chosen("latent_activations", "byte")
def chosen_latent_activations(
    dense_latent_activations,
    microbatch_tokens,
    attended_pairs,
    index_query_width,
    index_key_width,
    indexer_share,
    activation_size,
):
    """Latents, and what indexers keep, of one layer and microbatch: queries, keys, weights of heads, places chosen."""
    kept = microbatch_tokens * (index_query_width + index_key_width) * activation_size
    return dense_latent_activations + indexer_share * (kept + attended_pairs * INDEX_BYTES)


# ---- what is possible -----------------------------------------------------------------------------------------------


@constraint(
    reason="sparse attention over context-parallel ranks gathers keys: cp_method must be all_gather",
    source="deepseek2025v32",
    about="scored_pairs",
)
def indexers_see_all_keys(index_layers, cp, sequence_split, ring_passes):
    """Each rank scores all earlier tokens for its own: keys are gathered."""
    return (index_layers == 0) | ((sequence_split == cp) & (ring_passes <= 1))


@constraint(
    reason="sparse attention runs in a fused kernel: flash_attention must be true",
    source="deepseek2025v32",
    about="scored_pairs",
)
def chosen_tokens_are_fused(index_layers, unfused):
    """Scores of attention to chosen tokens are never written."""
    return (index_layers == 0) | (unfused == 0)
