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
# # Co-design: how to divide a die
#
# From a study as a function with derivatives to the best split of a die within limits.

# %%
import jax
import jax.numpy as jnp
import numpy as np

import perfgrid as pg

# %% [markdown]
# ## A study as a function
# The cost of a package of dies as a function of area and defect density: plain JAX, so `jax.grad` applies.

# %%
content = dict(
    workload="manufacturing",
    outputs=["manufacturing_cost", "die_yield"],
    axes={"node": ["n7", "n5", "n3"], "package": ["cowos-s"]},
    workload_parameters={"module_area": "800 mm^2", "memory_in_package": "none"},
    overrides={"dies": 2},
)
cost = pg.function(pg.Study.make(**content), over=["module_area", "defect_density"])
at = {"module_area": 8e-4, "defect_density": 1000.0}
dict(zip(cost.coords["node"], np.ravel(cost(at)["manufacturing_cost"]).round(1), strict=True))

# %%
with jax.enable_x64(True):
    slopes = jax.jacfwd(lambda x: cost(x)["manufacturing_cost"])({k: jnp.asarray(v) for k, v in at.items()})
{name: (np.ravel(s) * at[name] / np.ravel(cost(at)["manufacturing_cost"])).round(3) for name, s in slopes.items()}

# %% [markdown]
# Elasticities by node: one percent more area costs more than one percent, the more the worse the yield.
#
# ## A limit and its price
# The largest area for 200 dollars of dies, at each node.


# %%
@pg.formula(unit="m^2", source="feng2022actuary")
def area_made(module_area):
    """Area of the modules."""
    return module_area * 1.0


study = pg.Study.make(**content | {"outputs": ["area_made", "silicon_cost"]}, formulas=[area_made])
found = pg.optimize(
    study,
    maximize="area_made",
    over={"module_area": ["50 mm^2", "1500 mm^2"]},
    subject_to="silicon_cost < 200 USD",
)
limit = "silicon_cost < 200 USD"
assert (found.kkt_residual < 1e-3).all()
print(found.module_area.to_series() * 1e6)
print(found.shadow_price.sel(constraint=limit).to_series())

# %% [markdown]
# ## The split of a die
# Area and power of H100 at 5 nm, redistributed for Llama 3.1 8B, always with the best layout.

# %%
training = pg.Study.make(
    outputs=["step_time", "peak_bf16_rate", "hbm_bandwidth", "l2_size"],
    axes={
        "model": ["llama-3.1-8b"],
        "device": ["h100-sxm-80gb"],
        "budget": ["h100-budget"],
        "node": ["n5"],
        "topology": ["rail-optimized"],
        "parallelism": {"devices": [64], "tp": [1, 2, 4], "pp": [1, 2]},
    },
    workload_parameters={"sequence_length": 4096, "global_batch": 64, "recompute": "least"},
)
shares = ["area_split.matrix", "area_split.vector", "area_split.l2", "area_split.memory"]
best = pg.optimize(training, "step_time", over=shares, choose="parallelism", starts=2)
stated = pg.evaluate(training)
before = float(stated.step_time.where(pg.feasible(stated)).min())
assert float(best.objective) < before
print(f"step {before:.3f} s with the shares of the die, {float(best.objective):.3f} s with those found")
print({name: round(float(best[name]), 4) for name in shares}, best.parallelism.item())

# %% [markdown]
# Cache and vector units shrink and matrix units grow: the model times large products and few of the other uses of
# a real die. Read such a distance as a limit of the model first.
