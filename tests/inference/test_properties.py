"""Properties of inference over drawn designs: limits, lower bounds, monotony; and points that are flagged."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import perfgrid as pg

from .designs import IDEAL, evaluate, registry, value

MODELS = (
    "llama-2-7b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "qwen-2.5-72b",
    "mixtral-8x7b",
    "deepseek-v3",
    "gpt-oss-120b",
)
DEVICES = ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200", "mi300x")
RATES = (
    "hbm_bandwidth",
    "peak_bf16_rate",
    "peak_fp16_rate",
    "peak_fp8_rate",
    "l2_bandwidth",
    "vector_rate",
    "shared_memory_bandwidth",
    "register_bandwidth",
    "scale_up_bandwidth",
    "scale_out_bandwidth",
    "special_function_rate",
)
LATENCIES = ("time_per_output_token", "time_to_first_token", "request_latency")

designs = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "device": st.sampled_from(DEVICES),
        "software": st.sampled_from(["tensorrt-llm-2024", "tensorrt-llm-2023", "vllm", "sglang", "deepseek-serving"]),
        "tp": st.sampled_from([1.0, 2.0, 8.0, 16.0]),
        "pp": st.sampled_from([1.0, 4.0]),
        "dp": st.sampled_from([1.0, 4.0]),
        "ep": st.sampled_from([1.0, 4.0]),
        "batch": st.sampled_from([4.0, 16.0, 256.0, 5000.0]),
        "prompt_tokens": st.sampled_from([10.0, 512.0, 20000.0]),
        "output_tokens": st.sampled_from([1.0, 2.0, 300.0]),
        "precision": st.sampled_from(["bf16", "fp8"]),
        "weight_precision": st.sampled_from(["bf16", "fp8", "int4"]),
        "kv_precision": st.sampled_from(["bf16", "fp8"]),
        "draft_tokens": st.sampled_from([0.0, 3.0]),
        "batch_rule": st.sampled_from(["given", "memory", "run", "rate"]),
    }
)
slow = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@slow
@given(designs)
def test_never_faster_than_weights_and_cache_and_products(design):
    """Whatever the losses: no step beats the reading of its weights and cache or its products at the peak rate."""
    if design["precision"] == "fp8" and design["device"] == "a100-sxm-80gb":
        design = {**design, "precision": "bf16"}
    found = evaluate("decode_step_time", "step_bound_time", "prefill_time", "prefill_bound_time", **design)
    assert np.all(found["decode_step_time"] >= np.asarray(found["step_bound_time"]) * (1 - 1e-9))
    assert np.all(found["prefill_time"] >= np.asarray(found["prefill_bound_time"]) * (1 - 1e-9))


OTHER_PROTOCOL = {  # chosen with faster links, by an estimate without what cutting costs
    "model": "llama-3.1-405b",
    "device": "h100-sxm-80gb",
    "software": "tensorrt-llm-2024",
    "tp": 16.0,
    "pp": 4.0,
    "dp": 4.0,
    "batch": 256.0,
    "prompt_tokens": 10.0,
    "output_tokens": 1.0,
}


@slow
@example(OTHER_PROTOCOL, "scale_up_bandwidth", 4.0)
@given(designs, st.sampled_from(RATES), st.sampled_from([1.3, 4.0]))
def test_a_faster_machine_is_not_slower(design, rate, factor):
    """Every rate, whoever decides the batch (a larger memory is left out: it lets the batch grow)."""
    from .designs import point

    base = float(point(design["model"], design["device"])[rate])
    slow_machine = evaluate(*LATENCIES, **design)
    fast_machine = evaluate(*LATENCIES, **design, **{rate: base * factor})
    margin = 0.4**0.5 if rate.startswith("scale_") else 1e-5  # several chances, each counted to a millionth
    for name in LATENCIES:
        assert fast_machine[name] <= slow_machine[name] * (1 + margin), name


@slow
@given(designs, st.sampled_from(["launch_overhead", "step_overhead", "sequence_overhead", "collective_overhead"]))
def test_an_overhead_costs_time(design, overhead):
    with_none = evaluate(*LATENCIES, **design, **{overhead: 0.0})
    with_some = evaluate(*LATENCIES, **design, **{overhead: 20e-6})
    for name in LATENCIES:
        assert with_some[name] >= with_none[name] * (1 - 1e-6), name  # chances are counted to a millionth


@slow
@given(designs)
def test_fewer_bits_are_not_slower_and_take_no_more_memory(design):
    design = {**design, "synchronous_conversion": 0.0}  # converting in registers costs rate on Hopper
    wide = evaluate(
        "decode_step_time", "memory_per_device", **{**design, "weight_precision": "bf16", "batch_rule": "given"}
    )
    for narrow in ("fp8", "int8", "int4", "fp4"):
        found = evaluate(
            "decode_step_time", "memory_per_device", **{**design, "weight_precision": narrow, "batch_rule": "given"}
        )
        assert found["decode_step_time"] <= wide["decode_step_time"] * (1 + 1e-9)
        assert found["memory_per_device"] <= wide["memory_per_device"]


# ---- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["llama-2-7b", "llama-3.1-405b", "deepseek-v3"])
def test_a_batch_of_one_reads_the_weights(model, device):
    """Without losses a step of batch 1 takes weights (of the experts that it visits) plus cache over bandwidth."""
    found = evaluate(
        "decode_step_time",
        "touched_weight_memory",
        "step_cache_traffic",
        model=model,
        device=device,
        prompt_tokens=2.0,
        output_tokens=2.0,
        **IDEAL,
    )
    from .designs import point

    least = (found["touched_weight_memory"] + found["step_cache_traffic"]) / point(model, device)["hbm_bandwidth"]
    assert least <= found["decode_step_time"] <= 1.02 * least  # tile edges of absorbed products


def test_touched_weights_of_a_dense_model_are_its_matrices():
    """Llama 2 7B: all parameters but the look-up table and the norms, two bytes each."""
    expected = 2 * (6_738_415_616 - 32_000 * 4096 - 65 * 4096)
    assert value("touched_weight_memory") == pytest.approx(expected)


@pytest.mark.parametrize("device", DEVICES)
def test_a_long_prefill_reaches_the_peak_rate(device):
    """Without losses, 2 FLOPs per weight and token, and causal attention, at the peak rate (up to tile edges)."""
    tokens, layers, h, ffn, vocabulary = 65_536, 80, 8192, 28_672, 128_256
    weights = layers * (2 * h * (h + 1024) + 3 * h * ffn)
    attention = layers * 4 * h * tokens * tokens / 2
    found = evaluate(
        "prefill_time",
        "usable_peak_rate",
        model="llama-3.1-70b",
        device=device,
        flash_limit=3.0,
        flash_version=3.0,
        softmax_overlap=1.0,
        hbm_bandwidth=1e16,
        prefill_chunk_tokens=1e9,
        prompt_tokens=float(tokens),
        output_tokens=1.0,
        **IDEAL,
    )
    least = (2 * tokens * weights + 2 * h * vocabulary + attention) / found["usable_peak_rate"]
    assert least <= found["prefill_time"] <= 1.08 * least


def test_a_growing_batch_reaches_the_compute_bound():
    """Short contexts, ideal device: tokens per second rise towards peak rate over 2 FLOPs per weight, never beyond."""
    bound = None
    rates = []
    for batch in (1.0, 64.0, 1024.0, 16384.0, 262144.0):
        found = evaluate(
            "decode_tokens_per_second",
            "usable_peak_rate",
            model="llama-3.1-8b",
            batch=batch,
            prompt_tokens=1.0,
            output_tokens=2.0,
            **{**IDEAL, "hbm_bandwidth": 2e13},
        )
        bound = found["usable_peak_rate"] / (2 * (8_030_261_248 - 128_256 * 4096))
        rates.append(found["decode_tokens_per_second"])
        assert rates[-1] <= bound
    assert rates == sorted(rates)
    assert rates[-1] >= 0.9 * bound


def test_a_growing_batch_reaches_the_bound_of_the_cache():
    """Long contexts: tokens per second approach bandwidth over the cache of one sequence."""
    cache = 524_288 * 20_000
    rates = [
        value("decode_tokens_per_second", batch=b, prompt_tokens=19_999.0, output_tokens=2.0, **IDEAL)
        for b in (1e2, 1e4)
    ]
    assert rates[0] < rates[1] <= 3.35e12 / cache
    assert rates[1] >= 0.98 * 3.35e12 / cache


@pytest.mark.parametrize("software", ["tensorrt-llm-2024", "fastertransformer"])
@pytest.mark.parametrize("topology", ["rail-optimized", "hgx-h100-400g"])
def test_all_reduces_start_in_microseconds_and_end_at_the_link(software, topology):
    """One token among eight: between two and 50 us; a whole prefill: not faster than (n + 1)/n of it over the link."""
    design = {"model": "llama-3.1-70b", "tp": 8.0, "software": software, "topology": topology, "prompt_tokens": 8192.0}
    prefill, decode = evaluate("tp_all_reduce_time", batch=1.0, **design)["tp_all_reduce_time"]
    assert 2e-6 < decode < 50e-6
    message = 8192 * 8192 * 2
    assert message * 9 / 8 / 450e9 < prefill < 3 * message / 450e9 + 1e-3


# ---- points that are flagged ----------------------------------------------------------------------------------------


def flagged(**changes):
    """Constraints that one design violates, with their reasons."""
    content = {
        "workload": "inference",
        "outputs": ["time_per_output_token", "time_to_first_token", "output_tokens_per_second"],
        "axes": {
            "model": ["llama-3.1-70b"],
            "device": ["h100-sxm-80gb"],
            "topology": ["rail-optimized"],
            "software": ["vllm"],
        },
        "workload_parameters": {
            "tp": 8,
            "pp": 1,
            "dp": 1,
            "devices": 8,
            "prompt_tokens": 1000,
            "output_tokens": 500,
            "batch": 8,
        },
    }
    content["overrides"] = changes.pop("overrides", {})
    catalog = pg.load_catalog().with_values(changes.pop("settings", {}))
    for key, given_value in changes.items():
        named = key in ("model", "device", "topology", "software")
        target = content["axes"] if named else content["workload_parameters"]
        target[key] = [given_value] if target is content["axes"] else given_value
    ds = pg.evaluate(pg.Study.make(catalog, **content))
    return {str(n): a.attrs["reason"] for n, a in ds.data_vars.items() if "reason" in a.attrs and not bool(a.all())}


def test_a_sound_point_is_not_flagged():
    assert flagged() == {}
    assert flagged(batch_rule="memory") == {}
    assert flagged(batch_rule="concurrency") == {}
    assert flagged(batch_rule="rate", request_rate=1.0) == {}
    assert flagged(batch_rule="run", requests=1000) == {}
    assert flagged(device="mi300x") == {}


@pytest.mark.parametrize(
    ("changes", "constraint", "stated"),
    [
        ({"batch": 5000}, "fits_memory", "exceed the device memory"),
        ({"tp": 1, "devices": 1, "batch_rule": "memory"}, "batch_can_be_chosen", "no sequence fits"),
        ({"batch_rule": "rate", "request_rate": 500.0}, "arrivals_are_served", "arrive faster"),
        ({"batch_rule": "rate", "request_rate": 14.0, "largest_load": 0.5}, "arrivals_are_served", "at largest_load"),
        (
            {"batch_rule": "concurrency", "batch": 400, "overrides": {"prefill_chunk_tokens": 256}},
            "prompts_keep_up",
            "no room for the prompts",
        ),
        ({"tp": 3, "devices": 3}, "heads_divide", "do not divide the attention heads"),
        ({"tp": 5, "devices": 5}, "ffn_divides", "feed-forward width"),
        ({"dp": 16, "devices": 128}, "replicas_have_work", "fewer sequences"),
        ({"pp": 128, "devices": 1024}, "stages_have_layers", "more pipeline stages than layers"),
        ({"precision": "fp8", "device": "a100-sxm-80gb"}, "device_supports_precision", "no matrix units"),
        ({"precision": "fp8", "scaling": "nvfp4"}, "scaling_serves_format", "nvfp4 is for fp4"),
        ({"topology": "ici-ring"}, "topology_fits_device", "scale-up links"),
        ({"software": "megatron-core"}, "software_serves", "for training only"),
        ({"software": "tensorrt-llm", "device": "mi300x"}, "software_runs_on_device", "devices of this vendor"),
        ({"software": "optimum-habana"}, "software_runs_on_device", "devices of this vendor"),
        ({"cache_slot_tokens": 1000}, "slot_holds_the_context", "longer than its cache slot"),
        ({"context_limit": 1000}, "request_within_context_limit", "more tokens than the server takes"),
        ({"devices": 16}, "layout_fills_cluster", "is not the number of devices"),
        ({"ep": 16}, "experts_fill_stage", "does not divide"),
        ({"ep": 8}, "experts_exist", "no experts"),
        (
            {"model": "mixtral-8x22b", "ep": 16, "dp": 2, "devices": 16},
            "ranks_have_experts",
            "more expert-parallel ranks",
        ),
        ({"model": "mixtral-8x22b", "etp": 3, "tp": 3, "devices": 3}, "expert_width_divides", "width"),
        ({"model": "deepseek-v3", "tp": 3, "devices": 3}, "shared_width_divides", "shared experts"),
        ({"model": "mixtral-8x22b", "overrides": {"experts_per_token": 9}}, "choices_suffice", "at least one"),
        ({"shared_prefix_tokens": 1001}, "prompts_hold_the_prefix", "longer than a prompt"),
        (
            {"software": "tensorrt-llm", "prompt_tokens": 9000},
            "prompts_fit_an_iteration",
            "does not cut prompts",
        ),
        ({"time_to_first_token_limit": 1e-3}, "first_token_in_time", "first token"),
        ({"time_per_output_token_limit": 1e-4}, "output_tokens_in_time", "per output token"),
    ],
)
def test_impossible_points_are_flagged_with_their_reason(changes, constraint, stated):
    found = flagged(**changes)
    assert stated in found[constraint]


def test_a_user_says_that_a_software_was_ported():
    stack = {"software": "tensorrt-llm", "device": "mi300x"}
    assert set(flagged(**stack)) == {"software_runs_on_device"}
    assert flagged(**stack, settings={"software.tensorrt-llm.supported_vendors.amd": 1}) == {}
    assert flagged(**stack, settings={"device.mi300x.device_vendor": "unstated"}) == {}
    assert flagged(**stack, overrides={"device_vendor": "unstated"}) == {}


def test_an_iteration_holds_the_prompts_that_came_in_a_step():
    """64 prompts of 100 tokens that start together share one pass; in a loop about one begins in three steps.

    A request has its place for 199 steps and for that beside its prompt. Its iteration takes a bit longer than a step
    of the others. The glosses say so.
    """
    short = {"model": "llama-3.1-8b", "batch": 64.0, "prompt_tokens": 100.0, "output_tokens": 200.0}
    names = ("prefill_time", "prefill_sequences", "decode_step_time")
    static, loop = (evaluate(*names, batch_rule=rule, **short) for rule in ("given", "concurrency"))
    assert static["prefill_sequences"] == 64
    assert loop["prefill_sequences"] == pytest.approx(64 / 200 / (1 - (1 - 1 / 200) ** 64), rel=2e-4)
    assert loop["decode_step_time"] < loop["prefill_time"] < 1.5 * loop["decode_step_time"]
    glosses = (
        pg.load_catalog().variables["batch_rule"].meaning,
        registry().formulas["time_to_first_token"].function.__doc__ or "",
        (Path(__file__).parents[2] / "docs" / "inference.md").read_text(),
    )
    assert all("came in a step" in " ".join(text.split()) for text in glosses)


def test_beyond_saturation_nothing_looks_plausible():
    """Ten times the capacity: the point is flagged, and its latencies are those of the largest batch at least."""
    common = {"model": "llama-3.1-8b", "batch_limit": 256.0, "batch_rule": "rate"}
    near = evaluate(*LATENCIES, "arrivals_are_served", request_rate=5.0, **common)
    beyond = evaluate(*LATENCIES, "arrivals_are_served", request_rate=500.0, **common)
    assert near["arrivals_are_served"]
    assert not beyond["arrivals_are_served"]
    assert all(beyond[name] > near[name] for name in LATENCIES)


@pytest.mark.parametrize(
    ("changes", "stated"),
    [
        ({"prompt_tokens": 0}, "prompt_tokens must be > 0"),
        ({"output_tokens": 1.5}, "output_tokens must be a whole number"),
        ({"draft_acceptance": 1.5}, "draft_acceptance must be"),
        ({"prefix_hit_rate": -0.1}, "prefix_hit_rate must be"),
        ({"request_rate": "fast"}, "request_rate"),
        ({"promt_tokens": 5}, "did you mean 'prompt_tokens'"),
        ({"batch_rule": "fixed"}, "batch_rule"),
        ({"kv_precision": "fp7"}, "kv_precision"),
    ],
)
def test_bad_input_is_reported(changes, stated):
    with pytest.raises(pg.PerfgridError) as error:
        flagged(**changes)
    assert stated in str(error.value)


def test_what_a_rule_needs_must_be_stated():
    with pytest.raises(pg.PerfgridError, match="request_rate"):
        flagged(batch_rule="rate")
    with pytest.raises(pg.PerfgridError, match="requests"):
        flagged(batch_rule="run")


def test_every_constraint_has_a_test():
    tested = {
        "fits_memory",
        "sequences_fit_their_pools",  # test_engine_memory
        "copies_are_split",  # test_engine_memory
        "modules_exist",  # test_launching
        "batch_can_be_chosen",
        # test_clients
        "indexer_has_latents",  # test_sparse_attention
        "shared_keys_stay_on_a_stage",  # physics/test_shared_keys
        "arrivals_are_served",
        "prompts_keep_up",
        "lengths_follow_distribution",  # test_percentiles
        "heads_divide",
        "ffn_divides",
        "replicas_have_work",
        "prompts_hold_the_prefix",
        "stages_have_layers",
        "device_supports_precision",
        "topology_fits_device",
        "first_token_in_time",
        "output_tokens_in_time",
        "kv_heads_divide",
        "scaling_serves_format",
        "layout_fills_cluster",
        "experts_fill_stage",
        "experts_exist",
        "ranks_have_experts",
        "expert_width_divides",
        "slot_holds_the_context",
        "request_within_context_limit",
        "prompts_fit_an_iteration",
        "shared_width_divides",
        "choices_suffice",
    }
    assert {c.name for c in registry().constraints({"batch", "tabulated_batch"})} == tested
