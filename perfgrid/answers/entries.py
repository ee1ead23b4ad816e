"""What a question names that no catalog has: a model of a configuration file, a device that differs in some values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfgrid.analysis.catalog_check import counted_parameters
from perfgrid.catalog import Catalog, Entry
from perfgrid.catalog.checkpoints import INDEX, stored_size, weight_size
from perfgrid.catalog.huggingface import CONFIG, Imported, imported, read_config
from perfgrid.catalog.naming import check_name
from perfgrid.catalog.writing import entry_text
from perfgrid.engine.errors import PerfgridError, nearest, printable

OWN_MODEL = "huggingface2026models"  # source of a model that is read from a configuration
LEAST_OF_FILES, LEAST_BESIDE_TOWERS, MOST_OF_FILES = 0.9, 0.5, 1.02  # weights of the language model over all of them


def model_with_remarks(catalog: Catalog, model: str | Path) -> tuple[Entry, list[str]]:
    """A model of the catalog, or of a ``config.json`` or a folder with one, and what was left out of the latter.

    PerfgridError for neither, and for a configuration that is not understood as a whole: such an entry is to be looked
    at before it is used.
    """
    if (found := catalog.tables["model"].get(str(model))) is not None:
        return found, []
    path = Path(model)
    path = path / CONFIG if path.is_dir() else path
    if not path.is_file():
        legal, name = catalog.tables["model"], str(model)
        if "[" in name or catalog.name_of("model", name) in legal:
            return catalog.entry("model", name), []
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
    _check_size(known, own, path)
    return Entry(name, "model", name, known, dict.fromkeys(known, OWN_MODEL)), _remarks(own, path)


def _check_size(known: Mapping[str, Any], own: Imported, path: Path) -> None:
    """PerfgridError where the files beside a configuration weigh otherwise than what was read of it.

    They may also hold prediction layers and, where the configuration has other towers, those.
    """
    if (stored := stored_size(path)) is None:
        return
    predicted = weight_size(known, counted_parameters(known)["total_parameters"])
    least = stored * (LEAST_BESIDE_TOWERS if own.towers else LEAST_OF_FILES)
    if not least <= predicted <= stored * MOST_OF_FILES:
        sizes = f"weights of {predicted / 1e9:.4g} GB, but the files beside it hold {stored / 1e9:.4g} GB ({INDEX})"
        raise PerfgridError(f"{path} is read as {sizes}: it says something that perfgrid does not understand")


def _remarks(own: Imported, path: Path) -> list[str]:
    """What a configuration says that was not taken in."""
    found = []
    if own.keys.ignored:
        found.append(f"{path}: taken to be without effect, as words and flags: {', '.join(own.keys.ignored)}")
    if own.towers:
        found.append(f"{path}: not counted, beside the language model: {', '.join(own.towers)}")
    return [printable(remark) for remark in found]


def separated(text: str) -> list[str]:
    """Names separated by commas; commas in square brackets belong to a name."""
    found, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [name.strip() for name in found if name.strip()]


def entries_text(entries: Iterable[Entry], catalog: Catalog) -> str:
    """A catalog file with some entries of one kind; empty without any."""
    texts = [entry_text(entry, catalog.variables, catalog.references) for entry in entries]
    return "".join([*texts[:1], *(text.partition("\n")[2] for text in texts[1:])])
