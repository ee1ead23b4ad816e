"""What is kept on disk between runs: read catalogs, compiled functions. Losing it costs time and nothing else.

A thing is kept under a name, together with a key of all that it was made from; under another key it is made again and
replaces what was there, so that the folder grows with the number of names and not with the number of changes.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any


def cache_folder() -> Path | None:
    """``PERFGRID_CACHE`` or the user's cache folder, made if need be; None where it cannot be made."""
    stated = os.environ.get("PERFGRID_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(stated or os.path.join(home, "perfgrid"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None  # no cache is slower, not wrong
    return folder


def recall(name: str, key: str) -> Any:
    """What was kept under a name with this key; None if there is nothing, or nothing that can be read."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        with open(folder / f"{name}.kept", "rb") as file:
            if pickle.load(file) != key:
                return None
            os.utime(file.fileno())  # the ones used last are forgotten last
            return pickle.load(file)
    except Exception:  # damaged, cut short or of other versions: pickle raises whatever it meets
        return None


def keep(name: str, key: str, value: Any) -> None:
    """Keep a value under a name; readers see the old one or the new one. Nothing happens where that is impossible."""
    folder = cache_folder()
    if folder is None:
        return
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        with os.fdopen(handle, "wb") as file:
            pickle.dump(key, file, pickle.HIGHEST_PROTOCOL)
            pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
        os.replace(temporary, folder / f"{name}.kept")
    except Exception:  # a full disk, a value that cannot be pickled
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


_LEFT: dict[tuple[str, str], int] = {}  # folder and beginning -> how often may be kept until the folder is full


def forget(start: str, most: int) -> None:
    """Remove what was used longest ago of all that is kept under names of this beginning, beyond so many.

    Called whenever something was kept; looks into the folder, which takes as long as a small study, only where this
    process may have filled it since it last looked. Others fill it meanwhile by as much as they keep, at most.
    """
    folder = cache_folder()
    if folder is None:
        return
    left = _LEFT.get((str(folder), start), 0)
    if left == 0:
        found = _used(folder, start)
        with suppress(OSError):  # another process removed one at the same time
            for path in found[:-most]:
                path.unlink(missing_ok=True)
        left = max(1, most - len(found), most // 10)
    _LEFT[str(folder), start] = left - 1


def _used(folder: Path, start: str) -> list[Path]:
    """What is kept under names of a beginning, what was used longest ago first."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(start) and entry.name.endswith(".kept"):
                with suppress(OSError):  # another process removed it at the same time
                    found.append((entry.stat().st_mtime, entry.path))
    return [Path(path) for _, path in sorted(found)]
