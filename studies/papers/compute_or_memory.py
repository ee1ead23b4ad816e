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
# # Compute or memory bound, product by product
#
# Kundu et al. 2024 list, for the prefill of Llama 2 13B with 200 tokens, which matrix products are bound by compute and
# which by memory, on A100 and H100. Here all products, both passes, six devices and eleven batch sizes in one study:
# `perfgrid run studies/papers/compute_or_memory.toml -o result.nc`.

# %%
from pathlib import Path

import numpy as np
import pandas as pd

import perfgrid as pg

pd.options.display.max_colwidth = None
HERE = Path("studies/papers") if Path("studies/papers").is_dir() else Path()
PRODUCTS = ["qkv", "attention_output", "ffn_up", "ffn_down", "attention", "logits"]

study = pg.load_study(HERE / "compute_or_memory.toml")
ds = pg.evaluate(study).squeeze(drop=True)
ratio = ds.kernel_memory_ratio.sel(kernel=PRODUCTS)

# %% [markdown]
# ## The prefill of one prompt
# Time of memory traffic over time on chip; memory bounds what is above 1.

# %%
prefill = ratio.sel({"pass": "prefill", "batch": 1}).to_pandas()
prefill.round(2)

# %%
pg.plot(study, "prefill")

# %% [markdown]
# ## Decoding
# The batch from which a product is no longer bound by memory (interpolated), by device.


# %%
def crossing(values):
    """The batch at which a falling ratio passes 1."""
    x, y = np.log(ds.batch.values), np.log(values)
    return float(np.exp(np.interp(0.0, -y, x))) if y.min() < 0 else np.inf


decode = ratio.sel({"pass": "decode"})
batches = pd.DataFrame(
    {
        str(device): {kernel: crossing(decode.sel(device=device, kernel=kernel).values) for kernel in PRODUCTS}
        for device in ds.device.values
    }
)
assert (batches.loc["attention"] == np.inf).all()
batches.round(0)

# %%
pg.plot(study, "decode")
# %%
pg.plot(study, "products")
# %% [markdown]
# ## Claims

# %%
layer = ["qkv", "attention_output", "ffn_up", "ffn_down"]
a100, h100 = prefill.loc["a100-sxm-80gb", layer], prefill.loc["h100-sxm-80gb", layer]
assert (a100 < 1).all()
assert (h100 > 1).all()
claims = [
    (
        "Prefill of Llama 2 13B, 200 tokens, batch 1: A100 computes most products compute-bound, H100 memory-bound"
        " [kundu2024]",
        f"memory over chip time of the layer's products {a100.min():.2f} to {a100.max():.2f} on A100,"
        f" {h100.min():.2f} to {h100.max():.2f} on H100",
        "agrees in direction, for every product of a layer; the paper's table was not available",
    ),
    (
        "Decoding is memory-bound; products with weights become compute-bound with batch, attention does not"
        " [kundu2024, pope2022inference]",
        f"products of a layer turn at batch {batches.loc[layer, 'a100-sxm-80gb'].min():.0f} to"
        f" {batches.loc[layer, 'a100-sxm-80gb'].max():.0f} on A100, {batches.loc[layer, 'h100-sxm-80gb'].min():.0f} to"
        f" {batches.loc[layer, 'h100-sxm-80gb'].max():.0f} on H100; attention at no batch",
        "agrees: peak rate over bandwidth is 153 FLOP per byte on A100, 295 on H100",
    ),
]
pd.DataFrame(claims, columns=["stated", "perfgrid", "agreement"])
