"""The grid that the engine computes equals a replay of its points, over randomly drawn studies of the real physics."""

from typing import Any

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.formulas import BREAKDOWN
from tests.replays import assert_grid_is_replay

CATALOG = load_catalog()
SERVING = {name for name, entry in CATALOG.tables["software"].items() if entry.values["serves"]}
NAMES = {  # what trains
    table: sorted(set(CATALOG.tables[table]) - SERVING) for table in ("model", "device", "topology", "software")
}
MIXTURES = [name for name in NAMES["model"] if CATALOG.entry("model", name).values["experts"]]
OUTPUTS = [
    "step_time",
    *BREAKDOWN,
    "memory_per_device",
    "state_memory",
    "activation_memory",
    "working_memory",
    "layer_activation_memory",
    "model_flops_utilization",
    "hardware_flops_utilization",
    "device_time",
    "step_energy",
    "tp_gather_time",
    "dp_reduction_time",
    "layer_forward_time",
    "layer_backward_time",
    "matrix_rate",
    "cp_bytes",
    "cp_memory",
]
ATTENTION = {  # heads of their own, latents with compressed and with plain queries; what goes with them
    "q_lora_rank": [0, 768, 0],
    "kv_lora_rank": [0, 256, 128],
    "qk_nope_head_dim": [0, 64, 128],
    "qk_rope_head_dim": [0, 32, 64],
    "v_head_dim": [0, 64, 128],
    "mtp_layers": [0, 1, 0],
    "recompute_latents": [False, True, False],
    "recompute_norms": [False, True, True],
    "recompute_activation_function": [True, False, False],
    "document_length": [0, 0, 300],
}
SCALED = ("hbm_bandwidth", "scale_up_bandwidth", "peak_bf16_rate", "l2_bandwidth", "launch_overhead", "tp_overlap")


def drawn_study(generator):
    """A study of a few thousand points: entries of the catalog, layouts, flags and scaled quantities, as drawn."""

    def some(values, most=2):
        count = int(generator.integers(1, most + 1))
        return [values[int(i)] for i in sorted(generator.choice(len(values), min(count, len(values)), replace=False))]

    drawn_rows = some([0, 1, 2])
    attention = {name: [values[i] for i in drawn_rows] for name, values in ATTENTION.items()}
    axes: dict[str, Any] = {table: some(names) for table, names in NAMES.items()}
    axes["model"] = sorted({*axes["model"], *some(MIXTURES, 1)})
    axes |= {
        "microbatch": some([1, 2, 4]),
        "precision": some(["bf16", "fp8"]),
        "recompute": some(["none", "selective", "full"], 3),
        "schedule": some(["1f1b", "gpipe", "zb_h1", "zb_v", "dualpipe", "dualpipe_v"], 4),
        "sequence_parallel": some([True, False]),
        "flash_attention": some([True, False]),
        "zero": some([0, 1]),
        "attention": {"labels": [f"row {i}" for i in drawn_rows], "zip": attention},
        "cp_method": some(["ring", "all_gather", "ulysses", "hybrid"], 1),
        "parallelism": {
            "devices": some([8, 24, 64, 512]),
            "tp": some([1, 2, 4, 8, 16], 3),
            "pp": some([1, 2, 3, 4, 8], 2),
            "cp": some([2, 4], 1),
            "chunks": some([1, 2, 3]),
            "ep": some([1, 2, 4, 8]),
            "etp": some([1, 2]),
        },
    }
    for degree in ("tp", "pp", "cp", "chunks", "ep", "etp"):
        axes["parallelism"][degree] = sorted({1, *axes["parallelism"][degree]})
    for name in some(SCALED, 2):
        axes[name] = {"scale": [0.3, 1.0] if name == "tp_overlap" else [0.3, 1.0, 7.0]}
    order = generator.permutation(list(axes))
    sizes = {
        "sequence_length": int(generator.choice([512, 2048, 3000])),
        "global_batch": int(generator.choice([48, 96])),
        "ulysses_ranks": int(generator.choice([1, 2])),
    }
    axes = {str(name): axes[str(name)] for name in order}
    return pg.Study.make(CATALOG, outputs=OUTPUTS, axes=axes, workload_parameters=sizes)


@pytest.mark.parametrize("seed", [0, 7, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 7))])
def test_the_grid_equals_a_replay(seed):
    generator = np.random.default_rng(seed)
    made = drawn_study(generator)
    dtype, tolerance = [("float32", 1e-5), ("float64", 1e-12)][seed % 2]
    small_points = [None, 0, 300][int(generator.integers(3))]
    ds = pg.evaluate(made, dtype, int(generator.choice([700, 5000, 2**21])), small_points)
    assert set(OUTPUTS) <= set(map(str, ds.data_vars))
    assert_grid_is_replay(made, ds, generator, 25, tolerance)


@pytest.mark.parametrize("fabric", ["rail-optimized", "ici-ring"])
def test_an_algorithm_that_nobody_offers_is_flagged_and_stays_finite(fabric):
    """A library has no direct exchange: only groups of one rank remain."""
    made = pg.Study.make(
        CATALOG,
        outputs=["device_time", "step_energy", "step_time"],
        axes={
            "model": ["llama-3.1-405b"],
            "device": ["h100-sxm-80gb"],
            "topology": [fabric],
            "parallelism": {"devices": [512], "tp": [1, 8, 16], "pp": [1, 4], "chunks": [1]},
        },
        workload_parameters={"sequence_length": 512, "global_batch": 512, "tp_algorithm": "direct"},
    )
    ds = pg.evaluate(made, "float32")
    assert all(np.all(ds[name].values < 1e30) for name in made.outputs)
    assert (ds.tp_algorithms_offered.values == (ds.tp.values == 1)).all()
    assert ds.tp_algorithms_offered.attrs["constraint"] == "illegal"
