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
# # Networks of every kind, at equal bandwidth and at equal cost
#
# 4,096 H100 in domains of 8 train a mixture and a dense model on nine kinds of networks, each with the fastest
# collectives that its links allow. At equal bandwidth a device has 400 Gbit/s; at equal cost the rate that the price of
# rails buys, where switches and transceivers cost in proportion to the rate of their ports. Devices route on a torus or
# mesh, and their routers cost nothing here.

# %%
from pathlib import Path

import pandas as pd

import perfgrid as pg

pd.set_option("display.max_colwidth", None)
ROOT = next(folder for folder in (Path("studies/papers"), Path()) if (folder / "topologies.toml").exists())
study = pg.load_study(ROOT / "topologies.toml")
result = pg.evaluate(study)
best = pg.best(study).squeeze()
steps = best.step_time.stack(column=("model", "network_sizing")).to_pandas()
steps.round(2)

# %% [markdown]
# Every network is priced, or flagged: 511 links, or 21 of a HyperX without routers, are more than the lanes of a port.

# %%
flat = result.isel(parallelism=0, drop=True).squeeze()
price = flat.network_cost_per_device.sel(network_sizing="rate").to_series()
rate = flat.network_rate.sel(network_sizing="budget").to_series() * 8 / 1e9
built = best.found.astype(bool).all(["model", "network_sizing"]).to_series()
assert (flat.ports_have_lanes.all("network_sizing").to_series().astype(bool) == built).all()
assert set(built.index[~built]) == {"hyperx-of-devices-512", "full-mesh-of-devices-512"}
assert (abs(flat.network_cost_per_device.sel(network_sizing="budget") / 4250 - 1) < 1e-5).all()
pd.DataFrame({"built": built, "USD per device at 400 Gbit/s": price.round(), "Gbit/s for 4,250 USD": rate.round()})

# %%
pg.plot(result, "steps")

# %%
pg.plot(result, "cost")

# %% [markdown]
# ## All-to-all and all-reduce of all devices

# %%
SIDES = ("first", "second", "third", "fourth")
OUTPUTS = ["algorithm_bandwidth", "network_cost_per_device", "network_switches", "network_router_ports"]


def collectives(axes, **parameters):
    """Bandwidth of a collective and price of the network."""
    axes = {"device": ["h100-sxm-80gb"], "collective": ["all_to_all"]} | axes
    parameters |= {"message_size": "16 GiB"}
    made = pg.Study.make(workload="collectives", outputs=OUTPUTS, axes=axes, workload_parameters=parameters)
    return pg.evaluate(made).squeeze()


all_devices = {
    "topology": list(built.index[built]),
    "collective": ["all_to_all", "all_reduce"],
    "network_sizing": ["rate", "budget"],
}
shares = collectives(all_devices, devices=4096, group_size=4096, network_budget="4250 USD").algorithm_bandwidth / 1e9
shares = shares.stack(column=("collective", "network_sizing")).to_pandas()
shares.round(1)

# %% [markdown]
# ## Published orderings
# Each network has 16 k endpoints without domains, as its authors compare them; copper inside a group of neighbours.


# %%
def networks(domain, rows, **axes):
    """Bandwidth and price of networks stated as name: (devices, kind, sides, global links)."""
    columns = {
        "devices": [row[0] for row in rows.values()],
        "group_size": [row[0] for row in rows.values()],
        "tier_kind": [{"scale_up": "switch", "scale_out": row[1]} for row in rows.values()],
        "scale_out_sides": [dict.fromkeys(SIDES, 0) | dict(zip(SIDES, row[2])) for row in rows.values()],
        "tier_global_links": [{"scale_up": 0, "scale_out": row[3]} for row in rows.values()],
        "tier_size_limit": [{"scale_up": domain, "scale_out": 0}] * len(rows),
    }
    return collectives({"topology": ["rails"], "network": {"labels": list(rows), "zip": columns}} | axes)


rows = {
    "dragonfly": (16_384, "dragonfly", (16, 32, 32), 16),
    "butterfly": (17_424, "flattened_butterfly", (11, 11, 12, 12), 0),
    "clos": (16_384, "switch", (16_384,), 0),
}
sixteen = networks(1, rows, copper_reach=["none", "group"])
usd = sixteen.network_cost_per_device.to_pandas()
used = (sixteen.network_switches * sixteen.network_router_ports).to_series()
ports = used / pd.Series({name: row[0] for name, row in rows.items()})
uniform = sixteen.algorithm_bandwidth.to_series()
assert uniform.min() > 0.98 * uniform.max()  # equal performance on uniform traffic
usd.round().join(ports.round(2).rename("ports of switches per device"))

# %%
saved = {}
for devices, domain in ((512, 8), (4096, 8), (16_384, 256)):
    pair = {kind: (devices, kind, (devices // domain,), 0) for kind in ("switch", "rail_only")}
    found = networks(domain, pair).network_cost_per_device.to_series()
    saved[devices, domain] = 1 - found.rail_only / found.switch
last = {"rail_only": (4096, "rail_only", (512,), 0)}
overlapped, one_by_one = (
    collectives({"topology": ["rail-only"]}, devices=4096, group_size=4096, algorithm=how).algorithm_bandwidth.item()
    for how in ("rail_forward", "hierarchical")
)
tpus = {"device": ["tpu-v4"], "topology": ["tpu-torus-4x4x4"], "shape": {"labels": ["torus", "twisted"]}}
tpus["shape"]["zip"] = {"tier_kind": [{"scale_up": kind, "scale_out": "rail"} for kind in ("torus", "twisted_torus")]}
sides = {128: (4, 4, 8, 0), 256: (4, 8, 8, 0)}
twisted = {}
for size, lengths in sides.items():
    axes = tpus | {"scale_up_sides": [dict(zip(SIDES, lengths))]}
    times = collectives(axes, devices=size, group_size=size).algorithm_bandwidth.to_series()
    twisted[size] = times.twisted / times.torus
saved, overlapped / one_by_one - 1, twisted

# %%
copper, money = usd.loc[:, "group"], lambda a, b: 1 - usd.loc[a] / usd.loc[b]
to_butterfly, to_clos = money("dragonfly", "butterfly"), money("dragonfly", "clos")
equal, bought = (steps.xs(how, axis=1, level="network_sizing") for how in ("rate", "budget"))
torus, rails = shares.loc["torus-512"], shares.loc["rails"]
claims = [
    (
        "16 k nodes: a dragonfly costs 20 % less than a flattened butterfly and 52 % less than a folded Clos "
        "[kim2008dragonfly]",
        f"{to_butterfly['group']:.0%} and {to_clos['group']:.0%} less with copper inside groups; {to_butterfly['none']:.0%} "
        f"and {to_clos['none']:.0%} with optics everywhere",
        "order agrees with copper: its authors count on cheap short cables; ports of switches weigh more today",
    ),
    (
        "a flattened butterfly has about half the cost of a Clos of its performance [kim2007butterfly]",
        f"{1 - money('butterfly', 'clos')['group']:.0%} of its cost",
        "order agrees; ports of switches, of which it needs fewer only by "
        f"{1 - ports.butterfly / ports.clos:.0%}, weigh more today",
    ),
    (
        "HyperX performs as well as a folded Clos with fewer switches [ahn2009hyperx]",
        f"{ports.butterfly:.2f} instead of {ports.clos:.2f} ports of switches per device at "
        f"{uniform.butterfly / uniform.clos:.1%} of the all-to-all bandwidth",
        "agrees in ports; switches are more but smaller, as routers here have single links",
    ),
    (
        "rail-only costs 38 to 77 % less than a Clos network at the same training speed [wang2023railonly]",
        f"{min(saved.values()):.0%} to {max(saved.values()):.0%} less; steps differ by "
        f"{(equal.loc['rail-only'] / equal.loc['clos'] - 1).abs().max():.1%}",
        "within 6 percentage points",
    ),
    (
        "all-to-all by forwarding takes 8.2 to 11.2 % longer [wang2023railonly]",
        f"{overlapped / one_by_one - 1:.1%} if the domain forwards afterwards, nothing if it does meanwhile",
        "agrees",
    ),
    (
        "twisted tori speed up all-to-all 1.63 times (4 x 4 x 8) and 1.31 times (4 x 8 x 8) [jouppi2023tpuv4]",
        f"{twisted[128]:.2f} and {twisted[256]:.2f} times",
        f"within {max(twisted[128] / 1.63, twisted[256] / 1.31) - 1:.0%}; all shortest paths share evenly here",
    ),
    (
        "trees such as rail-optimised networks are very expensive, tori lack bisection bandwidth [feng2025railx]",
        f"rails cost {price['rails'] / price['torus-512']:.1f} times a torus; all-to-all at equal bandwidth "
        f"{rails['all_to_all', 'rate']:.0f} against {torus['all_to_all', 'rate']:.0f} GB/s",
        "agrees",
    ),
    (
        "topologies with collectives of their own change training performance [guo2025]",
        f"from the fastest to the slowest network a step of DeepSeek-V3 takes {equal['deepseek-v3'].max() / equal['deepseek-v3'].min() - 1:.0%} "
        f"longer at equal bandwidth, {bought['deepseek-v3'].max() / bought['deepseek-v3'].min() - 1:.0%} at equal cost, where the torus is first",
        "agrees; a torus needs no switches, and what its routers cost in the devices is not known",
    ),
    ("a Slim Fly costs about a quarter less than a dragonfly [besta2014slimfly]", "no such kind of network", "not modelled"),
]
assert to_butterfly["group"] > 0.1 and to_clos["group"] > 0.4 and money("butterfly", "clos")["group"] > 0.25
assert 0.3 < min(saved.values()) < 0.4 and 0.7 < max(saved.values()) < 0.78
assert 0.08 < overlapped / one_by_one - 1 < 0.13
assert bought.idxmin().eq("torus-512").all() and equal.idxmax().eq("mesh-512").all()
pd.DataFrame(claims, columns=["stated", "perfgrid", "agreement"])
