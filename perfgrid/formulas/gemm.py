"""Matrix products: tiles, waves, traffic and time, by kernel (`gemm_kernel`) and by `phase`.

The products of the backward pass are permutations of the forward one: with Y[M,N] = X[M,K]·W[K,N] the input gradient is
[M,K] = [M,N]·[N,K] and the weight gradient [N,K] = [N,M]·[M,K].
"""

from perfgrid.engine import xp
from perfgrid.engine.registry import formula

from .axes import only, table
from .roofline import roofline_shares

# ---- equations ------------------------------------------------------------------------------------------------------


def tile_utilisation(m, n, batch, tile_m, tile_n, cores):
    """Useful part of the arithmetic of tiled products: padding at the edges times the last, partly filled wave.

    One tile per core at a time (tiles that keep the matrix units busy fill a core).
    """
    tiles_m, tiles_n = xp.ceil(m / tile_m), xp.ceil(n / tile_n)
    edge = (m / (tiles_m * tile_m)) * (n / (tiles_n * tile_n))
    waves = batch * tiles_m * tiles_n / cores
    return edge * waves / xp.ceil(waves)


def best_tile_utilisation(m, n, k, batch, tile_m, tile_n, tile_k, cores):
    """Utilisation with the better of the tile's two orientations, and of the padded depth."""
    upright = tile_utilisation(m, n, batch, tile_m, tile_n, cores)
    turned = tile_utilisation(m, n, batch, tile_n, tile_m, cores)
    return xp.maximum(upright, turned) * k / (xp.ceil(k / tile_k) * tile_k)


def operand_loads(m, n, k, block_rows, block_columns):
    """Operand elements read if each block of the result reads its own rows and columns (blocks may be fractional)."""
    return k * (m * block_columns + n * block_rows)


def wave_blocks(m, n, tile_m, tile_n, cores):
    """Block rows and columns of the result if all cores compute one nearly square block at a time (swizzled order)."""
    area = cores * tile_m * tile_n
    side = xp.sqrt(area)
    rows, columns = xp.maximum(side, area / n), xp.maximum(side, area / m)
    return xp.maximum(m / rows, 1.0), xp.maximum(n / columns, 1.0)


def gemm_arithmetic_time(m, n, k, batch, utilisation, rate):
    """Time of the multiply-adds at the achieved rate, padding and idle cores included."""
    return 2 * batch * m * n * k / rate / utilisation


def gemm_hbm_bytes(m, n, k, batch, tile_m, tile_n, cores, operand_size, output_size, l2_size):
    """Memory traffic: the blocks of a wave share operands; operands that fit the cache are read once."""
    once = (m * k + k * n) * operand_size
    loads = operand_loads(m, n, k, *wave_blocks(m, n, tile_m, tile_n, cores)) * operand_size
    return batch * (xp.where(once <= l2_size, once, loads) + m * n * output_size)


def gemm_l2_bytes(m, n, k, batch, tile_m, tile_n, cluster, operand_size, output_size):
    """Traffic between cache and cores: a cluster of tiles, one above the other, reads its operands once."""
    loads = operand_loads(m, n, k, xp.ceil(m / (tile_m * cluster)), xp.ceil(n / tile_n))
    return batch * (loads * operand_size + m * n * output_size)


# ---- bindings -------------------------------------------------------------------------------------------------------


@formula(unit="1", source="shoeybi2019megatron")
def gemm_outputs(
    hidden_size, rank_query_width, rank_key_value_width, rank_ffn_size, ffn_input_matrices, rank_vocab_size
):
    """Output columns of each forward product on one rank, by gemm_kernel."""
    return table(
        "gemm_kernel",
        qkv=rank_query_width + 2 * rank_key_value_width,
        attention_output=hidden_size,
        ffn_up=rank_ffn_size * ffn_input_matrices,
        ffn_down=hidden_size,
        logits=rank_vocab_size,
    )


@formula(unit="1", source="shoeybi2019megatron")
def gemm_inputs(hidden_size, rank_query_width, rank_ffn_size):
    """Depth of each forward product on one rank, by gemm_kernel."""
    return table(
        "gemm_kernel",
        qkv=hidden_size,
        attention_output=rank_query_width,
        ffn_up=hidden_size,
        ffn_down=rank_ffn_size,
        logits=hidden_size,
    )


@formula(unit="1", source="shoeybi2019megatron")
def gemm_rows(microbatch_tokens, gemm_outputs):
    """Rows of the result of each product, by phase and gemm_kernel."""
    m, n = microbatch_tokens, gemm_outputs
    return table("phase", forward=m, input_gradient=m, weight_gradient=n)


@formula(unit="1", source="shoeybi2019megatron")
def gemm_columns(gemm_outputs, gemm_inputs):
    """Columns of the result of each product, by phase and gemm_kernel."""
    n, k = gemm_outputs, gemm_inputs
    return table("phase", forward=n, input_gradient=k, weight_gradient=k)


@formula(unit="1", source="shoeybi2019megatron")
def gemm_depth(microbatch_tokens, gemm_outputs, gemm_inputs):
    """Summed-over length of each product, by phase and gemm_kernel."""
    m, n, k = microbatch_tokens, gemm_outputs, gemm_inputs
    return table("phase", forward=k, input_gradient=n, weight_gradient=m)


@formula(unit="1", source="nvidia2023matmul")
def gemm_utilisation(gemm_rows, gemm_columns, gemm_depth, gemm_tile_m, gemm_tile_n, gemm_tile_k, cores):
    """Useful part of the arithmetic after tile and wave quantisation, by phase and gemm_kernel."""
    return best_tile_utilisation(gemm_rows, gemm_columns, gemm_depth, 1.0, gemm_tile_m, gemm_tile_n, gemm_tile_k, cores)


@formula(unit="s", source="williams2009roofline")
def gemm_compute_time(gemm_rows, gemm_columns, gemm_depth, gemm_utilisation, matrix_rate):
    """Arithmetic time of each product, by phase and gemm_kernel."""
    return gemm_arithmetic_time(gemm_rows, gemm_columns, gemm_depth, 1.0, gemm_utilisation, matrix_rate)


@formula(unit="byte", source="korthikanti2022")
def gemm_result_size(activation_size):
    """Bytes that a product writes per element, by phase: the weight gradient is accumulated apart."""
    return activation_size * only("phase", "forward", "input_gradient")


@formula(unit="byte", source="hong1981pebble")
def gemm_hbm_traffic(
    gemm_rows, gemm_columns, gemm_depth, gemm_tile_m, gemm_tile_n, cores, operand_size, gemm_result_size, l2_size
):
    """Memory traffic of each product, by phase and gemm_kernel."""
    return gemm_hbm_bytes(
        gemm_rows,
        gemm_columns,
        gemm_depth,
        1.0,
        gemm_tile_m,
        gemm_tile_n,
        cores,
        operand_size,
        gemm_result_size,
        l2_size,
    )


@formula(unit="byte", source="hong1981pebble")
def gemm_l2_traffic(
    gemm_rows, gemm_columns, gemm_depth, gemm_tile_m, gemm_tile_n, gemm_cluster, operand_size, gemm_result_size
):
    """Cache traffic of each product, by phase and gemm_kernel."""
    shape = (gemm_rows, gemm_columns, gemm_depth, 1.0)
    return gemm_l2_bytes(*shape, gemm_tile_m, gemm_tile_n, gemm_cluster, operand_size, gemm_result_size)


@formula(unit="s", source="shoeybi2019megatron")
def gradient_accumulation_time(gemm_rows, gemm_columns, gradient_size, achieved_hbm_bandwidth):
    """Time to read, add to and write the accumulated weight gradient, by phase and gemm_kernel.

    The epilogue of the weight-gradient product (Megatron-LM's accumulation fusion); it follows the arithmetic of its
    tile and is not hidden behind it.
    """
    accumulated = 2 * gradient_size * gemm_rows * gemm_columns / achieved_hbm_bandwidth
    return accumulated * only("phase", "weight_gradient")


@formula(unit="s", source="williams2009roofline")
def gemm_time(
    gemm_compute_time,
    gemm_hbm_traffic,
    gemm_l2_traffic,
    gradient_accumulation_time,
    achieved_hbm_bandwidth,
    l2_bandwidth,
    launch_overhead,
):
    """Time of each product by the resource it waits for, by resource, phase and gemm_kernel."""
    product = roofline_shares(
        gemm_compute_time, gemm_hbm_traffic / achieved_hbm_bandwidth, gemm_l2_traffic / l2_bandwidth, launch_overhead
    )
    return product + gradient_accumulation_time * only("resource", "hbm")


@formula(unit="1", source="shoeybi2019megatron")
def layer_gemms():
    """How often each product runs in one layer, by gemm_kernel."""
    return only("gemm_kernel", "qkv", "attention_output", "ffn_up", "ffn_down")


@formula(unit="1", source="korthikanti2022")
def column_parallel_gemms():
    """The products of a layer whose weights are split by columns, by gemm_kernel: their inputs are gathered."""
    return only("gemm_kernel", "qkv", "ffn_up")
