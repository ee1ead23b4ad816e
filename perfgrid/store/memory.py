"""How many points a tile may have in a stated memory."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.plan import Plan
from perfgrid.engine.regions import Regions, stored_dtype
from perfgrid.engine.stages import TILE_POINTS

LEAST_TILE = 2**12  # below, handling a tile takes longer than evaluating it


def tile_bytes(plan: Plan, regions: Regions, dtype: str) -> int:
    """Bytes that one tile takes while it is evaluated and the one before is written: an upper bound.

    A quantity has a buffer if it is wanted, read twice or smaller than its reader; what is wanted is copied for the
    writer and once more, variable by variable, where it is compressed.
    """
    readers, shape = plan.graph.readers(), regions.tiles.shape

    def values(name: str, full: bool = False) -> int:
        q = plan.quantities[name]
        sizes = (
            1 if p is None else n if full or axis <= regions.tiles.axis else p.size
            for axis, (p, n) in enumerate(zip(q.key, shape, strict=True))
        )
        return math.prod(sizes) * math.prod(q.inner)

    buffers = copies = largest = 0
    for name, quantity in plan.quantities.items():
        wide = 1 if quantity.flag else np.dtype(dtype).itemsize
        if not quantity.small:
            by = readers[name]
            if name in plan.wanted or len(by) > 1 or any(values(name) < values(r) for r in by):
                buffers += values(name) * wide
        if name in plan.wanted:
            copy = values(name, full=True) * stored_dtype(plan, name, dtype).itemsize
            copies, largest = copies + copy, max(largest, copy)
    return buffers + copies + 3 * largest


def fitting_tile(
    plan: Plan, dtype: str, memory: int | None, name: str, processes: int = 1, most: int = TILE_POINTS
) -> int:
    """The most points of a tile for which every one of ``processes`` stays within its share of ``memory`` bytes.

    What a process takes before its first tile is measured on this one. Raises PerfgridError where nothing fits.
    """
    points = min(most, plan.space.points)
    if processes > 1:  # so that all of them have something to do
        points = min(points, max(LEAST_TILE, plan.space.points // (4 * processes)))
    if memory is None:
        return points
    base = resident_memory()
    room = memory // processes - base
    while True:
        needed = tile_bytes(plan, Regions.of(plan, points), dtype)
        if needed <= room:
            return points
        if points <= LEAST_TILE:
            least = (base + needed) * processes / 1e9
            raise PerfgridError(f"{name}: a memory of {memory / 1e9:.3g} GB is too little; {least:.2g} GB suffice")
        points = max(LEAST_TILE, points // 2)


def resident_memory() -> int:
    """Bytes that this process holds now."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 500_000_000
