"""Replicas that share experts pass in lockstep: prompts computed together, the busiest one, who waits for nobody."""

import numpy as np
import pytest

from tests.inference.designs import evaluate, value

MIXTURE = {"model": "deepseek-v3", "dp": 8.0, "ep": 8.0, "device": "h200-sxm-141gb", "prompt_tokens": 1000.0}


def test_a_lone_prompt_is_a_quicker_pass_than_one_of_every_replica():
    """Its attention takes as long; experts compute an eighth of the tokens."""
    lone, every = (value("prefill_time", batch=8.0, prompts_in_lockstep=n, **MIXTURE) for n in (1.0, 0.0))
    assert 0.3 * every < lone < 0.9 * every
    tokens = [
        evaluate("expert_tokens", batch=8.0, prompts_in_lockstep=n, **MIXTURE)["expert_tokens"] for n in (1.0, 0.0)
    ]
    assert tokens[0][0] == pytest.approx(tokens[1][0] / 8)
    dense = {"model": "llama-3.1-8b", "dp": 8.0, "prompt_tokens": 1000.0, "batch": 8.0}
    one, eight = (value("prefill_time", prompts_in_lockstep=n, **dense) for n in (1.0, 0.0))
    assert one == eight  # replicas of a dense model wait for nobody


@pytest.mark.parametrize(("mean", "ranks"), [(16.0, 2), (16.0, 8), (64.0, 32), (256.0, 144)])
def test_the_busiest_of_replicas_in_lockstep_is_that_of_drawn_requests(mean, ranks):
    design = MIXTURE | {"dp": float(ranks), "ep": 144.0, "batch": mean * ranks, "batch_rule": "clients"}
    drawn = np.random.default_rng(1).multinomial(int(mean * ranks), [1 / ranks] * ranks, 400).max(1).mean() / mean
    loads = (evaluate("busiest_replica_load", random_routing=flag, **design) for flag in (True, False))
    found, even = (load["busiest_replica_load"][0] for load in loads)
    assert found == pytest.approx(drawn, rel=0.10)
    assert 1 < even < found
    assert value("busiest_replica_load", **design | {"batch_rule": "given"}) == 1.0


def test_a_router_that_looks_leaves_replicas_a_part_of_a_sequence_apart():
    totals = np.arange(800, 1600)
    apart = np.mean(np.ceil(totals / 8) - totals / 8)
    loads = evaluate("busiest_replica_load", "tabulated_batch", batch_rule="rate", **MIXTURE)
    mean = loads["tabulated_batch"] / 8
    excess = (loads["busiest_replica_load"] - 1) * mean
    assert excess[mean >= 1] == pytest.approx(np.full(np.sum(mean >= 1), apart), rel=0.01)
    assert (excess + mean)[mean < 0.5] == pytest.approx(1.0)  # a lone sequence is on one of them


def test_random_routing_slows_steps_of_replicas_with_experts_alone():
    for model, slower in (("deepseek-v3", True), ("llama-3.1-8b", False)):
        design = MIXTURE | {"model": model, "batch": 512.0, "ep": 8.0 if slower else 1.0, "batch_rule": "clients"}
        even, drawn = (value("time_per_output_token", random_routing=flag, **design) for flag in (False, True))
        assert (drawn > even * 1.001) == slower


def test_at_a_rate_replicas_in_lockstep_compute_the_prompts_of_a_step_together():
    """With all places taken b·r/(n + 1) prompts come during a step, 6.8 for 256 places, 8 replicas and 300 steps.

    A replica then pays for 8/6.8 of an iteration with each of its prompts, not for the eight of prompts that come one
    by one.
    """
    stored = {"precision": "fp8", "weight_precision": "fp8", "kv_precision": "fp8"}
    design = MIXTURE | stored | {"batch_rule": "rate", "output_tokens": 301.0, "batch_limit": 256.0}
    names = ("prompts_of_an_iteration", "request_prefill_time", "added_time", "tabulated_batch")
    found = evaluate(*names, **design)
    assert found["tabulated_batch"][-1] == 8 * 256
    assert found["prompts_of_an_iteration"][-1] == pytest.approx(
        256 * 8 / 301, rel=2e-3
    )  # 300 steps, and one beside its prompt
    assert found["prompts_of_an_iteration"][0] == pytest.approx(1.0)
    iterations = found["request_prefill_time"] / found["added_time"]
    assert iterations[[0, -1]] == pytest.approx([8.0, 300 / 256], rel=0.01)
