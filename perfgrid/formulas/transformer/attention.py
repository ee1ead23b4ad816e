"""Attention: the shapes of its unfused products, and which kernels run. The fused kernel is in `flash`.

Unfused products compute the whole score matrix, whatever part of it is masked.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula, synonyms
from perfgrid.engine.graph.tables import constants
from perfgrid.formulas.axes import only, table
from perfgrid.formulas.kernels.tiling import whole_chunks

FORMULAS = (
    *constants(
        {"load_size": (16.0, "byte", "nvidia2023matmul", "Bytes that a thread loads at once for matrix units.")}
    ),
    *synonyms(  # shapes of the unfused products
        {
            "core_rows": ("sequence_length", "1", "korthikanti2022", "Rows of the results of one head."),
            "core_batch": ("rank_heads", "1", "korthikanti2022", "Products that one kernel computes: one per head."),
            "core_operand_size": ("activation_size", "byte", "korthikanti2022", "Bytes of an operand element."),
            "core_result_size": ("activation_size", "byte", "korthikanti2022", "Bytes of a result element."),
            "core_kernels": ("unfused", "1", "dao2022flash", "How often each of them runs in one layer."),
        }
    ),
)


# ---- heads ----------------------------------------------------------------------------------------------------------


@formula(unit="1", source="shoeybi2019megatron")
def rank_heads(microbatch, rank_query_width, query_head_width):
    """Query heads of one microbatch on one rank, over all its sequences."""
    return microbatch * rank_query_width / query_head_width


# ---- masks ----------------------------------------------------------------------------------------------------------


def seen_by_mask(tokens, window, chunked_window):
    """Tokens among the first ``tokens`` that the last one attends to, by mask: all; of its window, or of its chunk."""
    span = xp.maximum(window, 1.0)
    in_chunk = tokens - whole_chunks(tokens, span) * span
    return table("mask", whole=tokens, window=xp.where(chunked_window, in_chunk, xp.minimum(tokens, span)))


def mean_in_chunk(first, count, chunk):
    """Tokens of its chunk that a token attends to, mean of the ``count`` tokens from ``first`` on, itself among them.

    The first p tokens have nC(C + 1)/2 + r(r + 1)/2 such pairs in n whole chunks of C tokens and one of r.
    """
    span = xp.maximum(chunk, 1.0)

    def pairs(tokens):
        whole = whole_chunks(tokens, span)
        rest = tokens - whole * span
        return whole * span * (span + 1) / 2 + rest * (rest + 1) / 2

    return (pairs(first + count - 1) - pairs(first - 1)) / count


@formula(unit="1", source="beltagy2020longformer")
def windowed_layers_fraction(window, window_layers, layers, attention_free_layers):
    """Part of the layers with attention that attend in a sliding window: all where the model states a window only."""
    attending = layers - attention_free_layers
    return xp.where(window > 0, xp.where(window_layers > 0, window_layers, attending) / attending, 0.0)


@formula(unit="1", source="beltagy2020longformer")
def mask_share(windowed_layers_fraction):
    """Part of the layers, by mask."""
    return table("mask", whole=1 - windowed_layers_fraction, window=windowed_layers_fraction)


@formula(unit="1", source="krell2021packing")
def attended_span(sequence_length, document_length, document_variation):
    """Length of equal documents that have as many scores as those packed into a sequence; without any the sequence.

    Scores grow with the square of a document's length l: documents of mean length L and coefficient of variation v have
    as many per token as documents of length E[l²]/E[l] = L·(1 + v²).
    """
    span = xp.minimum(document_length * (1 + document_variation**2), sequence_length)
    return xp.where(document_length > 0, span, sequence_length)


# ---- unfused products (`core` in the family of `gemm`) --------------------------------------------------------------


@formula(unit="1", source="korthikanti2022")
def core_columns(sequence_length, query_head_width, value_head_width):
    """Columns of the results of the unfused products of one head, by phase and attention_kernel.

    Score: S[s,s] = Q·Kᵀ, dQ[s,d], dK[s,d]. Context: O[s,d] = P·V, dP[s,s], dV[s,d].
    """
    s, q, v = sequence_length, query_head_width, value_head_width
    score = table("phase", forward=s, input_gradient=q, weight_gradient=q)
    context = table("phase", forward=v, input_gradient=s, weight_gradient=v)
    return table("attention_kernel", score=score, context=context)


@formula(unit="1", source="korthikanti2022")
def core_depth(sequence_length, query_head_width, value_head_width):
    """Summed-over length of the unfused products of one head, by phase and attention_kernel."""
    s, q, v = sequence_length, query_head_width, value_head_width
    score = table("phase", forward=q, input_gradient=s, weight_gradient=s)
    context = table("phase", forward=s, input_gradient=v, weight_gradient=s)
    return table("attention_kernel", score=score, context=context)


@formula(unit="FLOP/s", source="nvidia2023matmul")
def core_matrix_rate(
    sequence_length,
    query_head_width,
    value_head_width,
    core_operand_size,
    load_size,
    core_needs_loads,
    unquantised_matrix_rate,
    vector_rate,
):
    """Rate that large unfused products reach: that of the vector units where the library needs aligned rows.

    Aligned rows fill whole loads of 16 bytes. BLOOM's runs of 2022 needed them (inferred from their times: heads of 108
    numbers take as long as on vector units); later libraries use the matrix units for all rows.
    """
    rows = (sequence_length, query_head_width, value_head_width)
    loads = [row * core_operand_size / load_size for row in rows]
    ragged = sum(xp.ceil(load) - load for load in loads) > 0
    slower = xp.minimum(vector_rate, unquantised_matrix_rate)
    return xp.where(core_needs_loads & ragged, slower, unquantised_matrix_rate)


# ---- which kernels run ----------------------------------------------------------------------------------------------


@formula(unit="1", source="dao2022flash")
def unfused(flash_attention):
    """1 where the scores are computed by separate kernels, 0 with the fused one."""
    return xp.where(flash_attention, 0.0, 1.0)


@formula(unit="1", source="dao2022flash")
def core_streams(unfused):
    """How often the separate softmax runs in one layer, by stream_kernel."""
    return unfused * only("stream_kernel", "softmax")
