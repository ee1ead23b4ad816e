"""The memory that a plan takes while it is evaluated: its small stage, the arrays of a tile and the copies of them.

Counted from the shapes of arrays. `pytest -m slow tests/store/test_memory.py` compares the sums with what the operating
system counts of both benchmark grids, of which `-o FILE.pgf` is the small stage alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfgrid.engine.grid.plan import Plan, Quantity
from perfgrid.engine.grid.tiles import Tiles

from .lanes import tiles_at_once
from .materialised import materialised
from .regions import stored_dtype
from .small_stage import SLAB_VALUES, kept_small, small_order

TEMPORARIES = 6  # arrays of the largest size that a formula of the small stage makes on its way, at most
OVERHEAD = 1.1  # of what the small stage holds: arrays given back leave gaps


@dataclass(frozen=True)
class Footprint:
    """Bytes that a plan takes in tiles of one size."""

    small: int  # the small stage: the most that live at once
    kept: int  # what is kept of it while the tiles are evaluated
    lane: int  # the arrays of one tile while it is evaluated
    copies: int  # of a tile, which a writer takes: all variables
    largest_copy: int
    result: int  # all values
    tiles: int  # how many there are

    @classmethod
    def of(cls, plan: Plan, tiles: Tiles, dtype: str) -> Footprint:
        """The footprint of a plan in these tiles."""
        small, kept = small_bytes(plan)
        copies = _copied_bytes(plan, tiles, dtype)
        lane = _lane_bytes(plan, tiles, dtype)
        return cls(small, kept, lane, sum(copies), max(copies), plan.result_bytes(dtype), tiles.count)

    @property
    def lanes(self) -> int:
        """The arrays of all tiles that are evaluated at once."""
        return self.lane * tiles_at_once(self.lane, self.tiles)

    @property
    def written(self) -> int:
        """One tile while it is evaluated and the one before is written: an upper bound.

        What is wanted is copied for the writer while it may still hold the copy of the tile before; it compresses one
        variable after the other.
        """
        return self.lane + 2 * self.copies + 3 * self.largest_copy


def _lane_bytes(plan: Plan, tiles: Tiles, dtype: str) -> int:
    """Bytes of the arrays of one tile while it is evaluated."""
    found = 0
    for name in materialised(plan, tiles):
        quantity = plan.quantities[name]
        values = math.prod(tiles.rows_of(tiles.key(quantity.key))) * math.prod(quantity.inner_shape)
        found += values * (1 if quantity.flag else np.dtype(dtype).itemsize)
    return found


def _copied_bytes(plan: Plan, tiles: Tiles, dtype: str) -> list[int]:
    """Bytes of the copies of a tile that a writer takes, by variable; a zero where there is none."""
    copies = [0]
    for name in plan.wanted:
        quantity = plan.quantities[name]
        rows = (1 if p is None else n for p, n in zip(quantity.key, tiles.shape, strict=True))
        values = math.prod(rows) * math.prod(quantity.inner_shape)
        copies.append(values * stored_dtype(plan, name, dtype).itemsize)
    return copies


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
