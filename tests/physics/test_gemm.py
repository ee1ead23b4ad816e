"""Matrix products against loops over tiles, waves and blocks."""

import math
from itertools import product

import numpy as np
import pytest

from perfgrid.formulas import gemm

from .cases import design, rows


def loop_over_tiles(m, n, k, tile_m, tile_n, tile_k, cores):
    """Multiply-adds that a tiled product performs, waves that it takes and operand elements that its tiles read."""
    tiles, performed, read = 0, 0, 0
    for row in range(0, m, tile_m):
        for column in range(0, n, tile_n):
            tiles += 1
            for _ in range(0, k, tile_k):
                performed += tile_m * tile_n * tile_k
            read += (min(tile_m, m - row) + min(tile_n, n - column)) * k
    waves, left = 0, tiles
    while left > 0:
        waves, left = waves + 1, left - cores
    return tiles, performed, waves, read


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (2048, 1536, 96), (1000, 3000, 100), (128, 128, 64), (1, 50, 7)])
def test_utilisation_and_cache_traffic_against_loops(shape):
    m, n, k = shape
    cores, tile_k = 108, 32
    best = 0.0
    for tile_m, tile_n in ((128, 256), (256, 128)):
        tiles, performed, waves, read = loop_over_tiles(m, n, k, tile_m, tile_n, tile_k, cores)
        time = waves * (performed / tiles)  # of cores that do one multiply-add per unit of time
        best = max(best, m * n * k / (time * cores))
    assert gemm.best_tile_utilisation(m, n, k, 1, 128, 256, tile_k, cores) == pytest.approx(best, rel=1e-12)
    read = loop_over_tiles(m, n, k, 128, 256, tile_k, cores)[3]
    assert gemm.gemm_l2_bytes(m, n, k, 3, 128, 256, 1, 2, 4) == pytest.approx(3 * (2 * read + 4 * m * n))
    shared = loop_over_tiles(m, n, k, 2 * 128, 256, tile_k, cores)[3]  # two tiles, one above the other, read as one
    assert gemm.gemm_l2_bytes(m, n, k, 3, 128, 256, 2, 2, 4) == pytest.approx(3 * (2 * shared + 4 * m * n))


def test_memory_traffic_against_a_loop_over_waves():
    m, n, k, tile, cores = 4096, 8192, 512, 128, 64  # a wave is 8 x 8 tiles
    read = 0
    for _ in product(range(0, m, 8 * tile), range(0, n, 8 * tile)):
        read += (8 * tile + 8 * tile) * k
    found = gemm.gemm_hbm_bytes(m, n, k, 1, tile, tile, cores, 2, 2, l2_size=0)
    assert found == 2 * read + 2 * m * n
    fits = gemm.gemm_hbm_bytes(m, n, k, 1, tile, tile, cores, 2, 2, l2_size=1e9)
    assert fits == 2 * (m * k + k * n + m * n)


def test_a_single_wave_reads_its_operands_once():
    assert gemm.gemm_hbm_bytes(256, 512, 4096, 1, 128, 256, 108, 2, 2, 0) == 2 * (256 * 4096 + 4096 * 512 + 256 * 512)


def test_products_of_a_layer_against_a_loop():
    q = design("llama-3.1-8b", "h100-sxm-80gb", tp=2.0, microbatch=2.0, sequence_length=4096.0)
    h, queries, keys, f, v, tokens = 4096, 32 * 128, 8 * 128, 14336, 128256, 2 * 4096
    weights = {
        "qkv": (h, (queries + 2 * keys) // 2),
        "attention_output": (queries // 2, h),
        "ffn_up": (h, 2 * f // 2),
        "ffn_down": (f // 2, h),
        "logits": (h, v // 2),
    }
    m, n, k = (rows(q[f"gemm_{x}"], "phase", "gemm_kernel") for x in ("rows", "columns", "depth"))
    times = {key: 0.0 for key in m}
    flops = 0
    for kernel, (inputs, outputs) in weights.items():
        # forward X·W, input gradient dY·Wᵀ, weight gradient dYᵀ·X
        for phase, shape in {
            "forward": (tokens, outputs, inputs),
            "input_gradient": (tokens, inputs, outputs),
            "weight_gradient": (outputs, inputs, tokens),
        }.items():
            key = phase, kernel
            assert (m[key], n[key], k[key]) == shape
            flops += 2 * math.prod(shape)
            utilisation = gemm.best_tile_utilisation(*shape, 1, 128, 256, 64, 132)
            arithmetic = 2 * math.prod(shape) / (989.4e12 * 0.803) / utilisation
            result = 0 if phase == "weight_gradient" else 2
            hbm = gemm.gemm_hbm_bytes(*shape, 1, 128, 256, 132, 2, result, 50 * 2**20) / (3.35e12 * 0.887)
            l2 = gemm.gemm_l2_bytes(*shape, 1, 128, 256, 2, 2, result) / 9.7e12
            accumulate = 8 * inputs * outputs / (3.35e12 * 0.887) if phase == "weight_gradient" else 0.0
            times[key] = max(arithmetic, hbm, l2) + accumulate + 3e-6
    assert flops == 6 * tokens * sum(a * b for a, b in weights.values())
    found = rows(np.sum(q["gemm_time"], axis=-5), "phase", "gemm_kernel")
    for key, value in times.items():
        assert found[key] == pytest.approx(value, rel=1e-12), key
