"""The plan of an evaluation: the columns, distinct rows, shape and stage of every quantity.

Nothing is evaluated here; a plan shows what a run will cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce, wraps
from math import prod
from typing import Any

import jax
import numpy as np

from perfgrid.engine.cache import forget, keep, recall
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.inner_axes import AbsentAxis
from perfgrid.engine.graph.namespace import xp
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import Graph, Node, resolve, resolve_checked
from perfgrid.engine.graph.widths import largest
from perfgrid.engine.hashing import digest, digest_of_sources

from .space import Key, Partition, Partitions, Space

SMALL_FRACTION = 1 / 32  # of the grid: smaller quantities are evaluated once, in float64
SMALL_POINTS = 2**14  # up to this always small, so that small studies need no compilation
KIND, MOST_KEPT = "shapes-", 300  # cache prefix; number of studies whose trials are kept, about 100 kB each
SMALL_LIMIT = 2**18  # beyond this never small, so that the small stage fits in memory for any grid


@dataclass(frozen=True)
class Quantity:
    """One quantity of a plan."""

    name: str
    node: Node | None  # None for a given quantity
    columns: dict[str, tuple[str, ...]]  # by axis, those that it depends on
    key: Key
    inner: tuple[int, ...]  # its size along every inner axis
    flag: bool  # boolean
    small: bool
    axes: tuple[int, ...]  # the inner axes that its arrays have
    called_on: tuple[int, ...] = ()  # the inner axes of the arrays that its formula is called with
    width: int = 1  # values of the largest array that its formula makes, for each point

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Distinct rows along each study axis."""
        return tuple(1 if p is None else p.size for p in self.key)

    @cached_property
    def tried_with(self) -> tuple[int, ...]:
        """What a trial of a formula that reads it depends on; inner axes of size 1 are left out."""
        return (*_tried_sizes(self.sizes), *self.axes, *self.inner_shape, self.flag)

    @cached_property
    def points(self) -> int:
        """Distinct study points, inner axes not counted."""
        return prod(self.sizes)

    @property
    def values(self) -> int:
        """Number of values, inner axes included."""
        return self.points * prod(self.inner_shape)

    @property
    def held(self) -> int:
        """Number of values of the largest array that its formula makes, called once for all points."""
        return max(self.values, self.points * self.width)

    @property
    def labelled(self) -> bool:
        """Whether its values are no numbers: true or false, or labels."""
        return self.flag or (self.node is not None and bool(self.node.flags))

    @cached_property
    def inner_shape(self) -> tuple[int, ...]:
        """Its sizes along the inner axes that its arrays have."""
        return tuple(self.inner[i] for i in self.axes)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Its shape where it is evaluated: distinct rows, then the inner axes that it has."""
        return (*self.sizes, *self.inner_shape)

    @property
    def bytes(self) -> int:
        """Bytes of its values where it is evaluated (float64 in the small stage, float32 on the grid)."""
        return self.values * (1 if self.flag else 8 if self.small else 4)


Trial = tuple[tuple[int, ...], bool, tuple[int, ...], int]  # inner sizes, is it a flag, inner axes called on, width


@lru_cache(maxsize=4096)
def varying(inner: tuple[int, ...]) -> tuple[int, ...]:
    """Positions of the inner axes with more than one value."""
    return tuple(i for i, size in enumerate(inner) if size > 1)


@lru_cache(maxsize=4096)
def _tried_sizes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(min(size, 2) for size in sizes)


def _tried_shape(argument: Quantity, sizes: Sequence[int], called_on: Sequence[int]) -> tuple[int, ...]:
    """The shape of an argument in a trial of so many rows of every axis."""
    grid = tuple(1 if p is None else size for p, size in zip(argument.key, sizes, strict=True))
    return grid + tuple(argument.inner[i] for i in called_on)


def _ones(argument: Quantity, sizes: Sequence[int], called_on: Sequence[int]) -> np.ndarray:
    return np.ones(_tried_shape(argument, sizes, called_on), bool if argument.flag else np.float64)


_TRIALS: dict[tuple[str, tuple[Any, ...]], Trial] = {}  # of this process, whatever study a formula was tried for


class Tried:
    """Cached trials: the shapes that formulas returned in earlier runs.

    A formula is identified by its code and constants, a trial by the shapes of the arguments.
    """

    def __init__(self, graph: Graph):
        self.signed, wiring = graph.signatures
        self.key, self.changed = "", False
        self.known: dict[str, Any] = {}
        with suppress(OSError):
            self.key = digest(digest_of_sources(), jax.__version__, np.__version__, wiring)
            self.known = recall(KIND + self.key[:24], self.key) or {}

    def result(self, name: str, given: tuple[Any, ...], attempt: Callable[[], Trial]) -> Trial:
        """The result of a trial with the argument shapes ``given``, from the cache or by ``attempt``."""
        signature = self.signed.get(name)
        if signature is None:
            return attempt()
        there, found = self.known.get(name, (None, None))
        if found is None or there != given:
            found = _TRIALS.get((signature, given)) or attempt()
            self.known[name] = given, found
            self.changed = True
            _TRIALS[signature, given] = found
        return found

    def keep(self) -> None:
        """Write new trials to the cache."""
        if self.changed and self.key:
            keep(KIND + self.key[:24], self.key, self.known)
            forget(KIND, MOST_KEPT)


class Plan:
    """What an evaluation will do. Axes are in evaluation order, see `_evaluation_order`."""

    def __init__(
        self,
        registry: Registry,
        space: Space,
        outputs: Iterable[str],
        choices: Mapping[str, str] | None = None,
        small_points: int | None = None,
        constraints: bool = True,
    ):
        """Resolve and size every quantity.

        ``small_points`` sets the size up to which a quantity is evaluated in the small stage (default: a fraction of
        the grid). Raises PerfgridError for unknown, missing or cyclic quantities and wrong broadcasts, by name.
        """
        for axis in space.axes:
            if axis.name in registry.inner.names:
                raise PerfgridError(f"axis {axis.name!r} has the name of an inner axis; choose another name")
        self.registry, self.study_space, self.outputs = registry, space, tuple(dict.fromkeys(outputs))
        self.choices = dict(choices or {})
        order = resolve_checked if constraints else resolve
        self.graph: Graph = order(registry, self.outputs, space.names(), self.choices, space.label_quantities())
        self.constraints = tuple(n.name for n in self.graph.constraints)
        self.wanted = tuple(dict.fromkeys((*self.outputs, *self.constraints)))
        self.order = self._evaluation_order(space)
        self.space = space.permuted(self.order)
        self.partitions = tuple(Partitions() for _ in self.space.axes)
        self._keys: dict[tuple[Key, Key], Key] = {}
        by_size = int(min(max(space.points * SMALL_FRACTION, SMALL_POINTS), SMALL_LIMIT))
        self.small_points = by_size if small_points is None else small_points
        self.quantities: dict[str, Quantity] = {}
        self._before_host = self.graph.before_host()  # in the small stage, whatever their size
        for name in self.graph.leaves:
            self.quantities[name] = self._leaf(name)
        self._tried = Tried(self.graph)
        for node in self.graph.nodes.values():
            self.quantities[node.name] = self._computed(node)
        self._tried.keep()

    def _evaluation_order(self, space: Space) -> tuple[int, ...]:
        """The order of axes: plain ones by length, those with several used columns, and last the longest plain one."""
        used = set(self.graph.leaves)
        factored = [len(used & set(a.columns)) > 1 and len(a) > 1 for a in space.axes]
        plain = sorted((i for i, f in enumerate(factored) if not f), key=lambda i: len(space.axes[i]))
        return (*plain[:-1], *(i for i, f in enumerate(factored) if f), *plain[-1:])

    # -- quantities -----------------------------------------------------------------------------------------------

    def _is_small(self, key: Key) -> bool:
        return prod(1 if p is None else p.size for p in key) <= self.small_points

    def _leaf(self, name: str) -> Quantity:
        key: list[Partition | None] = [None] * len(self.space.axes)
        columns: dict[str, tuple[str, ...]] = {}
        inner, flag = (1,) * len(self.registry.inner), False
        for axis, values in self.space.parts(name):
            trailing = (1,) * (len(inner) - values.ndim + 1) + values.shape[1:]
            if len(trailing) != len(inner):
                raise PerfgridError(
                    f"quantity {name!r} has {values.ndim - 1} inner axes and not {len(inner)}: of another version"
                )
            inner = tuple(max(a, b) for a, b in zip(inner, trailing, strict=True))
            flag = flag or values.dtype == bool
            if axis is not None:
                table = self.partitions[axis]
                key[axis] = table.join(key[axis], table.by_values(values))
                columns[self.space.axes[axis].name] = (name,)
        return Quantity(name, None, columns, tuple(key), inner, flag, small=True, axes=varying(inner))

    def _computed(self, node: Node) -> Quantity:
        arguments = [self.quantities[a] for a in node.arguments]
        key: Key = reduce(self._joined, (a.key for a in arguments), (None,) * len(self.space.axes))
        columns: dict[str, tuple[str, ...]] = {}
        for argument in arguments:
            for axis, names in argument.columns.items():
                before = columns.get(axis, names)
                columns[axis] = names if before is names else tuple(dict.fromkeys((*before, *names)))
        sizes = tuple(1 if p is None else p.size for p in key)
        small = node.name in self._before_host or self._is_small(key)
        given = (small, _tried_sizes(sizes), *(a.tried_with for a in arguments))
        trial = self._tried.result(node.name, given, lambda: self._trial(node, arguments, sizes, small))
        inner, flag, called_on, width = trial
        return Quantity(node.name, node, columns, key, inner, flag, small, varying(inner), called_on, width)

    def _joined(self, one: Key, other: Key) -> Key:
        """The coarsest key that tells apart whatever either does; few pairs of keys occur, each of them often."""
        if one is other:
            return one
        if (one, other) not in self._keys:
            self._keys[one, other] = tuple(
                table.join(a, b) for table, a, b in zip(self.partitions, one, other, strict=True)
            )
        return self._keys[one, other]

    def _trial(self, node: Node, arguments: list[Quantity], sizes: tuple[int, ...], small: bool) -> Trial:
        """Try one formula on small shapes: a wrong broadcast or reduction fails here, with the formula's name.

        The arrays have the inner axes of the arguments and those that the formula puts values on, by name (`table`,
        `only`): where it names one that they lack it is called again with that one. A formula never counts axes.
        """
        called_on = tuple(sorted({i for a in arguments for i in a.axes}))
        if node.host is not None:  # declares its shape
            own = map(self.registry.inner.names.index, node.host.axes)
            return node.host.shape(self.registry.inner.names), False, tuple(sorted({*called_on, *own})), 1
        sizes = tuple(min(size, 2) for size in sizes)
        while True:
            try:
                inner, kind = self._shape_of_result(node, arguments, sizes, called_on, small)
                break
            except AbsentAxis as absent:
                called_on = tuple(sorted({*called_on, self.registry.inner.names.index(absent.axis)}))
            except PerfgridError:
                raise
            except Exception as error:
                shapes = ", ".join(f"{a.name} {a.inner}" for a in arguments)
                raise PerfgridError(f"formula {node.name!r} fails on inner shapes ({shapes}): {error}") from error
        flag = kind == np.bool_
        if not flag and kind.kind in "OUSc":
            raise PerfgridError(f"formula {node.name!r} must return numbers, found {kind}")
        if node.constraint is not None and not flag:
            raise PerfgridError(f"constraint {node.name!r} must return booleans, found {kind}")
        if node.constraint is not None and any(size > 1 for size in inner):
            raise PerfgridError(f"constraint {node.name!r} must be reduced over its inner axes")
        return inner, flag, called_on, self._width(node, arguments, sizes, called_on)

    def _shape_of_result(
        self, node: Node, arguments: list[Quantity], sizes: tuple[int, ...], called_on: tuple[int, ...], small: bool
    ) -> tuple[tuple[int, ...], Any]:
        """Inner sizes and type of what a formula returns on two rows of every axis and some inner axes.

        In the small stage it is called on NumPy arrays of ones, thirty times faster than tracing. On the grid it is
        traced by JAX, which rejects formulas that branch on values.
        """
        labels = tuple(self.registry.inner.labels.values())
        with self.registry.inner.only_axes(self._inner_names(called_on)):
            if small:
                ones = [_ones(a, sizes, called_on) for a in arguments]
                with np.errstate(all="ignore"):
                    tried = np.asarray(node.function(*ones))
            else:
                kinds = [
                    jax.ShapeDtypeStruct(_tried_shape(a, sizes, called_on), bool if a.flag else np.float32)
                    for a in arguments
                ]
                anew = wraps(node.function)(lambda *given: node.function(*given))  # JAX keeps results by function
                tried = jax.eval_shape(anew, *kinds)
        rank = len(sizes) + len(called_on)
        shape = (1,) * (rank - len(tried.shape)) + tuple(tried.shape)
        found = dict(zip(called_on, shape[len(sizes) :], strict=False))
        legal = all(n in (1, len(labels[i])) for i, n in found.items())
        if len(shape) != rank or shape[: len(sizes)] != sizes or not legal:
            raise PerfgridError(
                f"formula {node.name!r} returns shape {shape} on a grid of {sizes} with inner axes "
                f"{self._inner_names(called_on)}: study axes must be kept, inner axes have size 1 or one per label"
            )
        return tuple(found.get(i, 1) for i in range(len(labels))), tried.dtype

    def _width(self, node: Node, arguments: list[Quantity], sizes: tuple[int, ...], called_on: tuple[int, ...]) -> int:
        with self.registry.inner.only_axes(self._inner_names(called_on)):
            return -(-largest(node.function, [_ones(a, sizes, called_on) for a in arguments]) // prod(sizes))

    def _inner_names(self, axes: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.registry.inner.names[i] for i in axes)

    # -- values ---------------------------------------------------------------------------------------------------

    def given_rows(self, name: str) -> np.ndarray:
        """A given quantity on its distinct rows."""
        quantity, rank = self.quantities[name], len(self.space.axes)
        result: Any = None
        for axis, values in self.space.parts(name):
            trailing = (1,) * (len(quantity.inner) - values.ndim + 1) + values.shape[1:]
            if axis is None:
                part = values.reshape((1,) * rank + trailing)
            else:
                partition = quantity.key[axis]
                rows = values[:1] if partition is None else values[partition.rows]
                part = rows.reshape(tuple(len(rows) if i == axis else 1 for i in range(rank)) + trailing)
            result = part if result is None else result * part
        return np.asarray(result).reshape(quantity.shape)

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        """The value of a computed quantity from those of its arguments: arrays of all study axes and own inner axes.

        Arguments are NumPy or JAX arrays, or values with derivatives. The caller aligns them along study axes.
        """
        quantity, rank = self.quantities[name], len(self.space.axes)
        node, called_on = quantity.node, quantity.called_on
        assert node is not None
        given = []
        for argument, value in zip(node.arguments, arguments, strict=True):
            read = self.quantities[argument]
            if read.axes != called_on:
                value = xp.reshape(value, (*np.shape(value)[:rank], *(read.inner[i] for i in called_on)))
            given.append(value)
        with self.registry.inner.only_axes(self._inner_names(called_on)):
            result = node.function(*given)
        shape = getattr(result, "shape", ())
        if called_on == quantity.axes and len(shape) == rank + len(called_on):  # its shape already, as for most
            return result
        own = ((1,) * (rank + len(called_on) - len(shape)) + shape)[:rank] + quantity.inner_shape
        return result if own == shape else xp.reshape(result, own)

    def concerning(self, *names: str) -> tuple[str, ...]:
        """The wanted constraints that concern some quantities."""
        return tuple(c for c in self.graph.concerning(names) if c in self.wanted)

    # -- what users see -------------------------------------------------------------------------------------------

    def result_bytes(self, dtype: str = "float32") -> int:
        """Bytes of all wanted quantities on their own axes (zipped axes expanded)."""
        sizes = {name: int(np.prod(self.result_shape(name), dtype=np.int64)) for name in self.wanted}
        return sum(n * (1 if self.quantities[name].flag else np.dtype(dtype).itemsize) for name, n in sizes.items())

    def result_shape(self, name: str) -> tuple[int, ...]:
        """The shape of a wanted quantity with every axis that it depends on at full length (evaluation order)."""
        quantity = self.quantities[name]
        return (*(len(a) if a.name in quantity.columns else 1 for a in self.space.axes), *quantity.inner_shape)

    def describe(self) -> list[dict[str, Any]]:
        """One row per quantity: name, unit, stage, columns by axis, inner axes, points, bytes, formula source."""
        rows = []
        for q in self.quantities.values():
            inner = list(self._inner_names(q.axes))
            rows.append(
                {
                    "quantity": q.name,
                    "stage": "given" if q.node is None else "once" if q.small else "grid",
                    "columns": {axis: list(names) for axis, names in q.columns.items()},
                    "inner": inner,
                    "points": q.points,
                    "values": q.values,
                    "bytes": q.bytes,
                    "unit": "" if q.node is None else q.node.unit,
                    "source": "" if q.node is None else q.node.source,
                    "wanted": q.name in self.wanted,
                }
            )
        return rows
