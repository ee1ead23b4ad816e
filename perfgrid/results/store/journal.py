"""The journal of a store: what is durable. Append-only lines of JSON; one entry after each region that is on disk.

The first line says that the template of the store is complete. A line that a crash cut short is dropped; a line that
is damaged anywhere else is an error. One process at a time holds the journal of a store.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from perfgrid.engine.errors import PerfgridError
from perfgrid.results.schema import checked

NAME = "journal.jsonl"
TABLES = -1  # stands for the tile of what is written whole


@dataclass(frozen=True)
class Entry:
    """One tile that is durable: a checksum of all that it wrote, how many of its points are infeasible and why.

    ``infeasible`` without any feasible output, ``partly`` with some.
    """

    tile: int
    checksum: str
    infeasible: int = 0
    violated: dict[str, int] = field(default_factory=dict)
    partly: int = 0


class Header(TypedDict):
    """The first line."""

    tiles: int
    seal: str


def read(path: Path) -> tuple[dict[str, Any] | None, dict[int, Entry], int]:
    """Header (None where there is none), entries by tile, and how many bytes are valid.

    Raises PerfgridError for a journal that cannot be read or is damaged before its last line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PerfgridError(f"cannot read the journal {str(path)!r}: {error.strerror or error}") from None
    header, entries, valid = None, {}, 0
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("cut short")
            if header is None:
                header = checked("the header", line, Header)
            else:
                entry = checked("the entry", line, Entry)
                entries[entry.tile] = entry
        except ValueError:
            if number < len(lines):
                raise PerfgridError(
                    f"the journal {str(path)!r} is damaged in line {number}; --overwrite begins anew"
                ) from None
            break
        valid += len(line)
    return header, entries, valid


class Journal:
    """The journal of a store that is being written.

    Raises PerfgridError where another process is writing it, and for one that is damaged unless it is to be begun
    ``anew``. Either way what is durable stays until `reset`: what is refused before that has lost nothing.
    """

    def __init__(self, store: Path, anew: bool = False):
        self.path = store / NAME
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise PerfgridError(f"{str(store)!r} is being written by another process") from None
        try:
            self.header, self.entries, self._size = read(self.path)
        except PerfgridError:
            if not anew:
                self.close()
                raise
            self.header, self.entries, self._size = None, {}, 0
        os.ftruncate(self._file, self._size)

    def reset(self) -> None:
        """Forget everything: the store is begun anew."""
        os.ftruncate(self._file, 0)
        self.header, self.entries, self._size = None, {}, 0

    def begin(self, **header: Any) -> None:
        """Tell that the template is complete."""
        self._append(header)
        self.header = header

    def add(self, entry: Entry) -> None:
        """Tell that a tile is durable."""
        self._append(asdict(entry))
        self.entries[entry.tile] = entry

    def _append(self, data: dict[str, Any]) -> None:
        line = (json.dumps(data, separators=(",", ":")) + "\n").encode()
        try:
            written = os.write(self._file, line)
            if written < len(line):  # the rest tells why
                os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)  # what stays is whole lines
            raise
        self._size += len(line)

    def close(self) -> None:
        """Release the journal."""
        os.close(self._file)
