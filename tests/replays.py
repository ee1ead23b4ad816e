"""Grids against a replay: the same formulas in plain NumPy and float64, at drawn points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from perfgrid.engine import replay
from perfgrid.engine.graph.resolver import Graph, resolve_checked
from perfgrid.engine.grid.space import Space
from perfgrid.formulas.axes import INNER
from perfgrid.study.study import Study

RANK = len(INNER.names)
DIFFERENCES = {"exposed_host_time": "step_time"}  # of numbers that may be almost as large -> what these are parts of


def drawn_points(space: Space, generator: np.random.Generator, count: int) -> list[tuple[int, ...]]:
    """The rows of the axes at drawn points."""
    return [tuple(int(generator.integers(n)) for n in space.shape) for _ in range(count)]


def replay_at(graph: Graph, space: Space, points: Sequence[tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Every quantity of a graph [point, inner axes...], in one replay with an axis of points before the inner axes."""
    leaves = {}
    for name in graph.leaves:
        values = np.stack([np.asarray(space.at(name, point)) for point in points])
        leaves[name] = values.reshape(len(points), *(1,) * (RANK + 1 - values.ndim), *values.shape[1:])
    found = replay(graph, leaves)
    return {name: np.zeros((len(points), *(1,) * RANK)) + value for name, value in found.items()}


def grid_at(ds: xr.Dataset, name: str, space: Space, points: Sequence[tuple[int, ...]]) -> np.ndarray:
    """The values of a variable of an evaluated grid [point, inner axes...]."""
    rows = {a.name: xr.DataArray([point[i] for point in points], dims="point") for i, a in enumerate(space.axes)}
    found = ds[name].isel({d: rows[str(d)] for d in ds[name].dims if d in rows})
    return (found if "point" in found.dims else found.expand_dims(point=len(points))).transpose("point", ...).values


def assert_grid_is_replay(
    made: Study, ds: xr.Dataset, generator: np.random.Generator, count: int, tolerance: float
) -> None:
    """Every output and constraint at drawn points; differences are measured against the largest operand of their unit.

    The first point is replayed alone too: an axis of points changes no value.
    """
    space = made.space
    graph = resolve_checked(made.registry, made.outputs, space.names(), labels=space.label_quantities())
    assert set(map(str, ds.data_vars)) == set(graph.wanted)
    points = drawn_points(space, generator, count)
    values = replay_at(graph, space, points)
    alone = replay(graph, {name: space.at(name, points[0]) for name in graph.leaves})
    for name in graph.wanted:
        expected, found = (v.reshape(count, -1) for v in (values[name], grid_at(ds, name, space, points)))
        assert np.allclose(expected[0], np.ravel(alone[name]), rtol=1e-12, atol=0), name
        if found.dtype == np.int8:
            assert (found == expected).all(), name
            continue
        node = graph.nodes[name]
        alike = [a for a in node.arguments if a in graph.nodes and graph.nodes[a].unit == node.unit]
        operands = [np.abs(values[a]).reshape(count, -1).max(axis=1, keepdims=True) for a in alike]
        if DIFFERENCES.get(name) in values:
            operands.append(np.abs(values[DIFFERENCES[name]]).reshape(count, -1))
        scale = np.max(np.broadcast_arrays(np.abs(expected), *operands), axis=0)
        wrong = np.flatnonzero(~(np.abs(found - expected) <= tolerance * scale).all(axis=1))
        assert wrong.size == 0, (name, [points[i] for i in wrong[:1]], found[wrong], expected[wrong])
