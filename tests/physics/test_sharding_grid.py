"""Sharding, offloading, adapters, scaled formats, chosen recomputation on grids: as replayed and in units."""

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Space
from perfgrid.formulas import BREAKDOWN, registry_of
from tests.replays import assert_grid_is_replay
from tests.units import check

from .cases import point

CATALOG = load_catalog()
OUTPUTS = [
    "step_time",
    *BREAKDOWN,
    "memory_per_device",
    "state_memory",
    "activation_memory",
    "working_memory",
    "recompute_choice",
    "dp_bytes",
    "dp_calls",
    "checkpoint_time",
    "goodput",
    "expected_training_time",
    "model_flops_utilization",
    "time_between_failures",
]
STUDIES = [
    {
        "axes": {
            "software": ["torchtitan", "megatron-core", "deepspeed"],
            "zero": [0, 1, 2, 3],
            "zero_size": [0, 4],
            "offload": ["none", "optimizer", "activations"],
            "recompute": ["none", "least"],
            "hbm_capacity": {"scale": [0.2, 0.5, 1.0]},
            "parallelism": {"devices": [64], "tp": [1, 2, 8], "pp": [1, 2, 4], "chunks": [1, 2]},
        },
        "model": "llama-3.1-70b",
        "device": "h100-sxm-80gb",
    },
    {
        "axes": {
            "precision": ["bf16", "fp8", "fp4"],
            "scaling": ["usual", "tensor", "mx", "nvfp4"],
            "lora_rank": [0, 16],
            "lora_targets": ["all", "qkv"],
            "recompute": ["least", "full"],
            "microbatch": [1, 4],
            "host_bandwidth": {"scale": [0.1, 1.0]},
            "parallelism": {"devices": [16], "tp": [1, 4], "pp": [1, 4], "chunks": [1, 2]},
        },
        "model": "llama-2-70b",
        "device": "gb200",
    },
]


@pytest.mark.parametrize(
    ("content", "dtype"),
    [  # both studies and both precisions in the suite, the other pairs beside it
        pytest.param(STUDIES[0], "float32", id="sharded-float32"),
        pytest.param(STUDIES[1], "float64", id="fine-tuned-float64"),
        pytest.param(STUDIES[0], "float64", id="sharded-float64", marks=pytest.mark.slow),
        pytest.param(STUDIES[1], "float32", id="fine-tuned-float32", marks=pytest.mark.slow),
    ],
)
def test_the_grid_equals_a_replay(content, dtype):
    axes = {
        **content["axes"],
        "model": [content["model"]],
        "device": [content["device"]],
        "topology": ["rail-optimized"],
    }
    sizes = {"sequence_length": 8192, "global_batch": 64}
    made = pg.Study.make(CATALOG, outputs=OUTPUTS, axes=axes, workload_parameters=sizes)
    ds = pg.evaluate(made, dtype, 5000, 300)
    assert_grid_is_replay(made, ds, np.random.default_rng(3), 40, {"float32": 2e-5, "float64": 1e-12}[dtype])


def test_the_choice_has_labels():
    made = pg.Study.make(
        CATALOG,
        outputs=["recompute_choice", "memory_per_device"],
        axes={
            "model": ["llama-2-7b"],
            "device": ["h100-sxm-80gb"],
            "topology": ["rail-optimized"],
            "recompute": ["least"],
            "microbatch": [1, 2, 4, 8, 16, 32],
            "parallelism": {"devices": [8], "tp": [2], "pp": [1], "chunks": [1]},
        },
        workload_parameters={"sequence_length": 4096, "global_batch": 128},
    )
    found = pg.evaluate(made).recompute_choice
    assert found.attrs["flag_meanings"] == "none selective full_in_part full"
    numbers = np.ravel(found.values)
    assert list(numbers) == sorted(numbers)
    assert numbers[0] == 0
    assert numbers[-1] >= 2


@pytest.mark.parametrize("offload", ["none", "optimizer", "activations"])
@pytest.mark.parametrize("precision", ["bf16", "fp4"])
def test_every_formula_keeps_its_units(offload, precision):
    registry = registry_of("training")
    named = {"precision": precision, "recompute": "least", "schedule": "1f1b", "library": "nccl", "offload": offload}
    units = {v.name: v.unit for v in CATALOG.variables.values()}
    problems = check(Plan(registry, Space((), {**point(), **named}), OUTPUTS), units)
    assert not problems, "\n".join(sorted(set(problems)))
