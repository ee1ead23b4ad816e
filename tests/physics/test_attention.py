"""Attention against loops over heads, blocks and stored tensors."""

from typing import Any

import numpy as np
import pytest

from perfgrid.catalog import load_catalog
from perfgrid.formulas import INNER
from perfgrid.formulas.kernels import flash
from perfgrid.formulas.transformer import attention

from . import loops
from .cases import design, rows

A100: Any = load_catalog().entry("device", "a100-sxm-80gb").values
H100: Any = load_catalog().entry("device", "h100-sxm-80gb").values
RESOURCE = INNER.position("resource")


def rows_by_loop(sequence, block, window=None, causal=True):
    """Blocks of one head's scores that hold at least one visible pair (query, key), by row of blocks.

    A query sees keys at most a window away and, under the mask, none after its own place.
    """
    window = sequence if window is None else window
    found = []
    for first_query in range(0, sequence, block):
        last_query = min(first_query + block, sequence) - 1
        count = 0
        for first_key in range(0, sequence, block):
            last_key = min(first_key + block, sequence) - 1
            behind = first_query - last_key <= window
            ahead = first_key <= last_query if causal else first_key - last_query <= window
            count += behind and ahead
        found.append(count)
    return found


def blocks_by_loop(*given):
    """The same of all rows together."""
    return sum(rows_by_loop(*given))


@pytest.mark.parametrize(("sequence", "block"), [(2048, 128), (2000, 128), (100, 128), (4096, 80), (1, 16)])
def test_visible_blocks_against_a_loop(sequence, block):
    for window in (sequence, block, 4 * block):
        for causal in (True, False):
            rows = rows_by_loop(sequence, block, window, causal)
            assert flash.visible_blocks(sequence, block, window, causal) == (sum(rows), max(rows))
    uneven = flash.visible_blocks(sequence, block, 1.5 * block, True)[0]  # a block more per row at most
    assert 0 <= uneven - blocks_by_loop(sequence, block, 1.5 * block) <= -(-sequence // block)


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
    bound = flash.longest_first_balance(sum(items), count, cores)
    assert busy <= bound + 1e-12
    assert busy == pytest.approx(bound, rel=0.15)


def test_block_fits_the_scratchpad():
    for scratchpad in (64 * 1024, 164 * 1024, 228 * 1024):
        for d in (64, 96, 128, 160, 256):
            block = flash.flash_block(scratchpad, 4 * d, 2, 128)
            assert block % 16 == 0
            assert 16 <= block <= 128
            assert 4 * block * d * 2 <= scratchpad  # Q, K, V and the result


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("phase", ["forward", "input_gradient"])
def test_fused_kernel_against_a_loop(phase, version):
    q = design("llama-3.1-8b", "h100-sxm-80gb", tp=4.0, microbatch=2.0, sequence_length=3000.0, flash_limit=version)
    s, d, heads, keys, block = 3000, 128, 2 * 32 // 4, 2 * 8 // 4, 128
    rate, memory = 989.4e12 * 0.803, 3.35e12 * 0.887
    backward = phase == "input_gradient"
    flops = operations = exponentials = streamed = added = scratchpad = 0.0
    again = 0.0  # version 1 passes over all queries for every block of keys
    for _ in range(heads):
        for _ in range(blocks_by_loop(s, block)):
            tiles = 5 if backward else 2
            flops += tiles * 2 * block * block * d
            scratchpad += tiles * block * block * d * 2 / (64 if version == 3 else 16)
            if version == 1:  # four partial results written and read in single precision
                scratchpad += 4 * 2 * 4 * block * d
                again += block * d * (2 * 3 + 8 if backward else 2 + 8)
            exponentials += block * block
            rescaled = 0 if backward else 2 * d * block * (3 if version == 1 else 1)
            operations += (8 if backward else 7) * block * block + rescaled
            streamed += 2 * block * d * 2
            added += block * d * 4 if backward else 0
    query, key, statistics = heads * s * d * 2, keys * s * d * 2, heads * s * 4
    if backward:  # K V dK dV; O dO before; dQ cleared, read in single precision, written in half
        exposed = 4 * key + 2 * query + 2 * (2 * query) + query + statistics + again
    else:
        exposed = again if version == 1 else 2 * query + statistics
    rows_per_head = -(-s // block)
    if version == 1:
        balance = heads / (132 * -(-heads // 132))
    else:
        balance = min(1.0, heads * blocks_by_loop(s, block) / (132 * rows_per_head))
    products = max(flops / rate, scratchpad / H100["shared_memory_bandwidth"])
    pointwise = exponentials / H100["special_function_rate"] + operations / H100["vector_rate"]
    hidden = 0.65 * min(products, pointwise) if version == 3 and phase == "forward" else 0.0
    chip = (products + pointwise - hidden) / balance
    prefetched = 2 * query if backward else 2 * key
    block_by_block = max(chip, streamed / 9.7e12, prefetched / memory)
    expected = block_by_block + added / 9.7e12 + exposed / memory + (9e-6 if backward else 3e-6)
    found = rows(np.sum(q["flash_time"], axis=RESOURCE, keepdims=True), "phase")[phase]
    assert found == pytest.approx(expected, rel=1e-12)


def test_newer_versions_are_faster_and_never_newer_than_the_device():
    times = [np.sum(design(device="h100-sxm-80gb", flash_limit=v)["flash_time"]) for v in (1.0, 2.0, 3.0)]
    assert times[0] > times[1] > times[2]
    assert design(device="a100-sxm-80gb", flash_limit=3.0)["flash_algorithm"] == 2
    assert design(device="h100-sxm-80gb", flash_limit=3.0)["flash_algorithm"] == 3


def test_padded_heads_cost_what_wide_ones_do():
    """Heads of 64 padded to 128 multiply as much as heads of 128; those of two widths are padded each (192 and 128)."""
    plan = {"tp": 1.0, "sequence_length": 16384.0, "heads": 32.0, "kv_heads": 8.0}
    plan |= dict.fromkeys(("special_function_rate", "vector_rate", "shared_memory_bandwidth"), 1e30)  # products only

    def case(width, multiple):
        q = design("llama-3.1-8b", "h100-sxm-80gb", **plan, head_dim=width, head_width_multiple=multiple)
        time = rows(np.sum(q["flash_compute_time"], axis=RESOURCE, keepdims=True), "phase", "mask")
        return rows(q["flash_volume"], "phase", "mask"), time, q["layer_activations"]

    narrow, padded, wide, whole = case(64.0, 1.0), case(64.0, 128.0), case(128.0, 1.0), case(128.0, 128.0)
    assert padded[0] == wide[0] == whole[0] == {key: 2 * value for key, value in narrow[0].items()}
    assert padded[1] == pytest.approx(wide[1], rel=1e-9)
    assert padded[1]["forward", "whole"] == pytest.approx(2 * narrow[1]["forward", "whole"], rel=1e-9)
    assert padded[2] == narrow[2]  # in memory they are as narrow as ever
    plain, both = (
        rows(design("deepseek-v3", tp=1.0, head_width_multiple=m)["flash_volume"], "phase", "mask")
        for m in (1.0, 128.0)
    )
    assert both["forward", "whole"] / plain["forward", "whole"] == pytest.approx((256 + 128) / (192 + 128))
    backward = both["input_gradient", "whole"] / plain["input_gradient", "whole"]
    assert backward == pytest.approx((3 * 256 + 2 * 128) / (3 * 192 + 2 * 128))


def test_windows_and_masks_save_blocks_and_time():
    def case(**changes):
        q = design("llama-3.1-8b", "h100-sxm-80gb", sequence_length=16384.0, tp=1.0, **changes)
        time = rows(np.sum(q["flash_time"], axis=RESOURCE, keepdims=True), "phase")["forward"]
        return q, rows(q["head_blocks"], "mask"), time

    whole, blocks, full_time = case()
    every, windowed_blocks, windowed_time = case(window=1024.0)
    half, _, half_time = case(window=1024.0, window_layers=16.0)
    open_, open_blocks, open_time = case(causal=False)
    assert blocks["whole"] == 128 * 129 / 2
    assert windowed_blocks["window"] == blocks_by_loop(16384, 128, 1024)
    assert open_blocks["whole"] == 128**2
    assert half_time == pytest.approx((full_time + windowed_time) / 2)
    traffic = np.max(every["flash_exposed_traffic"], axis=INNER.position("mask"), keepdims=True)
    exposed = rows(traffic, "phase")["forward"] / (3.35e12 * 0.887) + 3e-6
    saved = (windowed_time - exposed) / (full_time - exposed)
    assert saved == pytest.approx(windowed_blocks["window"] / blocks["whole"], rel=1e-6)
    assert (open_time - exposed) / (full_time - exposed) == pytest.approx(2 * 128 / 129, rel=0.05)  # waves
    wide = case(window=20000.0)
    assert wide[2] == full_time
    assert every["model_flops_per_token"] < half["model_flops_per_token"] < whole["model_flops_per_token"]
    both_sides = design("llama-3.1-8b", sequence_length=16384.0, causal=False, window=1024.0)
    assert both_sides["attended_length"] == 2 * every["attended_length"] == 2048
    assert rows(both_sides["head_blocks"], "mask")["window"] == blocks_by_loop(16384, 128, 1024, False)
    assert open_["attended_length"] == 16384


@pytest.mark.parametrize("sequence", [4096, 8192, 20480, 24576, 131072])
@pytest.mark.parametrize("causal", [True, False])
def test_tokens_attend_in_their_chunk(sequence, causal):
    """Chunk by chunk; of the last one, where it is not whole, the blocks at its edges differ by a row."""
    q = design("llama-4-scout", sequence_length=float(sequence), causal=causal)
    chunks = [min(8192, sequence - begin) for begin in range(0, sequence, 8192)]
    expected = sum(blocks_by_loop(chunk, 128, chunk, causal) for chunk in chunks)
    found = rows(q["head_blocks"], "mask")
    assert found["window"] == pytest.approx(expected, rel=0.01 if sequence % 8192 else 1e-12)
    assert found["whole"] == blocks_by_loop(sequence, 128, sequence, causal)
    assert rows(q["longest_row_blocks"], "mask")["window"] == max(chunks) / 128
    assert q["attended_length"] == 0.25 * sequence + 0.75 * min(sequence, 8192)


@pytest.mark.parametrize(("first", "count"), [(1, 1), (1, 100), (8000, 193), (8192, 2), (8193, 8192), (70000, 12345)])
def test_tokens_of_a_chunk_against_a_loop(first, count):
    positions = range(first, first + count)
    seen = [(p - 1) % 8192 + 1 for p in positions]
    assert attention.mean_in_chunk(float(first), float(count), 8192.0) == pytest.approx(sum(seen) / count)
    last = rows(attention.seen_by_mask(float(positions[-1]), 8192.0, True), "mask")
    assert last == {"whole": positions[-1], "window": seen[-1]}


# Dao 2023 and Shah et al. 2024: s at constant 16384 tokens, seconds on the device, heads x head dimension = 2048.
# (device, version, both directions, head dimension, causal): {s: measured seconds}
PUBLISHED = {
    ("a100-sxm-80gb", 2, True, 128, True): {2048: 3.103e-3, 16384: 20.36e-3},
    ("a100-sxm-80gb", 2, True, 64, False): {2048: 5.939e-3, 16384: 43.73e-3},
    ("h100-sxm-80gb", 2, True, 128, False): {512: 0.970e-3, 16384: 22.77e-3},
    ("h100-sxm-80gb", 3, False, 128, False): {512: 0.147e-3, 16384: 3.394e-3},
    ("h100-sxm-80gb", 3, False, 128, True): {512: 0.118e-3, 16384: 1.785e-3},
    ("h100-sxm-80gb", 3, False, 64, False): {2048: 0.598e-3, 16384: 4.425e-3},
}


@pytest.mark.parametrize("case", PUBLISHED, ids=str)
def test_published_kernel_times(case):
    device, version, both, d, causal = case
    for s, measured in PUBLISHED[case].items():
        q = design(
            "llama-3.1-8b",
            device,
            tp=1.0,
            microbatch=16384.0 / s,
            sequence_length=float(s),
            heads=2048.0 / d,
            kv_heads=2048.0 / d,
            head_dim=float(d),
            causal=causal,
            flash_limit=float(version),
            precision="fp16",
        )
        by_phase = rows(np.sum(q["flash_time"], axis=RESOURCE, keepdims=True), "phase")
        found = by_phase["forward"] + (by_phase["input_gradient"] if both else 0.0)
        assert found == pytest.approx(measured, rel=0.12), s


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
    found = rows(np.sum(q["core_product_time"], axis=RESOURCE), "phase", "attention_kernel")
    for key, (m, n, k) in shapes.items():
        time = loops.product_time(m, n, k, batch, A100, 2, 2, 312e12 * 0.869, 2.039e12 * 0.834)
        assert found[key] == pytest.approx(time + 3e-6, rel=1e-12), key


@pytest.mark.parametrize(
    ("heads", "needed", "rate"), [(96.0, True, 312e12 * 0.869), (128.0, True, 19.5e12), (128.0, False, 312e12 * 0.869)]
)
def test_heads_whose_rows_fill_no_whole_loads_are_multiplied_by_vector_units(heads, needed, rate):
    """BLOOM's 13824 wide candidate: heads of 144 numbers are 18 loads of 16 bytes, heads of 108 are 13.5."""
    q = design(
        "megatron-22b",
        hidden_size=13824.0,
        heads=heads,
        kv_heads=heads,
        head_dim=13824 / heads,
        tp=4.0,
        microbatch=2.0,
        flash_attention=False,
        core_needs_loads=needed,
    )
    found = rows(np.sum(q["core_product_time"], axis=RESOURCE), "phase", "attention_kernel")["forward", "score"]
    time = loops.product_time(2048, 2048, int(13824 / heads), 2 * int(heads) // 4, A100, 2, 2, rate, 2.039e12 * 0.834)
    assert found == pytest.approx(time + 3e-6, rel=1e-12)


def test_attention_in_triton_is_as_much_slower_as_published():
    """Dao 2023: version 2 is 1.3 to 1.5 times as fast forward, and 1.3 to 2.5 times in all."""
    cases = [design(software=name, sequence_length=8192.0) for name in ("llm-foundry", "llm-foundry-2023")]
    forward, whole = ([], [])
    for q in cases:
        by_phase = rows(np.sum(q["flash_time"], axis=RESOURCE, keepdims=True), "phase")
        forward.append(by_phase["forward"])
        whole.append(sum(by_phase.values()))
    assert 1.3 < forward[1] / forward[0] < 1.5
    assert 1.3 < whole[1] / whole[0] < 2.5


def test_only_one_kind_of_attention_runs():
    fused, unfused = design(flash_attention=True), design(flash_attention=False)
    assert np.sum(fused["core_busy_time"]) == 0
    assert np.sum(unfused["core_busy_time"]) > 0
    assert fused["layer_time"] < unfused["layer_time"]
