"""Whether a store holds what was written to it: complete, unchanged, finite where feasible, of the study it names."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Progress
from perfgrid.engine.execution.regions import Regions
from perfgrid.engine.grid.dataset import CONCERNING, SPACE_ATTRIBUTE, formula_hash, space_text, stored_array
from perfgrid.results.feasibility import Feasibility, violated
from perfgrid.results.files import cannot_read
from perfgrid.results.provenance import plan_of
from perfgrid.results.schema import check_attributes, stored
from perfgrid.study.study import Study

from .arrays import Arrays
from .fill import part_of
from .identity import differences, identity, seal, versions
from .journal import NAME, TABLES, Entry, read
from .worker import Blocks, checksum, feasible_block, on_axes, owned

MOST = 10  # tiles that are listed one by one


@dataclass
class Verified:
    """What a store holds, and what is wrong with it; it is sound if ``problems`` is empty."""

    path: Path
    points: int
    tiles: int
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # no fault of the store
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)  # of feasible points
    units: dict[str, str] = field(default_factory=dict)


class Opened:
    """A store, its identity and its journal. Raises PerfgridError where the path is no store."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            if not self.path.exists() and part_of(self.path).exists():
                self.path = part_of(self.path)
            os.stat(self.path)
            if not (self.path / NAME).exists():
                raise PerfgridError(f"{str(path)!r} is no store of perfgrid: there is no {NAME} in it")
        except OSError as error:
            raise cannot_read(path, error) from None
        self.header, self.entries, _ = read(self.path / NAME)
        if self.header is None:
            raise PerfgridError(f"{str(self.path)!r} was interrupted before its first tile: begin it anew")
        self.arrays = Arrays(self.path)
        self.stored = self.arrays.identity
        self.regions = Regions.from_json(self.stored["regions"])
        self.dims = {name: self.arrays.dims(name) for name in self.stored["variables"]}
        self.points = math.prod(self.regions.tiles.sizes)
        about = {name: self.arrays.array(name).attrs.asdict() for name in self.dims}
        self.attributes: dict[str, dict[str, Any]] = about
        self._check()
        self._tables: dict[str, np.ndarray] = {}

    def _check(self) -> None:
        """PerfgridError where metadata do not fit each other, or the journal does not fit them."""
        try:
            check_attributes(self.arrays.attributes, self.attributes)
            axes = {a["name"]: len(a["labels"]) for a in stored(self.arrays.attributes, SPACE_ATTRIBUTE)["axes"]}
            if axes != dict(zip(self.regions.axes, self.regions.tiles.sizes, strict=False)):
                raise PerfgridError("its tiles are not those of its labels")
            for name, dims in self.dims.items():
                found = self.arrays.array(name)
                own = self.regions.uncut() if name in self.stored["tables"] else self.regions
                legal = len(dims) == found.ndim and all(
                    axes.get(d, n) == n for d, n in zip(dims, found.shape, strict=True)
                )
                if not legal or found.chunks != tuple(max(1, n) for n in own.chunks(dims, found.shape)):
                    raise PerfgridError(f"variable {name} has other axes or chunks than its tiles")
            if wrong := {c for e in self.entries.values() for c in e.violated} - {*self.dims}:
                raise PerfgridError(f"{NAME} names {min(wrong)!r}, which is no constraint")
        except PerfgridError as error:
            raise cannot_read(self.path, error) from None

    def value(self, name: str, number: int) -> np.ndarray:
        """A variable at the rows of a tile, whoever wrote it. Tables are kept."""
        region = self.regions.region(number, self.dims[name])
        if name not in self.stored["tables"]:
            return self.arrays.read(name, region)
        if name not in self._tables:
            self._tables[name] = self.arrays.read(name, self.regions.uncut().region(0, self.dims[name]))
        return self._tables[name][region]

    def violations(self) -> Feasibility:
        """How many points are infeasible and why, as the tiles counted them."""
        counted: Counter[str] = Counter()
        for entry in self.entries.values():
            counted.update(entry.violated)
        infeasible, partly = (sum(getattr(e, n) for e in self.entries.values()) for n in ("infeasible", "partly"))
        return Feasibility(self.points, infeasible, partly, violated(counted, self.attributes))


def verify(path: str | Path, study: Study | None = None, progress: Progress | None = None) -> Verified:
    """Read a store tile by tile and compare it with its journal, its constraints and, if given, a study.

    Every tile must be in the journal, every region on disk with the checksum of what was written, flags must be legal
    and values finite at feasible points; the design space must be the one that the store was made for. Raises
    PerfgridError where the path is no store.
    """
    store = Opened(path)
    found = Verified(store.path, store.points, store.regions.tiles.count)
    found.units = {name: about.get("units", "1") for name, about in store.attributes.items()}
    if store.path != Path(path):
        found.problems.append(f"{path} is not complete: it still is {store.path.name}, which --resume continues")
    found.problems += store.arrays.changed()
    _check_identity(store, study, found)
    numbers = [TABLES, *range(found.tiles)]
    if lacking := [number for number in numbers if number not in store.entries]:
        tiles = [number for number in lacking if number != TABLES]
        some = ", ".join(map(str, tiles[:MOST])) + (", ..." if len(tiles) > MOST else "")
        told = [f"{len(tiles):,} of {found.tiles:,} tiles not in the journal: {some}"] if tiles else []
        found.problems += [*told, *(["the tables are not in the journal"] if TABLES in lacking else [])]
    for number in numbers:
        _check_tile(store, number, found)
        if progress is not None and number != TABLES:
            progress("verify", number + 1, found.tiles)
    return found


def _check_identity(store: Opened, study: Study | None, found: Verified) -> None:
    space = store.arrays.attributes[SPACE_ATTRIBUTE]
    if seal(store.stored, space) != store.stored["seal"]:
        found.problems.append("its study or catalog values were changed after it was begun")
        return
    _check_labels(store, found)
    if store.header is not None and store.header["seal"] != store.stored["seal"]:
        found.problems.append("its journal belongs to another store")
    if study is not None:
        plan = study.plan()
        mine = identity(study, plan, store.regions, store.stored["dtype"])
        found.problems += [
            f"{study.name} differs in {what}" for what in differences(store.stored, space, mine, space_text(plan))
        ]
        return
    for name, here in versions().items():
        there = store.stored["versions"].get(name)
        if there != here:
            found.notes.append(f"it was made with {name} {there}, here is {here}")
    try:
        if formula_hash(plan_of(store.arrays.attributes)) != store.stored["formulas"]:
            writer = store.stored["versions"].get("perfgrid", "of another version")
            found.notes.append(f"it was written by perfgrid {writer} with other formulas than those installed")
    except PerfgridError as error:
        found.notes.append(f"its formulas cannot be compared: {error}")


def _check_labels(store: Opened, found: Verified) -> None:
    """Coordinates are the labels of the design space, and what it shows beside them."""
    for axis in stored(store.arrays.attributes, SPACE_ATTRIBUTE)["axes"]:
        for name in dict.fromkeys((axis["name"], *axis["shown"])):
            try:
                values = store.arrays.labels(name)
            except PerfgridError as error:
                found.problems.append(str(error))
                continue
            expected = stored_array(axis["labels"] if name == axis["name"] else axis["columns"][name])
            if values.shape != expected.shape or not (values == expected).all():
                found.problems.append(f"coordinate {name} does not hold the labels that the store was made for")


def _check_tile(store: Opened, number: int, found: Verified) -> None:
    what = "the tables" if number == TABLES else f"tile {number}"
    entry = store.entries.get(number)
    if entry is None:
        return
    blocks: Blocks = {}
    regions = store.regions.uncut() if number == TABLES else store.regions
    for name in owned(store.regions, store.dims, store.stored["tables"], number):
        region = regions.region(0 if number == TABLES else number, store.dims[name])
        try:
            blocks[name] = (region, store.arrays.read(name, region))
        except PerfgridError as error:
            found.problems.append(f"{what}: {error}")
            return
    if checksum(blocks) != entry.checksum:
        found.problems.append(f"{what}: its values are not those that were written")
        return
    for name, (_, value) in blocks.items():
        legal = store.attributes[name].get("flag_values")
        if legal is not None and not np.isin(value, legal).all():
            found.problems.append(f"{what}: {name} holds other labels than {legal[0]} to {legal[-1]}")
    if number != TABLES:
        try:
            _check_values(store, entry, blocks, found)
        except PerfgridError:  # of another tile or the tables, which report it
            return


def _check_values(store: Opened, entry: Entry, blocks: Blocks, found: Verified) -> None:
    """Ranges of a tile's values where the constraints that concern them hold, and that they are finite there."""
    axes = store.regions.axes
    where: dict[frozenset[str], np.ndarray] = {}

    def feasible_of(name: str) -> np.ndarray:
        concerning = store.attributes[name].get(CONCERNING, " ".join(entry.violated)).split()
        violated = frozenset(concerning) & set(entry.violated)
        if violated not in where:
            where[violated] = feasible_block({n: store.value(n, entry.tile) for n in violated}, store.dims, axes)
        return where[violated]

    whole = {name: store.value(name, entry.tile) for name in store.stored["tables"]}
    for name, value in (whole | {name: value for name, (_, value) in blocks.items()}).items():
        if value.dtype.kind != "f" or not (possible := feasible_of(name)).any():
            continue
        placed = on_axes(value, store.dims[name], axes)
        lacking = tuple(i for i, n in enumerate(placed.shape[: len(axes)]) if n == 1)
        inside = possible.any(axis=lacking, keepdims=True).reshape(
            [n if i not in lacking else 1 for i, n in enumerate(possible.shape)] + [1] * (placed.ndim - len(axes))
        )
        if not np.isfinite(placed).all() and not np.isfinite(np.where(inside, placed, 0)).all():
            found.problems.append(f"tile {entry.tile}: {name} is not finite at a feasible point")
            continue
        inside = np.broadcast_to(inside, placed.shape)
        least, most = np.min(placed, where=inside, initial=np.inf), np.max(placed, where=inside, initial=-np.inf)
        before = found.ranges.get(name, (math.inf, -math.inf))
        found.ranges[name] = (min(before[0], float(least)), max(before[1], float(most)))
