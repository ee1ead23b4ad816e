"""Derivatives of outputs with respect to given quantities at every point of a grid, in forward mode through the plan.

A grid is evaluated point by point along its study axes, so one tangent per parameter gives the exact derivative at
every point. Tangents travel through the same stages as values (`engine.dual`): in the small stage in NumPy, all
parameters at once; on the grid in one compiled function per materialised quantity and pattern of tangents, which all
parameters of that pattern share. What a parameter does not reach, or reaches with slope 0 everywhere, costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .dual import Dual
from .errors import PerfgridError, nearest
from .namespace import xp
from .plan import Plan
from .space import Key
from .stages import Evaluation, Kernel, Progress, TileKey, bring

TILE_POINTS = 2**19  # a tile holds every tangent at once
DIRECTION = 0  # the key of the one tangent of a compiled function


@dataclass(frozen=True)
class Parameter:
    """One direction of differentiation: a given quantity, or one label of it along each of its inner axes."""

    name: str
    quantity: str
    inner: tuple[int, ...]  # the row along each inner axis; -1 where it does not lie on the axis

    def mask(self, value: np.ndarray) -> np.ndarray:
        """1 where this parameter moves the quantity and 0 elsewhere, in the quantity's inner shape."""
        sizes = value.shape[value.ndim - len(self.inner) :]
        result = np.zeros(sizes)
        result[tuple(slice(None) if row < 0 else slice(row, row + 1) for row in self.inner)] = 1.0
        return result


def parameters_of(plan: Plan, names: Iterable[str]) -> tuple[Parameter, ...]:
    """The parameters of the named given quantities; a vector along inner axes has one per label, ``name[label]``.

    ``name[label]`` names one of them. Raises PerfgridError for a name that the plan's outputs do not rest on.
    """
    inner, found = plan.registry.inner, dict[str, Parameter]()
    for text in names:
        name, _, rest = text.partition("[")
        if name not in plan.graph.leaves:
            raise PerfgridError(
                f"the outputs do not rest on a given quantity {name!r}{nearest(name, plan.graph.leaves)}"
            )
        shape = plan.quantities[name].inner
        if all(size == 1 for size in shape):
            members = {name: Parameter(name, name, (-1,) * len(shape))}
        else:
            rows = product(*(range(size) if size > 1 else (-1,) for size in shape))
            members = {}
            for row in rows:
                labels = [inner.labels[axis][r] for axis, r in zip(inner.names, row, strict=True) if r >= 0]
                label = f"{name}[{','.join(labels)}]"
                members[label] = Parameter(label, name, row)
        if rest and text not in members:
            raise PerfgridError(f"{name!r} has no part {text!r}{nearest(text, members)}")
        found |= {text: members[text]} if rest else members
    return tuple(found.values())


class Sensitivity(Evaluation):
    """An evaluation with tangents: `collect` gives values as ever, `derivatives` the derivatives of the outputs."""

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

        ``sharpness``: None for exact derivatives, else as in `engine.dual`. PerfgridError for a label or flag as
        output.
        """
        for name in outputs:
            quantity = plan.quantities[name]
            if quantity.flag or (quantity.node is not None and quantity.node.flags):
                raise PerfgridError(f"{name!r} is a choice or a flag: it has no derivative")
        self.outputs, self.parameters, self.relative, self.sharpness = outputs, parameters, relative, sharpness
        self.tangents: dict[tuple[str, str], str] = {}  # (quantity, parameter) -> the name of its tangent
        self.results: dict[tuple[str, str], str] = {}  # (output, parameter) -> the name of what is asked for
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
        readers = plan.graph.readers()
        small = {name for name, q in plan.quantities.items() if q.small}
        kept = {n for n in small if n in plan.wanted or any(r not in small for r in readers[n])}
        left = {n: sum(r in small for r in readers[n]) for n in small}
        values: dict[str, Any] = {}
        for name in plan.graph.leaves:
            given = self._given(name)
            seeds = {
                p.name: (given if self.relative else 1.0) * p.mask(given) for p in self.parameters if p.quantity == name
            }
            values[name] = self._settled(name, Dual(given, seeds, self.sharpness)) if seeds else given
        with np.errstate(all="ignore"):
            for node in plan.graph.nodes.values():
                quantity = plan.quantities[node.name]
                if not quantity.small:
                    continue
                arguments = [_brought(values[a], plan.quantities[a].key, quantity.key) for a in node.arguments]
                if node.name not in self._relevant:
                    arguments = [a.value if isinstance(a, Dual) else a for a in arguments]
                values[node.name] = self._settled(node.name, node.function(*arguments))
                for argument in set(node.arguments):
                    left[argument] -= 1
                    if left[argument] == 0 and argument not in kept:
                        del values[argument]
        found = {}
        for name in kept:
            value = values[name]
            found[name] = value.value if isinstance(value, Dual) else value
            for parameter, tangent in value.tangents.items() if isinstance(value, Dual) else ():
                found[self._entered(name, parameter, tangent.shape)] = tangent
        self.seconds["small"] = time.perf_counter() - start
        return found

    def _settled(self, name: str, result: Any) -> Any:
        """A result in the shape of its quantity; tangents that are 0 everywhere are dropped."""
        shape = self.plan.quantities[name].shape
        value = np.asarray(result.value if isinstance(result, Dual) else result)
        value = value if value.dtype == bool else value.astype(np.float64, copy=False)
        value = np.broadcast_to(value.reshape((1,) * (len(shape) - value.ndim) + value.shape), shape)
        if not isinstance(result, Dual):
            return value
        tangents = {}
        for key, tangent in result.tangents.items():
            tangent = np.asarray(tangent)
            if tangent.any():
                tangents[key] = tangent.reshape((1,) * (len(shape) - tangent.ndim) + tangent.shape)
        return Dual(value, tangents, self.sharpness) if tangents else value

    def _entered(self, name: str, parameter: str, shape: Sequence[int]) -> str:
        """The name of a tangent, entered among the quantities on the axes on which it varies."""
        quantity, rank = self.quantities[name], len(self.plan.space.axes)
        varies = dict(zip((a.name for a in self.plan.space.axes), (size > 1 for size in shape[:rank]), strict=True))
        key: Key = tuple(p if on else None for p, on in zip(quantity.key, varies.values(), strict=True))
        columns = {axis: names for axis, names in quantity.columns.items() if varies[axis]}
        label = f"d {name} / d {parameter}"
        self.quantities[label] = replace(quantity, name=label, columns=columns, key=key, inner=tuple(shape[rank:]))
        self.tangents[name, parameter] = label
        return label

    # -- tile stage -----------------------------------------------------------------------------------------------

    def _kernels(self) -> list[Kernel]:
        kernels = super()._kernels()
        found, asked = list(kernels), set(self.outputs)
        read = {n for kernel in kernels for n, _ in kernel.inputs if kernel.quantity.name in self._relevant}
        for kernel in kernels:
            name = kernel.quantity.name
            if name not in self._relevant:
                continue
            patterns: dict[Any, Any] = {}
            for parameter in self.parameters:
                made = self._tangent_kernel(kernel, parameter.name, patterns, self.relative) if name in asked else None
                if made is not None:
                    found.append(made)
                    self.results[name, parameter.name] = made.quantity.name
                    self.wanted.add(made.quantity.name)
                if name in read and (name not in asked or self.relative):
                    made = self._tangent_kernel(kernel, parameter.name, patterns, False)
                    found += [] if made is None else [made]
        return found

    def _tangent_kernel(
        self, kernel: Kernel, parameter: str, patterns: dict[Any, Any], relative: bool
    ) -> Kernel | None:
        """The function that makes one tangent of a materialised quantity (or its elasticity); None where it is 0."""
        key = self._tile_key(kernel.quantity)
        inputs = list(kernel.inputs)
        sources = []  # which input each tangent belongs to
        for number, (name, _) in enumerate(kernel.inputs):
            label = self.tangents.get((name, parameter))
            if label is not None:
                own = self._tile_key(self.quantities[label])
                small = self.plan.quantities[name].small
                inputs.append((label, self._host_key(own, key) if small else None))
                sources.append(number)
        if not sources:
            return None
        pattern = (relative, tuple(sources), tuple(self._input_key(*i) for i in inputs[len(kernel.inputs) :]))
        pattern = (*pattern, tuple(self.quantities[n].inner for n, _ in inputs[len(kernel.inputs) :]))
        if pattern not in patterns:
            patterns[pattern] = self._tangent_function(kernel, inputs, sources, relative)
        if patterns[pattern] is None:
            return None
        function, probe = patterns[pattern]
        name = kernel.quantity.name
        known = self.tangents.get((name, parameter))
        label = self._entered(name, parameter, probe)
        if relative:  # an elasticity is no tangent: others must not read it
            self.quantities[f"elasticity {label}"] = replace(self.quantities[label], name=f"elasticity {label}")
            if known is None:
                del self.tangents[name, parameter]
            label = f"elasticity {label}"
        quantity = self.quantities[label]
        shape = (*self._tile_sizes(self._tile_key(quantity)), *quantity.inner)
        return Kernel(quantity, inputs, kernel.fused, function, shape)

    def _input_key(self, name: str, key: TileKey | None) -> TileKey:
        return self._tile_key(self.quantities[name]) if key is None else key

    def _tangent_function(
        self, kernel: Kernel, inputs: Sequence[tuple[str, TileKey | None]], sources: Sequence[int], relative: bool
    ) -> tuple[Callable[..., Any], tuple[int, ...]] | None:
        """A function of values and tangents, and the shape of its result where every axis of the tile has size 2."""
        nodes, key, name = self.plan.graph.nodes, self._tile_key(kernel.quantity), kernel.quantity.name
        takes = [self._takes(self._input_key(*i), key) for i in inputs]
        count, dtype, sharpness = len(kernel.inputs), self.dtype, self.sharpness

        def tangent(given: Sequence[Any]) -> Any:
            gathered = []
            for value, found in zip(given, takes, strict=True):
                for axis, index in found:
                    value = jnp.take(value, index, axis=axis, mode="clip")
                gathered.append(value)
            made: dict[str, Any] = {n: v for (n, _), v in zip(inputs[:count], gathered, strict=False)}
            for number, value in zip(sources, gathered[count:], strict=True):
                made[inputs[number][0]] = Dual(gathered[number], {DIRECTION: value}, sharpness)
            for current in kernel.fused:
                made[current] = nodes[current].function(*(made[a] for a in nodes[current].arguments))
            result = made[name]
            if not isinstance(result, Dual) or DIRECTION not in result.tangents:
                return None
            found = result.tangents[DIRECTION]
            if relative:
                zero = result.value == 0
                found = xp.where(zero, 0.0, found / xp.where(zero, 1.0, result.value))
            return jnp.asarray(found)

        probes = []
        for label, given in inputs:
            quantity, tile_key = self.quantities[label], self._input_key(label, given)
            sizes = tuple(1 if k is None else getattr(k, "size", 2) for k in tile_key)
            probes.append(jax.ShapeDtypeStruct(sizes + quantity.inner, bool if quantity.flag else dtype))
        with jax.enable_x64(dtype == np.float64):
            traced = jax.eval_shape(lambda *given: tangent(given), *probes)
        if traced is None:
            return None
        probe = (1,) * (len(key) + len(kernel.quantity.inner) - len(traced.shape)) + tuple(traced.shape)
        if traced.dtype != dtype:
            raise PerfgridError(f"the derivative of {name!r} is {traced.dtype} on a {dtype} grid")

        def function(buffer: Any, *given: Any) -> Any:
            return jnp.broadcast_to(tangent(given), buffer.shape)

        function.__name__ = f"d_{name}"
        return function, probe

    # -- results --------------------------------------------------------------------------------------------------

    def derivatives(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """All wanted values, as `collect` gives them, and the derivatives of each output behind an axis of parameters.

        Derivatives are evaluated with the tiles of the values; a parameter that does not matter has zeros.
        """
        plan, rows = self.plan, {p.name: i for i, p in enumerate(self.parameters)}
        values = {n: self.small_result(n) for n in plan.wanted if plan.quantities[n].small}
        shapes = {n: plan.result_shape(n) for n in plan.wanted}
        for name in plan.wanted:
            if name not in values:
                values[name] = np.empty(shapes[name], bool if plan.quantities[name].flag else self.dtype)
        found = {o: np.zeros((len(rows), *shapes[o]), self.dtype) for o in self.outputs}
        for output in self.outputs:
            for parameter, row in rows.items():
                if plan.quantities[output].small and (label := self.tangents.get((output, parameter))) is not None:
                    found[output][row] = self._small_derivative(output, label)
        back = {label: pair for pair, label in self.results.items()}
        for tile in self.run():
            for name in tile.values:
                where, value = self.placed(tile, name)
                if name in back:
                    output, parameter = back[name]
                    found[output][rows[parameter]][where] = value
                else:
                    values[name][where] = value
                del value
        return values, found

    def _small_derivative(self, output: str, label: str) -> np.ndarray:
        value, tangent = self.small[output], self.small[label]
        if self.relative:
            zero = value == 0
            tangent = np.where(zero, 0.0, tangent / np.where(zero, 1.0, value))
        return self.expanded(tangent, self.quantities[output].key)


def _brought(value: Any, source: Key, target: Key) -> Any:
    """`bring` for values with tangents, which have size 1 along the axes on which they do not vary."""
    if not isinstance(value, Dual):
        return bring(value, source, target)
    tangents = {}
    for key, tangent in value.tangents.items():
        own = tuple(p if size > 1 else None for p, size in zip(source, tangent.shape, strict=False))
        tangents[key] = bring(tangent, own, target)
    return Dual(bring(value.value, source, target), tangents, value.sharpness)
