"""Memory at hand, results that would not fit it, and the tiles that do."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import TILE_POINTS, check_precision
from perfgrid.engine.execution.memory import Footprint
from perfgrid.engine.execution.regions import Regions
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.reductions.argmin import SCORE, SEARCH_TILE_POINTS, scored

MEMORY = "in memory"  # the way of running that keeps all values
FILES = (".nc", ".zarr", ".pgf")  # the others, by suffix
POINTS_AT_ONCE = 2**16  # designs found whose outputs are evaluated together
LEAST_TILE = 2**12  # below, handling a tile takes longer than evaluating it
# Measured, not derived. The sums of `peaks` are within 15 % of what the operating system counts of both benchmark grids
# (benchmarks/*.toml; Linux, JAX 0.10.2), of other grids not always: 0.7 times what a search of 400,000 groups of
# manufacturing takes; `pytest -m slow tests/store/test_memory.py` measures again.
OF_AN_OUTPUT, OF_A_POINT = 50, 2000  # bytes of a design found: of each output, while it is evaluated
COMPILED = 140_000_000  # bytes of a first run, which compiles: 120 to 190 MB more than from the cache, of the two grids
COMPILED_AT_MOST = 250_000_000  # bytes of compiled functions and of compiling


def available_memory() -> int:
    """Bytes of memory that a new allocation can have: of the machine, and of the containers or jobs around it."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), free)
    return min([free, *left_by_groups(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))])


def left_by_groups(root: Path, own: Path) -> list[int]:
    """Bytes that every control group (version 2) around this process leaves of its limit, cached files not counted."""
    left: list[int] = []
    with suppress(OSError, StopIteration):
        path = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::")).strip("/")
        folder = root / path
        for group in (folder, *folder.parents):
            with suppress(OSError, ValueError, KeyError):  # no limit there
                limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
                stated = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                left.append(max(0, limit - used + int(stated["inactive_file"])))
            if group == root:
                break
    return left


def resident_memory() -> int:
    """Bytes that this process holds now."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 500_000_000


def peaks(
    plan: Plan,
    dtype: str = "float32",
    objective: str | None = None,
    groups: int = 1,
    tile_points: int = TILE_POINTS,
) -> dict[str, int]:
    """Peak bytes of this process by way of running a plan: in memory, as a file of each suffix, and best designs only.

    The best designs are those by ``objective``, of so many ``groups``; without one none are searched.
    """
    base, run = resident_memory(), Footprint.of(plan, Regions.of(plan, tile_points).tiles, dtype)
    begun = base + _begun(run)
    found = {
        MEMORY: begun + run.lanes + run.result,
        ".nc": begun + run.lanes + 3 * run.largest_copy,
        ".zarr": begun + run.written,
        ".pgf": base + run.small,
    }
    if objective is not None:  # a run prints the best designs too
        registry = scored(plan.registry, plan.study_space, objective, False, plan.choices)
        search = Plan(registry, plan.study_space, [SCORE], plan.choices, constraints=False)
        score = Footprint.of(search, Regions.of(search, SEARCH_TILE_POINTS).tiles, dtype)
        # tiles of the objective alone, then all outputs at the designs found
        designs = groups * len(plan.outputs) * OF_AN_OUTPUT + min(groups, POINTS_AT_ONCE) * OF_A_POINT
        best = base + max(score.small, _begun(score) + score.lanes + designs)
        found |= {MEMORY: max(found[MEMORY], best + run.result), ".nc": max(found[".nc"], best), "best": best}
    return {way: max(number, base + run.small) for way, number in found.items()}


def _begun(run: Footprint) -> int:
    """What is held when the first tile is evaluated."""
    return 2 * run.kept + (COMPILED if run.lane else 0)


def check_memory(
    plan: Plan,
    name: str,
    dtype: str = "float32",
    way: str = MEMORY,
    tile_points: int = TILE_POINTS,
    processes: int = 1,
) -> None:
    """PerfgridError, with the peak and the other ways that fit, if a way of running does not fit the free memory.

    Several ``processes`` fill a store beside this one, each with the memory of a run alone.
    """
    check_precision(dtype)
    base, free, needed = resident_memory(), available_memory(), peaks(plan, dtype, tile_points=tile_points)
    peak = needed[way] if processes == 1 else base + processes * needed[way]
    if peak - base <= free:
        return
    fitting = [f"-o FILE{other} {needed[other] / 1e9:.3g} GB" for other in FILES if needed[other] - base <= free]
    offered = f" ('perfgrid run {name}' with {', '.join(fitting)})" if fitting else ""
    what = "in memory" if way == MEMORY else f"as {way}" + (f" by {processes} processes" if processes > 1 else "")
    raise PerfgridError(
        f"{name}: {plan.space.points:,} points {what} take {peak / 1e9:.3g} GB of memory at most and "
        f"{free / 1e9:.3g} GB are free{offered}; "
        f"fewer outputs and shorter axes{', or fewer --workers,' if processes > 1 else ''} take less"
    )


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
    base, run = resident_memory(), Footprint.of(plan, regions.tiles, dtype)
    one = base + max(run.small, run.kept + COMPILED_AT_MOST + run.written)
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
