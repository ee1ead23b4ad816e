"""Power, carbon and prices: published figures inside the ranges of the predictions, and no device without a price."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog

STUDY = Path(__file__).parents[2] / "studies" / "papers" / "published_figures.toml"
NODES = ["native", "n12", "n10", "n7", "n6", "n5", "n4", "n3", "n3p", "n2", "n2p", "a16", "a14", "a10"]
PUBLISHED = [  # quantity, case, published, unit, source; no estimate was fitted to powers and hours
    ("average_power", "OLMo 2 7B, H100", 600, 1, "morrison2025olmo"),
    ("average_power", "Llama 2 7B, 128 H100", 658, 1, "fernandez2025scaling"),
    ("average_power", "Llama 2 7B, 2048 H100", 620, 1, "fernandez2025scaling"),
    ("average_power", "Llama 2 7B, A100 40 GB", 380, 1, "jouppi2023tpuv4"),
    ("mean_server_power", "Llama 2 13B, 8 H100", 8.4, 1e3, "latif2025node"),
    ("mean_server_power", "Llama 2 13B, 8 H100", 0.76 * 10.2, 1e3, "newkirk2025node"),
    ("embodied_carbon", "OLMo 2 7B, H100", 1312 / 8, 1, "nvidia2025pcf"),
    ("embodied_carbon", "GPT-3 175B, B200", 1312 / 8 * 2.3 * 0.50 / 0.66, 1, "nvidia2025b200carbon"),
    ("embodied_carbon", "Llama 2 7B, A100 40 GB", 127.6, 1, "falk2025a100"),
    ("cost_per_device_hour", "GPT-3 175B, A100", 1.19, 1, "epoch2024costs"),
    ("cost_per_device_hour", "OLMo 2 7B, H100", 2.32, 1, "epoch2024costs"),
    ("cost_per_device_hour", "GPT-3 175B, GB200", 3.2, 1, "epoch2024costs"),
    ("cost_per_device_hour", "GPT-3 175B, MI300X", 1.50, 1, "cliffcenter2026amd"),
    ("cost_per_device_hour", "GPT-3 175B, MI325X", 1.95, 1, "cliffcenter2026amd"),
    ("cost_per_device_hour", "Llama 2 7B, L40S", 0.70, 1, "modal2025l40s"),
]


@pytest.fixture(scope="module")
def ranges():
    study = pg.load_study(STUDY, ['axes.sample={num=64, method="sobol", seed=1}'])
    return pg.quantiles(pg.evaluate(study))


@pytest.fixture(scope="module")
def nominal():
    return pg.evaluate(pg.load_study(STUDY))


@pytest.mark.parametrize(("quantity", "case", "published", "unit", "source"), PUBLISHED)
def test_published_figures_lie_inside_the_ranges(ranges, nominal, quantity, case, published, unit, source):
    """Between the 5th and the 95th percentile, and within a quarter of the prediction."""
    low, _, high = ranges[quantity].sel(case=case).values.ravel() / unit
    assert low <= published <= high
    assert high < 2.3 * low
    assert nominal[quantity].sel(case=case).item() / unit == pytest.approx(published, rel=0.25)
    assert source in load_catalog().references


def test_power_falls_little_where_devices_wait(nominal):
    """From 128 to 2,048 H100 power per device fell by 5.87 % (fernandez2025scaling), though throughput fell more."""
    few, many = (nominal.average_power.sel(case=f"Llama 2 7B, {n} H100").item() for n in (128, 2048))
    assert 1 - many / few == pytest.approx(0.0587, abs=0.03)


@pytest.fixture(scope="module")
def every_device():
    axes = {
        "model": ["llama-2-7b"],
        "device": sorted(load_catalog().tables["device"]),
        "node": NODES,
        "parallelism": {"devices": [64], "tp": [1], "pp": [1]},
    }
    outputs = ["embodied_carbon", "cost_per_training_run", "cost_per_device_hour"]
    parameters = {"sequence_length": 4096, "global_batch": 64}
    return pg.evaluate(
        pg.Study.make(outputs=outputs, axes=axes, workload_parameters=parameters, dtype="float64")
    ).squeeze()


def test_every_device_costs_something(every_device):
    assert every_device.device_has_a_price.all()
    for name in ("cost_per_training_run", "cost_per_device_hour"):
        assert np.isfinite(every_device[name]).all()
        assert (every_device[name] > 0).all()
    for name, entry in load_catalog().tables["device"].items():
        told: Any = entry.details["purchase_price"]
        assert told.confidence == "estimate", name
        price: Any = entry.values["purchase_price"]
        assert 0 < told.low <= price <= told.high, name
        assert told.year >= 2019, name
        assert entry.sources["purchase_price"] in load_catalog().references, name


def test_every_device_has_carbon_at_every_node(every_device):
    """Finite, and of dies and nodes of which something is known."""
    assert every_device.node_has_carbon.all()
    assert every_device.dies_have_area.all()
    assert np.isfinite(every_device.embodied_carbon).all()
    assert (every_device.embodied_carbon > 40).all()
    assert (every_device.embodied_carbon < 600).all()


def test_io_dies_have_carbon():
    """MI300X stands on four dies of 370 mm^2: 1.48e-3 m^2 of 6 nm over their yield, at 21 to 23 kg/m^2 and 1000."""
    axes = {"model": ["llama-2-7b"], "device": ["mi300x", "h100-sxm-80gb"], "parallelism": {"devices": [8], "tp": [1]}}
    study = pg.Study.make(
        outputs=["io_die_carbon", "io_area_carbon", "io_die_yield"],
        axes=axes,
        workload_parameters={"sequence_length": 2048, "global_batch": 8},
    )
    found = pg.evaluate(study)
    of = found.sel(device="mi300x")
    made = of.io_area_carbon.squeeze() * 4 * 370e-6 / of.io_die_yield.squeeze()
    assert of.io_die_carbon.squeeze().item() == pytest.approx(made.item(), rel=1e-5)
    assert 20_000 < of.io_area_carbon.squeeze().item() < 25_000
    assert found.io_die_carbon.sel(device="h100-sxm-80gb").squeeze().item() == 0


def test_an_answer_has_a_cost_and_both_utilizations():
    """Devices of which no price was known before; DeepSeek-V3 counts 0.8905 of the FLOPs with the causal mask."""
    found = pg.train("llama-3.1-8b", ["gb300", "tpu-v7", "gaudi3"], 8, batch=64)
    assert np.isfinite(found.cost_per_training_run).all()
    assert not any("unknown" in line for line in found.attrs["assumptions"])
    share = found.causal_model_flops_utilization / found.model_flops_utilization
    assert ((share > 0.8) & (share < 1)).all()


@pytest.mark.parametrize(
    ("model", "length", "share", "rel"),
    [
        ("deepseek-v3", 4096, 385 / 432, 0.005),  # zhao2025insights, table 4: TFLOP/s causal and not
        ("gpt3-175b", 2048, 1 - 1 / (6 * 12288 / 2048 + 1 + 50257 / 2048 / 2 / 96) / 2, 0.001),  # eq. 7, half of s/6h
    ],
)
def test_causal_utilization(model, length, share, rel):
    ranks = {"ep": [64]} if model == "deepseek-v3" else {}
    study = pg.Study.make(
        outputs=["model_flops_utilization", "causal_model_flops_utilization"],
        axes={
            "model": [model],
            "device": ["h100-sxm-80gb"],
            "causal": [True, False],
            "parallelism": {"devices": [64], "tp": [1], "pp": [1], **ranks},
        },
        workload_parameters={"sequence_length": length, "global_batch": 64},
        dtype="float64",
    )
    found = pg.evaluate(study).squeeze()
    masked, whole = (found.causal_model_flops_utilization / found.model_flops_utilization).values
    assert masked == pytest.approx(share, rel=rel)
    assert whole == 1


@pytest.mark.slow
def test_the_notebook_asserts_what_it_says():
    claims = runpy.run_path(str(STUDY.with_suffix(".py")))["claims"]
    assert len(claims) == 5


@pytest.mark.slow
def test_every_device_that_trains_a_large_model_has_a_cost():
    found = pg.train("llama-3.1-70b", sorted(load_catalog().tables["device"]), 64)
    assert found.found.sum() >= 27  # one has no bfloat16, one too little memory
    assert np.isfinite(found.cost_per_training_run.where(found.found, 0)).all()
