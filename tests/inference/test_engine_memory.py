"""Memory by the rules of serving engines, by hand: room, limits, pools, and what fits."""

import jax
import pytest

import perfgrid as pg
from tests.inference.designs import evaluate, value

GIB = 2**30
LLAMA = {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "batch_rule": "memory", "prompt_tokens": 7000.0}
LLAMA |= {"output_tokens": 1000.0}
TOKEN = 32 * 2 * 8 * 128 * 2  # bytes of cache of Llama 3.1 8B
HYBRID = {"model": "qwen3.5-35b-a3b", "device": "h200-sxm-141gb", "batch_rule": "memory", "prompt_tokens": 8192.0}
HYBRID |= {"output_tokens": 1024.0, "software": "sglang"}
STATES = ("largest_batch", "fitting_sequences", "cache_capacity", "sequence_state_memory", "sequence_key_value_memory")


def test_vllm_limits_all_of_the_memory():
    names = ("cache_capacity", "engine_memory", "counted_memory", "memory_limit", "fitting_context", "sampler_memory")
    found = evaluate(*names, "workspace_memory", **LLAMA, software="vllm")
    assert found["counted_memory"] == pytest.approx(0.99 * 80 * GIB)
    assert found["memory_limit"] == pytest.approx(0.92 * 0.99 * 80 * GIB)
    assert found["cache_capacity"] == pytest.approx(found["memory_limit"] - found["engine_memory"])
    assert found["workspace_memory"] == found["sampler_memory"] == pytest.approx(1024 * 128256 * 10)
    assert found["fitting_context"] == found["cache_capacity"] // TOKEN // 16 * 16


def test_a_server_for_few_sequences_samples_for_few():
    own = LLAMA | {"batch_rule": "concurrency", "batch": 24.0, "software": "vllm"}
    whole, few = (value("sampler_memory", **own, launched_for_batch=flag) for flag in (False, True))
    assert (whole, few) == (1024 * 128256 * 10, 24 * 128256 * 10)


@pytest.mark.parametrize(
    ("device", "ranks", "chunk", "reserve"),
    [
        ("rtx-4090", 1, 2048, 512 + 1.5 * 2048 + 2 * 24 + 128),
        ("rtx-4090", 4, 1024, 512 + 1.5 * 2048 + 2 * 80 + 4 * 128),
        ("h100-sxm-80gb", 2, 8192, 512 + 1.5 * 8192 + 2 * 256 + 2 * 128),
        ("h100-sxm-80gb", 1, 2048, 10 * 1024),
        ("mi355x", 1, 16384, 512 + 1.5 * 16384 + 2 * 512 + 128),
    ],
)
def test_what_sglang_reserves_by_default(device, ranks, chunk, reserve):
    """0.911 on MI355X, as its log says."""
    own = LLAMA | {"device": device, "software": "sglang", "tp": float(ranks), "prefill_chunk_tokens": float(chunk)}
    found = evaluate("unstated_reserve", "static_share", **own)
    assert found["unstated_reserve"] == pytest.approx(reserve * 2**20)
    if device == "mi355x":
        assert found["static_share"] == pytest.approx(0.911, abs=5e-4)


def test_sglang_gives_recurrent_states_a_pool_of_their_own():
    """0.9 of 1.9 parts; five states for each sequence; fewer sequences than keys alone would leave room for."""
    found = evaluate(*STATES, **HYBRID)
    states = 0.9 / 1.9 * found["cache_capacity"] / found["sequence_state_memory"]
    keys = 1 / 1.9 * found["cache_capacity"] / found["sequence_key_value_memory"]
    assert found["fitting_sequences"] == pytest.approx(min(states, keys))
    assert states < keys
    assert found["sequence_state_memory"] == pytest.approx(5 * 30 * (32 * 128 * 128 * 4 + 8192 * 3 * 2), rel=0.02)
    assert 76 < found["largest_batch"] < 100  # 76 run by Little's law, with an encoder of images in memory, too


def test_states_beyond_their_pool_are_refused():
    run = HYBRID | {"batch_rule": "given"}
    fits = [value("sequences_fit_their_pools", **run, batch=float(batch)) for batch in (40, 140)]
    assert fits == [1, 0]


def test_windows_have_a_pool_by_share_or_hold_their_window():
    """gpt-oss: half of its layers see 128 tokens."""
    own = {"model": "gpt-oss-20b", "device": "h100-sxm-80gb", "batch_rule": "memory", "prompt_tokens": 31999.0}
    own |= {"output_tokens": 1.0, "page_tokens": 1.0}
    vllm, sglang = (value("sequence_key_value_memory", **own, software=name) for name in ("vllm", "sglang"))
    layer = 2 * 8 * 64 * 2
    assert vllm == pytest.approx(12 * layer * (32000 + 128))
    assert sglang == pytest.approx(12 * layer * 32000 * 1.8)


@pytest.mark.parametrize("software", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b", "qwen3.5-35b-a3b", "deepseek-v2-lite"])
def test_the_longest_context_fits_and_a_page_more_does_not(model, software):
    own = {"model": model, "device": "h100-sxm-80gb", "batch_rule": "memory", "software": software}
    context, page = (value(name, **own) for name in ("fitting_context", "page_tokens"))
    margins = [
        value("startup_margin", **own, prompt_tokens=context + more, output_tokens=1.0, state_pool_ratio=0.0)
        for more in (-1, page)
    ]
    if value("state_pool_share", **own) == 0:
        assert margins[0] >= -1
        assert margins[1] < 0


def test_a_stated_cache_is_taken_as_it_is():
    found = evaluate("cache_capacity", **LLAMA, software="vllm", memory_fraction=1.0, cache_memory_limit=8.0 * GIB)
    assert found["cache_capacity"] == 8 * GIB


def test_the_cache_is_differentiable():
    """A byte more of memory is 0.92 x 0.99 bytes more of cache."""
    low, high = (value("cache_capacity", **LLAMA, software="vllm", hbm_capacity=c) for c in (80.0 * GIB, 81.0 * GIB))
    assert (high - low) / GIB == pytest.approx(0.92 * 0.99)


def test_tokens_of_the_cache_have_a_slope():
    """Also of models without recurrent states, whose share of the pool is nothing."""
    names = {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "topology": "rail-optimized", "software": "vllm"}
    axes = {name: [value] for name, value in names.items()} | {"parallelism": {"devices": [1], "tp": [1], "pp": [1]}}
    load = {"prompt_tokens": 2000, "output_tokens": 200, "batch_rule": "memory"}
    asked = {"outputs": ["cache_capacity_tokens"], "workload_parameters": load, "axes": axes}
    study = pg.Study.make(workload="inference", **asked)
    function = pg.function(study, ["cache_capacity_tokens"], over=["hbm_capacity"])
    slope = jax.grad(lambda c: function({"hbm_capacity": c})["cache_capacity_tokens"].sum())(80.0 * GIB)
    places = 2208  # whole pages of 16, for 2,200 tokens of 128 KiB
    assert float(slope) == pytest.approx(0.92 * 0.99 / 131072 * 2200 / places, rel=1e-3)


def test_ranks_that_hold_copies_can_split_the_tokens():
    """DeepSeek's latent on eight ranks; four heads of keys on eight ranks have two copies."""
    own = {"model": "deepseek-v3", "device": "h200-sxm-141gb", "software": "vllm", "batch_rule": "memory", "tp": 8.0}
    whole, part = (value("sequence_key_value_memory", **own, cache_split=n) for n in (1.0, 8.0))
    assert part == pytest.approx(whole / 8)
    own |= {"model": "qwen3-235b-a22b"}
    assert [value("copies_are_split", **own, cache_split=n) for n in (1.0, 2.0, 4.0)] == [1, 1, 0]
