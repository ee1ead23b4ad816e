"""Loads on a link graph, counted on the host: for fabrics without a closed form, and to check those that have one.

Everything here is NumPy; a catalog counts once per fabric, the result is one number per algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from .schedule import Schedule


def shortest_path_loads(neighbours: np.ndarray, source: int) -> tuple[np.ndarray, np.ndarray]:
    """Load of every directed link when ``source`` sends one unit to every other rank, and all distances.

    ``neighbours[rank, port]`` is the rank at the other end of a port, -1 where there is none; parallel links are ports
    with the same neighbour. All shortest paths to a destination carry equal shares (equal-cost multi-path counted over
    paths). Returns loads ``[rank, port]`` and distances ``[rank]``. Source: brandes2001.
    """
    count = len(neighbours)
    distance = np.full(count, -1)
    distance[source], paths = 0, np.zeros(count)
    paths[source] = 1.0
    frontier, layers = np.array([source]), []
    while frontier.size:
        layers.append(frontier)
        ends, valid = neighbours[frontier], neighbours[frontier] >= 0
        fresh = np.unique(ends[valid & (distance[ends] < 0)])
        distance[fresh] = distance[frontier[0]] + 1
        forward = valid & (distance[ends] == distance[frontier[0]] + 1)
        np.add.at(paths, ends[forward], np.broadcast_to(paths[frontier][:, None], ends.shape)[forward])
        frontier = fresh
    loads = np.zeros(neighbours.shape)
    demand = np.ones(count)  # units that end at a rank or pass through it
    for layer in reversed(layers[:-1]):
        ends = neighbours[layer]
        forward = (ends >= 0) & (distance[ends] == distance[layer[0]] + 1)
        share = np.where(forward, paths[layer][:, None] / paths[ends] * demand[ends], 0.0)
        loads[layer] = share
        demand[layer] += share.sum(axis=1)
    return loads, distance


def torus_neighbours(sides: Sequence[int], twist: Mapping[int, Sequence[int]] | None = None) -> np.ndarray:
    """Ports ``[rank, 2·D]`` of a torus, forward and backward along each side; the first side varies fastest.

    ``twist[i]`` shifts the other coordinates by the given numbers wherever side i wraps. Source: camara2010twisted.
    """
    sides = tuple(sides)
    grid = np.stack(np.unravel_index(np.arange(np.prod(sides)), sides, order="F"), axis=-1)
    ports = []
    for axis, side in enumerate(sides):
        shift = np.zeros(len(sides), int)
        if twist and axis in twist:
            shift[:] = twist[axis]
        for way in (1, -1):
            moved = grid.copy()
            moved[:, axis] += way
            wraps = (moved[:, axis] < 0) | (moved[:, axis] >= side)
            moved[wraps] += way * shift
            ports.append(np.ravel_multi_index(tuple((moved % np.array(sides)).T), sides, order="F"))
    return np.stack(ports, axis=-1)


@lru_cache(maxsize=256)
def _twisted(sides: tuple[int, ...], twist: tuple[tuple[int, tuple[int, ...]], ...]) -> tuple[float, float]:
    neighbours = torus_neighbours(sides, dict(twist))
    loads, distance = shortest_path_loads(neighbours, 0)
    # Every rank sees the same graph, so a port's load is the sum over the links of its direction from one source.
    return float(loads.sum(axis=0).max()), float(distance.max())


def twisted_torus_all_to_all(sides: Sequence[int], twist: Mapping[int, Sequence[int]]) -> Schedule:
    """All-to-all over all shortest paths of a torus whose wrap-around links are shifted. Source: camara2010twisted."""
    key = tuple((int(axis), tuple(int(s) for s in shift)) for axis, shift in sorted(twist.items()))
    busiest, diameter = _twisted(tuple(int(s) for s in sides), key)
    n = float(np.prod(sides))
    return Schedule(1.0, diameter, busiest / n, messages=n - 1)
