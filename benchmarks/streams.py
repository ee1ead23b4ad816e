"""Writing a study tile by tile: bytes of values per CPU-second by format, and what an interruption costs."""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

from perfgrid.results.factored import save_factored
from perfgrid.results.store.fill import part_of
from perfgrid.results.store.journal import NAME, read
from perfgrid.results.stream import stream
from perfgrid.study.study import Study

from .grids import sized

TILE_POINTS = 2**20  # ten tiles of 10^7 points
FORMATS = (".zarr", ".nc", ".pgf")


class Clock:
    """CPU and wall seconds since it was made."""

    def __init__(self):
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def read(self) -> dict[str, float]:
        """Both, by name."""
        return {"cpu_seconds": time.process_time() - self.cpu, "seconds": time.perf_counter() - self.wall}


class Stopped(Exception):
    """The interruption that is measured."""


def written(suffix: str, exponent: int) -> dict:
    """A study with 20 outputs from its file to a complete result: 4 bytes a value, as if none were compressed."""
    study = sized("dense", exponent)
    _write(sized("dense", 5), ".zarr" if suffix == ".pgf" else suffix)  # imports, and what is done once in a process
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        path = _write(study, suffix, folder)
        used = clock.read()
        stored = sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
    values = study.plan().result_bytes()
    return {
        "points": study.space.points,
        "value_bytes": values,
        "stored_bytes": stored,
        "value_bytes_per_cpu_second": values / used["cpu_seconds"],
        "value_bytes_per_wall_second": values / used["seconds"],
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **used,
    }


def _write(study: Study, suffix: str, folder: str | None = None, **how: object) -> Path:
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return _write(study, suffix, temporary)
    path = Path(folder, "result").with_suffix(suffix)
    if suffix == ".pgf":
        return Path(save_factored(study, path))
    return stream(study, path, tile_points=TILE_POINTS, **how)  # pyright: ignore[reportArgumentType]


def resumed(exponent: int) -> dict:
    """A store that is stopped after half of its tiles and resumed, against the one that is written at once."""
    study = sized("dense", exponent)
    _write(sized("dense", 5), ".zarr")

    def stop(phase: str, done: int, total: int) -> None:
        if phase == "evaluate" and done >= total // 2:
            raise Stopped

    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        _write(study, ".zarr", folder)
        whole = clock.read()["cpu_seconds"]
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        try:
            _write(study, ".zarr", folder, progress=stop)
        except Stopped:
            first = clock.read()["cpu_seconds"]
        else:
            raise RuntimeError("the run was not stopped: more points are needed")
        done = len(read(part_of(Path(folder, "result.zarr")) / NAME)[1])
        clock = Clock()
        _write(study, ".zarr", folder, resume=True)
        second = clock.read()["cpu_seconds"]
    return {
        "points": study.space.points,
        "at_once_cpu_seconds": whole,
        "until_stopped_cpu_seconds": first,
        "resumed_cpu_seconds": second,
        "entries_kept": done,
        "overhead": (first + second) / whole - 1,
    }
