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
# # One die or chiplets
#
# Guo et al. 2025 add a cost model of chiplets to their framework and trade performance against cost. Here one accelerator
# as 1, 2, 4 or 8 dies, at four nodes, in three packages: `perfgrid run studies/papers/chiplet_tradeoff.toml`.

# %%
from pathlib import Path

import pandas as pd

import perfgrid as pg

pd.options.display.max_colwidth = None
HERE = Path("studies/papers") if Path("studies/papers").is_dir() else Path()

study = pg.load_study(HERE / "chiplet_tradeoff.toml")
ds = pg.evaluate(study).squeeze(drop=True)
value = ds.tokens_per_dollar.where(pg.feasible(ds)).max("parallelism")

# %% [markdown]
# ## Million tokens per dollar
# By node and package (rows) and number of dies (columns), 100,000 devices.

# %%
(value.sel(production_volume=1e5) / 1e6).to_series().unstack("budget_dies").round(2)

# %%
pg.plot(study, "grid")
# %%
pg.plot(study, "cost")

# %% [markdown]
# ## From which area chiplets are cheaper
# One die against two on an organic substrate, by the parameters of Chiplet Actuary (Feng 2022, figure 5).


# %%
def cost(node, area, count):
    """Cost of making one package of modules of an area (mm2), divided into dies, in dollars."""
    modules = {"node": node, "total_module_area_mm2": area, "n_chiplets": count, "chiplets_distinct_designs": True}
    return pg.chiplet_cost("actuary2022", package="OS", **modules)["RE_total"]


crossover = {
    node: next(area for area in range(200, 900, 5) if cost(node, area, 2) < cost(node, area, 1))
    for node in ("14", "7", "5")
}
crossover

# %% [markdown]
# ## Claims

# %%
silicon = ds.silicon_cost.sel(package="cowos-s").transpose("node", "budget_dies").to_pandas()
saved = 1 - silicon[8] / silicon[1]
gain = (value.max("budget_dies") / value.sel(budget_dies=1) - 1).sel(package="cowos-s")
assert (gain.sel(node="a14") > gain.sel(node="n5")).all()
claims = [
    (
        "Chiplets cost less than one die from about 660 mm2 at 14 nm, 400 at 7 nm, 250 at 5 nm [guo2025, feng2022actuary]",
        ", ".join(f"{area} mm2 at {node} nm" for node, area in crossover.items()),
        "agrees",
    ),
    (
        "Chiplets trade cost against performance by node and package [guo2025]",
        f"eight dies save {saved.min():.0%} to {saved.max():.0%} of the silicon; tokens per dollar of training rise by"
        f" {gain.values.min():.0%} to {gain.values.max():.0%} with the best number of dies, most at the newest node"
        " and in small volumes",
        "agrees in kind; the paper's numbers were not found. Traffic between dies is free in our model, their interfaces"
        " cost a tenth of the area",
    ),
]
pd.DataFrame(claims, columns=["stated", "perfgrid", "agreement"])
