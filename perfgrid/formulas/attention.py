"""Attention: the shapes of its unfused products, and which kernels run. The fused kernel is in `flash`.

Unfused products compute the whole score matrix, whatever part of it is masked.
"""

from perfgrid.engine import xp
from perfgrid.engine.registry import formula

from .axes import only, table

# ---- heads ----------------------------------------------------------------------------------------------------------


@formula(unit="1", source="shoeybi2019megatron")
def rank_heads(microbatch, rank_query_width, head_dim):
    """Query heads of one microbatch on one rank, over all its sequences."""
    return microbatch * rank_query_width / head_dim


@formula(unit="1", source="ainslie2023gqa")
def rank_key_value_heads(microbatch, rank_key_value_width, head_dim):
    """Key heads of one microbatch on one rank, over all its sequences."""
    return microbatch * rank_key_value_width / head_dim


# ---- unfused products (`core` in the family of `gemm`) --------------------------------------------------------------


@formula(unit="1", source="korthikanti2022")
def core_rows(sequence_length):
    """Rows of the results of the unfused products of one head."""
    return sequence_length


@formula(unit="1", source="korthikanti2022")
def core_columns(sequence_length, head_dim):
    """Columns of the results of the unfused products of one head, by phase and attention_kernel.

    Score: S[s,s] = Q·Kᵀ, dQ[s,d], dK[s,d]. Context: O[s,d] = P·V, dP[s,s], dV[s,d].
    """
    s, d = sequence_length, head_dim
    score = table("phase", forward=s, input_gradient=d, weight_gradient=d)
    context = table("phase", forward=d, input_gradient=s, weight_gradient=d)
    return table("attention_kernel", score=score, context=context)


@formula(unit="1", source="korthikanti2022")
def core_depth(sequence_length, head_dim):
    """Summed-over length of the unfused products of one head, by phase and attention_kernel."""
    s, d = sequence_length, head_dim
    score = table("phase", forward=d, input_gradient=s, weight_gradient=s)
    context = table("phase", forward=s, input_gradient=d, weight_gradient=s)
    return table("attention_kernel", score=score, context=context)


@formula(unit="1", source="korthikanti2022")
def core_batch(rank_heads):
    """Unfused products that one kernel computes: one per head."""
    return rank_heads


@formula(unit="byte", source="korthikanti2022")
def core_operand_size(activation_size):
    """Bytes of one operand element of the unfused products."""
    return activation_size


@formula(unit="byte", source="korthikanti2022")
def core_result_size(activation_size):
    """Bytes that the unfused products write per element."""
    return activation_size


@formula(unit="FLOP/s", source="stas2025ml")
def core_matrix_rate(unquantised_matrix_rate):
    """Rate that large unfused products reach."""
    return unquantised_matrix_rate


# ---- which kernels run ----------------------------------------------------------------------------------------------


@formula(unit="1", source="dao2022flash")
def unfused(flash_attention):
    """1 where the scores are computed by separate kernels, 0 with the fused one."""
    return xp.where(flash_attention, 0.0, 1.0)


@formula(unit="1", source="dao2022flash")
def core_kernels(unfused):
    """How often each unfused product runs in one layer, by attention_kernel."""
    return unfused * only("attention_kernel", "score", "context")


@formula(unit="1", source="dao2022flash")
def core_streams(unfused):
    """How often the separate softmax runs in one layer, by stream_kernel."""
    return unfused * only("stream_kernel", "softmax")
