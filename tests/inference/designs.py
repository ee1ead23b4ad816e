"""Designs of the workload "inference" for its tests: every given quantity of one, and one replay in plain NumPy."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from perfgrid.catalog import load_catalog
from perfgrid.engine import replay, resolve
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import Graph
from perfgrid.formulas import INNER, registry_of
from tests.physics.cases import TABLES, entry

DEFAULTS: dict[str, Any] = {
    v.name: v.default_value for v in load_catalog().variables.values() if v.optional and v.of not in TABLES
} | {"etp": 1.0}
LABELS = (
    "precision",
    "weight_precision",
    "kv_precision",
    "batch_rule",
    "length_distribution",
    "limit_statistic",
    "library",
    "step_launching",
    "rank_order",
    "device_basis",
    "circuit_basis",
    "mixer",
    "indexer",
    "network_sizing",
)
OWN = {"node": "process_node", "memory": "hbm_generation"}  # entries that a device names
NATIVE = {
    "device_basis": "device",
    "circuit_basis": "own_node",
    "network_sizing": "rate",
    "link_is_native": 1.0,
    "stated_link_tier": 0.0,
    "stated_link_energy": 0.0,
}
# a device without losses: what is left are bytes over bandwidth and work over peak rate
IDEAL: dict[str, Any] = {
    "hbm_efficiency": 1.0,
    "matrix_efficiency": 1.0,
    "fp8_matrix_efficiency": 1.0,
    "library_efficiency": 1.0,
    "expert_efficiency": 1.0,
    "launch_overhead": 0.0,
    "step_overhead": 0.0,
    "sequence_overhead": 0.0,
    "collective_overhead": 0.0,
    "register_bandwidth": 0.0,
    "shared_memory_bandwidth": 0.0,
    "l2_bandwidth": 1e17,
    "vector_rate": 1e20,
    "special_function_rate": 1e20,
}


@cache
def registry() -> Registry:
    """The formulas of inference."""
    return registry_of("inference")


def point(
    model: str = "llama-2-7b",
    device: str = "h100-sxm-80gb",
    topology: str = "rail-optimized",
    software: str = "tensorrt-llm-2024",
    **changes: Any,
) -> dict[str, Any]:
    """Every given quantity of one design."""
    given: dict[str, Any] = {}
    for kind, name in zip(TABLES, (model, device, topology, software), strict=True):
        given |= entry(kind, name)
    given |= DEFAULTS | {"tp": 1.0, "pp": 1.0, "dp": 1.0, "batch": 1.0, "prompt_tokens": 512.0, "output_tokens": 128.0}
    own = load_catalog().entry("device", device).values
    entries = {kind: own[label] for kind, label in OWN.items()} | {"circuit": "unit-circuits"}
    for kind, name in entries.items():
        given |= entry(kind, str(name))
    given |= {"request_rate": 1.0, "requests": 1000.0} | NATIVE | changes
    given.setdefault("devices", given["tp"] * given["cp"] * given["pp"] * given["dp"])
    return given


@cache
def graph(outputs: tuple[str, ...], labels: tuple[tuple[str, str], ...]) -> Graph:
    """What the outputs are computed from, with these labels."""
    names = set(point()) | {name for name, _ in labels}
    return resolve(registry(), outputs, tuple(names), labels={name: (label,) for name, label in labels})


def evaluate(*outputs: str, **design: Any) -> dict[str, Any]:
    """The outputs of one design, in NumPy float64; numbers where they are single."""
    given = point(**design)
    labels = tuple((name, str(given[name])) for name in LABELS if name in given)
    found = graph(outputs, labels)
    values = replay(found, {name: 0.0 if name in LABELS else given[name] for name in found.leaves})
    return {name: _plain(values[name]) for name in outputs}


def value(output: str, **design: Any) -> float:
    """One number of one design."""
    return float(evaluate(output, **design)[output])


def of_resource(output: str, resource: str, **design: Any) -> float:
    """The part of one design's output that goes to a resource."""
    return float(evaluate(output, **design)[output][INNER.labels["resource"].index(resource)])


def _plain(result: Any) -> Any:
    array = np.asarray(result)
    return array.reshape(()).item() if array.size == 1 else np.squeeze(array)
