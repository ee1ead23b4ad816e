"""Matrix products against loops over tiles, waves and blocks."""

import math

import numpy as np
import pytest

from perfgrid.formulas import gemm

from . import loops
from .cases import design, rows

SHAPES = [(4096, 4096, 4096), (2048, 1536, 96), (1000, 3000, 100), (128, 128, 64), (1, 50, 7), (3000, 200, 5000)]


@pytest.mark.parametrize("shape", SHAPES)
def test_utilisation_and_cache_traffic_against_loops(shape: tuple[int, int, int]):
    for batch in (1, 3):
        found = gemm.best_tile_utilisation(*shape, batch, 128, 256, 32, 108)
        assert found == pytest.approx(loops.best_busy_fraction(*shape, batch, 128, 256, 32, 108), rel=1e-12)
        for cluster in (1, 2):
            traffic = gemm.gemm_l2_bytes(*shape, batch, 128, 256, cluster, 2, 4)
            assert traffic == pytest.approx(loops.cache_bytes(*shape, batch, 128, 256, cluster, 2, 4))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cache", [0, 1e6, 1e9])
def test_memory_traffic_against_loops_over_blocks(shape: tuple[int, int, int], cache):
    found = gemm.gemm_hbm_bytes(*shape, 3, 128, 256, 108, 2, 4, cache)
    assert found == pytest.approx(loops.memory_bytes(*shape, 3, 128, 256, 108, 2, 4, cache), rel=1e-9)


@pytest.mark.parametrize(
    ("shape", "cores"),
    [((4096, 8192, 512), 64), ((5000, 7000, 300), 108), ((8192, 10240, 64), 132), ((3000, 200, 5000), 108)],
)
def test_memory_traffic_against_waves_of_whole_tiles(shape: tuple[int, int, int], cores):
    """Fractional blocks against a schedule of whole tiles, which wastes a little at the edges of its strips."""
    read = (gemm.gemm_hbm_bytes(*shape, 1, 128, 128, cores, 2, 2, 0) - 2 * shape[0] * shape[1]) / 2
    assert read == pytest.approx(loops.memory_reads_by_waves(*shape, 128, 128, cores), rel=0.2)


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
            utilisation = loops.best_busy_fraction(*shape, 1, 128, 256, 64, 132)
            arithmetic = 2 * math.prod(shape) / (989.4e12 * 0.803) / utilisation
            result = 0 if phase == "weight_gradient" else 2
            hbm = loops.memory_bytes(*shape, 1, 128, 256, 132, 2, result, 50 * 2**20) / (3.35e12 * 0.887)
            l2 = loops.cache_bytes(*shape, 1, 128, 256, 2, 2, result) / 9.7e12
            accumulate = 8 * inputs * outputs / (3.35e12 * 0.887) if phase == "weight_gradient" else 0.0
            times[key] = max(arithmetic, hbm, l2) + accumulate + 3e-6
    assert flops == 6 * tokens * sum(a * b for a, b in weights.values())
    found = rows(np.sum(q["gemm_time"], axis=-5), "phase", "gemm_kernel")
    for key, value in times.items():
        assert found[key] == pytest.approx(value, rel=1e-9), key
