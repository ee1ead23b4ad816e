"""Carbon: the published tables, sums and proportions."""

from __future__ import annotations

import numpy as np
import pytest

from .cases import grid, point


@pytest.mark.parametrize(
    ("node", "published"), [("n28", 1.22), ("n16", 1.43), ("n10", 1.64), ("n7", 2.16), ("n5", 2.59), ("n3", 2.96)]
)
def test_carbon_by_area_is_that_of_act(node, published):
    """Gupta 2022 in kg/cm^2 of processed wafer: electricity of Taiwan, 97 % of the gases abated."""
    found = grid(["area_carbon"], {"node": [node]})["area_carbon"]
    assert float(found) / 1e4 == pytest.approx(published, abs=0.006)


def test_the_parts_add_up():
    p = point(["carbon_per_training_run", "embodied_carbon"])
    parts = p["die_carbon"] + p["memory_carbon"] + 0.15 * 7 + (230 + 83.8) / 8
    assert p["embodied_carbon"] == pytest.approx(parts * 1312 / 1191.8, rel=1e-12)
    assert p["memory_carbon"] == pytest.approx(546 / 8, rel=0.08)  # the maker's parts: memory
    assert p["die_carbon"] == pytest.approx(332 / 8, rel=0.08)  # and circuits, those of the switches among them
    assert p["die_carbon"] * p["die_yield"] == pytest.approx(25_930 * 814e-6, rel=1e-3)
    rate = p["facility_power"] * 0.369 / 3.6e6 + p["embodied_carbon"] * 1024 / (4 * 31_557_600)
    assert p["carbon_per_training_run"] == pytest.approx(rate * p["training_time"] / 0.9, rel=1e-9)


@pytest.mark.parametrize(
    ("device", "published"),
    [
        ("h100-sxm-80gb", 1312 / 8),  # NVIDIA 2025, a board of eight with its switches
        ("b200", 1312 / 8 * 2.3 * 0.50 / 0.66),  # NVIDIA 2025: 2.3 times the FLOP/s at 0.50 instead of 0.66 g per EFLOP
        ("a100-sxm-40gb", 127.6),  # Falk 2025, a device taken apart
    ],
)
def test_devices_are_near_published_footprints(device, published):
    assert point(["embodied_carbon"], {"device": [device]})["embodied_carbon"] == pytest.approx(published, rel=0.18)


def test_operation_outweighs_making_and_clean_energy_turns_it():
    found = grid(["operational_carbon_rate", "embodied_carbon_rate"], {"grid_carbon": ["0.369 kg/kWh", "0 kg/kWh"]})
    assert found["operational_carbon_rate"][0] > 10 * found["embodied_carbon_rate"]
    assert found["operational_carbon_rate"][1] == 0


def test_a_node_of_which_nothing_is_known_is_flagged():
    found = grid(["embodied_carbon"], {"node": ["n3", "a10", "actuary2022-3"]})
    assert found["node_has_carbon"].tolist() == [1, 1, 0]
    assert np.isfinite(found["embodied_carbon"]).all()
