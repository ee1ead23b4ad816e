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
# # The evolution of bottlenecks
#
# What training, prefill and decoding wait for, by generation of device and by model, each with the usual network and
# software of the device and the best layout.
#
# `perfgrid plot studies/papers/bottlenecks.toml -o training.png`;
# `perfgrid plot studies/papers/bottlenecks_serving.toml --view decode -o decode.png`

# %%
from pathlib import Path

import pandas as pd

import perfgrid as pg

ROOT = next(folder for folder in (Path("studies/papers"), Path()) if (folder / "bottlenecks.toml").exists())
PARTS = ["arithmetic", "on_chip", "hbm", "launch", "host", "communication", "bubble"]


def shares(best, which=""):
    """Shares of what is waited for, a column each."""
    found = {part: best[name].to_series() for part in PARTS if (name := f"{which}{part}_fraction") in best}
    return pd.DataFrame(found)


study = pg.load_study(ROOT / "bottlenecks.toml")
training = shares(pg.best(study).squeeze("devices"))
assert training.sum(axis=1).between(0.94, 1).all()  # the rest: stragglers, optimizer
training.xs("GPT-3 175B").round(2)

# %%
pg.plot(study)

# %% [markdown]
# ## Prefill and decoding

# %%
serving = pg.load_study(ROOT / "bottlenecks_serving.toml")
best = pg.best(serving)
prefill, decode = (shares(best, f"{which}_").xs(16, level="batch") for which in ("prefill", "decode"))
for which in (prefill, decode):
    assert (which.sum(axis=1) - 1).abs().max() < 1e-5
pg.plot(serving, "prefill")

# %%
pg.plot(serving, "decode")

# %% [markdown]
# ## What comes first
# The largest part of each. Training stays with arithmetic, decoding passes from HBM to launches, prefills pass from
# arithmetic to other ranks, or to HBM where experts are read for few tokens.

# %%
parts = {"training": training, "prefill": prefill, "decoding": decode}
largest = pd.concat({name: part.idxmax(axis=1).unstack(0) for name, part in parts.items()}, axis=1)
largest = largest.reindex(training.loc["GPT-3 175B"].index)
assert set(largest.loc["A100", "decoding"]) == {"hbm"}
largest.fillna("")

# %% [markdown]
# ## Claims

# %%
gpt, deepseek, steps = training.loc["GPT-3 175B"], training.loc["DeepSeek-V3", "H100"], decode.groupby("system").mean()
waits = gpt.communication + gpt.bubble
NVIDIA = ["A100", "H100", "B200"]
NVIDIA_TRAINING = ["V100", *NVIDIA]
chip = gpt.arithmetic + gpt.on_chip  # on A100 L2 and arithmetic take about equally long: see gpu_generations
exchange = deepseek.communication / deepseek[["arithmetic", "on_chip", "hbm"]].sum()
mixture = [part.communication["DeepSeek-V3", "H100"] for part in (prefill, decode, training)]
claims = [
    (
        "bottlenecks of training and inference evolve with technology [kundu2024]",
        "GPT-3 on V100, A100, H100 and B200: arithmetic with the memories on the chip {:.0%}, {:.0%}, {:.0%} and {:.0%} of a "
        "step, HBM {:.0%}, {:.0%}, {:.0%} and {:.0%}, ".format(*chip[NVIDIA_TRAINING], *gpt.hbm[NVIDIA_TRAINING])
        + "communication and bubbles {:.0%}, {:.0%}, {:.0%} and {:.0%}".format(*waits[NVIDIA_TRAINING]),
        "agrees in kind; the paper's figures are not in public text",
    ),
    (
        "decoding is bound by memory traffic [pope2022inference]",
        "HBM takes {:.0%} of a step on A100, {:.0%} on H100, {:.0%} on B200 in 4 bits, ".format(*steps.hbm[NVIDIA])
        + f"mean of three models; arithmetic at most {steps.arithmetic.max():.1%}",
        "yes to Hopper, no from Blackwell on: launches, host and other ranks take more than HBM",
    ),
    (
        "16 devices communicate for 60 % of their time on a mixture of 1.8 trillion parameters [oodaloop2024blackwell]",
        "DeepSeek-V3 on H100: prefill {:.0%}, decoding {:.0%}, training {:.0%}".format(*mixture),
        "no: less; a smaller mixture, and layouts are chosen to keep exchanges within a node",
    ),
    (
        "exchange with experts across nodes takes about as long as computing unless it is hidden [deepseek2024v3]",
        f"what is not hidden takes {exchange:.2f} times as long as kernels, DeepSeek-V3 on H100",
        "open: the hidden part was not computed; what is left is half as long as the kernels",
    ),
]
assert waits["B200"] > waits["V100"]
assert steps.hbm["H100"] > 0.5 > steps.hbm["B200"]
pd.set_option("display.max_colwidth", None)
pd.DataFrame(claims, columns=["stated", "perfgrid", "agreement"])
