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
# # Power, carbon and prices against published figures
#
# No estimate was fitted to the measured powers and costs below; embodied carbon takes the parts of one of its three
# figures, that of H100. `perfgrid run studies/papers/published_figures.toml` evaluates the designs; here 256 samples of
# all estimates, each drawn from its range, say how far the predictions can be trusted.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import perfgrid as pg

pd.options.display.max_colwidth = None
HERE = Path("studies/papers") if Path("studies/papers").is_dir() else Path()

study = pg.load_study(HERE / "published_figures.toml")
samples = ['axes.sample={num=256, method="sobol", seed=1}']
stated_values = pg.evaluate(study)
ranges = pg.quantiles(pg.evaluate(pg.load_study(HERE / "published_figures.toml", samples)))


def table(quantity, published, scale=1.0):
    """What is published of some cases beside the prediction and its 5th and 95th percentile."""
    rows = []
    for case, value, source in published:
        low, _, high = (scale * x for x in ranges[quantity].sel(case=case).values.ravel())
        predicted = scale * stated_values[quantity].sel(case=case).item()
        rows.append((case, value, predicted, low, high, low <= value <= high, source))
    names = ["case", "published", "predicted", "5 %", "95 %", "inside", "source"]
    return pd.DataFrame(rows, columns=names).round(2)


# %% [markdown]
# ## Power in training
# W of a device, kW of a server. Devices raise their clock where a workload leaves power, and stop at the limit.

# %%
devices = table(
    "average_power",
    [
        ("OLMo 2 7B, H100", 600, "morrison2025olmo: over 600 W"),
        ("Llama 2 7B, 128 H100", 658, "fernandez2025scaling, recalled"),
        ("Llama 2 7B, 2048 H100", 620, "fernandez2025scaling, recalled"),
        ("Llama 2 7B, A100 40 GB", 380, "jouppi2023tpuv4: BERT"),
    ],
)
servers = table(
    "mean_server_power",
    [
        ("Llama 2 13B, 8 H100", 8.4, "latif2025node: the most of several runs"),
        ("Llama 2 13B, 8 H100", 0.76 * 10.2, "newkirk2025node: mean of intensive runs"),
    ],
    1e-3,
)
assert devices.inside.all()
assert servers.inside.all()
pd.concat([devices, servers])

# %% [markdown]
# ## Embodied carbon, kg
# Eight H100 with their switches; B200 with 2.3 times the work at 0.50 instead of 0.66 g for each; an A100 taken apart.

# %%
h100 = 1312 / 8
carbon = table(
    "embodied_carbon",
    [
        ("OLMo 2 7B, H100", h100, "nvidia2025pcf"),
        ("GPT-3 175B, B200", h100 * 2.3 * 0.50 / 0.66, "nvidia2025b200carbon"),
        ("Llama 2 7B, A100 40 GB", 127.6, "falk2025a100"),
    ],
)
assert carbon.inside.all()
carbon

# %% [markdown]
# ## An hour of a device, USD
# Costs of ownership from the press, and the lowest rents that were found, which rest on such costs.

# %%
hours = table(
    "cost_per_device_hour",
    [
        ("GPT-3 175B, A100", 1.19, "epoch2024costs: ownership"),
        ("OLMo 2 7B, H100", 2.32, "epoch2024costs: ownership"),
        ("GPT-3 175B, GB200", 3.2, "epoch2024costs: ownership, high"),
        ("GPT-3 175B, MI300X", 1.50, "cliffcenter2026amd: rent"),
        ("GPT-3 175B, MI325X", 1.95, "cliffcenter2026amd: rent"),
        ("Llama 2 7B, L40S", 0.70, "modal2025l40s: rent for three years"),
    ],
)
assert hours.inside.all()
hours

# %% [markdown]
# ## The picture
# Predictions with their ranges, and what is published (crosses). The study's own pictures show the
# predictions alone: `perfgrid plot studies/papers/published_figures.toml --view carbon -o carbon.svg`.

# %%
panels = (("power of a device in W", devices), ("embodied carbon in kg", carbon), ("an hour of a device in USD", hours))
figure, axes = plt.subplots(1, 3, figsize=(13, 3.2), layout="constrained")
for ax, (title, rows) in zip(axes, panels, strict=True):
    rows = rows[::-1]
    ax.hlines(rows.case, rows["5 %"], rows["95 %"], lw=6, color="#9ecae1")
    ax.plot(rows.predicted, rows.case, "|", ms=14, color="#08519c")
    ax.plot(rows.published, rows.case, "kx")
    ax.set(title=title, xlim=(0, None))

# %% [markdown]
# ## Claims

# %%
few, many = (stated_values.average_power.sel(case=f"Llama 2 7B, {n} H100").item() for n in (128, 2048))
falls = 1 - many / few
short, long = (stated_values.step_time.sel(case=f"Llama 2 7B, {n} H100").item() for n in (128, 2048))
slower = 1 - short / long
assert 0.02 < falls < 0.12
assert 0.05 < slower < 0.2


def beside(rows, unit):
    """What is predicted, with ranges."""
    return "; ".join(
        f"{r.case}: {r.predicted:.4g} ({r['5 %']:.4g} to {r['95 %']:.4g}) {unit}" for _, r in rows.iterrows()
    )


def stated(rows, unit):
    """What is published, with sources and what they say of it."""
    return ", ".join(f"{r.case} {r.published:.4g} {unit} [{r.source}]" for _, r in rows.iterrows())


CARBON = (
    "inside the ranges; H100's parts are inputs of the model, and B200's figure is derived from H100's and two published"
    " ratios, so only A100 is independent"
)
claims = [
    (f"Mean power in training: {stated(devices, 'W')}", beside(devices, "W"), "inside the ranges"),
    (
        f"Power of a server: {stated(servers, 'kW')}",
        beside(servers[:1], "kW"),
        f"inside the range; {servers.predicted.iloc[0] / servers.published.iloc[0] - 1:.0%} above the most,"
        f" {servers.predicted.iloc[0] / servers.published.iloc[1] - 1:.0%} above the mean that were measured",
    ),
    (
        "From 128 to 2,048 H100 power per device falls by 5.87 %, throughput by 37 % [fernandez2025scaling, recalled]",
        f"power falls by {falls:.1%}, throughput by {slower:.1%}",
        "power yes, throughput no: it falls less here, and devices that wait as long as theirs would be predicted too low, as"
        " energies of kernels that wait for data are not known",
    ),
    (f"Embodied carbon: {stated(carbon, 'kg')}", beside(carbon, "kg"), CARBON),
    (f"An hour of a device: {stated(hours, 'USD')}", beside(hours, "USD"), "inside the ranges"),
]
pd.DataFrame(claims, columns=["stated", "perfgrid", "agreement"])
