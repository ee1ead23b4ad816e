"""What a question names: a model, devices and numbers of them, and the machines that these stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm, log2
from pathlib import Path
from typing import Any

from perfgrid.catalog import Catalog, Entry, load_catalog
from perfgrid.catalog.huggingface import model_values, read_config
from perfgrid.catalog.writing import entry_text
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.study.tables import usual_entries

CONFIG = "config.json"
OWN_MODEL = "huggingface2026models"  # source of a model that is read from a configuration
LARGEST_TP = 64
LARGEST_PP = 64
LARGEST_EP = 256
LEAST_PART = 2048  # tokens of a sequence that a context-parallel rank holds at least
MOST_CHUNKS = 10


@dataclass(frozen=True)
class Question:
    """A model, the devices to compare, and what was named of their clusters; the catalog that knows them all."""

    catalog: Catalog
    model: Entry
    devices: tuple[str, ...]
    sizes: tuple[int, ...]
    topology: str | None = None
    software: str | None = None
    own_model: bool = False  # read from a configuration, and in no catalog file

    @property
    def model_file(self) -> str:
        """A catalog file with the model, if no catalog has it."""
        return entry_text(self.model, self.catalog.variables, self.catalog.references) if self.own_model else ""

    @property
    def systems(self) -> dict[str, Any]:
        """The axis ``system``: every device in its cluster."""
        usual = {"topology": self.topology, "software": self.software}
        zipped = {"device": list(self.devices)}
        zipped |= {table: [name] * len(self.devices) for table, name in usual.items() if name is not None}
        return {"labels": list(self.devices), "zip": zipped}

    def number(self, quantity: str) -> float:
        """A quantity of the model; 0 where it has none."""
        return _number(self.model.values, quantity)

    def assumptions(self, workload: str) -> dict[str, str]:
        """What the question left open, and what was taken: by the option that changes it."""
        usual = usual_entries(self.catalog, self.devices, workload)
        stated = {"software": self.software, "topology": self.topology}
        return {t: ", ".join(dict.fromkeys(usual[t])) for t, name in stated.items() if name is None}

    def layouts(self, sequence: int | None = None) -> dict[str, list[int]]:
        """The axis ``parallelism``: degrees that heads, layers, experts and the sequence allow."""
        layers, heads, experts = (int(self.number(name)) for name in ("layers", "heads", "experts"))
        largest = max(self.sizes)
        domain = max(int(_number(self.catalog.entry("device", d).values, "scale_up_size")) for d in self.devices)
        tp = [t for t in _powers(min(domain, largest, LARGEST_TP)) if heads % t == 0]
        found = {"devices": list(self.sizes), "tp": tp}
        found["pp"] = [p for p in range(1, min(layers, largest, LARGEST_PP) + 1) if any(s % p == 0 for s in self.sizes)]
        if sequence is not None:
            found["cp"] = _powers(max(1, min(sequence // (2 * LEAST_PART), largest)))
            found["chunks"] = sorted({2, *(c for c in range(1, MOST_CHUNKS + 1) if layers % c == 0)})
        if experts > 1:
            found["ep"] = [e for e in _powers(min(largest, LARGEST_EP)) if experts % e == 0]
        return found

    def batch(self, wanted: int) -> int:
        """The number of sequences nearest to the wanted one that data-parallel ranks of every size divide well.

        A power of two times what is odd in the sizes.
        """
        odd = lcm(*(size // (size & -size) for size in self.sizes))
        return odd * 2 ** max(0, round(log2(max(1, wanted) / odd)))


def question(
    model: str | Path,
    on: str | Sequence[str],
    devices: int | Sequence[int],
    topology: str | None,
    software: str | None,
    catalog: Catalog | str | Path | Sequence[str | Path] | None,
) -> Question:
    """A checked question. PerfgridError for an unknown name, with the nearest ones, and for an illegal number."""
    if not isinstance(catalog, Catalog):
        catalog = load_catalog(*([catalog] if isinstance(catalog, str | Path) else catalog or ()))
    entry = model_of(catalog, model)
    own = entry.name not in catalog.tables["model"] or catalog.tables["model"][entry.name] is not entry
    catalog = replace(catalog, tables={**catalog.tables, "model": {**catalog.tables["model"], entry.name: entry}})
    named = tuple(dict.fromkeys([on] if isinstance(on, str) else on))
    for table, names in (("device", named), ("topology", (topology,)), ("software", (software,))):
        for name in filter(None, names):
            if name not in catalog.tables[table]:
                raise PerfgridError(f"unknown {table} {name!r}{nearest(name, catalog.tables[table])}")
    sizes = tuple(dict.fromkeys([devices] if isinstance(devices, int) else devices))
    if not named or not sizes:
        raise PerfgridError("a question needs at least one device and one number of devices")
    if wrong := [size for size in sizes if not isinstance(size, int) or isinstance(size, bool) or size < 1]:
        raise PerfgridError(f"the number of devices must be a whole number from 1 on, found {wrong[0]!r}")
    return Question(catalog, entry, named, sizes, topology, software, own)


def model_of(catalog: Catalog, model: str | Path) -> Entry:
    """A model of the catalog, or of a ``config.json`` or a folder with one. PerfgridError for neither."""
    if (found := catalog.tables["model"].get(str(model))) is not None:
        return found
    path = Path(model)
    path = path / CONFIG if path.is_dir() else path
    if not path.is_file():
        legal = catalog.tables["model"]
        raise PerfgridError(f"no model {str(model)!r} in the catalog, and no such file{nearest(str(model), legal)}")
    values = model_values(read_config(path), catalog.variables, str(path))
    of = {v.name: v for v in catalog.variables.values() if v.of == "model"}
    filled = {name: values.get(name, v.default_value) for name, v in of.items()}
    name = path.resolve().parent.name if path.name == CONFIG else path.stem
    known = {quantity: value for quantity, value in filled.items() if value is not None}
    return Entry(name, "model", name, known, dict.fromkeys(known, OWN_MODEL))


def _number(values: Mapping[str, Any], name: str) -> float:
    return float(values.get(name) or 0)


def _powers(largest: int) -> list[int]:
    """Powers of two up to a number."""
    return [2**i for i in range(max(1, largest).bit_length())]
