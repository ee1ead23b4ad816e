"""Properties that every mixture of experts has: finite, additive, monotonic; and loads that are uneven."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from perfgrid.formulas import BREAKDOWN
from perfgrid.formulas.parallelism.expert_parallel import ALL_TO_ALL, DEDUPLICATED, TWO_PHASE

from .cases import design, evaluate, point, rows

EXCHANGES = (ALL_TO_ALL, TWO_PHASE, DEDUPLICATED)
mixtures = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b", "llama-3.1-8b"]),
        "device": st.sampled_from(["a100-sxm-80gb", "h100-sxm-80gb", "gb200"]),
        "software": st.sampled_from(["megatron-lm", "megatron-core"]),
        "tp": st.sampled_from([1.0, 2.0, 3.0]),
        "pp": st.sampled_from([1.0, 2.0, 8.0]),
        "dp": st.sampled_from([8.0, 24.0, 64.0]),
        "ep": st.sampled_from([1.0, 2.0, 8.0, 64.0]),
        "etp": st.sampled_from([1.0, 2.0]),
        "global_batch": st.just(192.0),
        "sequence_length": st.sampled_from([64.0, 2048.0, 16384.0]),
        "precision": st.sampled_from(["bf16", "fp8"]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "sequence_parallel": st.booleans(),
        "zero": st.sampled_from([0.0, 1.0]),
        "token_dispatch": st.sampled_from([0.0, 1.0, 2.0]),
        "expert_imbalance": st.sampled_from([1.0, 1.7]),
        "capacity_factor": st.sampled_from([0.0, 1.25]),
        "ep_overlap": st.sampled_from([0.0, 0.5]),
        "shared_expert_overlap": st.sampled_from([0.0, 0.5]),
    }
)
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(mixtures)
def test_everything_is_finite_and_adds_up(drawn):
    q = design(**drawn)
    for name, value in q.items():
        array = np.abs(np.asarray(value, dtype=np.float64))
        assert np.all((array == 0) | ((array >= 1e-30) & (array <= 1e30))), name  # false for NaN
    assert sum(q[part] for part in BREAKDOWN) == pytest.approx(q["step_time"], rel=1e-9)
    assert 0 <= q["exposed_ep_time"] <= q["step_time"]


@quick
@given(mixtures, st.sampled_from(["ep_overlap", "shared_expert_overlap", "scale_up_bandwidth", "scale_out_bandwidth"]))
def test_more_overlap_or_bandwidth_is_never_slower(drawn, name):
    """But where NCCL, whose estimates know nothing of chunks, is misled by more bandwidth to a slower algorithm."""
    given_ = point(**drawn)
    assume(given_["tp"] * given_["dp"] % (given_["ep"] * given_["etp"]) == 0)
    more = 1.0 if name.endswith("overlap") else given_[name] * 1.5
    before, after = evaluate(given_), evaluate({**given_, name: more})
    calls = [n for n in before if ("_nccl_" in n or "_library_" in n) and n.endswith("_time")]
    assume(not any(np.any(after[n] > before[n] * (1 + 1e-12)) for n in calls))
    assert after["step_time"] <= before["step_time"] * (1 + 1e-12)


@quick
@given(mixtures, st.sampled_from([1.01, 2.0, 30.0]))
def test_imbalance_and_capacity_are_never_faster_and_end_at_the_whole_batch(drawn, factor):
    before = point(**{**drawn, "capacity_factor": 0.0})
    after = {**before, "expert_imbalance": before["expert_imbalance"] * factor}
    old, new = evaluate(before), evaluate(after)
    assert new["step_time"] >= old["step_time"] * (1 - 1e-12)
    assert new["memory_per_device"] >= old["memory_per_device"]
    most = max(min(before["ep"], before["experts"] / max(before["experts_per_token"], 1)), 1)
    assert new["expert_load"] == min(before["expert_imbalance"] * factor, most)
    padded = evaluate({**before, "capacity_factor": before["expert_imbalance"] * factor})
    assert padded["expert_load"] >= new["expert_load"] or drawn["model"] == "llama-3.1-8b"


@quick
@given(mixtures)
def test_a_copy_for_each_node_never_sends_more(drawn):
    sent = [rows(design(**{**drawn, "token_dispatch": float(k)})["ep_copies"], "tier") for k in EXCHANGES]
    direct, two_phase, once = sent
    assert once["scale_out"] <= direct["scale_out"] * (1 + 1e-12)
    assert once["scale_up"] <= two_phase["scale_up"] * (1 + 1e-12)
    assert two_phase["scale_out"] == direct["scale_out"]


def test_balanced_ranks_wait_for_nobody():
    """An imbalance of 1 is the balanced case, and on one rank there is no other."""
    base = {"tp": 1.0, "dp": 8.0, "global_batch": 64.0}
    even, uneven = (design("mixtral-8x7b", **base, ep=8.0, expert_imbalance=x) for x in (1.0, 1.5))
    assert even["rank_expert_rows"] == 2048 * 2
    assert uneven["rank_expert_rows"] == 2048 * 2 * 1.5
    alone = [design("mixtral-8x7b", **base, expert_imbalance=x)["step_time"] for x in (1.0, 1.5)]
    assert alone[0] == alone[1]


def test_a_capacity_evens_out():
    """The fullest rank has more than the mean one unless all are padded to the same capacity."""
    base = {"tp": 1.0, "dp": 8.0, "ep": 8.0, "global_batch": 64.0, "expert_imbalance": 1.5}
    assert design("mixtral-8x7b", **base)["uneven_load"] == 1.5
    assert design("mixtral-8x7b", **base, capacity_factor=2.0)["uneven_load"] == 1
