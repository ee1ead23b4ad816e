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
# # From 12 nm to 1 nm
#
# Kundu et al. 2024 take one accelerator through technology nodes, memory and network generations and ask what a training
# step of GPT-3 175B waits for. `perfgrid run studies/papers/node_scaling.toml`: 9 nodes, 8 memories, 3 networks, each
# with its best layout.

# %%
from pathlib import Path

import pandas as pd
import xarray as xr

import perfgrid as pg

pd.options.display.max_colwidth = None
HERE = Path("studies/papers") if Path("studies/papers").is_dir() else Path()
PARTS = ["arithmetic", "on_chip", "hbm", "communication", "bubble", "rest"]

study = pg.load_study(HERE / "node_scaling.toml")
best = pg.best(study).squeeze(drop=True)

# %% [markdown]
# ## Step time in seconds
# By node (rows) and memory (columns), on InfiniBand XDR.

# %%
steps = best.step_time.sel(link="infiniband-xdr").to_pandas()
steps.round(2)

# %% [markdown]
# ## The bottleneck of each point
# The largest part of the step.

# %%
shares = xr.concat([best[f"{part}_fraction"] for part in PARTS], pd.Index(PARTS, name="part"))
largest = shares.sel(link="infiniband-xdr").argmax("part").to_pandas().map(PARTS.__getitem__)
largest

# %%
pg.plot(study, "bottlenecks")
# %%
pg.plot(study, "step")
# %% [markdown]
# ## Claims

# %%
at = {"link": "infiniband-xdr"}
waits = best.hbm_fraction.sel(memory="hbm2", **at).to_series()
ranks = (best.communication_fraction + best.bubble_fraction).sel(memory="hbm7", **at).to_series()
gain = steps.loc["n12"] / steps.loc["a10"]
early = (steps.loc["n12"] - steps.loc["n5"]) / (steps.loc["n12"] - steps.loc["a10"])
assert waits["a10"] > 3 * waits["n12"]
assert ranks["a10"] > 2 * ranks["n12"]
claims = [
    (
        "Scaling logic alone saturates: with an old memory newer nodes wait for it [kundu2024]",
        f"HBM2: memory is {waits['n12']:.0%} of the step at 12 nm and {waits['a10']:.0%} at 1 nm; the step becomes"
        f" {gain['hbm2']:.1f} times shorter, with HBM7 {gain['hbm7']:.1f} times",
        "agrees in kind; the paper's numbers were not found",
    ),
    (
        "With newer memories the bottleneck moves to the network [kundu2024]",
        f"HBM7 on XDR: communication and pipeline bubbles are {ranks['n12']:.0%} of the step at 12 nm, {ranks['n5']:.0%} at"
        f" 5 nm, {ranks['a10']:.0%} at 1 nm; the largest part alone is {largest.loc['a10', 'hbm7']}",
        "partly: matrix units with the share of a real die stay the bottleneck; re-allocated area (next study) shifts it",
    ),
    (
        "Most of the gain comes early [kundu2024]",
        f"{early.min():.0%} to {early.max():.0%} of the seconds saved from 12 nm to 1 nm are saved by 5 nm",
        "agrees; from 5 nm on cache and analog circuits hardly shrink (foundry data, not 1.8 times a node)",
    ),
]
pd.DataFrame(claims, columns=["stated", "perfgrid", "agreement"])
