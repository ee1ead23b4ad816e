"""Energy of kernels: operations by number format and bytes of every memory level.

Every kernel has an energy by `resource`, in the same places as its time: ``arithmetic`` (operations with what brings
operands to them), ``shared_memory``, ``l2``, ``hbm``; registers belong to the operations, launches cost nothing.
What one operation and one byte take: `event_energy`.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula, synonyms
from perfgrid.engine.graph.tables import constants
from perfgrid.formulas.axes import only, smallest, total
from perfgrid.formulas.mixer_kinds import ALL

from .flash import added_in_cache, read_from_cache
from .gemm import PRODUCTS, WEIGHTED, core_times
from .roofline import by_resource, roofline_time
from .stream import expert_stream_operations, stream_operations
from .tiling import hbm_bytes, padded_volume

ON_CHIP = ("arithmetic", "shared_memory", "l2")  # resources whose voltage follows the clock
EQUALLY_FAST = 1e-3  # kernels whose times differ by less are chosen alike

EVEN = ("gemm", "core")  # products whose rows are spread evenly over the ranks
UNEVEN = "Rows of these products on the fullest rank over those on the mean one."
FORMULAS = (
    *constants({f"{product}_uneven_load": (1.0, "1", "fedus2022switch", UNEVEN) for product in EVEN}),
    *synonyms(
        {
            "grouped_uneven_load": ("uneven_load", "1", "fedus2022switch", UNEVEN),
            **{
                f"{product}_mean_traffic": (
                    *(f"{product}_hbm_traffic", "byte", "hong1981pebble"),
                    "Memory traffic of these products on the mean rank, by phase: that of every rank.",
                )
                for product in EVEN
            },
            **{
                f"{product}_format_energy": (
                    *(energy, "1", "micikevicius2022fp8"),
                    "Energy of an operation of these products over that in 16 bits.",
                )
                for product, energy in {
                    "grouped": "format_energy",
                    "core": "unquantised_format_energy",
                }.items()
            },
        }
    ),
)


# ---- equations ------------------------------------------------------------------------------------------------------


def by_consumer(*, arithmetic=0.0, shared_memory=0.0, l2=0.0, hbm=0.0):
    """Energy by the resource that consumes it, along the axis ``resource`` (Hong 2010: events times their energy)."""
    return by_resource(arithmetic, 0.0, shared_memory, l2, hbm)


def streamed(traffic, crossing_byte_energy, memory_access_energy, arithmetic=0.0):
    """Energy by resource of bytes that cross the chip on their way to or from memory, and of what is done with them."""
    return by_consumer(arithmetic=arithmetic, l2=traffic * crossing_byte_energy, hbm=traffic * memory_access_energy)


# ---- energy of each kernel, by resource -----------------------------------------------------------------------------


@formula(unit="FLOP", source="shoeybi2019megatron", family=PRODUCTS)
def PRODUCT_flops(PRODUCT_rows, PRODUCT_columns, PRODUCT_depth, PRODUCT_batch, PRODUCT_uneven_load):
    """Operations of each PRODUCT kernel on the mean rank, by phase: padding and idle cores switch nothing."""
    return 2 * PRODUCT_batch * PRODUCT_rows * PRODUCT_columns * PRODUCT_depth / PRODUCT_uneven_load


@formula(unit="1", source="micikevicius2022fp8")
def gemm_format_energy(format_energy, unquantised_format_energy):
    """Energy of an operation of each product over that in 16 bits, by product: the head stays in 16 bits."""
    head = only("product", "logits")
    return format_energy * (1 - head) + unquantised_format_energy * head


@formula(unit="1", source="cutlass2026", family=PRODUCTS)
def PRODUCT_tile_use(
    PRODUCT_wave_volume,
    PRODUCT_l2_time,
    PRODUCT_epilogue_time,
    tile_operand_moves,
    PRODUCT_operand_size,
    PRODUCT_matrix_rate,
    accumulator_time,
    usable_shared_memory_bandwidth,
):
    """How often each PRODUCT kernel uses each tile: those as fast as the fastest, to 0.1 %, equally; by tile and phase.

    Unlike its time, the energy of a kernel jumps where two tiles are equally fast: rounding must not decide.
    """
    scratchpad_time = PRODUCT_operand_size * tile_operand_moves / usable_shared_memory_bandwidth
    on_core = core_times(PRODUCT_wave_volume, PRODUCT_matrix_rate, accumulator_time, scratchpad_time)
    time = roofline_time(*on_core, PRODUCT_l2_time) + PRODUCT_epilogue_time
    fast = xp.where(time <= smallest(time, "tile") * (1 + EQUALLY_FAST), 1.0, 0.0)
    return fast / total(fast, "tile")


@formula(unit="byte", source="ardalani2022deepflow", family=PRODUCTS)
def PRODUCT_shared_memory_traffic(
    PRODUCT_rows,
    PRODUCT_columns,
    PRODUCT_depth,
    PRODUCT_batch,
    tile_rows,
    tile_columns,
    gemm_tile_k,
    PRODUCT_tile_use,
    tile_operand_moves,
    PRODUCT_operand_size,
    PRODUCT_uneven_load,
):
    """Scratchpad traffic of each PRODUCT kernel with its tile on the mean rank, by phase: of the cores that work."""
    moved = PRODUCT_operand_size * tile_operand_moves
    shape = (PRODUCT_rows, PRODUCT_columns, PRODUCT_depth, PRODUCT_batch)
    volume = padded_volume(*shape, tile_rows, tile_columns, gemm_tile_k)
    return total(PRODUCT_tile_use * volume * moved, "tile") / PRODUCT_uneven_load


@formula(unit="byte", source="hong1981pebble")
def grouped_mean_traffic(
    grouped_rows,
    grouped_columns,
    grouped_depth,
    grouped_batch,
    uneven_load,
    gemm_tile_m,
    gemm_tile_n,
    cores,
    grouped_operand_size,
    gemm_result_size,
    l2_size,
):
    """Memory traffic of the experts' products on the mean rank, by phase: fewer rows, the same weights.

    Rows of experts are the rows of the result, and the depth of a weight gradient.
    """
    gradient = only("phase", "weight_gradient")
    rows = grouped_rows / (uneven_load * (1 - gradient) + gradient)
    depth = grouped_depth / (1 - gradient + uneven_load * gradient)
    sizes = (grouped_operand_size, grouped_operand_size, gemm_result_size, l2_size)
    return hbm_bytes(rows, grouped_columns, depth, grouped_batch, gemm_tile_m, gemm_tile_n, cores, *sizes)


@formula(unit="byte", source="hong1981pebble", family=PRODUCTS)
def PRODUCT_l2_traffic(PRODUCT_l2_time, PRODUCT_tile_use, l2_bandwidth, PRODUCT_uneven_load):
    """Bytes that each PRODUCT kernel with its tile reads from the cache on the mean rank, by phase."""
    return total(PRODUCT_tile_use * PRODUCT_l2_time, "tile") * l2_bandwidth / PRODUCT_uneven_load


@formula(unit="J", source="hong2010power", family=PRODUCTS)
def PRODUCT_energy(
    PRODUCT_flops,
    PRODUCT_format_energy,
    PRODUCT_shared_memory_traffic,
    PRODUCT_l2_traffic,
    PRODUCT_mean_traffic,
    half_precision_operation_energy,
    shared_memory_byte_energy,
    l2_byte_energy,
    crossing_byte_energy,
    memory_access_energy,
):
    """Energy of each PRODUCT kernel on the mean rank, by resource and phase."""
    return by_consumer(
        arithmetic=PRODUCT_flops * PRODUCT_format_energy * half_precision_operation_energy,
        shared_memory=PRODUCT_shared_memory_traffic * shared_memory_byte_energy,
        l2=PRODUCT_l2_traffic * l2_byte_energy + PRODUCT_mean_traffic * crossing_byte_energy,
        hbm=PRODUCT_mean_traffic * memory_access_energy,
    )


@formula(unit="J", source="hong2010power", family=WEIGHTED)
def PRODUCT_pass_energy(
    PRODUCT_energy, PRODUCT_gradient_traffic, computed_phases, memory_access_energy, crossing_byte_energy
):
    """Energy of each PRODUCT kernel with its accumulated gradient, by resource and phase: frozen weights have none."""
    accumulated = streamed(PRODUCT_gradient_traffic, crossing_byte_energy, memory_access_energy)
    return computed_phases * (PRODUCT_energy + accumulated)


@formula(unit="J", source="hong2010power")
def stream_energy(stream_elements, stream_traffic, vector_operation_energy, crossing_byte_energy, memory_access_energy):
    """Energy of each streaming kernel, by resource, phase and stream_kernel."""
    arithmetic = stream_elements * stream_operations() * vector_operation_energy
    return streamed(stream_traffic, crossing_byte_energy, memory_access_energy, arithmetic)


@alternative(of="flash_energy", by="indexer", label=ALL, unit="J", source="hong2010power")
def dense_flash_energy(
    flash_volume,
    attention_blocks,
    attention_block,
    flash_operations,
    unquantised_format_energy,
    flash_shared_memory_traffic,
    query_head_width,
    value_head_width,
    activation_size,
    float32_size,
    flash_streamed_traffic,
    flash_exposed_traffic,
    mask_share,
    half_precision_operation_energy,
    vector_operation_energy,
    shared_memory_byte_energy,
    l2_byte_energy,
    crossing_byte_energy,
    memory_access_energy,
):
    """Energy of the fused attention kernel, mean of all layers, by resource and phase."""
    exponentials = only("phase", "forward", "input_gradient")
    pointwise = attention_blocks * attention_block**2 * (flash_operations + exponentials)
    traffic = flash_streamed_traffic + flash_exposed_traffic
    read = read_from_cache(attention_blocks, attention_block, query_head_width, value_head_width, activation_size)
    added = added_in_cache(attention_blocks, attention_block, query_head_width, float32_size)
    spent = by_consumer(
        arithmetic=2 * flash_volume * unquantised_format_energy * half_precision_operation_energy
        + pointwise * vector_operation_energy,
        shared_memory=flash_shared_memory_traffic * shared_memory_byte_energy,
        l2=(read + added) * l2_byte_energy + traffic * crossing_byte_energy,
        hbm=traffic * memory_access_energy,
    )
    return total(mask_share * spent, "mask")


@formula(unit="J", source="hong2010power")
def cast_energy(
    cast_elements,
    cast_size,
    rank_expert_rows,
    uneven_load,
    expert_width,
    kind_has_experts,
    memory_access_energy,
    crossing_byte_energy,
):
    """Energy of the conversions of operands in one layer, by resource and phase."""
    rows = rank_expert_rows / uneven_load
    of_experts = kind_has_experts * rows * expert_width * only("phase", "forward", "input_gradient")
    traffic = (cast_elements + of_experts) * cast_size
    return streamed(traffic, crossing_byte_energy, memory_access_energy)


@formula(unit="J", source="hong2010power")
def expert_stream_energy(
    expert_stream_elements,
    expert_stream_sizes,
    uneven_load,
    vector_operation_energy,
    crossing_byte_energy,
    memory_access_energy,
):
    """Energy of each streaming kernel of the experts on the mean rank, by resource, phase and expert_stream_kernel."""
    received = only("expert_stream_kernel", "sort", "expert_activation")
    elements = expert_stream_elements / (uneven_load * received + 1 - received)
    traffic = elements * expert_stream_sizes
    arithmetic = elements * expert_stream_operations() * vector_operation_energy
    return streamed(traffic, crossing_byte_energy, memory_access_energy, arithmetic)
