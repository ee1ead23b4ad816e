"""When engines take prompts: against a simulation step by step, and what a held prompt costs a client."""

import numpy as np
import pytest

from perfgrid.formulas.serving.admission import gathering_span, held_steps

from .designs import evaluate, value

LOOP = {"batch_rule": "clients", "batch": 16.0, "loop_requests": 160.0, "prompt_tokens": 1000.0, "output_tokens": 500.0}


def simulated_hold(polling, prompts, limit, arrivals, steps=200_000):
    """Mean steps for which prompts are held that come at random, ``arrivals`` in a step."""
    came = np.random.default_rng(3).poisson(arrivals, steps)
    waiting, held, total = [], 0, 0
    for step, count in enumerate(came):
        waiting += [step] * count
        looks = step % polling == 0
        full = len(waiting) >= prompts or (waiting and step - waiting[0] >= limit)
        if waiting and looks and full:
            held += sum(step - since for since in waiting)
            total += len(waiting)
            waiting = []
    return held / total


@pytest.mark.parametrize("polling", [1, 10, 30])
@pytest.mark.parametrize("arrivals", [0.01, 0.1, 0.5])
def test_an_engine_that_looks_now_and_then_holds_a_prompt_for_half_of_that(polling, arrivals):
    assert held_steps(polling, 1.0, 0.0, arrivals) == pytest.approx(simulated_hold(polling, 1, 0, arrivals), abs=0.3)


@pytest.mark.parametrize(("prompts", "limit"), [(8, 60), (8, 20), (4, 40), (2, 1000)])
@pytest.mark.parametrize("arrivals", [0.005, 0.05, 0.2])
def test_gathered_prompts_wait_for_others(prompts, limit, arrivals):
    found, simulated = held_steps(1.0, prompts, limit, arrivals), simulated_hold(1, prompts, limit, arrivals)
    assert found == pytest.approx(simulated, rel=0.25, abs=0.5)
    assert gathering_span(prompts, limit, arrivals) <= limit


def test_nothing_is_held_without_options():
    assert held_steps(1.0, 1.0, 0.0, 0.3) == 0
    assert gathering_span(1.0, 60.0, 0.1) == 0  # the first one is enough


@pytest.mark.parametrize("option", [{"polling_steps": 30.0}, {"gathering_steps": 40.0, "gathering_prompts": 8.0}])
def test_a_held_prompt_delays_first_tokens_and_leaves_steps_alone(option):
    names = ("time_to_first_token", "time_per_output_token", "decode_step_time", "served_rate")
    plain, held = evaluate(*names, **LOOP), evaluate(*names, **LOOP, **option)
    step = np.max(plain["decode_step_time"])
    assert held["time_to_first_token"] > plain["time_to_first_token"] + 5 * step
    assert held["time_per_output_token"] <= plain["time_per_output_token"] * (1 + 1e-9)  # fewer, fuller passes
    assert held["served_rate"] <= plain["served_rate"] * 1.02


def test_a_single_client_is_never_held():
    alone = LOOP | {"batch": 1.0}
    assert value("time_to_first_token", **alone, polling_steps=30.0) == value("time_to_first_token", **alone)


def test_arrivals_at_random_are_held_while_others_decode():
    rate = {"batch_rule": "rate", "request_rate": 2.0, "prompt_tokens": 1000.0, "output_tokens": 500.0}
    later = value("time_to_first_token", **rate, polling_steps=21.0) - value("time_to_first_token", **rate)
    found = evaluate("rate_arrival_share", "step_under_way", **rate)
    _, step, prompts, _ = found["rate_arrival_share"]  # those that find others decoding are held
    assert later == pytest.approx(10 * found["step_under_way"] * (step + prompts), rel=0.1)  # in fuller passes, too


def test_the_host_sets_the_pace_of_short_prompts_only():
    """A pass takes the longer of kernels and launches; graphs launch nothing."""
    names = ("late_launch_time", "prefill_launches", "busy_time", "communication_time", "pass_time")
    late = {}
    for tokens in (16.0, 100_000.0):
        design = {"batch_rule": "given", "batch": 1.0, "prompt_tokens": tokens, "output_tokens": 10.0}
        found = evaluate(*names, **design, prefill_launch_time=43e-6)
        device = float(np.squeeze(found["busy_time"] + found["communication_time"])[..., 0])
        late[tokens] = float(np.squeeze(found["late_launch_time"])[..., 0])
        assert late[tokens] == pytest.approx(max(float(np.squeeze(found["prefill_launches"])) * 43e-6 - device, 0))
        assert np.squeeze(found["late_launch_time"])[..., 1] == 0  # steps run as graphs
    assert late[16.0] > 0 == late[100_000.0]
