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
# # One design: best, explained, over time
#
# Best designs and explanations are tables in a notebook; below them lies the ordinary Dataset.

# %%
import numpy as np

import perfgrid as pg

study = pg.Study.make(
    title="Llama 3.1 8B through pipelines of four",
    outputs=["step_time", "memory_per_device", "bubble_time"],
    axes={
        "model": ["llama-3.1-8b"],
        "device": ["h100-sxm-80gb", "b200"],
        "topology": ["rail-optimized"],
        "schedule": ["1f1b", "zb_h1", "dualpipe"],
        "parallelism": {"devices": [32], "tp": [1, 2], "pp": [4]},
    },
    workload_parameters={"sequence_length": 4096, "global_batch": 64},
)
best = pg.best(study, over=["parallelism"], minimize="step_time")
best

# %% [markdown]
# ## What its time is made of

# %%
at = {
    "device": "b200",
    "schedule": "zb_h1",
    "parallelism": best.sel(device="b200", schedule="zb_h1").parallelism.item(),
}
pg.explain(study, "step_time", at)

# %% [markdown]
# ## What its devices do and hold
# The schedule is executed event by event. `perfgrid timeline STUDY --at ... -o trace.json` writes the same as a trace for
# Perfetto.

# %%
events = pg.timeline(study, at)
device = events.device.values
[
    {"device": d, "idle": float((events.end - events.start)[(device == d) & (events.kind == "wait").values].sum())}
    | {"most in flight": float(events.in_flight[device == d].max())}
    for d in np.unique(device).tolist()
]

# %% [markdown]
# By the formulas a device holds the activations of at most p microbatches in ZB-H1:

# %%
assert events.in_flight.max() == 4
