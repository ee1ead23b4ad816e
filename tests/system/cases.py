"""Studies of systems for the tests: one training design, with what a test changes."""

from __future__ import annotations

from typing import Any

import numpy as np

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.engine import replay
from perfgrid.engine.graph.resolver import Graph, resolve_checked
from perfgrid.study.study import Study

AXES: dict[str, Any] = {
    "model": ["gpt3-175b"],
    "device": ["h100-sxm-80gb"],
    "topology": ["rail-optimized"],
    "parallelism": {"devices": [1024], "tp": [8], "pp": [8]},
}
PARAMETERS: dict[str, Any] = {"sequence_length": 2048, "global_batch": 1024, "training_tokens": 3e11}


def study(
    outputs: list[str], axes: dict[str, Any] | None = None, without: tuple[str, ...] = (), **changes: Any
) -> Study:
    """A training study; ``axes`` join or replace the usual ones, other keywords join the workload parameters."""
    kept = {name: axis for name, axis in AXES.items() if name not in without}
    content = {key: changes.pop(key) for key in ("overrides", "choices", "catalog") if key in changes}
    return Study.make(
        outputs=outputs, axes=kept | (axes or {}), workload_parameters=PARAMETERS | changes, dtype="float64", **content
    )


def point(outputs: list[str], axes: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The outputs of the first design of a study, replayed in float64 NumPy, with everything below them."""
    made = study(outputs, axes, **changes)
    graph = graph_of(made)
    return replay(graph, {name: made.space.at(name, (0,) * len(made.space.axes)) for name in graph.leaves})


def graph_of(made: Study) -> Graph:
    """Everything that a study evaluates."""
    space = made.space
    return resolve_checked(made.registry, made.outputs, space.names(), made.file.choices, space.label_quantities())


def grid(outputs: list[str], axes: dict[str, Any] | None = None, **changes: Any) -> dict[str, np.ndarray]:
    """The outputs of a whole study as plain arrays, axes of one label dropped."""
    found = pg.evaluate(study(outputs, axes, **changes))
    return {str(name): found[name].values.squeeze() for name in found.data_vars}


def stated(kind: str, name: str, quantity: str) -> Any:
    """A value of a catalog entry."""
    return load_catalog().entry(kind, name).values[quantity]
