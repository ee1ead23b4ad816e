"""What only a study file states, beside quantities: every key and every form of an axis changes the answer."""

from __future__ import annotations

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.study.ledger import unread
from perfgrid.study.study import build_study

TRAINING = {
    "outputs": ["step_time", "memory_per_device"],
    "dtype": "float64",
    "axes": {
        "model": ["llama-3.1-70b"],
        "device": ["h100-sxm-80gb"],
        "parallelism": {"devices": [64], "tp": [8], "pp": [2]},
    },
    "workload_parameters": {"sequence_length": 4096, "global_batch": 64, "zero": 1, "recompute": "full"},
}
SERVING = {
    "workload": "inference",
    "outputs": ["request_latency", "output_tokens_per_second"],
    "dtype": "float64",
    "axes": {
        "model": ["llama-3.1-8b"],
        "device": ["h100-sxm-80gb"],
        "parallelism": {"devices": [1], "tp": [1], "pp": [1]},
    },
    "workload_parameters": {
        "batch_rule": "rate",
        "prompt_tokens": 1000,
        "output_tokens": 200,
        "request_rate": 2.0,
    },
}
DIES = {"workload": "manufacturing", "outputs": ["manufacturing_cost"], "dtype": "float64"}
DIES["axes"] = {"device": ["mi300x"]}
TRACE = "prompt_tokens,output_tokens,arrival_time\n" + "".join(f"{500 + i},{100 + i},{i / 3}\n" for i in range(30))
OWN = 'kind = "device"\n[h100-sxm-80gb]\nextends = "h100-sxm-80gb"\nhbm_bandwidth = "2 TB/s"\n'


def values(content, folder):
    """All values of the outputs, and the number of designs."""
    study = build_study(content, "study", folder=folder)
    assert not unread(study)
    found = pg.evaluate(study)
    return study.space.points, [np.sort(found[name].values, axis=None) for name in study.outputs]


def axes(content, **changes):
    return {**content, "axes": {**content["axes"], **changes}}


def layout(**changes):
    return axes(TRAINING, parallelism={**TRAINING["axes"]["parallelism"], **changes})


KEYS = {
    "choices": (TRAINING, {**TRAINING, "choices": {"bubble_time": "zb_h1"}}),
    "where": (layout(tp=[4, 8]), {**layout(tp=[4, 8]), "where": "tp < 8"}),
    "dtype": (TRAINING, {**TRAINING, "dtype": "float32"}),
    "outputs": (TRAINING, {**TRAINING, "outputs": ["training_steps", "memory_per_device"]}),
    "workload": (TRAINING, {**SERVING, "outputs": ["memory_per_device", "request_latency"]}),
    "catalog": (TRAINING, {**TRAINING, "catalog": ["own.toml"]}),
    "trace": (
        SERVING,
        {**SERVING, "workload_parameters": {"batch_rule": "rate"}, "trace": "requests.csv"},
    ),
    "axes.sample": (TRAINING, axes(TRAINING, sample={"num": 4, "of": ["device"]})),
    "axes.sample.seed": (
        axes(TRAINING, sample={"num": 4, "of": ["device"]}),
        axes(TRAINING, sample={"num": 4, "of": ["device"], "seed": 1}),
    ),
    "axes.sample.method": (
        axes(TRAINING, sample={"num": 4, "of": ["device"]}),
        axes(TRAINING, sample={"num": 4, "of": ["device"], "method": "latin_hypercube"}),
    ),
    "axes.io_node": (DIES, axes(DIES, io_node=["n3"])),
    "a list": (TRAINING, axes(TRAINING, microbatch=[2])),
    "a range": (TRAINING, axes(TRAINING, hbm_bandwidth={"start": 1e12, "stop": 2e12, "num": 2})),
    "a scale": (TRAINING, axes(TRAINING, hbm_bandwidth={"scale": [0.5]})),
    "a zip": (TRAINING, axes(TRAINING, pair={"zip": {"microbatch": [2], "hbm_bandwidth": ["2 TB/s"]}})),
    "devices": (TRAINING, layout(devices=[128])),
    "tp": (TRAINING, layout(tp=[4])),
    "pp": (TRAINING, layout(pp=[4])),
    "cp": (TRAINING, layout(cp=[2])),
    "chunks": (TRAINING, layout(chunks=[2])),
}


@pytest.mark.parametrize("key", KEYS)
def test_every_key_changes_the_answer(key, tmp_path):
    (tmp_path / "own.toml").write_text(OWN)
    (tmp_path / "requests.csv").write_text(TRACE)
    before, after = (values(content, tmp_path) for content in KEYS[key])
    same = before[0] == after[0] and all(map(np.array_equal, before[1], after[1]))
    assert not same


def test_what_is_stated_of_the_node_of_the_dies_for_input_and_output_counts():
    """An override of it was lost behind the device's own node."""
    base = pg.evaluate(pg.Study.make(**DIES)).manufacturing_cost.item()
    dear = pg.Study.make(**DIES, overrides={"io_wafer_price": "50000 USD"})
    assert pg.evaluate(dear).manufacturing_cost.item() > base + 100
    swept = pg.Study.make(**axes(DIES, io_wafer_price=["10000 USD", "50000 USD"]))
    assert np.ptp(pg.evaluate(swept).manufacturing_cost.values) > 100
    of_node = build_study(DIES, "study", load_catalog(), catalog_values={"node.n6.wafer_price": 5e4})
    assert pg.evaluate(of_node).manufacturing_cost.item() == pytest.approx(pg.evaluate(dear).manufacturing_cost.item())
    with pytest.raises(PerfgridError, match="'io_wafer_price' belongs to the io_node"):
        pg.Study.make(**DIES, workload_parameters={"io_wafer_price": 1.0})
