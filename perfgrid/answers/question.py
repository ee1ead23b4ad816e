"""What a question names: a model, devices and numbers of them, and the machines that these stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm, log2
from numbers import Integral
from pathlib import Path
from typing import Any

from perfgrid.catalog import Catalog, Entry, load_catalog
from perfgrid.catalog.schema import AXIS_LABELS
from perfgrid.engine.errors import PerfgridError
from perfgrid.study.tables import usual_entries

from .entries import entries_text, model_of, with_device

LARGEST_TP, LARGEST_PP, LARGEST_EP, MOST_CHUNKS = 64, 64, 256, 10  # of the designs that are searched
SIXTEEN_BITS = ("bf16", "fp16")
FOUR_BITS = ("fp4", "int4")
LEAST_PART = 2048  # tokens of a sequence that a context-parallel rank has at least in these, in each of two parts


@dataclass(frozen=True)
class Question:
    """A model, the devices to compare, and what was named of their clusters; the catalog that knows them all."""

    catalog: Catalog
    model: Entry
    devices: tuple[str, ...]
    sizes: tuple[int, ...]
    topology: str | None = None
    software: str | None = None
    own: tuple[Entry, ...] = ()  # that no catalog file has: a model of a configuration, changed devices

    @property
    def own_files(self) -> dict[str, str]:
        """Table -> a catalog file with the entries that no other file has."""
        kinds = dict.fromkeys(entry.kind for entry in self.own)
        return {kind: entries_text((e for e in self.own if e.kind == kind), self.catalog) for kind in kinds}

    @property
    def systems(self) -> dict[str, Any]:
        """The axis ``system``: every device in its cluster."""
        usual = {"topology": self.topology, "software": self.software}
        zipped = {"device": list(self.devices)}
        zipped |= {table: [name] * len(self.devices) for table, name in usual.items() if name is not None}
        return {"labels": list(self.devices), "zip": zipped}

    @property
    def published(self) -> str:
        """The number format in which the model's weights are published."""
        variable = self.catalog.variables["published_precision"]
        return str(variable.word(self.model.values[variable.name]))

    def products(self, stored: str) -> list[str]:
        """The number format of matrix products with stored weights on every device.

        The same in 8 bits where the device has it. Formats of four bits are published for weights alone: 16 bits.
        """
        rates = [self.catalog.entry("device", device).values for device in self.devices]
        formats = dict.fromkeys(SIXTEEN_BITS if stored in FOUR_BITS else (stored, *SIXTEEN_BITS))
        return [next((f for f in formats if _number(own, f"peak_{f}_rate")), stored) for own in rates]

    def number(self, quantity: str) -> float:
        """A quantity of the model; 0 where it has none."""
        return _number(self.model.values, quantity)

    def schedules(self) -> list[str]:
        """The pipeline schedules that the software of every system offers."""
        stacks = [self.software] if self.software else usual_entries(self.catalog, self.devices, "training")["software"]
        offered = [self.catalog.entry("software", stack).values["more_schedules"] for stack in stacks]
        more = AXIS_LABELS["pipeline_schedule"]
        return ["1f1b", *(s for s in more if all(isinstance(own, dict) and own[s] for own in offered))]

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
        tp = [t for t in powers(min(domain, largest, LARGEST_TP)) if heads % t == 0]
        found = {"devices": list(self.sizes), "tp": tp}
        found["pp"] = [p for p in range(1, min(layers, largest, LARGEST_PP) + 1) if any(s % p == 0 for s in self.sizes)]
        if sequence is not None:
            found["cp"] = powers(max(1, min(sequence // (2 * LEAST_PART), largest)))
            found["chunks"] = sorted({2, *(c for c in range(1, MOST_CHUNKS + 1) if layers % c == 0)})
        if experts > 1:
            found["ep"] = [e for e in powers(min(largest, LARGEST_EP)) if experts % e == 0]
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
    known, entry, named = catalog, model_of(catalog, model), []
    catalog = replace(catalog, tables={**catalog.tables, "model": {**catalog.tables["model"], entry.name: entry}})
    for device in [on] if isinstance(on, str) else on:
        catalog, name = with_device(catalog, device)
        named += [name] if name not in named else []
    for table, stated in (("topology", topology), ("software", software)):
        if stated is not None:
            catalog.entry(table, stated)
    used = (entry, *(catalog.entry("device", name) for name in named))
    own = tuple(e for e in used if known.tables[e.kind].get(e.name) is not e)
    sizes = tuple(dict.fromkeys(devices if isinstance(devices, Iterable) else [devices]))
    if not named or not sizes:
        raise PerfgridError("a question needs at least one device and one number of devices")
    if wrong := [size for size in sizes if not isinstance(size, Integral) or isinstance(size, bool) or size < 1]:
        raise PerfgridError(f"the number of devices must be a whole number from 1 on, found {wrong[0]!r}")
    return Question(catalog, entry, tuple(named), tuple(map(int, sizes)), topology, software, own)


def _number(values: Mapping[str, Any], name: str) -> float:
    return float(values.get(name) or 0)


def powers(largest: int) -> list[int]:
    """Powers of two up to a number."""
    return [2**i for i in range(max(1, largest).bit_length())]
