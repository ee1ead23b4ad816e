"""Measure the evaluator on ``grid.toml`` and ``grid_5d.toml``; every figure comes from this run.

Rates are per CPU-second (user + system).

* full-grid output values per CPU-second, outputs materialised in memory, and as a fraction of the store bandwidth
* the same sweep without the link axis
* the ratio to plain NumPy broadcasting of the same formulas on the same points
* compile time cold and with the persistent cache, and peak memory, each in a process of its own
* equation counts per stage
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from perfgrid.engine.plan import Plan
from perfgrid.engine.stages import Evaluation, enable_compilation_cache
from perfgrid.study import Study, load_study

GRID = Path(__file__).with_name("grid.toml")
GRID_5D = Path(__file__).with_name("grid_5d.toml")
GRIDS = {"grid": GRID, "5-D grid": GRID_5D}
QUICKSTART = Path(__file__).parents[1] / "studies" / "quickstart.toml"
WITHOUT_LINK = ("axes.scale_up_bandwidth.scale=[1.0]",)


def full_grid_outputs(plan: Plan) -> list[str]:
    """The outputs that depend on every study column: as many distinct values as points."""
    return [n for n in plan.outputs if plan.quantities[n].points == plan.space.points]


def store_bandwidth(arrays: int, values: int, repeats: int = 7) -> float:
    """Bytes per CPU-second that this machine stores into as many arrays as the evaluation writes (one thread)."""
    buffers = [np.zeros(values, np.float32) for _ in range(arrays)]
    rates = []
    for repeat in range(repeats):
        start = time.process_time()
        for buffer in buffers:
            buffer.fill(repeat)
        rates.append(arrays * values * 4 / (time.process_time() - start))
    return statistics.median(rates)


def copy_bandwidth(arrays: int, values: int, repeats: int = 7) -> float:
    """Bytes per CPU-second written where as many are read: what an element-wise output costs at least."""
    buffers = [np.zeros(values, np.float32) for _ in range(arrays)]
    rates = []
    for _ in range(repeats):
        start = time.process_time()
        for source, target in itertools.pairwise(buffers):
            np.copyto(target, source)
        rates.append((arrays - 1) * values * 4 / (time.process_time() - start))
    return statistics.median(rates)


def equations_once(plan: Plan) -> int:
    """Array operations of the small stage, as JAX would count them."""
    count = 0
    for quantity in plan.quantities.values():
        if quantity.small and quantity.node is not None:
            arguments = [plan.quantities[a] for a in quantity.node.arguments]
            shapes = [
                jax.ShapeDtypeStruct((1,) * len(a.key) + a.inner, bool if a.flag else np.float32) for a in arguments
            ]
            count += len(jax.make_jaxpr(quantity.node.function)(*shapes).jaxpr.eqns)
    return count


def evaluate_all(evaluation: Evaluation) -> float:
    """CPU-seconds of all tiles. Nothing is taken over from the run before, as the values of a tile that stays would."""
    evaluation._places.clear()
    start = time.process_time()
    for tile in evaluation.run():
        jax.block_until_ready(tile.values)
    return time.process_time() - start


def temporaries(evaluation: Evaluation) -> dict[str, int]:
    """Compiled functions with more than 1 MiB of arrays of their own, and these bytes: fresh memory in every tile.

    A quotient or a gather that two expressions of one function read is such an array.
    """
    found = {k.quantity.name: k.compiled.memory_analysis().temp_size_in_bytes for k in evaluation.kernels}
    return {name: size for name, size in found.items() if size > 2**20}


def measure(study: Study, repeats: int) -> dict:
    """Rates of the tile stage in the steady state (all tiles, buffers reused) and of a whole evaluation."""
    start = time.perf_counter()
    plan = study.plan()
    planned = time.perf_counter() - start
    start = time.perf_counter()
    evaluation = Evaluation(plan)
    prepared = time.perf_counter() - start
    full = full_grid_outputs(plan)
    for _ in evaluation.run():  # touches every buffer once
        pass
    cpu, wall = [], []
    for _ in range(repeats):
        wall_start = time.perf_counter()
        cpu.append(evaluate_all(evaluation))
        wall.append(time.perf_counter() - wall_start)
    seconds = statistics.median(cpu)
    points = plan.space.points
    tile_values = int(np.prod(evaluation.tiles.shape))
    store, copy = store_bandwidth(len(full), tile_values), copy_bandwidth(len(full), tile_values)
    written = (
        sum(int(np.prod(k.shape)) * (1 if k.quantity.flag else 4) for k in evaluation.kernels) * evaluation.tiles.count
    )
    on_grid = [k.quantity.name for k in evaluation.kernels]
    return {
        "points": points,
        "layouts": len(next(a for a in plan.space.axes if a.name == "parallelism")),
        "outputs": len(plan.outputs),
        "full_grid_outputs": len(full),
        "tiles": evaluation.tiles.count,
        "tile_points": tile_values,
        "cpu_seconds": seconds,
        "cpu_seconds_range": [min(cpu), max(cpu)],
        "wall_seconds": statistics.median(wall),
        "full_grid_values_per_cpu_second": points * len(full) / seconds,
        "points_per_cpu_second": points / seconds,
        "points_per_wall_second": points / statistics.median(wall),
        "store_bandwidth": store,
        "fraction_of_store_bandwidth": points * len(full) * 4 / seconds / store,
        "copy_bandwidth": copy,
        "fraction_of_copy_bandwidth": points * len(full) * 4 / seconds / copy,
        "bytes_written_per_cpu_second": written / seconds,
        "temporary_bytes": temporaries(evaluation),
        "plan_seconds": planned,
        "prepare_seconds": prepared,
        "small_stage_seconds": evaluation.seconds["small"],
        "quantities": {
            "given": len(plan.graph.leaves),
            "once": sum(q.small and q.node is not None for q in plan.quantities.values()),
            "on the grid": sum(not q.small for q in plan.quantities.values()),
            "materialised": len(on_grid),
        },
        "equations": {"once": equations_once(plan), "on the grid": sum(k.equations for k in evaluation.kernels)},
        "equations by kernel": {k.quantity.name: k.equations for k in evaluation.kernels},
    }


def numpy_ratio(study: Study, repeats: int) -> dict:
    """CPU time of plain NumPy broadcasting (no factoring, no stages) over that of the evaluator, same points."""
    plan = study.plan()
    evaluation = Evaluation(plan)
    for _ in evaluation.run():
        pass
    compiled = [evaluate_all(evaluation) for _ in range(repeats)]
    plain = []
    for _ in range(repeats):
        start = time.process_time()
        broadcast(plan)
        plain.append(time.process_time() - start)
    return {
        "points": plan.space.points,
        "evaluator_cpu_seconds": statistics.median(compiled),
        "numpy_cpu_seconds": statistics.median(plain),
        "ratio": statistics.median(plain) / statistics.median(compiled),
    }


def broadcast(plan: Plan) -> dict[str, np.ndarray]:
    """Every formula on naturally broadcast float32 arrays: what a user would write without an engine."""
    space, rank = plan.space, len(plan.space.axes)
    values: dict[str, np.ndarray] = {}
    for name in plan.graph.leaves:
        result: np.ndarray | None = None
        for axis, array in space.parts(name):
            trailing = (1,) * (len(plan.registry.inner) - array.ndim + 1) + array.shape[1:]
            lead = tuple(len(array) if i == axis else 1 for i in range(rank))
            part = array.astype(array.dtype if array.dtype == bool else np.float32).reshape(lead + trailing)
            result = part if result is None else result * part
        assert result is not None
        values[name] = result
    readers = {n: len(r) for n, r in plan.graph.readers().items()}
    with np.errstate(all="ignore"):
        for node in plan.graph.nodes.values():
            values[node.name] = np.asarray(node.function(*(values[a] for a in node.arguments)))
            for argument in set(node.arguments):
                readers[argument] -= 1
                if readers[argument] == 0 and argument not in plan.wanted:
                    del values[argument]
    return values


def child(arguments: list[str], cache: str) -> dict:
    """Run this module in a fresh process and read its figures."""
    environment = {**os.environ, "PERFGRID_CACHE": cache}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    return json.loads(done.stdout.splitlines()[-1]) | {"process_seconds": time.perf_counter() - start}


def compile_once(path: Path) -> dict:
    """Time from nothing to a ready evaluation, and the memory of evaluating every tile."""
    start = time.perf_counter()
    enable_compilation_cache()
    study = load_study(path)
    plan = study.plan()
    ready = time.perf_counter()
    evaluation = Evaluation(plan)
    compiled = time.perf_counter()
    for tile in evaluation.run():
        jax.block_until_ready(tile.values)
    return {
        "plan_seconds": ready - start,
        "compile_seconds": evaluation.seconds["compile"],
        "prepare_seconds": compiled - ready,
        "run_seconds": time.perf_counter() - compiled,
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def command(path: Path, cache: str, folder: str) -> dict:
    """The whole ``perfgrid run`` of a study as a user sees it: wall seconds and peak memory."""
    target = Path(folder) / "result.nc"
    start = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "perfgrid", "run", str(path), "-o", str(target), "--overwrite"],
        env={**os.environ, "PERFGRID_CACHE": cache},
        capture_output=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_memory": after.ru_maxrss * 1024,  # of the largest child so far
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--compile-once", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile_once:
        print(json.dumps(compile_once(options.compile_once)))
        return
    results: dict = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "jax": jax.__version__,
            "device": jax.devices()[0].device_kind,
        }
    }
    with tempfile.TemporaryDirectory() as folder:
        cache = str(Path(folder) / "cache")
        results["quickstart cold"] = command(QUICKSTART, cache, folder)
        results["quickstart again"] = command(QUICKSTART, cache, folder)
        for title, grid in GRIDS.items():
            cache = str(Path(folder) / title)
            results[f"{title}: compile cold"] = child(["--compile-once", str(grid)], cache)
            results[f"{title}: compile cached"] = child(["--compile-once", str(grid)], cache)
    enable_compilation_cache()
    for title, grid in GRIDS.items():
        results[title] = measure(load_study(grid), options.repeats)
    results["grid without link axis"] = measure(load_study(GRID, WITHOUT_LINK), options.repeats)
    small = ("axes.hbm_bandwidth.scale=[0.5, 1.0, 2.0, 4.0]", "axes.scale_up_bandwidth.scale=[1.0, 2.0]")
    results["against NumPy"] = numpy_ratio(load_study(GRID, small), max(1, options.repeats // 3))
    if options.json:
        print(json.dumps(results, indent=1))
        return
    for title, figures in results.items():
        print(title)
        for name, value in figures.items():
            print(f"  {name:34} {readable(value)}")


def readable(value: object) -> str:
    """A figure of four digits, lists and tables on one line."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {readable(v)}" for k, v in value.items())
    if isinstance(value, list):
        return " .. ".join(readable(v) for v in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
