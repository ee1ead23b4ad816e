"""Measure factored results and reductions on 10^9 points; ``python -m benchmarks.factored``.

On the benchmark grid of 10^9 points with its 20 outputs, every figure from a process of its own:

* writing the factored result: seconds, bytes, how many times less than the values expanded
* opening it and plotting one slice (memory bandwidth against link bandwidth) with an empty compilation cache and with a
  filled one: CPU and wall seconds of this, of the imports before it, and peak memory
* the frontier between two objectives, and the quantiles of one quantity, over all designs of a model, device and fabric
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

OVER = ("microbatch", "recompute", "parallelism", "hbm_bandwidth", "scale_up_bandwidth")


class Clock:
    """CPU and wall seconds since it was made or read."""

    def __init__(self):
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def read(self) -> list[float]:
        """[CPU, wall]."""
        found = [time.process_time() - self.cpu, time.perf_counter() - self.wall]
        self.cpu, self.wall = time.process_time(), time.perf_counter()
        return found


def write(path: str) -> dict[str, Any]:
    from perfgrid.results.factored import save_factored

    from .search import sized

    study, clock = sized("dense", 9), Clock()
    save_factored(study, path, overwrite=True)
    size, expanded = os.path.getsize(path), study.plan().result_bytes()
    return {"points": study.space.points, "cpu_and_wall": clock.read(), "bytes": size, "times_less": expanded / size}


def plot(path: str) -> dict[str, Any]:
    clock = Clock()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    import perfgrid as pg

    imports = clock.read()
    result = pg.open_result(path)
    opened = clock.read()
    fixed = {d: 1 for d in result.step_time.dims if d not in ("hbm_bandwidth", "scale_up_bandwidth")}
    result.step_time.isel(fixed).plot()
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        plt.savefig(file)
    return {"imports_cpu_and_wall": imports, "open_cpu_and_wall": opened, "slice_cpu_and_wall": clock.read()}


def frontier(_: str) -> dict[str, Any]:
    import perfgrid as pg

    from .search import sized

    study, clock = sized("dense", 9), Clock()
    found = pg.pareto(study, ["step_time", "memory_per_device"], over=OVER)
    return {"points": study.space.points, "designs": found.sizes["design"], "cpu_and_wall": clock.read()}


def quantiles(_: str) -> dict[str, Any]:
    import perfgrid as pg

    from .search import sized

    study, clock = sized("dense", 9), Clock()
    found = pg.distribution(study, "step_time", over=OVER)
    return {"points": study.space.points, "feasible": int(found.designs.sum()), "cpu_and_wall": clock.read()}


PARTS = {"write": write, "plot": plot, "frontier": frontier, "quantiles": quantiles}


def apart(part: str, path: str, cache: str) -> dict[str, Any]:
    """One part in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.factored", "--only", part, path],
        env=os.environ | {"PERFGRID_CACHE": cache},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.factored", description=__doc__)
    parser.add_argument("--parts", default="write,plot,frontier,quantiles", help="which parts, separated by commas")
    parser.add_argument("--only", nargs=2, metavar=("PART", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        figures = PARTS[options.only[0]](options.only[1])
        figures["peak_memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(figures))
        return
    with tempfile.TemporaryDirectory() as folder:
        path, results = f"{folder}/grid.pgf", {}
        for part in options.parts.split(","):
            results[f"{part}, empty cache"] = apart(part, path, f"{folder}/cache-{part}")
            results[f"{part}, filled cache"] = apart(part, path, f"{folder}/cache-{part}")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
