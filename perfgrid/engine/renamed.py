"""Names of earlier releases, read as those of today with a warning."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

# Earlier name -> name of today and the release that renamed it; it stays for two minor versions (CONTRIBUTING.md).
# Of quantities, keys of studies and of the catalog, and options (with --). None since 0.2.0, the first release.
RENAMED: dict[str, tuple[str, str]] = {}


FILES = "bib|csv|html|ipynb|jsonl?|log|md|nc|pdf|pgf|png|py|sh|svg|toml|txt|ya?ml|zarr"  # ends of their names


class Renamed(FutureWarning):
    """A name of an earlier release was read as that of today."""


def current(what: Any, where: str) -> Any:
    """A text, list or mapping with names of today for earlier ones, in keys and in values; warns, naming ``where``."""
    if not RENAMED:
        return what
    if isinstance(what, str):
        return _words().sub(lambda word: _told(word[0], where), what)
    if isinstance(what, Mapping):
        keys = {key: current(key, where) for key in what}
        known = {key: new for key, new in keys.items() if new == key or new not in what}  # a setting has today's name
        return {new: what[key] if key == "title" else current(what[key], where) for key, new in known.items()}
    return [current(value, where) for value in what] if isinstance(what, (list, tuple)) else what


def _words() -> re.Pattern[str]:
    """Earlier names as whole words, also in conditions and in dotted keys, but not within names of files and labels."""
    names = "|".join(map(re.escape, RENAMED))
    return re.compile(rf"(?<![\w/-])(?:{names})(?![\w/-]|\.(?:{FILES})\b)")


def _told(name: str, where: str) -> str:
    new, version = RENAMED[name]
    warnings.warn(f"{where}: {name} is called {new} since {version}", Renamed, stacklevel=2)
    return new
