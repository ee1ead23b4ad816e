"""From files to definitions: what each TOML and BibTeX file states, unchecked but for its form."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.renamed import current

from .naming import check_name
from .reading import check_file, from_toml, read_text
from .references import read_references
from .schema import KINDS, Kind


@dataclass(frozen=True)
class Definition:
    """An entry as its file states it."""

    file: str
    stated: Mapping[str, Any]


@dataclass(frozen=True)
class Layer:
    """What one set of files states; a later layer replaces entries of an earlier one."""

    definitions: Mapping[Kind, Mapping[str, Definition]]
    references: Mapping[str, str]


def files_of(path: Path) -> list[Path]:
    """The file itself, or every catalog file of a folder; PerfgridError for a folder without any."""
    if os.path.isdir(path):  # false for names that no file can have
        try:
            found = sorted(p for p in path.iterdir() if p.suffix in (".toml", ".bib"))
        except OSError as error:
            raise PerfgridError(f"{path}: cannot be read: {error.strerror}") from error
        if not found:
            raise PerfgridError(f"catalog folder {path} holds no .toml or .bib file")
        return [check_file(p) for p in found]
    return [check_file(path)]


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML document; PerfgridError where the file cannot be read or parsed."""
    return from_toml(read_text(path), f"{path}: ")


def read_layer(paths: Iterable[Path]) -> Layer:
    """What the files state, by kind and name; PerfgridError for a missing kind and for an entry defined twice."""
    definitions: dict[Kind, dict[str, Definition]] = {kind: {} for kind in KINDS}
    references: dict[str, str] = {}
    for path in paths:
        if path.suffix == ".bib":
            references.update(read_references(path))
            continue
        for kind, entries in _by_kind(current(read_toml(path), str(path)), path).items():
            for name, stated in entries.items():
                if not isinstance(stated, dict):
                    raise PerfgridError(f"{path}: {name!r} stands outside any entry; an entry is a table [{name}]")
                check_name(name, str(path), dots=True)
                if name in definitions[kind]:
                    raise PerfgridError(f"{path}: {kind} {name!r} is already defined in {definitions[kind][name].file}")
                definitions[kind][name] = Definition(str(path), stated)
    return Layer(definitions, references)


def _by_kind(document: dict[str, Any], path: Path) -> Mapping[Kind, Mapping[str, Any]]:
    """The entries of a file by kind: of the one at its top, or of several as tables [KIND.NAME]."""
    kind = document.pop("kind", None)
    if kind is None and document and all(k in KINDS and isinstance(v, dict) for k, v in document.items()):
        return cast(Mapping[Kind, Mapping[str, Any]], document)
    if kind not in KINDS:
        raise PerfgridError(f"{path}: kind at the top must be one of {', '.join(KINDS)}, found {kind!r}")
    return {kind: document}
