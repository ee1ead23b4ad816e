"""The accelerator of studies/design_accelerator.toml against random designs of equal area and power, and the real die.

Run from the repository's root: python -m benchmarks.design [random designs] [node ...]
"""

from __future__ import annotations

import os
import sys

import numpy as np

from perfgrid import load_study, optimize
from perfgrid.optimizer.described import outputs
from perfgrid.optimizer.optimize import problem_of

STUDY = "studies/design_accelerator.toml"
DEVICE = (
    "peak_bf16_rate",
    "clock_frequency",
    "hbm_bandwidth",
    "hbm_capacity",
    "l2_size",
    "scale_up_bandwidth",
    "scale_out_bandwidth",
    "device_price",
)


def main(count: int = 10_000, nodes: tuple[str, ...] = ("n5",)) -> None:
    """Optimum, best of ``count`` random designs and the shares of the real die, for every node."""
    for node in nodes:
        study, start = load_study(STUDY, [f'axes.node=["{node}"]']), sum(os.times()[:2])
        found, problem = optimize(study, starts=2), problem_of(study)
        spent, names = sum(os.times()[:2]) - start, [k.name for k in problem.knobs.knobs]
        drawn = np.random.default_rng(1).random((count, len(names)))
        value, broken, layout = problem.screen(np.concatenate((problem.knobs.start()[None], drawn)))
        value, broken, layout = value[:, 0], broken[:, 0], layout[:, 0]
        best = 1 + int(np.argmin(np.where(broken > 0, np.inf, value)[1:]))
        print(
            f"{node}: optimum {found.objective.item():.4f} USD, KKT residual {found.kkt_residual.item():.0e}, "
            f"{found.attrs['evaluations']:,} evaluations, {spent:.0f} CPU seconds; best of {count:,} random designs "
            f"{value[best]:.4f} ({(broken[1:] == 0).mean():.1%} of them keep all limits); shares of the real die "
            f"{value[0]:.4f}{' (which break a limit)' if broken[0] > 0 else ''}"
        )
        points = np.stack((problem.knobs.start(), drawn[best - 1]))
        both = outputs(problem, points, np.zeros(2, int), layout[[0, best]])
        first = problem.parts[0].name
        print(f"{'':28}{'real die':>12}{'optimum':>12}{'random':>12}")
        for name in DEVICE:
            real, random = both[0][0][name]
            print(f"{name:28}{real:12.4g}{found[f'{first}.{name}'].item():12.4g}{random:12.4g}")
        for part, (numbers, _) in zip(problem.parts, both, strict=True):
            real, random = numbers[part.objective]
            optimum = found[f"{part.name}.{part.objective}"].item()
            chosen = {axis: found.coords[f"{part.name}.{axis}"].item() for axis in part.chosen}
            print(f"{part.name:28}{real:12.4f}{optimum:12.4f}{random:12.4f}   {chosen}")
        real, random = (problem.knobs.named(p) for p in points)
        for name in names:
            print(f"{name:28}{real[name]:12.4f}{found[name].item():12.4f}{random[name]:12.4f}")
        for split, moved in found.moved.to_series().items():
            free = sum(real[k.name] for k in problem.knobs.knobs if k.leaf.quantity == split)
            print(
                f"{split}: {moved:.3f} of the whole lies elsewhere than on the real die, {moved / free:.0%} of what "
                "was free to move"
            )
        prices = found.shadow_price.to_series()
        print("what presses:", {str(n): round(float(v), 4) for n, v in prices.items() if abs(v) > 1e-4}, flush=True)


if __name__ == "__main__":
    numbers, labels = [int(a) for a in sys.argv[1:] if a.isdigit()], [a for a in sys.argv[1:] if not a.isdigit()]
    main(*numbers[:1] or (10_000,), nodes=tuple(labels) or ("n5",))
