"""Derivatives of outputs with respect to given quantities at every point of a grid, in forward mode through the plan.

A grid is evaluated point by point along its study axes, so one tangent per parameter gives the exact derivative at
every point. Tangents travel through the same stages as values (`dual`): in the small stage in NumPy, each on its
own axes; on the grid side by side along a last axis, in one compiled function per materialised quantity, whose
innermost loop runs over parameters, so that what they share is computed once per point. What a parameter does not
reach, or reaches with slope 0 everywhere, costs nothing.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Evaluation, Progress
from perfgrid.engine.execution.materialised import Input, Kernel
from perfgrid.engine.execution.small_stage import bring, expanded, kept_small, small_order
from perfgrid.engine.graph.namespace import value_of, xp
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Key
from perfgrid.engine.grid.tiles import TileKey

from .dual import Dual
from .parameters import Parameter
from .rules import smoothing
from .shapes import elasticity, element, elements_of, lifted, same, turn

TILE_POINTS = 2**18  # a tile holds the tangents of all parameters of a chunk
MOST_AT_ONCE = 24  # parameters of a chunk
VECTOR = 8  # what a processor computes at once: chunks are filled up with zeros, which is quicker


class Sensitivity(Evaluation):
    """An evaluation with tangents: `collect` gives values as ever, `derivatives` the derivatives of the outputs."""

    in_parts = False  # tangents of many parameters fill a cache anyway

    def __init__(
        self,
        plan: Plan,
        outputs: Sequence[str],
        parameters: Sequence[Parameter],
        relative: bool = True,
        sharpness: float | None = None,
        dtype: str = "float32",
        tile_points: int = TILE_POINTS,
        progress: Progress | None = None,
    ):
        """``relative``: elasticities d ln output / d ln parameter (0 where the output is 0), else derivatives.

        ``sharpness``: None for exact derivatives, else as in `rules`. PerfgridError for a label or flag as
        output.
        """
        for name in outputs:
            if plan.quantities[name].labelled:
                raise PerfgridError(f"{name!r} is a choice or a flag: it has no derivative")
        self.outputs, self.parameters, self.relative, self.sharpness = outputs, parameters, relative, sharpness
        self.small_tangents: dict[str, dict[str, np.ndarray]] = {}  # quantity -> parameter -> tangent
        self.results: dict[str, str] = {}  # what the grid makes of what is asked for -> output
        self._stacks: dict[str, np.ndarray] = {}
        self.signs: dict[str, float] = {}  # of the parameters that reach the grid, relative to their columns
        self._relevant = self._reached(plan)
        super().__init__(plan, dtype, tile_points, progress)

    def _reached(self, plan: Plan) -> set[str]:
        """Quantities through which a derivative may pass: numbers between parameters and outputs, no counts."""
        below: set[str] = set(self.outputs)
        for node in reversed(plan.graph.nodes.values()):
            if node.name in below and node.host is None:
                below |= set(node.arguments)
        found = {p.quantity for p in self.parameters} & below
        for node in plan.graph.nodes.values():
            number = not plan.quantities[node.name].flag and not node.flags and node.host is None
            if number and node.name in below and found & set(node.arguments):
                found.add(node.name)
        return found

    # -- small stage ----------------------------------------------------------------------------------------------

    def _evaluate_small(self) -> dict[str, np.ndarray]:
        start, plan = time.perf_counter(), self.plan
        values: dict[str, Any] = {}
        for name in plan.graph.leaves:
            given, quantity = plan.given_rows(name), plan.quantities[name]
            masks = {p.name: p.mask(np.ones(quantity.inner)) for p in self.parameters if p.quantity == name}
            seeds = {
                parameter: ((given if self.relative else 1.0) * mask.reshape(quantity.inner_shape))[None]
                for parameter, mask in masks.items()
            }
            values[name] = self._settled(name, Dual(given, seeds)) if seeds else given
        with np.errstate(all="ignore"), smoothing(sharpness=self.sharpness):
            for node, done in small_order(plan):
                key = plan.quantities[node.name].key
                arguments = [_brought(values[a], plan.quantities[a].key, key) for a in node.arguments]
                if node.name not in self._relevant:
                    arguments = [value_of(a) for a in arguments]
                values[node.name] = self._settled(node.name, plan.call(node.name, arguments))
                for name in done:
                    del values[name]
        found = {}
        for name in kept_small(plan):
            value = values[name]
            found[name] = value_of(value)
            if isinstance(value, Dual):
                self.small_tangents[name] = {k: t[0] for k, t in value.tangents.items()}
        self.seconds["small"] = time.perf_counter() - start
        return found

    def _settled(self, name: str, result: Any) -> Any:
        """A result in the shape of its quantity; tangents that are 0 everywhere are dropped."""
        shape = self.plan.quantities[name].shape
        value = np.asarray(value_of(result))
        value = value if value.dtype == bool else value.astype(np.float64, copy=False)
        value = np.broadcast_to(value.reshape((1,) * (len(shape) - value.ndim) + value.shape), shape)
        if not isinstance(result, Dual):
            return value
        tangents = {}
        for key, tangent in result.tangents.items():
            tangent = np.asarray(tangent)
            if tangent.any():
                tangents[key] = lifted(tangent, len(shape))
        return Dual(value, tangents) if tangents else value

    # -- tile stage -----------------------------------------------------------------------------------------------

    def _kernels(self) -> list[Kernel]:
        kernels = super()._kernels()
        relevant = [k for k in kernels if k.quantity.name in self._relevant]
        read = {name for kernel in relevant for name, _ in kernel.inputs}
        self._stack(read)
        found = list(kernels)
        for kernel in relevant:
            name, asked = kernel.quantity.name, kernel.quantity.name in self.outputs
            made: list[Kernel] = []
            if name in read or not (asked and self.relative):
                made += self._tangent_kernels(kernel, False)
            if asked and self.relative:
                made += self._over_value(kernel) if name in read else self._tangent_kernels(kernel, True)
            found += made
            if asked and made:
                self.results[made[-1].quantity.name] = name
        self.wanted |= set(self.results)
        return found

    def _stack(self, read: Collection[str]) -> None:
        """Put the tangents of each small quantity that the grid reads side by side along a last axis, in chunks.

        Parameters that act alike, as a bandwidth and its efficiency do, share a column, up to its sign.
        """
        tangents = {name: found for name, found in self.small_tangents.items() if name in read}
        self.stacked: list[list[str]] = []
        distinct: list[dict[str, np.ndarray]] = []
        for parameter in self.parameters:
            mine = {name: found[parameter.name] for name, found in tangents.items() if parameter.name in found}
            for first in list(mine.values())[:1]:  # a parameter that does not reach the grid has none
                self.signs[parameter.name] = sign = float(np.sign(first[first != 0][0]))
                mine = {name: tangent * sign for name, tangent in mine.items()}
                column = next((i for i, other in enumerate(distinct) if same(mine, other)), len(distinct))
                if column == len(distinct):
                    distinct.append(mine)
                    self.stacked.append([])
                self.stacked[column].append(parameter.name)
        count = max(len(self.stacked), 1)
        even = -(-count // -(-count // MOST_AT_ONCE))
        self.width = VECTOR * -(-even // VECTOR)
        self.chunks = -(-count // self.width)
        for name, found in tangents.items():
            shape = np.max([t.shape for t in found.values()], axis=0)
            stack = np.zeros((*shape, self.chunks * self.width), self.dtype)
            for column, mine in enumerate(distinct):
                if name in mine:
                    stack[..., column] = mine[name]
            self._stacks[self._entered(name, shape)] = stack

    def _entered(self, name: str, shape: Sequence[int], label: str = "d {}") -> str:
        """The name of a quantity's derivatives, entered among the quantities on the axes on which they vary."""
        quantity, rank = self.quantities[name], len(self.plan.space.axes)
        key: Key = tuple(p if size > 1 else None for p, size in zip(quantity.key, shape, strict=False))
        varies = {a.name for a, size in zip(self.plan.space.axes, shape, strict=False) if size > 1}
        columns = {axis: names for axis, names in quantity.columns.items() if axis in varies}
        own = dict(zip(quantity.axes, map(int, shape[rank:]), strict=True))
        inner, text = (*(own.get(i, 1) for i in range(len(quantity.inner))), self.width), label.format(name)
        axes = (*quantity.axes, len(quantity.inner))  # parameters come last
        self.quantities[text] = replace(quantity, name=text, columns=columns, key=key, inner=inner, axes=axes)
        return text

    def _input_key(self, name: str, key: TileKey | None) -> TileKey:
        return self._tile_key(self.quantities[name]) if key is None else key

    def _tangent_kernels(self, kernel: Kernel, relative: bool) -> list[Kernel]:
        """The function that makes the tangents of a materialised quantity, or its elasticities; none if all are 0.

        The chain rule: the slope with respect to each element of each argument, times all its tangents. Slopes do not
        depend on the parameter, so that the compiler takes them out of the loop over parameters.
        """
        nodes, key, name = self.plan.graph.nodes, self._tile_key(kernel.quantity), kernel.quantity.name
        inputs = list(kernel.inputs)
        elements = {}
        for argument, _ in kernel.inputs:
            if f"d {argument}" in self.quantities:
                slopes, small = self.quantities[f"d {argument}"], self.plan.quantities[argument].small
                host_key = self._host_key(slopes, self._tile_key(slopes), key) if small else None
                inputs.append((f"d {argument}", host_key))
                elements[argument] = elements_of(self.plan.quantities[argument].inner_shape)
        takes = [self._takes(self._input_key(*i), key) for i in inputs]
        count, rank, axes = len(kernel.inputs), len(kernel.quantity.shape), len(self.plan.space.axes)

        def chained(given: Sequence[Any]) -> Any:
            """The tangents from values and tangents that lie on the rows of the result; None if all are 0."""
            made = {argument: value for (argument, _), value in zip(kernel.inputs, given, strict=False)}
            tangents = dict(zip(elements, given[count:], strict=True))
            for argument, found in elements.items():
                seeds = {
                    (argument, i): lifted(mask[None].astype(self.dtype), axes + mask.ndim)
                    for i, (_, mask) in enumerate(found)
                }
                made[argument] = Dual(made[argument], seeds)
            with smoothing(sharpness=self.sharpness):
                for current in kernel.fused:
                    made[current] = self.plan.call(current, [made[a] for a in nodes[current].arguments])
            result = made[name]
            if not isinstance(result, Dual) or not result.tangents:
                return None

            def behind(array: Any) -> Any:
                return xp.reshape(array, (1,) * (rank - array.ndim) + array.shape + (1,))

            terms = []
            for (argument, i), slope in result.tangents.items():
                tangent = element(tangents[argument], elements[argument][i][0])
                shape = (*tangent.shape[:axes], *(1,) * (rank - axes), self.width)
                terms.append(behind(slope[0]) * xp.reshape(tangent, shape))
            found = reduce(operator.add, terms)
            return elasticity(behind(result.value), found) if relative else found

        with np.errstate(all="ignore"):
            tried = chained([self._probe(*i) for i in inputs]) if elements else None
        if tried is None:
            return []
        label = self._entered(name, tried.shape[:-1], "elasticity of {}" if relative else "d {}")
        how = repr((relative, self.sharpness))
        return [self._made(label, inputs, takes, kernel.fused, lambda *given: chained(given), how)]

    def _probe(self, name: str, key: TileKey | None) -> np.ndarray:
        """Ones of size 2 along every axis on which an input lies, which show whether a result varies along it."""
        quantity = self.quantities[name]
        sizes = tuple(1 if k is None else 2 for k in self._input_key(name, key))
        return np.ones(sizes + quantity.inner_shape, bool if quantity.flag else self.dtype)

    def _over_value(self, kernel: Kernel) -> list[Kernel]:
        """The function that makes elasticities of tangents that are there."""
        name = kernel.quantity.name
        if f"d {name}" not in self.quantities:
            return []
        tangents = self.quantities[f"d {name}"]
        shape = [1 if k is None else 2 for k in kernel.quantity.key] + list(kernel.quantity.inner_shape)
        label = self._entered(name, shape, "elasticity of {}")
        inputs: list[Input] = [(name, None), (tangents.name, None)]
        return [self._made(label, inputs, [[], []], [], lambda value, tangent: elasticity(value[..., None], tangent))]

    # -- results --------------------------------------------------------------------------------------------------

    def chunk(self, number: int) -> list[list[str]]:
        """Make the next `run` about one chunk of the parameters; their names, alike ones together, by the last axis."""
        first = number * self.width
        for label, stack in self._stacks.items():
            self.cast[label] = np.ascontiguousarray(stack[..., first : first + self.width])
        for lane in self._idle:
            lane.prepared = {k: v for k, v in lane.prepared.items() if k[0] not in self._stacks}
            lane.places = {n: place for n, place in lane.places.items() if n in self.plan.quantities}
        return self.stacked[first : first + self.width]

    def derivatives(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """All wanted values, as `collect` gives them, and the derivatives of each output behind an axis of parameters.

        Derivatives are evaluated with the tiles of the values; a parameter that does not matter has zeros.
        """
        rows = {p.name: i for i, p in enumerate(self.parameters)}
        values = self.begun()
        found = {o: np.zeros((len(rows), *values[o].shape), self.dtype) for o in self.outputs}
        for output in self.outputs:
            for parameter, tangent in self.small_tangents.get(output, {}).items():
                tangent = elasticity(self.small[output], tangent) if self.relative else tangent
                found[output][rows[parameter]] = expanded(tangent, self.quantities[output].key)
        for number in range(self.chunks if self.kernels else 0):
            columns = [(c, p) for c, alike in enumerate(self.chunk(number)) for p in alike]
            for tile in self.run():
                for name in tile.values:
                    where, value = self.placed(tile, name)
                    if name in self.results:
                        whole = found[self.results[name]]
                        targets = [(whole[rows[p]][where[:-1]], c, self.signs[p]) for c, p in columns]
                        turn(targets, value)
                    elif number == 0:
                        values[name][where] = value
                    del value
        return values, found


def _brought(value: Any, source: Key, target: Key) -> Any:
    """`bring` for values with tangents, which have size 1 along the axes on which they do not vary."""
    if not isinstance(value, Dual):
        return bring(value, source, target)
    tangents = {}
    for key, tangent in value.tangents.items():
        own = tuple(p if size > 1 else None for p, size in zip(source, tangent.shape[1:], strict=False))
        tangents[key] = bring(tangent[0], own, target)[None]
    return Dual(bring(value.value, source, target), tangents)
