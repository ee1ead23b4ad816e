"""Widths of a mixer on one tensor-parallel rank, its weights, its states and its cache.

H heads with values of their own (query heads of softmax attention), G with keys of their own (groups of Mamba-2,
key-value heads of softmax attention), keys N and values P wide, hidden size h. Ranks split the heads; where they
outnumber the key heads they hold copies. The latents and the indexer of sparse attention are copied to all ranks.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import only
from perfgrid.formulas.mixer_kinds import DELTA, DENSE, KEEPING, NONE, RECURRENT, SPARSE

CAPPED = ("window_attention", "chunked_attention")
SCALE_BLOCK = 128.0  # numbers of 8 bits that share a scale in single precision (DeepSeek-V3)

FORMULAS = by_label(
    "mixer",
    {
        "mixer_inner_weights": (
            *("1", "dao2024mamba2"),
            "Weights of one rank's products between the input and the output product.",
        ),
        "mixer_vector_parameters": ("1", "vaswani2017", "Weights of the mixer outside its matrices on one rank."),
        "mixer_decay_width": ("1", "dao2024mamba2", "Decays of a token and head that are learned."),
        "recurrent_state_bytes": ("byte", "vaswani2017", "State of one sequence on one rank."),
        "mixer_cache_token_bytes": (
            *("byte", "dao2024mamba2"),
            "Keys and values that one token leaves in the cache of one rank.",
        ),
        "mixer_cached_tokens": ("1", "dao2024mamba2", "Tokens of a sequence that the cache holds."),
    },
    {
        ("mamba2", "gated_delta_net"): (0, None, 1, None, 0, 0),
        ("lightning", NONE): (0, None, 0, None, 0, 0),
        "kimi_delta_attention": (None, None, "mixer_key_dim", None, 0, 0),
        "full_attention": (0, 0, 0, 0, None, "sequence_length"),
        CAPPED: (0, 0, 0, 0, None, None),
        SPARSE: (None, None, 0, 0, None, "sequence_length"),
    },
)


def latent_token_bytes(latent, rotary, element_size, activation_size, float32_size):
    """Bytes of a latent and its rotary key, which stays in 16 bits.

    A latent in fewer bits has a scale in single precision for every 128 of its numbers.
    """
    scales = xp.where(element_size < activation_size, float32_size / SCALE_BLOCK, 0.0)
    return latent * (element_size + scales) + rotary * activation_size


@formula(unit="1", source="shoeybi2019megatron")
def rank_mixer_heads(mixer_heads, tp):
    """Heads of the mixer on one tensor-parallel rank; 1 where the model has no mixer."""
    return xp.where(mixer_heads > 0, mixer_heads / tp, 1.0)


@formula(unit="1", source="shoeybi2019megatron")
def rank_mixer_key_heads(mixer_key_heads, tp):
    """Heads of the mixer with keys of their own on one tensor-parallel rank; copies where ranks outnumber them."""
    return xp.maximum(mixer_key_heads / tp, 1.0)


@formula(unit="1", source="dao2024mamba2")
def rank_convolution_channels(
    rank_mixer_heads, rank_mixer_key_heads, mixer_key_dim, mixer_value_dim, convolution_length
):
    """Channels of the short convolution on one rank: HP + 2GN values, keys and queries; 0 without one."""
    channels = rank_mixer_heads * mixer_value_dim + 2 * rank_mixer_key_heads * mixer_key_dim
    return xp.where(convolution_length > 0, channels, 0.0)


# ---- products with weights ------------------------------------------------------------------------------------------


@alternative(of="mixer_input_columns", by="mixer", label="mamba2", unit="1", source="dao2024mamba2")
def mamba2_input_columns(rank_mixer_heads, rank_mixer_key_heads, mixer_key_dim, mixer_value_dim):
    """Columns of the input product on one rank: values and gates, keys and queries, steps: 2HP + 2GN + H."""
    return 2 * rank_mixer_heads * mixer_value_dim + 2 * rank_mixer_key_heads * mixer_key_dim + rank_mixer_heads


@alternative(of="mixer_input_columns", by="mixer", label=("lightning", NONE), unit="1", source="minimax2025")
def LABEL_linear_input_columns(rank_mixer_heads, rank_mixer_key_heads, mixer_key_dim, mixer_value_dim):
    """Columns of the input product on one rank: queries and keys, values and gates: 2GN + 2HP."""
    return 2 * rank_mixer_heads * mixer_value_dim + 2 * rank_mixer_key_heads * mixer_key_dim


@alternative(of="mixer_input_columns", by="mixer", label="gated_delta_net", unit="1", source="yang2024gateddelta")
def gated_delta_net_input_columns(rank_mixer_heads, rank_mixer_key_heads, mixer_key_dim, mixer_value_dim):
    """Columns of the input product on one rank: queries, keys, values, gates, decays, strengths: 2GN + 2HP + 2H."""
    return 2 * rank_mixer_heads * (mixer_value_dim + 1) + 2 * rank_mixer_key_heads * mixer_key_dim


@alternative(of="mixer_input_columns", by="mixer", label="kimi_delta_attention", unit="1", source="kimi2025linear")
def kimi_delta_attention_input_columns(
    rank_mixer_heads, rank_mixer_key_heads, mixer_key_dim, mixer_value_dim, gate_rank
):
    """Columns of the input product on one rank: 2GN + HP + H, and decays and gates: two of low rank, or H(N + P).

    The low-rank factors towards the hidden size are copied to all ranks.
    """
    gates = xp.where(gate_rank > 0, 2 * gate_rank, rank_mixer_heads * (mixer_key_dim + mixer_value_dim))
    return 2 * rank_mixer_key_heads * mixer_key_dim + rank_mixer_heads * (mixer_value_dim + 1) + gates


@alternative(of="mixer_input_columns", by="mixer", label=DENSE, unit="1", source="vaswani2017")
def LABEL_input_columns(rank_mixer_heads, rank_mixer_key_heads, mixer_key_dim, mixer_value_dim):
    """Columns of the input product on one rank: queries, keys and values: HN + G(N + P)."""
    return rank_mixer_heads * mixer_key_dim + rank_mixer_key_heads * (mixer_key_dim + mixer_value_dim)


@alternative(of="mixer_input_columns", by="mixer", label=SPARSE, unit="1", source="deepseek2025v32")
def sparse_attention_input_columns(q_lora_rank, kv_lora_rank, qk_rope_head_dim, index_heads, index_head_dim):
    """Columns of the input product: latents of queries, keys and values, and the indexer's key and head weights."""
    return q_lora_rank + kv_lora_rank + qk_rope_head_dim + index_head_dim + index_heads


@alternative(of="mixer_inner_weights", by="mixer", label="kimi_delta_attention", unit="1", source="kimi2025linear")
def kimi_delta_attention_inner_weights(rank_mixer_heads, mixer_key_dim, mixer_value_dim, gate_rank):
    """Weights of one rank's products between the input and the output product: low rank to decays and gates."""
    return gate_rank * rank_mixer_heads * (mixer_key_dim + mixer_value_dim)


@alternative(of="mixer_inner_weights", by="mixer", label=SPARSE, unit="1", source="deepseek2025v32")
def sparse_attention_inner_weights(
    rank_mixer_heads,
    mixer_key_dim,
    mixer_value_dim,
    q_lora_rank,
    kv_lora_rank,
    qk_rope_head_dim,
    index_heads,
    index_head_dim,
):
    """Weights of one rank's products between the input and the output product: queries, keys and values up.

    The indexer makes its queries from the latent of the queries, on every rank.
    """
    queries = q_lora_rank * rank_mixer_heads * (mixer_key_dim + qk_rope_head_dim)
    absorbed = kv_lora_rank * rank_mixer_heads * (mixer_key_dim + mixer_value_dim)
    return queries + absorbed + q_lora_rank * index_heads * index_head_dim


@alternative(of="mixer_product_columns", by="mixer", label=RECURRENT, unit="1", source="dao2024mamba2")
def LABEL_mixer_product_columns(mixer_input_columns, rank_mixer_heads, mixer_key_dim, mixer_value_dim):
    """Columns of the input product of a mixer on one rank, and of the low-rank products after it, by product."""
    inner = rank_mixer_heads * (mixer_key_dim + mixer_value_dim)
    return mixer_input_columns * only("product", "mixer_input") + inner * only("product", "mixer_inner")


@alternative(of="mixer_product_depth", by="mixer", label=RECURRENT, unit="1", source="dao2024mamba2")
def LABEL_mixer_product_depth(mixer_output_rows, gate_rank):
    """Depth of the products of a mixer after its input product on one rank, by product."""
    return gate_rank * only("product", "mixer_inner") + mixer_output_rows * only("product", "mixer_output")


@formula(unit="1", source="shoeybi2019megatron")
def mixer_output_rows(rank_mixer_heads, mixer_value_dim):
    """Depth of the output product on one rank: HP."""
    return rank_mixer_heads * mixer_value_dim


@formula(unit="1", source="dao2024mamba2")
def mixer_matrix_parameters(hidden_size, mixer_input_columns, mixer_inner_weights, mixer_output_rows):
    """Weights of the mixer's matrices on one rank."""
    return hidden_size * (mixer_input_columns + mixer_output_rows) + mixer_inner_weights


@alternative(of="mixer_vector_parameters", by="mixer", label="mamba2", unit="1", source="dao2024mamba2")
def mamba2_vector_parameters(rank_convolution_channels, convolution_length, rank_mixer_heads, mixer_output_rows):
    """Weights of the mixer outside its matrices on one rank: convolution with bias, A, D, step bias, norm."""
    return rank_convolution_channels * (convolution_length + 1) + 3 * rank_mixer_heads + mixer_output_rows


@alternative(of="mixer_vector_parameters", by="mixer", label=("lightning", NONE), unit="1", source="minimax2025")
def LABEL_linear_vector_parameters(rank_convolution_channels, convolution_length, mixer_output_rows):
    """Weights of the mixer outside its matrices on one rank: norm; the decays are fixed."""
    return rank_convolution_channels * convolution_length + mixer_output_rows


@alternative(of="mixer_vector_parameters", by="mixer", label=DELTA, unit="1", source="kimi2025linear")
def LABEL_vector_parameters(
    rank_convolution_channels, convolution_length, rank_mixer_heads, mixer_decay_width, mixer_value_dim
):
    """Weights of the mixer outside its matrices on one rank: convolution, A, decay bias, a norm of heads."""
    decays = rank_mixer_heads * (1 + mixer_decay_width)
    return rank_convolution_channels * convolution_length + decays + mixer_value_dim


@alternative(of="mixer_vector_parameters", by="mixer", label=SPARSE, unit="1", source="deepseek2025v32")
def sparse_attention_vector_parameters(q_lora_rank, kv_lora_rank, index_head_dim):
    """Weights of the mixer outside its matrices: norms of both latents, norm of the indexer's key with its bias."""
    return q_lora_rank + kv_lora_rank + 2 * index_head_dim


# ---- states and caches ----------------------------------------------------------------------------------------------


@alternative(of="recurrent_state_bytes", by="mixer", label=KEEPING, unit="byte", source="dao2024mamba2")
def LABEL_state_bytes(rank_mixer_heads, mixer_key_dim, mixer_value_dim, state_element_size):
    """State of one sequence on one rank: H matrices of N x P."""
    return rank_mixer_heads * mixer_key_dim * mixer_value_dim * state_element_size


@formula(unit="byte", source="dao2024mamba2")
def convolution_state_bytes(rank_convolution_channels, convolution_length, activation_size):
    """State of the short convolution of one sequence on one rank: the last tokens but the newest."""
    return rank_convolution_channels * xp.maximum(convolution_length - 1, 0.0) * activation_size


@alternative(of="mixer_cache_token_bytes", by="mixer", label=DENSE, unit="byte", source="pope2022inference")
def LABEL_key_value_token_bytes(rank_mixer_key_heads, mixer_key_dim, mixer_value_dim, cache_element_size):
    """Keys and values that one token leaves in the cache of one rank: G(N + P)."""
    return rank_mixer_key_heads * (mixer_key_dim + mixer_value_dim) * cache_element_size


@alternative(of="mixer_cache_token_bytes", by="mixer", label=SPARSE, unit="byte", source="deepseek2025v32")
def sparse_attention_cache_token_bytes(
    kv_lora_rank, qk_rope_head_dim, cache_element_size, activation_size, float32_size
):
    """Latent and rotary key that one token leaves in the cache; the rotary part stays in 16 bits."""
    return latent_token_bytes(kv_lora_rank, qk_rope_head_dim, cache_element_size, activation_size, float32_size)


@formula(unit="byte", source="deepseek2025v32")
def index_token_bytes(index_head_dim, fp8_element_size, float32_size):
    """Key of the indexer that one token leaves in the cache: 8 bits each, and a scale for every 128."""
    return index_head_dim * (fp8_element_size + float32_size / SCALE_BLOCK)


@alternative(of="mixer_cached_tokens", by="mixer", label=CAPPED, unit="1", source="meta2025llama4")
def LABEL_capped_tokens(sequence_length, mixer_span):
    """Tokens of a sequence that the cache holds: no more than the window or chunk."""
    return xp.minimum(sequence_length, mixer_span)


@alternative(of="mixer_memory", by="mixer", label=(*KEEPING, *DENSE), unit="byte", source="dao2024mamba2")
def LABEL_memory(recurrent_state_bytes, convolution_state_bytes, mixer_cached_tokens, mixer_cache_token_bytes):
    """What one sequence keeps on one rank: states, and keys and values of cached tokens."""
    return recurrent_state_bytes + convolution_state_bytes + mixer_cached_tokens * mixer_cache_token_bytes


@alternative(of="mixer_memory", by="mixer", label=SPARSE, unit="byte", source="deepseek2025v32")
def sparse_attention_memory(mixer_cached_tokens, mixer_cache_token_bytes, index_token_bytes):
    """What one sequence keeps: the latents and the indexer's keys of its tokens."""
    return mixer_cached_tokens * (mixer_cache_token_bytes + index_token_bytes)


@constraint(reason="tensor-parallel ranks do not share the mixer's heads evenly", source="shoeybi2019megatron")
def mixer_heads_split(mixer_heads, tp):
    """Every rank has the same number of heads."""
    return mixer_heads % tp == 0


@constraint(reason="the mixer's key heads do not divide its heads", source="dao2024mamba2")
def mixer_key_heads_shared(mixer_heads, mixer_key_heads):
    """Every key head serves the same number of heads."""
    return mixer_heads % mixer_key_heads == 0
