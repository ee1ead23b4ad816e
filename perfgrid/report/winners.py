"""What bounds a design, in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfgrid.engine.explain import index_of
from perfgrid.engine.resolver import replay, resolve
from perfgrid.formulas import BREAKDOWN
from perfgrid.formulas.inference import anatomy
from perfgrid.formulas.inference.anatomy import request_parts
from perfgrid.study import Study

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
    "communication_time": "communication",
    "host_time": "the host",
}


def step_parts(study: Study, at: Mapping[str, Any]) -> dict[str, float]:
    """The parts that add up to the step time at one point, in seconds, largest first."""
    values = _values(study, at, BREAKDOWN)
    return dict(sorted(((n, float(values[n])) for n in BREAKDOWN), key=lambda item: -item[1]))


def _values(study: Study, at: Mapping[str, Any], quantities: Sequence[str]) -> dict[str, Any]:
    """Quantities at one point."""
    space = study.space
    index = index_of(space, at)
    graph = resolve(study.registry, quantities, space.names(), study.file.choices, space.label_quantities())
    return replay(graph, {name: space.at(name, index) for name in graph.leaves})


def tie_margin(study: Study, at: Mapping[str, Any]) -> float:
    """Relative difference of step times below which the model does not tell two designs apart, at one point."""
    return float(_values(study, at, ("tie_margin",))["tie_margin"])


def bound_by(study: Study, at: Mapping[str, Any]) -> str:
    """The largest part of a step, or of an inference request, at one point and its share; empty for collectives."""
    if study.file.workload == "collectives":
        return ""
    if study.file.workload == "training":
        parts = step_parts(study, at)
    else:
        parts = request_parts(_values(study, at, anatomy.QUANTITIES))
    name, value = max(parts.items(), key=lambda item: item[1])
    total = sum(parts.values())
    return f"{WORDS[name]} {value / total:.0%}" if total > 0 else WORDS[name]
