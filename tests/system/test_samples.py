"""Uncertainty: draws within ranges, quantiles, one assumption at a time, mistakes."""

from __future__ import annotations

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.study.samples import factors

from .cases import grid, stated, study

PRICES = {"num": 64, "of": ["price"]}


def test_factors_spread_over_the_range_around_the_stated_value():
    uniform = np.linspace(0, 1, 10_001)
    drawn = factors(uniform, 0.5, 3.0)
    assert drawn.min() == 0.5
    assert drawn.max() == 3.0
    assert np.median(drawn) == pytest.approx(1.0)
    assert (np.diff(drawn) >= 0).all()


@pytest.mark.parametrize("method", ["sobol", "latin_hypercube"])
def test_samples_lie_within_the_ranges_of_the_catalog(method):
    made = study(["cost_per_device_hour"], {"sample": {"num": 100, "method": method}})
    axis = made.space.axes[-1]
    catalog = load_catalog()
    checked = 0
    for name, drawn in axis.scales.items():
        variable = catalog.variables[name]
        entry = {"price": "market-2025", "device": "h100-sxm-80gb"}.get(variable.of)
        if entry is None:
            continue
        value, detail = stated(variable.of, entry, name), catalog.entry(variable.of, entry).details[name]
        low = value if detail.low is None else detail.low
        high = value if detail.high is None else detail.high
        assert (low <= value * drawn * (1 + 1e-12)).all()
        assert (value * drawn <= high * (1 + 1e-12)).all()
        assert drawn.min() < 1 < drawn.max() or detail.low in (None, value) or detail.high in (None, value)
        checked += 1
    assert checked > 12
    again = study(["cost_per_device_hour"], {"sample": {"num": 100, "method": method}}).space.axes[-1]
    assert all(np.array_equal(again.scales[n], axis.scales[n]) for n in axis.scales)  # the same seed, the same draws
    other = study(["cost_per_device_hour"], {"sample": {"num": 100, "method": method, "seed": 1}}).space.axes[-1]
    assert any(not np.array_equal(other.scales[n], axis.scales[n]) for n in axis.scales)


def test_only_what_the_outputs_depend_on_is_varied():
    assert "step_time" in study(["step_time"]).outputs
    scales = study(["cost_per_device_hour"], {"sample": {"num": 8}}).space.axes[-1].scales
    assert "electricity_price" in scales
    assert "matrix_efficiency" not in scales  # an hour costs the same whatever is done in it
    only = study(["cost_per_training_run"], {"sample": {"num": 8, "of": ["interest_rate", "switch_price"]}})
    assert set(only.space.axes[-1].scales) == {"interest_rate", "switch_price"}


@pytest.mark.parametrize("device", ["a100-sxm-80gb", "h100-sxm-80gb"])
def test_what_a_device_has_of_its_own_varies_by_the_ranges_of_its_own_node(device):
    """N3 begins at three to seven times its mature density of defects, the devices' own nodes at the least, once."""
    axes = {"device": [device], "node": ["native", "n3"], "sample": {"num": 4}}
    made = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes=axes)
    scales = made.space.axes[-1].scales
    assert {"stated_early_defect_ratio", "stated_wafer_price", "native_wafer_price"} <= scales.keys()
    assert "native_early_defect_ratio" not in scales
    own = load_catalog().entry("node", stated("device", device, "process_node"))
    detail, prices = own.details["wafer_price"], stated("node", own.name, "wafer_price") * scales["native_wafer_price"]
    assert detail.low is not None
    assert detail.high is not None
    assert detail.low <= prices.min() < prices.max() <= detail.high
    assert (pg.evaluate(made).die_cost > 0).all()


def test_quantiles_enclose_the_stated_value():
    stated = grid(["cost_per_device_hour", "step_time"])
    result = pg.evaluate(study(["cost_per_device_hour", "step_time"], {"sample": {"num": 256, "of": ["price"]}}))
    found = pg.quantiles(result, np.array([0.05, 0.5, 0.95]))
    low, middle, high = found.cost_per_device_hour.values.ravel()
    assert low < middle < high
    assert low < float(stated["cost_per_device_hour"]) < high
    assert middle == pytest.approx(float(stated["cost_per_device_hour"]), rel=0.25)
    assert "step_time" not in found  # it does not depend on prices


def test_a_tornado_is_the_output_at_the_ends_of_each_range():
    made = study(["cost_per_device_hour"], {"device": ["a100-sxm-80gb", "h100-sxm-80gb"]})
    found = pg.tornado(made, "cost_per_device_hour", at={"device": "h100-sxm-80gb"})
    swings = np.abs(found.high.values - found.low.values)
    assert (np.diff(swings) <= 0).all()
    assert set(found.assumption.values.tolist()[:3]) == {"purchase_price", "equipment_life", "interest_rate"}
    for name in ("purchase_price", "power_usage_effectiveness"):
        table, entry = ("device", "h100-sxm-80gb") if name == "purchase_price" else ("price", "market-2025")
        detail = load_catalog().entry(table, entry).details[name]
        for end, value in (("low", detail.low), ("high", detail.high)):
            alone = grid(["cost_per_device_hour"], overrides={name: value})["cost_per_device_hour"]
            assert float(found[end].sel(assumption=name)) == pytest.approx(float(alone), rel=1e-9)
    assert float(found.stated) == pytest.approx(float(grid(["cost_per_device_hour"])["cost_per_device_hour"]), rel=1e-9)


def test_a_tornado_of_an_open_axis_is_that_of_the_best_design_of_the_stated_values():
    axes = {"device": ["a100-sxm-80gb", "h100-sxm-80gb"], "sample": {"num": 8}}
    found = pg.tornado(study(["cluster_cost"], axes), "cluster_cost")
    named = pg.tornado(study(["cluster_cost"], axes), "cluster_cost", at={"device": "h100-sxm-80gb"})  # the faster one
    assert found.equals(named)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (3, "needs a table"),
        ({"number": 3}, "unknown key 'number'"),
        ({"num": 0}, "num must be a whole number between 1 and"),
        ({"num": 8, "method": "random"}, "method must be one of sobol, latin_hypercube, one_at_a_time"),
        ({"method": "one_at_a_time", "num": 8}, "leave num out"),
        ({"num": 8, "of": ["prices"]}, "'prices' has no range that the outputs depend on; did you mean 'price'"),
        ({"num": 8, "of": "price"}, "needs a list of tables or quantities"),
    ],
)
def test_mistakes_in_samples(spec, message):
    with pytest.raises(PerfgridError, match=message):
        study(["cost_per_device_hour"], {"sample": spec})


def test_mistakes_in_questions():
    made = study(["cost_per_device_hour", "cluster_cost"], {"device": ["a100-sxm-80gb", "h100-sxm-80gb"]})
    with pytest.raises(PerfgridError, match="not among the outputs"):
        pg.tornado(made, "cost_per_device_our")
    with pytest.raises(PerfgridError, match="no label 'h1000'"):
        pg.tornado(made, "cluster_cost", at={"device": "h1000"})
    with pytest.raises(PerfgridError, match="has no axis sample"):
        pg.quantiles(pg.evaluate(made))
