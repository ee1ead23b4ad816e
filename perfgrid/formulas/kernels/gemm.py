"""Matrix products: tiles, waves, traffic at every level and time, by `phase` or `pass`, for four families of kernels.

``gemm`` are the products with weights (`product`, shapes in `layer_products`), ``core`` the batched products of unfused
attention (`attention_kernel`, shapes in `attention`), ``grouped`` and ``expert`` those of the experts of a rank in
training and in serving (`expert_product`, shapes in `moe`).
The products of the backward pass are permutations of the forward one: with Y[M,N] = X[M,K]·W[K,N] the input gradient is
[M,K] = [M,N]·[N,K] and the weight gradient [N,K] = [N,M]·[M,K].

The result is cut into tiles. The cores compute one tile each at a time, wave after wave; the last wave is partly idle,
and tiles at the edge are partly padding. Too few tiles are multiplied by cutting the depth into parts (split-K), whose
results are added up in the cache. A library has kernels for several shapes of tile (`tile`): a large tile moves fewer
bytes, a small one fills the cores better. The fastest on chip is taken.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula, synonyms
from perfgrid.engine.graph.tables import constants
from perfgrid.formulas.axes import only, smallest, table, total

from .roofline import beside, by_resource, chance, roofline_time, shared
from .tiling import hbm_bytes, l2_loads, padded_volume, partial_bytes, tiles_and_parts, wave_utilisation

PRODUCTS = {"PRODUCT": ("gemm", "core", "grouped", "expert")}  # `expert`: of routed experts in serving
WEIGHTED = {"PRODUCT": ("gemm", "grouped")}  # products with weights

FORMULAS = (
    *constants(
        {"gemm_batch": (1.0, "1", "shoeybi2019megatron", "Products with weights that one kernel computes: one.")}
    ),
    *synonyms(
        {
            **{
                f"{product}_weight_size": (
                    *(f"{product}_operand_size", "byte", "micikevicius2022fp8"),
                    "Bytes of one element of the second operand of these products, as it is read from memory.",
                )
                for product in ("gemm", "core", "grouped")
            },
            "grouped_result_size": (
                *("gemm_result_size", "byte", "korthikanti2022"),
                "Bytes that these products write per element, by phase.",
            ),
        }
    ),
)


# ---- tiles ----------------------------------------------------------------------------------------------------------


@formula(unit="1", source="cutlass2026")
def tile_rows(gemm_tile_m, gemm_tile_n):
    """Rows of each shape of output tile, by tile: the largest, turned, halved, quartered and so on."""
    m, n = gemm_tile_m, gemm_tile_n
    return table(
        "tile", full=m, turned=n, half=m, tall=n, wide=m / 2, quarter=m / 2, quarter_turned=n / 2, eighth=m / 2
    )


@formula(unit="1", source="cutlass2026")
def tile_columns(gemm_tile_m, gemm_tile_n):
    """Columns of each shape of output tile, by tile."""
    m, n = gemm_tile_m, gemm_tile_n
    return table(
        "tile", full=n, turned=m, half=n / 2, tall=m / 2, wide=n, quarter=n / 2, quarter_turned=m / 2, eighth=n / 4
    )


# ---- shapes of the products with weights ----------------------------------------------------------------------------


@formula(unit="1", source="shoeybi2019megatron")
def gemm_tokens(microbatch_tokens, sharded_tokens, compressed_queries):
    """Tokens that each product sees on one rank, by product.

    With sequence parallelism a rank routes its own tokens, and makes the latents of its own tokens where queries are
    compressed (the weights are replicated); it multiplies all tokens by its part of the other matrices.
    """
    first, router = only("product", "qkv"), only("product", "router")
    qkv_tokens = xp.where(compressed_queries > 0, sharded_tokens, microbatch_tokens)
    return qkv_tokens * first + sharded_tokens * router + microbatch_tokens * (1 - first - router)


@formula(unit="1", source="shoeybi2019megatron", family=WEIGHTED)
def PRODUCT_rows(PRODUCT_tokens, PRODUCT_outputs):
    """Rows of the result of each PRODUCT kernel, by phase."""
    m, n = PRODUCT_tokens, PRODUCT_outputs
    return table("phase", forward=m, input_gradient=m, weight_gradient=n)


@formula(unit="1", source="shoeybi2019megatron", family=WEIGHTED)
def PRODUCT_columns(PRODUCT_outputs, PRODUCT_inputs):
    """Columns of the result of each PRODUCT kernel, by phase."""
    n, k = PRODUCT_outputs, PRODUCT_inputs
    return table("phase", forward=n, input_gradient=k, weight_gradient=k)


@formula(unit="1", source="shoeybi2019megatron", family=WEIGHTED)
def PRODUCT_depth(PRODUCT_tokens, PRODUCT_outputs, PRODUCT_inputs):
    """Summed-over length of each PRODUCT kernel, by phase."""
    m, n, k = PRODUCT_tokens, PRODUCT_outputs, PRODUCT_inputs
    return table("phase", forward=k, input_gradient=n, weight_gradient=m)


@formula(unit="byte", source="korthikanti2022")
def gemm_result_size(activation_size):
    """Bytes that a product with weights writes per element, by phase: the weight gradient is accumulated apart."""
    return activation_size * only("phase", "forward", "input_gradient")


@formula(unit="byte", source="micikevicius2022fp8")
def gemm_operand_size(operand_size, activation_size):
    """Bytes of one operand element of the products with weights, by product: head and router stay in 16 bits."""
    unquantised = only("product", "router", "logits")
    return operand_size * (1 - unquantised) + activation_size * unquantised


@formula(unit="FLOP/s", source="micikevicius2022fp8")
def gemm_matrix_rate(matrix_rate, unquantised_matrix_rate, library_efficiency):
    """Rate that large products with weights reach, by product: head and router stay in 16 bits.

    Less than the best of a scan of shapes, which ``matrix_rate`` is.
    """
    unquantised = only("product", "router", "logits")
    return library_efficiency * (matrix_rate * (1 - unquantised) + unquantised_matrix_rate * unquantised)


# ---- time on chip, by tile ------------------------------------------------------------------------------------------


@formula(unit="1", source="ardalani2022deepflow")
def tile_operand_moves(tile_rows, tile_columns, register_tile_m, register_tile_n):
    """Operand elements between scratchpad and registers for each multiply-add, by tile.

    A tile's operands are written once; each group of threads reads those of its part of the tile.
    """
    rows, columns = xp.minimum(tile_rows, register_tile_m), xp.minimum(tile_columns, register_tile_n)
    return 1 / rows + 1 / columns + 1 / tile_rows + 1 / tile_columns


@formula(unit="s", source="ardalani2022deepflow")
def accumulator_time(matrix_instruction_depth, float32_size, usable_register_bandwidth):
    """Time to move accumulators between registers and matrix units for each multiply-add, of all cores together.

    An instruction reads and writes its accumulators once for ``matrix_instruction_depth`` multiply-adds.
    """
    return 2 * float32_size / matrix_instruction_depth / usable_register_bandwidth


def core_times(volume, matrix_rate, accumulator_time, scratchpad_time):
    """Times of arithmetic, registers and scratchpad for a volume of multiply-adds in whole waves, 2 FLOPs each."""
    return 2 * volume / matrix_rate, volume * accumulator_time, volume * scratchpad_time


@formula(unit="1", source="nvidia2023matmul", family=PRODUCTS)
def PRODUCT_wave_volume(
    PRODUCT_rows, PRODUCT_columns, PRODUCT_depth, PRODUCT_batch, tile_rows, tile_columns, gemm_tile_k, cores
):
    """Multiply-adds of each PRODUCT kernel in whole waves of whole tiles, by tile and phase: idle cores count as busy.

    The cores compute one tile each at a time: with w = tiles·parts / cores waves the volume grows by ceil(w) / w (wave
    quantisation).
    """
    shape, tile = (PRODUCT_rows, PRODUCT_columns, PRODUCT_depth, PRODUCT_batch), (tile_rows, tile_columns, gemm_tile_k)
    tiles, parts = tiles_and_parts(*shape, *tile, cores)
    return padded_volume(*shape, *tile) / wave_utilisation(tiles * parts, cores)


@formula(unit="s", source="hong1981pebble", family=PRODUCTS)
def PRODUCT_l2_time(
    PRODUCT_rows,
    PRODUCT_columns,
    PRODUCT_depth,
    PRODUCT_batch,
    tile_rows,
    tile_columns,
    gemm_cluster,
    PRODUCT_operand_size,
    PRODUCT_weight_size,
    l2_bandwidth,
):
    """Time to read the operands of each PRODUCT kernel from the cache, by tile and phase or pass; weights as stored.

    Every tile reads its rows of X and its columns of W; a cluster of tiles, one above the other, reads columns once.
    """
    shape = (PRODUCT_rows, PRODUCT_columns, PRODUCT_depth, PRODUCT_batch)
    sizes = (PRODUCT_operand_size, PRODUCT_weight_size)
    return l2_loads(*shape, tile_rows, tile_columns, gemm_cluster, *sizes) / l2_bandwidth


@formula(unit="1", source="cutlass2026")
def tile_alone(tile_rows, tile_columns, float32_size, accumulator_memory_size):
    """1 where a core has no room for the accumulators of a second tile, which hides the end of the first, by tile."""
    return xp.where(2 * float32_size * tile_rows * tile_columns > accumulator_memory_size, 1.0, 0.0)


@formula(unit="s", source="cutlass2026", family=PRODUCTS)
def PRODUCT_epilogue_time(
    PRODUCT_rows,
    PRODUCT_columns,
    PRODUCT_depth,
    PRODUCT_batch,
    tile_rows,
    tile_columns,
    gemm_tile_k,
    cores,
    PRODUCT_result_size,
    float32_size,
    tile_alone,
    l2_bandwidth,
):
    """Time in which results of each PRODUCT kernel go to the cache and nothing is multiplied, by tile and phase.

    Another tile on the same core hides the stores, but nothing hides the adding up of parts of the depth.
    """
    stored = PRODUCT_batch * PRODUCT_rows * PRODUCT_columns * PRODUCT_result_size
    shape = (PRODUCT_rows, PRODUCT_columns, PRODUCT_depth, PRODUCT_batch)
    _, parts = tiles_and_parts(*shape, tile_rows, tile_columns, gemm_tile_k, cores)
    partial = partial_bytes(PRODUCT_rows, PRODUCT_columns, PRODUCT_batch, parts, float32_size)
    return (tile_alone * stored + partial) / l2_bandwidth


# ---- time -----------------------------------------------------------------------------------------------------------


@formula(unit="s", source="ardalani2022deepflow, luce1977", family=PRODUCTS)
def PRODUCT_chip_time(
    PRODUCT_wave_volume,
    PRODUCT_l2_time,
    PRODUCT_epilogue_time,
    tile_operand_moves,
    PRODUCT_operand_size,
    PRODUCT_matrix_rate,
    accumulator_time,
    usable_shared_memory_bandwidth,
):
    """Time of each PRODUCT kernel on chip with its fastest tile, by resource and phase.

    A tile takes the longest of arithmetic, registers, scratchpad and cache reads, and then its epilogue, which writes
    to the cache. The fastest tile is taken; resources share its time by the chance of each tile to be the fastest.
    """
    scratchpad_time = PRODUCT_operand_size * tile_operand_moves / usable_shared_memory_bandwidth
    on_core = core_times(PRODUCT_wave_volume, PRODUCT_matrix_rate, accumulator_time, scratchpad_time)
    levels = (*on_core, PRODUCT_l2_time)
    time = roofline_time(*levels) + PRODUCT_epilogue_time
    least = smallest(time, "tile")
    ratio = xp.where(time > 0, least / xp.where(time > 0, time, 1e10), 1.0)
    fastest = chance(ratio)
    part = ratio * fastest / total(fastest, "tile")
    waits = by_resource(*(total(part * level, "tile") for level in shared(*levels)))
    return waits + total(part * PRODUCT_epilogue_time, "tile") * only("resource", "l2")


@formula(unit="byte", source="hong1981pebble", family=PRODUCTS)
def PRODUCT_hbm_traffic(
    PRODUCT_rows,
    PRODUCT_columns,
    PRODUCT_depth,
    PRODUCT_batch,
    gemm_tile_m,
    gemm_tile_n,
    cores,
    PRODUCT_operand_size,
    PRODUCT_weight_size,
    PRODUCT_result_size,
    l2_size,
):
    """Memory traffic of each PRODUCT kernel, by phase or pass; weights as they are stored.

    Operands that fit the cache are read once. Otherwise the cores compute one nearly square block of the result at a
    time, and every block reads its own rows and columns. Of small tiles a core holds as many as fill the largest.
    """
    shape = (PRODUCT_rows, PRODUCT_columns, PRODUCT_depth, PRODUCT_batch)
    sizes = (PRODUCT_operand_size, PRODUCT_weight_size, PRODUCT_result_size, l2_size)
    return hbm_bytes(*shape, gemm_tile_m, gemm_tile_n, cores, *sizes)


@formula(unit="s", source="williams2009roofline, luce1977", family=PRODUCTS)
def PRODUCT_product_time(PRODUCT_chip_time, PRODUCT_hbm_traffic, achieved_hbm_bandwidth, launch_overhead):
    """Time of each PRODUCT kernel, by resource and phase.

    Work on chip and memory traffic overlap, so the longer counts: max(chip, traffic / bandwidth) + launch.
    """
    return beside(PRODUCT_chip_time, hbm=PRODUCT_hbm_traffic / achieved_hbm_bandwidth, launch=launch_overhead)


@formula(unit="byte", source="shoeybi2019megatron", family=WEIGHTED)
def PRODUCT_gradient_traffic(PRODUCT_outputs, PRODUCT_inputs, PRODUCT_batch, gradient_size, gradient_copy_size):
    """Memory traffic to add the weight gradients of each PRODUCT kernel to the accumulated ones, by phase.

    Read and written by the epilogue of the product (Megatron-LM's accumulation fusion); frameworks that add in a kernel
    of its own also write and read the gradient of the microbatch, and some a copy of it in single precision.
    """
    elements = PRODUCT_batch * PRODUCT_outputs * PRODUCT_inputs
    return (2 * gradient_size + gradient_copy_size) * elements * only("phase", "weight_gradient")


@formula(unit="s", source="shoeybi2019megatron", family=WEIGHTED)
def PRODUCT_time(
    PRODUCT_chip_time,
    PRODUCT_hbm_traffic,
    PRODUCT_gradient_traffic,
    achieved_hbm_bandwidth,
    launch_overhead,
    computed_phases,
    fused_accumulation,
    accumulation_overlap,
):
    """Time of each PRODUCT kernel and of accumulating its weight gradient, by resource and phase.

    Unlike a plain store an accumulating epilogue waits for what it adds to. Measured steps on A100 show it
    (Korthikanti 2022, table 5). Where a core multiplies the next tile meanwhile, part of it is hidden; nothing hides
    a kernel of its own that adds.
    """
    exposed = 1 - accumulation_overlap * xp.where(fused_accumulation, 1.0, 0.0)
    accumulating = exposed * PRODUCT_gradient_traffic / achieved_hbm_bandwidth * only("resource", "hbm")
    time = beside(PRODUCT_chip_time, hbm=PRODUCT_hbm_traffic / achieved_hbm_bandwidth, launch=launch_overhead)
    return computed_phases * (time + accumulating)
