"""Device memory in serving: weights, key-value cache, working space; and the largest batch that fits."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.axes import at, only, table, total
from perfgrid.formulas.transformer.attention import seen_by_mask

from .batching import CHOSEN, STATES
from .latency import in_pass

MXFP4 = 4.25 / 32  # size of an element with its part of a scale over that of float32

# ---- weights --------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="pope2022inference")
def product_weight_memory(gemm_depth, gemm_columns, gemm_batch, gemm_weight_size, product_count):
    """Weights of each product in all layers on the ranks of one pipeline, by product.

    The absorbed products of a decoding step read every weight once.
    """
    return in_pass(gemm_batch * gemm_depth * gemm_columns * product_count, "decode") * gemm_weight_size


@formula(unit="byte", source="pope2022inference")
def stack_weight_memory(product_weight_memory):
    """Weights of all layers on the ranks of one pipeline, without routed experts and the head."""
    return total(product_weight_memory * (1 - only("product", "logits")), "product")


@formula(unit="1", source="vllm2026mxfp4")
def expert_padding(expert_ffn_size, etp, expert_weight_size, float32_size, padded_expert_width):
    """Width of experts in memory over that of the model: engines pad those in MXFP4 to whole tiles of their kernels.

    Measured without tensor parallelism of experts. Time is not changed.
    """
    width = xp.maximum(expert_ffn_size / etp, 1.0)
    padded = xp.ceil(width / xp.maximum(padded_expert_width, 1.0)) * padded_expert_width / width
    mxfp4 = xp.abs(expert_weight_size / float32_size - MXFP4) < 1e-3
    return xp.where((padded_expert_width > 0) & mxfp4, padded, 1.0)


@formula(unit="byte", source="lepikhin2021gshard")
def expert_weight_memory(rank_expert_parameters, moe_layers, expert_weight_size, experts, ep, expert_padding):
    """Weights of the routed experts of all layers on the ranks of one pipeline.

    Where ep does not divide the experts some have a second copy.
    """
    each = xp.maximum(experts, 1.0) / ep
    copies = xp.where(experts > 0, xp.ceil(each * (1 - 1e-9)) / each, 1.0)
    return moe_layers * rank_expert_parameters * copies * expert_padding * expert_weight_size


@formula(unit="byte", source="shoeybi2019megatron")
def vocabulary_memory(rank_vocab_size, hidden_size, looked_up_width, part_weight_size, tied_embeddings, pp):
    """Embeddings and head on one rank of the fullest stage: both without a pipeline, one of them with it."""
    embedding, head = (at(part_weight_size, weight_part=part) for part in ("embedding", "head"))
    of_head = xp.where(tied_embeddings | (pp > 1), 0.0, hidden_size * head)
    return rank_vocab_size * (looked_up_width * embedding + of_head)


@formula(unit="byte", source="pope2022inference")
def weight_memory(
    stack_weight_memory, expert_weight_memory, index_weight_memory, vocabulary_memory, stage_share, stage_expert_share
):
    """Weights on one device of the fullest stage."""
    layers = (stack_weight_memory + index_weight_memory) * stage_share
    return layers + expert_weight_memory * stage_expert_share + vocabulary_memory


@formula(unit="1", source="narayanan2021")
def stage_share(layers, pp):
    """Part of the layers in the fullest stage."""
    return xp.ceil(layers / pp) / layers


@formula(unit="1", source="lepikhin2021gshard")
def stage_expert_share(layers, pp, moe_layers, expert_layer_step):
    """Part of the layers with experts in the stage that has most: of as many layers that follow each other."""
    most = xp.ceil(xp.ceil(layers / pp) / xp.maximum(expert_layer_step, 1.0))
    return xp.minimum(most / xp.maximum(moe_layers, 1.0), 1.0)


# ---- key-value cache ------------------------------------------------------------------------------------------------


@formula(unit="1", source="brandon2024cla")
def caching_layers(attention_layers, shared_key_layers):
    """Layers that leave keys and values in the cache: layers with attention that do not use those of another one.

    Windows are taken to be as frequent among them as among all layers with attention (Gemma 3n: 16 of 20, 28 of 35).
    """
    return attention_layers - shared_key_layers


@formula(unit="byte", source="kwon2023vllm")
def key_value_size_per_token(key_value_cache_width, kept_element_size, caching_layers, index_cache_size):
    """Cache of one token in all layers of the model, whole (a window not counted), with keys of indexers."""
    return caching_layers * key_value_cache_width * kept_element_size + index_cache_size


def in_pages(held, window, page_tokens):
    """Places of so many tokens in the cache of a layer, in whole pages, by mask."""
    tokens = table("mask", whole=held, window=xp.minimum(held, xp.maximum(window, 1.0)))
    return xp.ceil(tokens / page_tokens) * page_tokens


@formula(unit="1", source="kwon2023vllm")
def cached_tokens(longest_context, shared_prefix_tokens, cache_slot_tokens, window, page_tokens):
    """Places of one sequence in the cache of a layer when it ends, in whole pages or its whole slot, by mask.

    What it shares with all others is held apart.
    """
    own = xp.maximum(longest_context - shared_prefix_tokens, 1.0)
    return in_pages(xp.maximum(own, cache_slot_tokens), window, page_tokens)


@formula(unit="byte", source="kwon2023vllm")
def rank_token_cache(mask_share, layer_token_cache, caching_layers, index_cache_size, stage_share, cp):
    """What a token leaves in the cache of one device of the fullest stage, by mask: keys, values, keys of indexers."""
    keys = caching_layers * mask_share * layer_token_cache
    return (keys + index_cache_size * only("mask", "whole")) * stage_share / cp


@formula(unit="byte", source="kwon2023vllm")
def rank_prompt_cache(prompt_tokens, window, chunked_window, rank_token_cache, sequence_state_size, stage_share):
    """Cache of one prompt and its recurrent states on one device of the fullest stage, windows counted."""
    kept = seen_by_mask(prompt_tokens, window, chunked_window)
    return total(kept * rank_token_cache, "mask") + stage_share * sequence_state_size


@formula(unit="byte", source="kwon2023vllm")
def sequence_key_value_memory(cached_tokens, rank_token_cache):
    """Keys and values of one sequence, and keys of indexers, on one device of the fullest stage when it ends."""
    return total(cached_tokens * rank_token_cache, "mask")


@formula(unit="byte", source="zheng2024sglang")
def shared_prefix_memory(shared_prefix_tokens, window, page_tokens, rank_token_cache):
    """Keys and values of the prefix that all prompts share, held once, on one device of the fullest stage."""
    return total(in_pages(shared_prefix_tokens, window, page_tokens) * rank_token_cache, "mask")


@formula(unit="byte", source="kwon2023vllm")
def sequence_cache_memory(sequence_key_value_memory, sequence_state_size, stage_share):
    """Cache and recurrent states of one sequence on one device of the fullest stage when it ends."""
    return sequence_key_value_memory + stage_share * sequence_state_size


# ---- working space --------------------------------------------------------------------------------------------------


@alternative(of="largest_pass_tokens", by="batch_rule", label=STATES, unit="1", source="agrawal2024sarathi")
def LABEL_largest_pass_tokens(prefill_chunk_tokens, computed_prompt_tokens, batch, dp, cp):
    """Tokens of the largest pass that working space is kept for: that of the prefill of the stated batch."""
    return xp.minimum(prefill_chunk_tokens, computed_prompt_tokens * xp.maximum(batch / dp, 1.0) / cp)


@alternative(of="largest_pass_tokens", by="batch_rule", label=CHOSEN, unit="1", source="agrawal2024sarathi")
def LABEL_limit_pass_tokens(prefill_chunk_tokens, computed_prompt_tokens, batch_limit, cp):
    """Tokens of the largest pass that working space is kept for."""
    return xp.minimum(prefill_chunk_tokens, computed_prompt_tokens * batch_limit / cp)


@formula(unit="byte", source="korthikanti2022")
def pass_activation_memory(
    largest_pass_tokens,
    hidden_size,
    expert_width,
    rank_query_width,
    rank_key_width,
    rank_value_width,
    rank_ffn_size,
    ffn_input_matrices,
    experts_per_token,
    activation_size,
):
    """Activations of the largest pass on one rank: residual, its norm, and the widest block.

    With experts every token has a copy for each expert.
    """
    attention = rank_query_width + rank_key_width + rank_value_width
    widest = xp.maximum(attention, rank_ffn_size * (ffn_input_matrices + 1))
    routed = 2 * xp.maximum(experts_per_token, 0.0) * expert_width
    return largest_pass_tokens * (2 * hidden_size + widest + routed) * activation_size


@formula(unit="byte", source="vllm2026memory")
def sampler_memory(sampled_sequences, batch_limit, vocab_size, sampler_logit_size):
    """What choosing the next tokens takes on one rank: logits over the whole vocabulary, and what is made of them."""
    return xp.where(sampled_sequences > 0, sampled_sequences, batch_limit) * vocab_size * sampler_logit_size


@formula(unit="byte", source="vllm2026memory")
def workspace_memory(pass_activation_memory, sampler_memory):
    """Working space of one rank: that of the largest pass, or of the sampler after it, when activations are gone."""
    return xp.maximum(pass_activation_memory, sampler_memory)


@formula(unit="byte", source="kwon2023vllm")
def cache_room(
    hbm_capacity,
    weight_memory,
    workspace_memory,
    reserved_memory,
    cache_fraction,
    memory_fraction,
    static_memory_fraction,
):
    """Room for the cache on one device; below zero by what weights and working space lack.

    The least that three rules leave: of engines that give the cache a part of the rest, limit the memory in all, and
    limit weights and cache.
    """
    left = hbm_capacity - weight_memory - workspace_memory - reserved_memory
    of_rest = left - (1 - cache_fraction) * xp.maximum(left, 0.0)
    of_all = left - (1 - memory_fraction) * hbm_capacity
    return xp.minimum(xp.minimum(of_rest, of_all), static_memory_fraction * hbm_capacity - weight_memory)


@formula(unit="byte", source="kwon2023vllm")
def cache_capacity(cache_room, cache_memory_limit):
    """Memory for the cache on one device; 0 where there is no room."""
    room = xp.maximum(cache_room, 0.0)
    return xp.where(cache_memory_limit > 0, xp.minimum(room, cache_memory_limit), room)


@formula(unit="1", source="kwon2023vllm")
def largest_batch(cache_capacity, shared_prefix_memory, sequence_cache_memory, dp, batch_limit):
    """Largest number of sequences that fit beside the prefix that they share, over all replicas; 0 if not one fits."""
    fitting = xp.floor(xp.maximum(cache_capacity - shared_prefix_memory, 0.0) / sequence_cache_memory + 1e-9)
    return dp * xp.minimum(fitting, batch_limit)


@formula(unit="byte", source="kwon2023vllm")
def kv_cache_memory(running_batch, dp, sequence_key_value_memory, shared_prefix_memory):
    """Keys and values of the running sequences on one device, each as long as it gets, and of what they share."""
    return running_batch / dp * sequence_key_value_memory + shared_prefix_memory


@alternative(
    of="memory_per_device", by="workload", label="inference", unit="byte", sense="least", source="kwon2023vllm"
)
def serving_memory_per_device(
    weight_memory, kv_cache_memory, recurrent_state_memory, workspace_memory, reserved_memory
):
    """Fullest stage: weight_memory + kv_cache_memory + recurrent_state_memory + workspace_memory + reserved_memory."""
    return weight_memory + kv_cache_memory + recurrent_state_memory + workspace_memory + reserved_memory


@constraint(
    kind="exceeds",
    reason="weights, key-value cache and activations exceed the device memory",
    source="kwon2023vllm",
    of="fits_memory",
    workload="inference",
)
def serving_fits_memory(memory_per_device, hbm_capacity):
    """Weights, cache and working space fit the memory of a device."""
    return memory_per_device <= hbm_capacity


@constraint(reason="a sequence is longer than its cache slot", source="pope2022inference")
def slot_holds_the_context(cache_slot_tokens, longest_context):
    """Where shapes are fixed the slot of a sequence has a place for each of its tokens."""
    return (cache_slot_tokens == 0) | (longest_context <= cache_slot_tokens)


@constraint(reason="a request has more tokens than the server takes", source="kwon2023vllm")
def request_within_context_limit(context_limit, longest_context):
    """Prompt and answer together keep the limit of the server."""
    return (context_limit == 0) | (longest_context <= context_limit)


@constraint(
    reason="a prompt has more tokens than an iteration takes, and this engine does not cut prompts (chunked_prompts)",
    source="nvidia2025trtllmargs",
)
def prompts_fit_an_iteration(chunked_prompts, prompt_tokens, cp, prefill_chunk_tokens):
    """Engines that compute a prompt in one iteration refuse longer ones, whatever of them is cached."""
    return xp.logical_or(chunked_prompts, prompt_tokens <= prefill_chunk_tokens * cp)


@constraint(reason="no sequence fits into memory beside the weights", source="kwon2023vllm")
def batch_can_be_chosen(largest_batch, dp, batch_is_given):
    """Where the system chooses the batch, every replica has room for a sequence."""
    return (largest_batch >= dp) | (batch_is_given > 0)
