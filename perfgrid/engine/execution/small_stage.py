"""The small stage: quantities on few distinct rows, evaluated once for the whole grid, in NumPy and float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from perfgrid.engine.graph.namespace import xp
from perfgrid.engine.graph.resolver import Node
from perfgrid.engine.grid.plan import Plan, Quantity
from perfgrid.engine.grid.space import Key

SLAB_VALUES = 2**20  # of one array that a formula of the small stage makes


def bring(value: Any, source: Key, target: Key) -> Any:
    """Gather an array from the distinct rows of one key to those of a finer one."""
    if source == target:
        return value
    for axis, (have, want) in enumerate(zip(source, target, strict=True)):
        if have is not None and have is not want:
            assert want is not None  # a reader tells apart at least what its arguments do
            value = xp.take(value, have.inverse[want.rows], axis=axis)
    return value


def expanded(value: Any, key: Key) -> Any:
    """An array on the distinct rows of a key on full rows; axes of size 1 stay."""
    for axis, partition in enumerate(key):
        if partition is not None and value.shape[axis] > 1 and partition.size < len(partition.inverse):
            value = xp.take(value, partition.inverse, axis=axis)
    return value


def applied(plan: Plan, quantity: Quantity, arguments: list[np.ndarray]) -> np.ndarray:
    """A small quantity from its arguments: large ones slab by slab, so that what a formula holds meanwhile is small."""
    node = plan.graph.nodes[quantity.name]
    if node.host is not None or not quantity.sizes or quantity.held <= SLAB_VALUES:
        result = np.asarray(plan.call(node.name, arguments))
        if result.dtype != bool:
            result = result.astype(np.float64, copy=False)
        return result if result.shape == quantity.shape else np.broadcast_to(result, quantity.shape)
    axis = int(np.argmax(quantity.sizes))
    slab = SLAB_VALUES * quantity.sizes[axis] // quantity.held
    whole = np.empty(quantity.shape, bool if quantity.flag else np.float64)
    for start in range(0, quantity.sizes[axis], max(1, slab)):
        here = (slice(None),) * axis + (slice(start, start + max(1, slab)),)
        whole[here] = plan.call(node.name, [a[here] if a.shape[axis] > 1 else a for a in arguments])
    return whole


def small_order(plan: Plan) -> Iterator[tuple[Node, list[str]]]:
    """The computed small quantities in the order of evaluation, each with those of which nothing is needed after it."""
    kept, quantities = kept_small(plan), plan.quantities
    left = {n: sum(quantities[r].small for r in of) for n, of in plan.graph.readers.items() if quantities[n].small}
    for node in plan.graph.nodes.values():
        if node.name not in left:
            continue
        done = []
        for argument in set(node.arguments):
            left[argument] -= 1
            if left[argument] == 0 and argument not in kept:
                done.append(argument)
        yield node, done


def kept_small(plan: Plan) -> set[str]:
    """The small quantities that are wanted or that the tile stage reads."""
    quantities, wanted = plan.quantities, set(plan.wanted)
    of_tiles = {a for node in plan.graph.nodes.values() if not quantities[node.name].small for a in node.arguments}
    return {name for name in wanted | of_tiles if quantities[name].small}


def small_values(plan: Plan) -> dict[str, np.ndarray]:
    """The small quantities that are wanted or that the tile stage reads, on their distinct rows, evaluated in NumPy."""
    values = {name: plan.given_rows(name) for name in plan.graph.leaves if plan.quantities[name].small}
    with np.errstate(all="ignore"):
        for node, done in small_order(plan):
            quantity = plan.quantities[node.name]
            arguments = [bring(values[a], plan.quantities[a].key, quantity.key) for a in node.arguments]
            values[node.name] = applied(plan, quantity, arguments)
            for name in done:
                del values[name]
    kept = kept_small(plan)
    return {name: value for name, value in values.items() if name in kept}
