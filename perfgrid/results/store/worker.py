"""What fills a store: a tile evaluated, its regions written and durable. The plan is rebuilt from the store itself."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Evaluation, Progress, Tile, enable_compilation_cache
from perfgrid.engine.execution.regions import Region, Regions, block
from perfgrid.engine.grid.dataset import formula_hash, least_constrained
from perfgrid.engine.grid.plan import Plan
from perfgrid.results.files import cannot_write
from perfgrid.results.provenance import plan_of

from .arrays import Arrays, synchronise
from .identity import versions
from .journal import TABLES, Entry


@dataclass(frozen=True)
class Task:
    """Which store to fill, by whose formulas. Plain data: it travels to other processes and machines."""

    path: str
    seal: str  # of the store's identity: a worker that lives longer than one run tells runs apart
    formulas: tuple[Callable[..., Any], ...] = ()


Blocks = dict[str, tuple[Region, np.ndarray]]


class Worker:
    """Evaluates tiles of a store's study and writes them. The plan is that of the store unless it is at hand.

    Raises PerfgridError where the store cannot be opened, or formulas or versions here are not those of the store.
    """

    def __init__(self, task: Task, plan: Plan | None = None, progress: Progress | None = None):
        self.task = task
        try:
            self.arrays = Arrays(Path(task.path), writable=True)
        except PerfgridError as error:
            raise PerfgridError(f"{error}; all workers need the same file system") from None
        stored = self.arrays.identity
        if stored["seal"] != task.seal:
            raise PerfgridError(f"{task.path!r} is not the store that this run began")
        self.plan = plan or self._restored(stored)
        self.regions = Regions.from_json(stored["regions"])
        enable_compilation_cache()
        self.evaluation = Evaluation(self.plan, stored["dtype"], self.regions.tiles, progress)
        self.evaluation.progress = lambda *_: None  # tiles are counted when they are durable
        self.dims = {name: self.arrays.dims(name) for name in self.plan.wanted}
        self.tables = set(stored["tables"])
        self.least = least_constrained({n: self.arrays.array(n).attrs.asdict() for n in self.plan.wanted})
        self._lock = threading.Lock()  # the buffers of one tile are those of the next

    def _restored(self, stored: Mapping[str, Any]) -> Plan:
        plan = plan_of(self.arrays.attributes, self.task.formulas, stored["small_points"])
        mine = {"formulas": formula_hash(plan), **versions()}
        for what, needed in {"formulas": stored["formulas"], **stored["versions"]}.items():
            if mine[what] != needed:
                raise PerfgridError(f"a worker has {what} {mine[what]} and the store {self.task.path!r} needs {needed}")
        return plan

    def evaluate(self, number: int) -> tuple[Entry, Blocks]:
        """The entry of a tile, and copies of what it alone writes."""
        mine = owned(self.regions, self.dims, self.tables, number)
        if number == TABLES:
            found = self._blocks(mine, self.regions.uncut(), Tile(0, (), {}))
            return Entry(TABLES, checksum(found)), found
        with self._lock:
            tile = next(self.evaluation.run({number}), None) or Tile(number, (), {})
            found = self._blocks({*mine, *self.plan.constraints}, self.regions, tile)
        infeasible, partly, violated = self._violations(number, found)
        found = {name: found[name] for name in mine}
        return Entry(number, checksum(found), infeasible, violated, partly), found

    def _blocks(self, names: Collection[str], regions: Regions, tile: Tile) -> Blocks:
        return {
            name: (regions.region(tile.number, dims), block(self.evaluation, regions, tile, name))
            for name, dims in self.dims.items()
            if name in names
        }

    def _violations(self, number: int, blocks: Blocks) -> tuple[int, int, dict[str, int]]:
        """Points of a tile without a feasible output, points with some; how many violate each constraint (if any)."""
        points = math.prod(self.regions.lengths(number).values())
        flags = {name: blocks[name][1] for name in self.plan.constraints}
        counted = {name: int(np.count_nonzero(flag == 0)) * (points // flag.size) for name, flag in flags.items()}
        violated = {name: count for name, count in counted.items() if count}

        def where(names: Collection[str]) -> np.ndarray:
            held = {name: flags[name] for name in names if name in violated}
            return feasible_block(held, self.dims, self.regions.axes)

        every = where(violated)
        some = reduce(np.logical_or, (every if len(names) == len(flags) else where(names) for names in self.least))
        none, broken = ((w.size - int(np.count_nonzero(w))) * (points // w.size) for w in (some, every))
        return none, broken - none, violated

    def write(self, entry: Entry, blocks: Blocks) -> Entry:
        """Put what a tile wrote on disk; returns its entry when it is durable. PerfgridError where that fails."""
        try:
            synchronise([self.arrays.write(name, region, value) for name, (region, value) in blocks.items()])
        except OSError as error:
            raise cannot_write(self.task.path, error) from error
        return entry


def owned(regions: Regions, dims: Mapping[str, tuple[str, ...]], tables: Collection[str], number: int) -> list[str]:
    """The variables of which a tile alone writes its region; of `TABLES` those that are written whole."""
    if number == TABLES:
        return [name for name in dims if name in tables]
    return [name for name, own in dims.items() if name not in tables and regions.owns(number, own)]


def on_axes(value: np.ndarray, dims: tuple[str, ...], axes: tuple[str, ...]) -> np.ndarray:
    """A block with one dimension for every axis of the study, in this order, to broadcast with others."""
    present = [axis for axis in axes if axis in dims]
    inner = [dim for dim in dims if dim not in axes]
    value = value.transpose([dims.index(d) for d in (*present, *inner)])
    sizes = dict(zip(present, value.shape, strict=False))
    return value.reshape([*(sizes.get(axis, 1) for axis in axes), *value.shape[len(present) :]])


def feasible_block(
    flags: Mapping[str, np.ndarray], dims: Mapping[str, tuple[str, ...]], axes: tuple[str, ...]
) -> np.ndarray:
    """Where all constraints of a block hold, on as many rows of every axis as they tell apart."""
    placed = [on_axes(flag != 0, dims[name], axes) for name, flag in flags.items()]
    return reduce(np.logical_and, sorted(placed, key=np.size), np.ones((1,) * len(axes), bool))  # small ones first


def checksum(blocks: Blocks) -> str:
    """A hash of the values of regions, in the order of their variables."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(blocks):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(blocks[name][1]).data)
    return digest.hexdigest()


_kept: dict[tuple[str, str], Worker] = {}  # of this process: the plan is made and compiled once
_keeping = threading.Lock()


def work(task: Task, number: int) -> Entry:
    """Evaluate one tile and write it: what a process or a machine is asked to do. Returns when it is durable."""
    key = (task.path, task.seal)
    with _keeping:
        if key not in _kept:
            _kept.clear()  # a worker that lives longer than one run keeps the memory of one
            _kept[key] = Worker(task)
        worker = _kept[key]
    return worker.write(*worker.evaluate(number))
