"""The evaluation of a plan: small quantities once in NumPy, then what is larger tile by tile in compiled functions.

A quantity of the tile stage is materialised if it is wanted, if two materialised quantities read it, or if it is
smaller than its reader (so that it is not computed again for every reader's point); everything else is fused into its
one reader. The buffers of one tile are donated to a later one, which spares the page faults of fresh memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfgrid.engine.cache import cache_folder
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.namespace import xp
from perfgrid.engine.graph.rows import compiled_by_row, whole
from perfgrid.engine.grid.plan import Plan, Quantity
from perfgrid.engine.grid.space import Partition
from perfgrid.engine.grid.tiles import ROWS, TileKey, Tiles
from perfgrid.engine.hashing import signature_of

from .compiled import Compiled
from .lanes import Lane, Tile, in_turn, tiles_at_once
from .materialised import Call, Input, Kernel, Takes, calls_of, materialised
from .small_stage import expanded, small_values

TILE_POINTS = 2**22
_PACKAGE = __name__.partition(".")[0] + "."
Progress = Callable[[str, int, int], None]  # ("compile" | "evaluate", done, total)


def enable_compilation_cache() -> None:
    """Keep compiled functions on disk, in ``PERFGRID_CACHE`` or the user's cache, unless JAX has a place already."""
    folder = cache_folder()
    if folder is None or jax.config.values.get("jax_compilation_cache_dir"):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder / version("perfgrid")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def check_precision(dtype: str) -> None:
    """PerfgridError unless a grid can be evaluated in this precision."""
    if dtype not in ("float32", "float64"):
        raise PerfgridError(f"precision of the grid must be float32 or float64, found {dtype!r}")


class Evaluation:
    """A plan made ready to run."""

    in_parts = True  # tiles are evaluated part by part, where that is quicker

    def __init__(
        self,
        plan: Plan,
        dtype: str = "float32",
        tile_points: int | Tiles = TILE_POINTS,
        progress: Progress | None = None,
    ):
        """``dtype`` is that of the tile stage: float32, or float64 for an audit. PerfgridError for any other.

        ``tile_points``: of a tile at most, or the tiles themselves, as a store was cut once.
        """
        check_precision(dtype)
        self.plan, self.dtype, self.progress = plan, np.dtype(dtype), progress or (lambda *_: None)
        self.tiles = tile_points if isinstance(tile_points, Tiles) else Tiles.cut(plan.space.shape, tile_points)
        self.seconds: dict[str, float] = {}
        self.quantities = dict(plan.quantities)
        self.wanted = set(plan.wanted)  # of these, a tile hands out what the tile stage makes
        self._idle: list[Lane] = []
        self.small = self._evaluate_small()
        self.cast: dict[str, np.ndarray] = {}  # what the grid reads of it, in its precision
        for name in list(self.small):
            value = self.small[name] if name in plan.wanted else self.small.pop(name)
            self.cast[name] = value if value.dtype == bool else value.astype(self.dtype)
        self.kernels = self._kernels()
        self.calls = calls_of(self.kernels, self.wanted, self.tiles.axis, self.in_parts)
        again = [c for c in self.calls if ROWS in c.key]  # evaluated for more than one tile
        self.again = {given for c in again for given in c.inputs}
        self._compile()

    # -- small stage ----------------------------------------------------------------------------------------------

    def _evaluate_small(self) -> dict[str, np.ndarray]:
        """All small quantities on their distinct rows."""
        start = time.perf_counter()
        found = small_values(self.plan)
        self.seconds["small"] = time.perf_counter() - start
        return found

    # -- tile stage: what is materialised, what is fused ----------------------------------------------------------

    def _tile_key(self, quantity: Quantity) -> TileKey:
        return self.tiles.key(quantity.key)

    def _kernels(self) -> list[Kernel]:
        chosen = materialised(self.plan, self.tiles)
        return [self._kernel(name, chosen) for name in self.plan.graph.nodes if name in chosen]

    def _kernel(self, name: str, chosen: set[str]) -> Kernel:
        plan, dtype = self.plan, self.dtype  # for `result`, which must not hold this evaluation
        nodes, quantities = plan.graph.nodes, self.quantities
        fused: dict[str, None] = {}

        def visit(current: str) -> None:
            for argument in nodes[current].arguments:
                if not quantities[argument].small and argument not in chosen and argument not in fused:
                    visit(argument)
            fused[current] = None

        visit(name)
        key = self._tile_key(quantities[name])
        inputs: list[Input] = []
        takes: list[Takes] = []
        for argument in dict.fromkeys(a for n in fused for a in nodes[n].arguments if a not in fused):
            own = self._tile_key(quantities[argument])
            target = self._host_key(quantities[argument], own, key) if quantities[argument].small else own
            inputs.append((argument, target if quantities[argument].small else None))
            takes.append(self._takes(target, key))

        def result(*given: Any) -> Any:
            made = {argument: value for (argument, _), value in zip(inputs, given, strict=True)}
            for current in fused:
                arguments = [made[a] for a in nodes[current].arguments]
                if nodes[current].function.__module__.startswith(_PACKAGE):
                    with compiled_by_row():
                        found = xp.asarray(plan.call(current, arguments))
                else:  # a formula of a user, who may call JAX by itself
                    found = jnp.asarray(plan.call(current, [whole(a) for a in arguments]))
                if found.dtype != bool and found.dtype != dtype:
                    raise PerfgridError(
                        f"formula {current!r} returns {found.dtype} on a {dtype} grid; "
                        "write constants as Python literals"
                    )
                made[current] = found
            return made[name]

        return self._made(name, inputs, takes, list(fused), result)

    def _made(
        self,
        name: str,
        inputs: list[Input],
        takes: list[Takes],
        fused: list[str],
        result: Callable[..., Any],
        *more: str,
    ) -> Kernel:
        """A kernel, with the signature of its formulas and wiring if they tell. ``more``: what else decides."""
        quantity, nodes = self.quantities[name], self.plan.graph.nodes
        key, dtype = self._tile_key(quantity), np.dtype(bool) if quantity.flag else self.dtype
        shape = (*self.tiles.rows_of(key), *quantity.inner_shape)
        wiring: list[str | bytes] = [name, "flag" if quantity.flag else str(dtype), repr(shape), *more]
        for (argument, target), found in zip(inputs, takes, strict=True):
            given = self.input_shape(argument, target)
            wiring += [argument, repr(given.shape), repr(self.quantities[argument].axes), str(given.dtype)]
            wiring += [part for axis, index in found for part in (f"take {axis}", index.tobytes())]
        for current in fused:
            wiring += [current, repr(nodes[current].arguments), repr(self.quantities[current].called_on)]
        signature = signature_of(wiring, (nodes[current].function for current in fused))
        width = max((self.quantities[n].width for n in fused), default=1)
        return Kernel(quantity, key, inputs, takes, fused, result, shape, dtype, signature, width)

    def _host_key(self, quantity: Quantity, own: TileKey, reader: TileKey) -> TileKey:
        """The key that a small quantity is brought to before a tile reads it: the reader's, unless that is large."""
        target = tuple(None if mine is None else theirs for mine, theirs in zip(own, reader, strict=True))
        values = math.prod(self.tiles.rows_of(target)) * math.prod(quantity.inner_shape)
        return target if values <= max(math.prod(self.tiles.shape) / 32, 4096) else own

    @staticmethod
    def _takes(source: TileKey, target: TileKey) -> Takes:
        takes: Takes = []
        for axis, (have, want) in enumerate(zip(source, target, strict=True)):
            if isinstance(have, Partition) and have is not want:
                assert isinstance(want, Partition)
                takes.append((axis, have.inverse[want.rows].astype(np.int32)))
        return takes

    # -- compiling and running ------------------------------------------------------------------------------------

    def input_shape(self, name: str, key: TileKey | None) -> Any:
        """Shape and precision of an input of a kernel in one tile."""
        quantity = self.quantities[name]
        sizes = self.tiles.rows_of(self._tile_key(quantity) if key is None else key)
        kind = bool if quantity.flag else self.dtype
        return jax.ShapeDtypeStruct(sizes + quantity.inner_shape, kind)

    def _compile(self) -> None:
        """Compile every call for the one tile shape; JAX's own cache is left those that no signature tells apart."""
        start = time.perf_counter()
        with ThreadPoolExecutor(max_workers=2) as pool, jax.enable_x64(self.dtype == np.float64):
            for known in (True, False):
                calls = [c for c in self.calls if (c.signature is not None) == known]
                if calls:
                    with Compiled(alone=known) as kept:
                        self._compiled(calls, kept, pool)
        self.seconds["compile"] = time.perf_counter() - start

    def _compiled(self, calls: Collection[Call], kept: Compiled, pool: ThreadPoolExecutor) -> None:
        """Load or compile some calls (XLA releases the interpreter lock, so two at a time)."""

        def lower(call: Call) -> Any:
            buffers = [jax.ShapeDtypeStruct(k.shape, k.dtype) for k in call.kept]
            given = [self.input_shape(*i) for i in call.inputs]

            def function(buffers: list[Any], given: list[Any]) -> list[Any]:
                return call.function(buffers, given)

            function.__name__ = call.name  # in profiles, and apart from its like in the compilation cache
            return jax.jit(function, donate_argnums=0, keep_unused=True).lower(buffers, given)

        def compiled(call: Call, lowered: Any) -> None:
            with jax.enable_x64(self.dtype == np.float64):
                call.compiled = kept.compile(lowered, call.signature, call.parts is not None)

        waiting = []
        for call in calls:
            call.compiled = kept.load(call.signature)
            if call.compiled is None:
                waiting.append(pool.submit(compiled, call, lower(call)))
        for done, future in enumerate(waiting, 1):
            future.result()
            self.progress("compile", done, len(waiting))

    def run(self, numbers: Collection[int] | None = None, at_once: int | None = None) -> Iterator[Tile]:
        """Evaluate tile after tile, or some. What is asked for next overwrites this one: reduce or copy it.

        ``at_once``: how many tiles; by default one for each processor, in bounds of memory.
        """
        if not self.kernels:
            return
        start, todo = time.perf_counter(), range(self.tiles.count) if numbers is None else sorted(set(numbers))
        count = at_once or tiles_at_once(self.tile_bytes, len(todo))
        lanes = [self._idle.pop() if self._idle else Lane() for _ in range(count)]
        try:
            for tile in in_turn(self, lanes, todo):
                yield tile
                self.progress("evaluate", tile.number + 1, self.tiles.count)
        finally:
            self._idle += lanes
        self.seconds["evaluate"] = time.perf_counter() - start

    @cached_property
    def tile_bytes(self) -> int:
        """Bytes of the arrays of one tile."""
        return sum(math.prod(k.shape) * k.dtype.itemsize for call in self.calls for k in call.kept)

    def forget(self) -> None:
        """Take nothing over from the last tiles."""
        for lane in self._idle:
            lane.places.clear()

    def release(self) -> None:
        """Give back the memory of the last tiles."""
        self._idle = []

    # -- results --------------------------------------------------------------------------------------------------

    def placed(self, tile: Tile, name: str) -> tuple[tuple[slice, ...], np.ndarray]:
        """Where in a result array the tile's values of a wanted quantity belong, and these values on full rows."""
        quantity = self.quantities[name]
        value = np.asarray(tile.values[name])
        where: list[slice] = []
        for axis, (partition, study_axis) in enumerate(zip(quantity.key, self.plan.space.axes, strict=True)):
            if study_axis.name in quantity.columns and axis <= self.tiles.axis:
                first, last = int(tile.rows[axis][0]), int(tile.rows[axis][-1])
                where.append(slice(first, last + 1))
                value = value[(slice(None),) * axis + (slice(last + 1 - first),)]  # a ragged edge repeats its last row
            else:
                where.append(slice(None))
                if partition is not None and partition.size < len(study_axis):
                    value = np.take(value, partition.inverse, axis=axis)
        return (*where, *(slice(None) for _ in quantity.axes)), value

    def small_result(self, name: str) -> np.ndarray:
        """A wanted quantity of the small stage on full rows."""
        quantity = self.quantities[name]
        value = np.broadcast_to(expanded(self.small[name], quantity.key), self.plan.result_shape(name))
        return value if quantity.flag else np.asarray(value, dtype=self.dtype)

    def begun(self) -> dict[str, np.ndarray]:
        """All wanted quantities on full rows: those of the small stage, and room for the others."""
        results = {}
        for name in self.plan.wanted:
            quantity, shape = self.plan.quantities[name], self.plan.result_shape(name)
            small, kind = quantity.small, bool if quantity.flag else self.dtype
            results[name] = self.small_result(name) if small else np.empty(shape, kind)
        return results

    def collect(self) -> dict[str, np.ndarray]:
        """All wanted quantities, each on its own axes at full length (evaluation order of axes)."""
        results = self.begun()
        for tile in self.run():
            for name in tile.values:
                where, value = self.placed(tile, name)
                results[name][where] = value
                del value
        self.release()
        return results
