"""Attention: the fused kernel (flash) and the unfused products, by kernel (`attention_kernel`) and by `phase`.

The fused kernel follows the structure of Guo et al. 2025: load from memory, tile products on chip, point-wise work and
reductions, store; the four are added. Blocks of the score matrix above the diagonal are skipped; the unfused products
compute it in full.
"""

from perfgrid.engine import xp
from perfgrid.engine.registry import formula

from .axes import only, table
from .gemm import best_tile_utilisation, gemm_arithmetic_time, gemm_hbm_bytes, gemm_l2_bytes
from .roofline import roofline_shares

# ---- equations of the fused kernel ----------------------------------------------------------------------------------


def flash_block(shared_memory, head_dim, element_size, largest):
    """Side of a square block: Bc = M / (4·d) of algorithm 1 (Dao 2022), a multiple of the matrix unit's 16."""
    steps = xp.floor(shared_memory / (4 * head_dim * element_size) / 16)
    return xp.minimum(xp.maximum(16 * steps, 16.0), largest)


def causal_blocks(sequence, block):
    """Blocks of the score matrix of one head on or below the diagonal."""
    rows = xp.ceil(sequence / block)
    return rows * (rows + 1) / 2


def longest_first_balance(total, longest, cores):
    """Part of the cores that work when items are handed out longest first: none waits beyond the longest item."""
    return xp.minimum(1.0, total / (cores * longest))


# ---- bindings: fused ------------------------------------------------------------------------------------------------


@formula(unit="1", source="dao2022flash")
def attention_block(shared_memory_size, head_dim, activation_size, gemm_tile_m):
    """Rows and columns of the block of scores that one core holds."""
    return flash_block(shared_memory_size, head_dim, activation_size, gemm_tile_m)


@formula(unit="1", source="shoeybi2019megatron")
def rank_heads(microbatch, rank_query_width, head_dim):
    """Query heads of one microbatch on one rank, over all its sequences."""
    return microbatch * rank_query_width / head_dim


@formula(unit="1", source="ainslie2023gqa")
def rank_key_value_heads(microbatch, rank_key_value_width, head_dim):
    """Key heads of one microbatch on one rank, over all its sequences."""
    return microbatch * rank_key_value_width / head_dim


@formula(unit="1", source="dao2023flash2")
def attention_blocks(sequence_length, attention_block, rank_heads):
    """Blocks of scores that the fused kernel computes on one rank."""
    return rank_heads * causal_blocks(sequence_length, attention_block)


@formula(unit="1", source="dao2023flash2")
def attention_balance(attention_blocks, sequence_length, attention_block, cores):
    """Part of the cores that the fused kernel keeps busy: its items are rows of blocks."""
    return longest_first_balance(attention_blocks, xp.ceil(sequence_length / attention_block), cores)


@formula(unit="1", source="dao2023flash2")
def flash_products():
    """Tile products per block of scores, by phase: two forward, five backward."""
    return table("phase", forward=2.0, input_gradient=5.0, weight_gradient=0.0)


@formula(unit="1", source="dao2023flash2")
def flash_operations():
    """Vector operations per score beside the exponential, by phase.

    Forward: scale and subtract, maximum, sum, rounding. Backward: scale and subtract, dP - D, product with P, two
    roundings.
    """
    return table("phase", forward=5.0, input_gradient=6.0, weight_gradient=0.0)


@formula(unit="s", source="guo2025")
def flash_product_time(
    attention_blocks, attention_block, head_dim, flash_products, attention_matrix_rate, attention_balance
):
    """Arithmetic time of the tile products of the fused kernel, by phase."""
    work = 2 * attention_blocks * attention_block * attention_block * head_dim * flash_products
    return work / attention_matrix_rate / attention_balance


@formula(unit="s", source="guo2025")
def flash_cache_time(
    attention_blocks, attention_block, head_dim, activation_size, float32_size, l2_bandwidth, attention_balance
):
    """Time of the cache traffic of the fused kernel, by phase.

    Each block reads a block of keys and of values; backward it also adds to a block of query gradients.
    """
    pair = 2 * activation_size
    size = table("phase", forward=pair, input_gradient=pair + 2 * float32_size, weight_gradient=0.0)
    return attention_blocks * attention_block * head_dim * size / l2_bandwidth / attention_balance


@formula(unit="s", source="guo2025")
def flash_pointwise_time(
    attention_blocks, attention_block, flash_operations, vector_rate, special_function_rate, attention_balance
):
    """Time of exponentials, scaling and reductions of the fused kernel, by phase."""
    scores = attention_blocks * attention_block * attention_block
    exponentials = only("phase", "forward", "input_gradient")
    per_score = exponentials / special_function_rate + flash_operations / vector_rate
    return scores * per_score / attention_balance


@formula(unit="byte", source="dao2022flash")
def flash_hbm_traffic(rank_heads, rank_key_value_heads, sequence_length, head_dim, activation_size, float32_size):
    """Memory traffic of the fused kernel, by phase.

    Forward: load Q, K, V, store O and one statistic per row. Backward: load these and dO, store dQ, dK, dV. Repeated
    reads of K and V hit the cache.
    """
    query = rank_heads * sequence_length * head_dim * activation_size
    key = rank_key_value_heads * sequence_length * head_dim * activation_size
    statistics = rank_heads * sequence_length * float32_size
    return table(
        "phase",
        forward=2 * query + 2 * key + statistics,
        input_gradient=4 * query + 4 * key + statistics,
        weight_gradient=0.0,
    )


@formula(unit="s", source="guo2025")
def flash_time(
    flash_product_time,
    flash_cache_time,
    flash_pointwise_time,
    flash_hbm_traffic,
    achieved_hbm_bandwidth,
    launch_overhead,
):
    """Time of the fused kernel by the resource it waits for, by resource and phase: the terms are added."""
    on_chip = roofline_shares(flash_product_time, 0.0, flash_cache_time, 0.0)
    return on_chip + table(
        "resource",
        arithmetic=flash_pointwise_time,
        hbm=flash_hbm_traffic / achieved_hbm_bandwidth,
        l2=0.0,
        launch=launch_overhead * only("phase", "forward", "input_gradient"),
    )


# ---- bindings: unfused ----------------------------------------------------------------------------------------------


@formula(unit="1", source="korthikanti2022")
def core_columns(sequence_length, head_dim):
    """Columns of the results of the unfused products of one head, by phase and attention_kernel; the rows are s.

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


@formula(unit="s", source="williams2009roofline")
def core_time(
    sequence_length,
    core_columns,
    core_depth,
    rank_heads,
    gemm_tile_m,
    gemm_tile_n,
    gemm_tile_k,
    gemm_cluster,
    cores,
    activation_size,
    l2_size,
    attention_matrix_rate,
    achieved_hbm_bandwidth,
    l2_bandwidth,
    launch_overhead,
):
    """Time of the unfused products (batched over heads), by resource, phase and attention_kernel."""
    shape = (sequence_length, core_columns, core_depth, rank_heads)
    tile = (gemm_tile_m, gemm_tile_n)
    utilisation = best_tile_utilisation(*shape, *tile, gemm_tile_k, cores)
    hbm = gemm_hbm_bytes(*shape, *tile, cores, activation_size, activation_size, l2_size)
    l2 = gemm_l2_bytes(*shape, *tile, gemm_cluster, activation_size, activation_size)
    return roofline_shares(
        gemm_arithmetic_time(*shape, utilisation, attention_matrix_rate),
        hbm / achieved_hbm_bandwidth,
        l2 / l2_bandwidth,
        launch_overhead,
    )


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
