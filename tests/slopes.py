"""Derivatives of a graph in forward mode, in NumPy and double precision: exact, and without compiling anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from perfgrid.engine.autodiff.dual import Dual
from perfgrid.engine.graph.namespace import value_of
from perfgrid.engine.graph.resolver import Graph


def slopes_of_graph(graph: Graph, values: Mapping[str, Any], free: Iterable[str]) -> dict[str, dict[str, np.ndarray]]:
    """By quantity that depends on one: its derivatives with respect to the free leaves."""
    results = {name: values[name] for name in graph.leaves}
    results |= {name: seeded(name, values[name]) for name in free}
    with np.errstate(all="ignore"):
        for node in graph.nodes.values():
            given = [results[a] for a in node.arguments]
            results[node.name] = node.function(*(given if node.host is None else map(value_of, given)))
    return {name: along(value) for name, value in results.items() if isinstance(value, Dual)}


def slopes_of(function: Callable[..., Any], **values: Any) -> dict[str, np.ndarray]:
    """The derivatives of a function of numbers with respect to each."""
    with np.errstate(all="ignore"):
        return along(function(**{name: seeded(name, value) for name, value in values.items()}))


def seeded(name: str, value: Any) -> Dual:
    """A value whose derivative with respect to itself is 1; of an array the derivative along all of its elements."""
    value = np.asarray(value, float)
    return Dual(value, {name: np.ones((1, *value.shape))})


def along(value: Dual) -> dict[str, np.ndarray]:
    """The derivatives of a value by name, on its axes or of size 1."""
    return {name: np.asarray(tangent)[0] for name, tangent in value.tangents.items()}
