"""A stated rent implies that every paid hour is used: unless that is stated, too, and then as a known value."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tomli_w

import perfgrid as pg
from perfgrid.analysis.prediction_intervals import intervals
from perfgrid.catalog import load_catalog
from perfgrid.printing.answer import screen
from tests.fuzz.program import run

RENTED = {
    "title": "rented",
    "outputs": ["training_time", "cost_per_training_run"],
    "dtype": "float64",
    "axes": {
        "model": ["llama-3.1-8b"],
        "device": ["h100-sxm-80gb"],
        "cost_per_device_hour": [2.0],
        "parallelism": {"devices": [8], "tp": [1], "pp": [1]},
    },
    "workload_parameters": {"sequence_length": 4096, "global_batch": 64},
}
HALF = """
kind = "price"
[market-2025]
extends = "market-2025"
utilization = 0.5
"""
HERE = (0, 0, 0, 0)


def cost(study):
    return float(pg.evaluate(study).cost_per_training_run.squeeze())


@pytest.fixture
def half(tmp_path):
    path = tmp_path / "price.toml"
    path.write_text(HALF)
    return path


def test_a_stated_utilization_counts_before_an_implied_one_however_it_is_stated(tmp_path, half):
    path = tmp_path / "s.toml"
    path.write_text(tomli_w.dumps(RENTED))
    all_used = pg.load_study(path)
    assert all_used.implied == {"utilization": "cost_per_device_hour"}
    ways = {
        "setting": pg.load_study(path, ["price.market-2025.utilization=0.5"]),
        "override": pg.load_study(path, ["overrides.utilization=0.5"]),
        "own entry": pg.load_study(path, catalog=load_catalog(half)),
        "named entry": pg.load_study(path, ['axes.price=["market-2025"]', "price.market-2025.utilization=0.5"]),
    }
    for way, study in ways.items():
        assert cost(study) == pytest.approx(2 * cost(all_used), rel=1e-12), way
        assert not study.implied, way
    assert cost(pg.load_study(path, ["price.market-2025.interest_rate=0.2"])) == cost(all_used)


def test_a_question_takes_the_utilization_of_a_users_prices(half):
    question = ("llama-3.1-8b", "h100-sxm-80gb", 8)
    stated = {"batch": 64, "sequence": 4096, "price": 2, "minimize": "cost_per_training_run"}
    all_used, idle = pg.train(*question, **stated), pg.train(*question, **stated, catalog=half)
    assert idle.cost_per_training_run.item() == pytest.approx(2 * all_used.cost_per_training_run.item(), rel=1e-12)
    inputs = {one[0]: one[1:] for one in json.loads(idle.attrs["inputs"])}
    assert inputs["utilization"][:2] == ["0.5", "stated"]
    assert "paid hours" in screen(all_used)
    assert "paid hours" not in screen(idle)
    assert "rented" not in screen(all_used)


def test_what_is_implied_has_no_range(tmp_path):
    """The cost of a rented run is as sure as its time; of a result as of its study."""
    study = pg.Study.make(**RENTED)
    time, paid = (intervals(study, [HERE], output)[0] for output in study.outputs)
    assert paid.high / paid.value == pytest.approx(time.high / time.value, rel=1e-6)
    assert paid.low / paid.value == pytest.approx(time.low / time.value, rel=1e-6)
    again = intervals(pg.evaluate(study), [HERE], "cost_per_training_run")[0]
    assert (again.low, again.high) == pytest.approx((paid.low, paid.high), rel=1e-6)
    sampled = pg.Study.make(**{**RENTED, "axes": {**RENTED["axes"], "sample": {"num": 8, "seed": 0}}})
    (axis,) = (axis for axis in sampled.space.axes if axis.name == "sample")
    assert "utilization" not in axis.scales
    found = pg.evaluate(sampled)
    hours = np.ravel(found.training_time) / 3600
    np.testing.assert_allclose(np.ravel(found.cost_per_training_run), 2 * 8 * hours, rtol=1e-9)
    (tmp_path / "s.toml").write_text(tomli_w.dumps(RENTED))
    shown = run(tmp_path, ["uncertainty", "s.toml", "--of", "cost_per_training_run", "--method", "tornado"])
    assert shown.status == 0, shown.err
    assert "utilization" not in shown.out


def test_an_explanation_says_what_an_implied_value_follows_from():
    study = pg.Study.make(**RENTED)
    for what in (study, pg.evaluate(study)):
        source = pg.explain(what, "cost_per_training_run").about("utilization")[2]
        assert source == "follows from the stated cost_per_device_hour"


def test_a_stated_rent_has_its_effect_and_its_unit(tmp_path):
    """It is a number like any given one: in the table of inputs, among elasticities and derivatives."""
    (tmp_path / "s.toml").write_text(tomli_w.dumps(RENTED))
    words = ["explain", "s.toml", "cost_per_training_run", "--assumptions"]
    (row,) = (
        line for line in run(tmp_path, words).out.splitlines() if line.startswith("stated   cost_per_device_hour")
    )
    assert "2 USD/h" in row
    assert row.endswith("+1.00%")
    overridden = {**RENTED, "axes": {k: v for k, v in RENTED["axes"].items() if k != "cost_per_device_hour"}}
    study = pg.Study.make(**overridden, overrides={"cost_per_device_hour": 2})
    for what in (study, pg.evaluate(study)):
        found = pg.explain(what, "cost_per_training_run")
        assert found.elasticities()["cost_per_device_hour"] == pytest.approx(1)
        assert found.about("cost_per_device_hour")[::2] == ("USD/h", "given by the study's overrides")
    slope = pg.gradient(study, "cost_per_training_run", "cost_per_device_hour", dtype="float64")
    assert slope.parameter_unit.item() == "USD/h"
    assert slope.cost_per_training_run_gradient.item() == pytest.approx(cost(study) / 2, rel=1e-9)
