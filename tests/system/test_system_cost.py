"""Cost of clusters: equations against loops, published figures, utilisation once, derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfgrid as pg
from perfgrid.formulas.cost import system_cost as cost
from tests.slopes import slopes_of_graph

from .cases import graph_of, grid, point, stated, study

YEAR, HOUR = 31_557_600.0, 3600.0
PER_HOUR = HOUR / YEAR
DEVICES = ["a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200", "gb200", "mi300x"]


@given(st.floats(0.001, 0.4), st.integers(1, 30))
def test_the_annuity_repays_the_loan(interest, periods):
    payment, owed = cost.capital_recovery(interest, periods), 1.0
    for _ in range(periods):
        owed = owed * (1 + interest) - payment
    assert owed == pytest.approx(0, abs=1e-9 * (1 + interest) ** periods)


def test_without_interest_the_price_is_divided():
    for periods in (1, 4, 15):
        assert cost.capital_recovery(0.0, periods) == pytest.approx(1 / periods, rel=1e-5)


def test_an_all_in_h100_costs_what_its_parts_say():
    """49000 USD at 10 % over 4 years, 1.355 kW at 11 USD/W over 15, 3 % maintenance: 1.76 + 0.22 + 0.17 USD/h."""
    equipment = cost.annuity_capital_charge(49_000, 0.0, 0.10, 4 * YEAR, 15 * YEAR, YEAR) * HOUR
    facility = cost.annuity_capital_charge(0.0, 1355 * 11.0, 0.10, 4 * YEAR, 15 * YEAR, YEAR) * HOUR
    maintenance = cost.maintenance_charge(49_000, 0.03, YEAR) * HOUR
    assert [round(x, 2) for x in (equipment, facility, maintenance)] == [1.76, 0.22, 0.17]


def test_depreciation_is_that_of_epoch():
    """Cottier 2024: the price of a server falls by 0.14 orders of magnitude a year; H100 of 30000 USD: 1.81 USD/h."""
    rate = 0.14 * np.log(10)
    assert stated("price", "market-2025", "price_decline") == pytest.approx(rate, rel=1e-3)
    charge = cost.depreciation_capital_charge(30_000 * 1.64, 0.0, rate, 15 * YEAR, YEAR) * HOUR
    assert charge == pytest.approx(1.81, abs=0.005)


@pytest.mark.parametrize(
    ("device", "low", "high", "published"),
    [
        ("a100-sxm-80gb", 0.8, 1.6, 1.19),  # rented at 0.8 to 3.0 USD/h
        ("h100-sxm-80gb", 1.22, 3.0, 2.32),  # own cost 1.22 to 2.32, rented at 2.0 to 5.0
        ("gb200", 2.0, 3.6, 3.2),
    ],
)
def test_hours_cost_what_is_published(device, low, high, published):
    """Published costs of ownership (epoch2024costs, market reports of 2024 and 2025), with the catalog's defaults."""
    for amortisation in ("annuity", "depreciation"):
        found = float(
            grid(["cost_per_device_hour"], {"device": [device]}, amortisation=amortisation)["cost_per_device_hour"]
        )
        assert low <= found <= high
        assert found == pytest.approx(published, rel=0.25)


def test_rented_clusters_cost_what_their_owners_say():
    """A serving fleet of 226.75 nodes of eight at 2 USD/h: 87072 USD a day; 2.788 million hours: 5.58 million USD."""
    charge = cost.working_charge(2.0, 226.75 * 8, HOUR, 1.0)
    assert charge * 24 * HOUR == pytest.approx(87_072)
    assert cost.cost_per_training_run(
        2.788e6 / 2048 * HOUR, cost.working_charge(2.0, 2048, HOUR, 1.0)
    ) == pytest.approx(5.576e6)
    rent = {"cost_per_device_hour": "2 USD/h", "utilization": 1}
    found = grid(["cost_per_training_run", "training_time"], overrides=rent)
    assert found["cost_per_training_run"] == pytest.approx(found["training_time"] / HOUR * 1024 * 2.0)


def test_the_parts_add_up():
    p = point(
        [
            "cluster_cost",
            "cost_per_device_hour",
            "capital_cost_fraction",
            "maintenance_cost_fraction",
            "energy_cost_fraction",
        ]
    )
    bought = p["device_capital"] + p["server_capital"] + p["network_capital"] + p["facility_capital"]
    assert p["cluster_cost"] == pytest.approx(bought, rel=1e-12)
    shares = p["capital_cost_fraction"] + p["maintenance_cost_fraction"] + p["energy_cost_fraction"]
    assert shares == pytest.approx(1, rel=1e-12)
    charges = p["capital_charge"] + p["maintenance_charge"] + p["energy_charge"]
    assert p["cost_per_device_hour"] == pytest.approx(charges * HOUR / 1024, rel=1e-12)
    assert p["energy_charge"] == pytest.approx(p["facility_power"] * 0.08 / 3.6e6, rel=1e-12)


def test_utilisation_enters_once():
    """The price of an hour does not know it; runs and tokens cost inversely as much, exactly."""
    costs = ["cost_per_training_run", "cost_per_million_tokens", "carbon_per_training_run"]
    worth = ["tokens_per_dollar", "model_flops_per_dollar"]
    found = grid(["cost_per_device_hour", "cluster_cost", *costs, *worth], {"utilization": [0.25, 0.5, 1.0]})
    assert found["cost_per_device_hour"].ndim == found["cluster_cost"].ndim == 0
    for name in costs:
        np.testing.assert_allclose(found[name] / found[name][-1], [4, 2, 1], rtol=1e-12)
    for name in worth:
        np.testing.assert_allclose(found[name] / found[name][-1], [0.25, 0.5, 1], rtol=1e-12)


def test_costs_of_one_kind_agree():
    p = point(["cost_per_training_run", "cost_per_million_tokens", "tokens_per_dollar"])
    assert p["cost_per_million_tokens"] * 3e11 / 1e6 == pytest.approx(p["cost_per_training_run"], rel=1e-12)
    assert p["cost_per_million_tokens"] * p["tokens_per_dollar"] == pytest.approx(1e6, rel=1e-12)


RISES = [
    "electricity_price",
    "power_usage_effectiveness",
    "interest_rate",
    "facility_price",
    "maintenance_rate",
    "server_price_factor",
    "server_power_factor",
    "switch_price",
    "switch_power",
    "transceiver_price",
    "transceiver_power",
    "fibre_price",
    "purchase_price",
    "mean_power_fraction",
]
FALLS = ["equipment_life", "facility_life"]


@pytest.mark.parametrize("leaf", [*RISES, *FALLS])
def test_an_hour_costs_more_with_every_price_and_less_with_every_life(leaf):
    found = grid(["cost_per_device_hour"], {leaf: {"scale": [1.0, 1.1]}})["cost_per_device_hour"]
    assert (found[1] > found[0]) == (leaf in RISES)


def test_derivatives_are_finite_and_those_of_differences():
    made = study(["cost_per_training_run"], power_view="kernels")
    graph, space = graph_of(made), made.space
    values = {name: space.at(name, (0,) * len(space.axes)) for name in graph.leaves}
    leaves = [
        n
        for n in (
            *RISES,
            *FALLS,
            "utilization",
            "hbm_bandwidth",
            "peak_bf16_rate",
            "memory_byte_energy",
            "thermal_design_power",
            "matrix_energy",
            "static_fraction",
        )
        if n in values
    ]

    def run(chosen):
        known = values | chosen
        for node in graph.nodes.values():
            known[node.name] = node.function(*(known[a] for a in node.arguments))
        return known["cost_per_training_run"]

    slopes = slopes_of_graph(graph, values, leaves)["cost_per_training_run"]
    for name in leaves:
        step = 1e-6 * float(values[name])
        up, down = (np.sum(run({name: np.float64(values[name]) + s})) for s in (step, -step))
        slope = float(np.sum(slopes[name]))
        assert np.isfinite(slope)
        assert slope == pytest.approx(float((up - down) / (2 * step)), rel=1e-4, abs=1e-9 * float(up))


def test_bills_of_material_of_real_accelerators_within_30_percent():
    """Estimates of analysts (siliconanalysts2026 and the press): what the model gives for them, with default ranges."""
    published = {"h100-sxm-80gb": 3320, "b200": 6400, "mi300x": 5300}
    found = grid(["device_cost"], {"device": list(published)})["device_cost"]
    np.testing.assert_allclose(found, list(published.values()), rtol=0.3)


def test_views_of_the_price():
    market = grid(["device_price", "server_capital"], {"device": DEVICES})
    made = grid(["device_price", "device_cost"], {"device": DEVICES}, price_view="manufacturing")
    assert (made["device_price"] > made["device_cost"]).all()
    assert (market["device_price"] > made["device_price"]).all()  # the margin of a vendor, not of one's own chip
    assert "device_cost" not in graph_of(study(["device_price"])).nodes
    flagged = grid(["device_price"], {"purchase_price": [30000.0, 0.0]})
    assert flagged["device_has_a_price"].tolist() == [1, 0]


def test_scenarios_of_prices_are_an_axis():
    scenarios = ["market-2025", "market-2025-photonics", "market-2025-ethernet-800g"]
    found = grid(["network_switches", "network_power", "cost_per_device_hour"], {"price": scenarios})
    assert found["network_power"][1] < found["network_power"][0]
    assert found["network_switches"].tolist() == [48, 48, 8]  # a port of 800 Gbit/s serves two devices


def test_two_of_time_energy_and_cost_over_a_million_points_in_one_evaluation():
    made = study(
        ["step_time", "cost_per_training_run", "step_energy"],
        {
            "device": ["a100-sxm-80gb", "h100-sxm-80gb"],
            "electricity_price": {"scale": {"start": 0.5, "stop": 2, "num": 100}},
            "hbm_bandwidth": {"scale": {"start": 0.5, "stop": 2, "num": 100}},
            "purchase_price": {"scale": {"start": 0.5, "stop": 2, "num": 60}},
        },
    )
    assert made.space.points > 1e6
    found = pg.evaluate(made, "float32")
    assert found.cost_per_training_run.size > 1e6
    assert np.isfinite(found.cost_per_training_run.values).all()
    assert found.step_time.size == 200  # on its own axes
