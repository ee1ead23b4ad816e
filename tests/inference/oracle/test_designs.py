"""Surfaces of designs against what perfgrid says of passes, and systems that were simulated before."""

import numpy as np
import pytest

from tests.inference.designs import evaluate

from . import Lengths, System, arriving, endless, measures, of_design, policy, server_of, simulate
from .surface import lockstep_ranks, of_pass
from .systems import steady_rate

LLAMA = {"model": "llama-3.1-70b", "device": "h100-sxm-80gb", "software": "vllm", "prompt_tokens": 1000.0}
LLAMA |= {"output_tokens": 500.0}
FP8 = dict.fromkeys(("precision", "weight_precision", "kv_precision"), "fp8")
DEEPSEEK = {"model": "deepseek-v3", "device": "h200-sxm-141gb", "software": "vllm", "tp": 1.0, "ep": 32.0, "dp": 32.0}
DEEPSEEK |= FP8 | {"prompt_tokens": 2000.0, "output_tokens": 500.0}
HYBRID = {"model": "qwen3-next-80b-a3b", "device": "h100-sxm-80gb", "software": "sglang", "tp": 4.0, "etp": 4.0}
HYBRID |= {"prompt_tokens": 1000.0, "output_tokens": 500.0}


@pytest.mark.parametrize("design", [LLAMA | {"tp": 8.0}, LLAMA | {"tp": 2.0, "pp": 4.0}, DEEPSEEK, HYBRID])
def test_the_surface_is_exact_at_both_edges(design):
    """A step of b sequences, and a pass of one prompt, take what perfgrid says."""
    surface = of_design(design, 2048, 64, longest=4096)
    ranks, stages = lockstep_ranks(design), int(design.get("pp", 1))
    hops = (stages - 1) * np.array(surface.hop)
    alone = design | {"batch_rule": "given", "dp": float(ranks), "output_tokens": 2.0}
    for b in (1, 7, 64):
        batch = {"batch": float(b * ranks * stages), "prompt_tokens": 1249.0}
        exact = of_pass(evaluate("pass_time", **alone | batch)["pass_time"], 1, 1)[0]
        assert surface.time(b, b * 1250) + hops[b] == pytest.approx(exact, rel=2e-3)
    for n in (1, 200, 1900):
        one = {"batch": float(ranks), "prompt_tokens": float(n)}
        exact = of_pass(evaluate("pass_time", **alone | one)["pass_time"], 0, 1)[0]
        assert surface.time(0, 0, n) + hops[n] == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize(("tokens", "rate"), [(2048, 8.9), (256, 35)])
def test_rates_of_a_lockstep_group_with_every_place_taken(tokens, rate):
    """DeepSeek-V3, 1,024 places: an iteration with prompts lasts as long as those of the rank that has most."""
    run = endless(Lengths(2000, 500, 0.3, 0.3), 8000, seed=1)
    found = simulate(System(server_of(DEEPSEEK, policy("vllm", places=32, tokens=tokens))), run)
    assert steady_rate(found) == pytest.approx(rate, rel=0.15)


def tokens_per_device(tp, pp, engine, tokens):
    server = server_of(LLAMA | {"tp": tp, "pp": pp}, policy(engine, places=512, tokens=tokens))
    run = endless(Lengths(1000, 500, 0.3, 0.3), 6000, seed=1)
    return measures([(run, simulate(System(server), run))])["throughput"].value * 500 / 8


@pytest.mark.parametrize(
    ("tp", "pp", "engine", "tokens", "expected"),
    [
        (8.0, 1.0, "sglang", 8192, 633),
        (8.0, 1.0, "vllm", 2048, 697),
        (8.0, 1.0, "vllm", 512, 536),
        (4.0, 2.0, "sglang", 8192, 661),
        (4.0, 2.0, "vllm", 2048, 660),
        (4.0, 2.0, "vllm", 512, 795),
        (2.0, 4.0, "sglang", 8192, 530),
        (2.0, 4.0, "vllm", 2048, 530),
        (2.0, 4.0, "vllm", 512, 845),  # 734 with passes on a line across a step of kernels at 512 rows
    ],
)
def test_tokens_of_a_pipeline(tp, pp, engine, tokens, expected):
    """Llama 3.1 70B on 8 H100, 512 sequences, output tokens per second and device: an earlier simulation of ours."""
    assert tokens_per_device(tp, pp, engine, tokens) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(("rate", "first", "per_token"), [(1.0, 0.28, 0.021), (4.0, 0.34, 0.059)])
def test_first_tokens_of_a_lockstep_group(rate, first, per_token):
    """DeepSeek-V3 on 32 H200: the group computes prompts of several ranks together."""
    server = server_of(DEEPSEEK, policy("vllm-sync", places=128, tokens=2048))
    run = arriving(rate, Lengths(2000, 500), 3000, seed=2)
    table = measures([(run, simulate(System(server), run))])
    assert table["first_token"]["mean"].value == pytest.approx(first, rel=0.15)
    assert table["per_token"]["mean"].value == pytest.approx(per_token, rel=0.15)
