"""Outputs of a design space as a pure function of some of its given quantities, for derivatives and optimisers.

Quantities that do not depend on the free ones are evaluated once, in NumPy, on their distinct rows; the function then
runs the formulas below the free ones on theirs. It is plain JAX: `jax.jit`, `jax.grad`, `jax.vmap` apply, in the
precision that JAX is set to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfgrid.engine.execution.small_stage import bring, expanded, small_values
from perfgrid.engine.graph.namespace import value_of, xp
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import Node
from perfgrid.engine.grid.plan import Plan, Quantity
from perfgrid.engine.grid.space import Axis, Partition, Space

from .dual import Dual, margin_of
from .rules import smoothing


def freed(space: Space, names: Collection[str]) -> Space:
    """The space without what it states of some quantities: constants of value zero stand in their place.

    An axis of the name of a freed quantity that states nothing else is left out. PerfgridError for an unknown name.
    """
    constants, axes = dict(space.constants), []
    for name in names:
        _, value = space.parts(name)[0]
        constants[name] = np.zeros(value.shape[1:]) if value.ndim > 1 else 0.0
    for axis in space.axes:
        columns = {k: v for k, v in axis.columns.items() if k not in names}
        scales = {k: v for k, v in axis.scales.items() if k not in names}
        if columns or scales or axis.name not in names:
            shown = tuple(s for s in axis.shown if s not in names)
            axes.append(Axis(axis.name, axis.labels, columns, scales, shown))
    return Space(tuple(axes), constants)


class FreePlan(Plan):
    """A plan in which some given quantities are free, with a value of their own at every row of the axes ``along``.

    Small is what does not depend on them, whatever its size.
    """

    def __init__(
        self,
        registry: Registry,
        space: Space,
        outputs: Iterable[str],
        free: Collection[str],
        along: Sequence[str] = (),
        choices: Mapping[str, str] | None = None,
        constraints: bool = False,
    ):
        self.free, self.along, self._below = tuple(free), tuple(along), set(free)
        super().__init__(registry, space, outputs, choices, constraints=constraints)

    def _leaf(self, name: str) -> Quantity:
        found = super()._leaf(name)
        if name not in self.free:
            return found
        key: list[Partition | None] = [None] * len(self.space.axes)
        columns: dict[str, tuple[str, ...]] = {}
        for i, axis in enumerate(self.space.axes):
            if axis.name in self.along and len(axis) > 1:
                key[i], columns[axis.name] = self.partitions[i].of(np.arange(len(axis))), (name,)
        return replace(found, key=tuple(key), columns=columns, small=False)

    def _computed(self, node: Node) -> Quantity:
        if self._below & set(node.arguments):
            self._below.add(node.name)
        return replace(super()._computed(node), small=node.name not in self._below)


class FreeFunction:
    """Outputs on their distinct rows as a function of free quantities; PerfgridError like `Plan`, at planning."""

    def __init__(self, plan: FreePlan):
        self.plan = plan
        self.constants = small_values(plan)
        self.nodes = [n for n in plan.graph.nodes.values() if not plan.quantities[n.name].small]

    def __call__(self, free: Mapping[str, Any], constants: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The wanted quantities, from arrays of the shapes of the free ones' distinct rows.

        ``constants`` are `self.constants`, for a caller who compiles and would not have them in the compiled code.
        """
        values = {**(self.constants if constants is None else constants), **free}
        quantities = self.plan.quantities
        for node in self.nodes:
            key = quantities[node.name].key
            arguments = [bring(values[a], quantities[a].key, key) for a in node.arguments]
            values[node.name] = self.plan.call(node.name, arguments)
        return {name: values[name] for name in self.plan.wanted}

    def expanded(self, name: str, value: Any) -> Any:
        """A wanted quantity with every axis that it depends on at full length, in the order of the study's axes."""
        plan = self.plan
        value = expanded(value, plan.quantities[name].key)
        rank = len(plan.space.axes)
        back = np.argsort(plan.order)
        return xp.transpose(value, (*back, *range(rank, value.ndim)))


class PointFunction:
    """Wanted quantities, margins of constraints and counts at listed designs, with their derivatives (`dual`).

    A design is a row of every axis; quantities that do not depend on what is free are gathered for it (`gathered`).
    Every row of the axis ``within``, if one is named, belongs to each design.
    A count is a quantity below the free ones whose formula ends in a rounding: it is left open, or fixed to a whole
    number; its value before the rounding is then told, for the caller to hold it to that number.
    """

    def __init__(
        self, function: FreeFunction, numbers: Sequence[str], constraints: Collection[str], within: str | None = None
    ):
        self.function, self.plan, self.numbers = function, function.plan, tuple(numbers)
        axes = self.plan.space.axes
        self.rank = len(axes)
        self.within = next((i for i, a in enumerate(axes) if a.name == within), None)
        self.inside = 1 if self.within is None else len(axes[self.within])
        self.flags = tuple(n.name for n in function.nodes if n.name in constraints)
        self.counts: dict[str, bool] = {}  # name -> whether it is rounded up

    def gathered(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """What the formulas below the free quantities read, at designs given as rows of every axis [designs, axes]."""
        found = {}
        for name, value in self.function.constants.items():
            quantity = self.plan.quantities[name]
            index = [
                np.zeros((len(rows), 1), int) if p is None else p.inverse[rows[:, i]][:, None]
                for i, p in enumerate(quantity.key)
            ]
            inside = None if self.within is None else quantity.key[self.within]
            if self.within is not None and inside is not None:
                index[self.within] = inside.inverse[None, :]
            taken = value[tuple(index)]
            shape = (taken.shape[:2] + (1,) * self.rank)[: self.rank]
            found[name] = taken.reshape(shape + quantity.inner_shape)
        return found

    def __call__(
        self, free: Mapping[str, Any], gathered: Mapping[str, Any], counts: Mapping[str, np.ndarray], temperature: float
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Numbers, margins of the flags (positive where they hold) and counts before rounding, each [designs, rows].

        Rows are those of the axis ``within``, one without it. ``free`` are dual numbers [designs, *inner]; ``counts``
        [designs] fixes counts, where it is not NaN.
        """
        lead = (-1,) + (1,) * (self.rank - 1)
        values: dict[str, Any] = dict(gathered)
        for name, value in free.items():
            values[name] = np.reshape(value, lead + self.plan.quantities[name].inner_shape)
        margins, unrounded = {}, {}
        with np.errstate(all="ignore"), smoothing(temperature):
            for node in self.function.nodes:
                arguments = [values[a] for a in node.arguments]
                if node.host is not None:
                    arguments = [value_of(a) for a in arguments]
                result = self.plan.call(node.name, arguments)
                single = not self.plan.quantities[node.name].axes
                if isinstance(result, Dual) and result.unrounded is not None and single:
                    self.counts[node.name] = result.up
                    unrounded[node.name] = result.unrounded
                    result = result.unrounded if temperature else Dual(result.value, result.tangents)
                    if node.name in counts:
                        given = np.reshape(counts[node.name], lead)
                        result = xp.where(np.isnan(given), result, given)
                if node.name in self.flags:
                    margins[node.name] = margin_of(result)
                values[node.name] = result
        size = len(next(iter(gathered.values()))) if gathered else len(next(iter(free.values())).value)

        def flat(found: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
            shape = (size, self.inside, *(1,) * self.rank)[: self.rank]
            return {n: np.reshape(np.broadcast_to(found[n], shape), (size, self.inside)) for n in names}

        return flat(values, self.numbers), flat(margins, self.flags), flat(unrounded, self.counts)
