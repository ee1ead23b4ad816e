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
# # Performance against system cost
#
# Guo et al. 2025 weigh performance against the cost of systems. Training and serving Llama 3.1 70B on five devices:
# `perfgrid run studies/papers/training_cost.toml`, `perfgrid run studies/papers/serving_cost.toml`.

# %%
from pathlib import Path

import pandas as pd

import perfgrid as pg

pd.options.display.max_colwidth = None
HERE = Path("studies/papers") if Path("studies/papers").is_dir() else Path()

training, serving = (pg.load_study(HERE / f"{name}_cost.toml") for name in ("training", "serving"))

# %% [markdown]
# ## Training on 15 trillion tokens
# Cost of the run in million dollars, and device-hours in millions, by cluster.

# %%
best = pg.best(training).squeeze(drop=True)
cost = (best.cost_per_training_run / 1e6).to_pandas()
hours = (best.training_time * best.devices / 3600 / 1e6).to_pandas()
pd.concat({"cost [M$]": cost.round(1), "device-hours [10^6]": hours.round(2)}, axis=1)

# %%
pg.plot(training, "cost")
# %% [markdown]
# ## Serving
# Dollars for a million tokens, read and written, at the least cost, and at 50 tokens per second for a user.

# %%
ds = pg.evaluate(serving)
price = ds.cost_per_million_tokens.where(pg.feasible(ds)).squeeze("model", drop=True)
fast = price.where(ds.output_tokens_per_second_per_user.squeeze("model", drop=True) >= 50)
served = pd.DataFrame(
    {name: prices.min(["batch", "parallelism"]).to_series() for name, prices in {"any": price, "50 /s": fast}.items()}
)
served.round(3)

# %%
pg.plot(serving, "cost")
# %% [markdown]
# ## Claims

# %%
stated = 7.0  # million H100-hours of Llama 3.1 70B, by its model card
own = hours["h100-sxm-80gb"]
slower = served["50 /s"] / served["any"]
assert (cost["b200"] < cost["a100-sxm-80gb"]).all()
assert (slower.dropna() > 1.2).all()
claims = [
    (
        "System cost and performance trade off: larger clusters train sooner at higher cost [guo2025]",
        f"H100: {cost.loc[256, 'h100-sxm-80gb']:.1f} M$ on 256 devices, {cost.loc[8192, 'h100-sxm-80gb']:.1f} M$ on 8,192;"
        f" B200 {cost.loc[256, 'b200']:.1f} and {cost.loc[8192, 'b200']:.1f}, A100"
        f" {cost.loc[256, 'a100-sxm-80gb']:.1f} and {cost.loc[8192, 'a100-sxm-80gb']:.1f}",
        "agrees in kind; the paper's numbers were not found",
    ),
    (
        f"Llama 3.1 70B took {stated:.1f} million H100-hours [grattafiori2024llama3]",
        f"{own.min():.1f} to {own.max():.1f} million by cluster",
        f"{own[8192] / stated - 1:+.0%} on 8,192 devices; the stated hours include all stages of training and restarts",
    ),
    (
        "Interactive serving costs more per token [guo2025, pope2022inference]",
        f"50 tokens per second for a user cost {slower.min():.1f} to {slower.max():.1f} times the least cost of a token",
        "agrees in kind",
    ),
]
pd.DataFrame(claims, columns=["stated", "perfgrid", "agreement"])
