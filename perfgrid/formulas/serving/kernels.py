"""Attention and streaming kernels of inference.

The prefill runs the fused kernel of `flash` on whole prompts. A decoding step reads the cache of every sequence once;
the cache is cut along the context until all cores read (split keys, Dao 2023), and the queries that share a key head,
or the latent, are one matrix product, padded to the rows of a matrix instruction.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula, synonyms
from perfgrid.formulas.axes import at, only, table, total
from perfgrid.formulas.kernels.flash import side_by_side
from perfgrid.formulas.kernels.roofline import roofline_shares
from perfgrid.formulas.kernels.tiling import INSTRUCTION_ROWS, whole
from perfgrid.formulas.transformer.attention import seen_by_mask

from .latency import with_steps

FORMULAS = synonyms(
    {
        "sequence_length": ("prompt_tokens", "1", "dao2022flash", "Tokens that the fused kernel sees: the prompt."),
        "attended_span": ("prompt_tokens", "1", "dao2022flash", "Tokens that attend to each other: of one prompt."),
        "sequence_split": ("cp", "1", "liu2023ring", "Ranks that share the queries of a head."),
        "ring_passes": ("cp", "1", "liu2023ring", "Passes in which a rank attends to all keys and values of a prompt."),
    },
    workload="inference",
)


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


@formula(unit="1", source="zheng2024sglang")
def prefix_tokens(cached_prompt_tokens, computed_prompt_tokens, own_passes, window, chunked_window, mask_share):
    """Tokens of earlier prompts and passes whose keys and values those of one prompt read in one layer.

    Every pass reads as many of them as its first token sees beside itself; a prompt in n passes leaves 0 to n - 1 parts
    of n to read, (n - 1)/2 on average.
    """
    earlier = cached_prompt_tokens + computed_prompt_tokens * (own_passes - 1) / (2 * own_passes)
    seen = seen_by_mask(earlier + 1, window, chunked_window) - 1
    return own_passes * total(seen * mask_share, "mask")


@formula(unit="byte", source="zheng2024sglang")
def prefix_traffic(prefill_sequences, prefix_tokens, layer_token_cache, cp):
    """Cache of earlier prompts and passes that the prompts of one group read in one layer on one rank."""
    return prefill_sequences * prefix_tokens * layer_token_cache / cp


@formula(unit="s", source="dao2023flash2")
def dense_attention_time(dense_flash_time, uncached_share, prefix_traffic, achieved_hbm_bandwidth, attention_layers):
    """Time of the attention of the prompts of a group to all their tokens, by resource: at least reading keys.

    Launches do not become fewer where a cache holds part of a prompt.
    """
    share = uncached_share + (1 - uncached_share) * only("resource", "launch")
    computed = share * at(dense_flash_time, phase="forward")
    waits = xp.maximum(prefix_traffic / achieved_hbm_bandwidth - total(computed, "resource"), 0.0)
    return attention_layers * (computed + waits * only("resource", "hbm"))


# ---- decoding -------------------------------------------------------------------------------------------------------
# All that a step does with a token of the cache is the same for each: its time is one token's times those it reads.


@formula(unit="1", source="deepseek2024v2")
def rank_cache_width(latent_attention, kv_lora_rank, qk_rope_head_dim, rank_key_width, rank_value_width):
    """Elements that one token leaves in the cache of one layer on one rank; a latent and its rotary key on all."""
    return xp.where(latent_attention > 0, kv_lora_rank + qk_rope_head_dim, rank_key_width + rank_value_width)


@formula(unit="byte", source="pope2022inference")
def layer_token_cache(rank_cache_width, kept_element_size):
    """Bytes that one token leaves in the cache of one layer on one rank."""
    return rank_cache_width * kept_element_size


@formula(unit="1", source="pope2022inference")
def read_tokens(group_batch, attended_context, mask_share, position_weight, cp):
    """Tokens of the cache that a decoding step of one group reads in a layer on one rank, mean of layers and positions.

    Context-parallel ranks share out the cache.
    """
    return group_batch * total(total(attended_context * mask_share, "mask") * position_weight, "position") / cp


@formula(unit="1", source="ainslie2023gqa")
def shared_queries(latent_attention, rank_query_heads, rank_key_heads, step_tokens):
    """Queries of one sequence that read the same cached elements."""
    heads = xp.where(latent_attention > 0, rank_query_heads, rank_query_heads / rank_key_heads)
    return heads * step_tokens


@formula(unit="FLOP", source="deepseek2024v2")
def read_token_flops(shared_queries, latent_attention, rank_cache_width, kv_lora_rank):
    """Operations of scores and context for one token that a step reads: 2 an element of its key and of its value."""
    return 2 * shared_queries * (rank_cache_width + xp.where(latent_attention > 0, kv_lora_rank, 0.0))


@formula(unit="byte", source="ainslie2023gqa")
def read_token_traffic(layer_token_cache, shared_queries, queries_share_cache):
    """Bytes that a step reads of one token: once, or for every query where a kernel knows no groups of queries."""
    return layer_token_cache * xp.where(queries_share_cache, 1.0, shared_queries)


@formula(unit="s", source="dao2023flash2, guo2025")
def read_token_chip_time(
    read_token_flops,
    shared_queries,
    unquantised_matrix_rate,
    rank_query_heads,
    step_tokens,
    score_softmax_time,
    hidden_softmax,
):
    """Time of scores, softmax and context for one token that a step reads.

    The queries that share it are padded to whole matrix instructions.
    """
    products = read_token_flops * whole(shared_queries, INSTRUCTION_ROWS) / shared_queries / unquantised_matrix_rate
    softmax = rank_query_heads * step_tokens * at(score_softmax_time, phase="forward")
    return side_by_side(products, softmax, hidden_softmax)


@formula(unit="1", source="dao2023flash2")
def decode_attention_launches(group_batch, rank_key_heads, latent_attention, cores, split_attention_kernels):
    """Kernels of one layer's attention in a decoding step: a second one may add up what parts of the cache give.

    The cache is split along the context where sequences and key heads are fewer than the cores.
    """
    tasks = group_batch * xp.where(latent_attention > 0, 1.0, rank_key_heads)
    return xp.where(tasks < cores, split_attention_kernels, 1.0)


@formula(unit="s", source="pope2022inference")
def decode_attention_time(
    read_tokens,
    read_token_chip_time,
    read_token_traffic,
    achieved_hbm_bandwidth,
    decode_attention_launches,
    launch_overhead,
    attention_layers,
):
    """Time of the attention of one decoding step in all layers, mean over the positions, by resource."""
    each = roofline_shares(arithmetic=read_token_chip_time, hbm=read_token_traffic / achieved_hbm_bandwidth)
    launches = launch_overhead * decode_attention_launches * only("resource", "launch")
    return attention_layers * (read_tokens * each + launches)


@formula(unit="s", source="pope2022inference")
def attention_time(
    prefill_attention_time, prefill_passes, decode_attention_time, mixed_iterations, launch_overhead, attention_layers
):
    """Time of the attention of one pass through all layers, by resource and pass."""
    launches = attention_layers * launch_overhead * (1 - 1 / prefill_passes) * only("resource", "launch")
    return with_steps(prefill_attention_time / prefill_passes + launches, decode_attention_time, mixed_iterations)


# ---- streaming kernels ----------------------------------------------------------------------------------------------


@formula(unit="1", source="shazeer2020glu, dai2024deepseekmoe")
def activated_width(rank_ffn_size, rank_shared_ffn_size, expert_ffn_size, experts_per_token, etp, moe_share):
    """Results of activations of one token on one rank, mean of dense layers and those with experts."""
    experts = rank_shared_ffn_size + expert_ffn_size * experts_per_token / etp
    return rank_ffn_size * (1 - moe_share) + experts * moe_share


@formula(unit="1", source="korthikanti2022")
def serving_stream_width(
    hidden_size,
    looked_up_width,
    expert_width,
    rank_query_width,
    rank_cache_width,
    activated_width,
    experts_per_token,
    rank_vocab_size,
    q_lora_rank,
    kv_lora_rank,
    quantised_width,
    rank_expanded_width,
):
    """Elements of one token that each streaming kernel processes on one rank, by serving_stream.

    Rotary: queries, and what is appended to the cache. Shared experts: their results are added to those of routed ones.
    """
    return table(
        "serving_stream",
        norm=hidden_size,
        latent_norm=q_lora_rank + kv_lora_rank,
        rotary=rank_query_width + rank_cache_width,
        latent_keys=rank_expanded_width,
        quantising=quantised_width,
        activation=activated_width,
        routing=xp.maximum(experts_per_token, 1.0) * expert_width,
        shared_experts=expert_width,
        embedding=looked_up_width,
        sampling=rank_vocab_size,
    )


@formula(unit="byte", source="korthikanti2022")
def serving_stream_size(
    activation_size,
    operand_size,
    scaling_reads,
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
        quantising=xp.where(operand_size < a, scaling_reads * a + operand_size, 0.0),
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
    layers, layer_blocks, attention_layers, ffn_share, moe_layers, latent_attention, shared_experts, quantising_launches
):
    """How often each streaming kernel runs in one pass through all layers, by pass and serving_stream."""
    return table(
        "serving_stream",
        norm=layers * layer_blocks + 1,
        latent_norm=latent_attention * attention_layers,
        rotary=attention_layers,
        latent_keys=latent_attention * attention_layers * only("pass", "prefill"),
        quantising=xp.where(quantising_launches > 0, layers, 0.0),
        activation=layers * ffn_share,
        routing=moe_layers,
        shared_experts=xp.where(shared_experts > 0, moe_layers, 0.0),
        embedding=1.0,
        sampling=1.0,
    )


@formula(unit="byte", source="williams2009roofline")
def serving_stream_traffic(pass_tokens, pass_sequences, serving_stream_width, serving_stream_size):
    """Bytes that each streaming kernel reads and writes, by pass and serving_stream: last tokens are sampled."""
    sampled = only("serving_stream", "sampling")
    return (pass_tokens * (1 - sampled) + pass_sequences * sampled) * serving_stream_width * serving_stream_size


@formula(unit="s", source="williams2009roofline")
def serving_stream_time(serving_stream_traffic, serving_stream_launches, achieved_hbm_bandwidth, launch_overhead):
    """Time of each streaming kernel, by resource, pass and serving_stream."""
    launches = launch_overhead * serving_stream_launches
    return roofline_shares(hbm=serving_stream_traffic / achieved_hbm_bandwidth, launch=launches)


@formula(unit="byte", source="williams2009roofline")
def streams_traffic(serving_stream_traffic, serving_stream_count):
    """Bytes of all streaming kernels of one pass through all layers, by pass."""
    return total(serving_stream_traffic * serving_stream_count, "serving_stream")


@formula(unit="s", source="williams2009roofline")
def streams_time(
    streams_traffic, serving_stream_launches, serving_stream_count, achieved_hbm_bandwidth, launch_overhead
):
    """Time of all streaming kernels of one pass through all layers, by resource and pass."""
    launches = launch_overhead * total(serving_stream_launches * serving_stream_count, "serving_stream")
    return roofline_shares(hbm=streams_traffic / achieved_hbm_bandwidth, launch=launches)
