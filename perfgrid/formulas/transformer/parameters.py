"""What a decoder-only transformer consists of: its parameters, those that one token visits, and its key-value cache.

Dense and mixture-of-experts feed-forward blocks, full and latent attention. A parallel block has the matrices of a
sequential one. Extra prediction layers that are only trained along are not counted, as publishers do not count them.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula

LAID_OUT = ("training", "inference")  # workloads that spread a transformer over parallel ranks


@formula(unit="1", source="deepseek2024v2")
def query_head_width(head_dim, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim):
    """Width of one query head, equally of one key head; with latent attention its parts without and with rotary."""
    return xp.where(kv_lora_rank > 0, qk_nope_head_dim + qk_rope_head_dim, head_dim)


@formula(unit="1", source="deepseek2024v2")
def value_head_width(head_dim, kv_lora_rank, v_head_dim):
    """Width of one value head, equally of one head's result."""
    return xp.where(kv_lora_rank > 0, v_head_dim, head_dim)


@formula(unit="1", source="shoeybi2019megatron")
def query_width(heads, query_head_width):
    """Width of all query heads of one layer together."""
    return heads * query_head_width


@formula(unit="1", source="ainslie2023gqa")
def key_value_width(kv_heads, head_dim):
    """Width of all key heads (equally: all value heads) of one layer together."""
    return kv_heads * head_dim


@formula(unit="1", source="brandon2024cla")
def own_key_share(shared_key_layers, layers, attention_free_layers):
    """Part of the layers with attention that have keys and values of their own."""
    return 1 - shared_key_layers / xp.maximum(layers - attention_free_layers, 1.0)


@formula(unit="1", source="google2025gemma3n")
def looked_up_width(hidden_size, layers, layer_embedding_size):
    """Width of what one token looks up: its embedding, and one for each layer where layers have embeddings."""
    return hidden_size + layers * layer_embedding_size


@formula(unit="1", source="google2025gemma3n")
def dense_width(ffn_size, layer_embedding_size):
    """Width of a dense feed-forward block, with that of the embedding of its layer.

    Gemma 3n multiplies the residual stream down to this width (gate), by the embedding (in which a product of the
    model's input joins), and up again: the three products of a gated block, counted as further columns of the other.
    """
    return ffn_size + layer_embedding_size


@formula(unit="1", source="shazeer2020glu")
def ffn_input_matrices(gated_ffn):
    """Matrices that read the feed-forward input: two if gated, otherwise one."""
    return xp.where(gated_ffn, 2.0, 1.0)


# ---- one layer ------------------------------------------------------------------------------------------------------


def feed_forward_weights(hidden_size, inner_size, input_matrices):
    """Weights of the matrices of a feed-forward block or of one expert: h·f for each input matrix and the output."""
    return hidden_size * inner_size * (input_matrices + 1)


def router_columns(experts, expert_latent_size):
    """Columns of the router's product, with it those of the products down to latents and, as many, up from them."""
    return experts + 2 * expert_latent_size


def feed_forward_biases(hidden_size, inner_size, input_matrices, biases):
    """Biases of a feed-forward block or of one expert."""
    return xp.where(biases, inner_size * input_matrices + hidden_size, 0.0)


@formula(unit="1", source="deepseek2024v2")
def attention_matrix_parameters(
    hidden_size,
    heads,
    query_width,
    key_value_width,
    own_key_share,
    q_lora_rank,
    kv_lora_rank,
    qk_nope_head_dim,
    qk_rope_head_dim,
    v_head_dim,
    attention_gate,
):
    """Weights of the attention matrices of one layer, latent where keys and values have a rank.

    Mean of layers with keys and values of their own and those that use an earlier layer's.
    Latent: down to the latents, up to the heads, and the output matrix. Queries are compressed only where they have a
    rank; the rotary part of a key is one for all heads (section 2.1).
    """
    gate = xp.where(attention_gate, hidden_size * query_width, 0.0)
    full = (
        2 * hidden_size * (query_width + own_key_share * key_value_width) + gate
    )  # of queries and results, of keys and values
    compressed = q_lora_rank * (hidden_size + query_width)
    queries = xp.where(q_lora_rank > 0, compressed, hidden_size * query_width)
    down = hidden_size * (kv_lora_rank + qk_rope_head_dim)
    up = kv_lora_rank * heads * (qk_nope_head_dim + v_head_dim)
    latent = queries + down + up + heads * v_head_dim * hidden_size
    return xp.where(kv_lora_rank > 0, latent, full)


@formula(unit="1", source="shoeybi2019megatron")
def layer_matrix_parameters(attention_matrix_parameters, hidden_size, dense_width, ffn_input_matrices):
    """Weights of the matrices of one dense layer."""
    return attention_matrix_parameters + feed_forward_weights(hidden_size, dense_width, ffn_input_matrices)


@formula(unit="1", source="narayanan2021")
def attention_vector_parameters(hidden_size, query_width, key_value_width, q_lora_rank, kv_lora_rank, biases):
    """Gains of the two norms of one layer and of its latents and, with biases, those of norms and attention."""
    gains = 2 * hidden_size + xp.where(kv_lora_rank > 0, q_lora_rank + kv_lora_rank, 0.0)
    return gains + xp.where(biases, 3 * hidden_size + query_width + 2 * key_value_width, 0.0)


@formula(unit="1", source="narayanan2021")
def layer_vector_parameters(attention_vector_parameters, hidden_size, ffn_size, ffn_input_matrices, biases):
    """Gains of the norms of one dense layer and, with biases, those of norms and matrices."""
    return attention_vector_parameters + feed_forward_biases(hidden_size, ffn_size, ffn_input_matrices, biases)


@formula(unit="1", source="narayanan2021")
def layer_parameters(layer_matrix_parameters, layer_vector_parameters):
    """Parameters of one dense layer."""
    return layer_matrix_parameters + layer_vector_parameters


# ---- experts --------------------------------------------------------------------------------------------------------


@formula(unit="1", source="nvidia2026nemotron3")
def expert_width(hidden_size, expert_latent_size):
    """Width of the tokens that routed experts receive: that of the residual stream, or of latents of it."""
    return xp.where(expert_latent_size > 0, expert_latent_size, hidden_size)


@formula(unit="1", source="fedus2022switch")
def expert_parameters(expert_width, expert_ffn_size, ffn_input_matrices, biases):
    """Parameters of one routed expert."""
    shape = (expert_width, expert_ffn_size, ffn_input_matrices)
    return feed_forward_weights(*shape) + feed_forward_biases(*shape, biases)


@formula(unit="1", source="nvidia2025nemotronh")
def attention_layers(layers, attention_free_layers):
    """Layers with softmax attention."""
    return layers - attention_free_layers


@formula(unit="1", source="dai2024deepseekmoe")
def moe_layers(layers, ffn_free_layers, dense_layers, experts):
    """Layers whose feed-forward block is a mixture of experts: all but the leading dense ones; none without experts."""
    return xp.where(experts > 0, layers - ffn_free_layers - dense_layers, 0.0)


@formula(unit="1", source="dai2024deepseekmoe")
def moe_share(moe_layers, layers, ffn_free_layers):
    """Part of the feed-forward blocks that are mixtures of experts."""
    return moe_layers / (layers - ffn_free_layers)


@formula(unit="1", source="dai2024deepseekmoe")
def moe_layer_parameters(
    attention_matrix_parameters,
    attention_vector_parameters,
    hidden_size,
    expert_width,
    experts,
    expert_latent_size,
    shared_experts,
    expert_parameters,
):
    """Parameters of one mixture-of-experts layer: attention, norms, router, routed and shared experts."""
    every_expert = (experts + shared_experts * hidden_size / expert_width) * expert_parameters
    routing = hidden_size * router_columns(experts, expert_latent_size)
    return attention_matrix_parameters + attention_vector_parameters + routing + every_expert


# ---- the whole model ------------------------------------------------------------------------------------------------


@formula(unit="1", source="narayanan2021")
def embedding_parameters(vocab_size, learned_positions, hidden_size, looked_up_width):
    """Parameters of the token tables, of the model and of its layers, and of a learned position table."""
    return vocab_size * looked_up_width + learned_positions * hidden_size


@formula(unit="1", source="shoeybi2019megatron")
def output_head_parameters(vocab_size, hidden_size):
    """Weights of the output head, shared with the embedding or not."""
    return vocab_size * hidden_size


@formula(unit="1", source="narayanan2021")
def total_parameters(
    layers,
    moe_layers,
    layer_parameters,
    moe_layer_parameters,
    ffn_free_layers,
    hidden_size,
    attention_free_layers,
    attention_matrix_parameters,
    mixer_layers,
    mixer_layer_parameters,
    index_parameters,
    embedding_parameters,
    output_head_parameters,
    tied_embeddings,
    biases,
):
    """Parameters of the whole model, a shared table counted once, the final norm included.

    Of layers without attention the norms stay, and the mixer joins; one without a feed-forward part has one norm less.
    """
    with_ffn = (layers - ffn_free_layers - moe_layers) * layer_parameters + moe_layers * moe_layer_parameters
    alone = ffn_free_layers * (attention_matrix_parameters + hidden_size)
    recurrent = mixer_layers * mixer_layer_parameters - attention_free_layers * attention_matrix_parameters
    stack = with_ffn + (alone + recurrent) + index_parameters
    head = xp.where(tied_embeddings, 0.0, output_head_parameters)
    final_norm = hidden_size * xp.where(biases, 2.0, 1.0)
    return stack + embedding_parameters + head + final_norm


@formula(unit="1", source="openai2025gptoss")
def parameters_per_token(
    total_parameters,
    moe_layers,
    experts,
    experts_per_token,
    expert_parameters,
    embedding_parameters,
    output_head_parameters,
    tied_embeddings,
):
    """Parameters that one token's forward pass multiplies: all but idle experts and tables that are only looked up.

    The output head counts, shared or not. Some publishers add the look-up table of the input to their count of active
    parameters, others do not.
    """
    idle_experts = moe_layers * (experts - experts_per_token) * expert_parameters
    looked_up = embedding_parameters - xp.where(tied_embeddings, output_head_parameters, 0.0)
    return total_parameters - idle_experts - looked_up


@formula(unit="1", source="deepseek2024v2")
def key_value_cache_width(key_value_width, kv_lora_rank, qk_rope_head_dim):
    """Elements that one token leaves in the cache of one layer: keys and values, or their latent and a rotary key."""
    return xp.where(kv_lora_rank > 0, kv_lora_rank + qk_rope_head_dim, 2 * key_value_width)
