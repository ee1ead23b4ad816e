"""A zarr store filled tile by tile, by whoever evaluates, resumed after any interruption.

While it is being filled a store lies beside its place, as ``NAME.part.zarr``; it takes its name when it is complete.
The template comes first and holds all metadata; then every tile writes its own regions, and the journal tells which are
durable. What is not in the journal is done again, so nothing is lost or written by two.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Progress, check_precision
from perfgrid.engine.execution.regions import Regions
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE, space_text
from perfgrid.engine.grid.plan import Plan
from perfgrid.results.files import PART, cannot_write, check_folder, check_names, put_in_place, status
from perfgrid.results.memory import check_memory, check_room, fitting_tile
from perfgrid.results.provenance import template
from perfgrid.results.schema import STORE_ATTRIBUTE
from perfgrid.study.study import Study

from .arrays import Arrays, synchronise, write_template
from .executors import cluster, connected, processes, serial
from .identity import differences, identity, seal
from .journal import NAME, TABLES, Entry, Journal, read
from .worker import Task

MOST_TILES = 2**20  # each is a file or more of every variable and a line of the journal
MOST_COMPRESSED = 255  # LZ4 makes no less of any bytes


@dataclass(frozen=True)
class How:
    """How a store is filled; none of it changes a bit of the results but ``tile_points`` and ``small_points``."""

    overwrite: bool = False
    resume: bool = False
    memory: int | None = None  # bytes: of all local processes together, or of every process of a cluster
    workers: int | None = None  # local processes
    scheduler: str | None = None  # address of a dask scheduler
    tile_points: int | None = None  # at most, per tile
    small_points: int | None = None


def part_of(target: Path) -> Path:
    """Where a store lies until it is complete."""
    return target.with_name(target.stem + PART)


def fill(study: Study, target: Path, dtype: str, how: How, progress: Progress | None = None) -> Path:
    """Evaluate a study into a zarr store; returns its path when it is complete.

    Raises PerfgridError in one line for a place that cannot be written, a store that belongs to another run, and work
    that broke off; what is in the journal stays valid.
    """
    check_precision(dtype)
    check_store(target, how)
    plan = study.plan(how.small_points)
    part = part_of(target)
    if how.resume and target.exists() and not part.exists():
        check_same(target, study, plan, dtype)
        return target
    with connected(how.scheduler) as client:  # before anything is begun
        try:
            part.mkdir(exist_ok=True)
            journal = Journal(part, anew=how.overwrite)
        except OSError as error:
            raise cannot_write(target, error) from error
        anew = not (how.resume and journal.header is not None)
        try:
            if anew:
                stored = _begin(target, part, journal, study, plan, dtype, how)
            else:
                plan, stored = _continued(part, study, plan, dtype, how)
            entries = _lacking(part, journal, study, plan, stored, how, client, progress)
            _complete(part, target, journal, entries, progress)
        except OSError as error:  # of the template
            raise cannot_write(target, error) from error
        finally:
            journal.close()
            if anew and not journal.entries and client is None:  # no tile was finished, and nobody is at one
                shutil.rmtree(part, ignore_errors=True)
    return target


def _continued(part: Path, study: Study, plan: Plan, dtype: str, how: How) -> tuple[Plan, dict[str, Any]]:
    """The plan and the identity of an unfinished store."""
    stored = check_same(part, study, plan, dtype)
    if plan.small_points != stored["small_points"]:
        plan = study.plan(stored["small_points"])
    check_room(plan, Regions.from_json(stored["regions"]), dtype, how.memory, study.name, how.workers or 1)
    return plan, stored


def check_store(target: Path, how: How) -> None:
    """PerfgridError where a store cannot be begun or resumed: another file's place, no folder, an unfinished run."""
    check_folder(target)
    if how.overwrite and how.resume:
        raise PerfgridError("--resume continues a store and --overwrite begins it anew: give one of them")
    if how.workers is not None and how.scheduler is not None:
        raise PerfgridError("--workers starts processes here and --scheduler uses those of a cluster: give one of them")
    if how.workers is not None and how.workers < 1:
        raise PerfgridError(f"--workers must be 1 or more, found {how.workers}")
    part = part_of(target)
    for path in (target, part):
        if status(path) is not None:
            try:
                foreign = _foreign(path, empty=path == part)
            except OSError as error:
                raise cannot_write(target, error) from None
            if foreign:
                raise PerfgridError(f"cannot write {str(target)!r}: {str(path)!r} exists and {foreign}")
    if target.exists() and not (how.overwrite or how.resume):
        raise PerfgridError(f"{str(target)!r} exists; give --overwrite to replace it")
    if (part / NAME).exists() and not (how.overwrite or how.resume) and read(part / NAME)[0] is not None:
        raise PerfgridError(
            f"{str(part)!r} is an unfinished run; give --resume to continue it or --overwrite to begin anew"
        )


WRITTEN = re.compile(  # the files of a store: metadata, chunks of variables and of coordinates, and those being written
    rf"{re.escape(NAME)}|([^/]+/)?(zarr\.json|zarr\.[0-9a-f]+\.partial)|[^/]+/c([./]\d+)*(\.[0-9a-f]+\.partial)?"
)


def _check_size(plan: Plan, regions: Regions, target: Path, dtype: str) -> None:
    """PerfgridError for a grid of more tiles, or of more bytes however well they are compressed, than can be stored."""
    count, needed = regions.tiles.count, plan.result_bytes(dtype)
    least, free = needed // MOST_COMPRESSED, shutil.disk_usage(target.parent).free
    if count > MOST_TILES or least > free:
        raise PerfgridError(
            f"cannot write {str(target)!r}: {plan.space.points:,} points in {count:,} tiles; a store has at most "
            f"{MOST_TILES:,} tiles, and its {needed / 1e9:,.3g} GB need {least / 1e9:,.3g} GB of disk at "
            f"least ({free / 1e9:,.3g} GB are free); 'perfgrid best' searches it, and -o FILE.pgf stores it factored"
        )


def _foreign(path: Path, empty: bool) -> str:
    """What makes a folder no store of perfgrid, of which nothing is removed; an ``empty`` one may become one."""
    inside = list(path.iterdir()) if path.is_dir() else []
    if not (empty and path.is_dir() and not inside) and path / NAME not in inside:
        return "is no store of perfgrid"
    for file in path.rglob("*") if path.is_dir() else ():
        name = file.relative_to(path).as_posix()
        if not file.is_dir() and not WRITTEN.fullmatch(name):
            return f"holds {name!r}, which perfgrid did not write"
    return ""


def check_same(path: Path, study: Study, plan: Plan, dtype: str) -> dict[str, Any]:
    """The identity of a store. PerfgridError with what differs where it belongs to another run."""
    try:
        arrays = Arrays(path)
        stored, attributes = arrays.identity, arrays.attributes
    except PerfgridError as error:
        raise PerfgridError(
            f"{str(path)!r} is no store that this version of perfgrid can continue: {error}; --overwrite begins anew"
        ) from None
    regions = Regions.from_json(stored["regions"])
    mine = identity(study, plan, regions, dtype)
    if unlike := differences(stored, attributes[SPACE_ATTRIBUTE], mine, space_text(plan)):
        raise PerfgridError(
            f"{str(path)!r} belongs to another run, which differs in {'; '.join(unlike)}; "
            "give another name, or --overwrite to begin anew"
        )
    return stored


def _begin(
    target: Path, part: Path, journal: Journal, study: Study, plan: Plan, dtype: str, how: How
) -> dict[str, Any]:
    """An empty store: all metadata, then the first line of the journal, which marks them complete."""
    processes = how.workers or 1
    regions = Regions.of(plan, fitting_tile(plan, dtype, how.memory, study.name, processes, how.tile_points))
    _check_size(plan, regions, target, dtype)
    if how.memory is None and how.scheduler is None:  # the memory of a cluster is not that of this machine
        check_memory(plan, study.name, dtype, target.suffix, regions.tile_points, processes)
    result = template(study, plan, dtype)
    check_names(target, result)
    journal.reset()
    for path in part.iterdir():
        if path.name != NAME:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    made = identity(study, plan, regions, dtype)
    made["seal"] = seal(made, result.attrs[SPACE_ATTRIBUTE])
    chunks = {
        str(name): v.shape if name in made["tables"] else regions.chunks(tuple(map(str, v.dims)), v.shape)
        for name, v in result.data_vars.items()
    }
    write_template(part, result.assign_attrs({STORE_ATTRIBUTE: json.dumps(made)}), chunks)
    journal.begin(tiles=regions.tiles.count, seal=made["seal"])
    return made


def _complete(part: Path, target: Path, journal: Journal, entries: Iterable[Entry], progress: Progress | None) -> None:
    """Every tile that is not durable yet, then the name. An interrupted run says how to resume."""

    def done() -> int:
        return len(journal.entries) - (TABLES in journal.entries)

    count = journal.header["tiles"] if journal.header else 0
    try:
        _sweep(part)  # for room, before more is written
        for entry in entries:
            journal.add(entry)
            if progress is not None:
                progress("evaluate", done(), count)
        _sweep(part)  # workers of this run may have died too
        _finish(part, target)
    except (OSError, PerfgridError) as error:
        told = cannot_write(target, error) if isinstance(error, OSError) else error
        if not journal.entries:
            raise told from error
        raise PerfgridError(
            f"{told}; {done():,} of {count:,} tiles are complete and the same command with --resume continues"
        ) from error


def _lacking(
    part: Path,
    journal: Journal,
    study: Study,
    plan: Plan,
    stored: dict[str, Any],
    how: How,
    client: Any,
    progress: Progress | None,
) -> Iterator[Entry]:
    """The tiles that are not in the journal, evaluated and written."""
    count = Regions.from_json(stored["regions"]).tiles.count
    numbers = [n for n in (TABLES, *range(count)) if n not in journal.entries]
    task = Task(str(part.resolve()), stored["seal"], study.formulas)
    if not numbers:
        return iter(())
    if how.scheduler is not None:
        return cluster(task, numbers, client, how.scheduler)
    if how.workers is not None and how.workers > 1:
        return processes(task, numbers, how.workers)
    return serial(task, numbers, plan, progress)


def _sweep(part: Path) -> None:
    """Remove what writers that were killed had not given its name."""
    for leftover in part.rglob("*.partial"):
        leftover.unlink(missing_ok=True)


def _finish(part: Path, target: Path) -> None:
    """Give a complete store its name; what had it before goes only now."""
    put_in_place(part, target)
    synchronise([target])
