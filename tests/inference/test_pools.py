"""Two pools: a system worked by hand, a simulation request by request, and limits that hold for any system."""

import heapq
from collections import deque
from typing import Any

import jax
import numpy as np
import pytest

import perfgrid as pg
from perfgrid import PerfgridError
from perfgrid.catalog import load_catalog
from perfgrid.engine import replay, resolve
from perfgrid.formulas import registry_of
from perfgrid.formulas.axes import INNER
from perfgrid.formulas.serving.pools import LOADS
from perfgrid.study.entries import unit_of
from tests.units import check

MACHINE = {
    "model": ["llama-3.1-8b"],
    "device": ["h100-sxm-80gb"],
    "topology": ["hgx-h100-400g"],
    "software": ["vllm"],
}
OUTPUTS = (
    *("time_to_first_token", "time_per_output_token", "request_latency", "served_rate", "running_batch"),
    *("prefill_pool_load", "decode_pool_load", "cache_transfer_time", "largest_request_rate"),
)
STEP = (0.010, 0.0002)  # seconds of a step: so many, and so many for each sequence
LARGEST = 256.0
PASS = 0.2  # seconds of a prompt on the one worker of the prefill pool
GIVEN = {  # a system without a device
    **{"shared_queue": 1.0, "prefill_workers": 1.0, "decode_workers": 1.0},
    **{"prefill_limit": 1 / PASS, "prefill_replicas": 1.0, "prefill_ranks": 1.0, "prefill_rank_rate": 50e9},
    **{"decode_ranks": 2.0, "decode_rank_rate": 50e9, "decode_rank_cache": 1e9, "transfer_latency": 0.0},
    **{
        "layers": 10.0,
        "front_end_time": 0.0,
        "decode_front_end_time": 0.0,
        "prompt_tokens": 1000.0,
        "output_tokens": 101.0,
        "draft_tokens": 0.0,
        "largest_load": 1.0,
        "prefilled": 0.0,
        "offered_load": 0.0,
    },
    **{"draft_acceptance": 0.0, "transfer_by_layer": 0.0, "decode_yields_first": 0.0},
    **{"batch": 64.0, "loop_requests": 0.0, "request_rate": 3.0},
    "time_to_first_token_limit": 1e9,
    "time_per_output_token_limit": 1e9,
}


def tabulated(largest, step):
    """Times of both pools by load: a queue with one server (Pollaczek and Khinchine), and steps of what runs."""
    u = np.array(LOADS)
    behind = u / (1 - u) * PASS / 2
    limit = largest / (100 * (step[0] + step[1] * largest))
    running = 100 * u * limit * step[0] / (1 - 100 * u * limit * step[1])  # b = rate·100·T(b)
    full = u ** (np.sqrt(2 * (largest + 1)) - 1) / (2 * (1 - u) * limit)  # Sakasegawa's wait for a place
    each = step[0] + step[1] * np.minimum(running, largest)
    times = {
        "own_prompt_time": (PASS + 0 * u,),
        "prefill_time": (PASS + behind, np.sqrt(behind * PASS * 2 / 3 + behind**2), 2 * behind),
        "decode_wait": (full, full, 2 * full),
        "decode_stay": (full + 100 * each, full, 2 * full),
        "decode_token": (each, 0 * u, 0 * u),
    }
    tables = {"own_prompt_time": times.pop("own_prompt_time")[0]}
    tables |= {
        f"{name}_{statistic}": values
        for name, three in times.items()
        for statistic, values in zip(INNER.labels["statistic"], three, strict=True)
    }
    vectors = {name: INNER.vector("load", values.tolist()) for name, values in tables.items()}
    return vectors | {"decode_limit": limit, "decode_places": largest}


def joined(*outputs, rule="clients", largest=LARGEST, step=STEP, **given):
    """Outputs of a system that is given by its passes and steps."""
    every = GIVEN | tabulated(largest, step) | given
    graph = resolve(
        registry_of("pools"), outputs, tuple(every), labels={"batch_rule": (rule,), "limit_statistic": ("mean",)}
    )
    values = replay(graph, {name: 0.0 if name == "batch_rule" else every[name] for name in graph.leaves})
    return {name: np.squeeze(np.asarray(values[name], float)) for name in outputs}


def study(rule, prefill, decode, outputs=OUTPUTS, **parameters):
    """The joined study of two pools of one model."""
    sizes = {"prompt_tokens": 2000, "output_tokens": 200, "batch_rule": rule} | parameters
    layout = {"tp": [1], "pp": [1]}
    pools = {
        name: {"axes": {"parallelism": layout | (own if isinstance(own, dict) else {"devices": own})}}
        for name, own in (("prefill", prefill), ("decode", decode))
    }
    content = {"outputs": list(outputs), "dtype": "float64", "axes": MACHINE, "workload_parameters": sizes}
    return pg.join_pools(content | pools)


def simulate(rule, ask, requests, workers, most, pass_of, step_of, steps, places, seed, spread=0.1):
    """Two pools, request by request: clients that ask again (rule clients), or random arrivals at a rate.

    A worker computes the prompts that wait, at most so many; a sequence then needs a place, and as many steps as it is
    long, of the batch that runs. Lengths are even within the spread.
    """
    generator = np.random.default_rng(seed)
    queue, waiting, running = deque(), deque(), []
    busy, events, firsts, gaps = [False] * workers, [], [], []
    clock = passed = 0.0
    arrivals = np.cumsum(generator.exponential(1 / ask, requests)).tolist() if rule == "rate" else []
    issued = len(arrivals) or int(ask)
    queue.extend([] if arrivals else [0.0] * issued)
    events += [(when, i, -1, []) for i, when in enumerate(arrivals)]
    number = len(events)

    def proceed():
        nonlocal number
        while waiting and len(running) < places:
            firsts.append(clock - waiting.popleft())
            length = max(1.0, steps * (1 + spread * generator.uniform(-1, 1)))
            heapq.heappush(running, (passed + length, clock, length))
        for worker in range(workers):
            if queue and not busy[worker]:
                prompts = [queue.popleft() for _ in range(min(most, len(queue)))]
                number, busy[worker] = number + 1, True
                heapq.heappush(events, (clock + pass_of(len(prompts)), number, worker, prompts))

    proceed()
    while len(gaps) < requests:
        step = step_of(len(running)) if running else 1.0
        ends = clock + (running[0][0] - passed) * step if running else np.inf
        now = min(events[0][0] if events else np.inf, ends)
        passed += (now - clock) / step if running else 0.0
        clock = now
        if events and events[0][0] <= ends:
            when, _, worker, prompts = heapq.heappop(events)
            if worker < 0:
                queue.append(when)
            else:
                busy[worker] = False
                waiting.extend(prompts)
        else:
            _, started, length = heapq.heappop(running)
            gaps.append((clock - started) / length)
            if rule == "clients" and issued < requests:
                issued += 1
                queue.append(clock)
        proceed()
    return np.mean(firsts), np.mean(gaps), requests / clock


# ---- by hand --------------------------------------------------------------------------------------------------------


def test_one_client_waits_for_its_own_prompt_and_its_own_steps():
    """0.2 s of prefill, 2 GB over one link of 50 GB/s, then 100 steps of 10 ms."""
    names = ("time_to_first_token", "time_per_output_token", "served_rate", "cache_transfer_time")
    found = joined(*names, batch=1.0)
    assert found["cache_transfer_time"] == pytest.approx(0.04, rel=1e-12)
    assert found["time_per_output_token"] == pytest.approx(0.01, rel=1e-3)
    cycle = found["time_to_first_token"] + 100 * found["time_per_output_token"]
    assert found["time_to_first_token"] == pytest.approx(0.24, rel=1e-3)
    assert found["served_rate"] == pytest.approx(1 / cycle, rel=1e-6)


def test_the_slower_pool_sets_the_pace():
    """A prompt in 0.2 s: 5 a second; 256 sequences in 100 steps of 61.2 ms: 42 a second."""
    found = joined("largest_request_rate", "served_rate", batch=1e4)
    assert found["served_rate"] == pytest.approx(5, rel=1e-3)
    assert found["largest_request_rate"] == 5
    slow = joined("served_rate", batch=1e4, largest=16.0, prefill_limit=100.0)
    assert slow["served_rate"] == pytest.approx(16 / (100 * 0.0132), rel=1e-3)


def test_random_arrivals_wait_as_pollaczek_and_khinchine_say():
    for rate in (0.3, 3.0, 4.2):  # between the tabulated loads as well
        found = joined("prompt_queue_time", "time_per_output_token", rule="rate", request_rate=rate)
        load = rate * PASS
        assert found["prompt_queue_time"] == pytest.approx(load * PASS / (2 * (1 - load)), rel=1e-6)
        assert found["time_per_output_token"] == pytest.approx(0.01 / (1 - rate * 100 * 0.0002), rel=1e-3)


def test_ranks_that_hold_the_same_latent_each_receive_it():
    names = ("cache_transfer_time",)
    one = joined(*names, decode_ranks=1.0)["cache_transfer_time"]
    eight = joined(*names, decode_ranks=8.0)["cache_transfer_time"]
    many = joined(*names, decode_ranks=8.0, prefill_ranks=8.0)["cache_transfer_time"]
    assert (one, eight, many) == pytest.approx((0.02, 0.16, 0.02))


def test_a_transfer_by_layer_shows_the_last_layer_or_what_the_prefill_does_not_hide():
    hidden = joined("exposed_transfer_time", batch=1.0, transfer_by_layer=1.0)["exposed_transfer_time"]
    assert hidden == pytest.approx(0.04 / 10)
    late = joined("exposed_transfer_time", batch=1.0, transfer_by_layer=1.0, decode_rank_rate=2e9)
    assert late["exposed_transfer_time"] == pytest.approx(0.5 - 0.2 * 0.9, rel=1e-5)


# ---- request by request ---------------------------------------------------------------------------------------------

pass_of = lambda j: PASS  # noqa: E731
step_of = lambda b: STEP[0] + STEP[1] * b  # noqa: E731


@pytest.mark.parametrize("clients", [1, 4, 8, 32])
def test_clients_are_served_as_in_a_simulation(clients):
    names = ("time_to_first_token", "time_per_output_token", "served_rate")
    found = joined(*names, batch=float(clients), loop_requests=20.0 * clients, decode_rank_cache=0.0)
    runs = [
        simulate("clients", clients, 20 * clients, 1, 1, pass_of, step_of, 100, LARGEST, seed, spread=0.9)
        for seed in range(5)
    ]
    first, gap, rate = np.mean(runs, axis=0)
    assert found["time_to_first_token"] == pytest.approx(first, rel=0.20)
    assert found["time_per_output_token"] == pytest.approx(gap, rel=0.05)
    assert found["served_rate"] == pytest.approx(rate, rel=0.10)


@pytest.mark.parametrize(("load", "workers"), [(0.3, 1), (0.8, 1), (0.8, 3)])
def test_random_arrivals_are_served_as_in_a_simulation(load, workers):
    rate = load * workers / PASS
    names = ("time_to_first_token", "time_per_output_token", "running_batch")
    several = {"prefill_workers": float(workers), "prefill_limit": workers / PASS}
    found = joined(*names, rule="rate", request_rate=rate, decode_rank_cache=0.0, **several)
    runs = [simulate("rate", rate, 4000, workers, 1, pass_of, step_of, 100, LARGEST, seed) for seed in range(3)]
    first, gap, _ = np.mean(runs, axis=0)
    assert found["time_to_first_token"] == pytest.approx(first, rel=0.10)
    assert found["time_per_output_token"] == pytest.approx(gap, rel=0.02)
    assert found["running_batch"] == pytest.approx(rate * 100 * found["time_per_output_token"], rel=1e-6)


def test_a_wait_for_a_step_is_that_of_one_replica_however_many_share_a_queue():
    u = np.array(LOADS)
    wait = {"mean": 0.01 + 0 * u, "deviation": 0.02 / 12**0.5 + 0 * u, "lean": 0 * u}
    given: dict[str, Any] = {
        f"decode_wait_{name}": INNER.vector("load", values.tolist()) for name, values in wait.items()
    }
    given["decode_token_mean"] = INNER.vector("load", [0.02] * len(LOADS))
    for workers in (1.0, 8.0):
        found = joined("decode_wait_spread", rule="rate", request_rate=3.0, decode_workers=workers, **given)
        mean, deviation, _ = found["decode_wait_spread"]
        assert (mean, deviation) == pytest.approx((0.01, 0.02 / 12**0.5), rel=1e-3)


def test_clients_without_a_place_wait_as_in_a_simulation():
    fast: dict[str, Any] = {"prefill_limit": 1e3} | {f"prefill_time_{name}": 0.0 for name in ("deviation", "lean")}
    fast |= {name: INNER.vector("load", [1e-3] * len(LOADS)) for name in ("prefill_time_mean", "own_prompt_time")}
    found = joined("time_to_first_token", "served_rate", batch=64.0, largest=16.0, decode_rank_cache=0.0, **fast)
    run = simulate("clients", 64, 4000, 1, 1, lambda j: 1e-3, step_of, 100, 16, seed=1)
    assert found["time_to_first_token"] == pytest.approx(run[0], rel=0.05)
    assert found["served_rate"] == pytest.approx(run[2], rel=0.02)


# ---- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1.0, 4.0, 32.0, 200.0, 2000.0])
@pytest.mark.parametrize("largest", [8.0, 256.0])
def test_clients_are_those_that_wait_for_an_answer(clients, largest):
    """Little's law: clients = requests per second times the latency of a request."""
    found = joined("served_rate", "time_to_first_token", "loaded_step_time", batch=clients, largest=largest)
    latency = found["time_to_first_token"] + 100 * found["loaded_step_time"]
    assert found["served_rate"] * latency == pytest.approx(clients, rel=1e-3)


@pytest.mark.parametrize("place", ["axes", "workload_parameters", "overrides"])
def test_pools_inside_one_batch_rule_are_refused_with_what_to_write(place):
    content = {"axes": MACHINE | {"parallelism": {"devices": [2], "tp": [1]}}, "overrides": {}}
    content["workload_parameters"] = {"prompt_tokens": 1000, "output_tokens": 100, "batch_rule": "memory"}
    content[place] |= {"pools": ["shared", "separate"] if place == "axes" else "separate"}
    with pytest.raises(PerfgridError, match=r"unknown .*workload .pools. with the tables .prefill. and .decode."):
        pg.Study.make(workload="inference", outputs=["served_rate"], **content)


def test_each_pool_is_two_queues():
    """Three replicas compute prompts, five decode: first tokens wait for the former, running ones by Little's law."""
    names = (*OUTPUTS, "prompt_time")
    sizes = {"prompt_tokens": 2000, "output_tokens": 200}
    slow = pg.evaluate(study("rate", [3], [5], names, request_rate=0.01, **sizes)).squeeze()
    rate = 0.8 / float(slow.prompt_time) * 3
    found = pg.evaluate(study("rate", [3], [5], names, request_rate=rate, **sizes)).squeeze()
    running = rate * 199 * float(found.time_per_output_token)
    assert float(found.running_batch) == pytest.approx(running, rel=0.02)
    assert float(found.time_to_first_token) > float(slow.time_to_first_token)


@pytest.mark.parametrize("rule", ["clients", "rate"])
def test_more_replicas_of_either_pool_are_never_worse(rule):
    asked = {"batch": 96} if rule == "clients" else {"request_rate": 4.0}
    found = pg.evaluate(study(rule, [1, 2, 4, 8], [1, 2, 4, 8], **asked)).squeeze()
    for pool in ("prefill", "decode"):
        for name, sign in (("request_latency", -1), ("served_rate", 1), ("largest_request_rate", 1)):
            steps = sign * found[name].diff(pool).values
            assert (steps >= -0.03 * np.abs(found[name].values).max()).all(), (pool, name)
            assert (steps > 0).any() or rule == "rate" or name == "largest_request_rate"


def test_the_transfer_vanishes_with_the_link_and_nothing_else_changes():
    slow, fast = (
        joined("time_to_first_token", "cache_transfer_time", "time_per_output_token", rule="rate",
               prefill_rank_rate=rate, decode_rank_rate=rate)
        for rate in (50e9, 1e18)
    )  # fmt: skip
    assert fast["cache_transfer_time"] == pytest.approx(0.0, abs=1e-8)
    assert slow["time_to_first_token"] - fast["time_to_first_token"] == pytest.approx(0.04, rel=1e-6)
    assert slow["time_per_output_token"] == pytest.approx(fast["time_per_output_token"], rel=1e-9)


def test_a_step_of_the_decode_pool_may_yield_the_first_token():
    names = ("time_to_first_token", "loaded_step_time", "running_batch")
    prefill, decode = (
        pg.evaluate(study("rate", [1], [1], names, request_rate=1.0, decode_yields_first=flag)).squeeze()
        for flag in (False, True)
    )
    more = float(decode.time_to_first_token - prefill.time_to_first_token)
    assert more == pytest.approx(float(decode.loaded_step_time), rel=0.02)
    assert float(decode.running_batch / prefill.running_batch) == pytest.approx(200 / 199, rel=1e-3)


@pytest.mark.parametrize("rule", ["clients", "rate"])
@pytest.mark.parametrize("largest", [1.0, 256.0])
def test_gradients_are_finite_everywhere(rule, largest):
    names = ("time_to_first_token", "time_per_output_token", "served_rate", "request_latency")
    tables = tabulated(largest, STEP)
    graph = resolve(
        registry_of("pools"), names, (*GIVEN, *tables), labels={"batch_rule": (rule,), "limit_statistic": ("mean",)}
    )

    def results(given):
        found = GIVEN | tables | given
        for node in graph.nodes.values():
            found[node.name] = node.function(*(found[name] for name in node.arguments))
        return sum(found[name].sum() for name in names)

    asked = np.reshape([0.5, 1.0, 8.0, 64.0, 1e5], (-1, *(1,) * len(INNER)))  # all at once: each is a point of its own
    point = {"batch": asked, "request_rate": asked, "prefill_limit": 5.0, "decode_limit": 40.0}
    point |= {"decode_rank_rate": 5e10, "prefill_time_mean": tables["prefill_time_mean"]}
    slopes = jax.grad(results)({name: value + 0.0 * asked for name, value in point.items()})
    finite = {name: np.isfinite(slope).reshape(len(asked), -1).all(axis=1) for name, slope in slopes.items()}
    assert all(map(np.all, finite.values())), finite


def test_every_formula_of_two_pools_keeps_its_units():
    outputs = [
        n for n in (*OUTPUTS, "cost_per_million_output_tokens", "goodput", "output_tokens_per_second_per_device")
    ]
    variables = load_catalog().variables
    for rule, asked in (("clients", {"batch": 8}), ("rate", {"request_rate": 2.0})):
        made = study(rule, [1], [1], outputs, **asked)
        units = {name: unit_of(variables, name) for name in made.space.names()}
        assert not check(made.plan(), units)
