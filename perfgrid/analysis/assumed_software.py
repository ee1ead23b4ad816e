"""What the software stack leaves open: what other stacks would take for the same design."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from perfgrid.catalog import Catalog
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.graph.entries import EXCEEDS
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.engine.reductions.argmin import listed
from perfgrid.formulas import INNER

SOFTWARE = "software"
SHARDING, WAYS = "zero", (1, 2, 3)  # the quantity that says what is sharded, and what a stack may do instead
STEP = "step_time"  # what concerns it, concerns the stack: that it trains, and on this device


def other_stacks(
    registry: Registry,
    catalog: Catalog,
    space: Space,
    choices: Mapping[str, str],
    output: str,
    stated: Collection[str] = (),
) -> list[tuple[float, float]]:
    """The least and the greatest of a training output of each design over the stacks that people run; NaN for none.

    Arguments as of `by_stack`.
    """
    table = np.stack(list(by_stack(registry, catalog, space, choices, output, (output, STEP), stated).values()), axis=1)
    return list(zip(np.fmin.reduce(table, axis=1), np.fmax.reduce(table, axis=1), strict=True))


def by_stack(
    registry: Registry,
    catalog: Catalog,
    space: Space,
    choices: Mapping[str, str],
    output: str,
    concerned: Sequence[str],
    stated: Collection[str] = (),
    serves: bool = False,
) -> dict[str, np.ndarray]:
    """An output of each design on every stack that people train or serve with; NaN on one that cannot run it.

    The same design, sharded in another way where a stack does not shard as it does. Limits, of memory say, are no
    matter of whether it can. ``space``: designs on one axis; ``concerned``: constraints on these count; ``stated``:
    quantities of the software that hold whatever the stack is.
    """
    entries = catalog.tables[SOFTWARE].values()
    stacks = [e for e in entries if e.values["current"] and e.values["serves"] == serves]
    own = {v.name: v.axis for v in catalog.variables.values() if v.of == SOFTWARE and v.name in space.names()}
    held: dict[str, Any] = {
        name: np.array([_placed(axis, e.values[name]) for e in stacks])
        for name, axis in own.items()
        if name not in stated
    }
    ways = (None, *WAYS) if SHARDING in space.names() else (None,)  # all at once: few designs take as long as one
    shape = (len(ways), len(space.axes[0]), len(stacks))
    way, designs, stack = (index.ravel() for index in np.indices(shape))
    columns = {name: column[stack] for name, column in held.items()}
    if SHARDING in space.names():
        own_way = np.asarray(space.along(SHARDING), dtype=float)[designs]
        columns |= {SHARDING: np.where(way == 0, own_way, np.array((0.0, *WAYS))[way])}
    values = _legal_values(registry, _changed(space, designs.tolist(), columns), choices, output, concerned)
    possible = values.reshape(shape)
    first = (~np.isnan(possible)).argmax(axis=0)  # the way of the design itself where a stack can run that
    table = np.take_along_axis(possible, first[None], axis=0)[0]
    return {stack.name: table[:, i] for i, stack in enumerate(stacks)}


def _changed(space: Space, rows: Sequence[int], columns: Mapping[str, np.ndarray]) -> Space:
    """Some rows of the only axis of a space with other columns."""
    (axis,) = listed(space, [np.asarray(rows)]).axes
    constants = {name: value for name, value in space.constants.items() if name not in columns}
    return Space((Axis(axis.name, axis.labels, {**axis.columns, **columns}),), constants)


def _legal_values(
    registry: Registry, space: Space, choices: Mapping[str, str], output: str, concerned: Sequence[str]
) -> np.ndarray:
    """An output of the designs of a space; NaN where a constraint on those concerned says that it cannot be."""
    count = len(space.axes[0])
    plan = Plan(registry, space, tuple(dict.fromkeys((output, *concerned))), choices, small_points=count)
    values = Evaluation(plan, "float64").collect()
    legal = np.ones(count, bool)
    for name in plan.graph.concerning(concerned):
        about = plan.graph.nodes[name].constraint
        if about is not None and about.kind != EXCEEDS:
            legal &= np.broadcast_to(values[name], count)
    return np.where(legal, np.broadcast_to(np.ravel(values[output]), count), np.nan)


def _placed(axis: str | None, value: Any) -> Any:
    """A value of the catalog as the engine wants it: a vector on its inner axis."""
    return value if axis is None else INNER.vector(axis, [float(value[label]) for label in INNER.labels[axis]])
