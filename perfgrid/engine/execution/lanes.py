"""Where tiles are evaluated: lanes, each with the arrays of one tile, side by side on as many processors."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from perfgrid.engine.grid.plan import Quantity
from perfgrid.engine.grid.space import Partition
from perfgrid.engine.grid.tiles import ROWS, TileKey, Tiles

from .materialised import Call, Input

BYTES_AT_ONCE = 2**30  # of all lanes together


@dataclass
class Tile:
    """The values of one tile; they live until the next one is asked for."""

    number: int
    rows: tuple[np.ndarray, ...]
    values: dict[str, jax.Array]


class Ready(Protocol):
    """What a lane reads of an evaluation."""

    tiles: Tiles
    dtype: np.dtype[Any]
    quantities: dict[str, Quantity]
    wanted: set[str]
    cast: dict[str, np.ndarray]  # the quantities of the small stage that the grid reads, in its precision
    calls: list[Call]
    again: set[Input]  # those of the small stage that are handed over for every tile alike


class Lane:
    """The arrays of one tile of an evaluation: the next tile of the lane overwrites them.

    A lane does not hold its evaluation, which holds the lane: memory is free as soon as the evaluation is dropped.
    """

    def __init__(self):
        self.prepared: dict[tuple[str, TileKey], tuple[tuple[int, ...], Any]] = {}
        self.buffers: dict[str, Any] = {}
        self.places: dict[str, tuple[int, ...]] = {}  # where the tile lay for which a buffer was computed

    def evaluate(self, evaluation: Ready, number: int) -> Tile:
        """The tile of this number. What does not change from the last one is not evaluated again."""
        buffers = self.buffers
        rows = evaluation.tiles.at(number)
        place = tuple(int(r[0]) for r in rows)
        values: dict[str, Any] = {}
        with jax.enable_x64(evaluation.dtype == np.float64):
            for call in evaluation.calls:
                names = [k.quantity.name for k in call.kept]
                here = tuple(p for p, k in zip(place, call.key, strict=False) if k is not None)
                if all(n in buffers and self.places.get(n) == here for n in names):
                    values |= {n: buffers.pop(n) for n in names}
                    continue
                given = [
                    values[n] if key is None else self._hand_over(evaluation, n, key, rows, place)
                    for n, key in call.inputs
                ]
                kept = [
                    buffers.pop(k.quantity.name) if k.quantity.name in buffers else jnp.zeros(k.shape, k.dtype)
                    for k in call.kept
                ]
                values |= dict(zip(names, call.compiled(kept, given), strict=True))
                self.places |= dict.fromkeys(names, here)
        self.buffers = values
        return Tile(number, rows, {n: v for n, v in values.items() if n in evaluation.wanted})

    def _hand_over(
        self, evaluation: Ready, name: str, key: TileKey, rows: tuple[np.ndarray, ...], place: tuple[int, ...]
    ) -> Any:
        """A small quantity for one tile; kept while the tiles do not move along its axes."""
        here = tuple(p for p, k in zip(place, key, strict=False) if k is ROWS)
        known = self.prepared.get((name, key))
        if known is not None and known[0] == here:
            return known[1]
        value = evaluation.cast[name]
        for axis, (have, want) in enumerate(zip(evaluation.quantities[name].key, key, strict=True)):
            if have is None or have is want:
                continue
            index = have.inverse[want.rows if isinstance(want, Partition) else rows[axis]]
            if len(index) == 1:  # a view is had in a third of the time
                value = value[(slice(None),) * axis + (slice(index[0], index[0] + 1),)]
            else:
                value = np.take(value, index, axis=axis)
        if not here and (name, key) in evaluation.again:  # the same for all tiles: a device array is read sooner
            value = jnp.asarray(value)
        self.prepared[(name, key)] = (here, value)
        return value


def tiles_at_once(size: int, tiles: int) -> int:
    """How many tiles of so many bytes are evaluated at once: one for each processor, in bounds of memory.

    An accelerator takes one after the other.
    """
    if jax.default_backend() != "cpu":
        return 1
    return max(1, min(processors(), tiles, BYTES_AT_ONCE // max(1, size)))


def trim() -> None:
    """Return freed memory to the system. The C library of Linux keeps that of each thread for this thread."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def processors() -> int:
    """Of this machine, as far as this process may use them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_turn(evaluation: Ready, lanes: list[Lane], numbers: Iterable[int]) -> Iterator[Tile]:
    """The tiles in the order of their numbers, some evaluated ahead; a lane goes on when its tile was looked at."""
    if len(lanes) == 1:
        yield from (lanes[0].evaluate(evaluation, number) for number in numbers)
        return

    def evaluated(lane: Lane, number: int) -> Tile:
        tile = lane.evaluate(evaluation, number)
        jax.block_until_ready(lane.buffers)
        return tile

    left = iter(numbers)
    with ThreadPoolExecutor(len(lanes)) as pool:
        ahead = deque((lane, pool.submit(evaluated, lane, n)) for lane, n in zip(lanes, left, strict=False))
        while ahead:
            lane, future = ahead.popleft()
            yield future.result()
            ahead.extend((lane, pool.submit(evaluated, lane, n)) for n in islice(left, 1))
