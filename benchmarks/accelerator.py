"""``python -m benchmarks.accelerator``: grids by wall time on what JAX finds; ``JAX_PLATFORMS=cpu`` for processors."""

from __future__ import annotations

import json
import statistics
import time

import jax

from perfgrid.engine.execution.evaluation import Evaluation

from .evaluate import evaluate_all, plan_of, sized
from .grids import GRIDS


def measure(grid: str, exponent: int) -> dict:
    """Points per second of wall time of a grid with 20 outputs, the functions compiled before."""
    evaluation = Evaluation(plan_of(sized(grid, exponent), "20"), "float32")
    evaluate_all(evaluation)
    points = evaluation.plan.space.points
    rate = points / statistics.median(evaluate_all(evaluation, time.perf_counter) for _ in range(5))
    return {"backend": jax.default_backend(), "grid": grid, "points": points, "points_per_second": rate}


if __name__ == "__main__":
    for grid in GRIDS:
        for exponent in (7, 8):
            print(json.dumps(measure(grid, exponent)), flush=True)
