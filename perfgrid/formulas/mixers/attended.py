"""Softmax attention by the pairs of tokens that it computes: causal, in a window, in chunks, or chosen by an indexer.

Sparse attention (DeepSeek-V3.2) is multi-query attention on latents: all heads share one key, which is a latent and its
rotary part, and one value, which is the latent. A small indexer scores every earlier token in 8 bits,
I(t, s) = sum over its heads of w(t) relu(q(t) k(s)), and the best ones of each token are attended to.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import bind, by_label
from perfgrid.formulas.axes import at, only, table
from perfgrid.formulas.kernels.tiling import steps_of
from perfgrid.formulas.mixer_kinds import DENSE, KEEPING, SOFTMAX, SPARSE

from .recurrent import by_kernel

BLOCK_ROWS = 128.0  # of queries of one head that a core of a fused kernel works on (FlashAttention-3, FlashMLA)
FLASH_GRADIENTS = 2.5  # products of the backward pass over those of the forward pass: five and two (Dao 2022)

TABLES = by_label(
    "mixer",
    {
        "mixer_pairs": ("1", "vaswani2017", "Pairs of tokens of a sequence that attention computes."),
        "mixer_attended_tokens": (
            *("1", "pope2022inference"),
            "Tokens whose keys and values one decoded token reads: all that the cache holds.",
        ),
        "gathered_traffic": (
            *("byte", "dao2022flash"),
            "Keys and values that tokens gather one by one through the last-level cache.",
        ),
        "mixer_core_traffic": (
            *("byte", "dao2022flash"),
            "Memory traffic of the core over all sequences on one rank, by mixer_kernel.",
        ),
        "mixer_serial_steps": (
            *("1", "dao2023flash2"),
            "Steps that wait for each other: one where rows of blocks are independent.",
        ),
    },
    {
        KEEPING: (0, 0, 0, None, None),
        "full_attention": ("causal_pairs", "mixer_cached_tokens", 0, "mixer_unfused_traffic", 1),
        ("window_attention", "chunked_attention"): (None, "mixer_cached_tokens", 0, "mixer_unfused_traffic", 1),
        SPARSE: (None, None, None, "mixer_unfused_traffic", 1),
    },
)


def triangle(tokens):
    """Pairs of tokens under a causal mask, each with itself among them."""
    return tokens * (tokens + 1) / 2


def windowed(tokens, span):
    """Pairs of tokens where each sees the last ``span`` at most, itself among them."""
    inside = xp.minimum(tokens, span)
    return triangle(inside) + (tokens - inside) * span


# ---- pairs ----------------------------------------------------------------------------------------------------------


@alternative(of="mixer_pairs", by="mixer", label="chunked_attention", unit="1", source="meta2025llama4")
def chunked_attention_pairs(sequence_length, mixer_span):
    """Pairs of tokens of a sequence that attention computes: those of whole chunks, and of the last one."""
    chunks = xp.floor(sequence_length / mixer_span)
    return chunks * triangle(mixer_span) + triangle(sequence_length - chunks * mixer_span)


@alternative(of="mixer_attended_tokens", by="mixer", label=SPARSE, unit="1", source="deepseek2025v32")
def sparse_attention_attended_tokens(sequence_length, index_top_k):
    """Tokens whose keys and values one decoded token reads: those that the indexer chooses."""
    return xp.minimum(sequence_length, index_top_k)


# ---- FLOPs ----------------------------------------------------------------------------------------------------------


def by_product(key_width, value_width):
    """Widths of a key and of a value of a head by the product that they take part in, by core_product."""
    return only("core_product", "scores") * key_width + only("core_product", "values") * value_width


@alternative(of="mixer_token_flops", by="mixer", label=DENSE, unit="1", source="vaswani2017")
def LABEL_core_token_flops(rank_mixer_heads, mixer_key_dim, mixer_value_dim, mixer_pairs, sequence_length):
    """FLOPs of attention per token on one rank, mean of a sequence, by core_product: 2H(N + P) for each pair."""
    return 2 * rank_mixer_heads * by_product(mixer_key_dim, mixer_value_dim) * mixer_pairs / sequence_length


@alternative(of="mixer_token_flops", by="mixer", label=SPARSE, unit="1", source="deepseek2025v32")
def sparse_attention_core_token_flops(
    rank_mixer_heads,
    kv_lora_rank,
    qk_rope_head_dim,
    mixer_pairs,
    sequence_length,
    causal_pairs,
    index_heads,
    index_head_dim,
):
    """FLOPs of attention per token on one rank, mean of a sequence, by core_product.

    2H for each pair chosen, times the latent with its rotary part and the latent; the indexer scores all pairs.
    """
    attention = 2 * rank_mixer_heads * by_product(kv_lora_rank + qk_rope_head_dim, kv_lora_rank) * mixer_pairs
    index = 2 * index_heads * index_head_dim * causal_pairs * only("core_product", "index_scores")
    return (attention + index) / sequence_length


@alternative(of="mixer_core_flops", by="mixer", label=SOFTMAX, unit="1", source="dao2022flash")
def LABEL_core_flops(mixer_token_flops, sequence_length, microbatch):
    """FLOPs of attention over all sequences on one rank, by mixer_kernel."""
    scores, values, index = (at(mixer_token_flops, core_product=p) for p in ("scores", "values", "index_scores"))
    return microbatch * sequence_length * by_kernel(index=index, results=scores + values)


# ---- memory traffic -------------------------------------------------------------------------------------------------


@alternative(of="mixer_minimal_traffic", by="mixer", label=DENSE, unit="byte", source="dao2022flash")
def LABEL_minimal_core_traffic(
    rank_mixer_heads,
    rank_mixer_key_heads,
    mixer_key_dim,
    mixer_value_dim,
    activation_size,
    sequence_length,
    microbatch,
):
    """Least memory traffic of attention on one rank: queries, keys and values in, results out."""
    width = (rank_mixer_heads + rank_mixer_key_heads) * (mixer_key_dim + mixer_value_dim)
    return microbatch * sequence_length * width * activation_size


@formula(unit="byte", source="deepseek2025v32")
def index_traffic(
    index_heads, index_head_dim, fp8_element_size, float32_size, index_token_bytes, sequence_length, microbatch
):
    """Queries in 8 bits with a weight for each head, and keys, that the indexer reads."""
    queries = index_heads * (index_head_dim * fp8_element_size + float32_size)
    return microbatch * sequence_length * (queries + index_token_bytes)


@alternative(of="mixer_minimal_traffic", by="mixer", label=SPARSE, unit="byte", source="deepseek2025v32")
def sparse_attention_minimal_core_traffic(
    rank_mixer_heads,
    kv_lora_rank,
    qk_rope_head_dim,
    activation_size,
    mixer_cache_token_bytes,
    index_traffic,
    sequence_length,
    microbatch,
):
    """Least memory traffic of attention on one rank: the indexer's, queries in, latents once, results out."""
    heads = rank_mixer_heads * (2 * kv_lora_rank + qk_rope_head_dim) * activation_size
    return index_traffic + microbatch * sequence_length * (heads + mixer_cache_token_bytes)


@alternative(of="gathered_traffic", by="mixer", label=SPARSE, unit="byte", source="deepseek2025v32")
def sparse_attention_gathered_traffic(mixer_pairs, mixer_cache_token_bytes, microbatch):
    """Latents that tokens gather one by one through the last-level cache: every token has its own choice."""
    return microbatch * mixer_pairs * mixer_cache_token_bytes


@alternative(of="mixer_unfused_traffic", by="mixer", label=DENSE, unit="byte", source="dao2022flash")
def LABEL_unfused_core_traffic(mixer_minimal_traffic):
    """Memory traffic of the kernels of attention on one rank, by mixer_kernel: one fused kernel."""
    return mixer_minimal_traffic * only("mixer_kernel", "results")


@alternative(of="mixer_unfused_traffic", by="mixer", label=SPARSE, unit="byte", source="deepseek2025v32")
def sparse_attention_unfused_core_traffic(mixer_minimal_traffic, index_traffic, causal_pairs, microbatch, float32_size):
    """Memory traffic of the kernels of sparse attention on one rank, by mixer_kernel.

    One kernel writes the scores of the indexer, in single precision, and the next reads them to choose.
    """
    scores = microbatch * causal_pairs * float32_size
    return by_kernel(
        index=index_traffic + scores,
        choice=scores,
        results=mixer_minimal_traffic - index_traffic,
    )


# ---- how the work is shared out -------------------------------------------------------------------------------------


@alternative(of="mixer_units", by="mixer", label=SOFTMAX, unit="1", source="dao2023flash2")
def LABEL_units(rank_mixer_heads, sequence_length, microbatch):
    """Items of work that may run side by side: rows of blocks of all heads."""
    return microbatch * rank_mixer_heads * steps_of(sequence_length, BLOCK_ROWS)


@alternative(of="mixer_core_passes", by="mixer", label=DENSE, unit="1", source="dao2022flash")
def LABEL_core_passes():
    """Work of each kernel over that of its forward pass, by phase and mixer_kernel; all backward as input gradient."""
    return table("phase", forward=1.0, input_gradient=FLASH_GRADIENTS, weight_gradient=0.0)


@alternative(of="mixer_core_passes", by="mixer", label=SPARSE, unit="1", source="deepseek2025v32")
def sparse_attention_core_passes(mixer_pairs, causal_pairs):
    """Work of each kernel over that of its forward pass, by phase and mixer_kernel; all backward as input gradient.

    The indexer is trained on the chosen tokens: their scores again, and two gradients of them.
    """
    index = 3 * mixer_pairs / causal_pairs
    backward = by_kernel(index=index, results=FLASH_GRADIENTS)
    return table("phase", forward=1.0, input_gradient=backward, weight_gradient=0.0)


# ---- decoding -------------------------------------------------------------------------------------------------------


@alternative(of="mixer_decode_flops", by="mixer", label=DENSE, unit="1", source="pope2022inference")
def LABEL_decode_core_flops(rank_mixer_heads, mixer_key_dim, mixer_value_dim, mixer_attended_tokens, microbatch):
    """FLOPs of one decoding step of attention on one rank: 2H(N + P) for each token attended to."""
    return 2 * microbatch * mixer_attended_tokens * rank_mixer_heads * (mixer_key_dim + mixer_value_dim)


@alternative(of="mixer_decode_flops", by="mixer", label=SPARSE, unit="1", source="deepseek2025v32")
def sparse_attention_decode_core_flops(
    rank_mixer_heads,
    kv_lora_rank,
    qk_rope_head_dim,
    mixer_attended_tokens,
    mixer_cached_tokens,
    index_heads,
    index_head_dim,
    microbatch,
):
    """FLOPs of one decoding step on one rank: the indexer scores the whole context, attention sees the chosen ones."""
    attention = 2 * mixer_attended_tokens * rank_mixer_heads * (2 * kv_lora_rank + qk_rope_head_dim)
    return microbatch * (attention + 2 * mixer_cached_tokens * index_heads * index_head_dim)


@alternative(of="mixer_decode_traffic", by="mixer", label=DENSE, unit="byte", source="pope2022inference")
def LABEL_decode_core_traffic(mixer_attended_tokens, mixer_cache_token_bytes, microbatch):
    """Memory traffic of one decoding step on one rank: keys and values of the tokens attended to."""
    return microbatch * mixer_attended_tokens * mixer_cache_token_bytes


@alternative(of="mixer_decode_traffic", by="mixer", label=SPARSE, unit="byte", source="deepseek2025v32")
def sparse_attention_decode_core_traffic(
    mixer_attended_tokens, mixer_cache_token_bytes, mixer_cached_tokens, index_token_bytes, microbatch
):
    """Memory traffic of one decoding step on one rank: all keys of the indexer, and the latents that it chooses."""
    return microbatch * (mixer_attended_tokens * mixer_cache_token_bytes + mixer_cached_tokens * index_token_bytes)


SEEN = {"window_attention": ("mixer_span", "beltagy2020longformer"), SPARSE: ("index_top_k", "deepseek2025v32")}
FORMULAS = (
    *TABLES,
    *bind(triangle, "causal_pairs", "sequence_length", "1", "vaswani2017"),
    *(
        entry
        for label, (span, source) in SEEN.items()
        for entry in bind(
            *(windowed, f"{label}_pairs", f"sequence_length {span}", "1", source), of=("mixer_pairs", "mixer", label)
        )
    ),
)
