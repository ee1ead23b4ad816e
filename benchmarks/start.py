"""Whole commands as a user starts them, and measurements in processes of their own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .grids import QUICKSTART

IMPORTS = ("-c", "import jax, xarray")
QUESTION = (
    *("-m", "perfgrid", "train", "llama-3.1-70b", "--on", "h100-sxm-80gb,h200-sxm-141gb,b200,mi300x"),
    *("--devices", "256,512"),
)


def alone(section: str, *arguments: object, cache: str | None = None) -> dict:
    """One measurement in a fresh process, for its peak memory."""
    return _figures(_started(section, arguments, cache))


def together(section: str, processes: int, *arguments: object) -> dict:
    """The same measurement in several processes at once: points per second of all, on the wall and of the processor."""
    running = [_started(section, arguments, None) for _ in range(processes)]
    found = [_figures(process) for process in running]
    return {
        "processes": processes,
        "points_per_wall_second": sum(f["points_per_wall_second"] for f in found),
        "points_per_cpu_second": sum(f["points_per_cpu_second"] for f in found) / processes,
    }


def _started(section: str, arguments: Sequence[object], cache: str | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "--one", section, *map(str, arguments)],
        env={**os.environ, **({"PERFGRID_CACHE": cache} if cache else {})},
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )


def _figures(process: subprocess.Popen[str]) -> dict:
    printed, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return json.loads(printed.splitlines()[-1])


def quickstart(runs: int = 4) -> dict:
    """`perfgrid run` of the quickstart, table and file included: with an empty cache, then again.

    Byte code is kept as Python does by itself, whatever the environment says; the first run also writes that.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "perfgrid", "run", str(QUICKSTART), "-o", f"{folder}/result.nc", "--overwrite"]
        found = [_timed(command, folder) for _ in range(runs)]
    return {"first": found[0], **{f"again {i}": figures for i, figures in enumerate(found[1:], 1)}}


def answer(runs: int = 4) -> dict:
    """`perfgrid train` with a search of about 10^5 designs, and the imports of two of its libraries alone, in turns.

    The first pair starts from empty caches; ``times_imports``: CPU time over the median of the later imports.
    """
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(_timed(IMPORTS, folder), _timed(QUESTION, folder)) for _ in range(runs)]
    imports = statistics.median(alone["cpu_seconds"] for alone, _ in pairs[1:])
    found = {}
    for title, (alone, question) in zip(("first", *(f"again {i}" for i in range(1, runs))), pairs, strict=True):
        found[f"import jax, xarray, {title}"] = alone
        found[f"question, {title}"] = question | {"times_imports": question["cpu_seconds"] / imports}
    return found


def _timed(command: Sequence[str], folder: str) -> dict:
    """Time and memory of a Python command with its caches in a folder."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command],
        env={
            **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
            "PERFGRID_CACHE": f"{folder}/cache",
            "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_memory": used.ru_maxrss * 1024,
    }
