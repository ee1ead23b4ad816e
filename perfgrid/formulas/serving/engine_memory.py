"""Device memory by the rules of serving engines: working space, room for the cache, and what fits it.

Each engine limits another sum. vLLM: everything, to a part of what the driver counts (``memory_fraction``). SGLang:
weights and cache, to a part of what is free before it loads them (``static_memory_fraction``); working space comes out
of the rest. TensorRT-LLM and LMDeploy: the cache, to a part of what weights and working space leave
(``cache_fraction``). A fraction of 1 is no limit, so that the cache is the least of what the three leave. `serve`,
``read-job`` and studies take the same quantities.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.engine.graph.tables import constants
from perfgrid.formulas.axes import at

from .batching import CHOSEN, STATES

# SGLang, server_args: by memory up to so many GiB, the largest batch of its graphs for fewer than four ranks and others
GRAPH_TIERS = ((20, 8.0, 8.0), (35, 24.0, 80.0), (60, 32.0, 160.0), (160, 256.0, 512.0), (float("inf"), 512.0, 512.0))
STATIC_BASE, LEAST_CHUNK, PER_CHUNK_TOKEN, PER_GRAPH, PER_RANK = 512.0, 2048.0, 1.5, 2.0, 128.0  # MiB but for tokens
PER_ATTENTION_GRAPH, MANY, MORE = 3.0, 300, 1.5  # MiB of a graph's batch on each replica of attention; above MANY more
LARGE_DEVICE, LEAST_RESERVED = 60 * 1024, 10 * 1024.0  # MiB
VISION, VISION_SLOPE, VISION_RANGE = 0.95, 0.1, (0.8, 1.05)  # of the share of models with an encoder of images
VISION_BASE = 24 * 1024.0**2  # layers x width^2 of the encoder for which it is VISION
MOST_RESERVED = 0.3  # of the device: what eight replicas of attention reserve of 80 GiB; wider launches state it
PAIR = 1 / 3  # of the buffers of communicators: two ranks need neither trees nor multicast
ENDLESS = 2.0**40  # sequences or tokens, of a model without attention

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


@alternative(of="launched_limit", by="batch_rule", label=STATES, unit="1", source="vllm2026arguments",
             others={CHOSEN: "batch_limit"})  # fmt: skip
def LABEL_launched_limit(batch_limit, launched_for_batch, batch, dp):
    """Sequences that a replica is started for: its limit, or its share of the batch for which it is started."""
    share = xp.minimum(xp.ceil(xp.maximum(batch / dp, 1.0)), batch_limit)
    return xp.where(launched_for_batch, share, batch_limit)


@formula(unit="byte", source="vllm2026memory")
def sampler_memory(sampled_sequences, launched_limit, prefill_chunk_tokens, vocab_size, sampler_logit_size):
    """What choosing the next tokens takes on one rank: logits over the whole vocabulary, and what is made of them."""
    sampled = xp.minimum(launched_limit, prefill_chunk_tokens)
    return xp.where(sampled_sequences > 0, sampled_sequences, sampled) * vocab_size * sampler_logit_size


@formula(unit="byte", source="vllm2026memory")
def workspace_memory(pass_activation_memory, sampler_memory):
    """Working space of one rank: that of the largest pass, or of the sampler after it, when activations are gone."""
    return xp.maximum(pass_activation_memory, sampler_memory)


@formula(unit="byte", source="nccl2023issue964")
def communicator_memory(communicator_size, tp, cp, ep, etp, pp):
    """Buffers of communicators on one device; none where it is alone."""
    ranks = xp.maximum(tp * cp, ep * etp) * pp
    return communicator_size * xp.where(ranks >= 3, 1.0, xp.where(ranks >= 2, PAIR, 0.0))


@formula(unit="byte", source="vllm2026memory")
def engine_memory(weight_memory, workspace_memory, reserved_memory, communicator_memory, held_graph_memory):
    """Without a cache: weight_memory + workspace_memory + reserved_memory + communicator_memory + graph_memory."""
    return weight_memory + workspace_memory + reserved_memory + communicator_memory + held_graph_memory


# ---- room for the cache ---------------------------------------------------------------------------------------------


@formula(unit="byte", source="llmd2025memory")
def counted_memory(hbm_capacity, driver_share):
    """Device memory as its driver counts it: without page tables and what else it keeps."""
    return hbm_capacity * (1 - driver_share)


FORMULAS = constants(
    {"mebibyte": (2.0**20, "byte", "sglang2026arguments", "The unit in which SGLang states its memory.")}
)


@formula(unit="byte", source="sglang2026arguments")
def unstated_reserve(hbm_capacity, mebibyte, prefill_chunk_tokens, graph_batch_limit, tp, pp, ep, etp):
    """Memory that SGLang leaves beside weights and cache where nothing is stated: by chunk tokens, graphs and ranks.

    Its rule is for one node: of tens of ranks it would leave nothing, and their launches state the share.
    """
    capacity = hbm_capacity / mebibyte
    ranks = xp.maximum(tp, ep * etp)
    replicas = xp.maximum(ranks / tp, 1.0)  # of attention
    graph = GRAPH_TIERS[-1][1]
    for most, few, many in reversed(GRAPH_TIERS[:-1]):
        graph = xp.where(capacity < most * 1024, xp.where(ranks < 4, few, many), graph)
    graph = xp.where(graph_batch_limit > 0, graph_batch_limit, graph)
    attention = PER_ATTENTION_GRAPH * graph * replicas * xp.where(graph > MANY, MORE, 1.0)
    chunk = PER_CHUNK_TOKEN * xp.maximum(prefill_chunk_tokens, LEAST_CHUNK)
    reserve = STATIC_BASE + chunk + PER_GRAPH * graph + PER_RANK * ranks * pp + xp.where(replicas > 1, attention, 0.0)
    reserve = xp.where(capacity > LARGE_DEVICE, xp.maximum(reserve, LEAST_RESERVED), reserve)
    return xp.minimum(reserve, MOST_RESERVED * capacity) * mebibyte


@formula(unit="1", source="sglang2026arguments")
def vision_share(vision_hidden_size, vision_layers):
    """Factor by which SGLang lowers that share for models with an encoder of images: by its layers and width."""
    more = vision_layers * vision_hidden_size**2 / VISION_BASE - 1
    return xp.where(vision_hidden_size > 0, VISION * xp.clip(1 - VISION_SLOPE * more, *VISION_RANGE), 1.0)


@formula(unit="1", source="sglang2026arguments")
def static_share(static_memory_fraction, unstated_reserve, hbm_capacity, vision_share):
    """Part of the memory that weights and cache may take together: stated, or what the engine leaves of it."""
    unstated = (1 - unstated_reserve / hbm_capacity) * vision_share
    return xp.where(static_memory_fraction > 0, static_memory_fraction, unstated)


@formula(unit="byte", source="kwon2023vllm, zheng2024sglang, nvidia2026trtllmmemory")
def cache_room(
    counted_memory,
    context_memory,
    communicator_memory,
    engine_memory,
    weight_memory,
    cache_fraction,
    memory_fraction,
    static_share,
):
    """Room for the cache on one device; below zero by what weights and working space lack.

    The least that the three rules leave.
    """
    free = counted_memory - context_memory
    left = free - engine_memory
    of_rest = left - (1 - cache_fraction) * xp.maximum(left, 0.0)
    of_all = memory_fraction * counted_memory - engine_memory
    of_static = static_share * (free - communicator_memory) - weight_memory
    return xp.minimum(xp.minimum(of_rest, of_all), of_static)


@formula(unit="byte", source="kwon2023vllm")
def cache_capacity(cache_room, cache_memory_limit):
    """Memory for the cache on one device; 0 where there is no room."""
    room = xp.maximum(cache_room, 0.0)
    return xp.where(cache_memory_limit > 0, xp.minimum(room, cache_memory_limit), room)


@formula(unit="byte", source="kwon2023vllm")
def memory_limit(engine_memory, cache_room, cache_capacity):
    """Memory up to which an engine fills a device: what it holds itself, and its cache, or less what it lacks."""
    return engine_memory + xp.where(cache_room > 0, cache_capacity, cache_room)


@formula(unit="byte", source="kwon2023vllm")
def memory_ceiling(memory_limit, headroom, counted_memory):
    """Memory that running sequences may reach: the engine's limit, less what is kept free of the device."""
    return memory_limit - headroom * counted_memory


# ---- what fits it ---------------------------------------------------------------------------------------------------


@formula(unit="1", source="sglang2025hybrid")
def state_pool_share(state_pool_ratio, sequence_state_size):
    """Part of the cache that is a pool of its own for recurrent states; 0: they share it with keys and values."""
    return xp.where(sequence_state_size > 0, state_pool_ratio / (1 + state_pool_ratio), 0.0)


def quotient(whole, part, memory):
    """Parts in a whole; endless where there is no part. ``memory`` stands for it in the branch that is not taken."""
    return xp.where(part > 0, whole / xp.where(part > 0, part, memory), ENDLESS)


@formula(unit="1", source="kwon2023vllm, sglang2025hybrid")
def fitting_sequences(
    cache_capacity,
    headroom,
    counted_memory,
    shared_prefix_memory,
    sequence_key_value_memory,
    sequence_state_memory,
    state_pool_share,
):
    """Sequences of full length that the cache of one replica holds beside the prefix that they share; not rounded.

    Of a pool of keys and one of states the one that holds fewer; what is kept free holds none.
    """
    whole = xp.maximum(cache_capacity - headroom * counted_memory, 0.0)
    states = state_pool_share * whole
    keys = xp.maximum(whole - states - shared_prefix_memory, 0.0)
    apart = xp.minimum(
        quotient(keys, sequence_key_value_memory, counted_memory),
        quotient(states, sequence_state_memory, counted_memory),
    )
    together = quotient(keys, sequence_key_value_memory + sequence_state_memory, counted_memory)
    return xp.where(state_pool_share > 0, apart, together)


@formula(unit="1", source="kwon2023vllm")
def largest_batch(fitting_sequences, dp, batch_limit):
    """Largest number of sequences that fit, over all replicas; 0 if not one fits."""
    return dp * xp.minimum(xp.floor(fitting_sequences + 1e-9), batch_limit)


@formula(unit="1", source="kwon2023vllm")
def cache_capacity_tokens(fitting_sequences, longest_context):
    """Tokens that the cache of one replica holds, in sequences of the longest context."""
    return fitting_sequences * longest_context


@formula(unit="1", source="kwon2023vllm")
def fitting_context(
    cache_capacity,
    headroom,
    counted_memory,
    state_pool_share,
    sequence_state_memory,
    rank_token_cache,
    window,
    window_pool_share,
    held_page_tokens,
):
    """Tokens of the longest sequence whose cache fits alone, in whole pages; layers with a window stop growing.

    What is kept free holds none.
    """
    cache = xp.maximum(cache_capacity - headroom * counted_memory, 0.0)
    states = state_pool_share * cache
    apart = state_pool_share > 0
    room = xp.maximum(cache - xp.where(apart, states, sequence_state_memory), 0.0)
    whole, windowed = (at(rank_token_cache, mask=mask) for mask in ("whole", "window"))
    pooled = window_pool_share > 0
    span = xp.where(pooled, ENDLESS, xp.maximum(window, 1.0))
    short = quotient(room, whole + xp.where(pooled, window_pool_share, 1.0) * windowed, counted_memory)
    longer = quotient(xp.maximum(room - xp.where(pooled, 0.0, span) * windowed, 0.0), whole, counted_memory)
    pages = xp.floor(xp.where(short > span, longer, short) / held_page_tokens + 1e-9)
    return xp.where(apart & (states < sequence_state_memory), 0.0, xp.minimum(pages * held_page_tokens, ENDLESS))


@formula(unit="byte", source="kwon2023vllm")
def startup_margin(cache_room, cache_capacity, sequence_cache_memory):
    """Room for the cache beyond one sequence of the longest context; below zero by what an engine lacks to start."""
    return xp.where(cache_room > 0, cache_capacity, cache_room) - sequence_cache_memory


@formula(unit="byte", source="kwon2023vllm")
def memory_left(memory_limit, memory_per_device):
    """Memory up to the limit of the engine that the running sequences leave; below zero by what they lack."""
    return memory_limit - memory_per_device


@formula(unit="byte", source="kwon2023vllm")
def kv_cache_memory(running_batch, dp, sequence_key_value_memory, shared_prefix_memory):
    """Keys and values of the running sequences on one device, each as long as it gets, and of what they share."""
    return running_batch / dp * sequence_key_value_memory + shared_prefix_memory


@alternative(
    of="memory_per_device", by="workload", label="inference", unit="byte", sense="least", source="kwon2023vllm"
)
def serving_memory_per_device(engine_memory, kv_cache_memory, recurrent_state_memory):
    """Fullest stage: engine_memory + kv_cache_memory + recurrent_state_memory."""
    return engine_memory + kv_cache_memory + recurrent_state_memory


@constraint(
    kind="exceeds",
    reason="weights, key-value cache and activations exceed the device memory that the engine may use",
    source="kwon2023vllm",
    of="fits_memory",
    workload="inference",
)
def serving_fits_memory(memory_per_device, memory_ceiling):
    """Weights, cache and working space fit what the engine may use of a device."""
    return memory_per_device <= memory_ceiling * (1 + 1e-9)


@constraint(reason="pools of keys and of recurrent states hold fewer sequences", source="sglang2025hybrid")
def sequences_fit_their_pools(running_batch, dp, fitting_sequences, state_pool_share):
    """Where recurrent states have a pool of their own, it and that of keys hold the running sequences."""
    return (state_pool_share == 0) | (running_batch <= dp * fitting_sequences * (1 + 1e-9))


@constraint(reason="a sequence is longer than its cache slot", source="pope2022inference")
def slot_holds_the_context(cache_slot_tokens, longest_context):
    """Where shapes are fixed the slot of a sequence has a place for each of its tokens."""
    return (cache_slot_tokens == 0) | (longest_context <= cache_slot_tokens)


@constraint(reason="the cache is split among more ranks than hold copies of it", source="vllm2026arguments")
def copies_are_split(cache_split, tp, kv_heads, kv_lora_rank):
    """Only ranks that would hold the same keys and values can each hold a part of the tokens."""
    copies = xp.where(kv_lora_rank > 0, tp, xp.maximum(tp / kv_heads, 1.0))
    return cache_split <= copies


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
