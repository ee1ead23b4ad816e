"""Paths of results, checked; files that appear only when they are complete; compression."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import netCDF4

from perfgrid.engine.errors import PerfgridError

KINDS = {  # of what is written, by suffix
    ".nc": "results are netCDF files (a study also .zarr, a store, or .pgf, a factored result)",
    ".pgf": "a factored result",
    ".toml": "catalog files are TOML",
}


def check_output(path: str | Path, overwrite: bool, suffix: str = ".nc") -> Path:
    """The path of a file if it can be written; PerfgridError for a wrong suffix, no folder, an existing file."""
    target = Path(path)
    if target.suffix != suffix:
        raise PerfgridError(f"cannot write {str(target)!r}: {KINDS[suffix]}; the file name must end in {suffix}")
    if not target.parent.is_dir():
        raise PerfgridError(f"cannot write {str(target)!r}: there is no folder {str(target.parent)!r}")
    if target.is_dir():
        raise PerfgridError(f"cannot write {str(target)!r}: it is a folder")
    if target.exists() and not overwrite:
        raise PerfgridError(f"{str(target)!r} exists; give --overwrite to replace it")
    try:
        with tempfile.NamedTemporaryFile(prefix=f".{target.name}.", suffix=".part", dir=target.parent):
            return target
    except OSError as error:
        raise PerfgridError(f"cannot write {str(target)!r}: {error.strerror or error}") from None


@contextmanager
def replacing(target: Path) -> Iterator[str]:
    """A temporary neighbour that takes the target's name when the block succeeds and vanishes when it fails."""
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.close(handle)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except (OSError, RuntimeError) as error:
        why = str(getattr(error, "strerror", None) or error)
        if why.startswith("NetCDF"):  # the same message for a full disk and any other error
            why += f" ({shutil.disk_usage(target.parent).free / 2**20:,.1f} MiB are free there)"
        raise PerfgridError(f"cannot write {str(target)!r}: {why}") from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def write_text(target: Path, text: str) -> None:
    """Write a text file that appears only when it is complete."""
    with replacing(target) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")


def compression() -> dict[str, Any]:
    """Options of a compressed netCDF variable: the fastest compression that the library has."""
    return {"compression": "zstd", "complevel": 1, "shuffle": True} if _has_zstd() else {"zlib": True, "complevel": 1}


def _has_zstd() -> bool:
    with netCDF4.Dataset("probe", "w", diskless=True) as probe:
        return bool(probe.has_zstd_filter())
