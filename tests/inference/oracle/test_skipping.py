"""The engine that takes many iterations at once against the plain one, on drawn systems: equal to the bit."""

from typing import Any

import numpy as np
import pytest

from . import POLICIES, Engine, Lengths, Server, SkippingEngine, System, arriving, endless, of_clients, policy, simulate
from .surface import synthetic


def drawn_server(g: np.random.Generator, places: int, tokens: int) -> Server:
    groups = int(g.choice([1, 1, 2, 3]))
    shares = tuple(
        (g.dirichlet([20] * groups) if groups > 1 and g.integers(2) else np.full(groups, 1 / groups)).tolist()
    )
    surface = synthetic(
        lambda b: 0.01 + 1e-4 * b,
        lambda n: np.maximum(0.009, 2e-5 * n),
        slope=1e-8,
        attention=lambda length: 1e-10 * length**2,
        experts=lambda n: 1e-3 + 1e-6 * n,
        hop=1e-4,
        places=places,
        tokens=tokens,
        longest=2048,
        shares=shares,
        attention_start=1e-4,
        launch_time=float(g.choice([0, 0.02])),
        host_time=0.001,
        host_sequence_time=float(g.choice([0, 1e-3])),
        hidden_host=bool(g.integers(2)),
        host_gap=float(g.choice([0, 1e-3])),
    )
    limits = {"places": places, "tokens": tokens, "longest_chunk": int(g.choice([0, 0, 100]))}
    limits |= {"reserved": float(g.choice([1, 0.3])), "ahead": bool(g.integers(2))}
    limits |= {"following": bool(g.integers(2))}
    row = policy(str(g.choice(list(POLICIES))), **limits)
    return Server(
        surface, row, ranks=int(g.choice([1, 1, 3])), groups=groups, cache_tokens=float(g.choice([np.inf, 2600]))
    )


def drawn(seed: int):
    """A system of any structure and a load of any kind."""
    g = np.random.default_rng(seed)
    v, w = g.choice([0, 0.5], 2).tolist()
    means = float(g.choice([30, 300, 600])), float(g.choice([1, 10, 80]))
    lengths = Lengths(means[0], means[1], v, w, float(g.choice([0, 0.5])), "uniform", longest=1200)
    limits = int(g.choice([1, 3, 16, 64])), int(g.choice([1300, 2048]))
    others: dict[str, Any] = {"front_end": float(g.choice([0, 0.02])), "detokenise": float(g.choice([0, 0.001]))}
    if g.integers(3) == 0:
        others |= {"decode": drawn_server(g, *limits), "decode_replicas": int(g.choice([1, 2]))}
        others |= {"transfer": 0.01, "transfer_token": 1e-6}
    system = System(drawn_server(g, *limits), replicas=int(g.choice([1, 1, 2])), **others)
    load = (
        lambda: arriving(float(g.choice([0.5, 3, 20])), lengths, 100, float(g.choice([0, 1, 3])), seed),
        lambda: of_clients(int(g.choice([1, 4, 40])), lengths, 100, seed),
        lambda: endless(lengths, 100, seed),
    )[g.integers(3)]
    return system, load()


def histogram(result):
    """Sequences by the end and length of their gaps."""
    found: dict[tuple[float, float], float] = {}
    for end, gap, weight in result.gaps.T:
        found[end, gap] = found.get((end, gap), 0) + weight
    return {key: weight for key, weight in found.items() if weight}


@pytest.mark.parametrize("first", [0, 25, pytest.param(50, marks=pytest.mark.slow)])
def test_both_engines_agree_to_the_bit(first):
    for seed in range(first, first + (25 if first < 50 else 1000)):
        system, load = drawn(seed)
        plain, skipping = (simulate(system, load, engine) for engine in (Engine, SkippingEngine))
        for name in ("arrival", "admitted", "first", "end"):
            assert np.array_equal(getattr(plain, name), getattr(skipping, name)), (seed, name)
        assert plain.iterations == skipping.iterations, seed
        assert histogram(plain) == histogram(skipping), seed


def test_gaps_add_up_to_the_times_of_answers():
    for seed in range(25):
        system, load = drawn(seed)
        found = simulate(system, load)
        answers = np.sum(found.end - found.first)
        _, gaps, weights = found.gaps
        assert np.sum(gaps * weights) == pytest.approx(answers, rel=1e-9, abs=1e-9), seed
        assert np.sum(weights) == np.sum(load.output - 1), seed


def test_few_steps_are_taken_where_little_happens():
    """At a low load most iterations are taken with others: what makes the oracle fast."""
    surface = synthetic(lambda b: 0.01, lambda n: np.maximum(0.01, 2e-5 * n))
    system = System(Server(surface, policy("vllm", places=256)))
    steps = 0

    class Counting(SkippingEngine):
        def step(self, horizon=float("inf")):
            nonlocal steps
            steps += 1
            return super().step(horizon)

    found = simulate(system, arriving(1.0, Lengths(1000, 250), 500), Counting)
    assert steps < found.iterations / 20
