"""The library's own time of one collective: the formulas of the workload "collectives" at one point.

Ranks, nodes and bandwidths are those of the call, everything else comes from the catalog: a fabric states the library's
constants, a device what they depend on.
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
from perfgrid.formulas.collectives.benchmark import COLLECTIVES
from perfgrid.formulas.collectives.fabrics import NAMES
from perfgrid.formulas.collectives.nccl_equations import ALGORITHMS
from perfgrid.formulas.collectives.schedules.fabric import Place

DOOR = {"ring": "_ring", "tree": "_tree", "in_switch": "_nvls"}  # as the library's users call them
PINNED = {"": 0, **{DOOR[nccl]: NAMES.index(name) for nccl, name in ALGORITHMS.items()}}


def library_names() -> tuple[str, ...]:
    """The catalog's fabrics on which a library runs the collectives."""
    return tuple(n for n, e in load_catalog().tables["topology"].items() if e.values["library"] == "nccl")


def library_time(
    library: str, device: str, places: Sequence[Place], collective: str, size: float, algorithm: str
) -> float:
    """Time in s of a collective on ``places`` by the library of a catalog fabric.

    ``algorithm`` is "library" or one of its own ("library_ring", "library_tree", "library_nvls"). PerfgridError
    for another, and where the library has none of that name for the collective. Source: nccl2026tuning.
    """
    suffix = algorithm.removeprefix("library")
    if suffix not in PINNED:
        legal = ", ".join(f"library{s}" for s in PINNED)
        raise PerfgridError(f"algorithm: {algorithm!r} for {collective} is none of the library's; legal: {legal}")
    inside, ranks = places[0].members, math.prod(p.members for p in places)
    up, out = (places[0].tier, places[-1].tier)
    peers = max(inside - 1, 1) if up.kind == "fully_connected" else 1
    constants = _constants(device, library)
    given = constants | {
        "replica": float(ranks),
        "replica_tier_ranks": table("tier", scale_up=float(inside), scale_out=ranks / inside),
        "replica_tier_bandwidth": table("tier", scale_up=up.bandwidth * peers, scale_out=out.bandwidth),
        "tier_peer_bandwidth": table("tier", scale_up=up.bandwidth, scale_out=out.bandwidth),
        "replica_named_algorithm": float(PINNED[suffix]),
        "collective": float(COLLECTIVES.index(collective)),
        "message_size": size,
        "replica_message": size,
        "library": 0.0,
    }
    given["tier_bandwidth"] = given["replica_tier_bandwidth"]
    graph = _graph(tuple(given))
    time = replay(graph, {name: given[name] for name in graph.leaves})
    if time["collective_time"] >= time["unavailable"]:
        raise PerfgridError(f"algorithm: the library has no {algorithm!r} for {collective} among these ranks")
    return float(time["collective_time"])


@cache
def _graph(names: tuple[str, ...]) -> Graph:
    return resolve(registry_of("collectives"), ["collective_time", "unavailable"], names, labels={"library": ("nccl",)})


@cache
def _constants(device: str, library: str) -> dict[str, Any]:
    """The given quantities of a device and a fabric, vectors on their inner axes."""
    catalog, found = load_catalog(), {}
    for kind, name in (("device", device), ("topology", library)):
        values = catalog.entry(kind, name).values
        for variable in catalog.variables.values():
            if variable.of != kind or variable.kind == "label" or variable.name not in values:
                continue
            value = values[variable.name]
            if variable.axis and isinstance(value, dict):
                value = INNER.vector(variable.axis, [value[label] for label in INNER.labels[variable.axis]])
            found[variable.name] = value
    return found
