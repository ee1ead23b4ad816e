"""What a study holds of a model does not depend on the other models of the study."""

import numpy as np
import pytest
import xarray as xr

import perfgrid as pg

MODELS = [  # dense, windows, experts, experts in every second layer; recurrent, beside attention, with experts; indexed
    "phi-4",
    "gpt-oss-120b",
    "deepseek-v3",
    "llama-4-maverick",
    "nemotron-h-8b",
    "falcon-h1-34b",
    "qwen3-next-80b-a3b",
    "deepseek-v3.2",
]
LAYOUT = {"devices": [64], "tp": [1, 4], "pp": [1, 4]}
WORK = {
    "training": {
        "outputs": ["step_time", "memory_per_device", "step_energy"],
        "axes": {"software": ["megatron-core"], "parallelism": LAYOUT, "schedule": ["1f1b", "zb_v"]},
        "workload_parameters": {"sequence_length": 8192, "global_batch": 64, "precision": "bf16"},
    },
    "inference": {
        "outputs": ["time_per_output_token", "time_to_first_token", "memory_per_device"],
        "axes": {"software": ["vllm"], "parallelism": LAYOUT, "batch": [1, 64]},
        "workload_parameters": {"prompt_tokens": 2048, "output_tokens": 200, "precision": "bf16"},
    },
}


@pytest.mark.parametrize("workload", WORK)
def test_a_model_is_the_same_alone_and_beside_others(workload):
    def evaluated(*models):
        axes = {"model": list(models), "device": ["h200-sxm-141gb"], **WORK[workload]["axes"]}
        return pg.evaluate(pg.Study.make(**WORK[workload] | {"workload": workload, "axes": axes, "dtype": "float64"}))

    together = evaluated(*MODELS)
    for model in MODELS:
        alone = evaluated(model)
        for name in WORK[workload]["outputs"]:
            found, expected = xr.broadcast(*(ds[name].sel(model=model) for ds in (together, alone)))
            assert np.isfinite(expected).all()
            np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=f"{model} {name}")
