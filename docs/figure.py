"""Draw the README's picture: ``python docs/figure.py quickstart.nc docs/quickstart.png``."""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import xarray as xr

import perfgrid as pg

source, target = sys.argv[1:3]
ds = xr.open_dataset(source)
model, devices = "llama-3.1-405b", 4096
designs = ds.sel(model=model).isel(parallelism=(ds.devices == devices).values)
over = ["parallelism", "topology", "microbatch", "recompute"]

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
time = designs.step_time.where(pg.feasible(designs)).min(over)
for device in time.device.values:
    left.plot(time.hbm_bandwidth, time.sel(device=device), label=device, linewidth=1.8)
left.set(xscale="log", yscale="log", xlabel="HBM bandwidth, times today's", ylabel="step time of the best layout [s]")
left.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
left.minorticks_off()
left.set_yticks([5, 6, 8, 10, 15, 20, 30], ["5", "6", "8", "10", "15", "20", "30"])
left.axvline(1, color="0.7", linewidth=0.8, zorder=0)
left.set_ylim(4.5, 55)
left.legend(fontsize=8, ncols=3)
left.set_title("What faster memory buys", fontsize=11)

one = designs.sel(device="h100-sxm-80gb", topology="rail-optimized", hbm_bandwidth=1.0)
legal = pg.feasible(one, ("illegal",)).broadcast_like(one.step_time)
fits = pg.feasible(one).broadcast_like(one.step_time)
memory = (one.memory_per_device / 2**30).broadcast_like(one.step_time)
for mask, color, label in ((legal & ~fits, "0.8", "exceeds memory"), (fits, None, "fits")):
    shown = mask.values.ravel()
    utilization = one.model_flops_utilization.values.ravel()[shown]
    x = memory.values.ravel()[shown]
    if color:
        right.scatter(x, utilization, s=10, color=color, label=label)
    else:
        tp = one.tp.broadcast_like(one.step_time).values.ravel()[shown]
        for value in sorted(set(tp)):
            right.scatter(x[tp == value], utilization[tp == value], s=16, label=f"tp = {value:.0f}")
right.axvline(80, color="0.4", linewidth=0.8, linestyle="--")
right.set(xscale="log", xlabel="memory per device [GiB]", ylabel="model FLOPs utilisation", ylim=(0, None))
right.set_ylim(top=1.15 * right.get_ylim()[1])
right.legend(fontsize=8, loc="upper left", ncols=4)
right.set_title(f"Every legal layout on {devices:,} x h100-sxm-80gb", fontsize=11)
figure.suptitle(
    f"{model} on {devices:,} devices: {ds.step_time.size:,} designs of studies/quickstart.toml", fontsize=12
)
figure.savefig(target, dpi=110)
