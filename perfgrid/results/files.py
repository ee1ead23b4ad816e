"""Paths of results, checked; files that appear only when they are complete; compression."""

from __future__ import annotations

import errno
import lzma
import os
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import netCDF4
import xarray as xr

from perfgrid.catalog.naming import NAMES, is_name
from perfgrid.engine.errors import PerfgridError, printable_lines, shortened

PART = ".part.zarr"  # end of the name of a store that is being filled
BESIDE = ".perfgrid-"  # begins the names of what lies beside a file until it is complete
MOST_TEXT = 200  # of a library's message or of a path
DAMAGE = (  # what netCDF, zarr, NumPy, zipfile and the decompressors raise for bytes that are not what they should be
    *(OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError),
    *(RuntimeError, SystemError, SyntaxError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)
KINDS = {  # of what is written, by suffix
    ".nc": "results are netCDF files (a study also .zarr, a store, or .pgf, a factored result; a timeline also .json)",
    ".json": "a trace is a JSON file",
    ".pgf": "a factored result",
    ".toml": "catalog files are TOML",
    ".csv": "rows are CSV",
    ".jsonl": "records are lines of JSON",
    ".html": "pages are HTML",
    ".png": "a picture",
    ".svg": "a picture",
    ".pdf": "a picture",
}


def check_output(path: str | Path, overwrite: bool, suffix: str = ".nc") -> Path:
    """The path of a file if it can be written; PerfgridError for a wrong suffix, no folder, an existing file."""
    target = Path(path)
    if target.suffix != suffix:
        raise PerfgridError(f"cannot write {str(target)!r}: {KINDS[suffix]}; the file name must end in {suffix}")
    check_folder(target)
    found = status(target)
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise PerfgridError(f"cannot write {str(target)!r}: it is a folder")
    if found is not None and not overwrite:
        raise PerfgridError(f"{str(target)!r} exists; give --overwrite to replace it")
    try:
        with tempfile.NamedTemporaryFile(prefix=BESIDE, suffix=".part", dir=target.parent):
            return target
    except OSError as error:
        raise cannot_write(target, error) from error


def check_folder(target: Path) -> None:
    """PerfgridError where there is no folder for a file."""
    found = status(target.parent)
    if found is None or not stat.S_ISDIR(found.st_mode):
        raise PerfgridError(f"cannot write {str(target)!r}: there is no folder {str(target.parent)!r}")


def status(target: Path) -> os.stat_result | None:
    """What lies at a path that is to be written; PerfgridError where that cannot be told, or the name is illegal."""
    try:
        return os.stat(target)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise cannot_write(target, error) from error


def check_names(target: Path, result: xr.Dataset) -> None:
    """PerfgridError for a variable or an axis whose name would be a path in the file."""
    for name in map(str, (*result.variables, *result.dims)):
        if not is_name(name):
            raise PerfgridError(f"cannot write {str(target)!r}: the name {name!r} is no name of a variable: it {NAMES}")


@contextmanager
def replacing(target: Path) -> Iterator[str]:
    """A temporary neighbour that takes the target's name when the block succeeds and vanishes when it fails."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=BESIDE, suffix=".part", dir=target.parent)
    except OSError as error:
        raise cannot_write(target, error) from error
    os.close(handle)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except (OSError, RuntimeError) as error:
        raise cannot_write(target, _refusal(temporary) or error) from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _refusal(path: str) -> OSError | None:
    """Why a file cannot grow, which the netCDF library does not tell: the operating system is asked again."""
    try:
        with open(path, "ab", buffering=0) as file:
            for _ in range(16):  # a full disk may have room for a little
                file.write(bytes(2**16))
            os.fsync(file.fileno())
    except OSError as error:
        return error
    return None


def check_kind(path: str | Path) -> None:
    """OSError where nothing is, and for a pipe or a device, which may never end."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a pipe or a device and no file")


def put_in_place(part: Path, target: Path) -> None:
    """Give a finished folder its name; what had it before is put aside and goes only then."""
    aside = Path(tempfile.mkdtemp(prefix=BESIDE, dir=target.parent)) if target.exists() else None
    try:
        if aside is not None:
            os.rename(target, aside / target.name)
        os.rename(part, target)
    finally:  # also where a signal ends the program between the two
        if aside is not None:
            if not target.exists():
                os.rename(aside / target.name, target)
            shutil.rmtree(aside, ignore_errors=True)


def why(error: BaseException) -> str:
    """What an error of the operating system or of a library says, in one line."""
    number = getattr(error, "errno", None)
    text = str(getattr(error, "strerror", None) or error)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    if isinstance(error, ValueError) and "embedded null" in text:
        return "the name holds a null character"
    if (isinstance(error, FileNotFoundError) and number is None) or "Unknown file format" in text:
        return "it is neither netCDF nor a Zarr store nor a factored result"
    line = shortened(next(iter(text.splitlines()), ""), MOST_TEXT)
    return line if line and not isinstance(error, KeyError) else f"{type(error).__name__} {line}"


def cannot_write(path: str | Path, error: BaseException) -> PerfgridError:
    """The sentence for a full disk, a missing permission and the like."""
    return PerfgridError(f"cannot write {_named(path)}: {why(error)}")


def cannot_read(path: str | Path, error: BaseException, member: str = "") -> PerfgridError:
    """The sentence for a file, or a member of it, that is damaged, may not be read, or is none of this kind."""
    begin = f"cannot read {_named(path)}: "
    return PerfgridError(f"{begin}{member}{why(error).removeprefix(begin)}")


@contextmanager
def decoding(path: str | Path, member: str = "", errors: tuple[type[Exception], ...] = DAMAGE) -> Iterator[None]:
    """Around calls of a library that decodes a file, and nothing else: whatever it meets is one PerfgridError.

    MemoryError stays what it is: the file may be whole.
    """
    try:
        yield
    except errors as error:
        raise cannot_read(path, error, member) from error


def _named(path: str | Path) -> str:
    return shortened(repr(str(path)), 2 * MOST_TEXT)


def write_text(target: Path, text: str) -> None:
    """Write a text file that appears only when it is complete; control characters in it stand as escapes.

    Titles and labels may come from a stranger's file, and a text is looked at in a terminal.
    """
    with replacing(target) as temporary:
        Path(temporary).write_text(printable_lines(text), encoding="utf-8")


def compression() -> dict[str, Any]:
    """Options of a compressed netCDF variable: the fastest compression that the library has."""
    return {"compression": "zstd", "complevel": 1, "shuffle": True} if _has_zstd() else {"zlib": True, "complevel": 1}


def _has_zstd() -> bool:
    with netCDF4.Dataset("probe", "w", diskless=True) as probe:
        return bool(probe.has_zstd_filter())
