"""Budgets that become devices: the voltage curve, three real devices, limits and flags."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgrid.formulas.axes import INNER
from perfgrid.formulas.hardware import microarchitecture as core

from .cases import grid, point, stated

REAL = {"a100-sxm-80gb": "a100-budget", "h100-sxm-80gb": "h100-budget", "b200": "b200-budget"}
THRESHOLD = 1 / 3  # of the nominal voltage


def from_budgets(outputs: list[str], **changes: Any) -> dict[str, np.ndarray]:
    """Three real devices, each from its own budget."""
    design = {"design": {"zip": {"device": list(REAL), "budget": list(REAL.values())}}}
    return grid(outputs, design | changes.pop("axes", {}), without=("device",), **changes)


@given(st.floats(1e-4, 30), st.floats(0.1, 0.7))
def test_the_voltage_solves_its_cubic(power, threshold):
    y = float(core.overdrive_at_power(power, threshold))
    assert y**3 + threshold * y**2 == pytest.approx(power * (1 - threshold) ** 2, rel=1e-9)
    assert core.relative_power(y, threshold) == pytest.approx(power, rel=1e-9)


@given(st.floats(0.05, 4))
def test_clock_and_voltage_are_inverse(clock):
    y = core.overdrive_at_clock(clock, THRESHOLD)
    assert core.relative_clock(y, THRESHOLD) == pytest.approx(clock, rel=1e-12)


def test_the_clock_grows_with_power_and_less_than_power():
    power = np.geomspace(1e-3, 10, 200)
    clock = core.clock_at_power(power, THRESHOLD)
    assert core.clock_at_power(1.0, THRESHOLD) == pytest.approx(1)
    assert (np.diff(clock) > 0).all()
    assert (np.diff(clock / power) <= 1e-9).all()  # slower is never less efficient
    low = power < core.relative_power(core.LOWEST_OVERDRIVE, THRESHOLD)
    np.testing.assert_allclose(
        (clock / power)[low], (clock / power)[0], rtol=1e-9
    )  # at the lowest voltage in proportion
    slopes = jax.vmap(jax.grad(lambda p: core.clock_at_power(p, THRESHOLD)))(power)
    assert np.isfinite(slopes).all()
    assert (slopes > 0).all()


@pytest.mark.parametrize(
    ("quantity", "tolerance"),
    [
        ("cores", 0.01),
        ("peak_bf16_rate", 0.30),
        ("clock_frequency", 0.30),
        ("l2_size", 0.01),
        ("register_file_size", 0.01),
        ("shared_memory_size", 0.20),
        ("hbm_stacks", 0),
        ("hbm_capacity", 0.07),
        ("hbm_bandwidth", 0.03),
        ("scale_up_bandwidth", 0.001),
        ("scale_out_bandwidth", 0.001),
        ("thermal_design_power", 0),
        ("die_area", 1e-9),
    ],
)
def test_real_devices_follow_from_their_own_budgets(quantity, tolerance):
    """What the power allows is within 30 % of the stated clock, lowest on B200; what is counted is as stated."""
    own = [stated("device", device, quantity) for device in REAL]
    found = from_budgets([quantity])[quantity]
    np.testing.assert_allclose(np.broadcast_to(found, 3), own, rtol=tolerance + 1e-9)


def test_the_step_of_a_device_from_its_budget_is_within_a_fifth():
    own = grid(["step_time"], {"device": list(REAL)})["step_time"]
    np.testing.assert_allclose(from_budgets(["step_time"])["step_time"], own, rtol=0.2)


def test_the_budget_is_kept():
    """More power gives a faster clock up to that of the node; the matrix units never draw more than their share."""
    found = from_budgets(
        ["clock_frequency", "fastest_clock", "budget_matrix_rate", "half_precision_operation_energy"],
        axes={"budget_power": {"scale": [0.25, 0.5, 1.0, 2.0, 4.0]}},
    )
    assert (np.diff(found["clock_frequency"], axis=-1) >= 0).all()
    assert (found["clock_frequency"] <= found["fastest_clock"][:, None] * (1 + 1e-12)).all()
    shares = np.array([0.60 * 400, 0.65 * 700, 0.60 * 1000])[:, None] * np.array([0.25, 0.5, 1.0, 2.0, 4.0])
    efficiency = np.array([stated("device", d, "matrix_efficiency") for d in REAL])[:, None]
    drawn = found["budget_matrix_rate"] * found["half_precision_operation_energy"] * efficiency
    assert (drawn <= shares * (1 + 1e-9)).all()
    limited = found["clock_frequency"] < found["fastest_clock"][:, None] * (1 - 1e-9)
    np.testing.assert_allclose(drawn[limited], shares[limited], rtol=1e-9)


def test_nodes_give_more_units_and_less_energy_at_the_same_budget():
    nodes = ["n12", "n10", "n7", "n5", "n3", "n2", "a14", "a10"]
    found = grid(
        ["peak_bf16_rate", "fabricated_cores", "l2_size", "half_precision_operation_energy", "step_time"],
        {"node": nodes, "budget": ["exploration-budget"], "device": ["a100-sxm-80gb"]},
    )
    for name in ("peak_bf16_rate", "fabricated_cores"):
        assert (np.diff(found[name]) > 0).all(), name
    assert (np.diff(found["l2_size"]) >= 0).all()  # memory did not shrink from 5 to 3 nm
    assert (np.diff(found["step_time"]) < 0).all()


def test_fractions_that_do_not_add_up_are_flagged():
    split = dict(stated("budget", "a100-budget", "area_split"))
    for rest, whole in ((split["rest"], True), (split["rest"] + 0.01, False)):
        found = grid(
            ["peak_bf16_rate"],
            {"device": ["a100-sxm-80gb"], "budget": ["a100-budget"]},
            overrides={"area_split": split | {"rest": rest}},
        )
        assert bool(found["fractions_add_up"]) == whole


def test_what_does_not_fit_is_flagged():
    axes = {"device": ["a100-sxm-80gb"], "budget": ["a100-budget"]}
    large = grid(["peak_bf16_rate"], axes | {"budget_area": ["826 mm^2", "900 mm^2"]})
    assert large["budget_fits_field"].tolist() == [1, 0]
    many = grid(["hbm_bandwidth"], axes | {"link": ["infiniband-hdr", "infiniband-ndr"]})
    assert many["budget_holds_interfaces"].tolist() == [1, 1]  # the wider port takes more than its share of the die
    small = grid(["hbm_bandwidth"], axes | {"budget_area": ["60 mm^2", "20 mm^2"]})
    assert small["budget_holds_interfaces"].tolist() == [1, 0]
    assert np.isfinite(small["hbm_bandwidth"]).all()


def test_an_interface_that_does_not_fit_takes_area_of_all_others():
    """H100's budget at older nodes: one network port of 10.2 mm^2 at 7 nm, where 1.07 % of 814 mm^2 are 8.7 mm^2."""
    axes = {"device": ["h100-sxm-80gb"], "budget": ["h100-budget"]}
    found = {node: point(["hbm_bandwidth"], axes | {"node": [node]}) for node in ("n4", "n7", "n12")}
    density = {node: stated("node", node, "analog_density") for node in found}
    for node, q in found.items():
        areas = dict(zip(INNER.labels["component"], np.ravel(q["component_area"]).tolist(), strict=True))
        assert sum(areas.values()) == pytest.approx(814e-6, rel=1e-12)
        assert q["budget_holds_interfaces"]
        assert areas["scale_out"] == pytest.approx(max(10.2e-6 / density[node], 0.0107 * 814e-6), rel=1e-9)
        assert areas["matrix"] / areas["l2"] == pytest.approx(0.102 / 0.0321, rel=1e-12)
    assert found["n12"]["scale_out_ports"] == found["n7"]["scale_out_ports"] == 1
    assert found["n12"]["budget_matrix_rate"] < found["n7"]["budget_matrix_rate"] < found["n4"]["budget_matrix_rate"]
