"""Names of catalog entries in a study as the catalog has them: ``H200``, or an entry in which values differ."""

from __future__ import annotations

from typing import Any

from perfgrid.catalog import Catalog
from perfgrid.catalog.schema import KINDS

from .entries import IO_NODE
from .file import StudyFile


def with_names(file: StudyFile, catalog: Catalog, name: str) -> tuple[StudyFile, Catalog]:
    """A study with the names of the catalog on its axes, and the catalog with the entries that it states in brackets.

    What no entry is called stays as it is: labels such as ``native`` are none, and an unknown name is refused where it
    is looked up. PerfgridError for a name that may be several entries, and for illegal values in brackets.
    """

    def known(table: str, names: Any, place: str) -> Any:
        nonlocal catalog
        kind = "node" if table == IO_NODE else table
        if kind not in KINDS:
            return names
        if isinstance(names, list):
            return [known(table, one, place) for one in names]
        if not isinstance(names, str):
            return names
        if "[" not in names:
            return catalog.name_of(kind, names, f"{place}: ")
        catalog, found = catalog.named(kind, names, f"{place}: ")
        return found

    axes = {}
    for key, spec in file.axes.items():
        place = f"{name}, axes.{key}"
        if isinstance(spec, dict) and isinstance(spec.get("zip"), dict):
            own = {table: known(table, names, f"{place}.zip.{table}") for table, names in spec["zip"].items()}
            axes[key] = {**spec, "zip": own}
        else:
            axes[key] = known(key, spec, place)
    return file.model_copy(update={"axes": axes}), catalog
