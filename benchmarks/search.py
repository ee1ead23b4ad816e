"""The search for best designs on up to 10^9 points: layout, microbatch and recompute mode of every other choice.

A group is a model, device, fabric, cluster size and two bandwidths. Points that constraints exclude before the search
are not evaluated.
"""

from __future__ import annotations

import resource
import statistics
import time

import numpy as np

from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.reductions.argmin import SEARCH_TILE_POINTS
from perfgrid.engine.reductions.preselection import BestSearch
from perfgrid.study.study import Study

from .grids import sized

OBJECTIVE = "step_time"
OVER = ("parallelism", "microbatch", "recompute")


def search_of(study: Study, tile_points: int = SEARCH_TILE_POINTS) -> BestSearch:
    """The search as `perfgrid.best` sets it up: cluster sizes are apart."""
    layouts = next(a for a in study.space.axes if a.name == "parallelism")
    sizes = np.unique(layouts.columns["devices"], return_inverse=True)[1]
    return BestSearch(
        study.registry,
        study.space,
        OBJECTIVE,
        OVER,
        parts=("parallelism", sizes),
        tile_points=tile_points,
    )


def measure(grid: str, exponent: int) -> dict:
    """Rate and memory of one search; shorter ones run several times."""
    start = time.perf_counter()
    study = sized(grid, exponent)
    search = search_of(study)
    ready = time.perf_counter() - start
    points = study.space.points
    repeats = 5 if exponent < 8 else 3 if exponent == 8 else 1
    cpu, wall = [], []
    search.winners()  # touches every buffer once
    ready_again = time.perf_counter() - start
    for _ in range(repeats):
        search.search.evaluation.forget()  # a single tile is evaluated again
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        winners = search.winners()
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - wall_start)
    seconds, evaluated = statistics.median(cpu), points - search.excluded
    return {
        "points": points,
        "evaluated": evaluated,
        "evaluated_per_cpu_second": evaluated / seconds,
        "first_search_seconds": ready_again,
        "groups": int(winners.found.size),
        "feasible_groups": int(winners.found.sum()),
        "tiles": winners.tiles,
        "plan_and_compile_seconds": ready,
        "cpu_seconds": seconds,
        "points_per_cpu_second": points / seconds,
        "points_per_wall_second": points / statistics.median(wall),
        "nanoseconds_per_point": seconds / points * 1e9,
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
