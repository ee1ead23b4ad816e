"""Device memory in serving: weights, and the key-value cache of a token, a prompt and a sequence."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import constraint, formula
from perfgrid.formulas.axes import at, only, table, total
from perfgrid.formulas.transformer.attention import seen_by_mask

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


@formula(unit="byte", source="vllm2026mtp")
def module_weight_memory(
    draft_modules, stack_weight_memory, expert_weight_memory, layers, moe_layers, hidden_size, activation_size
):
    """Weights of the layers that draft on one device: each a layer like the last, and a whole projection in 16 bits.

    They share embeddings and head with the model.
    """
    layer = stack_weight_memory / layers + expert_weight_memory / xp.maximum(moe_layers, 1.0)
    return draft_modules * (layer + 2 * hidden_size * hidden_size * activation_size)


@formula(unit="byte", source="pope2022inference")
def weight_memory(
    stack_weight_memory,
    expert_weight_memory,
    index_weight_memory,
    vocabulary_memory,
    stage_share,
    stage_expert_share,
    module_weight_memory,
):
    """Weights on one device of the fullest stage."""
    layers = (stack_weight_memory + index_weight_memory) * stage_share
    return layers + expert_weight_memory * stage_expert_share + vocabulary_memory + module_weight_memory


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


def in_pages(held, window, held_page_tokens, window_pool_share):
    """Places of so many tokens in the cache of a layer, in whole pages, by mask.

    Of layers with a window those of the window; or a share of the tokens, where a pool of their own is sized by it.
    """
    seen = xp.minimum(held, xp.maximum(window, 1.0))
    tokens = table("mask", whole=held, window=xp.where(window_pool_share > 0, window_pool_share * held, seen))
    return xp.ceil(tokens / held_page_tokens) * held_page_tokens


@formula(unit="1", source="kwon2023vllm")
def cached_tokens(
    longest_context, shared_prefix_tokens, cache_slot_tokens, window, held_page_tokens, window_pool_share
):
    """Places of one sequence in the cache of a layer when it ends, in whole pages or its whole slot, by mask.

    What it shares with all others is held apart.
    """
    own = xp.maximum(longest_context - shared_prefix_tokens, 1.0)
    return in_pages(xp.maximum(own, cache_slot_tokens), window, held_page_tokens, window_pool_share)


@formula(unit="byte", source="kwon2023vllm")
def rank_token_cache(
    mask_share, layer_token_cache, caching_layers, draft_modules, index_cache_size, stage_share, cp, cache_split
):
    """What a token leaves in the cache of one device of the fullest stage, by mask: keys, values, keys of indexers.

    Layers that draft keep theirs whole.
    """
    keys = caching_layers * mask_share * layer_token_cache
    drafts = draft_modules * layer_token_cache * only("mask", "whole")
    return ((keys + index_cache_size * only("mask", "whole")) * stage_share + drafts) / (cp * cache_split)


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
def shared_prefix_memory(shared_prefix_tokens, window, held_page_tokens, window_pool_share, rank_token_cache):
    """Keys and values of the prefix that all prompts share, held once, on one device of the fullest stage."""
    return total(in_pages(shared_prefix_tokens, window, held_page_tokens, window_pool_share) * rank_token_cache, "mask")


@formula(unit="byte", source="kwon2023vllm, sglang2025hybrid")
def sequence_state_memory(sequence_state_size, stage_share, state_slots, state_padding):
    """Recurrent states of one sequence on one device of the fullest stage, with those that its engine keeps beside."""
    return stage_share * sequence_state_size * state_slots * state_padding


@formula(unit="byte", source="kwon2023vllm")
def sequence_cache_memory(sequence_key_value_memory, sequence_state_memory):
    """Cache and recurrent states of one sequence on one device of the fullest stage when it ends."""
    return sequence_key_value_memory + sequence_state_memory


@constraint(reason="the model has fewer layers that predict further tokens (mtp_layers)", source="vllm2026mtp")
def modules_exist(draft_modules, mtp_layers):
    """Layers that draft are those of the model."""
    return draft_modules <= mtp_layers
