"""Inference against loops, simulations and published counts that use no formula of perfgrid."""

import math

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.formulas.serving.arrivals import full_share, prompt_queue
from perfgrid.formulas.serving.batching import hat_weights
from perfgrid.formulas.serving.experts import busiest_load, touched_experts
from perfgrid.formulas.serving.parallel import expected_distinct
from perfgrid.formulas.serving.requests import accepted_tokens, contexts

from .designs import IDEAL, evaluate, of_resource, value

# ---- the cache ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "bytes_per_token"), [("deepseek-v3", 70_272), ("llama-3.1-405b", 516_096), ("qwen-2.5-72b", 327_680)]
)
def test_published_sizes_of_the_cache(model, bytes_per_token):
    """16-bit cache of one token: 61·576·2, 126·2·8·128·2 and 80·2·8·128·2 bytes."""
    assert value("key_value_size_per_token", model=model) == bytes_per_token


@pytest.mark.parametrize(
    ("model", "kv_precision", "tp", "expected"),
    [
        ("llama-3.1-70b", "bf16", 1.0, 80 * 2 * 8 * 128 * 2 * 640),
        ("llama-3.1-70b", "fp8", 4.0, 80 * 2 * 2 * 128 * 640),
        ("llama-3.1-70b", "fp8", 16.0, 80 * 2 * 1 * 128 * 640),  # eight key heads on sixteen ranks: held twice
        ("deepseek-v3", "bf16", 8.0, 61 * 576 * 2 * 640),  # a latent is held by every rank
        ("gpt-oss-120b", "bf16", 1.0, 2 * 8 * 64 * 2 * (18 * 640 + 18 * 128)),  # half of the layers keep a window
    ],
)
def test_cache_of_a_sequence_on_one_device(model, kv_precision, tp, expected):
    found = value("sequence_cache_memory", model=model, kv_precision=kv_precision, tp=tp, page_tokens=1.0)
    assert found == pytest.approx(expected)


def test_pages_are_whole():
    """513 + 128 tokens in pages of 64: 11 pages."""
    found = value("sequence_cache_memory", page_tokens=64.0, prompt_tokens=513.0)
    assert found == pytest.approx(32 * 2 * 32 * 128 * 2 * 11 * 64)


@pytest.mark.parametrize("model", ["llama-2-7b", "llama-3.1-405b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"])
def test_weights_in_memory_are_the_parameters(model):
    """All matrices in 16 bits; norms (and biases) are not counted: within 0.1 %."""
    found = evaluate("weight_memory", "total_parameters", model=model)
    assert found["weight_memory"] == pytest.approx(2 * found["total_parameters"], rel=1e-3)


def test_the_largest_batch_fills_the_memory():
    """Llama 2 7B on 79.2 GiB: nine tenths of what weights, working space, context and reserve leave, in sequences."""
    names = ("largest_batch", "weight_memory", "workspace_memory")
    own = {"reserved_memory": 2.0**30, "context_memory": 2.0**29, "driver_share": 0.01}
    found = evaluate(*names, batch_rule="memory", cache_fraction=0.9, page_tokens=1.0, **own)
    left = 79.2 * 2**30 - 1.5 * 2**30 - found["weight_memory"] - found["workspace_memory"]
    assert found["largest_batch"] == math.floor(0.9 * left / (640 * 524_288))


# ---- the sum over positions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama-3.1-70b", "mistral-7b-v0.1", "gpt-oss-120b", "deepseek-v3"])
@pytest.mark.parametrize(("prompt", "output", "batch"), [(3900, 400, 1), (100, 300, 64), (1, 2, 8), (20, 1500, 256)])
def test_decoding_equals_the_loop_over_positions(model, prompt, output, batch):
    """The steps of every single context, added up: within 1e-4."""
    common = {"model": model, "batch": float(batch), "launch_overhead": 1e-6}
    whole = evaluate(
        "decode_step_time", "decode_steps", prompt_tokens=float(prompt), output_tokens=float(output), **common
    )
    study = pg.Study.make(
        workload="inference",
        outputs=["decode_step_time"],
        dtype="float64",
        axes={
            "model": [model],
            "device": ["h100-sxm-80gb"],
            "topology": ["rail-optimized"],
            "software": ["tensorrt-llm-2024"],
            "prompt_tokens": list(range(prompt, prompt + output - 1)),
        },
        workload_parameters={"tp": 1, "pp": 1, "dp": 1, "devices": 1, "output_tokens": 2, "batch": batch},
        overrides={"launch_overhead": 1e-6},
    )
    looped = float(pg.evaluate(study).decode_step_time.sum())
    assert whole["decode_step_time"] * whole["decode_steps"] == pytest.approx(looped, rel=1e-4)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000])
def test_the_nodes_add_up_what_is_a_parabola(count):
    weights = np.polynomial.legendre.leggauss(4)[1] / 2
    nodes = np.array(contexts(101.0, float(count)))
    places = np.arange(101, 101 + count)
    assert count * float(weights @ nodes) == pytest.approx(places.sum(), rel=1e-9)
    assert count * float(weights @ nodes**2) == pytest.approx((places**2).sum(), rel=1e-8)


# ---- loops for the parts of a step ----------------------------------------------------------------------------------


def test_a_step_of_a_small_batch_reads_weights_and_cache_once():
    """Llama 3.1 70B on four ideal devices, batch 2, without collectives: bytes over bandwidth, written out."""
    h, layers, ffn, vocabulary, tp = 8192, 80, 28672, 128256, 4
    weights = 2 * (layers * (h * (8192 + 2 * 1024) + 8192 * h + 3 * h * ffn) + h * vocabulary) / tp
    operands = 0.0  # activations in and out of the products, batch of two
    for rows, columns in [(h, (8192 + 2048) / tp), (8192 / tp, h), (h, 2 * ffn / tp), (ffn / tp, h)]:
        operands += layers * 2 * 2 * (rows + columns)
    operands += 2 * 2 * (h + vocabulary / tp)
    cache = sum(2 * layers * 2 * (1024 / tp) * 2 * context for context in range(513, 640)) / 127
    streams = 2 * (
        (2 * layers + 1) * h * 8
        + layers * (8192 + 2048) / tp * 4
        + layers * ffn / tp * 6
        + h * 4
        + vocabulary / tp * 10
    )
    found = evaluate("decode_kernels_time", model="llama-3.1-70b", tp=4.0, batch=2.0, **IDEAL)["decode_kernels_time"]
    assert np.sum(found) == pytest.approx((weights + operands + cache + streams) / 3.35e12, rel=1e-3)


def test_touched_experts_are_those_of_a_simulation():
    generator = np.random.default_rng(1)
    for experts, share, tokens in [(256, 8 / 256, 20), (8, 2 / 8, 3), (128, 4 / 128, 500)]:
        chosen = [
            len(
                {
                    int(e)
                    for _ in range(tokens)
                    for e in generator.choice(experts, round(share * experts), replace=False)
                }
            )
            for _ in range(400)
        ]
        assert touched_experts(experts, share, tokens) == pytest.approx(np.mean(chosen), rel=0.02)


@pytest.mark.parametrize("skew", [0.5, 1.0, 2.5])
def test_fewer_experts_are_visited_and_one_rank_has_more_where_some_are_popular(skew):
    """Against a simulation: popularity of 128 experts drawn from a gamma distribution, 4 visits of each token."""
    generator, experts, tokens, ep = np.random.default_rng(2), 128, 64, 4
    visited, busiest = [], []
    for _ in range(400):
        popular = generator.gamma(1 / skew**2, skew**2, experts)
        counts = generator.multinomial(4 * tokens, popular / popular.sum())
        visited.append(np.count_nonzero(counts))
        busiest.append(counts.reshape(ep, -1).sum(1).max() / (4 * tokens / ep))
    assert touched_experts(experts, 4 / experts, tokens, skew) == pytest.approx(np.mean(visited), rel=0.04)
    found = busiest_load(float(tokens), 4.0, float(experts), float(ep), skew)
    assert found == pytest.approx(
        np.mean(busiest), rel=0.2
    )  # a bound of the largest of normal numbers: at most that much
    assert found >= np.mean(busiest)


def test_distinct_domains_are_those_of_a_simulation():
    generator = np.random.default_rng(2)
    drawn = np.mean([len(set(generator.integers(0, 18, 8).tolist())) for _ in range(4000)])
    assert expected_distinct(18.0, 8.0) == pytest.approx(drawn, rel=0.01)


def test_accepted_tokens_are_those_of_a_simulation():
    generator = np.random.default_rng(3)
    for drafted, acceptance in [(4, 0.7), (1, 0.9), (0, 0.5), (6, 0.0), (3, 1.0)]:
        runs = [
            next((i for i in range(drafted) if generator.random() >= acceptance), drafted) + 1 for _ in range(20000)
        ]
        assert accepted_tokens(float(drafted), acceptance) == pytest.approx(np.mean(runs), rel=0.02)


# ---- queues ---------------------------------------------------------------------------------------------------------


def test_the_wait_is_that_of_a_simulated_queue():
    """One server, random arrivals; services constant, and exponential: three moments of the wait."""
    generator = np.random.default_rng(4)
    for rate, moments in [(0.5, (1.0, 1.0, 1.0)), (0.7, (1.0, 1.0, 1.0)), (0.5, (2.0, 6.0, 24.0))]:
        gaps = generator.exponential(1 / rate, 300_000)
        services = np.ones(300_000) if moments[0] == 1 else generator.exponential(1.0, 300_000)
        wait, waits = 0.0, []
        for gap, service in zip(gaps[1:], services[:-1], strict=True):
            wait = max(wait + service - gap, 0.0)
            waits.append(wait)
        waits = np.array(waits)
        mean, variance, third = prompt_queue(rate, 1.0, 1.0, *moments)
        assert mean == pytest.approx(waits.mean(), rel=0.05)
        assert variance == pytest.approx(waits.var(), rel=0.1)
        assert third == pytest.approx(np.mean((waits - waits.mean()) ** 3), rel=0.2)


@pytest.mark.parametrize("places", [1, 2, 5, 20, 100])
@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
def test_the_share_without_a_place_is_that_of_erlang(places, load):
    """Sequences that do not slow each other down are customers of so many servers: Erlang's C, by his recursion."""
    offered, blocked = places * load, 1.0
    for k in range(1, places + 1):
        blocked = offered * blocked / (k + offered * blocked)
    delayed = blocked / (1 - load * (1 - blocked))
    assert full_share(offered, float(places), 1.0, 1.0, load) == pytest.approx(delayed, rel=0.08, abs=1e-4)


@pytest.mark.parametrize("grows", [1.3, 2.0, 3.0])
def test_hat_weights_find_the_batch(grows):
    """Steps of a + c·b: the batch whose capacity is the target, exactly, wherever the tabulated batches lie."""
    batches = grows ** np.arange(6.0)
    capacity = 1 / (0.1 + 2.0 / batches)
    for target in (capacity[0] / 2, *capacity, 0.6, 1.1, 1.8, 2 * capacity[-1]):
        weights = np.array([float(w) for w in hat_weights(list(capacity), target, grows)])
        assert weights.sum() == pytest.approx(1.0)
        exact = 2.0 / (1 / np.clip(target, capacity[0], capacity[-1]) - 0.1)
        assert weights @ batches == pytest.approx(exact)


@pytest.mark.parametrize("rate", [4.0, 10.0, 16.0])
def test_the_batch_does_not_depend_on_how_many_sequences_fit(rate):
    common = {"model": "llama-3.1-8b", "prompt_tokens": 1000.0, "output_tokens": 200.0, "batch_rule": "rate"}
    names = ("time_per_output_token", "running_batch")
    few, many = (evaluate(*names, request_rate=rate, batch_limit=limit, **common) for limit in (256.0, 430.0))
    for name in names:
        assert float(many[name]) == pytest.approx(float(few[name]), rel=1e-2)  # nodes lie elsewhere


def test_a_closed_loop_obeys_little():
    """As many requests under way as stated: rate times the time from place to place."""
    design = {
        "model": "llama-3.1-70b",
        "tp": 4.0,
        "batch": 64.0,
        "batch_rule": "concurrency",
        "prompt_tokens": 6000.0,
        "output_tokens": 300.0,
        "prefill_first": True,
    }
    found = evaluate(
        "served_rate", "time_per_output_token", "time_to_first_token", "output_tokens_per_second", **design
    )
    held = found["time_to_first_token"] + 299 * found["time_per_output_token"]
    assert found["served_rate"] * held == pytest.approx(64, rel=1e-9)
    static = evaluate(
        "time_to_first_token", "time_per_output_token", "output_tokens_per_second", **design | {"batch_rule": "given"}
    )
    assert found["output_tokens_per_second"] == pytest.approx(static["output_tokens_per_second"], rel=0.02)
    assert found["time_to_first_token"] < static["time_to_first_token"] / 10
    assert found["time_per_output_token"] > 2 * static["time_per_output_token"]  # prefills of others come in between


def test_a_single_client_waits_for_no_prefill_but_its_own():
    """Its steps follow each other as those of a batch of one; the prompt is in its first token."""
    design = {"model": "llama-3.1-8b", "batch": 1.0, "prompt_tokens": 8000.0, "output_tokens": 100.0}
    names = ("time_per_output_token", "output_tokens_per_second")
    alone, loop = (evaluate(*names, batch_rule=rule, **design) for rule in ("given", "concurrency"))
    assert loop["time_per_output_token"] == pytest.approx(alone["time_per_output_token"], rel=1e-8)
    assert loop["output_tokens_per_second"] == pytest.approx(alone["output_tokens_per_second"], rel=1e-8)


def test_stages_wait_for_the_fullest():
    """79 stages of 80 layers are no faster than 40: the fullest of either has two."""
    common = {"model": "llama-3.1-70b", "batch_rule": "concurrency", "output_tokens": 100.0}
    forty, more = (value("decode_tokens_per_second", pp=p, batch=64 * p, **common) for p in (40.0, 79.0))
    assert more <= forty * 1.02


# ---- cached prompts and shared contexts -----------------------------------------------------------------------------


def test_a_cached_prompt_is_still_read():
    """A prefill that finds everything cached takes at least as long as reading that cache."""
    design = {"prompt_tokens": 60000.0, "prefix_hit_rate": 1.0, "output_tokens": 2.0}
    found = evaluate("prefill_time", "prefill_bound_time", **design)
    cache = 32 * 2 * 4096 * 2 * 60000
    assert found["prefill_time"] > found["prefill_bound_time"] >= cache / 3.35e12 * 0.999
    byte = of_resource("request_kernel_energy", "hbm", memory_byte_energy=1.0, **design)
    assert byte > 2 * cache  # once in the prefill, once in the step


@pytest.mark.parametrize("mask", ["whole", "window", "chunks"])
@pytest.mark.parametrize(("prompt", "cached"), [(16_384, 8_192), (10_000, 9_000), (6_000, 1_000), (16_384, 16_000)])
def test_scores_of_a_cached_prompt_token_by_token(mask, prompt, cached):
    """Of layers that see all tokens, a window of 4096, or their chunk of 4096; what the first token sees is read."""
    span = prompt + 1 if mask == "whole" else 4096

    def seen(t):  # by token t, itself apart
        return t % span if mask == "chunks" else min(t, span - 1)

    scores = [seen(t) + 0.5 for t in range(prompt)]
    masks = {"window": float(span), "chunked_window": mask == "chunks"}
    masks |= {"windowed_layers_fraction": 0.0 if mask == "whole" else 1.0}
    given = {"prompt_tokens": float(prompt), "prefix_hit_rate": cached / prompt, "batch": 1.0, **masks}
    found = evaluate("uncached_share", "prefix_traffic", "prefill_passes", "computed_prompt_tokens", **given)
    assert found["computed_prompt_tokens"] == pytest.approx(prompt - cached)
    assert found["uncached_share"] == pytest.approx(sum(scores[cached:]) / sum(scores), rel=3e-4)
    of_token = 2 * 4096 * 2  # Llama 2 7B
    assert found["prefix_traffic"] / found["prefill_passes"] == pytest.approx(seen(cached) * of_token, abs=1e-3)


@pytest.mark.parametrize(("pp", "layers"), [(1, 24), (2, 12), (4, 6), (8, 3), (16, 2), (48, 1)])
def test_experts_of_the_fullest_stage(pp, layers):
    """Llama 4 Maverick: every second of 48 layers has experts, so that one of two stages of three layers has two."""
    assert value("stage_expert_share", model="llama-4-maverick", pp=float(pp)) == pytest.approx(layers / 24)


def test_context_parallel_ranks_share_out_the_cache():
    design = {"model": "llama-3.1-8b", "prompt_tokens": 100_000.0, "batch": 8.0, "output_tokens": 2.0}
    one, eight = (evaluate("decode_kernels_time", "decode_communication_time", cp=c, **design) for c in (1.0, 8.0))
    cache = 32 * 2 * 1024 * 2 * 100_000 * 8 / 3.35e12
    saved = np.sum(one["decode_kernels_time"]) - np.sum(eight["decode_kernels_time"])
    assert saved == pytest.approx(7 / 8 * cache, rel=0.25)
    assert eight["decode_communication_time"] > one["decode_communication_time"]


def test_all_latents_are_multiplied_up():
    """DeepSeek-V3, 60000 tokens of which 99 % are cached: their latents take as long as in a prompt of that length."""
    design = {
        "model": "deepseek-v3",
        "dp": 8.0,
        "ep": 8.0,
        "batch": 8.0,
        "output_tokens": 2.0,
        "precision": "fp8",
        "weight_precision": "fp8",
    }
    cached = evaluate("prefill_kernels_time", prompt_tokens=60000.0, prefix_hit_rate=0.99, **design)
    short = evaluate("prefill_kernels_time", prompt_tokens=600.0, **design)
    flops = 2 * 59400 * 512 * 32768 * 61
    gap = np.sum(cached["prefill_kernels_time"]) - np.sum(short["prefill_kernels_time"])
    assert gap > flops / 1979e12


def test_a_run_is_its_rounds():
    """3000 requests, 1000 at a time at most: three equal rounds; 2500: two and a half."""
    common = {"batch_rule": "run", "batch_limit": 100.0, "model": "llama-3.1-8b", "output_tokens": 500.0}
    one = value("output_tokens_per_second", requests=100.0, **common)
    assert value("output_tokens_per_second", requests=300.0, **common) == pytest.approx(one, rel=2e-3)
    last = value("decode_step_time", batch=50.0, **{k: v for k, v in common.items() if k != "batch_rule"})
    full = value("decode_step_time", batch=100.0, **{k: v for k, v in common.items() if k != "batch_rule"})
    prefill = value("prefill_time", batch=100.0, **{k: v for k, v in common.items() if k != "batch_rule"})
    expected = 250 * 500 / (2.5 * prefill + 499 * (2 * full + last))
    assert value("output_tokens_per_second", requests=250.0, **common) == pytest.approx(expected, rel=1e-2)


def test_experts_of_many_rows_take_what_their_efficiency_leaves():
    """Two experts of 1024 x 4096 that all of 16384 tokens visit: 3 matrices at half the rate, and no other product."""
    wide = {
        "experts": 2.0,
        "experts_per_token": 2.0,
        "expert_ffn_size": 4096.0,
        "hidden_size": 1024.0,
        "layers": 1.0,
        "dense_layers": 0.0,
        "shared_experts": 0.0,
    }
    rest = IDEAL | wide | {"batch": 16384.0, "output_tokens": 2.0, "prompt_tokens": 1.0, "batch_rule": "given"}
    flops = 16384 * 2 * 3 * 2 * 1024 * 4096

    def arithmetic(efficiency):
        found = evaluate(
            "experts_time", "matrix_rate", model="mixtral-8x7b", **rest | {"expert_efficiency": efficiency}
        )
        return np.sum(found["experts_time"][..., 1]), float(found["matrix_rate"])  # of decoding

    whole, rate = arithmetic(1.0)
    assert whole == pytest.approx(flops / rate, rel=0.02)  # the last wave of tiles
    assert arithmetic(0.5)[0] == pytest.approx(2 * whole, rel=0.02)


def test_the_host_visits_sequences_and_not_the_positions_drafted_for_them():
    plain = IDEAL | {"batch": 8.0, "step_overhead": 1e-3, "sequence_overhead": 1e-5, "batch_rule": "given"}
    for drafted in (0.0, 3.0):
        host = evaluate("host_time", **plain | {"draft_tokens": drafted, "draft_acceptance": 0.5})["host_time"]
        assert np.ravel(host)[-1] == pytest.approx(1e-3 + 8 * 1e-5)


@pytest.mark.parametrize(
    ("device", "limit"), [("h100-sxm-80gb", 1403e12), ("b200", 256 * 37.5e12 / 5.5), ("a100-sxm-80gb", None)]
)
def test_vector_units_limit_products_of_scaled_blocks_where_matrix_units_are_much_faster(device, limit):
    """DeepGEMM reaches 1550 TFLOP/s on H800, above what large products reach there; Blackwell's vector units are hardly
    faster than Hopper's, its matrix units 2.3 times."""
    given = {"device": device, "precision": "fp8" if limit else "bf16"}
    plain, blocks = (value("matrix_rate", **given, scaling=recipe) for recipe in (1.0, 4.0))
    assert blocks == pytest.approx(min(plain, limit or plain), rel=2e-3)
    assert value("matrix_rate", **given, scaling=5.0) == plain  # MX
