"""Version of a folder of data that is shipped: what its release file states, and a hash of its files."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from .hashing import digest

RELEASE = "release.toml"


def release(folder: Path, files: Iterable[Path]) -> str:
    """Version and hash of data files, such as ``2026.11+1f0c9a2b``. Raises OSError where a file cannot be read."""
    version = tomllib.loads((folder / RELEASE).read_text(encoding="utf-8"))["version"]
    content = digest(*(part for path in sorted(files) for part in (path.name, path.read_bytes())))
    return f"{version}+{content[:8]}"
