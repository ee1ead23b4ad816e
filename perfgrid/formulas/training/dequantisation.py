"""Frozen matrices in 4 or 8 bits (QLoRA): brought into 16 bits before every product that reads them.

bitsandbytes writes the 16-bit matrix in a kernel of its own, in the forward pass and again for input gradients; one of
them is alive at a time. With double quantisation two small kernels make its scales first: those of blocks of 64 weights
are read in 8 bits and written in float32, then their mean is added. Products of 8-bit matrices are taken as those of 4
bits, though LLM.int8() multiplies in 8 bits in the forward pass.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import largest, largest_of_kinds, only, total

BLOCK = 64  # weights with one scale
SCALE_TRAFFIC = 1 / 4 + 3  # of a scale in 8 bits over its float32 bytes: read, written, read and written
DOUBLE_KERNELS = 2
FOUR_BITS = 1 / 8  # of float32


@formula(unit="1", source="dettmers2023qlora")
def dequantised(frozen_matrix_size, trains_weights):
    """1 where matrices of frozen layers are brought into 16 bits before their products."""
    return xp.where((frozen_matrix_size > 0) & (trains_weights == 0), 1.0, 0.0)


@formula(unit="byte", source="dettmers2023qlora")
def dequantisation_size(dequantised, frozen_matrix_size, quantised_scales, activation_size, float32_size):
    """Bytes per weight that are moved to bring a matrix into 16 bits: it is read as stored and written."""
    scales = xp.where(quantised_scales, SCALE_TRAFFIC / BLOCK, 0.0) * float32_size
    return dequantised * (frozen_matrix_size + activation_size + scales)


@formula(unit="byte", source="dettmers2023qlora")
def dequantisation_traffic(dequantisation_size, layer_gemms, gemm_inputs, gemm_outputs):
    """Memory traffic to bring the matrices of one layer into 16 bits, by phase."""
    weights = total(layer_gemms * gemm_inputs * gemm_outputs, "product")
    return dequantisation_size * weights * only("phase", "forward", "input_gradient")


@formula(unit="s", source="dettmers2023qlora")
def dequantisation_time(
    dequantisation_traffic,
    dequantised,
    quantised_scales,
    layer_gemms,
    joined_matrices,
    achieved_hbm_bandwidth,
    launch_overhead,
):
    """Time to bring the matrices of one layer into 16 bits, by resource and phase: traffic, and kernels started."""
    passes = only("phase", "forward", "input_gradient")
    matrices = dequantised * total(layer_gemms * joined_matrices, "product")
    kernels = passes * matrices * xp.where(quantised_scales, 1.0 + DOUBLE_KERNELS, 1.0)
    moved = dequantisation_traffic / achieved_hbm_bandwidth
    return moved * only("resource", "hbm") + launch_overhead * kernels * only("resource", "launch")


@formula(unit="byte", source="dettmers2023qlora")
def dequantised_matrix(
    kind_layers, dequantised, layer_gemms, joined_matrices, gemm_inputs, gemm_outputs, activation_size
):
    """The largest 16-bit matrix that a layer makes for a product, on one rank."""
    runs = xp.where(layer_gemms > 0, 1.0, 0.0)
    matrix = largest(runs * gemm_inputs * gemm_outputs / joined_matrices, "product")
    return dequantised * activation_size * largest_of_kinds(kind_layers, matrix)


@formula(unit="byte", source="huggingface2026peft")
def replicated_scales_by_stage(
    dequantised, frozen_matrix_size, float32_size, weights_sharded, shard, stage_matrix_parameters
):
    """Scales of 4-bit matrices on one device of each stage beside its shard of them, by stage: every rank has all."""
    four = FOUR_BITS * float32_size
    scales = xp.where(frozen_matrix_size < 2 * four, xp.maximum(frozen_matrix_size - four, 0.0), 0.0)
    return dequantised * weights_sharded * (1 - 1 / shard) * scales * stage_matrix_parameters


@formula(unit="byte", source="dettmers2023qlora")
def gathered_saving(dequantised, gathered_weight_size, frozen_matrix_size):
    """Bytes per weight of frozen matrices that ranks need not gather, because they are gathered as stored."""
    return dequantised * xp.maximum(gathered_weight_size - frozen_matrix_size, 0.0)
