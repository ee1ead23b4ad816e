"""Properties over randomly drawn designs: monotone in every resource, finite, never faster than a roofline."""

from itertools import pairwise

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perfgrid.formulas import INNER

from .cases import design, evaluate, point, rows

RESOURCE = INNER.position("resource")

MODELS = (
    "megatron-22b",
    "gpt3-175b",
    "llama-2-7b",
    "llama-3.1-8b",
    "llama-3.1-405b",
    "qwen-2.5-72b",
    "nemotron-4-340b",
    "deepseek-v3",
)
DEVICES = ("v100-sxm-32gb", "a100-sxm-80gb", "h100-sxm-80gb", "b200", "gb200", "mi300x")
RATES = (
    "peak_bf16_rate",
    "peak_fp16_rate",
    "peak_fp8_rate",
    "vector_rate",
    "special_function_rate",
    "register_bandwidth",
    "shared_memory_bandwidth",
    "l2_bandwidth",
    "hbm_bandwidth",
    "scale_up_bandwidth",
    "scale_out_bandwidth",
)
MORE_IS_FASTER = (
    *RATES,
    "matrix_efficiency",
    "fp8_matrix_efficiency",
    "hbm_efficiency",
    "scale_up_efficiency",
    "scale_out_efficiency",
    "tp_overlap",
    "cp_overlap",
    "dp_overlap",
    "softmax_overlap",
    "library_efficiency",
)
LATENCIES = (
    "step_gap",
    "launch_overhead",
    "host_launch_time",
    "tier_hop_latency",
    "ring_base_latency",
    "tree_base_latency",
    "ring_step_latency",
    "tree_step_latency",
    "network_ring_step_latency",
    "network_tree_step_latency",
    "in_switch_step_latency",
    "network_in_switch_step_latency",
    "tier_message_latency",
)
PASSES = ("pointwise_passes", "norm_passes")
MORE_IS_SLOWER = (*LATENCIES, "optimizer_traffic", "gradient_size", "gradient_copy_size", *PASSES)
NETWORK = (
    *LATENCIES[3:],
    "scale_up_bandwidth",
    "scale_out_bandwidth",
    "scale_up_efficiency",
    "scale_out_efficiency",
)
CALLS = [
    f"{g}_{c}"
    for g in ("tp", "replica", "shard")
    for c in ("gather", "all_reduce")
    if (g, c) != ("shard", "all_reduce")
]

degree = st.sampled_from([1.0, 2.0, 3.0, 4.0, 8.0, 16.0, 64.0])
designs = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "device": st.sampled_from(DEVICES),
        "topology": st.sampled_from(["rail-optimized", "fat-tree-2to1", "ethernet-400g", "ici-ring"]),
        "tp": degree,
        "cp": st.sampled_from([1.0, 1.0, 2.0, 3.0, 16.0]),
        "cp_method": st.sampled_from(["ring", "all_gather", "ulysses", "hybrid"]),
        "ulysses_ranks": st.sampled_from([1.0, 2.0]),
        "document_length": st.sampled_from([0.0, 700.0]),
        "recompute_latents": st.booleans(),
        "recompute_norms": st.booleans(),
        "pp": degree,
        "dp": degree,
        "chunks": st.sampled_from([1.0, 2.0, 3.0]),
        "microbatch": st.sampled_from([1.0, 2.0, 5.0]),
        "global_batch": st.sampled_from([1.0, 48.0, 1024.0]),
        "sequence_length": st.sampled_from([512.0, 2048.0, 3000.0, 131072.0]),
        "precision": st.sampled_from(["bf16", "fp8"]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "sequence_parallel": st.booleans(),
        "flash_attention": st.booleans(),
        "zero": st.sampled_from([0.0, 1.0]),
    }
)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


FEWER_THAN_STAGES = {  # interleaved with one microbatch: illegal, and no window of other microbatches to hide behind
    "model": "megatron-22b",
    "device": "a100-sxm-80gb",
    "topology": "rail-optimized",
    "tp": 2.0,
    "cp": 16.0,
    "cp_method": "all_gather",
    "ulysses_ranks": 1.0,
    "document_length": 0.0,
    "recompute_latents": False,
    "recompute_norms": False,
    "pp": 16.0,
    "dp": 1.0,
    "chunks": 3.0,
    "microbatch": 1.0,
    "global_batch": 1.0,
    "sequence_length": 512.0,
    "precision": "bf16",
    "recompute": "none",
    "sequence_parallel": False,
    "flash_attention": False,
    "zero": 0.0,
}


@quick
@example(FEWER_THAN_STAGES, "peak_bf16_rate", 1.01)
@given(designs, st.sampled_from(MORE_IS_FASTER + MORE_IS_SLOWER), st.sampled_from([1.01, 1.5, 4.0]))
def test_step_time_is_monotone_in_every_resource(drawn, name, factor):
    before = point(**drawn)
    if name.endswith(("efficiency", "overlap")) and before[name] > 0:
        factor = min(factor, 1 / before[name])
    after = {**before, name: before[name] * factor}
    slower, faster = (before, after) if name in MORE_IS_FASTER else (after, before)
    # a library chooses by an estimate that leaves out what cutting costs, at most 2·sqrt(0.4·latency·transfer) of their
    # sum: a change of protocol may cost that much
    margin = 0.4**0.5 if name in NETWORK else 1e-12
    assert evaluate(faster)["step_time"] <= evaluate(slower)["step_time"] * (1 + margin)


@quick
@given(designs)
def test_everything_is_finite_and_of_moderate_size(drawn):
    """Also at impossible points: nothing overflows single precision, nothing is lost in it."""
    for name, value in design(**drawn).items():
        array = np.abs(np.asarray(value, dtype=np.float64))
        assert np.all(np.isfinite(array)), name
        assert np.all((array == 0) | ((array >= 1e-30) & (array <= 1e30))), name


extreme = st.sampled_from([1e-3, 1.0, 1e3])


@quick
@given(designs, extreme, extreme, extreme, extreme)
def test_extreme_hardware_is_finite(drawn, rate, bandwidth, link, latency):
    given_ = point(**drawn)
    for name, factor in (
        ("peak_bf16_rate", rate),
        ("hbm_bandwidth", bandwidth),
        ("l2_bandwidth", bandwidth),
        ("scale_up_bandwidth", link),
        ("scale_out_bandwidth", link),
        ("ring_step_latency", latency),
    ):
        given_[name] = given_[name] * factor
    for name, value in evaluate(given_).items():
        array = np.abs(np.asarray(value, dtype=np.float64))
        assert np.all((array == 0) | ((array >= 1e-30) & (array <= 1e30))), name  # false for NaN


@quick
@given(designs)
def test_no_kernel_beats_its_roofline(drawn):
    given_ = point(**drawn)
    q = evaluate(given_)
    peak = given_["peak_fp8_rate"] if drawn["precision"] == "fp8" else given_["peak_bf16_rate"]
    half = max(given_["peak_bf16_rate"], given_["peak_fp16_rate"])
    peak = peak or half
    time = rows(np.sum(q["gemm_time"], axis=RESOURCE), "phase", "product")
    m, n, k = (rows(q[f"gemm_{x}"], "phase", "product") for x in ("rows", "columns", "depth"))
    size = 1 if drawn["precision"] == "fp8" else 2
    for key, value in time.items():
        assert value >= 2 * m[key] * n[key] * k[key] / peak
        assert value >= size * (m[key] * k[key] + k[key] * n[key]) / given_["hbm_bandwidth"]
    fused = rows(np.sum(q["flash_time"], axis=RESOURCE, keepdims=True), "phase")
    scores = q["rank_heads"] / drawn["cp"] * drawn["sequence_length"] * (q["attended_span"] + 1) / 2
    wide, narrow = q["query_head_width"], q["value_head_width"]
    assert fused["forward"] >= 2 * scores * (wide + narrow) / half
    assert fused["input_gradient"] >= 2 * scores * (3 * wide + 2 * narrow) / half
    if not drawn["document_length"]:  # the skipped half of the scores is the only work that is counted and not done
        assert q["model_flops_utilization"] <= 2 * given_["matrix_efficiency"]


@quick
@given(designs)
def test_no_collective_beats_the_links_that_its_group_has(drawn):
    """What a rank must receive, over the links that lead to it: of a mesh only those from members of its group."""
    given_ = point(**drawn)
    q = evaluate(given_)
    assert q["tp_algorithms_offered"]
    assert q["replica_algorithms_offered"]
    stated = rows(given_["tier_stated_bandwidth"], "tier")
    outer = stated["scale_out"] or given_["scale_out_bandwidth"]
    for call in CALLS:
        group = call.partition("_")[0]
        ranks = rows(q[f"{group}_tier_ranks"], "tier")
        inside, n = ranks["scale_up"], q[group]
        links = given_["scale_up_bandwidth"]
        if given_["scale_up_links"] and inside > 1:
            links = min(links, (inside - 1) * links / given_["scale_up_links"])
        adds = given_["in_switch_gain"] > 0  # a switch that adds spares every rank the second pass
        passes = 2 if call.endswith("all_reduce") and not adds else 1
        message = passes * q[f"{group}_message"]
        assert q[f"{call}_time"] >= (n - 1) / n * message / (links + outer), call
        assert q[f"{call}_time"] >= (inside - 1) / inside * message / links, call
        assert q[f"{call}_time"] >= (1 - inside / n) * message / (max(inside, 1) * outer) * (1 - 1e-12), call


@quick
@given(designs)
def test_more_recomputation_is_slower_and_smaller(drawn):
    found = [design(**{**drawn, "recompute": r}) for r in ("none", "selective", "full")]
    for less, more in pairwise(found):
        assert np.all(less["layer_time"] <= more["layer_time"] * (1 + 1e-12))
        assert np.all(less["layer_activations"] >= more["layer_activations"])


@quick
@given(designs, st.sampled_from([2.0, 8.0]))
def test_scaling_all_rates_scales_the_time(drawn, factor):
    """Dimensional scaling: all rates times x and all delays over x make every time shorter by x."""
    before = point(**drawn)
    after = dict(before)
    for name in (*RATES, "tier_stated_bandwidth", "low_latency_bandwidth"):
        after[name] = before[name] * factor
    for name in LATENCIES:
        after[name] = before[name] / factor
    assert np.isclose(evaluate(after)["step_time"] * factor, evaluate(before)["step_time"], rtol=1e-12)
