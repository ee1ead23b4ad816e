"""What a tile is evaluated by: its materialised quantities, and the compiled functions that make them.

Most quantities vary along every axis of a tile. One function makes them all, part by part: a part fits a cache, so that
what it computes is read again from there, and of a tile only what is wanted is written to memory, in place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.namespace import xp
from perfgrid.engine.graph.rows import over_leaves, whole
from perfgrid.engine.grid.plan import Plan, Quantity
from perfgrid.engine.grid.tiles import TileKey, Tiles
from perfgrid.engine.hashing import digest

PART_POINTS = 2**17  # of a tile that are evaluated at once, so that twenty quantities of theirs fit a cache
PART_VALUES = 2**22  # of one array that a formula makes of a part: for wide formulas parts have fewer points
PART_CALLS = 2**11  # points that are evaluated in the time that a part takes whatever its size

Input = tuple[str, TileKey | None]  # a quantity, and the key it is brought to on the host; None: one of the grid
Takes = list[tuple[int, np.ndarray]]  # along an axis, which row of an input each row of what reads it takes


def materialised(plan: Plan, tiles: Tiles) -> set[str]:
    """The quantities of the tile stage that have a buffer; each of the others is fused into the one that reads it.

    They are wanted, or read by two materialised ones, or smaller than a reader, which would compute them repeatedly.
    """
    readers = plan.graph.readers
    rows = {n: prod(tiles.rows_of(tiles.key(q.key))) for n, q in plan.quantities.items() if not q.small}
    chosen: set[str] = set()
    roots: dict[str, set[str]] = {}  # the materialised quantities that a fused one is part of
    for name in reversed(plan.graph.nodes):
        if name not in rows:
            continue
        mine: set[str] = set()
        for reader in readers[name]:
            mine |= {reader} if reader in chosen else roots[reader]
        if name in plan.wanted or len(mine) > 1 or any(rows[name] < rows[r] for r in readers[name]):
            chosen.add(name)
        roots[name] = mine
    return chosen


@dataclass
class Kernel:
    """One materialised quantity of the tile stage: what it reads, what is fused into it, what makes its values."""

    quantity: Quantity
    key: TileKey
    inputs: list[Input]
    takes: list[Takes]  # one per input
    fused: list[str]
    result: Callable[..., Any]  # of the inputs on the rows of the quantity
    shape: tuple[int, ...]  # in a tile
    dtype: np.dtype[Any]
    signature: str | None = None  # of all that decides what is compiled; None where that is unknown
    width: int = 1  # values of the largest array that its formulas make, for each point

    def values(self, given: Sequence[Any], shape: tuple[int, ...], cut: Collection[int] = ()) -> Any:
        """Its values in an array of some shape, from inputs that are on the right rows along the axes ``cut``."""
        rows = []
        for value, takes in zip(given, self.takes, strict=True):
            for axis, index in takes:
                if axis not in cut:
                    value = xp.take(value, index, axis=axis, mode="clip")
            rows.append(value)
        found = self.result(*rows)
        if found.dtype not in (bool, self.dtype):
            raise PerfgridError(f"the {self.quantity.name} is {found.dtype} on a {self.dtype} grid")
        wide = xp.broadcast_to(found, shape)
        return over_leaves(lambda arrays: [array.astype(self.dtype) for array in arrays], wide)


@dataclass
class Call:
    """One compiled function: a kernel, or many that are evaluated together part by part, and those it hands out."""

    kernels: list[Kernel]
    kept: list[Kernel]
    parts: Tiles | None = None  # of a tile; None: whole
    inputs: list[Input] = field(init=False)
    compiled: Any = None

    def __post_init__(self) -> None:
        made = {k.quantity.name for k in self.kernels}
        self.inputs = [i for i in dict.fromkeys(i for k in self.kernels for i in k.inputs) if i[0] not in made]

    @property
    def name(self) -> str:
        """That of its last kernel."""
        return self.kernels[-1].quantity.name

    @property
    def key(self) -> TileKey:
        """The rows on which its kernels lie, along the axes that tiles cut."""
        return self.kernels[-1].key

    @cached_property
    def signature(self) -> str | None:
        """Of all that decides what is compiled; None where that is unknown."""
        wiring = [repr((self.parts, [k.quantity.name for k in self.kept]))]
        for kernel in self.kernels:
            if kernel.signature is None:
                return None
            read = [self.inputs.index(i) for i in kernel.inputs if i in self.inputs]  # one name may be two inputs
            wiring += [kernel.signature, repr(read)]
        return digest(*wiring)

    def function(self, buffers: list[Any], given: list[Any]) -> list[Any]:
        """What is compiled: the values of what is kept, from arrays that they may overwrite and from the inputs."""
        if self.parts is None:
            (kernel,) = self.kernels
            return [whole(kernel.values(given, kernel.shape))]
        return lax.fori_loop(0, self.parts.count, lambda number, found: self._part(number, found, given), buffers)

    def _part(self, number: Any, buffers: list[Any], given: list[Any]) -> list[Any]:
        """The buffers with the values of one part.

        A barrier keeps the compiler from computing a quantity again in everything that reads it. What is kept is read
        again from where it was written: an array of its own beside it would be written twice.
        """
        assert self.parts is not None
        starts, sizes = _starts(self.parts, number), self.parts.shape
        cut = [axis for axis, (part, tile) in enumerate(zip(sizes, self.parts.sizes, strict=True)) if part < tile]
        read = {name for k in self.kernels for name, _ in k.inputs}
        found = dict(zip((k.quantity.name for k in self.kept), buffers, strict=True))
        values: dict[Input | str, Any] = {}
        for kernel in self.kernels:
            name, rows = kernel.quantity.name, []
            for i, takes in zip(kernel.inputs, kernel.takes, strict=True):
                key = i if i in self.inputs else i[0]
                if key not in values:
                    values[key] = _rows_of_part(given[self.inputs.index(i)], dict(takes), starts, sizes, cut)
                rows.append(values[key])
            shape = tuple(sizes[axis] if axis in cut and n > 1 else n for axis, n in enumerate(kernel.shape))
            at = [*starts, *(np.int32(0),) * (len(shape) - len(starts))]
            value = kernel.values(rows, shape, cut)
            if name in found:
                found[name] = lax.dynamic_update_slice(found[name], whole(value), at)
            if name in read and name in found:
                found[name] = lax.optimization_barrier(found[name])
                value = lax.dynamic_slice(found[name], at, shape)
            elif name in read:
                value = over_leaves(lax.optimization_barrier, value)
            values[name] = value
        return [found[k.quantity.name] for k in self.kept]


def _starts(parts: Tiles, number: Any) -> list[Any]:
    """The first row of a part along each axis of a tile."""
    starts: list[Any] = [np.int32(0)] * len(parts.sizes)
    number = lax.convert_element_type(number, np.int32)  # 64 bits in a grid of float64
    for axis in range(parts.axis, -1, -1):
        rows = parts.chunk if axis == parts.axis else 1
        count = -(-parts.sizes[axis] // rows)
        if count > 1:
            starts[axis] = lax.rem(number, np.int32(count)) * np.int32(rows)
            number = lax.div(number, np.int32(count))
    return starts


def _rows_of_part(
    value: Any, taken: Mapping[int, np.ndarray], starts: Sequence[Any], sizes: Sequence[int], cut: Collection[int]
) -> Any:
    """The rows of an input that a part reads along the axes that parts cut."""
    begin, size = [np.int32(0)] * value.ndim, list(value.shape)
    for axis in cut:
        if value.shape[axis] > 1:
            begin[axis] = jnp.asarray(taken[axis])[starts[axis]] if axis in taken else starts[axis]
            size[axis] = sizes[axis]
    return lax.dynamic_slice(value, begin, size)


def _parts(kernels: Sequence[Kernel], largest: Kernel, width: int) -> Tiles:
    """Parts of a tile, small enough for formulas of some width.

    What reads rows here and there is not cut into several rows of the axis: such gathers are slow.
    """
    sizes = largest.shape[: len(largest.key)]
    points = min(PART_POINTS, max(1, PART_VALUES // width))
    parts = Tiles.cut(sizes, points, min(PART_CALLS, points))
    if parts.chunk > 1 and any(axis == parts.axis for k in kernels for takes in k.takes for axis, _ in takes):
        before = [axis for axis in range(parts.axis) if sizes[axis] > 1]
        return Tiles(sizes, before[-1] if before else -1, 1)
    return parts


def _together(kernels: Sequence[Kernel], largest: Kernel, parts: Tiles, cut: int) -> list[Kernel]:
    """Those on the rows of the largest along all axes that tiles or parts cut."""
    first = max(cut, parts.axis) + 1
    return [k for k in kernels if all(a is b for a, b in zip(k.key[:first], largest.key[:first], strict=True))]


def _alone(kernel: Kernel) -> Call:
    """A function of its own, in parts only where a formula is so wide that the arrays on its way fill the memory."""
    if kernel.width * prod(kernel.shape) <= PART_VALUES:
        return Call([kernel], [kernel])
    parts = _parts([kernel], kernel, kernel.width)
    return Call([kernel], [kernel], parts if parts.count > 1 else None)


def calls_of(kernels: Sequence[Kernel], wanted: Collection[str], cut: int, in_parts: bool) -> list[Call]:
    """The kernels in the functions that make them.

    Where a tile has parts (``in_parts``: if it is large, on a processor; an accelerator is quicker with whole tiles),
    kernels on the rows of the largest along all axes that tiles (up to axis ``cut``) or parts cut are made together.
    Every other has a function of its own, before them or, if it is finer along such an axis and reads them, after.
    """
    largest = max(kernels, key=lambda k: int(np.prod(k.shape[: len(k.key)], dtype=np.int64)), default=None)
    if largest is None or not in_parts or jax.default_backend() != "cpu":
        return [Call([k], [k]) for k in kernels]
    parts = _parts(kernels, largest, 1)
    together = _together(kernels, largest, parts, cut)
    parts = _parts(kernels, largest, max(k.width for k in together))
    if parts.count == 1:
        return [_alone(k) for k in kernels]
    together = _together(together, largest, parts, cut)
    finer, before, after = {k.quantity.name for k in together}, [], []
    for kernel in kernels:
        if kernel not in together:
            later = any(name in finer for name, _ in kernel.inputs)
            finer |= {kernel.quantity.name} if later else set()
            (after if later else before).append(_alone(kernel))
    asked = {*wanted, *(name for call in after for name, _ in call.inputs)}
    return [*before, Call(together, [k for k in together if k.quantity.name in asked], parts), *after]
