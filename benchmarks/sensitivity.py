"""Measure derivatives on a grid of a million points; ``python -m benchmarks.sensitivity``.

18 hardware parameters and 3 outputs that all depend on them, on the dense benchmark grid of 10^6 points (one model, one
device, one fabric), in one process:

* elasticities per CPU-second (user + system) of the tile stage and of everything from a plan to arrays
* both as multiples of the time of the values alone
* time to compile, with an empty cache the first time
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np

from perfgrid.engine.autodiff.parameters import parameters_of
from perfgrid.engine.autodiff.sensitivity import Sensitivity
from perfgrid.engine.execution.evaluation import Evaluation, enable_compilation_cache
from perfgrid.study.selection import asking

from .__main__ import readable
from .evaluate import evaluate_all
from .grids import sized

OUTPUTS = ("step_time", "cost_per_training_run", "step_energy")
PARAMETERS = (
    "peak_bf16_rate",
    "matrix_efficiency",
    "l2_bandwidth",
    "hbm_bandwidth",
    "hbm_efficiency",
    "launch_overhead",
    "vector_rate",
    "special_function_rate",
    "library_efficiency",
    "scale_up_bandwidth",
    "scale_out_bandwidth",
    "scale_up_efficiency",
    "scale_out_efficiency",
    "tier_oversubscription[scale_up]",
    "tier_oversubscription[scale_out]",
    "tier_hop_latency[scale_up]",
    "tier_hop_latency[scale_out]",
    "device_variation",
)


def _median(measured: Callable[[], object], repeats: int) -> float:
    """CPU-seconds of a call, the median."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        measured()
        found.append(time.process_time() - start)
    return statistics.median(found)


def _tiles(evaluation: Sensitivity) -> None:
    """Every tile of every chunk of parameters."""
    for number in range(evaluation.chunks):
        evaluation.chunk(number)
        for tile in evaluation.run():
            jax.block_until_ready(tile.values)


def measure(exponent: int = 6, repeats: int = 7) -> dict:
    """All figures on a grid of ten to this power of points."""
    study = asking(sized("dense", exponent), OUTPUTS)
    plan = study.plan()
    parameters = parameters_of(plan, PARAMETERS)
    values = Evaluation(plan)
    start = time.perf_counter()
    derivatives = Sensitivity(plan, OUTPUTS, parameters)
    prepared = time.perf_counter() - start
    for _ in values.run():  # touches every buffer once
        pass
    _tiles(derivatives)
    count = len(OUTPUTS) * len(parameters) * plan.space.points
    forward, tangents = _median(lambda: evaluate_all(values), repeats), _median(lambda: _tiles(derivatives), repeats)
    every = max(1, repeats // 2)
    whole = _median(lambda: Evaluation(plan).collect(), every)
    all_of_it = _median(lambda: Sensitivity(plan, OUTPUTS, parameters).derivatives(), every)
    zero = [float(np.mean(a == 0)) for a in Sensitivity(plan, OUTPUTS, parameters).derivatives()[1].values()]
    return {
        "points": plan.space.points,
        "parameters": len(parameters),
        "outputs": len(OUTPUTS),
        "derivatives": count,
        "distinct columns": len(derivatives.stacked),
        "of them zero": float(np.mean(zero)),
        "prepare_wall_seconds": prepared,
        "compile_wall_seconds": derivatives.seconds["compile"],
        "tile stage": {
            "values_cpu_seconds": forward,
            "derivatives_cpu_seconds": tangents,
            "ratio": tangents / forward,
            "derivatives_per_cpu_second": count / tangents,
        },
        "plan to arrays": {
            "values_cpu_seconds": whole,
            "derivatives_cpu_seconds": all_of_it,
            "ratio": all_of_it / whole,
            "derivatives_per_cpu_second": count / all_of_it,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sensitivity", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--exponent", type=int, default=6, help="the grid has ten to this power of points (4 GB at 7)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    enable_compilation_cache()
    found = measure(options.exponent, options.repeats)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"  {name:34} {readable(value)}")


if __name__ == "__main__":
    main()
