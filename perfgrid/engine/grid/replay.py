"""One point of a design space evaluated on its own: every quantity below some, in NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import Graph, replay, resolve_checked

from .space import Space


def replay_point(
    registry: Registry,
    space: Space,
    wanted: Iterable[str],
    index: tuple[int, ...],
    choices: Mapping[str, str] | None = None,
) -> tuple[Graph, dict[str, Any]]:
    """The graph of the wanted quantities and of every constraint, and its values at one point."""
    graph = resolve_checked(registry, wanted, space.names(), choices, space.label_quantities())
    return graph, replay(graph, {name: space.at(name, index) for name in graph.leaves})


def point_of(space: Space, index: tuple[int, ...]) -> dict[str, Any]:
    """The labels of every axis at the given rows."""
    return {a.name: a.labels[i].item() for a, i in zip(space.axes, index, strict=True)}


def index_of(space: Space, at: Mapping[str, Any]) -> tuple[int, ...]:
    """The rows that ``at`` names; an axis of one row need not be named."""
    names = [a.name for a in space.axes]
    for name in at:
        if name not in names:
            raise PerfgridError(f"the study has no axis {name!r}{nearest(name, names)}")
    named = {a.name: a.index(at[a.name]) for a in space.axes if a.name in at}  # a wrong label comes before missing ones
    open_axes = [a for a in space.axes if a.name not in at and len(a) > 1]
    if open_axes:
        hints = ", ".join(f"{a.name} (such as {a.labels[0]!s})" for a in open_axes)
        raise PerfgridError(f"a single point needs a label of every axis; not given: {hints}")
    return tuple(named.get(a.name, 0) for a in space.axes)
