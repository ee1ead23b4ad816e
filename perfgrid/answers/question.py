"""What a question names: a model, devices and numbers of them, and the machines that these stand for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import lcm, log2
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from perfgrid.analysis.catalog_check import counted_parameters
from perfgrid.analysis.nomenclature import word_of
from perfgrid.catalog import Catalog, Entry, Variable, converted, load_catalog, load_variables
from perfgrid.catalog.checkpoints import formats_text, kept_cache, stored_weights
from perfgrid.catalog.names import resolved
from perfgrid.catalog.number_formats import FOUR_BITS, SIXTEEN_BITS
from perfgrid.catalog.schema import AXIS_LABELS, LARGEST_COUNT
from perfgrid.catalog.units import LARGE, number_or_text
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.entries import Sense
from perfgrid.formulas import registry_of
from perfgrid.formulas.collectives.topology import tier_size
from perfgrid.formulas.hardware.device import FORMATS
from perfgrid.study.entries import usual_entries
from perfgrid.study.ledger import Origin
from perfgrid.study.study import build_study

from .amounts import FOLLOWS, paid
from .entries import entries_text, model_with_remarks

LARGEST_TP, LARGEST_PP, LARGEST_EP, MOST_CHUNKS = 64, 64, 256, 10  # of the designs that are searched
WIDE_PRODUCTS = (SIXTEEN_BITS.word, "fp16")  # of matrix products in 16 bits, the usual ones first
SCALED = {  # formats of products that name the scales of another one, too
    "mxfp8": ("fp8", "mx"),
    "mxfp4": ("fp4", "mx"),
    "nvfp4": ("fp4", "nvfp4"),
}
SUFFIXES = "TBMK"  # of rounded counts, the largest first
RENT = Variable(name="cost_per_device_hour", unit="USD/h", meaning="Rent of a device", of="price")
SENSES: dict[str, Sense] = {  # by unit what one wants of a quantity whose formula does not say
    **dict.fromkeys(("s", "J", "J/FLOP", "J/byte", "USD", "USD/h", "USD/s", "kg", "kg/s"), "least"),
    **dict.fromkeys(("1/s", "FLOP/s", "FLOP/J", "FLOP/USD", "1/J", "1/USD"), "most"),
}
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
    rents: tuple[float, ...] = ()  # of the devices in USD per hour, where they are stated
    spelled: Mapping[str, str] = field(default_factory=dict)  # a device as the question spells it -> its name
    workload: str = "training"
    remarks: tuple[str, ...] = ()  # on what a configuration of the model says and was not taken in

    @property
    def own_files(self) -> dict[str, str]:
        """Table -> a catalog file with the entries that no other file has."""
        kinds = dict.fromkeys(entry.kind for entry in self.own)
        return {kind: entries_text((e for e in self.own if e.kind == kind), self.catalog) for kind in kinds}

    @property
    def heading(self) -> str:
        """The model's title with how many parameters it has, and of a mixture how many a token activates."""
        count = counted_parameters(self.model.values)
        some = f", {rounded(count['parameters_per_token'])} active" if self.number("experts") else ""
        return f"{self.model.title} ({rounded(count['total_parameters'])} parameters{some})"

    @property
    def context(self) -> int:
        """Tokens of the longest sequence that the model is made for; 0 where none is stated."""
        return int(self.number("context_length") or self.number("learned_positions"))

    def warnings(self, tokens: int, what: str) -> list[str]:
        """What was not taken in of the model, and that a sequence is longer than it is made for, if it is."""
        if not 0 < self.context < tokens:
            return [*self.remarks]
        return [
            *self.remarks,
            f"{tokens:,} tokens of {what} exceed the context of {self.context:,} of {self.model.title}",
        ]

    def partly_used(self) -> list[str]:
        """The devices of which some number does not fill the scale-up domains of their cluster."""
        found = []
        for device, domain in self.domains.items():
            if sizes := [size for size in self.sizes if size > domain and size % domain]:
                numbers = ", ".join(f"{size:,}" for size in sizes)
                found.append(
                    f"{numbers} x {device} do not fill their scale-up domains of {domain}: every group of ranks takes "
                    "equal parts of domains, and costs count these devices alone"
                )
        return found

    @cached_property
    def domains(self) -> dict[str, int]:
        """Devices in a scale-up domain of every device's cluster, as fabric and device state it together."""
        study = build_study({"outputs": ["tier_size"], "axes": {"system": self.systems}}, "the question", self.catalog)
        fabric, own = (study.space.parts(name)[0][1] for name in ("tier_size_limit", "scale_up_size"))
        sizes = np.reshape(tier_size(fabric, own.reshape(-1, *[1] * (fabric.ndim - 1))), (-1, len(AXIS_LABELS["tier"])))
        return dict(
            zip(self.devices, np.broadcast_to(sizes[:, 0].astype(int), len(self.devices)).tolist(), strict=True)
        )

    @property
    def systems(self) -> dict[str, Any]:
        """The axis ``system``: every device in its cluster."""
        usual = {"topology": self.topology, "software": self.software}
        zipped = {"device": list(self.devices)}
        zipped |= {table: [name] * len(self.devices) for table, name in usual.items() if name is not None}
        zipped |= {RENT.name: list(self.rents)} if self.rents else {}
        return {"labels": list(self.devices), "zip": zipped}

    def outputs(self, *names: str) -> list[str]:
        """The outputs of a study, each once and without what its axis ``system`` states."""
        return [name for name in dict.fromkeys(names) if name != RENT.name or not self.rents]

    @property
    def published(self) -> str:
        """The number format in which most of the model's weights are published."""
        variable = self.catalog.variables["published_precision"]
        return str(variable.word(self.model.values[variable.name]))

    def stored(self, precision: str | None) -> dict[str, Any]:
        """How a study stores weights and cache: as published unless a number format is stated.

        Of formats in four bits without more said of the parts, attention is taken to stay in 16.
        """
        if precision is not None:
            return {"weight_precision": precision, "kv_precision": precision}
        weights = stored_weights(self.model, self.catalog.variables)
        kept = {"weight_precision": weights, "kv_precision": kept_cache(self.model, self.catalog.variables)}
        return kept | ({"quantised_attention": False} if weights in FOUR_BITS else {})

    @property
    def published_formats(self) -> str:
        """The number formats of the model's weights as published, in words."""
        return formats_text(self.model, self.catalog.variables)

    def products(self, stored: str) -> list[str]:
        """The number format of matrix products with stored weights on every device.

        The same in 8 bits where the device has it. Formats of four bits are published for weights alone: 16 bits.
        """
        rates = [self.catalog.entry("device", device).values for device in self.devices]
        formats = dict.fromkeys(WIDE_PRODUCTS if stored in FOUR_BITS else (stored, *WIDE_PRODUCTS))
        return [next((f for f in formats if _number(own, f"peak_{f}_rate")), stored) for own in rates]

    def number(self, quantity: str) -> float:
        """A quantity of the model; 0 where it has none."""
        return _number(self.model.values, quantity)

    def schedules(self) -> list[str]:
        """The pipeline schedules that the software of every system offers."""
        stacks = [self.software] if self.software else self.usual["software"]
        offered = [self.catalog.entry("software", stack).values["more_schedules"] for stack in stacks]
        more = AXIS_LABELS["pipeline_schedule"]
        return ["1f1b", *(s for s in more if all(isinstance(own, dict) and own[s] for own in offered))]

    @cached_property
    def usual(self) -> Mapping[str, Sequence[str]]:
        """The entries of other tables that the devices usually run with, one for each device."""
        return usual_entries(self.catalog, self.devices, self.workload)

    def option_of(self, table: str) -> str:
        """The option that names an entry of a table: of serving, software is an engine."""
        return "engine" if (table, self.workload) == ("software", "inference") else table

    @property
    def assumptions(self) -> dict[str, str]:
        """What the question left open, and what was taken: by the option that changes it."""
        stated = {"software": self.software, "topology": self.topology}
        taken = {self.option_of(t): ", ".join(dict.fromkeys(self.usual[t])) for t, n in stated.items() if n is None}
        return taken | ({} if self.rents else {"price": paid(self.catalog, self.devices)})

    def origins(self, implied: Iterable[str]) -> dict[str, Origin]:
        """Where tables and prices come from that the question states, and what a price implies."""
        tables = {"topology": self.topology, "software": self.software}
        stated = {table: self.option_of(table) for table, name in tables.items() if name is not None}
        found: dict[str, Origin] = {table: ("stated", f"--{option}") for table, option in stated.items()}
        rented: dict[str, Origin] = {RENT.name: ("stated", "--price")}
        rented |= {name: ("implied", f"--price: {FOLLOWS[name]}") for name in implied}
        return found | (rented if self.rents else {})

    def stated(self, **more: Any) -> dict[str, Any]:
        """The question as plain values: what was asked and, of what was left open, what was taken; None where open."""
        usual = {"topology": self.topology, self.option_of("software"): self.software}
        usual |= {"price": list(self.rents) or None}
        return {"model": self.model.name, "on": list(self.devices), "devices": list(self.sizes)} | more | usual

    def objective(self, minimize: str | None, maximize: str | None, usual: str, least: bool) -> tuple[str, bool]:
        """The quantity that decides, and whether the least of it is the best; the usual one if none is stated.

        PerfgridError for two quantities, and for the least of what one wants much of or the most of times and costs.
        """
        if minimize is not None and maximize is not None:
            raise PerfgridError("state either what to minimize or what to maximize, not both")
        minimize, maximize = map(quantity_of, (minimize, maximize))
        if minimize is not None and sense_of(minimize, self.workload) == "most":
            raise PerfgridError(f"much of {minimize} is good: maximize it (--maximize {minimize})")
        if maximize is not None and sense_of(maximize, self.workload) == "least":
            raise PerfgridError(f"little of {maximize} is good: minimize it (--minimize {maximize})")
        return (minimize or maximize or usual, minimize is not None or (maximize is None and least))

    def layouts(self, sequence: int | None = None) -> dict[str, list[int]]:
        """The axis ``parallelism``: degrees that heads, layers, experts and the sequence allow."""
        layers, heads, experts = (int(self.number(name)) for name in ("layers", "heads", "experts"))
        largest = max(self.sizes)
        tp = [t for t in powers(min(max(self.domains.values()), largest, LARGEST_TP)) if heads % t == 0]
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
    devices: int | str | Sequence[int | str],
    topology: str | None,
    software: str | None,
    catalog: Catalog | str | Path | Sequence[str | Path] | None,
    price: float | str | Sequence[float | str] | None = None,
    workload: str = "training",
) -> Question:
    """A checked question. PerfgridError for an unknown name, with the nearest ones, and for an illegal number."""
    if not isinstance(catalog, Catalog):
        catalog = load_catalog(*([catalog] if isinstance(catalog, str | Path) else catalog or ()))
    known, spelled = catalog, dict[str, str]()
    entry, remarks = model_with_remarks(catalog, model)
    catalog = catalog.with_entry(entry)
    for device in [on] if isinstance(on, str) else on:
        catalog, found = catalog.named("device", device)
        if twice := next((other for other, name in spelled.items() if name == found and other != device), ""):
            raise PerfgridError(f"{twice} and {device} are one device: name it once")
        spelled[device] = found
    named = list(dict.fromkeys(spelled.values()))
    if topology is not None:
        catalog, topology = catalog.named("topology", topology)
    if software is not None:
        catalog, software = catalog.named("software", software)
    used = (entry, *(catalog.entry("device", name) for name in named))
    used += tuple(catalog.entry(t, n) for t, n in (("topology", topology), ("software", software)) if n is not None)
    own = tuple(e for e in used if known.tables[e.kind].get(e.name) is not e)
    several = isinstance(devices, Iterable) and not isinstance(devices, str)
    every = [stated(size, "devices", "devices") for size in (devices if several else [devices])]  # pyright: ignore[reportGeneralTypeIssues]
    sizes: tuple[Any, ...] = tuple(dict.fromkeys(every))
    if not named or not sizes:
        raise PerfgridError("a question needs at least one device and one number of devices")
    whole = [isinstance(size, Integral) and not isinstance(size, bool) for size in sizes]
    if wrong := [s for s, is_whole in zip(sizes, whole, strict=True) if not is_whole or not 1 <= s <= LARGEST_COUNT]:
        raise PerfgridError(f"the number of devices must be a whole number from 1 to 10^9, found {wrong[0]!r:.40}")
    every = [price] if isinstance(price, str) or not isinstance(price, Iterable) else price
    prices = [] if price is None else [*map(number_or_text, plain(*every))]
    rents = [converted(RENT, one, "the price of a device") for one in prices]
    rents *= len(named) if len(rents) == 1 else 1
    if price is not None and len(rents) != len(named):
        raise PerfgridError(f"state one price, or one for each device: {len(named)} devices, {len(rents)} prices")
    sized, kept = tuple(map(int, sizes)), tuple(remarks)
    return Question(catalog, entry, tuple(named), sized, topology, software, own, tuple(rents), spelled, workload, kept)


def sense_of(quantity: str, workload: str) -> Sense:
    """Whether the least or the most of a quantity is best, by its formula or its unit; empty where neither says."""
    formulas = registry_of(workload)
    if quantity not in formulas.names():
        return ""
    about = formulas.get(quantity)
    return about.sense or SENSES.get(about.unit, "")


def format_of(precision: str, products: bool = False) -> tuple[str, dict[str, Any]]:
    """A number format as the catalog calls it, and what else a study states for ``products``: mxfp4 has other scales.

    A name that none has stays as it is: the study refuses it.
    """
    if products and (named := resolved(precision, SCALED, parts=False)) is not None:
        own, scaling = SCALED[named]
        return own, {"scaling": scaling}
    legal = dict.fromkeys((*FORMATS, *load_variables()["published_precision"].codes))
    return resolved(precision, legal, parts=False) or precision, {}


def quantity_of(name: str | None) -> str | None:
    """The quantity that a word of the screens stands for (MFU, TTFT, time per step); any other name as it is."""
    word = word_of(name) if name else None
    return word.quantity or name if word else name


def plain(*values: Any) -> Iterator[Any]:
    """Values with those of NumPy as Python's own."""
    return (value.item() if isinstance(value, np.generic) else value for value in values)


def rounded(count: float) -> str:
    """A number of parameters or tokens with three digits."""
    suffix = next((suffix for suffix in SUFFIXES if count >= LARGE[suffix]), SUFFIXES[-1])
    return f"{float(f'{count / LARGE[suffix]:.3g}'):,g} {suffix}"


def stated(value: Any, quantity: str, place: str, whole: bool = False) -> Any:
    """The number that text such as 15T or 32k states of a quantity; any other value as it is. PerfgridError if none."""
    if not isinstance(value, str):
        return value
    variable = load_variables()[quantity]
    variable = variable.model_copy(update={"kind": "integer"}) if whole else variable
    number = converted(variable, value if variable.unit == "1" else number_or_text(value), place)
    return int(number) if variable.kind == "integer" else number


def _number(values: Mapping[str, Any], name: str) -> float:
    return float(values.get(name) or 0)


def powers(largest: int) -> list[int]:
    """Powers of two up to a number."""
    return [2**i for i in range(max(1, largest).bit_length())]


def in_quarters(largest: int) -> list[int]:
    """Powers of two up to a number, and from 8 on three numbers between each and the next."""
    found = {power + part * power // 4 for power in powers(largest) for part in (range(4) if power >= 8 else (0,))}
    return sorted(number for number in found if number <= largest)
