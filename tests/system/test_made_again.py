"""Devices with another node, memory or link: the label native, ratios, flags and sentences."""

from __future__ import annotations

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas import IMPLEMENTED
from perfgrid.formulas.hardware.native import QUANTITIES
from tests.paths import study_path

from .cases import grid, study

DEVICES = ["a100-sxm-80gb", "h100-sxm-80gb", "mi300x"]
CHANGED = sorted({q for table in ("node", "memory", "link") for q in IMPLEMENTED[table]})


@pytest.mark.parametrize("implementation", ["same_area", "same_design", "same_power"])
def test_native_is_the_device_itself(implementation):
    outputs = ["step_time", "step_energy", "device_cost", *CHANGED]
    own = grid(outputs[:3], {"device": DEVICES})
    tables = {"node": ["native"], "memory": ["native"], "link": ["native"]}
    again = grid(outputs, {"device": DEVICES, **tables}, implementation=implementation)
    for name in outputs[:3]:
        np.testing.assert_allclose(again[name], own[name], rtol=1e-12)


def test_the_listed_quantities_of_tables_are_those_of_the_catalog():
    listed = {name: (table, unit) for table, units in QUANTITIES.items() for unit in units for name in units[unit]}
    tables = load_catalog().variables.values()
    assert listed == {v.name: (v.of, v.unit) for v in tables if v.of in QUANTITIES and v.kind != "label"}


def test_native_beside_other_nodes_is_each_devices_own():
    found = grid(["peak_bf16_rate", "operation_energy", "wafer_price"], {"device": DEVICES, "node": ["native", "n3"]})
    own = grid(["peak_bf16_rate", "operation_energy", "wafer_price"], {"device": DEVICES})
    for name in own:
        if found[name].ndim == 2:
            np.testing.assert_allclose(found[name][:, 0], own[name])
    assert found["operation_energy"][:, 1].tolist() == [0.46] * 3


def test_the_same_design_shrinks_and_the_same_area_holds_more():
    names = ["peak_bf16_rate", "die_area", "thermal_design_power", "cores", "l2_size"]
    own = grid(names, {"node": ["native"]})
    design = grid(names, {"node": ["n2"]}, implementation="same_design")
    area = grid(names, {"node": ["n2"]}, implementation="same_area")
    power = grid(names, {"node": ["n2"]}, implementation="same_power")
    assert design["peak_bf16_rate"] == own["peak_bf16_rate"]
    assert design["die_area"] < own["die_area"]
    assert design["thermal_design_power"] < own["thermal_design_power"]
    assert area["die_area"] == pytest.approx(float(own["die_area"]))
    assert area["cores"] / own["cores"] == pytest.approx(float(own["die_area"] / design["die_area"]))
    assert power["thermal_design_power"] == pytest.approx(float(own["thermal_design_power"]))


def test_memory_replaces_stack_by_stack():
    found = grid(["hbm_bandwidth", "hbm_capacity"], {"memory": ["native", "hbm3", "hbm4"]})
    assert found["hbm_bandwidth"][0] == found["hbm_bandwidth"][1] == 3.35e12  # H100 has HBM3, clocked lower
    assert found["hbm_bandwidth"][2] == pytest.approx(3.35e12 * 2.05 / 0.819)
    assert found["hbm_capacity"][2] == pytest.approx(5 * 36 * 2**30)


def test_links_replace_those_of_their_tier():
    links = ["native", "nvlink3", "nvlink5", "nvlink6", "infiniband-xdr"]
    found = grid(["scale_up_bandwidth", "scale_out_bandwidth"], {"link": links})
    np.testing.assert_allclose(found["scale_up_bandwidth"], [450e9, 450e9, 900e9, 1800e9, 450e9])
    np.testing.assert_allclose(found["scale_out_bandwidth"], [50e9, 50e9, 50e9, 50e9, 100e9])
    assert found["link_fits_device"].all()
    a100 = grid(["scale_up_bandwidth"], {"device": ["a100-sxm-80gb", "b200"], "link": ["nvlink3", "nvlink5"]})
    assert a100["scale_up_bandwidth"][0, 0] == 300e9  # twelve links as stated by the vendor
    assert a100["scale_up_bandwidth"][1, 1] == 900e9


def test_links_that_change_nothing_are_flagged():
    assert not grid(["scale_up_bandwidth"], {"link": ["ucie-a"]})["link_fits_device"]
    stated = grid(
        ["scale_out_bandwidth"], {"topology": ["rail-optimized", "hgx-h100-400g"], "link": ["infiniband-xdr"]}
    )
    assert stated["link_is_used"].tolist() == [1, 0]


def test_faster_memory_and_links_never_slow_a_step():
    memories = ["hbm2", "hbm2e", "hbm3", "hbm3e", "hbm4", "hbm5", "hbm6", "hbm7"]
    assert (np.diff(grid(["step_time"], {"memory": memories})["step_time"]) <= 0).all()
    links = ["infiniband-hdr", "infiniband-ndr", "infiniband-xdr", "infiniband-gdr"]
    assert (np.diff(grid(["step_time"], {"link": links})["step_time"]) <= 0).all()


def test_studies_that_ask_for_nothing_of_this_hold_nothing_of_it():
    plain = study(["step_time"], {"device": DEVICES})
    names = set(plain.space.names())
    assert not {n for n in names if n.startswith(("native_", "stated_")) or n in ("electricity_price", "matrix_energy")}
    assert set(plain.sources()) == {"model", "device", "topology", "software"}
    assert not any(q.startswith(("native_", "price")) for q in plain.plan().quantities)
    priced = study(["cost_per_device_hour"])
    assert set(priced.sources()["price"]) == {"market-2025"}
    assert "step_time" not in priced.plan().quantities


def test_a_device_that_does_not_tell_its_node():
    assumed = grid(["step_energy", "operation_energy"], {"device": ["tpu-v5p"], "topology": ["ici-ring"]})
    assert assumed["operation_energy"] == 0.70  # 5 nm
    catalog = pg.load_catalog().with_values({"device.h100-sxm-80gb.process_node": "n1"})
    known = study(["step_energy"]).file
    with pytest.raises(PerfgridError, match=r"the node of h100-sxm-80gb \(process_node = 'n1'\) is not in the catalog"):
        pg.Study.make(catalog, outputs=["step_energy"], axes=known.axes, workload_parameters=known.workload_parameters)


def test_mistakes_are_reported():
    with pytest.raises(PerfgridError, match="the catalog has no node 'n33'; did you mean"):
        study(["step_time"], {"node": ["n33"]})
    with pytest.raises(PerfgridError, match="must be one of same_design, same_area, same_power"):
        study(["peak_bf16_rate"], {"node": ["n3"]}, implementation="same_size").plan()


def test_a_number_can_be_explained_from_the_study_and_from_its_result(tmp_path):
    made = study(["cost_per_training_run", "step_energy"], {"node": ["native", "n3"]})
    at = {"node": "n3"}
    told = pg.explain(made, "half_precision_operation_energy", at)
    assert told.derivation.value == pytest.approx(0.8e-12 * 0.46)
    result = pg.evaluate(made)
    again = pg.explain(result, "half_precision_operation_energy", at)
    assert again.derivation.value == told.derivation.value
    own = pg.explain(result, "operation_energy", {"node": "native"}).derivation
    assert own.value == 0.63
    assert {d.name: d.source for d in own.below}["native_operation_energy"] == "the device's own node"
    dearer = pg.explain(made, "electricity_price", at).derivation
    assert dearer.source.startswith("U.S. Energy Information Administration")


def test_nodes_without_data_are_flagged():
    found = grid(["step_energy"], {"node": ["n5", "actuary2022-5"]})
    assert found["node_has_energy"].tolist() == [1, 0]


@pytest.mark.parametrize("name", ["node_scaling", "gpu_generations", "recompute_memory", "deepseek"])
def test_studies_are_evaluated_and_have_feasible_designs(name):
    made = pg.load_study(study_path(name))
    found = pg.evaluate(made)
    assert int(pg.feasible(found).sum()) > 10
