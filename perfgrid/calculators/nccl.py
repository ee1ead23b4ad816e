"""NCCL's time of one collective: the formulas of the workload "collectives" at one point.

Ranks, nodes and bandwidths are those of the call, everything else comes from the catalog: a fabric states the constants
of NCCL, a device what they depend on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.resolver import Graph, replay, resolve
from perfgrid.formulas import INNER, registry_of
from perfgrid.formulas.axes import table
from perfgrid.formulas.collectives.ideal import NAMES
from perfgrid.formulas.collectives.nccl import ALGORITHMS
from perfgrid.formulas.collectives.schedules.algorithms import COLLECTIVES
from perfgrid.formulas.collectives.schedules.fabric import Place
from perfgrid.formulas.collectives.schedules.schedule import UNAVAILABLE

NAMED = {"ring": "_ring", "tree": "_tree", "in_switch": "_nvls"}  # as users of NCCL call them
PINNED = {"": 0, **{NAMED[nccl]: NAMES.index(name) for nccl, name in ALGORITHMS.items()}}


def nccl_fabrics() -> tuple[str, ...]:
    """The catalog's fabrics on which NCCL runs the collectives."""
    return tuple(n for n, e in load_catalog().tables["topology"].items() if e.values["library"] == "nccl")


def nccl_time(
    topology: str, device: str, places: Sequence[Place], collective: str, size: float, algorithm: str
) -> float:
    """Time in s of a collective on ``places`` as NCCL runs it with the constants of a catalog fabric.

    ``algorithm`` is "library" or one of its own ("library_ring", "library_tree", "library_nvls"). PerfgridError
    for another, and where NCCL has none of that name for the collective. Source: nccl2026tuning.
    """
    suffix = algorithm.removeprefix("library")
    if suffix not in PINNED:
        legal = ", ".join(f"library{s}" for s in PINNED)
        raise PerfgridError(f"algorithm: {algorithm!r} for {collective} is none of the library's; legal: {legal}")
    inside, ranks = places[0].members, math.prod(p.members for p in places)
    up, out = (places[0].tier, places[-1].tier)
    peers = max(inside - 1, 1) if up.kind == "fully_connected" else 1
    constants = _constants(device, topology)
    given = constants | {
        "group_size": float(ranks),
        "replica_tier_ranks": table("tier", scale_up=float(inside), scale_out=ranks / inside),
        "replica_tier_bandwidth": table("tier", scale_up=up.bandwidth * peers, scale_out=out.bandwidth),
        "tier_peer_bandwidth": table("tier", scale_up=up.bandwidth, scale_out=out.bandwidth),
        "algorithm": float(PINNED[suffix]),
        "collective": float(COLLECTIVES.index(collective)),
        "message_size": size,
        "library": 0.0,
    }
    given["tier_bandwidth"] = given["replica_tier_bandwidth"]
    graph = _graph(tuple(given))
    time = float(replay(graph, {name: given[name] for name in graph.leaves})["collective_time"])
    if time >= UNAVAILABLE:
        raise PerfgridError(f"algorithm: the library has no {algorithm!r} for {collective} among these ranks")
    return time


@cache
def _graph(names: tuple[str, ...]) -> Graph:
    return resolve(registry_of("collectives"), ["collective_time"], names, labels={"library": ("nccl",)})


@cache
def _constants(device: str, topology: str) -> dict[str, Any]:
    """The given quantities of a device and a fabric, vectors on their inner axes."""
    catalog, found = load_catalog(), {}
    for kind, name in (("device", device), ("topology", topology)):
        values = catalog.entry(kind, name).values
        for variable in catalog.variables.values():
            if variable.of != kind or variable.kind == "label" or variable.name not in values:
                continue
            value = values[variable.name]
            if variable.axis and isinstance(value, dict):
                value = INNER.vector(variable.axis, [value[label] for label in INNER.labels[variable.axis]])
            found[variable.name] = value
    return found
