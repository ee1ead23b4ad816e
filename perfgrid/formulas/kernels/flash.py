"""Fused attention (flash), versions 1, 2 and 3, by `phase`: forward, and the whole backward pass as input gradient.

Fused attention never writes the scores S = Q·K' to memory. A core holds one square block of scores, goes through the
blocks of its rows and keeps a running maximum and sum of every row, by which it rescales the result (online softmax).
Memory traffic is then linear in the length of the sequence, and arithmetic stays quadratic.

The time follows the structure of Guo 2025: load, tile products, point-wise work and reductions, store are added.
Operands that stream past while a core computes (keys and values forward, queries backward) are prefetched and count
only where they are slower than the work. What a core waits for at the ends of its item of work (queries and results
forward, keys, values and their gradients backward) is added. Version 3 runs softmax beside products.

Blocks of the score matrix without any visible score are skipped: above the diagonal, before a sliding window, between
chunks and packed documents. Values may be narrower than queries and keys (latent attention). Of context parallelism the
kernel sees only how heads and queries are shared out and how often keys come by (`context_parallel`).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import only, table, total
from perfgrid.formulas.mixer_kinds import ALL

from .roofline import beside, by_resource, shared
from .tiling import wave_utilisation, whole, whole_chunks

WARPS = 4.0  # groups of threads among which version 1 splits the keys of a block (Dao 2023, section 3.3)

# ---- equations ------------------------------------------------------------------------------------------------------


def flash_block(shared_memory, widths, element_size, largest):
    """Side of a square block: Bc = M / (4·d) of algorithm 1 (Dao 2022), a multiple of the matrix unit's 16.

    ``widths`` are those of a query, a key, a value and a result together: 4·d where all heads are alike.
    """
    steps = xp.floor(shared_memory / (widths * element_size) / 16)
    return xp.minimum(xp.maximum(16 * steps, 16.0), largest)


def visible_blocks(sequence, block, window, causal, ranks=1):
    """Blocks of the score matrix of one head that hold a visible score, and those of its longest row.

    Row i of n rows of blocks sees r = window/block + 1 blocks on each side of the diagonal, its own among them, as far
    as there are any; under a causal mask on one side. Of 2·ranks chunks of rows each rank has one and its mirror image
    (zig-zag): counted are those of the rank that has most, which has the two chunks in the middle.
    """
    rows = rank_rows(sequence, block, ranks)
    every = ranks * rows
    reach = xp.minimum(xp.ceil(window / block) + 1, every)

    def above(row):
        growing = xp.minimum(row, reach)
        return growing * (growing + 1) / 2 + (row - growing) * reach

    one_side = above((every + rows) / 2) - above((every - rows) / 2)
    blocks = xp.where(causal, one_side, 2 * one_side - rows)
    return blocks, xp.where(causal, reach, xp.minimum(2 * reach - 1, every))


def rank_rows(sequence, block, ranks):
    """Rows of blocks of one head on one rank; of several ranks each has two chunks, in whole blocks."""
    return xp.where(ranks > 1, 2 * xp.ceil(sequence / (2 * ranks * block)), xp.ceil(sequence / block))


def longest_first_balance(total, longest, cores):
    """Part of the cores that work when items are handed out longest first: none waits beyond the longest item."""
    return xp.minimum(1.0, total / (cores * longest))


def partial_share(ring_partial_size, activation_size):
    """Size of what the passes of a ring add up, in relation to activations: never kept in fewer bytes than these."""
    return xp.maximum(ring_partial_size, activation_size) / activation_size


def side_by_side(first, second, hidden):
    """Time of two kinds of work of which a fraction of the shorter is hidden behind the longer (0: one by one)."""
    return first + second - hidden * xp.minimum(first, second)


# ---- blocks and how they are shared out -----------------------------------------------------------------------------


@formula(unit="1", source="dao2022flash")
def flash_algorithm(flash_version, flash_limit):
    """Version of the fused kernel that runs: the newest of the device that the study allows."""
    return xp.minimum(flash_version, flash_limit)


@formula(unit="1", source="dao2022flash")
def attention_block(shared_memory_size, query_head_width, value_head_width, activation_size, flash_block_limit):
    """Rows and columns of the block of scores that one core holds."""
    widths = 2 * (query_head_width + value_head_width)
    return flash_block(shared_memory_size, widths, activation_size, flash_block_limit)


def by_mask(span, window, chunked_window):
    """Tokens that attend to each other, and those on one side that a token may see of them, by mask.

    All of a document; those of the window; or, where windows are chunks, all of a chunk.
    """
    chunk = xp.where(chunked_window, xp.minimum(span, xp.maximum(window, 1.0)), span)
    return table("mask", whole=span, window=chunk), table(
        "mask", whole=span, window=xp.where(chunked_window, chunk, window)
    )


@formula(unit="1", source="dao2023flash2")
def head_blocks(sequence_length, attended_span, attention_block, window, chunked_window, causal, sequence_split):
    """Blocks of scores of one head that the fused kernel computes on one rank, by mask.

    Of n rows of blocks a causal mask leaves n·(n + 1)/2 blocks; a window of r blocks leaves at most r in every row. A
    sequence is packed with sequence_length / attended_span documents. A chunk is like a document; the last one, a part
    a of a whole one, has a² of its scores.
    """
    spans, sides = by_mask(attended_span, window, chunked_window)
    one = visible_blocks(spans, attention_block, sides, causal, sequence_split)[0]
    whole = whole_chunks(attended_span, spans)
    return sequence_length / attended_span * (whole + (attended_span / spans - whole) ** 2) * one


@formula(unit="1", source="dao2023flash2")
def longest_row_blocks(attended_span, attention_block, window, chunked_window, causal, sequence_split):
    """Blocks of scores in the longest row of blocks of one head, by mask."""
    spans, sides = by_mask(attended_span, window, chunked_window)
    return visible_blocks(spans, attention_block, sides, causal, sequence_split)[1]


@formula(unit="1", source="dao2023flash2")
def attention_blocks(kernel_heads, head_blocks):
    """Blocks of scores that the fused kernel computes on one rank, by mask."""
    return kernel_heads * head_blocks


@formula(unit="1", source="dao2023flash2")
def attention_balance(
    attention_blocks,
    longest_row_blocks,
    kernel_heads,
    sequence_length,
    attended_span,
    attention_block,
    sequence_split,
    ring_passes,
    causal,
    flash_algorithm,
    cores,
):
    """Part of the cores that the fused kernel keeps busy, by mask.

    Version 1 hands out heads, later ones rows of blocks: equal ones in waves, others longest first. When keys come by
    in a ring, the slowest ranks of a step have one of their two chunks of rows see all of these keys (causal).
    """
    own = rank_rows(attended_span, attention_block, sequence_split)  # of one document
    rows = kernel_heads * (sequence_length / attended_span * own)
    equal = (attention_blocks >= rows * longest_row_blocks) | (ring_passes > 1)
    in_waves = wave_utilisation(rows / xp.where((ring_passes > 1) & causal, 2.0, 1.0), cores)
    by_rows = xp.where(equal, in_waves, longest_first_balance(attention_blocks, longest_row_blocks, cores))
    return xp.where(flash_algorithm >= 2, by_rows, wave_utilisation(kernel_heads, cores))


# ---- work on chip ---------------------------------------------------------------------------------------------------


@formula(unit="1", source="dao2023flash2")
def flash_volume(attention_blocks, attention_block, query_head_width, value_head_width, head_width_multiple):
    """Multiply-adds of the tile products of the fused kernel, by mask and phase: two products forward, five backward.

    Over the width of queries and keys S = Q·K' and, backward, S again, dQ and dK; over that of values O = P·V, backward
    dP and dV. Kernels that pad heads multiply the padding, too.
    """
    q, v = (whole(width, head_width_multiple) for width in (query_head_width, value_head_width))
    per_score = table("phase", forward=q + v, input_gradient=3 * q + 2 * v, weight_gradient=0.0)
    return attention_blocks * attention_block**2 * per_score


@formula(unit="byte", source="dao2023flash2")
def flash_shared_memory_traffic(
    flash_volume,
    attention_blocks,
    attention_block,
    query_head_width,
    value_head_width,
    activation_size,
    float32_size,
    flash_algorithm,
):
    """Scratchpad traffic of the fused kernel, by mask and phase.

    Every group of threads reads the operand that it does not own: 16 rows share it, 64 with the group-wide
    instructions of version 3. The groups of version 1 own keys and add up their results (backward the gradients of
    queries) through the scratchpad.
    """
    operands = flash_volume * activation_size / xp.where(flash_algorithm >= 3, 64.0, 16.0)
    width = table("phase", forward=value_head_width, input_gradient=query_head_width, weight_gradient=0.0)
    exchanged = 2 * WARPS * float32_size * attention_blocks * attention_block * width
    return operands + xp.where(flash_algorithm >= 2, 0.0, exchanged)


@formula(unit="1", source="dao2023flash2")
def flash_operations(value_head_width, attention_block, flash_algorithm):
    """Vector operations per score beside the exponential (a multiply-add and any other counted as two), by phase.

    Forward: scale and subtract, maximum, sum, rounding to half (7), and the results of a row rescaled once per block,
    by version 1 the old and the new ones and divided. Backward: scale and subtract, dP - D, product with P, two
    roundings (8).
    """
    rescaled = 2 * value_head_width / attention_block * xp.where(flash_algorithm >= 2, 1.0, 3.0)
    return table("phase", forward=7 + rescaled, input_gradient=8.0, weight_gradient=0.0)


@formula(unit="s", source="shah2024flash3")
def score_softmax_time(flash_operations, vector_rate, special_function_rate):
    """Time of the softmax of one score on a whole device, by phase: an exponential, scaling and reductions."""
    return only("phase", "forward", "input_gradient") / special_function_rate + flash_operations / vector_rate


@formula(unit="1", source="shah2024flash3")
def hidden_softmax(flash_algorithm, softmax_overlap):
    """Part of the shorter of products and softmax that the forward pass hides: from version 3 on, else none.

    Groups of threads take turns at the matrix units (section 3.2 and figure 2).
    """
    return xp.where(flash_algorithm >= 3, softmax_overlap, 0.0)


@formula(unit="s", source="shah2024flash3")
def flash_compute_time(
    flash_volume,
    flash_shared_memory_traffic,
    score_softmax_time,
    hidden_softmax,
    attention_blocks,
    attention_block,
    unquantised_matrix_rate,
    usable_shared_memory_bandwidth,
    flash_slowdown,
    flash_efficiency,
    attention_balance,
):
    """Time of the work on chip, by mask, phase and resource.

    Products take the longer of 2·volume / matrix rate and their scratchpad traffic. Exponentials, scaling and
    reductions come after them or, in the forward pass, partly beside them. The backward pass with five products has
    no registers for that. Arithmetic and scratchpad share the time as they share that of the products.
    """
    arithmetic = 2 * flash_volume / unquantised_matrix_rate
    scratchpad = flash_shared_memory_traffic / usable_shared_memory_bandwidth
    softmax = attention_blocks * attention_block**2 * score_softmax_time
    hidden = hidden_softmax * only("phase", "forward")
    counted = side_by_side(xp.maximum(arithmetic, scratchpad), softmax, hidden) / attention_balance
    time = flash_slowdown * counted / flash_efficiency
    by_arithmetic, by_scratchpad = shared(arithmetic, scratchpad)
    longer = by_arithmetic + by_scratchpad
    return by_resource(by_arithmetic, 0.0, by_scratchpad) * time / xp.where(longer > 0, longer, 1e10)


# ---- traffic --------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="ainslie2023gqa")
def key_value_tensor(kernel_key_heads, sequence_length, query_head_width, value_head_width, activation_size):
    """Keys and values of one microbatch that one rank attends to: b·n_kv·s·(d_k + d_v) elements.

    Those of latents are expanded before. Their gradients are as large.
    """
    return kernel_key_heads * sequence_length * (query_head_width + value_head_width) * activation_size


@formula(unit="byte", source="dao2023flash2")
def flash_streamed_traffic(
    key_value_tensor, kernel_heads, rank_sequence, query_head_width, value_head_width, activation_size
):
    """Memory traffic that the fused kernel prefetches, by phase: keys and values; backward queries and dO."""
    queries = kernel_heads * rank_sequence * (query_head_width + value_head_width) * activation_size
    return table("phase", forward=key_value_tensor, input_gradient=queries, weight_gradient=0.0)


@formula(unit="byte", source="dao2022flash")
def flash_exposed_traffic(
    key_value_tensor,
    activation_size,
    float32_size,
    kernel_heads,
    rank_sequence,
    attention_blocks,
    attention_block,
    query_head_width,
    value_head_width,
    flash_algorithm,
    ring_passes,
    ring_partial_size,
):
    """Memory traffic that the fused kernel waits for, by phase.

    Forward queries, results and one statistic per row. Backward keys, values and their gradients; before it the
    products of outputs and dO, after it query gradients from single precision, which were cleared first. Version 1
    reads queries and reads and writes results (backward also outputs, dO and query gradients) once per block.
    When keys come by in a ring, all of a row is read and written in every pass, and what the passes give is added up:
    it is read, the sum so far read and written (``ring_partial_size``).
    """
    queries = kernel_heads * rank_sequence * query_head_width * activation_size
    results = kernel_heads * rank_sequence * value_head_width * activation_size
    statistics = float32_size * kernel_heads * rank_sequence
    in_single = queries * (float32_size / activation_size)
    forward = ring_passes * (queries + results + statistics)
    rows = 2 * results + 2 * in_single + queries + statistics
    backward = 2 * key_value_tensor + ring_passes * rows
    blocks = attention_blocks * attention_block
    again_forward = blocks * (activation_size * query_head_width + 2 * float32_size * value_head_width)
    again_backward = blocks * (
        activation_size * (query_head_width + 2 * value_head_width) + 2 * float32_size * query_head_width
    )
    first = flash_algorithm < 2
    added = (1 + 2 * partial_share(ring_partial_size, activation_size)) * (ring_passes - 1)
    added_forward = added * results
    added_backward = added * (queries + key_value_tensor / ring_passes)
    return table(
        "phase",
        forward=xp.where(first, again_forward, forward) + added_forward,
        input_gradient=backward + xp.where(first, again_backward, 0.0) + added_backward,
        weight_gradient=0.0,
    )


def read_from_cache(blocks, block, query_width, value_width, element_size):
    """Bytes of the streamed operands of every block, by phase: keys and values; backward queries and dO."""
    operands = (query_width + value_width) * element_size
    return blocks * block * operands * only("phase", "forward", "input_gradient")


def added_in_cache(blocks, block, query_width, accumulator_size):
    """Bytes of the query gradients of every block, which are added up in the cache: one transfer each."""
    return blocks * block * query_width * accumulator_size * only("phase", "input_gradient")


# ---- time -----------------------------------------------------------------------------------------------------------


def flash_launches(ring_passes, sequence_split):
    """Kernels started by fused attention, by phase; backward one before it and one after it.

    Fused attention runs once in every pass of a ring, and once for each of two chunks of queries where keys are
    gathered. What the passes of a ring give is added up by kernels of their own: results, and gradients of queries and
    of keys.
    """
    calls = xp.where((sequence_split > 1) & (ring_passes <= 1), 2.0, ring_passes)
    added = ring_passes - 1
    return table("phase", forward=calls + added, input_gradient=3 * calls + 2 * added, weight_gradient=0.0)


@alternative(of="flash_time", by="indexer", label=ALL, unit="s", source="guo2025")
def dense_flash_time(
    flash_compute_time,
    attention_blocks,
    attention_block,
    query_head_width,
    value_head_width,
    activation_size,
    float32_size,
    l2_bandwidth,
    flash_streamed_traffic,
    flash_exposed_traffic,
    ring_passes,
    sequence_split,
    mask_share,
    achieved_hbm_bandwidth,
    launch_overhead,
):
    """Time of the fused kernel, mean of all layers, by resource and phase.

    max(work on chip, cache reads, prefetched memory traffic) + query gradients added in the cache + exposed traffic +
    launches.
    """
    read = read_from_cache(attention_blocks, attention_block, query_head_width, value_head_width, activation_size)
    added = added_in_cache(attention_blocks, attention_block, query_head_width, float32_size)
    streamed = flash_streamed_traffic / achieved_hbm_bandwidth
    block_by_block = beside(flash_compute_time, l2=read / l2_bandwidth, hbm=streamed)
    exposed = flash_exposed_traffic / achieved_hbm_bandwidth
    launches = launch_overhead * flash_launches(ring_passes, sequence_split)
    time = block_by_block + by_resource(0.0, 0.0, 0.0, added / l2_bandwidth, exposed, launches)
    return total(mask_share * time, "mask")
