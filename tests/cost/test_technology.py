"""Nodes: tables that only get better in energy, ratios that foundries state, and a device made again."""

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog

CATALOG = load_catalog()
LADDER = ("n28", "n16", "n12", "n10", "n7", "n6", "n5", "n4", "n3", "n3p", "n2", "n2p", "a16", "a14", "a10")
RATIOS = [
    "circuit_area_ratio",
    "clock_ratio",
    "operation_energy_ratio",
    "unit_ratio",
    "throughput_ratio",
    "compute_power_ratio",
]


def column(quantity):
    return np.array([CATALOG.entry("node", n).values[quantity] for n in LADDER])


def ratios(device="a100-sxm-80gb", nodes=LADDER, outputs=tuple(RATIOS), **parameters):
    return pg.evaluate(
        pg.Study.make(
            workload="manufacturing",
            dtype="float64",
            outputs=list(outputs),
            axes={"device": [device], "node": list(nodes)},
            workload_parameters={"memory_in_package": "none"} | parameters,
        )
    ).squeeze("device")


def test_the_ladder_is_the_whole_table():
    assert {*LADDER} == {n for n in CATALOG.tables["node"] if not n.startswith("actuary") and n != "unknown"}


def test_packages_are_those_of_the_field():
    assert {p for p in CATALOG.tables["package"] if not p.startswith("actuary")} == {
        "organic",
        "info",
        "info-chip-first",
        "cowos-s",
        "cowos-l",
        "efb",
        "emib",
        "soic-cowos-s",
        "microbump-cowos-s",
        "unknown",
    }
    for device in CATALOG.tables["device"].values():
        assert device.values["package"] in CATALOG.tables["package"], device.name
        assert device.values["process_node"] in CATALOG.tables["node"], device.name


def test_no_step_costs_more_energy_or_area_and_none_gets_cheaper_wafers():
    assert np.all(np.diff(column("operation_energy")) <= 0)
    assert np.all(np.diff(column("logic_density")) >= 0)
    assert np.all(np.diff(column("sram_density")) >= 0)
    assert np.all(np.diff(column("analog_density")) >= 0)
    assert np.all(np.diff(column("wafer_price")) >= 0)
    assert np.all(np.diff(column("supply_voltage")) <= 0)
    slower = np.flatnonzero(np.diff(column("switching_speed")) < 0)
    assert [LADDER[i + 1] for i in slower] == ["a14"], "power comes from the front again"


def test_cumulated_gains_are_those_that_the_foundry_states():
    """N7 to A14: 4.2 times the efficiency, 1.8 times the speed (TSMC, 2025); mixed densities of N3E and N2."""
    a14 = LADDER.index("a14")
    assert 1 / column("operation_energy")[a14] == pytest.approx(4.2, rel=0.05)
    assert column("switching_speed")[a14] == pytest.approx(1.8, rel=0.05)
    area = ratios("gaudi3", ("n5", "n3", "n2"), implementation="same_design")["circuit_area_ratio"]
    assert 1 / float(area.sel(node="n3")) == pytest.approx(1.3, rel=0.06)
    assert float(area.sel(node="n3") / area.sel(node="n2")) == pytest.approx(1.15, rel=0.03)


@pytest.mark.parametrize("scaling", ["foundry", "ideal"])
@pytest.mark.parametrize("gain", ["power", "speed"])
@pytest.mark.parametrize("implementation", ["same_area", "same_design", "same_power"])
def test_a_device_made_again(scaling, gain, implementation):
    found = ratios(node_scaling=scaling, node_gain=gain, implementation=implementation)
    own = found.sel(node="n7")
    for name in RATIOS:
        assert float(own[name]) == pytest.approx(1), name
    energy, clock = found["operation_energy_ratio"].values, found["clock_ratio"].values
    if gain == "power":
        assert np.all(clock == 1)
        assert np.all(np.diff(energy) <= 0)
    else:  # the same power of each unit: energy falls only as speed rises
        assert energy * clock == pytest.approx(np.ones(len(LADDER)))
    area = (found["unit_ratio"] * found["circuit_area_ratio"]).values
    if implementation == "same_area":
        assert area == pytest.approx(np.ones(len(LADDER)))
    if implementation == "same_design":
        assert np.all(found["unit_ratio"] == 1)
    if implementation == "same_power":
        assert found["compute_power_ratio"].values == pytest.approx(np.ones(len(LADDER)))
    assert found["throughput_ratio"].values == pytest.approx((found["unit_ratio"] * found["clock_ratio"]).values)


def test_ideal_steps_are_those_of_the_source():
    """14 to 1 nm in six steps of 0.67 in area and 0.54 in power at the same clock."""
    found = ratios(
        "tpu-v3", ("n16", "n10", "n7", "n5", "n3", "n2", "a10"), node_scaling="ideal", implementation="same_design"
    )
    assert found["circuit_area_ratio"].values == pytest.approx(0.67 ** np.arange(7))
    assert found["operation_energy_ratio"].values == pytest.approx(0.54 ** np.arange(7))


def test_native_is_the_device_as_it_is():
    found = ratios("h100-sxm-80gb", ("native", "n3"), ("die_area", "die_cost", *RATIOS), implementation="same_design")
    own = found.sel(node="native")
    assert float(own["die_area"]) == CATALOG.entry("device", "h100-sxm-80gb").values["die_area"]
    assert float(own["circuit_area_ratio"]) == 1
    assert float(found["die_area"].sel(node="n3")) < float(own["die_area"])


def test_nodes_without_densities_are_flagged():
    found = ratios("a100-sxm-80gb", ("n7", "actuary2022-7"))
    assert found["node_scales"].values.tolist() == [1, 0]
    assert np.isfinite(found["throughput_ratio"]).all()


def test_shares_that_are_more_than_the_whole_are_flagged():
    assert not ratios(logic_share=0.8, sram_share=0.3)["shares_fit"].values.any()


def test_a_device_of_more_units_keeps_its_share_of_spare_cores():
    found = ratios(
        "a100-sxm-80gb",
        ("native", "n5", "n2", "a10"),
        ("die_yield", "cores", "fabricated_cores"),
        yield_model="harvested",
    )
    assert found["cores_fit_dies"].values.all()
    assert (found["fabricated_cores"] / found["cores"]).values == pytest.approx(np.full(4, 128 / 108))
    assert np.all((found["die_yield"] > 0.6) & (found["die_yield"] < 1))
