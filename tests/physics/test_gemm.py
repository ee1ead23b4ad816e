"""Matrix products against loops over tiles, waves and blocks."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfgrid.catalog import load_catalog
from perfgrid.formulas import INNER
from perfgrid.formulas.kernels import gemm, tiling

from . import loops
from .cases import design, evaluate, point, rows

A100: Any = load_catalog().entry("device", "a100-sxm-80gb").values
H100: Any = load_catalog().entry("device", "h100-sxm-80gb").values
RESOURCE = INNER.position("resource")

SHAPES = [(4096, 4096, 4096), (2048, 1536, 96), (1000, 3000, 100), (128, 128, 64), (1, 50, 7), (3000, 200, 5000)]


def alone(q):
    """Time of the products without the accumulation of gradients, by resource, phase and product."""
    given = ("gemm_chip_time", "gemm_hbm_traffic", "achieved_hbm_bandwidth", "launch_overhead")
    return gemm.PRODUCT_product_time(*(q[name] for name in given))


@pytest.mark.parametrize("tile", [(128, 256), (256, 128), (128, 128), (64, 64)])
@pytest.mark.parametrize("shape", SHAPES)
def test_work_of_a_tile_shape_against_loops(shape: tuple[int, int, int], tile: tuple[int, int]):
    m, n, k = shape
    for batch in (1, 3):
        volume, scratchpad, registers, loads, stores, parts = loops.tile_work(*shape, batch, *tile, A100)
        tiles = batch * math.ceil(m / tile[0]) * math.ceil(n / tile[1])
        assert tiling.tiles_and_parts(*shape, batch, *tile, 32, 108) == (tiles, parts)
        padded = batch * tiling.whole(m, tile[0]) * tiling.whole(n, tile[1]) * tiling.whole(k, 32)
        balance = tiling.wave_utilisation(tiles * parts, 108)
        assert padded / balance == pytest.approx(volume)
        moved = gemm.tile_operand_moves(*tile, 64, 64)
        assert padded * moved / balance == pytest.approx(scratchpad)
        assert padded * gemm.accumulator_time(16, 4, 1.0) / balance == pytest.approx(registers)
        assert tiling.l2_loads(*shape, batch, *tile, 1, 2, 2) == pytest.approx(2 * loads)
        assert tiling.partial_bytes(m, n, batch, parts, 4) == stores * (8 * parts if parts > 1 else 0)


def test_tiles_are_parts_of_the_largest():
    q = design()
    found = set(zip(rows(q["tile_rows"], "tile").values(), rows(q["tile_columns"], "tile").values(), strict=True))
    assert found == {(128, 256), (256, 128), (128, 128), (256, 64), (64, 256), (64, 128), (128, 64), (64, 64)}


def test_small_results_take_small_tiles_and_cut_their_depth():
    """A result of 256 x 512 fills 4 of 108 cores with the largest tile; cutting its depth of 65536 fills them all."""
    assert tiling.tiles_and_parts(256, 512, 65536, 1, 128, 256, 32, 108) == (4, 27)
    assert tiling.tiles_and_parts(256, 512, 1024, 1, 128, 256, 32, 108) == (4, 2)  # 16 steps each
    assert tiling.tiles_and_parts(128, 256, 65536, 108, 128, 256, 32, 108) == (108, 1)
    q = design("llama-3.1-8b", "h100-sxm-80gb", sequence_length=128.0)
    taken = rows(np.sum(q["gemm_chip_time"], axis=RESOURCE), "phase", "product")["forward", "attention_output"]
    volume = rows(q["gemm_wave_volume"], "phase", "tile", "product")["forward", "full", "attention_output"]
    assert taken < 2 * volume / rows(q["gemm_matrix_rate"], "product")["attention_output"]  # not the largest tile


@pytest.mark.parametrize("device", ["a100-sxm-80gb", "h100-sxm-80gb", "b200"])
@pytest.mark.parametrize("shape", [(1024, 1024, 4096), (512, 256, 65536), (8192, 4096, 512), (4096, 4096, 4096)])
def test_ends_of_tiles_and_parts_of_the_depth_take_time(device, shape):
    """Against the loop, where results are stored with nothing to hide them and where partial results are added up."""
    given: Any = load_catalog().entry("device", device).values
    m, n, k = shape
    shape_of_model = {"sequence_length": float(m), "hidden_size": float(k), "ffn_size": float(n), "gated_ffn": False}
    plan = {"tp": 1.0, "microbatch": 1.0, "sequence_parallel": False, "library_efficiency": 0.94}
    q = evaluate(point("llama-3.1-8b", device, **plan, **shape_of_model))
    found = rows(np.sum(q["gemm_time"], axis=RESOURCE), "phase", "product")["forward", "ffn_up"]
    rate = given["peak_bf16_rate"] * given["matrix_efficiency"] * 0.94
    hbm = given["hbm_bandwidth"] * given["hbm_efficiency"]
    assert found - 3e-6 == pytest.approx(loops.product_time(m, n, k, 1, given, 2, 2, rate, hbm), rel=1e-9)


def test_a_product_cut_in_depth_pays_for_its_parts():
    given = {
        "model": "llama-3.1-8b",
        "tp": 1.0,
        "sequence_length": 1024.0,
        "hidden_size": 4096.0,
        "ffn_size": 1024.0,
        "gated_ffn": False,
        "sequence_parallel": False,
    }
    for device in ("a100-sxm-80gb", "b200"):
        q = design(device=device, **given)
        on_chip = rows(q["gemm_chip_time"], "resource", "phase", "product")
        assert on_chip["arithmetic", "forward", "ffn_up"] > on_chip["l2", "forward", "ffn_up"] > 1e-6  # the epilogue


def test_a_product_with_one_row_reads_its_weights_at_memory_speed():
    """GEMV: no seam between products and streaming, one row costs the bytes of the matrix."""
    q = design("llama-3.1-8b", "h100-sxm-80gb", tp=1.0, sequence_length=1.0, sequence_parallel=False)
    time = rows(np.sum(q["gemm_time"], axis=RESOURCE), "phase", "product")["forward", "ffn_up"]
    weights = 2 * 4096 * 2 * 14336
    assert time - 3e-6 == pytest.approx(weights / (3.35e12 * 0.887), rel=0.01)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cache", [0, 1e6, 1e9])
def test_memory_traffic_against_loops_over_blocks(shape: tuple[int, int, int], cache):
    found = tiling.hbm_bytes(*shape, 3, 128, 256, 108, 2, 2, 4, cache)
    assert found == pytest.approx(loops.memory_bytes(*shape, 3, 128, 256, 108, 2, 4, cache), rel=1e-9)


@pytest.mark.parametrize(
    ("shape", "cores"),
    [((4096, 8192, 512), 64), ((5000, 7000, 300), 108), ((8192, 10240, 64), 132), ((3000, 200, 5000), 108)],
)
def test_memory_traffic_against_waves_of_whole_tiles(shape: tuple[int, int, int], cores):
    """Fractional blocks against a schedule of whole tiles, which wastes a little at the edges of its strips."""
    read = (tiling.hbm_bytes(*shape, 1, 128, 128, cores, 2, 2, 2, 0) - 2 * shape[0] * shape[1]) / 2
    assert read == pytest.approx(loops.memory_reads_by_waves(*shape, 128, 128, cores), rel=0.2)


def test_a_single_wave_reads_its_operands_once():
    assert tiling.hbm_bytes(256, 512, 4096, 1, 128, 256, 108, 2, 2, 2, 0) == 2 * (256 * 4096 + 4096 * 512 + 256 * 512)


@pytest.mark.parametrize(
    ("software", "moved"),
    [
        ("megatron-lm", 4 + 4),
        ("megatron-lm-2022", 2 + 2 + 2 + 2),
        ("megatron-deepspeed", 2 + 2 + 4 + 4 + 4 + 4),
        ("megatron-deepspeed-fp16", 2 + 2 + 2 + 2),
    ],
)
def test_bytes_to_accumulate_a_gradient_counted_by_hand(software, moved):
    """Megatron's epilogue reads and writes the sum; others write and read the gradient, DeepSpeed also a copy."""
    q = design("megatron-22b", software=software, tp=8.0)
    time = rows(np.sum(q["gemm_time"] - alone(q), axis=RESOURCE), "phase", "product")
    assert time["weight_gradient", "ffn_up"] == pytest.approx(6144 * 4 * 6144 / 8 * moved / (2.039e12 * 0.834))
    assert time["forward", "ffn_up"] == 0


def test_products_of_a_layer_against_a_loop():
    plan = {"tp": 2.0, "microbatch": 2.0, "sequence_length": 4096.0, "library_efficiency": 0.94}
    q = design("llama-3.1-8b", "h100-sxm-80gb", **plan)
    h, queries, keys, f, v, tokens = 4096, 32 * 128, 8 * 128, 14336, 128256, 2 * 4096
    weights = {
        "qkv": (h, (queries + 2 * keys) // 2),
        "attention_output": (queries // 2, h),
        "ffn_up": (h, 2 * f // 2),
        "ffn_down": (f // 2, h),
        "logits": (h, v // 2),
    }
    m, n, k = (rows(q[f"gemm_{x}"], "phase", "product") for x in ("rows", "columns", "depth"))
    times = {}
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
            result = 0 if phase == "weight_gradient" else 2
            rate = 989.4e12 * 0.803 * 0.94
            accumulate = 0.40 * 8 * inputs * outputs / (3.35e12 * 0.887) if phase == "weight_gradient" else 0.0
            times[key] = loops.product_time(*shape, 1, H100, 2, result, rate, 3.35e12 * 0.887) + accumulate + 3e-6
    assert flops == 6 * tokens * sum(a * b for a, b in weights.values())
    found = rows(np.sum(q["gemm_time"], axis=RESOURCE), "phase", "product")
    for key, value in times.items():
        assert found[key] == pytest.approx(value, rel=1e-9), key


def test_equally_fast_tiles_take_as_long_as_one_of_them():
    """One tile waits 3 s for the scratchpad (cache: 1), another one 3 s for the cache (scratchpad: 2): 3 s it is.

    In half of it the scratchpad is the slowest, in the other half the cache; that of 2 s may be, with (2/3)^8.
    """
    tiles = dict.fromkeys(INNER.labels["tile"], 9.0)
    scratchpad, cache = (
        INNER.table("tile", **(tiles | own)) for own in ({"full": 3.0, "half": 2.0}, {"full": 1.0, "half": 3.0})
    )
    time = gemm.PRODUCT_chip_time(scratchpad, cache, 0.0, 1.0, 1.0, 1e9, 0.0, 1.0)
    waits = rows(time, "resource")
    assert waits == pytest.approx(dict.fromkeys(waits, 0.0) | {"shared_memory": 1.556, "l2": 1.444}, abs=2e-3)


def test_adding_a_gradient_costs_what_was_measured_on_h100():
    """cuBLAS on one H100, added to float32 against a result in 16 bits, beside the formula's exposed accumulation."""
    found: dict[tuple[int, int, int], dict[str, float]] = {}
    for text in (Path(__file__).parents[2] / "tools" / "probe" / "h100.jsonl").read_text().splitlines():
        row = json.loads(text)
        if row["part"] == "gradients":
            found.setdefault((row["m"], row["n"], row["k"]), {})[row["form"]] = row["sustained"]
    assert len(found) == 5
    for (m, n, k), times in found.items():
        shape = {"sequence_length": float(m), "hidden_size": float(k), "ffn_size": float(n), "gated_ffn": False}
        q = evaluate(point("llama-3.1-8b", "h100-sxm-80gb", tp=1.0, microbatch=1.0, sequence_parallel=False, **shape))
        added = rows(np.sum(q["gemm_time"] - alone(q), axis=RESOURCE), "phase", "product")
        measured = times["added to float32"] - times["result in 16 bits"]
        assert added["weight_gradient", "ffn_up"] == pytest.approx(measured, rel=0.25), (m, n, k)
