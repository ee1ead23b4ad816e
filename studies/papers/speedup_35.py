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
# # The 35 times from A100 to B200
#
# Kundu et al. 2024 dissect a speed-up of about 35 of GPT-3 175B from A100 to B200, "closely following NVIDIA's scaling
# trend". Here each assumption is a step of its own: under an upper bound (no software, every schedule that the links
# allow), under the usual software, and beside measured training steps.
#
# `perfgrid plot studies/papers/speedup_35.toml -o steps.png` draws all steps.

# %%
import json
from itertools import product
from math import ceil, exp, log
from pathlib import Path

import pandas as pd

import perfgrid as pg

ROOT = next(folder for folder in (Path("studies/papers"), Path()) if (folder / "speedup_35.toml").exists())
STUDY, RECORDS = ROOT / "speedup_35.toml", Path(pg.__file__).parent / "validation" / "records"


def rates(*settings):
    """Tokens per second and device of the best layout of each chain at each step."""
    best = pg.best(pg.load_study(STUDY, settings))
    return best.tokens_per_second_per_device.squeeze(drop=True).transpose("step", "under").to_pandas()


chains = rates()
factors = (chains / chains.shift()).fillna(1.0)
totals = chains.iloc[-1] / chains.iloc[0]
papers, today = chains.columns
pd.concat([factors, totals.to_frame("all steps").T]).round(2)

# %%
pg.plot(STUDY)

# %% [markdown]
# ## Measured steps
# Rows of the records, each with its own batch and layout: the factor from A100 to H100 holds a larger batch too.

# %%
records = {}
for name in ("megascale", "mlperf_gpt3_nv", "mlperf_405b_nv", "korthikanti"):
    lines = (RECORDS / f"{name}.jsonl").read_text().splitlines()
    records |= {record["id"]: record for record in map(json.loads, lines)}


def measured_rate(name):
    """Tokens per second and device of a measured training step."""
    work, devices = records[name]["workload"], records[name]["devices"]
    return work["global_batch"] * work["sequence_length"] / records[name]["value"] / devices


runs = {
    "A100, 16 bits, HDR": "megascale-megatron-175b-1024",
    "FP8": "mlperf4.1-gpt3-nvidia-eos_n64_ngc24.09_nemo",
    "B200": "mlperf4.1-gpt3-nvidia-b200_n8_preview_nemo",
}
measured = pd.Series({step: measured_rate(name) for step, name in runs.items()})
published = pg.load_study(STUDY).file.view[0].published[0].values
assert all(abs(measured[step] / value - 1) < 5e-4 for step, value in published.items())
checked = {n: pg.validate(RECORDS / f"{n}.jsonl").dataset() for n in ("megascale", "mlperf_gpt3_nv")}
error = pd.concat([(found.predicted / found.measured).to_series() for found in checked.values()])
predicted = pd.Series({step: measured[step] / error[name] for step, name in runs.items()})
measured_total, predicted_total = (one["B200"] / one["A100, 16 bits, HDR"] for one in (measured, predicted))
four_bits = measured_rate("mlperf5.1-l31405b-nvidia-tyche_ngpu512_ngc25.09_nemo") / measured_rate(
    "mlperf5.0-l31405b-ibm-corewe-carina_ngpu512_ngc25.04_nemo"
)
pd.DataFrame({"measured": measured, "predicted": predicted}).round(0)

# %% [markdown]
# ## Which assumption carries how much
# A factor depends on what was changed before. Formats need chips that have them; all other orders are possible. The
# mean over all of them (of logarithms, so that means multiply to the whole) is the Shapley value with precedence.

# %%
LEVELS = {  # of each quantity that steps change, and the steps from one to the next
    "device": ["a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200", "b200-share-of-a100", "b200-four-bits"],
    "precision": ["bf16", "fp8", "fp4"],
    "scale_out_bandwidth": ["200 Gbit/s", "400 Gbit/s"],
    "scale_up_size": [8, 256],
    "global_batch": [768, 1536],
}
NAMES = [["H100", "H200's memory", "B200", "share of peak as A100", "attention, head in 4 bits"], ["FP8", "FP4"]]
NAMES += [["NDR"], ["NVLink Switch"], ["larger batch"]]
MOST = {0: 0, 1: 1, 2: 1}  # formats by chip; all from B200 on, the last chip only with the last format
states = [
    s
    for s in product(*(range(len(v)) for v in LEVELS.values()))
    if s[1] <= MOST.get(s[0], 2) and (s[0] < 5 or s[1] == 2)
]
zipped = ", ".join(f"{n}={[v[s[i]] for s in states]}" for i, (n, v) in enumerate(LEVELS.items()))
found = rates(f"axes.step={{labels={[str(s) for s in states]}, zip={{{zipped}}}}}")
edges = [(s, (*s[:i], s[i] + 1, *s[i + 1 :]), i) for s in states for i in range(len(LEVELS))]
edges = [(before, after, NAMES[i][before[i]]) for before, after, i in edges if after in states]
ways, left = dict.fromkeys(states, 0) | {states[0]: 1}, dict.fromkeys(states, 0) | {states[-1]: 1}
for before, after, _ in edges:
    ways[after] += ways[before]  # orders that lead there
for before, after, _ in reversed(edges):
    left[before] += left[after]  # and on to the end


def over_orders(chain):
    """The factor of each step: mean over all possible orders, least and most."""
    rows = [(n, log(chain[str(b)] / chain[str(a)]), ways[a] * left[b]) for a, b, n in edges if ways[a] * left[b]]
    table = pd.DataFrame(rows, columns=["step", "least", "orders"])
    table["mean"] = table.least * table.orders / ways[states[-1]]
    table["most"] = table.least
    return table.groupby("step").agg({"mean": "sum", "least": "min", "most": "max"}).map(exp).loc[chains.index[1:]]


orders = pd.concat({name: over_orders(found[name]) for name in chains}, axis=1)
assert all(abs(orders[name, "mean"].prod() / totals[name] - 1) < 1e-5 for name in chains)
print(f"{ways[states[-1]]:,} orders")
orders.round(2)

# %% [markdown]
# ## What cannot be reconstructed
# Cluster, batch and its growth are not in the public text. NVIDIA's own comparison of A100 on HDR, H100 on NDR and H100
# behind NVLink switches had 16,384 devices and 512 sequences. There A100 reaches half of what it does on 1,024 devices,
# and whatever lets the batch grow counts as speed-up. The papers' assumptions bound each rate from above, not the ratio
# of two: today's software loses more on A100 with a small batch, so its ratio can be the larger one.

# %%
SIXTEEN = [1, 2, 4, 8, 16, 32]
LARGE = ["axes.parallelism.devices=[16384]", f"axes.parallelism.tp={SIXTEEN}", f"axes.parallelism.pp={SIXTEEN}"]
growths = {n: [*LARGE, f"axes.step.zip.global_batch={[512] * 6 + [512 * n] * 5}"] for n in (2, 32)}
at_scale = {n: rates(*settings) for n, settings in growths.items()}
strong = pd.DataFrame({f"batch grows {n} times": found.iloc[-1] / found.iloc[0] for n, found in at_scale.items()}).T
batch_carries = (at_scale[32] / at_scale[32].shift()).loc["larger batch"]
assert (batch_carries > factors.loc["B200"]).all()  # more than a chip
pd.concat(
    {
        "speed-up": strong,
        "A100, tokens/s per device": pd.DataFrame({n: at_scale[int(n.split()[2])].iloc[0] for n in strong.index}).T,
    },
    axis=1,
).round(1)

# %%
title = "GPT-3 175B on 16,384 devices, from 512 to 16,384 sequences a step"
pg.plot(pg.load_study(STUDY, growths[32]), "steps", title=title, see="", published=[])

# %% [markdown]
# ## Claims

# %%
reached, hopper = strong[papers].iloc[-1], chains[papers]["NVLink Switch"] / chains[papers].iloc[0]
blackwell = chains[papers]["B200"] / chains[papers]["NVLink Switch"]
peaks, links = 9e15 / 312e12, 900e9 / 25e9
claims = [
    (
        "about 35 times from A100 to B200 [kundu2024]; here in 4 bits, with twice the batch",
        f"**{totals[papers]:.1f} times** under the papers' assumptions on 1,024 devices. On 16,384 devices {strong[papers].iloc[0]:.1f} "
        f"with a batch that grows 2 times, {reached:.1f} with one that grows 32 times: a factor of {batch_carries[papers]:.1f} from the batch",
        f"no, not by the devices alone; within {ceil(100 * abs(reached / 35 - 1))} % where the batch grows 32 "
        "times from A100 to B200; the paper's cluster and batch are not public",
    ),
    (
        "closely following NVIDIA's scaling trend [kundu2024]: 9 from A100 to H100 [hpcwire2022hopper] times 4 from "
        "H100 to GB200 [oodaloop2024blackwell]",
        f"{hopper:.1f} to H100 with FP8 and switches; from there {totals[papers] / hopper:.1f} in 4 bits, {blackwell:.1f} "
        "in 8, on 1,024 devices",
        "no to the first, yes to the second in 4 bits; the first was announced for a mixture of experts on thousands of devices",
    ),
    (
        "peaks of 312 TFLOP/s in 16 bits and 9 PFLOP/s in 4 [nvidia2020ampere, nvidia2025blackwell]; 25 GB/s of "
        "HDR and 900 GB/s of NVLink 5",
        f"{peaks:.1f} and {links:.0f} times",
        f"35 lies between both: it needs an A100 that spends {1 - peaks / 35:.0%} of its step on what B200 does not",
    ),
    (
        "training steps measured on A100, H100 and B200 [jiang2024megascale, mlcommons2025training]",
        f"{measured_total:.1f} times to B200 in 8 bits, {predicted_total:.1f} predicted for the same runs",
        f"within {ceil(100 * abs(predicted_total / measured_total - 1))} %",
    ),
    (
        "Llama 3.1 405B in 4 instead of 8 bits on 512 GB200 [mlcommons2025training], two rounds apart",
        f"{four_bits:.2f} times; FP4 of GPT-3 {factors[today]['FP4']:.2f}",
        f"within {ceil(100 * abs(factors[today]['FP4'] / four_bits - 1))} %",
    ),
]
assert 0.8 < reached / 35 < 1.1 < 35 / totals[papers]
assert peaks < 35 < links
pd.set_option("display.max_colwidth", None)
pd.DataFrame(claims, columns=["stated", "perfgrid", "agreement"])
