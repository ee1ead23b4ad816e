"""How many points a tile may have in a stated memory."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import TILE_POINTS
from perfgrid.engine.execution.kernels import materialised
from perfgrid.engine.execution.regions import Regions, stored_dtype
from perfgrid.engine.execution.small_stage import SLAB_VALUES, kept_small, small_order
from perfgrid.engine.grid.plan import Plan, Quantity
from perfgrid.engine.grid.tiles import Tiles

LEAST_TILE = 2**12  # below, handling a tile takes longer than evaluating it
# Measured, not derived (Linux, JAX 0.10.2); `pytest -m slow tests/store/test_memory.py` compares the sums with what
# the operating system counts of both benchmark grids, of which `-o FILE.pgf` is the small stage alone.
COMPILED = 250_000_000  # bytes of compiled functions and of compiling, at most
TEMPORARIES = 6  # arrays of the largest size that a formula of the small stage makes on its way, at most
OVERHEAD = 1.1  # of what the small stage holds: arrays given back leave gaps


def lane_bytes(plan: Plan, tiles: Tiles, dtype: str) -> int:
    """Bytes of the arrays of one tile while it is evaluated."""
    found = 0
    for name in materialised(plan, tiles):
        quantity = plan.quantities[name]
        values = math.prod(tiles.rows_of(tiles.key(quantity.key))) * math.prod(quantity.inner_shape)
        found += values * (1 if quantity.flag else np.dtype(dtype).itemsize)
    return found


def copied_bytes(plan: Plan, tiles: Tiles, dtype: str) -> tuple[int, int]:
    """Bytes of the copies of a tile that a writer takes: of all variables, of the largest."""
    copies = [0]
    for name in plan.wanted:
        quantity = plan.quantities[name]
        rows = (1 if p is None else n for p, n in zip(quantity.key, tiles.shape, strict=True))
        values = math.prod(rows) * math.prod(quantity.inner_shape)
        copies.append(values * stored_dtype(plan, name, dtype).itemsize)
    return sum(copies), max(copies)


def tile_bytes(plan: Plan, regions: Regions, dtype: str) -> int:
    """Bytes that one tile takes while it is evaluated and the one before is written: an upper bound.

    What is wanted is copied for the writer while it may still hold the copy of the tile before; it compresses one
    variable after the other.
    """
    together, largest = copied_bytes(plan, regions.tiles, dtype)
    return lane_bytes(plan, regions.tiles, dtype) + 2 * together + 3 * largest


def small_bytes(plan: Plan) -> tuple[int, int]:
    """Bytes of the small stage: the most that live at once, and what is kept of it while the tiles are evaluated.

    At once live: what later formulas read, the arguments of one brought to its rows, what it makes on its way.
    """
    size = {name: q.bytes for name, q in plan.quantities.items() if q.small}
    live = most = sum(size[name] for name in plan.graph.leaves if name in size)
    for node, done in small_order(plan):
        target = plan.quantities[node.name]
        live += size[node.name]
        brought = sum(_brought(plan.quantities[argument], target) for argument in node.arguments)
        most = max(most, live + brought + TEMPORARIES * 8 * _slab_values(target))
        live -= sum(size[name] for name in done)
    return int(OVERHEAD * most), sum(size[name] for name in kept_small(plan))


def _slab_values(target: Quantity) -> int:
    """Values of the largest array that a formula makes of one slab, a row of the longest axis at least."""
    return min(target.held, max(SLAB_VALUES, target.held // max((1, *target.sizes))))


def _brought(source: Quantity, target: Quantity) -> int:
    """Bytes of an argument on the rows of its reader; nothing where it lies on these rows."""
    pairs = [(have, want) for have, want in zip(source.key, target.key, strict=True) if have is not None]
    if all(have is want for have, want in pairs):
        return 0
    rows = math.prod(want.size for _, want in pairs if want is not None)
    return rows * math.prod(source.inner_shape) * (1 if source.flag else 8)


def fitting_tile(
    plan: Plan, dtype: str, memory: int | None, name: str, processes: int = 1, most: int | None = None
) -> int:
    """The most points of a tile for which this process, or it and ``processes`` workers, stay within ``memory`` bytes.

    What a process takes before it evaluates anything is measured on this one. Raises PerfgridError where nothing fits.
    """
    points = min(most or TILE_POINTS, plan.space.points)
    if processes > 1 and most is None:  # so that all of them have something to do
        points = min(points, max(LEAST_TILE, plan.space.points // (4 * processes)))
    if memory is None:
        return points
    while (least := needed(plan, Regions.of(plan, points), dtype, processes)) > memory:
        if points <= LEAST_TILE:
            raise too_little(name, memory, least)
        points = max(LEAST_TILE, points // 2)
    return points


def needed(plan: Plan, regions: Regions, dtype: str, processes: int) -> int:
    """Bytes of this process, or of it and several workers."""
    base, (small, kept) = resident_memory(), small_bytes(plan)
    one = base + max(small, kept + COMPILED + tile_bytes(plan, regions, dtype))
    return one if processes == 1 else base + processes * one


def check_room(plan: Plan, regions: Regions, dtype: str, memory: int | None, name: str, processes: int) -> None:
    """PerfgridError where tiles that are cut already do not fit."""
    least = needed(plan, regions, dtype, processes)
    if memory is not None and least > memory:
        raise too_little(f"{name}, tiles of {regions.tile_points:,} points", memory, least)


def too_little(name: str, memory: int, least: int) -> PerfgridError:
    """The error with the memory that suffices."""
    suffice = math.ceil(least / 1e8) / 10
    return PerfgridError(f"{name}: a memory of {memory / 1e9:.3g} GB is too little; {suffice:g} GB suffice")


def resident_memory() -> int:
    """Bytes that this process holds now."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 500_000_000
