"""Percentiles of serving: limits, order, derivatives and flags; `oracle` has simulations."""

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.formulas.serving.distributions import (
    Z,
    at_deviation,
    normal_share,
    percentile_of_mixture,
    scale_and_width,
    share_below,
    share_of_mixture,
)
from tests.inference.designs import evaluate, value

NAMES = ("time_to_first_token", "time_per_output_token", "request_latency")
COMMON = {"model": "llama-3.1-8b", "batch_limit": 64.0, "prompt_tokens": 1000.0, "output_tokens": 200.0}


def percentiles(name, **design):
    """The three percentiles of a quantity of one design."""
    names = [f"{name}_{p}" for p in Z]
    found = evaluate(*names, **design)
    return np.array([found[n] for n in names])


def test_the_share_that_keeps_limits_is_that_of_the_percentiles():
    design = COMMON | {"batch_rule": "rate", "request_rate": 8.0}
    for p, share in zip(Z, (0.5, 0.9, 0.99), strict=True):
        limit = value(f"time_to_first_token_{p}", **design)
        assert value("kept_limits_share", **design, time_to_first_token_limit=limit) == pytest.approx(share, abs=2e-3)
        limit = value(f"time_per_output_token_{p}", **design)
        assert value("kept_limits_share", **design, time_per_output_token_limit=limit) == pytest.approx(share, abs=2e-3)
    assert value("request_goodput", **design) == pytest.approx(value("served_rate", **design), rel=1e-4)


# ---- limits and order -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["constant", "uniform", "lognormal"])
def test_without_load_the_median_is_that_of_a_single_request(family):
    """Of the median prompt: for lognormal lengths 1/√(1 + v²) of the mean one, long enough to follow its tokens."""
    variation = 0.0 if family == "constant" else 0.5
    design = COMMON | {"batch_rule": "rate", "request_rate": 1e-6, "prompt_tokens": 6000.0}
    lengths = {"length_distribution": family, "prompt_variation": variation}
    median = 6000.0 / np.sqrt(1 + variation**2) if family == "lognormal" else 6000.0
    alone = value("prefill_time", **COMMON | {"prompt_tokens": median}) + value("front_end_time", **COMMON) * 0
    alone += (
        evaluate("time_to_first_token", **design)["time_to_first_token"]
        - evaluate("prefill_time", **design)["prefill_time"].min()
    )
    assert value("time_to_first_token_p50", **design, **lengths) == pytest.approx(alone, rel=0.06)


@pytest.mark.parametrize("variation", [0.5, 1.0, 1.5, 2.0])
def test_without_load_the_slowest_first_tokens_are_those_of_the_longest_prompts(variation):
    """p99 is the prefill of the 99th percentile of the lengths; the longest in a thousand count for less."""
    lengths = {"length_distribution": "lognormal", "prompt_variation": variation}
    design = COMMON | {"batch_rule": "rate", "request_rate": 1e-6, "prompt_tokens": 2000.0, "front_end_time": 0.0}
    width = np.sqrt(np.log1p(variation**2))
    longest = 2000 * np.exp(2.3263 * width - width**2 / 2)
    alone = evaluate("prefill_time", **design | {"prompt_tokens": longest})["prefill_time"].min()
    assert value("time_to_first_token_p99", **design, **lengths) == pytest.approx(alone, rel=0.25)


def test_without_load_lengths_alone_spread_the_latency():
    """Answers of lognormal lengths: percentiles of the latency are those of the lengths."""
    lengths = {"length_distribution": "lognormal", "output_variation": 0.8}
    design = COMMON | {"batch_rule": "rate", "request_rate": 1e-6, "output_tokens": 500.0}
    step = value("time_per_output_token", **design)
    width = np.sqrt(np.log1p(0.8**2))
    expected = 499 * step * np.exp(width * np.array(list(Z.values())) - width**2 / 2)
    assert percentiles("request_latency", **design, **lengths) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("rule", ["rate", "clients"])
@pytest.mark.parametrize("family", ["constant", "uniform", "lognormal"])
def test_percentiles_are_in_order_and_surround_the_mean(rule, family):
    variation = {} if family == "constant" else {"prompt_variation": 0.5, "output_variation": 0.5}
    for load in (0.05, 0.3, 0.6, 0.9):
        most = value("largest_request_rate", **COMMON, batch_rule="rate")
        design = COMMON | {"batch_rule": rule, "request_rate": load * most, "batch": 64 * load, "loop_requests": 1000.0}
        for name in NAMES:
            p50, p90, p99 = percentiles(name, **design, **variation, length_distribution=family)
            assert 0 < p50 <= p90 <= p99
            assert p50 * 0.5 < value(name, **design, **variation, length_distribution=family) < p99


def test_more_load_is_never_better_and_more_replicas_never_worse():
    """Near saturation times per token gather at that of a full replica: tails end up to 4 % lower than a bit before."""
    most = float(value("largest_request_rate", **COMMON, batch_rule="rate"))
    rates = most * np.array([0.01, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95])
    design = COMMON | {"batch_rule": "rate", "request_rate": rates}
    for name in NAMES:
        more = percentiles(name, **design)
        assert (more[:, 1:] >= more[:, :-1] * (0.96 if name == NAMES[1] else 1 - 1e-9)).all(), (name, more)
        doubled = percentiles(name, **design, dp=2.0, devices=2.0)
        assert (doubled <= more * (1.04 if name == NAMES[1] else 1 + 1e-6)).all(), name


def test_a_batch_that_starts_together_has_the_mean_only():
    for name in NAMES:
        mean = value(name, **COMMON, batch_rule="given", batch=8.0)
        assert percentiles(name, **COMMON, batch_rule="given", batch=8.0) == pytest.approx([mean] * 3)


@pytest.mark.parametrize("rule", ["concurrency", "memory", "run"])
def test_percentiles_of_a_closed_loop_are_about_its_mean(rule):
    for name in NAMES:
        p50, _, p99 = percentiles(name, **COMMON, batch_rule=rule, batch=8.0, requests=1e4)
        assert p50 * (1 - 1e-6) <= value(name, **COMMON, batch_rule=rule, batch=8.0, requests=1e4) <= p99 * (1 + 1e-6)


# ---- limits of users ------------------------------------------------------------------------------------------------


def test_a_limit_on_a_percentile_is_stricter():
    design = COMMON | {"batch_rule": "rate", "request_rate": 8.0}
    p50, _, p99 = percentiles("time_to_first_token", **design)
    between = design | {"time_to_first_token_limit": (p50 + p99) / 2}
    flags = [value("first_token_in_time", **between, limit_statistic=s) for s in ("mean", "p50", "p90", "p99")]
    assert flags == [1, 1, 1, 0]
    assert value("goodput", **between, limit_statistic="p99") == 0 < value("goodput", **between)


@pytest.mark.parametrize(
    ("lengths", "fine"),
    [
        ({}, True),
        ({"length_distribution": "lognormal", "prompt_variation": 2.0}, True),
        ({"length_distribution": "lognormal", "output_variation": 9.0}, False),
        ({"length_distribution": "uniform", "output_variation": 0.577}, True),
        ({"length_distribution": "uniform", "prompt_variation": 0.7}, False),
        ({"prompt_variation": 0.1}, False),
    ],
)
def test_lengths_that_no_distribution_has_are_flagged(lengths, fine):
    assert bool(value("lengths_follow_distribution", **COMMON, **lengths)) == fine


# ---- distributions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skewness", [0.05, 0.5, 2.0, 6.0])
def test_the_shifted_lognormal_has_the_moments_and_is_its_own_inverse(skewness):
    z = np.linspace(-8, 8, 200_001)
    weight = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    form = (0.0, *scale_and_width(1.0, skewness))
    x = np.array(at_deviation(z, *form))
    moments = [np.sum(weight * x**k) for k in (1, 2, 3)]
    assert moments == pytest.approx([0, 1, skewness], abs=5e-3)
    for point in (-1.0, 0.0, 2.0):
        assert share_below(at_deviation(point, *form), *form) == pytest.approx(normal_share(point), abs=1e-9)


def test_percentiles_of_a_mixture_are_those_of_drawn_numbers():
    generator = np.random.default_rng(0)
    for share in (0.05, 0.4):
        drawn = np.where(
            generator.random(400_000) < share,
            1 + generator.exponential(3.0, 400_000),
            generator.normal(1, 0.1, 400_000),
        )
        parts = [(1 - share, 1.0, *scale_and_width(0.1, 0.0)), (share, 4.0, *scale_and_width(3.0, 2.0))]
        for p, point in Z.items():
            expected = np.percentile(drawn, int(p[1:]))
            assert percentile_of_mixture(point, parts) == pytest.approx(expected, rel=0.06)
            assert share_of_mixture(percentile_of_mixture(point, parts), parts) == pytest.approx(
                normal_share(point), abs=2e-3
            )


@pytest.mark.parametrize("rule", ["rate", "clients"])
def test_derivatives_are_finite_and_those_of_differences(rule):
    """By bandwidth, lengths and arrivals: those of the engine, of all percentiles."""
    given = {k: v for k, v in COMMON.items() if k not in ("model", "batch_limit")}
    given |= {"length_distribution": "lognormal"}
    given |= {"batch_rule": rule, "output_variation": 0.4, "prompt_variation": 0.5}
    given |= {"request_rate": 8.0} if rule == "rate" else {"batch": 30, "loop_requests": 300}
    knobs = ["output_variation", "prompt_variation", *(["request_rate"] if rule == "rate" else [])]
    outputs = [f"{name}_{p}" for name in NAMES for p in Z]

    def study(**changes):
        parameters = {**given, "tp": 1, "pp": 1, "dp": 1, "devices": 1, "prompt_tokens": 1000, "output_tokens": 200}
        return pg.Study.make(
            workload="inference",
            outputs=outputs,
            axes={"model": ["llama-3.1-8b"], "device": ["h100-sxm-80gb"], "software": ["vllm"]},
            workload_parameters=parameters | changes,
            overrides={"batch_limit": 64},
            dtype="float64",
        )

    made, steps = study(), {knob: 1e-4 * given[knob] for knob in knobs}
    ends = {k: [pg.evaluate(study(**{k: given[k] + d})) for d in (-step, step)] for k, step in steps.items()}
    for output in outputs:
        slopes = pg.gradient(made, output, wrt=knobs, dtype="float64")[f"{output}_gradient"]
        for knob, step in steps.items():
            slope = float(slopes.sel(parameter=knob).squeeze())
            below, above = (float(end[output].squeeze()) for end in ends[knob])
            difference, scale = (above - below) / (2 * step), abs(below) / given[knob]
            assert np.isfinite(slope)
            assert slope == pytest.approx(difference, rel=0.02, abs=2e-3 * scale), (output, knob)


# ---- traces ---------------------------------------------------------------------------------------------------------

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.50,300,40\n2023-11-16 18:15:48.50,500,60\n"
MOONCAKE = '{"timestamp": 0, "input_length": 300, "output_length": 40}\n{"timestamp": 2000, "input_length": 500, "output_length": 60}\n'  # noqa: E501
STUDY = """
workload = "inference"
outputs = ["time_to_first_token_p99"]
trace = "{trace}"
[axes]
model = ["llama-3.1-8b"]
device = ["b200"]
[axes.parallelism]
devices = [1]
[workload_parameters]
batch_rule = "rate"
{more}
"""


@pytest.mark.parametrize(("name", "text"), [("trace.csv", AZURE), ("trace.jsonl", MOONCAKE)])
def test_a_trace_states_lengths_and_arrivals(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(trace=name, more=""))
    found = pg.load_study(path).file.workload_parameters
    assert found == {
        "prompt_tokens": 400,
        "prompt_variation": pytest.approx(0.25),
        "output_tokens": 50,
        "output_variation": pytest.approx(0.2),
        "length_distribution": "lognormal",
        "request_rate": pytest.approx(0.5),
        "batch_rule": "rate",
    }
    assert float(pg.evaluate(pg.load_study(path))["time_to_first_token_p99"].squeeze()) > 0
    path.write_text(STUDY.format(trace=name, more='request_rate = "7 /s"'))
    assert pg.load_study(path).file.workload_parameters["request_rate"] == "7 /s"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "a,b\n1,2\n", "line 2: no column of prompt tokens"),
        ("t.csv", "ContextTokens,GeneratedTokens\n5,many\n", "line 2, GeneratedTokens: must be a number of tokens"),
        ("t.csv", "ContextTokens,GeneratedTokens\n", "has no request"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,5,5\n", "TIMESTAMP: must be a number or a date"),
        ("t.jsonl", "[1]\n", "line 1: must be a JSON object"),
        ("absent.csv", None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_trace_is_reported(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(trace=name, more=""))
    with pytest.raises(pg.PerfgridError, match=message):
        pg.load_study(path)
