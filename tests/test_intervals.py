"""Intervals: the law of propagation against differences of whole studies, correlations, ties, and scatter."""

import json
import re
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfgrid import PerfgridError, Study, best, evaluate, load_catalog, load_study, save
from perfgrid.analysis.prediction_intervals import (
    LEAST,
    SCATTER,
    Interval,
    between,
    deviation,
    interval,
    intervals,
    tie_margin,
)
from tests.test_bad_input import run
from tools.validation.scatter import asked, sufficient

DESIGN = {
    "outputs": ["step_time"],
    "axes": {
        "model": ["llama-3.1-8b"],
        "device": ["h100-sxm-80gb", "b200"],
        "topology": ["hgx-h100-efa-shared"],
        "software": ["nemo"],
        "parallelism": {"devices": [64], "tp": [2], "pp": [1, 2]},
    },
    "workload_parameters": {"sequence_length": 4096, "global_batch": 64},
}
AT = {"device": "h100-sxm-80gb", "parallelism": "tp2 pp1 dp32"}
CENTRAL_90 = 1.645
WHOLE = 10**9  # designs up to which nothing is compiled


def changed(**axes):
    return {**DESIGN, "axes": {**DESIGN["axes"], **axes}}


@pytest.fixture(scope="module")
def study():
    return Study.make(**DESIGN)


@pytest.fixture(scope="module")
def at(study):
    labels = next(a for a in study.space.axes if a.name == "parallelism").labels
    return {**AT, "parallelism": str(labels[0])}


@pytest.fixture(scope="module")
def found(study, at):
    return interval(study, at)


def step_time(at, catalog=None):
    result = evaluate(Study.make(catalog, **DESIGN), "float64", small_points=WHOLE)
    return float(result.step_time.sel(at).squeeze())


# ---- the law of propagation -----------------------------------------------------------------------------------------


def test_every_shift_is_that_of_a_study_with_the_value_at_the_end_of_its_range(found, at):
    """To first order: a small part of the way to each end moves the step by the same part; at zero the step itself."""
    catalog, here, part = load_catalog(), step_time(at), 1e-3
    assert found.value == pytest.approx(here, rel=1e-9)
    numbers = [a for a in found.assumptions if catalog.variables[a[2]].kind == "number"]
    assert len(numbers) > 10
    zeros = 0
    for name in numbers:
        table, entry, quantity = name
        e: Any = catalog.entry(table, entry)
        value = e.values[quantity]
        for side, end in zip(found.shifts[found.assumptions.index(name)], ("low", "high"), strict=True):
            stated = getattr(e.details[quantity], end)
            limit = value if stated is None else stated
            whole = limit < LEAST * value
            zeros += whole
            there = limit if whole else value * exp(part * log(limit / value))
            moved = log(step_time(at, catalog.with_values({f"{table}.{entry}.{quantity}": there})) / here)
            assert moved == pytest.approx(side * (1 if whole else part), rel=0.02, abs=1e-8), name
    assert zeros


def test_the_ends_are_the_root_of_the_summed_squares(study, found):
    """Without correlations: each assumption with what it does towards that end, and the scatter."""
    catalog = load_catalog()
    assert found.scatter == catalog.entry("software", "nemo").values[SCATTER]
    alone = np.eye(len(found.assumptions))
    for side in (-1, 1):
        pull = np.maximum(side * found.shifts, 0).max(axis=1)
        wanted = np.sqrt((pull**2).sum() / CENTRAL_90**2 + found.scatter**2)
        assert deviation(found.shifts, alone, side, found.scatter) == pytest.approx(wanted)
    both = [deviation(found.shifts, found.correlations, side, found.scatter) for side in (-1, 1)]
    assert log(found.high / found.value) == pytest.approx(CENTRAL_90 * both[1])
    assert log(found.value / found.low) == pytest.approx(CENTRAL_90 * both[0])


def test_a_whole_number_is_evaluated_at_both_ends(found, at):
    """Which attention kernel ran is open for this stack: version 2 is taken, version 3 may have been."""
    place = found.assumptions.index(("software", "nemo", "flash_limit"))
    faster = step_time(at, load_catalog().with_values({"software.nemo.flash_limit": 3}))
    assert found.shifts[place] == pytest.approx([0.0, log(faster / found.value)])
    assert found.shifts[place][1] < 0


def test_what_a_study_states_is_known():
    known = changed(scale_out_bandwidth=["40 GB/s"], dp_overlap=[0.5], device=["h100-sxm-80gb"])
    names = {q for _, _, q in intervals(Study.make(**known), [(0, 0, 0, 0, 0, 0, 0)])[0].assumptions}
    assert "dp_overlap" not in names
    assert "congestion" in names


def test_what_follows_from_no_step_has_the_scatter_of_none(at):
    """What a study or a data sheet states is known."""
    study = Study.make(**{**DESIGN, "outputs": ["step_time", "memory_per_device", "tokens_per_second"]})
    assert interval(study, at, "tokens_per_second").scatter == interval(study, at).scatter > 0
    stated = interval(study, at, "global_batch")
    assert stated.low == stated.value == stated.high == 64


def test_memory_deviates_as_records_of_its_stack_do_and_at_least_as_its_assumptions(at):
    """The error of the records holds all assumptions: it joins only what these leave, not above them."""
    study = Study.make(**{**DESIGN, "outputs": ["memory_per_device"]})
    known = interval(study, at, "memory_per_device")
    error: Any = load_catalog().entry("software", "nemo").values["memory_error"]
    assert log(known.high / known.value) == pytest.approx(CENTRAL_90 * error)
    assert 0 < log(known.value / known.low) <= CENTRAL_90 * error
    assert 0 < known.scatter < error
    sure = load_catalog().with_values({"software.nemo.memory_error": 0.001})
    study = Study.make(sure, **{**DESIGN, "outputs": ["memory_per_device"]})
    plain = interval(study, at, "memory_per_device")
    assert plain.scatter == 0.0
    assert 1.0 < plain.high / plain.low < 1.2  # reserved_memory alone is an estimate


def test_passes_of_serving_scatter_as_steps_do():
    study = load_study(Path(__file__).parents[1] / "studies" / "serving.toml")
    at = {axis.name: axis.labels[0] for axis in study.space.axes}
    assert interval(study, at, "time_per_output_token").scatter > 0
    assert interval(study, at, "memory_per_device").scatter == 0


def test_constants_calibrated_together_make_up_for_each_other(tmp_path, found, at):
    """Both slow the step down: if one was fitted higher the other would have been lower, and the sum is surer."""
    ends = {}
    for correlation in (-0.9, 0.0, 0.9):
        file = tmp_path / f"joint{correlation}.toml"
        file.write_text(
            'kind = "software"\n[nemo]\nextends = "nemo"\n'
            "library_efficiency = { value = 0.9, low = 0.8, high = 1, "
            f"correlation = {{ pointwise_passes = {correlation} }} }}\n"
            "pointwise_passes = { value = 2, low = 1.5, high = 2.5 }\n"
        )
        one = interval(Study.make(load_catalog(file), **DESIGN), at)
        a, b = (one.assumptions.index(("software", "nemo", q)) for q in ("library_efficiency", "pointwise_passes"))
        assert one.correlations[a, b] == one.correlations[b, a] == correlation
        ends[correlation] = log(one.high / one.value)
    assert ends[0.9] < ends[0.0] < ends[-0.9]


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ("{ pointwise_pases = 0.5 }", "unknown quantity 'pointwise_pases'; did you mean 'pointwise_passes'"),
        ("{ pointwise_passes = 1.5 }", "correlation.pointwise_passes must lie between -1 and 1, found 1.5"),
        ("0.5", "correlation must be a table of other quantities, found 0.5"),
    ],
)
def test_a_correlation_is_checked(tmp_path, stated, message):
    file = tmp_path / "bad.toml"
    file.write_text(
        'kind = "software"\n[nemo]\nextends = "nemo"\n'
        f"library_efficiency = {{ value = 0.9, low = 0.8, high = 1, correlation = {stated} }}\n"
    )
    with pytest.raises(PerfgridError, match=message):
        load_catalog(file)


# ---- two designs ----------------------------------------------------------------------------------------------------


def test_what_two_designs_share_cancels(study, found, at):
    other = interval(study, {**at, "device": "b200"})
    apart = max(between(found, other, side) for side in (-1, 1))
    assert between(found, found, 1) == between(found, found, -1) == 0
    assert 0 < apart < np.hypot(log(found.high / found.value), log(other.high / other.value)) / CENTRAL_90
    assert tie_margin(found, found) == pytest.approx(exp(CENTRAL_90 * 2**0.5 * found.shared_scatter) - 1)
    assert tie_margin(found, other) > tie_margin(found, found)


def test_a_result_tells_the_same_as_its_study(study, found, at, tmp_path):
    result = evaluate(study, "float64")
    save(result, tmp_path / "r.nc")
    again = interval(result, at)
    assert (again.low, again.high) == pytest.approx((found.low, found.high))


def test_best_designs_with_their_intervals(study):
    """Of a study and of its result; groups without a feasible design have none."""
    for what in (study, evaluate(study)):
        found = best(what, "parallelism", "step_time", intervals=True)
        assert found.step_time_interval.dims == (*found.found.dims, "bound")
        for one in found.stack(group=found.found.dims).transpose("group", ...).step_time_interval:
            design = found.sel({d: one[d].item() for d in found.found.dims})
            at = {axis.name: design[axis.name].item() for axis in study.space.axes if axis.name in design.coords}
            expected = interval(study, at)
            np.testing.assert_allclose(one, [expected.low, expected.high], rtol=1e-6)


def test_the_best_and_their_intervals_are_printed(monkeypatch, capsys, tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(
        'outputs = ["step_time"]\n[axes]\nmodel = ["llama-3.1-8b"]\ndevice = ["h100-sxm-80gb"]\n'
        'topology = ["rail-optimized"]\nsoftware = ["nemo"]\n[axes.parallelism]\ndevices = [64]\ntp = [1, 2, 4]\n'
        "pp = [1, 2]\n[workload_parameters]\nsequence_length = 4096\nglobal_batch = 64\n"
        '[best]\nover = ["parallelism"]\nminimize = "step_time"\n'
    )
    status, out, _ = run(monkeypatch, capsys, "best", file, "--top", "4", "--json")
    assert status == 0
    rows = json.loads(out)
    rows = rows["best"] if isinstance(rows, dict) else rows
    for row in rows:
        low, high = row["interval"]
        assert low < row["outputs"]["step_time"] < high
    assert not rows[0]["tied"]
    status, out, _ = run(monkeypatch, capsys, "best", file)
    assert status == 0
    assert re.search(r"90 of 100.*\n.*within \[ms\]", out)  # a header of two lines


# ---- scatter --------------------------------------------------------------------------------------------------------


def plain(deviations, scatter=0.0):
    """An interval with one assumption of each given deviation."""
    shifts = np.outer(np.asarray(deviations) * CENTRAL_90, [-1.0, 1.0])
    names = tuple(("software", "s", f"q{i}") for i in range(len(shifts)))
    return Interval(1.0, 1.0, 1.0, names, shifts, np.eye(len(shifts)), scatter, scatter, scatter, {})


def test_scatter_is_what_assumptions_leave():
    """Errors of deviation 0.13 of which assumptions explain 0.05: 0.12 is left, and 9 of 10 further ones are held."""
    rng = np.random.default_rng(2)
    logs = 0.13 * rng.standard_normal(4000)
    left = sufficient([asked(logs, [plain([0.03, 0.04])] * len(logs))])
    assert left == pytest.approx(0.12, rel=0.04)
    held = np.abs(0.13 * rng.standard_normal(4000)) < CENTRAL_90 * np.hypot(0.05, left)
    assert held.mean() == pytest.approx(0.9, abs=0.015)
    assert sufficient([asked(logs / 100, [plain([0.05])] * len(logs))]) == 0
    assert sufficient([np.arange(5.0)]) == 4.0  # of few the largest


@pytest.mark.parametrize("rows", [9, 20, 101])
def test_further_records_are_held_as_promised(rows):
    """Split conformal prediction: of drawn sets of records, the next one is held in 90 of 100 cases or more."""
    rng = np.random.default_rng(rows)
    held = [rng.exponential() <= sufficient([rng.exponential(size=rows)]) for _ in range(4000)]
    assert 0.885 <= np.mean(held) <= 0.9 + 1 / (rows + 1) + 0.015


def test_a_large_source_does_not_decide_for_a_small_one():
    """Of 300 and 30 records, the latter ten times as far: the next one of either source is held nine times of ten."""
    rng = np.random.default_rng(4)
    near, far = rng.exponential(size=300), 10 * rng.exponential(size=30)
    alike = sufficient([near, far])
    assert sufficient([near, near]) < sufficient([np.concatenate([near, far])]) < alike < sufficient([far])
    held = []
    for _ in range(2000):
        sources = [rng.exponential(size=300), 10 * rng.exponential(size=30)]
        held.append([size * rng.exponential() <= sufficient(sources) for size in (1, 10)])
    assert 0.885 <= np.mean(held) <= 0.925
