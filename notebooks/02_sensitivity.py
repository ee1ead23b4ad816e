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
# An elasticity of -0.6: one percent more shortens the step by 0.6 percent. The mean over feasible designs:

# %%
e = ds.step_time_elasticity.where(pg.feasible(ds, of="step_time"))
mean = e.mean([d for d in e.dims if d != "parameter"]).to_series()
mean[mean.abs().sort_values(ascending=False).index].head(8).round(3)

# %% [markdown]
# ## A check
# Doubling every rate and halving every fixed time halves the step: the elasticities of all times minus those of all
# rates sum to 1 at every design (Euler).

# %%
unit = ds.parameter_unit
times, rates = e.where(unit == "s", 0).sum("parameter"), e.where(unit.str.endswith("/s"), 0).sum("parameter")
balance = (times - rates).where(pg.feasible(ds, of="step_time"))
assert np.allclose([balance.min(), balance.max()], 1, atol=1e-4)
float(balance.min()), float(balance.max())

# %% [markdown]
# ## Which resource binds where

# %%
strength = abs(ds.step_time_elasticity.sel(parameter=unit.str.endswith("/s")))
which = strength.parameter[strength.argmax("parameter")].where(pg.feasible(ds, of="step_time"))
print(which.to_series().dropna().value_counts(normalize=True).round(3))
line = ds.step_time_elasticity.sel(parameter="hbm_bandwidth", microbatch=1, device="h100-sxm-80gb").squeeze()
line.plot(x="hbm_bandwidth", hue="parallelism", xscale="log", add_legend=False)

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
names = ["peak_bf16_rate", "hbm_bandwidth", "scale_up_bandwidth"]
cross = pg.sensitivity(study, "step_time", names, at, cross=True).step_time_cross_elasticity
assert np.allclose(cross, cross.values.T, atol=1e-5)
cross.round(4).to_pandas()

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
shares = pg.sobol(bill, "manufacturing_cost", samples=512)
assert shares.first_order.sum() < 1.1
shares[["first_order", "first_order_confidence", "total"]].squeeze().to_dataframe().sort_values("total").tail(4)
