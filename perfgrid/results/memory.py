"""Memory at hand, and results that would not fit it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import TILE_POINTS, check_precision
from perfgrid.engine.execution.lanes import tiles_at_once
from perfgrid.engine.execution.regions import Regions
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.reductions.argmin import SCORE, SEARCH_TILE_POINTS, scored

from .store.memory import copied_bytes, lane_bytes, resident_memory, small_bytes

MEMORY = "in memory"  # the way of running that keeps all values
FILES = (".nc", ".zarr", ".pgf")  # the others, by suffix
POINTS_AT_ONCE = 2**16  # designs found whose outputs are evaluated together
# Measured, not derived. The sums of `peaks` are within 15 % of what the operating system counts of both benchmark grids
# (benchmarks/*.toml; Linux, JAX 0.10.2), of other grids not always: 0.7 times what a search of 400,000 groups of
# manufacturing takes; `pytest -m slow tests/store/test_memory.py` measures again.
OF_AN_OUTPUT, OF_A_POINT = 50, 2000  # bytes of a design found: of each output, while it is evaluated
COMPILED = 140_000_000  # bytes of a first run, which compiles: 120 to 190 MB more than from the cache, of the two grids


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
    tiles = Regions.of(plan, tile_points).tiles
    base, (small, kept) = resident_memory(), small_bytes(plan)
    lane, (together, largest) = lane_bytes(plan, tiles, dtype), copied_bytes(plan, tiles, dtype)
    begun = base + 2 * kept + (COMPILED if lane else 0)
    lanes = lane * tiles_at_once(lane, tiles.count)
    found = {
        MEMORY: begun + lanes + plan.result_bytes(dtype),
        ".nc": begun + lanes + 3 * largest,
        ".zarr": begun + lane + 2 * together + 3 * largest,
        ".pgf": base + small,
    }
    if objective is not None:  # a run prints the best designs too
        searching = base + _searching(plan, dtype, objective, groups)
        found |= {MEMORY: max(found[MEMORY], searching + plan.result_bytes(dtype)), ".nc": max(found[".nc"], searching)}
        found["best"] = searching
    return {way: max(number, base + small) for way, number in found.items()}


def _searching(plan: Plan, dtype: str, objective: str, groups: int) -> int:
    """Bytes of a search of the best designs: tiles of the objective alone, then all outputs at the designs found."""
    registry = scored(plan.registry, plan.study_space, objective, False, plan.choices)
    search = Plan(registry, plan.study_space, [SCORE], plan.choices, constraints=False)
    tiles = Regions.of(search, SEARCH_TILE_POINTS).tiles
    lane, (small, kept) = lane_bytes(search, tiles, dtype), small_bytes(search)
    lanes = lane * tiles_at_once(lane, tiles.count)
    found = groups * len(plan.outputs) * OF_AN_OUTPUT + min(groups, POINTS_AT_ONCE) * OF_A_POINT
    return max(small, 2 * kept + (COMPILED if lane else 0) + lanes + found)


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
