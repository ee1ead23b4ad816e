"""What bounds a design, in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.grid.replay import index_of
from perfgrid.engine.reductions.argmin import points_plan
from perfgrid.formulas import BREAKDOWN
from perfgrid.formulas.serving.shares import OF_REPLICA, replica_parts
from perfgrid.study.study import Study

WORDS = {
    "arithmetic_time": "arithmetic",
    "registers_time": "register bandwidth",
    "shared_memory_time": "shared memory bandwidth",
    "l2_time": "L2 bandwidth",
    "hbm_time": "HBM bandwidth",
    "launch_time": "kernel launches",
    "exposed_tp_time": "tp communication",
    "exposed_cp_time": "cp communication",
    "exposed_ep_time": "exchange with experts",
    "exposed_host_time": "launches by the host",
    "bubble_time": "pipeline bubble",
    "straggler_time": "stragglers",
    "exposed_pp_time": "pp communication",
    "exposed_dp_time": "dp communication",
    "exposed_tied_time": "tied-embedding reduction",
    "exposed_offload_time": "host link",
    "optimizer_time": "optimizer step",
    "between_steps_time": "the host between steps",
    "communication_time": "communication",
    "host_time": "the host",
    "waiting_time": "queues, other requests, drafting",
}


def bounds(study: Study, points: Sequence[Mapping[str, Any]]) -> list[str]:
    """The largest part of a step or of a request, at every point, and its share; empty for other workloads."""
    found = shares(study, [index_of(study.space, at) for at in points])
    return [f"{part[0][0]} {part[0][1]:.0%}" if part else "" for part in found] or [""] * len(points)


def shares(study: Study, points: Sequence[tuple[int, ...]]) -> list[list[tuple[str, float]]]:
    """The parts of a step or of an inference request, largest first, with their shares, at rows of every axis.

    Empty for other workloads. All points are evaluated together: one by one each takes as long as all.
    """
    if study.file.workload not in ("training", "inference") or not points:
        return []
    training = study.file.workload == "training"
    wanted = BREAKDOWN if training else OF_REPLICA
    plan = points_plan(study.registry, study.space, list(np.transpose(points)), wanted, study.file.choices)
    values = Evaluation(plan, "float64").collect()
    found = []
    for row in range(len(points)):
        here = {name: value[row if len(value) > 1 else 0] for name, value in values.items()}
        parts = {n: float(np.squeeze(here[n])) for n in BREAKDOWN} if training else replica_parts(here)
        total = sum(parts.values()) or np.inf
        found.append(sorted(((WORDS[name], value / total) for name, value in parts.items()), key=lambda part: -part[1]))
    return found
