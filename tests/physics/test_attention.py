"""Attention against loops over heads, blocks and stored tensors."""

import numpy as np
import pytest

from perfgrid.formulas import attention

from . import loops
from .cases import design, rows


def blocks_by_loop(sequence, block):
    """Blocks of one head's scores that hold at least one pair (query, key) with key <= query."""
    count = 0
    for first_query in range(0, sequence, block):
        last_query = min(first_query + block, sequence) - 1
        for first_key in range(0, sequence, block):
            count += first_key <= last_query
    return count


@pytest.mark.parametrize(("sequence", "block"), [(2048, 128), (2000, 128), (100, 128), (4096, 80), (1, 16)])
def test_causal_blocks_against_a_loop(sequence, block):
    assert attention.causal_blocks(sequence, block) == blocks_by_loop(sequence, block)


def longest_first(items, cores):
    """Makespan of handing items out, longest first, to the core that is free first."""
    load = [0] * cores
    for item in sorted(items, reverse=True):
        load[load.index(min(load))] += item
    return max(load)


@pytest.mark.parametrize(("heads", "count", "cores"), [(32, 16, 108), (1, 64, 132), (3, 4, 132), (200, 8, 64)])
def test_balance_against_list_scheduling(heads, count, cores):
    items = [row + 1 for _ in range(heads) for row in range(count)]
    busy = sum(items) / (longest_first(items, cores) * cores)
    bound = attention.longest_first_balance(sum(items), count, cores)
    assert busy <= bound + 1e-12
    assert busy == pytest.approx(bound, rel=0.15)


def test_block_fits_the_scratchpad():
    for scratchpad in (64 * 1024, 164 * 1024, 228 * 1024):
        for d in (64, 96, 128, 160, 256):
            block = attention.flash_block(scratchpad, d, 2, 128)
            assert block % 16 == 0
            assert 16 <= block <= 128
            assert 4 * block * d * 2 <= scratchpad  # Q, K, V and the result


@pytest.mark.parametrize("phase", ["forward", "input_gradient"])
def test_fused_kernel_against_a_loop(phase):
    q = design("llama-3.1-8b", "a100-sxm-80gb", tp=4.0, microbatch=2.0, sequence_length=3000.0)
    s, d, heads, keys, block, rate, memory = 3000, 128, 2 * 32 // 4, 2 * 8 // 4, 128, 312e12 * 0.869, 2.039e12 * 0.834
    backward = phase == "input_gradient"
    flops = operations = exponentials = cached = 0.0
    for _ in range(heads):
        for _ in range(blocks_by_loop(s, block)):
            flops += (5 if backward else 2) * 2 * block * block * d
            exponentials += block * block
            operations += (6 if backward else 5) * block * block
            cached += 2 * block * d * 2 + (2 * block * d * 4 if backward else 0)
    tensors = [heads] * (4 if backward else 2) + [keys] * (4 if backward else 2)  # Q O dO dQ / K V dK dV
    stored = sum(n * s * d * 2 for n in tensors) + heads * s * 4
    rows_per_head = -(-s // block)
    balance = min(1.0, heads * blocks_by_loop(s, block) / (108 * rows_per_head))
    chip = max(flops / rate, cached / 5.4e12) / balance
    pointwise = (exponentials / 2.44e12 + operations / 19.5e12) / balance
    expected = chip + pointwise + stored / memory + 3e-6
    found = rows(np.sum(q["flash_time"], axis=-5, keepdims=True), "phase")[phase]
    assert found == pytest.approx(expected, rel=1e-12)


def test_unfused_products_against_a_loop():
    q = design("megatron-22b", microbatch=4.0, flash_attention=False)
    s, d, batch = 2048, 96, 4 * 64 // 8
    shapes = {
        ("forward", "score"): (s, s, d),
        ("input_gradient", "score"): (s, d, s),
        ("weight_gradient", "score"): (s, d, s),
        ("forward", "context"): (s, d, s),
        ("input_gradient", "context"): (s, s, d),
        ("weight_gradient", "context"): (s, d, s),
    }
    found = rows(np.sum(q["core_time"], axis=-5), "phase", "attention_kernel")
    for key, (m, n, k) in shapes.items():
        utilisation = loops.best_busy_fraction(m, n, k, batch, 128, 256, 32, 108)
        arithmetic = 2 * batch * m * n * k / (312e12 * 0.869) / utilisation
        hbm = batch * 2 * (m * k + k * n + m * n) / (2.039e12 * 0.834)
        l2 = loops.cache_bytes(m, n, k, batch, 128, 256, 1, 2, 2) / 5.4e12
        assert found[key] == pytest.approx(max(arithmetic, hbm, l2) + 3e-6, rel=1e-12), key


def test_only_one_kind_of_attention_runs():
    fused, unfused = design(flash_attention=True), design(flash_attention=False)
    assert np.sum(fused["core_busy_time"]) == 0
    assert np.sum(unfused["core_busy_time"]) > 0
    assert fused["layer_time"] < unfused["layer_time"]
