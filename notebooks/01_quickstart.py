# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Quickstart: a grid of training designs
#
# Which accelerator, network and parallel layout trains a 70-billion-parameter model best, and what limits it?

# %%
import numpy as np

import perfgrid as pg

PARTS = [
    "arithmetic_time",
    "registers_time",
    "shared_memory_time",
    "l2_time",
    "hbm_time",
    "launch_time",
    "exposed_tp_time",
    "exposed_cp_time",
    "exposed_ep_time",
    "exposed_host_time",
    "bubble_time",
    "straggler_time",
    "exposed_pp_time",
    "exposed_dp_time",
    "exposed_tied_time",
    "exposed_offload_time",
    "optimizer_time",
    "between_steps_time",
]
study = pg.Study.make(
    title="Llama 3.1 70B on three accelerators",
    outputs=["step_time", "model_flops_utilization", "memory_per_device", *PARTS],
    axes={
        "model": ["llama-3.1-70b"],
        "device": ["h100-sxm-80gb", "h200-sxm-141gb", "mi300x"],
        "topology": ["rail-optimized", "fat-tree-2to1"],
        "microbatch": [1, 2, 4],
        "recompute": ["none", "selective", "full"],
        "parallelism": {"devices": [512, 2048], "tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8, 16]},
        "hbm_bandwidth": {"scale": {"start": 0.5, "stop": 4, "num": 25, "spacing": "log"}},
    },
    workload_parameters={"sequence_length": 8192, "global_batch": 1024},
)
f"{study.space.points:,} design points"

# %% [markdown]
# ## Evaluate
# One call. Each variable lies only on the axes that it depends on: memory does not depend on the network.

# %%
ds = pg.evaluate(study)
ds.memory_per_device.dims

# %% [markdown]
# ## The best feasible design of each device and cluster size

# %%
best = pg.best(
    ds, over=["parallelism", "topology", "microbatch", "recompute"], minimize="step_time", at={"hbm_bandwidth": 1.0}
)
best[["step_time", "model_flops_utilization", "memory_per_device"]].to_dataframe()[
    ["parallelism", "topology", "microbatch", "recompute", "step_time", "model_flops_utilization"]
]

# %% [markdown]
# ## Where does the step go?
# The parts sum to the step time.

# %%
row = best.sel(devices=2048, model="llama-3.1-70b")
parts = row[PARTS].to_dataframe()[PARTS]
assert np.allclose(parts.sum(axis=1), row.step_time, rtol=1e-4)
(parts.div(parts.sum(axis=1), axis=0) * 100).round(1)

# %% [markdown]
# ## How much would faster memory help?

# %%
feasible = ds.step_time.where(pg.feasible(ds))
fastest = feasible.min(["parallelism", "topology", "microbatch", "recompute"]).squeeze("model")
speedup = fastest.sel(hbm_bandwidth=1.0, method="nearest") / fastest
speedup.plot.line(x="hbm_bandwidth", xscale="log")
# %% [markdown]
# ## Why this number?
# The derivation of one number, one level deep; `perfgrid explain` prints all of it.

# %%
at = {
    "device": "h100-sxm-80gb",
    "topology": "rail-optimized",
    "microbatch": 1,
    "recompute": "selective",
    "parallelism": "tp8.pp4.dp16",
    "hbm_bandwidth": 1.0,
}
found = pg.explain(study, "step_time", at)
[(part.name, part.value, round(part.elasticity or 0, 2)) for part in found.derivation.below]
