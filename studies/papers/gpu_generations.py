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
# # A100, H100, H200, B200: computing, memory, communication
#
# GPT-3 175B on 1,024 devices of each generation with the best layout of each, one change at a time. Kundu et al. 2024
# dissect the same generations; [speedup_35](speedup_35.ipynb) takes their 35 times apart.
#
# `perfgrid run studies/papers/gpu_generations.toml`; `perfgrid plot studies/papers/gpu_generations.toml -o split.png`

# %%
import json
from math import ceil
from pathlib import Path

import pandas as pd

import perfgrid as pg

ROOT = next(folder for folder in (Path("studies/papers"), Path()) if (folder / "gpu_generations.toml").exists())
study = pg.load_study(ROOT / "gpu_generations.toml")
result = pg.evaluate(study)
best = pg.best(study).squeeze()
times = best.step_time.to_series()
speedup = times.iloc[0] / times
best[["step_time", "model_flops_utilization"]].to_dataframe().filter(["parallelism", "step_time"]).assign(
    speedup=speedup
)

# %% [markdown]
# ## The split
# Chip: arithmetic and the memories on the chip, which feed it. Memory: HBM. Communication: what nothing hides. The rest
# are launches and the host, pipeline bubbles, the optimizer and stragglers. A kernel's time is divided among its
# resources by their chances to be the slowest. On A100 L2 and arithmetic take about equally long: without any limit of L2
# the step is hardly shorter (below).

# %%
shares = best[[name for name in best if str(name).endswith("_fraction")]].to_dataframe().filter(like="_fraction")
split = pd.DataFrame(
    {
        "chip": shares.arithmetic_fraction + shares.on_chip_fraction,
        "memory": shares.hbm_fraction,
        "communication": shares.communication_fraction,
        "bubble": shares.bubble_fraction,
        "launches and host": shares.launch_fraction + shares.host_fraction,
    }
)
split["other"] = 1 - split.sum(axis=1)
seconds = split.mul(times, axis=0)
assert split.other.between(0, 0.05).all()
split.round(2)

# %%
pg.plot(result, "split")

# %%
first = dict(system=best.system.values[0], microbatch=best.microbatch.values[0], parallelism=best.parallelism.values[0])
fast_l2 = pg.evaluate(pg.load_study(ROOT / "gpu_generations.toml", ['device.a100-sxm-80gb.l2_bandwidth="1000 TB/s"']))
saved = 1 - float(fast_l2.step_time.sel(first).squeeze()) / times.iloc[0]
assert saved < 0.03 < shares.on_chip_fraction.iloc[0]
print(
    f"A100: memory on the chip accounts for {shares.on_chip_fraction.iloc[0]:.0%} of the step; without the limit of L2"
    f" {saved:.1%} is saved"
)

# %% [markdown]
# ## From A100 to GB200, part by part

# %%
gain = (seconds.iloc[0] / seconds.iloc[-1]).rename("speed-up of each part")
gain.round(1)

# %%
pg.plot(result, "waterfall")

# %% [markdown]
# ## Beside what is published
# MLPerf has one model on H100, H200, B200 and GB200: Llama 3.1 405B in 8 bits, on 256 to 512 devices.

# %%
records = Path(pg.__file__).parent / "validation" / "records" / "mlperf_405b_nv.jsonl"
runs = {record["id"]: record for record in map(json.loads, records.read_text().splitlines())}
names = {
    "H100": "mlperf5.0-l31405b-nvidia-eos-dfw_n64_ngc25.01_nemo",
    "H200": "mlperf5.0-l31405b-nebius-nebius_soperator_8xh200_n64_ngc25.01_nemo",
    "B200": "mlperf5.1-l31405b-university-hpg.dgxb200x8.n32",
    "GB200 NVL72": "mlperf5.0-l31405b-ibm-corewe-carina_ngpu512_ngc25.04_nemo",
}
spent = pd.Series(
    {d: runs[n]["value"] * runs[n]["devices"] / runs[n]["workload"]["global_batch"] for d, n in names.items()}
)
measured, here = spent.shift() / spent, times[[f"{device} NDR fp8" for device in names]].set_axis(list(names))
here = here.shift() / here
steps = pd.DataFrame({"Llama 3.1 405B, measured": measured, "GPT-3 175B, here": here}).iloc[1:]
steps.round(2)

# %% [markdown]
# ## Claims

# %%
h200, b200, gb200 = measured.iloc[1:]
claims = [
    (
        "A100 to B200 about 35 times in 4 bits, dissected into compute, memory and network [kundu2024]; here in the usual "
        "software, with the same batch on both",
        f"{speedup['B200 NDR fp8']:.1f} times to B200 in 8 bits, {speedup.iloc[-1]:.1f} to GB200 in 4: chip "
        f"{gain.chip:.0f} times, HBM {gain.memory:.1f}, communication {gain.communication:.1f}, host {gain['launches and host']:.1f}",
        "no: less than half; speedup_35 has the papers' assumptions and each step of the chain",
    ),
    (
        f"H100 to B200, each over the one before, Llama 3.1 405B: H200 {h200:.2f} times H100, B200 {b200:.2f} times H200, GB200 "
        f"{gb200:.2f} times B200 [mlcommons2025training]",
        f"{here['H200']:.2f}, {here['B200']:.2f} and {here['GB200 NVL72']:.2f} times, GPT-3 175B (the model of this study)",
        f"within {ceil(100 * (here / measured - 1).abs().max())} %, though of another model",
    ),
]
assert (here / measured - 1).abs().max() < 0.1
pd.set_option("display.max_colwidth", None)
pd.DataFrame(claims, columns=["stated", "perfgrid", "agreement"])
