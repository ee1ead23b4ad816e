"""Closed loops of clients: first tokens against a loop over requests, and limits that hold for any system."""

import heapq
from collections import deque

import jax
import numpy as np
import pytest

from perfgrid.formulas.serving.clients import ends_of_passes
from tests.inference.designs import evaluate, value

STEPS = (1, 2, 4, 8, 16, 32, 64)


def simulate(clients, requests, prefill_of, most, step_of, steps, places, seed, spread=0.1):
    """One replica and its clients, request by request.

    A pass computes the prompts that wait, at most so many, or one step of all running sequences. Answers end with a
    pass; the next request of a client comes when the pass after it is under way.
    """
    generator = np.random.default_rng(seed)
    waiting, coming, running = deque([0.0] * clients), [], []
    clock, passed, issued = 0.0, 0, clients
    firsts, gaps = [], []
    while len(gaps) < requests:
        now = clock
        places_left = places - len(running)
        if waiting and places_left > 0:
            taken = [waiting.popleft() for _ in range(min(len(waiting), most, places_left))]
            clock += prefill_of(len(taken))
            for arrived in taken:
                firsts.append(clock - arrived)
                length = max(1, round(steps * (1 + spread * generator.uniform(-1, 1))))
                heapq.heappush(running, (passed + length, clock, length))
        elif running:
            clock += step_of(len(running))
            passed += 1
        else:
            clock = coming[0]
        while coming and coming[0] <= now + 1e-12:
            waiting.append(heapq.heappop(coming))
        while running and running[0][0] <= passed:
            _, started, length = heapq.heappop(running)
            gaps.append((clock - started) / length)
            if issued < requests:
                issued += 1
                heapq.heappush(coming, clock)
    return np.mean(firsts), np.mean(gaps)


def system(prompt, output, **given):
    """Times of passes of a design by the formulas: prefills by prompts, steps by sequences, and the design."""
    common = {"model": "llama-3.1-8b", "prompt_tokens": float(prompt), "output_tokens": float(output)} | given
    common |= {"front_end_time": 0.0}
    most = max(1, 8192 // prompt)
    prompts = {n: value("prefill_time", batch=float(n), **common) for n in sorted({1, most})}
    table = {n: value("decode_step_time", batch=float(n), **common) for n in STEPS}
    prefill_of = lambda n: np.interp(n, list(prompts), list(prompts.values()))  # noqa: E731
    step_of = lambda n: np.interp(n, list(table), list(table.values()))  # noqa: E731
    return common, prefill_of, most, step_of


@pytest.mark.parametrize(
    ("clients", "prompt", "output", "per_client"),
    [
        (1, 1000, 100, 10),
        (4, 2000, 300, 10),
        (16, 1000, 500, 10),
        (16, 4000, 100, 20),
        (64, 2000, 300, 10),
        (64, 500, 900, 5),
    ],
)
def test_first_tokens_of_clients_are_those_of_a_simulation(clients, prompt, output, per_client):
    common, prefill_of, most, step_of = system(prompt, output, prefill_first=True)
    loop = {"batch_rule": "clients", "batch": float(clients), "loop_requests": float(clients * per_client)}
    found = evaluate("time_to_first_token", "time_per_output_token", **common, **loop)
    runs = [
        simulate(clients, clients * per_client, prefill_of, most, step_of, output - 1, 10**9, seed) for seed in range(3)
    ]
    first, gap = np.mean(runs, axis=0)
    assert float(found["time_to_first_token"]) == pytest.approx(first, rel=0.15)
    assert float(found["time_per_output_token"]) == pytest.approx(gap, rel=0.10)


def test_clients_without_a_place_wait_as_in_a_simulation():
    common, prefill_of, most, step_of = system(1000, 300, batch_limit=16.0, prefill_first=True)
    loop = {"batch_rule": "clients", "batch": 64.0, "loop_requests": 1280.0}
    first = simulate(64, 1280, prefill_of, most, step_of, 299, 16, seed=1)[0]
    assert value("time_to_first_token", **common, **loop) == pytest.approx(first, rel=0.10)


def test_rounds_of_equal_answers_begin_together_where_prompts_come_first():
    common, prefill_of, most, step_of = system(2000, 200)
    loop = {
        "batch_rule": "clients",
        "batch": 32.0,
        "loop_requests": 640.0,
        "prefill_first": True,
        "equal_lengths": True,
    }
    found = evaluate("time_to_first_token", "time_per_output_token", **common, **loop)
    first, gap = simulate(32, 640, prefill_of, most, step_of, 199, 10**9, seed=1, spread=0.0)
    assert float(found["time_to_first_token"]) == pytest.approx(first, rel=0.05)
    assert float(found["time_per_output_token"]) == pytest.approx(gap, rel=0.05)


@pytest.mark.parametrize(("prompt", "output"), [(4000, 30), (1000, 300), (2000, 1000)])
@pytest.mark.parametrize("clients", [1.0, 8.0, 64.0])
def test_clients_are_those_that_wait_for_an_answer(prompt, output, clients):
    """Little's law: clients = requests per second times the latency of a request, within an eighth."""
    names = ("served_rate", "request_latency")
    found = evaluate(*names, model="llama-3.1-8b", prompt_tokens=float(prompt), output_tokens=float(output),
                     batch_rule="clients", batch=clients, front_end_time=0.03)  # fmt: skip
    assert float(found["served_rate"] * found["request_latency"]) == pytest.approx(clients, rel=0.125)


def test_stages_of_a_pipeline_follow_each_other_in_the_beginning():
    """64 prompts through four stages: the first tokens come no later than those of a batch that starts together."""
    design = {"model": "llama-3.1-8b", "prompt_tokens": 8000.0, "output_tokens": 300.0, "pp": 4.0, "devices": 4.0}
    loop = value("starting_time", **design, batch_rule="clients", batch=64.0, loop_requests=64.0)
    last = value("time_to_first_token", **design, batch_rule="given", batch=64.0)
    assert last / 4 < loop < last


def test_fewer_clients_than_replicas_are_flagged():
    common = {"model": "llama-3.1-8b", "prompt_tokens": 1000.0, "output_tokens": 100.0, "dp": 4.0, "devices": 4.0}
    for clients, enough in ((64.0, True), (2.0, False)):
        assert value("replicas_have_work", **common, batch_rule="clients", batch=clients) == enough


def test_no_more_clients_than_requests_ask():
    common, *_ = system(1000, 300)
    few = value("time_to_first_token", **common, batch_rule="clients", batch=10.0, loop_requests=10.0)
    assert value("time_to_first_token", **common, batch_rule="clients", batch=64.0, loop_requests=10.0) == few


def test_one_client_waits_for_its_own_prompt():
    common, *_ = system(1000, 100)
    alone = value("time_to_first_token", batch=1.0, **common)
    assert value("time_to_first_token", **common, batch_rule="clients", batch=1.0) == pytest.approx(alone, rel=1e-6)


def test_more_clients_and_fewer_requests_each_never_come_sooner():
    common, *_ = system(1000, 300)
    clients = np.array([1.0, 2.0, 8.0, 32.0, 128.0])
    many = evaluate("time_to_first_token", **common, batch_rule="clients", batch=clients, loop_requests=1e4)
    assert (np.diff(many["time_to_first_token"]) >= 0).all()
    ever = value("time_to_first_token", **common, batch_rule="clients", batch=32.0, loop_requests=0.0)
    assert ever < value("time_to_first_token", **common, batch_rule="clients", batch=32.0, loop_requests=64.0)


@pytest.mark.parametrize(("prompts", "most"), [(1.0, 1.0), (7.0, 3.0), (9.0, 3.0), (5.0, 8.0)])
def test_ends_of_passes_by_hand(prompts, most):
    times, clock, left = [], 0.0, prompts
    most_there = min(most, prompts)
    while left > 0:
        taken = min(most_there, left)
        clock += 1.0 + 0.5 * (taken - 1)
        times += [clock] * int(taken)
        left -= taken
    mean, last = ends_of_passes(prompts, most_there, 1.0, 1.0 + 0.5 * (most_there - 1))
    assert (float(mean), float(last)) == pytest.approx((np.mean(times), times[-1]))


@pytest.mark.parametrize(("prompts", "most"), [(4.0, 1.0), (8.25, 8.0), (1.0, 1.0), (7.0, 3.0)])
def test_gradients_of_ends_are_finite_and_ends_ordered(prompts, most):
    slopes = jax.grad(lambda times: ends_of_passes(prompts, most, *times)[0])((1.0, 1.4))
    assert np.isfinite(slopes).all()
    mean, last = ends_of_passes(prompts, most, 1.0, 1.4)
    assert 1.0 <= mean <= last
