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
import xarray as xr

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
# ## What its ranks do and hold
#
# The schedule is executed event by event. `perfgrid timeline STUDY --at ... -o trace.json` writes the same as a trace
# that Perfetto opens.

# %%
events = pg.timeline(study, at)
waits = (events.end - events.start).where(events.kind == "wait", 0.0)
ranks = xr.Dataset(
    {
        "idle [s]": waits.groupby(events.device).sum(),
        "most microbatches in flight": events.in_flight.groupby(events.device).max(),
    }
)
ranks.to_dataframe()

# %% [markdown]
# The closed forms say nearly the same: p = 4 microbatches in flight, and how long the slowest rank computes and waits.

# %%
assert ranks["most microbatches in flight"].max() == 4
assert abs(events.pipeline_time / events.closed_form_time - 1) < 0.02
