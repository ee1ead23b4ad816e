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
# # Sensitivity and uncertainty
#
# Exact derivatives of every output with respect to every given number, at every design; then the effect of the
# catalog's ranges.

# %%
import numpy as np

import perfgrid as pg
from perfgrid.analysis.sensitivity_ranking import binding, binding_shares, ranked, time_balance

study = pg.Study.make(
    title="Llama 2 70B on two accelerators",
    outputs=["step_time", "memory_per_device"],
    axes={
        "model": ["llama-2-70b"],
        "device": ["h100-sxm-80gb", "mi300x"],
        "topology": ["rail-optimized"],
        "microbatch": [1, 2],
        "parallelism": {"devices": [256], "tp": [2, 4, 8], "pp": [1, 2, 4, 8]},
        "hbm_bandwidth": {"scale": [0.25, 0.5, 1.0, 2.0]},
    },
    workload_parameters={"sequence_length": 4096, "global_batch": 512},
)
ds = pg.sensitivity(study)
ds.step_time_elasticity.dims

# %% [markdown]
# ## The parameters that matter
# An elasticity of -0.6: one percent more shortens the step by 0.6 percent. Parameters without any effect are listed.

# %%
ranks = ranked(ds, "step_time")
[(r.parameter, round(r.mean, 3)) for r in ranks[:8]], [r.parameter for r in ranks if r.zero == 1][:6]

# %% [markdown]
# ## A check
# Doubling every rate and halving every fixed time halves the step: the elasticities of all times minus those of all
# rates sum to 1 at every design (Euler).

# %%
exponent, low, high = time_balance(ds, "step_time")
assert np.allclose([low, high], exponent, atol=1e-4)
low, high

# %% [markdown]
# ## Which resource binds where

# %%
which = binding(ds, "step_time")
print(binding_shares(ds, "step_time"))
e = ds.step_time_elasticity.sel(parameter="hbm_bandwidth", microbatch=1).squeeze("model").squeeze("topology")
e.sel(device="h100-sxm-80gb").plot(x="hbm_bandwidth", hue="parallelism", xscale="log", add_legend=False)

# %% [markdown]
# ## Behind a maximum
# A resource that is not the slowest has elasticity 0. Smooth derivatives keep the value and show how close
# it is.

# %%
smooth = pg.sensitivity(study, "step_time", ["l2_bandwidth", "shared_memory_bandwidth"], smooth=True)
exact = ds.step_time_elasticity.sel(parameter=smooth.parameter)
exact.mean(exact.dims[1:]).values, smooth.step_time_elasticity.mean(exact.dims[1:]).values

# %% [markdown]
# ## Second order
# How an elasticity changes with another parameter, for one design.

# %%
at = {"device": "h100-sxm-80gb", "microbatch": 1, "parallelism": "tp8.pp4.dp8", "hbm_bandwidth": 1.0}
cross = pg.cross_elasticities(study, "step_time", ["peak_bf16_rate", "hbm_bandwidth", "scale_up_bandwidth"], at)
assert np.allclose(cross.cross_elasticity, cross.cross_elasticity.values.T, atol=1e-5)
cross.cross_elasticity.round(4).to_pandas()

# %% [markdown]
# ## Uncertainty of a cost
# Each estimate of the catalog has a range: one at a time (tornado), and as shares of the variance (Sobol).

# %%
bill = pg.Study.make(
    title="Bill of materials",
    workload="manufacturing",
    outputs=["manufacturing_cost"],
    axes={"device": ["h100-sxm-80gb"]},
)
swings = pg.tornado(bill, "manufacturing_cost")
swings.to_dataframe().head(5)

# %%
from perfgrid.analysis.global_sensitivity import sobol

shares = sobol(bill, "manufacturing_cost", samples=512)
assert shares.first_order.sum() < 1.1
shares[["first_order", "first_order_confidence", "total"]].squeeze().to_dataframe().sort_values("total").tail(4)
