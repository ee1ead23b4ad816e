"""What would make a job of two pools faster: changes of either pool, formats of both, workers that change pools.

Each pool is evaluated by itself with all its changes, and all pairs are joined. The times of a pool have an error of
their own: an interval has the ends of what a pair does while the times of its pools are at the ends of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt, lcm
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.joined_pools import Designs, joined, paired, slowed
from perfgrid.analysis.prediction_intervals import Interval, intervals, tie_margin
from perfgrid.catalog import Catalog
from perfgrid.engine.grid.dataset import CONCERNING, feasible
from perfgrid.results.evaluate import evaluate
from perfgrid.study.file import PoolsFile
from perfgrid.study.study import checked_file

from .changes import KEPT, combinations, single_changes
from .deployments import POOLS
from .design import study_content
from .job import Job
from .suggestions import (
    AXIS,
    BESIDE,
    FASTER,
    MOST,
    Change,
    Suggestions,
    aim_of,
    base_of,
    changed_study,
    distinct,
    expressed,
    fastest,
    in_both,
    rows_of,
    together,
    usual_of,
    varied_in,
    with_own_model,
)

ALONE = {"prefill": {"output_tokens": 1}, "decode": {"prefix_hit_rate": 1.0}}  # a pool does its part of requests
MOST_MOVES = 3  # numbers of workers that change pools, in each direction
Pair = tuple[int, int]  # rows of the changes of prefill and of decode
Changes = Mapping[str, Mapping[str, Any]]  # pool -> quantities
SAME: Changes = {pool: {} for pool in POOLS}


def suggest_for_pools(job: Job, content: Mapping[str, Any], catalog: Catalog) -> Suggestions:
    """Changes of a job of two pools that are predicted to make it faster, the most helpful first.

    ``content``: of its study. Raises PerfgridError like `suggest`.
    """
    asked = _Asked(job, content, catalog, aim_of(job))
    moves = [SAME, *asked.moves()]
    first = asked.evaluated({p: [{**m[p], **c} for m in moves for c in asked.singles(p, m[p])] for p in POOLS})
    tried = [first.place(change) for change in (*moves[1:], *asked.changes())]
    start = asked.launches()
    told = {pair: kept for pair in tried if (kept := asked.settings(first.change(pair), start)) is not None}
    most = FASTER * first.time[0, 0] if first.legal[0, 0] else np.inf
    better = [pair for pair in told if first.legal[pair] and first.time[pair] < most]
    mixed, left_out = _mixed(asked, first, moves)
    second = asked.evaluated(mixed)
    best = _best(asked, second, start)

    listed = [(first, pair, told[pair]) for pair in better] + ([(second, *best)] if best else [])
    margins, ends = asked.margins([grid.change(pair) for grid, pair, _ in listed])
    changes = []
    for (grid, pair, kept), margin in zip(listed, margins, strict=True):
        low, high = grid.paced([(pair, {p: m**side for p, m in margin.items()}) for side in (-1, 1)])
        ratio, low, high = (float(time / first.time[0, 0]) for time in (grid.time[pair], low, high))
        held, own = float(grid.memory[pair]), _flat(grid.change(pair))
        changes.append(Change(own, kept, float(grid.value[pair]), held, ratio, low, high, high >= 1, grid.beside(pair)))
    singles = [_flat(first.change(pair)) for pair in tried]
    combination = together(changes.pop() if best else None, changes, singles, bool(first.legal[0, 0]))
    refused: dict[str, int] = {}
    for reason in (reason for pair in tried for reason in first.reasons(pair)[:1]):
        refused[reason] = refused.get(reason, 0) + 1
    low, high = 1 / first.paced([((0, 0), factors) for factors in ends])
    return Suggestions(
        asked.aim,
        float(first.value[0, 0]),
        (float(low), float(high)),
        float(first.memory[0, 0]),
        tuple(first.reasons((0, 0))),
        distinct(changes),
        combination,
        len(tried) + int(second.fits.sum()),
        left_out,
        refused,
        first.beside((0, 0)),
    )


def interval_of_pools(job: Job, content: Mapping[str, Any], catalog: Catalog) -> tuple[float, float, float]:
    """What a job of two pools is judged by, with its interval; errors as of `suggest_for_pools`."""
    asked = _Asked(job, content, catalog, aim_of(job))
    first = asked.evaluated({pool: [{}] for pool in POOLS})
    low, high = 1 / first.paced([((0, 0), factors) for factors in asked.margins([])[1]])
    return float(first.value[0, 0]), float(low), float(high)


def _mixed(
    asked: _Asked, first: _Pairs, moves: Sequence[Changes]
) -> tuple[dict[str, list[Mapping[str, Any]]], dict[str, tuple[int, int]]]:
    """Combined changes of each pool at every number of its workers, and what they leave out."""
    mixed: dict[str, list[Mapping[str, Any]]] = {pool: [] for pool in POOLS}
    left_out = {}
    for move in moves:
        for pool in POOLS:
            singles = asked.singles(pool, move[pool])
            times = [first.time[first.place({**move, pool: {**move[pool], **change}})] for change in singles]
            gains = np.nan_to_num(1 - np.array(times) / times[0], nan=-np.inf).tolist()
            found, lost = combinations(singles, gains, isqrt(MOST // len(moves)))
            mixed[pool] += [{**move[pool], **change} for change in found]
            left_out |= {} if move[pool] else {f"{name} of {pool}": counts for name, counts in lost.items()}
    return mixed, left_out


def _best(asked: _Asked, pairs: _Pairs, start: Mapping[str, Any]) -> tuple[Pair, Any] | None:
    """The fastest pair that the deployment can have, with its settings."""
    prefill, decode = (np.array([len(change) for change in pairs.changes[pool]]) for pool in POOLS)
    for i in fastest(np.where(pairs.legal, pairs.time, np.inf), prefill[:, None] + decode):
        pair = divmod(i, pairs.time.shape[1])
        if (kept := asked.settings(pairs.change(pair), start)) is not None:
            return pair, kept
    return None


def _flat(change: Changes) -> dict[str, Any]:
    """A change as one table; what both pools change alike under its own name."""
    prefill, decode = (change[pool] for pool in POOLS)
    both = {name: value for name, value in prefill.items() if name in KEPT and decode.get(name) == value}
    rest = {f"{pool} {name}": v for pool, own in change.items() for name, v in own.items() if name not in both}
    return both | rest


@dataclass(frozen=True)
class _Pairs:
    """All pairs of some changes of both pools: what the job is judged by, that as a time, memory and feasibility."""

    changes: Mapping[str, Sequence[Mapping[str, Any]]]
    file: PoolsFile
    catalog: Catalog
    designs: Mapping[str, Designs]
    found: xr.Dataset
    aim: str
    value: np.ndarray
    time: np.ndarray
    memory: np.ndarray
    fits: np.ndarray  # the number of devices is that of the job
    legal: np.ndarray

    def place(self, change: Changes) -> Pair:
        """The row of a change of each pool."""
        prefill, decode = (self.changes[pool].index(change[pool]) for pool in POOLS)
        return prefill, decode

    def change(self, pair: Pair) -> Changes:
        """The change of each pool."""
        return {pool: self.changes[pool][row] for pool, row in zip(POOLS, pair, strict=True)}

    def beside(self, pair: Pair) -> dict[str, float]:
        """Further outputs."""
        return {name: float(_array(self.found[name], self.time.shape)[pair]) for name in BESIDE["inference"]}

    def reasons(self, pair: Pair) -> list[str]:
        """Why a pair is not feasible; of a pool that is impossible alone what its label says."""
        rows = zip(POOLS, pair, strict=True)
        alone = [str(self.designs[pool].labels[row]).partition(" (")[2].removesuffix(")") for pool, row in rows]
        names = str(self.found[self.aim].attrs.get(CONCERNING, "")).split()
        broken = [name for name in names if not _array(self.found[name], self.time.shape)[pair]]
        return list(filter(None, alone)) or [str(self.found[name].attrs["reason"]) for name in broken]

    def paced(self, points: Sequence[tuple[Pair, Mapping[str, float]]]) -> np.ndarray:
        """The time of pairs, the times of whose pools are multiplied by factors."""
        designs = {
            pool: slowed(self.designs[pool], [pair[i] for pair, _ in points], [by.get(pool, 1.0) for _, by in points])
            for i, pool in enumerate(POOLS)
        }
        found = evaluate(paired(self.file, designs, "the job", self.catalog))[self.aim]
        return 1 / np.diagonal(_array(found, (len(points), len(points))))


def _array(found: xr.DataArray, shape: tuple[int, int]) -> np.ndarray:
    """An output on all pairs."""
    held = found.squeeze([dim for dim in found.dims if dim not in POOLS], drop=True)
    held = held.expand_dims([pool for pool in POOLS if pool not in held.dims]).transpose(*POOLS)
    return np.broadcast_to(held.values, shape)


@dataclass(frozen=True)
class _Asked:
    """A job of two pools, and what is asked of it and of its changes."""

    job: Job
    content: Mapping[str, Any]
    catalog: Catalog
    aim: str

    @property
    def stack(self) -> Any:
        """Its software."""
        return self.catalog.entry("software", self.content["axes"]["software"][0])

    def singles(self, pool: str, move: Mapping[str, Any]) -> list[dict[str, Any]]:
        """No change, and single changes of a pool with so many workers."""
        one = self.job.pools[pool]
        return [{}, *single_changes(one, {**base_of(one, self.stack), **move}, usual_of(self.stack), self.stack)]

    def changes(self) -> list[Changes]:
        """Single changes of either pool; number formats change in both."""
        either = [(pool, change) for pool in POOLS for change in self.singles(pool, {})[1:]]
        twins = [{p: change for p in POOLS} for pool, change in either if change.keys() & {*KEPT} and pool == POOLS[0]]
        twins = [twin for twin in twins if (POOLS[1], twin[POOLS[1]]) in either]
        return [*({**SAME, p: change} for p, change in either if not change.keys() & {*KEPT}), *twins]

    def moves(self) -> list[Changes]:
        """Workers that change pools, as many devices of one for those of the other; both pools keep one."""
        held = {pool: base_of(one, self.stack) for pool, one in self.job.pools.items()}
        experts = bool(self.job.model and self.job.model.values["experts"])
        worker = {}
        for pool, own in held.items():
            ranks = own["tp"] * own.get("cp", 1)
            replicas = max(1, own["ep"] * own["etp"] // ranks) if experts else 1  # that share experts
            worker[pool] = (replicas * own["devices"] // own["dp"], replicas)
        unit = lcm(*(devices for devices, _ in worker.values()))
        found = []
        for taker, giver in (POOLS, POOLS[::-1]):
            for moved in range(unit, min(held[giver]["devices"], (MOST_MOVES + 1) * unit), unit):
                change = {}
                for pool, sign in ((taker, 1), (giver, -1)):
                    devices, replicas = worker[pool]
                    dp = held[pool]["dp"] + sign * moved // devices * replicas
                    change[pool] = {"devices": held[pool]["devices"] + sign * moved, "dp": dp}
                found.append({pool: change[pool] for pool in POOLS})
        return found

    def evaluated(self, changes: Mapping[str, Sequence[Mapping[str, Any]]]) -> _Pairs:
        """All pairs of changes of both pools."""
        base = {pool: base_of(one, self.stack) for pool, one in self.job.pools.items()}
        varied = dict.fromkeys(name for pool in POOLS for name in varied_in(base[pool], changes[pool]))
        content: dict[str, Any] = dict(self.content) | {"outputs": [self.aim, *BESIDE["inference"]]}
        content.pop("best", None)
        parameters = ("workload_parameters", "overrides")

        def unvaried(table: Mapping[str, Any]) -> dict[str, Any]:
            return {t: {n: v for n, v in table.get(t, {}).items() if n not in varied} for t in parameters}

        content |= unvaried(content)
        for pool in POOLS:
            rows = rows_of(base[pool], changes[pool], varied, self.stack)
            content[pool] = {"axes": {AXIS: rows}, **unvaried(content[pool])}
        catalog = with_own_model(self.job, self.catalog)
        study, designs = joined(content, "the job", catalog)
        found = evaluate(study)
        shape = (len(changes[POOLS[0]]), len(changes[POOLS[1]]))
        value, legal = _array(found[self.aim], shape), _array(feasible(found, of=[self.aim]), shape)
        devices, memory = (
            [np.array(designs[p].columns[f"{p}_{name}"], dtype=float) for p in POOLS]
            for name in ("devices", "memory_per_device")
        )
        fits = devices[0][:, None] + devices[1][None] == sum(own["devices"] for own in base.values())
        with np.errstate(divide="ignore", invalid="ignore"):
            time = 1 / value
        most = np.maximum(memory[0][:, None], memory[1][None])
        file = checked_file({"workload": "pools", **content}, "the job", PoolsFile)
        return _Pairs(changes, file, catalog, designs, found, self.aim, value, time, most, fits, legal & fits)

    def launches(self) -> dict[str, Any]:
        """The launch of each pool as it is."""
        return {pool: expressed(one, {}) for pool, one in self.job.pools.items()}

    def settings(self, change: Changes, start: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...] | None:
        """The settings that a change is; None where they do not express it."""
        found = []
        for pool, own in change.items():
            told = expressed(self.job.pools[pool], own, start[pool]) if own else ()
            if told is None:
                return None
            found += [(f"{pool}: {key}", before, after) for key, before, after in told]
        return in_both(found) or None

    def margins(self, changes: Sequence[Changes]) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        """How much slower, or faster, each pool may be beside that of the job than predicted; the job at both ends."""
        margins: list[dict[str, float]] = [{} for _ in changes]
        ends: list[dict[str, float]] = [{}, {}]
        for pool in POOLS:
            known = self._intervals(pool, [change[pool] for change in changes])
            for margin, change, own in zip(margins, changes, known[1:], strict=True):
                margin[pool] = 1 + tie_margin(known[0], own) if change[pool] else 1.0
            for end, value in zip(ends, (known[0].low, known[0].high), strict=True):
                end[pool] = known[0].value / value
        return margins, ends

    def _intervals(self, pool: str, changes: Sequence[Mapping[str, Any]]) -> list[Interval]:
        """Intervals of the part of a pool in the requests: of no change, and of each."""
        one = replace(self.job.pools[pool], values=self.job.pools[pool].values | ALONE[pool])
        axes = self.content["axes"]
        content = study_content(one, axes["device"][0], next(iter(axes.get("topology", [])), None), axes["software"][0])
        rows = [{}, *changes]
        study = changed_study(one, content, self.catalog, base_of(one, self.stack), rows, (self.aim,))
        names = [axis.name for axis in study.space.axes]
        points = [tuple(i if name == AXIS else 0 for name in names) for i in range(len(rows))]
        return intervals(study, points, self.aim)
