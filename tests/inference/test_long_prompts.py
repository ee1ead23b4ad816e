"""Long prompts over context-parallel ranks: published times of Llama 3 405B, and limits worked out by hand.

Yang 2025, "Context Parallelism for Scalable Million-Token Inference": H100 with a cap of 500 W, eight of them
tensor-parallel in a node, nodes context-parallel; feed-forward weights in 8 bits with a scale per row.
"""

from itertools import pairwise

import numpy as np
import pytest

from perfgrid.formulas.axes import INNER
from perfgrid.formulas.parallelism.context_parallel import exposed_in_ring
from tests.inference.designs import evaluate, value

META = {
    "model": "llama-3.1-405b",
    "device": "h100-sxm-96gb-500w-hbm2e",
    "topology": "hgx-h100-400g",
    "software": "meta-inference",
    "precision": "fp8",
    "weight_precision": "fp8",
    "scaling": 3.0,  # row
    "quantised_attention": False,
    "tp": 8.0,
    "output_tokens": 2.0,
}
LAYERS, HIDDEN, FFN, VOCABULARY = 126, 16_384, 53_248, 128_256
KEYS = 2 * 128 * 2  # bytes of a key and a value of one token on one of eight ranks


def new_of_128k(tokens, cp=4.0):
    """The design of tables 4 and 5: so many new tokens behind a prefix, 128000 in all."""
    return META | {"prompt_tokens": 128e3, "prefix_hit_rate": 1 - tokens / 128e3, "cp": cp}


# ---- published ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "published"), [(3200, 414e-6), (12_800, 1608e-6)])
def test_attention_behind_a_long_prefix_takes_as_long_as_published(tokens, published):
    """Table 5: partial attention of one of four steps of a ring, within 5 %."""
    step = np.sum(evaluate("prefill_attention_time", **new_of_128k(tokens))["prefill_attention_time"]) / LAYERS / 4
    assert step == pytest.approx(published, rel=0.05)


def test_new_tokens_behind_a_prefix_cost_what_is_published():
    """Table 4: what 38400 more new tokens take, which leaves out what every request of that table takes, within 7 %."""
    few, many = (value("time_to_first_token", **new_of_128k(tokens)) for tokens in (25_600, 64_000))
    assert many - few == pytest.approx(6.84521 - 3.35302, rel=0.07)


@pytest.mark.parametrize(
    ("tokens", "nodes", "published"),
    [(8000, 1, 1.740), (32_000, 1, 7.658), (128_000, 1, 42.010), (32_000, 2, 4.015), (128_000, 2, 21.042),
     (128_000, 4, 10.950), (128_000, 8, 5.85), (1_000_000, 16, 77.0)],
)  # fmt: skip
def test_first_tokens_of_long_prompts_are_up_to_a_sixth_early(tokens, nodes, published):
    """Tables 6 and 7, sections 4.2.1 and 4.2.3."""
    found = value("time_to_first_token", prompt_tokens=float(tokens), cp=float(nodes), **META)
    assert 0.82 * published < found < published


def test_twice_the_nodes_halve_a_long_prefill():
    """Figure 7: the ratio of times is nearly that of nodes, also over TCP at 3 GB/s for each rank (section 4.2.1)."""
    times = [value("time_to_first_token", prompt_tokens=128e3, cp=cp, **META) for cp in (1.0, 2.0, 4.0, 8.0)]
    assert all(1.9 < a / b < 2.0 for a, b in pairwise(times))
    tcp = META | {"prompt_tokens": 128e3, "cp": 4.0, "topology": "rail-optimized", "scale_out_bandwidth": 3e9 / 0.94}
    assert evaluate("context_exchange_time", **tcp)["context_exchange_time"][0] == 0


# ---- by hand --------------------------------------------------------------------------------------------------------


def test_keys_of_a_prefix_travel_too():
    """Every rank sends its quarter of all 128000 keys and values, however few tokens are new."""
    sent = [evaluate("context_message", **new_of_128k(t))["context_message"][0] for t in (128_000, 12_800, 128)]
    assert sent == pytest.approx([32_000 * KEYS] * 3)
    chunked = META | {"prompt_tokens": 128e3, "cp": 4.0, "prefill_chunk_tokens": 8000.0}
    assert evaluate("context_message", **chunked)["context_message"][0] == pytest.approx(
        np.mean([8000, 16_000, 24_000, 32_000]) * KEYS
    )


def test_what_attention_does_not_hide_is_waited_for():
    names = ("context_exchange_time", "context_message", "prefill_attention_time", "tier_transfer_latency")
    slow = {"topology": "rail-optimized", "scale_out_bandwidth": 1e9, "collective_overhead": 0.0}
    slow = new_of_128k(12_800) | slow
    wait, sent, attention, latency = (evaluate(*names, **slow)[name] for name in names)
    transfer = latency[1] + sent[0] / (1e9 * 0.94)
    expected = LAYERS * 3 * (transfer - np.sum(attention) / LAYERS / 4)
    assert wait[0] == pytest.approx(expected, rel=1e-6)
    bare = evaluate(names[0], cp_overlap=0.0, **slow)[names[0]]
    assert bare[0] == pytest.approx(LAYERS * 3 * transfer, rel=1e-6)
    assert exposed_in_ring(1.0, 1.0, 0.0) == 0


def test_queries_go_round_and_results_return():
    """Decoding on four ranks: three sends of a quarter of the queries, and as many results at once."""
    names = ("context_exchange_time", "context_message", "tier_transfer_latency", "tier_bandwidth")
    given = {"prompt_tokens": 1000.0, "batch": 64.0, "cp": 4.0, "collective_overhead": 7e-6} | META
    wait, sent, latency, bandwidth = (evaluate(*names, **given)[name] for name in names)
    assert sent[1] == 64 / 4 * 16 * 128 * 2
    assert wait[1] == pytest.approx(LAYERS * (4 * (7e-6 + latency[1]) + 6 * sent[1] / bandwidth[1]))
    assert np.all(evaluate(names[0], **given | {"cp": 1.0})[names[0]] == 0)


def test_attention_in_16_bits_beside_feed_forward_blocks_in_8():
    feed_forward, attention = LAYERS * 3 * HIDDEN * FFN, LAYERS * 2 * HIDDEN * (HIDDEN + 1024)
    table = 2 * 2 * HIDDEN * VOCABULARY
    mixed = value("weight_memory", prompt_tokens=100.0, **META)
    assert mixed == pytest.approx((feed_forward + 2 * attention + table) / 8, rel=1e-3)
    all_in_8 = value("weight_memory", prompt_tokens=100.0, **META | {"quantised_attention": True})
    assert mixed - all_in_8 == pytest.approx(attention / 8)


def test_what_is_not_quantised_knows_no_difference():
    plain = {"model": "llama-3.1-70b", "tp": 4.0, "prompt_tokens": 4096.0}
    names = ("request_latency", "memory_per_device", "energy_per_request")
    both = [evaluate(*names, quantised_attention=flag, **plain) for flag in (True, False)]
    assert both[0] == both[1]
    eight = {"precision": "fp8", "weight_precision": "fp8"} | plain
    less, more = (evaluate(*names, quantised_attention=flag, **eight) for flag in (True, False))
    assert all(less[name] < more[name] < both[0][name] for name in names)


@pytest.mark.parametrize(
    ("given", "norm", "activation", "conversion", "conversions"),
    [
        ({"fused_streams": True}, 3 * 2 + 1, 2 * 2 + 1, 5, 1),
        ({"fused_streams": False}, 3 * 2 + 2 * 2, 5 * 2, 5, 4),
        ({"fused_streams": False, "quantised_attention": False}, 10, 10, 5, 2),
        ({"fused_streams": True, "quantised_attention": False}, 6 + 1.5, 5, 5, 0),
        ({"fused_streams": False, "precision": "bf16"}, 10, 10, 0, 0),
        ({"fused_streams": True, "precision": "bf16"}, 8, 6, 0, 0),
    ],
)
def test_bytes_of_streams_that_are_kernels_of_their_own(given, norm, activation, conversion, conversions):
    """Of an element: additions, norms and factors one by one, rows of 8 bits read twice and written."""
    common = {"model": "llama-3.1-70b", "precision": "fp8", "scaling": 3.0}
    found = evaluate("serving_stream_size", "quantising_launches", **common | given)
    sizes = dict(zip(INNER.labels["serving_stream"], found["serving_stream_size"], strict=True))
    assert (sizes["norm"], sizes["activation"], sizes["quantising"]) == (norm, activation, conversion)
    assert found["quantising_launches"] == conversions


def test_blocks_are_scaled_by_kernels_of_their_own():
    """DeepSeek-V3 in 8 bits: inputs and latents of attention and its results; experts, and both ends of shared ones."""
    given = {"model": "deepseek-v3", "precision": "fp8", "tp": 8.0}
    moe = 58 / 61
    blocks = value("quantising_launches", **given, scaling=4.0)
    assert blocks == pytest.approx(3 + 2 * (1 - moe) + 3 * moe)
    assert value("quantising_launches", **given, scaling=1.0) == 2  # results of attention, latent queries
    fewer = value("quantising_launches", **given, scaling=4.0, quantised_attention=False)
    assert fewer == pytest.approx(blocks - 3)
