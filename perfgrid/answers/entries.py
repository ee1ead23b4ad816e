"""What a question names that no catalog has: a model of a configuration file, a device that differs in some values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from perfgrid.catalog import Catalog, Entry
from perfgrid.catalog.huggingface import imported, read_config
from perfgrid.catalog.naming import check_name
from perfgrid.catalog.writing import entry_text
from perfgrid.engine.errors import PerfgridError, nearest, printable

CONFIG = "config.json"
OWN_MODEL = "huggingface2026models"  # source of a model that is read from a configuration


def model_of(catalog: Catalog, model: str | Path) -> Entry:
    """A model of the catalog, or of a ``config.json`` or a folder with one. PerfgridError for neither.

    Also for a configuration that is not understood as a whole: such an entry is to be looked at before it is used.
    """
    if (found := catalog.tables["model"].get(str(model))) is not None:
        return found
    path = Path(model)
    path = path / CONFIG if path.is_dir() else path
    if not path.is_file():
        legal, name = catalog.tables["model"], str(model)
        if "[" in name or catalog.name_of("model", name) in legal:
            return catalog.entry("model", name)
        raise PerfgridError(f"no model {name!r} in the catalog, and no such file{nearest(name, legal)}")
    own = imported(read_config(path), catalog.variables, str(path))
    if (open_keys := own.keys.unknown) or not own.keys.by_row:
        why = f"does not understand {', '.join(open_keys)}" if open_keys else f"does not know model_type {own.kind!r}"
        raise PerfgridError(
            f"{path}: perfgrid {printable(why)}; write its entry with perfgrid catalog import {path} -o mine.toml, "
            "check it, and name it with --catalog mine.toml"
        )
    of = {v.name: v for v in catalog.variables.values() if v.of == "model"}
    filled = {name: own.values.get(name, v.default_value) for name, v in of.items()}
    name = path.resolve().parent.name if path.name == CONFIG else path.stem
    check_name(name, f"{path}, as the name of its model", dots=True)
    while name in catalog.tables["model"]:  # a saved study names both catalogs
        name += "-own"
    known = {quantity: value for quantity, value in filled.items() if value is not None}
    return Entry(name, "model", name, known, dict.fromkeys(known, OWN_MODEL))


def entries_text(entries: Iterable[Entry], catalog: Catalog) -> str:
    """A catalog file with some entries of one kind; empty without any."""
    texts = [entry_text(entry, catalog.variables, catalog.references) for entry in entries]
    return "".join([*texts[:1], *(text.partition("\n")[2] for text in texts[1:])])
