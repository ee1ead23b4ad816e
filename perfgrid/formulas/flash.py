"""Fused attention (flash), versions 1, 2 and 3, by `phase`: forward, and the whole backward pass as input gradient.

Structure of Guo et al. 2025: load, tile products, point-wise work and reductions, store are added. Operands that stream
past while a core computes (keys and values forward, queries backward) are prefetched, so they only count where they are
slower than the work; what a core waits for at the ends of its item of work (queries and results forward, keys, values
and their gradients backward) is added. Version 3 runs softmax beside products.

Blocks of the score matrix without any visible score are skipped: above the diagonal, and before a sliding window.
"""

from perfgrid.engine import xp
from perfgrid.engine.registry import formula

from .axes import only, table, total
from .gemm import wave_utilisation
from .roofline import roofline_shares

WARPS = 4.0  # groups of threads among which version 1 splits the keys of a block (Dao 2023, section 3.3)

# ---- equations ------------------------------------------------------------------------------------------------------


def flash_block(shared_memory, head_dim, element_size, largest):
    """Side of a square block: Bc = M / (4·d) of algorithm 1 (Dao 2022), a multiple of the matrix unit's 16."""
    steps = xp.floor(shared_memory / (4 * head_dim * element_size) / 16)
    return xp.minimum(xp.maximum(16 * steps, 16.0), largest)


def visible_blocks(sequence, block, window, causal):
    """Blocks of the score matrix of one head that hold a visible score, and those of its longest row.

    Row i of n rows of blocks sees r = window/block + 1 blocks on each side of the diagonal, its own among them, as far
    as there are any; under a causal mask on one side.
    """
    rows = xp.ceil(sequence / block)
    reach = xp.minimum(xp.ceil(window / block) + 1, rows)
    one_side = reach * (reach + 1) / 2 + (rows - reach) * reach
    both_sides = rows * (2 * reach - 1) - reach * (reach - 1)
    blocks = xp.where(causal, one_side, both_sides)
    return blocks, xp.where(causal, reach, xp.minimum(2 * reach - 1, rows))


def longest_first_balance(total, longest, cores):
    """Part of the cores that work when items are handed out longest first: none waits beyond the longest item."""
    return xp.minimum(1.0, total / (cores * longest))


def side_by_side(first, second, hidden):
    """Time of two kinds of work of which a fraction of the shorter is hidden behind the longer (0: one by one)."""
    return first + second - hidden * xp.minimum(first, second)


# ---- blocks and how they are shared out -----------------------------------------------------------------------------


@formula(unit="1", source="dao2022flash")
def flash_algorithm(flash_version, flash_limit):
    """Version of the fused kernel that runs: the newest of the device that the study allows."""
    return xp.minimum(flash_version, flash_limit)


@formula(unit="1", source="dao2022flash")
def attention_block(shared_memory_size, head_dim, activation_size, flash_block_limit):
    """Rows and columns of the block of scores that one core holds."""
    return flash_block(shared_memory_size, head_dim, activation_size, flash_block_limit)


@formula(unit="1", source="beltagy2020longformer")
def windowed_layers_fraction(window, window_layers, layers):
    """Part of the layers that attend in a sliding window: all of them where the model states a window only."""
    return xp.where(window > 0, xp.where(window_layers > 0, window_layers, layers) / layers, 0.0)


@formula(unit="1", source="beltagy2020longformer")
def mask_share(windowed_layers_fraction):
    """Part of the layers, by mask."""
    return table("mask", whole=1 - windowed_layers_fraction, window=windowed_layers_fraction)


@formula(unit="1", source="beltagy2020longformer")
def mask_window(sequence_length, window):
    """Tokens on one side that a token may attend to, by mask."""
    return table("mask", whole=sequence_length, window=window)


@formula(unit="1", source="dao2023flash2")
def head_blocks(sequence_length, attention_block, mask_window, causal):
    """Blocks of scores of one head that the fused kernel computes, by mask."""
    return visible_blocks(sequence_length, attention_block, mask_window, causal)[0]


@formula(unit="1", source="dao2023flash2")
def longest_row_blocks(sequence_length, attention_block, mask_window, causal):
    """Blocks of scores in the longest row of blocks of one head, by mask."""
    return visible_blocks(sequence_length, attention_block, mask_window, causal)[1]


@formula(unit="1", source="dao2023flash2")
def attention_blocks(rank_heads, head_blocks):
    """Blocks of scores that the fused kernel computes on one rank, by mask."""
    return rank_heads * head_blocks


@formula(unit="1", source="dao2023flash2")
def attention_balance(
    attention_blocks, longest_row_blocks, rank_heads, sequence_length, attention_block, flash_algorithm, cores
):
    """Part of the cores that the fused kernel keeps busy, by mask.

    Version 1 hands out heads, later ones rows of blocks: equal ones in waves, others longest first.
    """
    rows = xp.ceil(sequence_length / attention_block)
    equal = attention_blocks >= rank_heads * rows * longest_row_blocks
    in_waves = wave_utilisation(rank_heads * rows, cores)
    by_rows = xp.where(equal, in_waves, longest_first_balance(attention_blocks, longest_row_blocks, cores))
    return xp.where(flash_algorithm >= 2, by_rows, wave_utilisation(rank_heads, cores))


# ---- work on chip ---------------------------------------------------------------------------------------------------


@formula(unit="1", source="dao2023flash2")
def flash_products():
    """Tile products per block of scores, by phase: two forward, five backward."""
    return table("phase", forward=2.0, input_gradient=5.0, weight_gradient=0.0)


@formula(unit="1", source="dao2023flash2")
def flash_volume(attention_blocks, attention_block, head_dim, flash_products):
    """Multiply-adds of the tile products of the fused kernel, by mask and phase."""
    return attention_blocks * attention_block**2 * head_dim * flash_products


@formula(unit="s", source="guo2025")
def flash_arithmetic_time(flash_volume, unquantised_matrix_rate):
    """Time of the tile products of the fused kernel with all cores at work, by phase."""
    return 2 * flash_volume / unquantised_matrix_rate


@formula(unit="s", source="dao2023flash2")
def flash_shared_memory_time(
    flash_volume,
    attention_blocks,
    attention_block,
    head_dim,
    activation_size,
    float32_size,
    flash_algorithm,
    usable_shared_memory_bandwidth,
):
    """Time of the scratchpad traffic of the fused kernel with all cores at work, by phase.

    Every group of threads reads the operand that it does not own: 16 rows share it, 64 with the group-wide
    instructions of version 3. The groups of version 1 own keys and add up their results through the scratchpad.
    """
    operands = flash_volume * activation_size / xp.where(flash_algorithm >= 3, 64.0, 16.0)
    exchanged = 2 * WARPS * float32_size * attention_blocks * attention_block * head_dim
    passes = only("phase", "forward", "input_gradient")
    added = xp.where(flash_algorithm >= 2, 0.0, exchanged) * passes
    return (operands + added) / usable_shared_memory_bandwidth


@formula(unit="1", source="dao2023flash2")
def flash_operations(head_dim, attention_block, flash_algorithm):
    """Vector operations per score beside the exponential (a multiply-add and any other counted as two), by phase.

    Forward: scale and subtract, maximum, sum, rounding to half (7), and the results of a row rescaled once per block,
    by version 1 the old and the new ones and divided. Backward: scale and subtract, dP - D, product with P, two
    roundings (8).
    """
    rescaled = 2 * head_dim / attention_block * xp.where(flash_algorithm >= 2, 1.0, 3.0)
    return table("phase", forward=7 + rescaled, input_gradient=8.0, weight_gradient=0.0)


@formula(unit="s", source="guo2025")
def flash_pointwise_time(attention_blocks, attention_block, flash_operations, vector_rate, special_function_rate):
    """Time of exponentials, scaling and reductions of the fused kernel with all cores at work, by phase."""
    exponentials = only("phase", "forward", "input_gradient")
    per_score = exponentials / special_function_rate + flash_operations / vector_rate
    return attention_blocks * attention_block**2 * per_score


@formula(unit="s", source="shah2024flash3")
def flash_compute_time(
    flash_arithmetic_time,
    flash_shared_memory_time,
    flash_pointwise_time,
    flash_algorithm,
    softmax_overlap,
    attention_balance,
):
    """Time of the work on chip, by phase: products and softmax one by one or, in version 3, partly side by side."""
    products = xp.maximum(flash_arithmetic_time, flash_shared_memory_time)
    hidden = xp.where(flash_algorithm >= 3, softmax_overlap, 0.0)
    return side_by_side(products, flash_pointwise_time, hidden) / attention_balance


# ---- traffic --------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="shoeybi2019megatron")
def query_tensor(rank_heads, sequence_length, head_dim, activation_size):
    """Queries of one microbatch on one rank; outputs and both their gradients are as large."""
    return rank_heads * sequence_length * head_dim * activation_size


@formula(unit="byte", source="ainslie2023gqa")
def key_tensor(rank_key_value_heads, sequence_length, head_dim, activation_size):
    """Keys of one microbatch on one rank; values and both their gradients are as large."""
    return rank_key_value_heads * sequence_length * head_dim * activation_size


@formula(unit="byte", source="dao2023flash2")
def flash_streamed_traffic(query_tensor, key_tensor):
    """Memory traffic that the fused kernel prefetches, by phase: keys and values; backward queries and dO."""
    return table("phase", forward=2 * key_tensor, input_gradient=2 * query_tensor, weight_gradient=0.0)


@formula(unit="byte", source="dao2022flash")
def flash_exposed_traffic(
    query_tensor,
    key_tensor,
    activation_size,
    float32_size,
    rank_heads,
    sequence_length,
    attention_blocks,
    attention_block,
    head_dim,
    flash_algorithm,
):
    """Memory traffic that the fused kernel waits for, by phase.

    Forward queries, results and one statistic per row. Backward keys, values and their gradients; before it the
    products of outputs and dO, after it query gradients from single precision, which were cleared first. Version 1
    reads queries and reads and writes results (backward also outputs, dO and query gradients) once per block.
    """
    statistics = float32_size * rank_heads * sequence_length
    in_single = query_tensor * (float32_size / activation_size)
    forward = 2 * query_tensor + statistics
    backward = 4 * key_tensor + 2 * query_tensor + 2 * in_single + query_tensor + statistics
    row = attention_blocks * attention_block * head_dim
    again_forward = row * (activation_size + 2 * float32_size)
    again_backward = row * (3 * activation_size + 2 * float32_size)
    first = flash_algorithm < 2
    return table(
        "phase",
        forward=xp.where(first, again_forward, forward),
        input_gradient=backward + xp.where(first, again_backward, 0.0),
        weight_gradient=0.0,
    )


@formula(unit="s", source="guo2025")
def flash_cache_time(attention_blocks, attention_block, head_dim, activation_size, l2_bandwidth):
    """Time to read the streamed operands of every block from the cache, by phase: two of them."""
    passes = only("phase", "forward", "input_gradient")
    return 2 * attention_blocks * attention_block * head_dim * activation_size * passes / l2_bandwidth


@formula(unit="s", source="dao2023flash2")
def flash_added_gradients_time(attention_blocks, attention_block, head_dim, float32_size, l2_bandwidth):
    """Time to add the query gradients of every block to those in the cache, by phase: one transfer each."""
    transfers = float32_size * only("phase", "input_gradient")
    return attention_blocks * attention_block * head_dim * transfers / l2_bandwidth


# ---- time -----------------------------------------------------------------------------------------------------------


@formula(unit="1", source="dao2023flash2")
def flash_launches():
    """Kernels started by fused attention, by phase; backward one before it and one after it."""
    return table("phase", forward=1.0, input_gradient=3.0, weight_gradient=0.0)


@formula(unit="s", source="guo2025")
def flash_time(
    flash_compute_time,
    flash_arithmetic_time,
    flash_shared_memory_time,
    flash_cache_time,
    flash_added_gradients_time,
    flash_streamed_traffic,
    flash_exposed_traffic,
    flash_launches,
    mask_share,
    achieved_hbm_bandwidth,
    launch_overhead,
):
    """Time of the fused kernel by the resource it waits for, mean of all layers, by resource and phase."""
    by_scratchpad = flash_shared_memory_time > flash_arithmetic_time
    block_by_block = roofline_shares(
        arithmetic=xp.where(by_scratchpad, 0.0, flash_compute_time),
        shared_memory=xp.where(by_scratchpad, flash_compute_time, 0.0),
        l2=flash_cache_time,
        hbm=flash_streamed_traffic / achieved_hbm_bandwidth,
    )
    time = (
        block_by_block
        + flash_added_gradients_time * only("resource", "l2")
        + flash_exposed_traffic / achieved_hbm_bandwidth * only("resource", "hbm")
        + launch_overhead * flash_launches * only("resource", "launch")
    )
    return total(mask_share * time, "mask")
