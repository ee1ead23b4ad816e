"""The oracle of serving against cases worked out by hand and queueing theory."""

import numpy as np
import pytest

from . import (
    Lengths,
    Server,
    System,
    arriving,
    endless,
    little,
    measures,
    of_clients,
    policy,
    simulate,
    synthetic,
)
from .traffic import Traffic

STEP, PROMPT = 0.010, 0.020  # s, of the surface of most cases: whatever decodes, and a prompt of 1,000 tokens


def flat(**others):
    """A decoding step takes 10 ms, prompts 20 us a token, at least 8 ms."""
    return synthetic(lambda b: STEP + 0 * b, lambda n: np.maximum(0.008, 2e-5 * n), **others)


def requests(arrival, prompt, output, kind="open", clients=0):
    """A load of stated requests."""
    count = len(arrival)
    prompt, cached, output = (np.broadcast_to(np.asarray(v, np.int64), (count,)) for v in (prompt, 0, output))
    return Traffic(np.asarray(arrival, float), prompt, cached, output, kind, clients)


def served(surface, load, ranks=1, groups=1, system=None, engine="vllm-sync", **limits):
    return simulate(System(Server(surface, policy(engine, **limits), ranks, groups), **system or {}), load)


# ---- by hand --------------------------------------------------------------------------------------------------------


def test_one_sequence():
    found = served(flat(), requests([1.0], 1000, 3), system={"front_end": 0.005, "detokenise": 0.001})
    assert found.first[0] == pytest.approx(1.0 + 0.005 + PROMPT + 0.001)
    assert found.end[0] == pytest.approx(found.first[0] + 2 * STEP)


def test_two_sequences_and_one_place():
    found = served(flat(), requests([0, 0], 1000, 3), places=1)
    assert found.end == pytest.approx([PROMPT + 2 * STEP, 2 * (PROMPT + 2 * STEP)])


@pytest.mark.parametrize(
    ("engine", "first", "gap"),
    [
        # the prompt of the second shares an iteration with a step of the first: D(1) + P(1001) - P(1)
        ("vllm-sync", STEP + 2e-5 * 1001 - 0.008, STEP + 2e-5 * 1001 - 0.008),
        # it runs alone, and the step waits for it
        ("sglang", PROMPT, PROMPT + STEP),
    ],
)
def test_a_prompt_beside_a_step(engine, first, gap):
    """The second request comes within the first step of the first, and enters the next iteration."""
    came = PROMPT + STEP / 2
    found = served(flat(), requests([0, came], 1000, 3), engine=engine, ahead=False)
    assert found.first[1] == pytest.approx(PROMPT + STEP + first)
    assert found.end[0] == pytest.approx(PROMPT + STEP + gap)


def test_asynchronous_scheduling_costs_an_arrival_one_iteration():
    load = requests([0, PROMPT + 1.5 * STEP], 1000, 30)
    late, soon = (served(flat(), load, engine=engine).first[1] for engine in ("vllm", "vllm-sync"))
    assert late - soon == pytest.approx(STEP)
    alone = requests([0, 10.0], 1000, 30)  # an engine that is idle does not wait
    late, soon = (served(flat(), alone, engine=engine).first for engine in ("vllm", "vllm-sync"))
    assert late == pytest.approx(soon)


def test_chunks():
    """1,000 tokens, 400 at a time; behind 600 others that take the tokens first."""
    surface = synthetic(lambda b: STEP + 0 * b, lambda n: 2e-5 * n, attention=lambda length: 1e-9 * length**2)
    assert served(surface, requests([0], 1000, 1), tokens=400).first[0] == pytest.approx(2e-5 * 1000 + 1e-9 * 1000**2)
    found = served(surface, requests([0, 0], [600, 1000], 1), tokens=400)
    attention = 1e-9 * np.array([600**2, 200**2])  # of the second, 200 tokens were computed beside the first
    assert found.first[0] == pytest.approx(2e-5 * 800 + attention.sum())
    assert found.first[1] == pytest.approx(2e-5 * 1600 + 1e-9 * (600**2 + 1000**2))
    capped = served(surface, requests([0, 0], [600, 1000], 1), tokens=400, longest_chunk=200)
    assert capped.first[0] == pytest.approx(2e-5 * 1200 + 2 * attention[0])


def test_whole_prompts_wait_until_they_fit():
    found = served(flat(), requests([0, 0], [700, 500], 1), engine="tensorrt-llm", tokens=1000)
    assert found.first == pytest.approx([2e-5 * 700, 2e-5 * 1200])
    with pytest.raises(ValueError, match="longer than an iteration"):
        served(flat(), requests([0], 1001, 1), engine="tensorrt-llm", tokens=1000)


def test_cached_tokens_cost_nothing_but_their_reading():
    surface = synthetic(lambda b: STEP + 0 * b, lambda n: 2e-5 * n, slope=1e-6)
    load = Traffic(np.zeros(1), np.array([1000]), np.array([900]), np.array([2]), "open")
    found = served(surface, load)
    assert found.first[0] == pytest.approx(2e-5 * 100)
    assert found.end[0] - found.first[0] == pytest.approx(STEP + 1e-6 * 1001)


def test_cache_that_is_set_aside():
    """Two sequences of 1,003 tokens on a cache of 1,500: the second waits for the first."""
    server = Server(flat(), policy("vllm-sync"), cache_tokens=1500)
    found = simulate(System(server), requests([0, 0], 1000, 3))
    assert found.first[1] == pytest.approx(2 * PROMPT + 2 * STEP)
    with pytest.raises(ValueError, match="longer than the cache"):
        simulate(System(server), requests([0], 1600, 3))


# ---- structures -----------------------------------------------------------------------------------------------------


def test_a_pipeline_of_two_stages_with_two_sequences():
    """Alone a sequence has a token each T and a hop. Two of them wait for the first stage: T/2 and a hop each."""
    surface = flat(shares=(0.5, 0.5), hop=0.001)
    one = served(surface, requests([0], 1000, 50), groups=2)
    assert one.first[0] == pytest.approx(PROMPT + 0.001)
    assert (one.end - one.first) == pytest.approx(49 * (STEP + 0.001))
    two = served(surface, requests([0, 0], 1000, 50), groups=2, places=1)
    assert (two.end - two.first)[0] == pytest.approx(49 * 2 * (STEP / 2 + 0.001), rel=0.02)


@pytest.mark.parametrize(("following", "passes"), [(True, 1.5), (False, 2.0)])
def test_chunks_follow_each_other_through_the_stages(following, passes):
    """Two chunks of 1,000 tokens: the second is in the first stage while the first is in the second."""
    surface = flat(shares=(0.5, 0.5))
    found = served(surface, requests([0], 2000, 3), groups=2, tokens=1000, following=following)
    assert found.first[0] == pytest.approx(passes * PROMPT)
    assert found.end[0] - found.first[0] == pytest.approx(2 * STEP)


def test_a_prompt_holds_up_the_groups_behind_it():
    surface = flat(shares=(0.5, 0.5))
    load = requests([0, 0, 0.1], [1000, 1000, 4000], [60, 60, 1])
    without, behind = served(surface, requests([0, 0], 1000, 60), groups=2), served(surface, load, groups=2)
    delay = behind.end[:2] - without.end
    assert (delay > 0.02).all()
    assert (delay < 0.09).all()


@pytest.mark.parametrize("stages", [2, 4])
def test_groups_of_a_pipeline_together_yield_what_one_engine_does(stages):
    """Steps that take the same for any batch: p groups have p times the rate, each at the pace of one engine."""
    surface = flat(shares=(1 / stages,) * stages)
    load = endless(Lengths(10, 400), 40 * stages)
    single = served(flat(), endless(Lengths(10, 400), 40), places=4)
    found = served(surface, load, groups=stages, places=4)
    rate = len(load.output) / found.end.max() / (40 / single.end.max())
    assert rate == pytest.approx(stages, rel=0.05)


def test_an_idle_rank_in_lockstep_runs_empty():
    """Experts see the mean of 1 and 0 rows, everything else is that of the busy rank."""
    surface = synthetic(lambda b: STEP + 0 * b, lambda n: 0.008 + 0 * n, experts=lambda n: 0.004 * n)
    found = served(surface, requests([0], 10, 11), ranks=2)
    assert found.end[0] - found.first[0] == pytest.approx(10 * (STEP - 0.004 + 0.002))


def test_ranks_with_equal_work_are_a_replica_with_that_of_one():
    lengths, surface = Lengths(1000, 100), flat(experts=lambda n: 1e-6 * n)
    load = of_clients(8, lengths, 80)
    group = served(surface, of_clients(32, lengths, 320), ranks=4)
    alone = served(surface, load)
    assert np.sort(group.end)[::4] == pytest.approx(np.sort(alone.end))


def test_prompts_that_wait_at_several_ranks_share_an_iteration():
    """Four prompts at once on four ranks take one iteration; on one rank with tokens for one prompt, four."""
    load = requests([0] * 4, 1000, 1)
    assert served(flat(), load, ranks=4, tokens=1000).first == pytest.approx([PROMPT] * 4)
    assert served(flat(), load, tokens=1000).first == pytest.approx(PROMPT * np.arange(1, 5))


def test_a_rank_that_computes_a_prompt_alone_holds_up_others_by_its_time():
    """SGLang: the other rank decodes in the same iteration, which lasts as long as the prompt."""
    found = served(flat(), requests([0, PROMPT - 0.001], [1000, 4000], [4, 1]), ranks=2, engine="sglang", ahead=False)
    assert found.end - PROMPT == pytest.approx([2e-5 * 4000 + 2 * STEP, 2e-5 * 4000])


def test_endless_prefills_leave_the_decoding_pool_alone():
    """B places, steps of one time: B/(steps·T) answers per second, whatever prompts take elsewhere."""
    quick = synthetic(lambda b: STEP + 0 * b, lambda n: 1e-9 * n)
    system = System(Server(quick, policy("vllm")), decode=Server(flat(), policy("vllm-sync", places=16)))
    load = endless(Lengths(100, 101), 1600)
    found = simulate(system, load)
    assert 1600 / (found.end.max() - found.first.min()) == pytest.approx(16 / (100 * STEP), rel=1e-3)


def test_replicas_share_the_load():
    lengths, server = Lengths(1000, 100, 0.3, 0.3), Server(flat(), policy("vllm"))
    two, one = (simulate(System(server, replicas=n), of_clients(16 * n, lengths, 400 * n)) for n in (2, 1))
    assert 800 / two.end.max() == pytest.approx(2 * 400 / one.end.max(), rel=0.05)


# ---- loads ----------------------------------------------------------------------------------------------------------


def test_one_request_more_than_clients_takes_two_rounds():
    rounds = [served(flat(), of_clients(8, Lengths(100, 51), n), engine="vllm").end.max() for n in (8, 9, 16)]
    assert rounds[1] == pytest.approx(2 * rounds[0], rel=0.05)
    assert rounds[2] == pytest.approx(2 * rounds[0], rel=0.05)


@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize("variation", [0.0, 1.0])
def test_one_prompt_an_iteration_is_the_queue_of_pollaczek_and_khinchine(load, variation):
    """M/G/1: s·(1 + rho·(1 + v²)/(2·(1 - rho)))."""
    surface = synthetic(lambda b: STEP + 0 * b, lambda n: 2e-5 * n, tokens=32768, longest=32768)
    run = arriving(load / PROMPT, Lengths(1000, 1, variation), 20_000, seed=1)
    service = 2e-5 * run.prompt
    mean, second = service.mean(), np.mean(service**2)
    found = served(surface, run, places=1, tokens=32768)
    rate = len(run.arrival) / run.arrival[-1]
    wait = rate * second / (2 * (1 - rate * mean))
    assert np.mean(found.first - run.arrival) == pytest.approx(mean + wait, rel=0.08)


@pytest.mark.parametrize(
    "run", [arriving(8.0, Lengths(500, 100, 0.5, 0.5), 3000), endless(Lengths(500, 100, 0.5, 0.5), 3000)]
)
def test_little(run):
    found = served(flat(), run, engine="vllm", places=32)
    assert little(run, found) == pytest.approx(1, rel=1e-9)
    table = measures([(run, found)])
    if run.kind == "endless":  # all places are taken: N = X·R, by the measures without the beginning
        assert table["throughput"].value * table["latency"]["mean"].value == pytest.approx(32, rel=0.02)


def test_clients_that_vary_are_as_many_places():
    """A loop of N clients with N places is an endless queue of N places."""
    lengths = Lengths(500, 100, 0.3, 0.3)
    rates = []
    for run in (of_clients(32, lengths, 6000), endless(lengths, 6000)):
        found = served(flat(), run, places=32)
        rates.append(6000 / found.end.max())
    assert rates[0] == pytest.approx(rates[1], rel=0.02)


# ---- measures -------------------------------------------------------------------------------------------------------


def test_intervals_hold_what_longer_runs_find():
    """The mean of 20,000 requests lies in the 90 % interval of most runs of 2,000."""
    lengths, server = Lengths(500, 50, 0.5, 0.5), System(Server(flat(), policy("vllm")))

    def first_token(count, seed):
        run = arriving(12.0, lengths, count, seed=seed)
        return measures([(run, simulate(server, run))])["first_token"]["mean"]

    true = first_token(20_000, 99).value
    hits = sum(abs(one.value - true) <= one.half for one in (first_token(2000, seed) for seed in range(12)))
    assert hits >= 8


def test_percentiles_are_in_order_and_gaps_have_the_mean_of_tokens():
    run = arriving(10.0, Lengths(500, 100, 0.5, 0.5), 4000)
    found = served(flat(), run, engine="sglang")
    table = measures([(run, found)])
    for name in ("first_token", "per_token", "latency", "gap"):
        values = [table[name][p].value for p in ("p50", "p90", "p99")]
        assert values == sorted(values)
    assert table["gap"]["p99"].value > table["per_token"]["p99"].value  # steps that wait for prompts
