"""Attention and streaming kernels of inference.

The prefill runs the fused kernel of `flash` on whole prompts. A decoding step reads the cache of every sequence once;
the cache is cut along the context until all cores read (split keys, Dao 2023), and the queries that share a key head,
or the latent, are one matrix product, padded to the rows of a matrix instruction.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constant, formula, synonyms
from perfgrid.formulas.axes import at, only, table, total
from perfgrid.formulas.kernels.flash import side_by_side
from perfgrid.formulas.kernels.gemm import INSTRUCTION_ROWS
from perfgrid.formulas.kernels.roofline import roofline_shares
from perfgrid.formulas.kernels.tiling import whole
from perfgrid.formulas.transformer.attention import seen_by_mask

FORMULAS = synonyms(
    {
        "sequence_length": ("prompt_tokens", "1", "dao2022flash", "Tokens that the fused kernel sees: the prompt."),
        "attended_span": ("prompt_tokens", "1", "dao2022flash", "Tokens that attend to each other: of one prompt."),
        "sequence_split": ("cp", "1", "liu2023ring", "Ranks that share the queries of a head."),
        "ring_passes": ("cp", "1", "liu2023ring", "Passes in which a rank attends to all keys and values of a prompt."),
    },
    workload="inference",
)


@constant(unit="FLOP", source="williams2009roofline")
def one_flop():
    """One floating-point operation."""
    return 1.0


# ---- the fused kernel in the prefill --------------------------------------------------------------------------------


@alternative(of="kernel_heads", by="workload", label="inference", unit="1", source="shoeybi2019megatron")
def serving_kernel_heads(prefill_sequences, rank_query_heads):
    """Query heads of the prompts of one group on one rank."""
    return prefill_sequences * rank_query_heads


@alternative(of="kernel_key_heads", by="workload", label="inference", unit="1", source="ainslie2023gqa")
def serving_kernel_key_heads(prefill_sequences, rank_key_heads):
    """Key heads of the prompts of one group on one rank: of a latent, those that are multiplied up."""
    return prefill_sequences * rank_key_heads


def scores_by_mask(tokens, window, chunked_window):
    """Scores of the first ``tokens`` of a prompt, by mask: t²/2 under the causal one; tw - w²/2, or w²/2 a chunk."""
    span = xp.maximum(window, 1.0)
    first, chunks = xp.minimum(tokens, span), xp.floor(tokens / span)
    in_window = first**2 / 2 + (tokens - first) * span
    in_chunks = (chunks * span**2 + (tokens - chunks * span) ** 2) / 2
    return table("mask", whole=tokens**2 / 2, window=xp.where(chunked_window, in_chunks, in_window))


@formula(unit="1", source="zheng2024sglang")
def uncached_share(prompt_tokens, computed_prompt_tokens, window, chunked_window, mask_share):
    """Part of the scores of a prompt that are computed, mean of all layers: 1 - c²/p² of whole ones, c of p cached."""
    prompt = xp.maximum(prompt_tokens, computed_prompt_tokens)
    every, cached = (
        total(mask_share * scores_by_mask(tokens, window, chunked_window), "mask")
        for tokens in (prompt, prompt - computed_prompt_tokens)
    )
    return 1 - cached / every


@formula(unit="byte", source="zheng2024sglang")
def prefix_traffic(
    prompt_tokens,
    computed_prompt_tokens,
    window,
    chunked_window,
    mask_share,
    rank_cache_width,
    kept_element_size,
    prefill_sequences,
    prefill_passes,
    cp,
):
    """Cache of earlier prompts and passes that the prompts of one group read in one layer on one rank.

    Every pass reads as much of it as its first token sees beside itself; a prompt in n passes leaves 0 to n - 1 parts
    of n to read, (n - 1)/2 on average.
    """
    passes = xp.maximum(prefill_passes / prefill_sequences, 1.0)
    before = xp.maximum(prompt_tokens - computed_prompt_tokens, 0.0)
    earlier = before + computed_prompt_tokens * (passes - 1) / (2 * passes)
    seen = seen_by_mask(earlier + 1, window, chunked_window) - 1
    reads = passes * prefill_sequences
    return reads * total(seen * mask_share, "mask") * rank_cache_width * kept_element_size / cp


@formula(unit="s", source="dao2023flash2")
def dense_attention_time(dense_flash_time, uncached_share, prefix_traffic, achieved_hbm_bandwidth):
    """Time of one layer's attention to all tokens of the prompts of a group, by resource: at least reading keys."""
    computed = uncached_share * at(dense_flash_time, phase="forward")
    waits = xp.maximum(prefix_traffic / achieved_hbm_bandwidth - total(computed, "resource"), 0.0)
    return computed + waits * only("resource", "hbm")


# ---- decoding -------------------------------------------------------------------------------------------------------


@formula(unit="1", source="deepseek2024v2")
def rank_cache_width(latent_attention, cached_latent_width, rank_key_width, rank_value_width):
    """Elements that one token leaves in the cache of one layer on one rank; a latent is held by every rank."""
    return xp.where(latent_attention > 0, cached_latent_width, rank_key_width + rank_value_width)


@formula(unit="1", source="pope2022inference")
def rank_context(attended_context, cp):
    """Tokens of these that one rank holds: context-parallel ranks share out the cache, by mask and position."""
    return attended_context / cp


@formula(unit="byte", source="pope2022inference")
def decode_cache_traffic(group_batch, rank_context, rank_cache_width, kept_element_size):
    """Cache of one layer that a decoding step of one group reads on one rank, by mask and position."""
    return group_batch * rank_context * rank_cache_width * kept_element_size


@formula(unit="1", source="ainslie2023gqa")
def cache_reads(shared_queries, queries_share_cache):
    """How often a step reads an element of the cache: once, or for every query where a kernel knows no groups."""
    return xp.where(queries_share_cache, 1.0, shared_queries)


@formula(unit="1", source="ainslie2023gqa")
def shared_queries(latent_attention, rank_query_heads, rank_key_heads, step_tokens):
    """Queries of one sequence that read the same cached elements."""
    heads = xp.where(latent_attention > 0, rank_query_heads, rank_query_heads / rank_key_heads)
    return heads * step_tokens


@formula(unit="1", source="dao2023flash2")
def padded_queries(shared_queries):
    """Queries that read the same elements, padded to whole matrix instructions."""
    return whole(shared_queries, INSTRUCTION_ROWS)


@formula(unit="FLOP", source="deepseek2024v2")
def decode_attention_flops(
    group_batch, rank_context, shared_queries, latent_attention, rank_cache_width, kv_lora_rank, one_flop
):
    """Floating-point work of one layer's attention in a decoding step of one group, by mask and position."""
    width = rank_cache_width + xp.where(latent_attention > 0, kv_lora_rank, 0.0)
    return 2 * group_batch * rank_context * shared_queries * width * one_flop


@formula(unit="s", source="guo2025")
def decode_softmax_time(group_batch, rank_context, rank_query_heads, step_tokens, score_softmax_time):
    """Time of exponentials, scaling and reductions of one layer's attention in a step, by mask and position."""
    scores = group_batch * rank_context * rank_query_heads * step_tokens
    return scores * at(score_softmax_time, phase="forward")


@formula(unit="1", source="dao2023flash2")
def decode_attention_launches(group_batch, rank_key_heads, latent_attention, cores, split_attention_kernels):
    """Kernels of one layer's attention in a decoding step: a second one may add up what parts of the cache give.

    The cache is split along the context where sequences and key heads are fewer than the cores.
    """
    tasks = group_batch * xp.where(latent_attention > 0, 1.0, rank_key_heads)
    return xp.where(tasks < cores, split_attention_kernels, 1.0)


@formula(unit="s", source="dao2023flash2")
def decode_attention_chip_time(
    decode_attention_flops,
    padded_queries,
    shared_queries,
    decode_softmax_time,
    hidden_softmax,
    unquantised_matrix_rate,
):
    """Time of scores, softmax and context of one layer in a decoding step, by mask and position."""
    padded = decode_attention_flops * padded_queries / shared_queries
    return side_by_side(padded / unquantised_matrix_rate, decode_softmax_time, hidden_softmax)


@formula(unit="s", source="pope2022inference")
def decode_cache_time(decode_cache_traffic, cache_reads, achieved_hbm_bandwidth):
    """Time to read the cache of one layer in a decoding step, by mask and position."""
    return decode_cache_traffic * cache_reads / achieved_hbm_bandwidth


@formula(unit="s", source="williams2009roofline")
def decode_attention_time(
    decode_attention_chip_time,
    decode_cache_time,
    launch_overhead,
    decode_attention_launches,
    mask_share,
    position_weight,
    attention_layers,
):
    """Time of the attention of one decoding step in all layers, mean over the positions, by resource."""
    kernel = roofline_shares(
        arithmetic=decode_attention_chip_time,
        hbm=decode_cache_time,
        launch=launch_overhead * decode_attention_launches,
    )
    return attention_layers * total(total(kernel * mask_share, "mask") * position_weight, "position")


@formula(unit="s", source="pope2022inference")
def attention_time(
    prefill_attention_time,
    prefill_passes,
    decode_attention_time,
    mixed_iterations,
    launch_overhead,
    attention_layers,
):
    """Time of the attention of one pass through all layers, by resource and pass."""
    launches = attention_layers * launch_overhead * (1 - 1 / prefill_passes) * only("resource", "launch")
    prompts = prefill_attention_time / prefill_passes + launches
    return table("pass", prefill=prompts + mixed_iterations * decode_attention_time, decode=decode_attention_time)


# ---- streaming kernels ----------------------------------------------------------------------------------------------


@formula(unit="1", source="korthikanti2022")
def serving_stream_elements(
    pass_tokens,
    pass_sequences,
    hidden_size,
    looked_up_width,
    expert_width,
    rank_query_width,
    rank_cache_width,
    rank_ffn_size,
    rank_shared_size,
    expert_ffn_size,
    experts_per_token,
    moe_share,
    etp,
    rank_vocab_size,
    q_lora_rank,
    kv_lora_rank,
    quantised_width,
    rank_expanded_width,
):
    """Elements that each streaming kernel processes on one rank, by pass and serving_stream.

    Rotary: queries, and what is appended to the cache. Activation: mean of dense layers and those with experts. Shared
    experts: their results are added to those of routed ones.
    """
    expert = rank_shared_size + expert_ffn_size * experts_per_token / etp
    return table(
        "serving_stream",
        norm=pass_tokens * hidden_size,
        latent_norm=pass_tokens * (q_lora_rank + kv_lora_rank),
        rotary=pass_tokens * (rank_query_width + rank_cache_width),
        latent_keys=pass_tokens * rank_expanded_width,
        quantising=pass_tokens * quantised_width,
        activation=pass_tokens * (rank_ffn_size * (1 - moe_share) + expert * moe_share),
        routing=pass_tokens * xp.maximum(experts_per_token, 1.0) * expert_width,
        shared_experts=pass_tokens * expert_width,
        embedding=pass_tokens * looked_up_width,
        sampling=pass_sequences * rank_vocab_size,
    )


@formula(unit="byte", source="korthikanti2022")
def serving_stream_size(
    activation_size,
    operand_size,
    conversion_size,
    quantised_norms,
    apart_share,
    float32_size,
    ffn_input_matrices,
    fused_streams,
):
    """Bytes read and written per element, by serving_stream.

    A norm adds the branch to the residual first (reads two, writes the sum and the operand of the next product);
    routing copies tokens to their experts and adds the results up. Where streams are not fused the residual addition
    (3), the norm (2) and each factor of an activation (2, then 3) are kernels of their own.
    """
    a = activation_size
    rounded = (1 - apart_share) * quantised_norms  # norms that write the format of the next product
    operand = rounded * operand_size + (1 - rounded) * a
    written = (1 - apart_share) * operand_size + apart_share * a
    return table(
        "serving_stream",
        norm=xp.where(fused_streams, 3 * a + operand, 5 * a),
        latent_norm=2 * a,
        rotary=2 * a,
        latent_keys=2 * a,
        quantising=conversion_size,
        activation=xp.where(fused_streams, ffn_input_matrices * a + written, (3 * ffn_input_matrices - 1) * a),
        routing=a + 2 * operand_size + a,
        shared_experts=3 * a,
        embedding=2 * a,
        sampling=a + 2 * float32_size,
    )


@formula(unit="1", source="nvidia2023trtllm")
def serving_stream_launches(quantising_launches, routing_launches, fused_streams, ffn_input_matrices):
    """Kernels that each streaming kernel consists of, by serving_stream.

    Routing: choice of experts, sorting, copying, adding up. Shared experts: their activation, adding up. Latent norms:
    of queries, and of keys and values. Latent keys, in the prefill: copies of both parts. Sampling: penalties, largest
    logits, choice, stop check.
    """
    return table(
        "serving_stream",
        norm=xp.where(fused_streams, 1.0, 2.0),
        latent_norm=2.0,
        rotary=1.0,
        latent_keys=2.0,
        quantising=quantising_launches,
        activation=xp.where(fused_streams, 1.0, ffn_input_matrices),
        routing=routing_launches,
        shared_experts=2.0,
        embedding=1.0,
        sampling=4.0,
    )


@formula(unit="1", source="pope2022inference")
def serving_stream_count(
    layers,
    layer_blocks,
    attention_layers,
    ffn_free_layers,
    moe_layers,
    latent_attention,
    shared_experts,
    quantising_launches,
):
    """How often each streaming kernel runs in one pass through all layers, by pass and serving_stream."""
    return table(
        "serving_stream",
        norm=layers * layer_blocks + 1,
        latent_norm=latent_attention * attention_layers,
        rotary=attention_layers,
        latent_keys=latent_attention * attention_layers * only("pass", "prefill"),
        quantising=xp.where(quantising_launches > 0, layers, 0.0),
        activation=layers - ffn_free_layers,
        routing=moe_layers,
        shared_experts=xp.where(shared_experts > 0, moe_layers, 0.0),
        embedding=1.0,
        sampling=1.0,
    )


@formula(unit="s", source="williams2009roofline")
def serving_stream_time(
    serving_stream_elements, serving_stream_size, serving_stream_launches, achieved_hbm_bandwidth, launch_overhead
):
    """Time of each streaming kernel, by resource, pass and serving_stream."""
    return roofline_shares(
        hbm=serving_stream_elements * serving_stream_size / achieved_hbm_bandwidth,
        launch=launch_overhead * serving_stream_launches,
    )


@formula(unit="s", source="williams2009roofline")
def streams_time(serving_stream_time, serving_stream_count):
    """Time of all streaming kernels of one pass through all layers, by resource and pass."""
    return total(serving_stream_time * serving_stream_count, "serving_stream")
