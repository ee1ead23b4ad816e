"""The accelerator of studies/design_accelerator.toml against random designs of equal area, power and cost, and the die.

Run from the repository's root: python benchmarks/design.py [node] [random designs]
"""

from __future__ import annotations

import sys

import numpy as np

from perfgrid import load_study, optimize
from perfgrid.optimizer.optimize import problem_of

PARTS = ("hbm_bandwidth", "peak_bf16_rate", "clock_frequency", "l2_size", "scale_up_bandwidth", "scale_out_bandwidth")


def main(node: str = "n5", count: int = 10_000) -> None:
    study = load_study("studies/design_accelerator.toml", [f'axes.node=["{node}"]'])
    found = optimize(study, starts=2)
    problem = problem_of(study)
    knobs = problem.knobs.knobs
    designs = np.random.default_rng(1).random((count, len(knobs)))
    value, broken, _ = problem.screen(designs)
    kept = np.where(broken[:, 0] > 0, np.inf, value[:, 0])
    best, stated = problem.knobs.named(designs[np.argmin(kept)]), problem.knobs.named(problem.knobs.start())
    start, start_broken, _ = problem.screen(problem.knobs.start()[None])
    print(f"{node}: optimum {found.objective.item():.4f} USD, KKT residual {found.kkt_residual.item():.1e}, "
          f"{found.attrs['evaluations']:,} evaluations; the best of {count:,} random designs {kept.min():.4f} "
          f"({np.isfinite(kept).mean():.0%} of them keep all limits); the shares of the real die "
          f"{start[0, 0]:.4f}{'' if start_broken[0, 0] == 0 else ' (infeasible)'}")  # fmt: skip
    for part in problem.parts:
        layout = found.coords[f"{part.name}.parallelism"].item()
        print(part.name, layout, {p: float(f"{found[f'{part.name}.{p}'].item():.4g}") for p in PARTS})
        print("  ", {q: float(f"{found[f'{part.name}.{q}'].item():.4g}") for q in
                     ("step_time", "cost_per_million_tokens", "device_price", "model_flops_utilization")})  # fmt: skip
    print(f"{'share':26}{'real die':>10}{'optimum':>10}{'random':>10}")
    for knob in knobs:
        shares = (stated[knob.name], found[knob.name].item(), best[knob.name])
        print(f"{knob.name:26}" + "".join(f"{share:10.4f}" for share in shares))
    for split in ("area_split", "power_split", "edge_split"):
        names = [k.name for k in knobs if k.leaf.quantity == split]
        moved = 0.5 * sum(abs(found[n].item() - stated[n]) for n in names)
        print(f"{split}: {moved:.3f} of the whole lies elsewhere than on the real die, "
              f"{moved / sum(stated[n] for n in names):.0%} of what was free to move")  # fmt: skip
    pressing = found.shadow_price
    print({str(n): round(float(v), 4) for n, v in zip(pressing.constraint.values, pressing.values, strict=True)
           if abs(v) > 1e-4})  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "n5", int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)
