"""Measure the search for best designs on up to 10^9 points; ``python -m benchmarks.search``.

For both benchmark grids, from 10^6 to 10^9 points: the best layout, microbatch and recompute mode of every model,
device, fabric, cluster size, memory bandwidth and link bandwidth, each in a process of its own.

* points per CPU-second (user + system) after compilation, every point evaluated with all its constraints
* the cost of a point relative to 10^6 points, and peak memory
* whether the winners are those of brute force, on the grid of 10^6 points
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from perfgrid.engine.plan import Plan
from perfgrid.engine.search import Search
from perfgrid.engine.stages import Evaluation, enable_compilation_cache
from perfgrid.study import Study, load_study

from .__main__ import GRID, GRID_5D, readable

OBJECTIVE = "step_time"
OVER = ("parallelism", "microbatch", "recompute")
GRIDS = {"dense": GRID, "5-D": GRID_5D}
MODEL = {"dense": 'axes.model=["llama-3.1-70b"]', "5-D": 'axes.model=["mixtral-8x22b"]'}  # of fewer than 10^8 points
REST = ('axes.device=["h200-sxm-141gb"]', 'axes.topology=["rail-optimized"]')  # of 10^6 points
# values of the link and of the memory bandwidth
SIZES = {"dense": ((5, 64), (6, 64), (16, 64), (40, 256)), "5-D": ((2, 64), (6, 64), (16, 64), (42, 256))}
EXPONENTS = (6, 7, 8, 9)


def sized(grid: str, exponent: int) -> Study:
    """A benchmark grid of about ten to this power of points: fewer models and devices, or more bandwidths."""
    links, memories = SIZES[grid][exponent - EXPONENTS[0]]
    settings = [
        f'axes.scale_up_bandwidth.scale={{ start = 0.5, stop = 4, num = {links}, spacing = "log" }}',
        f'axes.hbm_bandwidth.scale={{ start = 0.5, stop = 4, num = {memories}, spacing = "log" }}',
    ]
    settings += [MODEL[grid]] if exponent < 8 else []
    settings += REST if exponent == 6 else ()
    return load_study(GRIDS[grid], settings)


def search_of(study: Study) -> Search:
    """The search as `perfgrid.best` sets it up: cluster sizes are apart."""
    layouts = next(a for a in study.space.axes if a.name == "parallelism")
    sizes = np.unique(layouts.columns["devices"], return_inverse=True)[1]
    return Search(study.registry, study.space, OBJECTIVE, OVER, parts=("parallelism", sizes))


def measure(grid: str, exponent: int) -> dict:
    """Rate and memory of one search; shorter ones run several times."""
    enable_compilation_cache()
    start = time.perf_counter()
    study = sized(grid, exponent)
    search = search_of(study)
    ready = time.perf_counter() - start
    points = study.space.points
    repeats = 5 if exponent < 8 else 3 if exponent == 8 else 1
    cpu, wall = [], []
    if repeats > 1:
        search.winners()  # touches every buffer once
    for _ in range(repeats):
        search.evaluation._places.clear()  # a single tile would not be evaluated again
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        winners = search.winners()
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - wall_start)
    return {
        "points": points,
        "groups": int(winners.found.size),
        "feasible_groups": int(winners.found.sum()),
        "tiles": winners.tiles,
        "plan_and_compile_seconds": ready,
        "cpu_seconds": statistics.median(cpu),
        "points_per_cpu_second": points / statistics.median(cpu),
        "points_per_wall_second": points / statistics.median(wall),
        "nanoseconds_per_point": statistics.median(cpu) / points * 1e9,
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def exactness(study: Study) -> dict:
    """Winners of a search against the minima of the whole grid: groups, and how far the worst winner lies off."""
    winners = search_of(study).winners()
    plan = Plan(study.registry, study.space, [OBJECTIVE])
    values = Evaluation(plan).collect()
    score = np.broadcast_to(
        values[OBJECTIVE].reshape(plan.result_shape(OBJECTIVE)[: len(plan.order)]), plan.space.shape
    )
    for constraint in plan.constraints:
        score = np.where(values[constraint].reshape(values[constraint].shape[: len(plan.order)]), score, np.inf)
    score = score.transpose(np.argsort(plan.order))  # the axes of the study
    axes = [a.name for a in study.space.axes]
    layouts = axes.index("parallelism")
    over = tuple(axes.index(name) for name in OVER)
    sizes = np.unique(study.space.axes[layouts].columns["devices"], return_inverse=True)[1]
    least = np.stack(
        [np.min(np.take(score, np.flatnonzero(sizes == size), layouts), axis=over) for size in range(sizes.max() + 1)]
    )
    # groups of a search lie in evaluation order
    groups = [i for i in plan.order if i not in over]
    least = least.transpose(0, *(1 + sorted(groups).index(i) for i in groups))[..., None]
    exists = np.isfinite(least)
    chosen = score[winners.index][exists & winners.found]
    return {
        "points": study.space.points,
        "groups": int(least.size),
        "feasible_points": float(np.isfinite(score).mean()),
        "same_groups_feasible": bool((exists == winners.found).all()),
        "largest_relative_gap": float(np.max(chosen / least[exists & winners.found] - 1, initial=0.0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", nargs=2, metavar=("GRID", "EXPONENT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only[0], int(options.only[1]))))
        return
    results: dict = {}
    for grid in GRIDS:
        for exponent in EXPONENTS:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.search", "--only", grid, str(exponent)],
                env=dict(os.environ),
                capture_output=True,
                text=True,
                check=True,
                cwd=Path(__file__).parents[1],
            )
            figures = json.loads(done.stdout.splitlines()[-1])
            first = results.setdefault(f"{grid} 10^{EXPONENTS[0]}", figures)
            figures["cost_relative_to_10^6"] = figures["nanoseconds_per_point"] / first["nanoseconds_per_point"]
            results[f"{grid} 10^{exponent}"] = figures
    enable_compilation_cache()
    for grid in GRIDS:
        results[f"{grid}, against brute force"] = exactness(sized(grid, EXPONENTS[0]))
    if options.json:
        print(json.dumps(results, indent=1))
        return
    for title, figures in results.items():
        print(title)
        for name, value in figures.items():
            print(f"  {name:34} {readable(value)}")


if __name__ == "__main__":
    main()
