"""Power of devices: kernels and training steps measured on H100 and H200, the power limit, and devices that wait.

Copies and shallow products set `crossing_energy`, `memory_port_energy` and `boost_energy`; no step did.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.formulas import registry_of
from perfgrid.formulas.hardware.power import boost
from perfgrid.study.study import Study
from perfgrid.validation.design import Mapper, designs
from perfgrid.validation.schema import UNSEEN, read_records
from tests.inference.designs import evaluate

from .cases import grid, point, stated

PROBE = Path(__file__).parents[2] / "tools" / "probe"
LIMIT = 700.0  # W of both devices


def of_circuits(name):
    return stated("circuit", "unit-circuits", name)


def measured(device, part):
    return [row for text in (PROBE / f"{device}.jsonl").open() if (row := json.loads(text))["part"] == part]


@pytest.mark.parametrize(("device", "memory"), [("h100", "hbm3"), ("h200", "hbm3e")])
@pytest.mark.parametrize("size", [2**25, 2**27, 2**29, 2**31])
def test_copies_draw_what_bytes_and_static_power_say(device, memory, size):
    """33 MB stay in the cache; larger ones go to memory."""
    row = next(r for r in measured(device, "streams") if r["what"] == "copy" and r["bytes"] == size)
    assert row["clock"] == 1.98e9  # the highest
    on_chip = of_circuits("crossing_energy") * 0.63 * of_circuits("boost_energy")
    beyond = stated("memory", memory, "memory_byte_energy") + of_circuits("memory_port_energy")
    byte = on_chip + (beyond if size > 2**26 else 0.0)
    predicted = 0.25 * LIMIT + size / row["sustained"] * byte
    assert predicted == pytest.approx(row["power"], rel=0.12)


@pytest.mark.parametrize("device", ["h100", "h200"])
def test_steps_draw_what_was_measured(device):
    """24 training steps, from 24 % to all of the limit: the median within 7 %, each within 22 %."""
    records, _ = read_records([UNSEEN / f"pytorch_{device}.jsonl"], load_catalog())
    mapped = designs([r for r in records if r.quantity == "step_time"], load_catalog(), registry_of("training"), Mapper)
    made = Study.make(mapped.catalog, outputs=["average_power"], dtype="float64", axes={"row": mapped.axis()})
    found = pg.evaluate(made).average_power.values.ravel()
    power = np.array([float(re.findall(r"([\d.]+) W", row.record.source.where or "")[0]) for row in mapped.rows])
    ratio = found / power
    assert len(ratio) == 24
    assert 0.93 < np.median(ratio) < 1.07
    assert ((ratio > 0.78) & (ratio < 1.22)).all()
    assert power.min() < 0.4 * LIMIT < 0.95 * LIMIT < power.max()


@given(st.floats(1, 1000), st.floats(0, 1000), st.floats(0, 1000), st.floats(1, 3))
def test_the_clock_rises_as_far_as_the_limit_allows(limit, others, on_chip, highest):
    raised = float(boost(limit, others, on_chip, highest))
    assert 1 <= raised <= highest
    power = others + raised * on_chip
    if others + on_chip <= limit:
        assert power <= limit * (1 + 1e-6)
        assert raised == pytest.approx(highest) or power == pytest.approx(limit, rel=1e-6)
    else:
        assert raised == 1


def test_less_room_below_the_limit_takes_less_energy_until_the_sustained_clock():
    names = ["average_power", "static_energy", "arithmetic_energy"]
    found = grid(names, {"thermal_design_power": [1000.0, 700.0, 500.0, 300.0]}, overrides={"static_power": 175.0})
    assert (np.diff(found["average_power"]) <= 0).all()
    assert found["average_power"][2] == pytest.approx(500.0)
    assert found["stays_within_power"].tolist() == [1, 1, 1, 0]
    ratio = found["arithmetic_energy"] / found["arithmetic_energy"][-1]
    assert ratio[0] == pytest.approx(of_circuits("boost_energy"))
    assert ratio[-1] == 1


@pytest.mark.parametrize(("device", "highest"), [("a100-sxm-80gb", 1.41 / 1.226), ("h100-sxm-80gb", 1.98 / 1.4)])
def test_energies_rise_as_far_as_the_highest_clock(device, highest):
    """A100's large products run at 1.226 of 1.41 GHz (271 of 312 TFLOP/s), H100's at 1.4 of 1.98 GHz (E is 1.6)."""
    exponent = np.log(of_circuits("boost_energy")) / np.log(1.98 / 1.4)
    assert 1 < exponent < 2  # the voltage goes with the square root of the clock, or with the clock
    room = {"device": [device], "thermal_design_power": [2000.0]}
    found = grid(["step_boost"], room, overrides={"static_power": 0.25 * LIMIT})
    assert found["step_boost"] == pytest.approx(highest**exponent, rel=0.01)


def test_tensor_processing_units_keep_their_clock():
    p = point(["average_power"], {"device": ["tpu-v4"], "topology": ["ici-ring"]})
    assert p["step_boost"] == 1
    assert p["crossing_byte_energy"] == p["l2_byte_energy"]


def test_devices_without_requests_draw_idle_power():
    axes = {
        "model": ["llama-3.1-8b"],
        "device": ["h100-sxm-80gb"],
        "topology": ["rail-optimized"],
        "software": ["vllm"],
        "parallelism": {"devices": [1], "tp": [1], "pp": [1]},
        "request_rate": [0.001, 1.0, 10.0],
    }
    sizes = {"prompt_tokens": 500, "output_tokens": 200, "batch_rule": "rate"}
    made = Study.make(
        workload="inference", outputs=["average_power"], axes=axes, workload_parameters=sizes, dtype="float64"
    )
    power = pg.evaluate(made).average_power.values.ravel()
    assert power[0] == pytest.approx(0.13 * LIMIT, rel=0.02)
    assert 0.13 * LIMIT < power[1] < power[2] <= LIMIT


@pytest.mark.parametrize("device", ["a100-sxm-80gb", "h100-sxm-80gb"])
def test_prompts_reach_the_limit_and_tokens_stay_below(device):
    """As measured of models served in a cloud (patel2024polca)."""
    asked = {"model": "llama-3.1-8b", "device": device, "batch": 16.0, "prompt_tokens": 2048.0}
    of = evaluate("pass_energy", "working_time", "static_power", "thermal_design_power", **asked)
    prompt, token = of["pass_energy"].sum(axis=0) / of["working_time"] + of["static_power"]
    limit = of["thermal_design_power"]
    assert prompt == pytest.approx(limit)
    assert 0.4 * limit < token < 0.9 * limit
