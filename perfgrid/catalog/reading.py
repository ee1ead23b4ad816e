"""Files and texts from outside, within limits: no small input takes all memory, time or stack."""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perfgrid.engine.errors import PerfgridError, printable

LARGEST_FILE = 2**26  # bytes
DEEPEST = 64  # tables and lists within each other
LARGEST_INTEGER = 1024  # bits: floating point holds no larger number
_TOO_DEEP = f"more than {DEEPEST} tables or lists stand within each other"
_TOO_LONG = "an integer of more than 308 digits is no number to compute with"


class Malformed(PerfgridError):
    """Text that is not what it should be, TOML or JSON."""


def check_file(path: Path, largest: int = LARGEST_FILE) -> Path:
    """The path of a regular file of at most so many bytes; PerfgridError for anything else, such as a pipe."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:  # a path may hold a null character
        raise PerfgridError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(found.st_mode):
        raise PerfgridError(f"{path}: cannot be read: it is a folder, such as a store of results, and no file")
    if not stat.S_ISREG(found.st_mode):
        raise PerfgridError(f"{path}: cannot be read: it is a pipe or a device and no file")
    if found.st_size > largest:
        sizes = f"{found.st_size / 2**20:,.0f} MiB, and at most {largest / 2**20:g} MiB"
        raise PerfgridError(f"{path}: cannot be read: it holds {sizes} are read")
    return path


def read_text(path: Path, largest: int = LARGEST_FILE) -> str:
    """The text of a file in UTF-8. PerfgridError where it cannot be read."""
    try:
        return check_file(path, largest).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise PerfgridError(f"{path}: cannot be read: it is not a text file (UTF-8)") from None
    except OSError as error:
        raise PerfgridError(f"{path}: cannot be read: {error.strerror or error}") from None


def from_toml(text: str, where: str = "") -> dict[str, Any]:
    """A TOML document. Raises Malformed, and PerfgridError for one beyond the limits; both begin with ``where``."""
    return _parsed(tomllib.loads, "TOML", text, where)


def from_json(text: str, where: str = "") -> Any:
    """A JSON value; errors like those of `from_toml`."""
    return _parsed(json.loads, "JSON", text, where)


def _parsed(parse: Callable[[str], Any], form: str, text: str, where: str) -> Any:
    try:
        found = parse(text)
    except RecursionError:
        raise PerfgridError(f"{where}{_TOO_DEEP}") from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        cut = isinstance(error, json.JSONDecodeError) and (
            error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        )
        raise Malformed(f"{where}not valid {form}: {error}{': the text ends early' if cut else ''}") from None
    except ValueError:  # of Python's own limit to the digits of an integer
        raise PerfgridError(f"{where}{_TOO_LONG}") from None
    check_extent(found, where)
    return found


def check_extent(document: Any, where: str = "") -> None:
    """PerfgridError for what nothing may hold: tables too deep, too large an integer, a key of several lines."""
    level: list[tuple[str, Any]] = [(where, [document])]
    for _ in range(DEEPEST + 1):
        inside = []
        for place, holder in level:
            for key, value in holder.items() if isinstance(holder, Mapping) else ((None, part) for part in holder):
                if isinstance(key, str) and not (key.isascii() and key.isprintable()) and printable(key) != key:
                    raise PerfgridError(f"{place}the key {key!r} holds characters that cannot be printed")
                if isinstance(value, (str, float)):
                    continue
                if isinstance(value, int) and value.bit_length() > LARGEST_INTEGER:
                    raise PerfgridError(f"{place}{key or ''}: {_TOO_LONG}".replace(".: ", ": "))
                if isinstance(value, (Mapping, list, tuple)):
                    inside.append((place if key is None else f"{place}{key}.", value))
        if not inside:
            return
        level = inside
    raise PerfgridError(f"{where}{_TOO_DEEP}")
