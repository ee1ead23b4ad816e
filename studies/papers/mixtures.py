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
# # Mixtures of experts on and off
#
# Guo et al. 2025 add mixtures of experts to their framework. Here DeepSeek-V2 beside DeepSeek 67B, whose maker states the
# device-hours of both, and Mixtral 8x7B beside dense twins: `perfgrid run studies/papers/mixtures.toml`.

# %%
from math import ceil
from pathlib import Path

import pandas as pd

import perfgrid as pg

pd.options.display.max_colwidth = None
HERE = Path("studies/papers") if Path("studies/papers").is_dir() else Path()

study = pg.load_study(HERE / "mixtures.toml")
best = pg.best(study).squeeze(drop=True)

# %% [markdown]
# ## Device-hours for a trillion tokens
# On 1,024 H800 with the best layout of Megatron-Core; stated: DeepSeek-V2 report, section 3.2.3.

# %%
hours = best.device_time.to_series() / 3600 / 1000
stated = pd.Series({"deepseek-v2": 172.8, "deepseek-67b": 300.6})
table = pd.DataFrame(
    {
        "parameters [10^9]": best.total_parameters.to_series() / 1e9,
        "of one token [10^9]": best.parameters_per_token.to_series() / 1e9,
        "10^3 device-hours": hours,
        "stated": stated,
        "layout": best.parallelism.to_series(),
    }
)
table.round(1)

# %%
pg.plot(study, "hours")
# %% [markdown]
# ## Claims

# %%
saved, theirs = 1 - hours["deepseek-v2"] / hours["deepseek-67b"], 1 - stated["deepseek-v2"] / stated["deepseek-67b"]
reached = best.model_flops_utilization.sel(model="deepseek-67b").item()
ran = reached * hours["deepseek-67b"] / stated["deepseek-67b"]
twin = hours["mixtral-8x7b"] / hours["mixtral-active"]
assert saved > 0.2
assert 1 < twin < hours["mixtral-whole"] / hours["mixtral-active"]
claims = [
    (
        f"DeepSeek-V2 saves {theirs:.1%} of the training cost of DeepSeek 67B [guo2025, deepseek2024v2]",
        f"saves {saved:.0%}: {hours['deepseek-v2']:.0f} and {hours['deepseek-67b']:.0f} thousand device-hours, stated"
        f" {stated['deepseek-v2']:.0f} and {stated['deepseek-67b']:.0f}",
        f"yes for the mixture, within {ceil(100 * abs(hours['deepseek-v2'] / stated['deepseek-v2'] - 1))} %; no for the dense model, which ran at {ran:.0%} of"
        f" the peak in 2023, the best layout of Megatron-Core reaches {reached:.0%}",
    ),
    (
        "A mixture costs about as much per token as a dense model of the size that one token visits [guo2025,"
        " jiang2024mixtral]",
        f"Mixtral 8x7B takes {twin - 1:.0%} more device-hours than its dense twin of one token's size,"
        f" {1 - hours['mixtral-8x7b'] / hours['mixtral-whole']:.0%} fewer than one of all its experts",
        "agrees",
    ),
]
pd.DataFrame(claims, columns=["stated", "perfgrid", "agreement"])
