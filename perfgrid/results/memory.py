"""Memory at hand, and results that would not fit it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import check_precision
from perfgrid.engine.grid.plan import Plan


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


def check_memory(plan: Plan, name: str, dtype: str = "float32", available: int | None = None) -> None:
    """PerfgridError, with the size and the command that streams, if the results cannot be held in memory."""
    check_precision(dtype)
    limit = available_memory() if available is None else available
    needed = plan.result_bytes(dtype)
    if needed > 0.8 * limit:
        raise PerfgridError(
            f"{name}: the results of {plan.space.points:,} points take {needed / 2**30:,.1f} GiB and "
            f"{limit / 2**30:,.1f} GiB of memory are free; save a factored result with "
            f"'perfgrid run {name} -o FILE.pgf' (pg.save), write tile by tile with -o FILE.zarr or "
            "--stream -o FILE.nc (pg.stream), or ask for fewer outputs or shorter axes"
        )
