"""The catalog: loading it, looking things up in it, replacing single values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pydantic
from pydantic import ValidationError

from perfgrid.engine.cache import keep, recall
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.hashing import digest, digest_of_files, digest_of_sources
from perfgrid.engine.release import release

from .files import Definition, Layer, files_of, read_layer, read_toml
from .join import Join, near, variable_of, without_source
from .names import resolved
from .naming import check_name
from .schema import KINDS, OVERRIDE, Entry, Kind, Variable, convert
from .units import multiple, number_or_text
from .writing import value_text

_HERE = Path(__file__).parent
_TABLES_IN_PARTS = {
    "models": ("gpt", "llama", "dense", "moe", "recent_dense", "recent_moe", "hybrid", "sparse"),
    "devices": ("nvidia", "nvidia_hopper", "amd", "google", "other"),
}
_TABLES = ("topologies", "software", "nodes", "packages", "memories", "links", "circuits", "budgets", "prices")
_BUILT_IN = (
    *(f"{table}_{part}.toml" for table, parts in _TABLES_IN_PARTS.items() for part in parts),
    *(f"{table}.toml" for table in _TABLES),
    "references.bib",
)
OF_IO_DIES = (
    "wafer_price", "defect_density", "early_defect_ratio", "defect_clustering", "lithography_share", "probe_cost",
    "design_cost", "mask_cost", "fab_energy", "fab_gas_carbon",
)  # fmt: skip
Made = TypeVar("Made")
_CHANGED = re.compile(r"([^\[\]]+)\[([^\[\]]+)\]")  # NAME[quantity=value, quantity=2x]


@dataclass(frozen=True)
class Catalog:
    """Every given quantity and every known model, device, topology and software stack, with the bibliography."""

    variables: Mapping[str, Variable]
    tables: Mapping[str, Mapping[str, Entry]]
    references: Mapping[str, str]

    def entry(self, kind: str, name: str) -> Entry:
        """An entry by table and name, as `named` reads it; PerfgridError with the nearest legal names if there is none.

        ``gb200[scale_up_size=8]`` is the entry with other values.
        """
        if (known := self.tables.get(kind, {}).get(name)) is not None:
            return known
        changed, found = self.named(kind, name)
        return changed.tables[kind][found]

    def name_of(self, kind: str, name: str, where: str = "") -> str:
        """The name in the catalog that a text means, or the text where it means none. PerfgridError for several."""
        return self._found(kind, name, where) or name

    def named(self, kind: str, name: str, where: str = "") -> tuple[Catalog, str]:
        """A catalog with an entry, and its name there: ``NAME``, or ``NAME[hbm_bandwidth=2x,hbm_capacity=192GB]``.

        Case and separators do not matter, and a part of a name does that one entry alone has. A value in brackets is a
        number with a unit, or a multiple of the entry's own. PerfgridError for an unknown name or quantity, an illegal
        value, a number without its unit, and a name that several entries share.
        """
        if (parts := _CHANGED.fullmatch(name)) is None:
            return self, self._known(kind, name, where)
        base, changes = self.tables[kind][self._known(kind, parts[1].strip(), where)], dict[str, str]()
        for change in parts[2].split(","):
            quantity, equals, value = (part.strip() for part in change.partition("="))
            quantity = quantity if quantity in self.variables else quantity.lower()
            if not equals or quantity in changes:
                told = f"{where}{name}: brackets hold quantity=value, each quantity once"
                raise PerfgridError(f"{told}; found {change.strip()!r}")
            self._check_unit(base, quantity, value, f"{where}{name}")
            changes[quantity] = value
        own = re.sub(r"[^\w.+-]", "", "+".join((base.name, *(f"{q}-{text}" for q, text in changes.items()))))
        check_name(own, f"{where}{name}, as the name of a {kind}", dots=True)
        entry = replace(base, name=own, title=f"{base.title}, {parts[2]}", base=base.name)
        changed = self.with_entry(entry)
        return changed.with_values({f"{kind}.{own}.{q}": text for q, text in changes.items()}), own

    def _check_unit(self, base: Entry, quantity: str, text: str, place: str) -> None:
        """PerfgridError for a bare number of a quantity with a unit; zero is the same in every unit."""
        name = quantity.partition(".")[0]  # of a vector with a label behind
        variable, number = self.variables.get(name), number_or_text(text)
        if variable is None or variable.unit == "1" or not isinstance(number, float) or number == 0:
            return
        own = base.values.get(name)
        example = value_text(variable, own).strip('"') if isinstance(own, float) and own else f"{text} {variable.unit}"
        told = f"{quantity}={text} has no unit: state it ({variable.unit}, or a multiple of it)"
        raise PerfgridError(f"{place}: {told}, as in {quantity}={example}")

    def _known(self, kind: str, name: str, where: str) -> str:
        if (found := self._found(kind, name, where)) is None:
            raise PerfgridError(f"{where}the catalog has no {kind} {name!r}{near(name, self.tables[kind])}")
        return found

    def _found(self, kind: str, name: str, where: str) -> str | None:
        if kind not in self.tables:
            raise PerfgridError(f"{where}the catalog has no table {kind!r}{nearest(kind, self.tables)}")
        try:
            return name if name in self.tables[kind] else resolved(name, self.tables[kind])
        except PerfgridError as error:
            raise PerfgridError(f"{where}the {kind} {error}") from None

    def place_of(self, key: str) -> tuple[str, str, str, str | None]:
        """Table, entry, quantity and label of an inner axis that a key such as ``device.b200.hbm_bandwidth`` names."""
        kind, _, rest = key.partition(".")
        name, _, quantity = rest.rpartition(".")
        label = None
        holder, _, vector = name.rpartition(".")
        if vector in self.variables and self.variables[vector].axis and name not in self.tables.get(kind, {}):
            name, quantity, label = holder, vector, quantity
        return kind, self._known(kind, name, f"{key}: "), quantity, label

    def with_entry(self, entry: Entry) -> Catalog:
        """A copy with one entry more, or another one of its name."""
        tables = {**self.tables, entry.kind: {**self.tables[entry.kind], entry.name: entry}}
        files = {file: without_source(file) for file in entry.sources.values() if file not in self.references}
        return replace(self, tables=tables, references={**self.references, **files})

    def with_values(self, settings: Mapping[str, Any]) -> Catalog:
        """A copy with single values replaced: ``{"device.b200.hbm_bandwidth": "10 TB/s"}``, a trailing label for one
        row of a vector (``topology.rail-optimized.tier_hops.scale_out``); ``2x`` is twice the value.

        Raises PerfgridError for an unknown table, entry or quantity and for a value of wrong type, unit or size.
        """
        tables = {kind: dict(entries) for kind, entries in self.tables.items()}
        for key, value in settings.items():
            kind, name, quantity, label = self.place_of(key)
            entry = tables[kind][name]
            variable = variable_of(self.variables, kind, quantity, key)
            value = _plain(value)
            old = entry.values.get(quantity)
            if (factor := multiple(value)) is not None:
                value = _multiplied(old.get(label or "") if isinstance(old, dict) else old, factor, key, kind)
            if label is not None:
                value = {label: value}
            if isinstance(value, Mapping) and isinstance(old, dict):
                value = {**variable.word(old), **value}
            tables[kind][name] = entry.with_value(quantity, convert(variable, value, key))
        return replace(
            self, tables=tables, references={**self.references, OVERRIDE: "Value set by the user of this study"}
        )


def _multiplied(own: Any, factor: float, where: str, kind: str) -> float:
    """A multiple of an entry's own value. PerfgridError where it has none, or zero: what it lacks stays lacking."""
    if isinstance(own, bool) or not isinstance(own, int | float):
        raise PerfgridError(f"{where}={factor:g}x: only a single number has multiples: state a value")
    if own == 0:
        raise PerfgridError(f"{where}={factor:g}x: the {kind} has none (0): state a value with its unit")
    return own * factor


def load_catalog(*extra_paths: str | Path) -> Catalog:
    """The built-in catalog, with the user's own files added.

    Parameters
    ----------
    *extra_paths
        TOML files, which state their ``kind`` ("model", "device", "topology", "software", ...) at the top and one table
        per entry; .bib files with references; folders of such files. They add entries, extend them or replace them by
        name.

    Returns
    -------
    Catalog
        The entries of every table, with a source for each value.

    Raises
    ------
    PerfgridError
        For any mistake in the files.

    Examples
    --------
    >>> import perfgrid as pg
    >>> pg.load_catalog().entry("device", "h100-sxm-80gb").values["hbm_capacity"] / 2**30
    80.0
    """
    own = _files(*newer(), *extra_paths)
    if not own:
        return _built_in()
    name = "catalog-" + digest(*map(str, own))[:16]
    return _kept(name, own, Catalog, lambda: _assemble(load_variables(), (_built_in_layer(), read_layer(own))))


def newer() -> list[str]:
    """Files and folders of newer or own entries that the environment variable PERFGRID_CATALOG names."""
    return [path for path in os.environ.get("PERFGRID_CATALOG", "").split(os.pathsep) if path]


def _files(*paths: str | Path) -> list[Path]:
    """The catalog files of paths; one that is named twice is read once."""
    return list({file.resolve(): file for path in paths for file in files_of(Path(path))}.values())


@cache
def catalog_release() -> str:
    """Version of the built-in catalog, with a hash of its files and of those in PERFGRID_CATALOG: 2026.11+1f0c9a2b."""
    own = _files(*newer())
    return release(_HERE, [*(_HERE / name for name in (*_BUILT_IN, "variables.toml")), *own])


def entry_of(kind: Kind, name: str, stated: Mapping[str, Any], where: str, *paths: str | Path) -> Entry:
    """The entry that one more file, ``where``, would state beside those given; PerfgridError as above."""
    layers = [_built_in_layer(), read_layer(_files(*newer(), *paths))]
    definitions = [*(layer.definitions[kind] for layer in layers), {name: Definition(where, stated)}]
    references = {**load_catalog(*paths).references, where: without_source(where)}
    return Join(kind, load_variables(), references, definitions).entry(name)


def stated_in(*paths: str | Path) -> Layer:
    """What the given files and folders state themselves, or the built-in files without any; PerfgridError as above."""
    return read_layer(_files(*paths)) if paths else _built_in_layer()


@cache
def load_variables() -> dict[str, Variable]:
    """Every given quantity by name, from the glossary."""
    return _kept("variables", [], dict, _read_variables)


def _read_variables() -> dict[str, Variable]:
    path = _HERE / "variables.toml"
    variables = {}
    for name, stated in read_toml(path).items():
        try:
            variables[name] = Variable(**stated, name=name)
        except (ValidationError, TypeError) as error:
            raise PerfgridError(f"{path.name}, {name}: {error}") from error
    for name in OF_IO_DIES:  # I/O dies have a node of their own
        same = variables[name]
        meaning = f"{same.meaning} (node of the I/O dies)"
        variables[f"io_{name}"] = same.model_copy(update={"name": f"io_{name}", "of": "io_node", "meaning": meaning})
    return variables


@cache
def _built_in() -> Catalog:
    return _kept("catalog-built-in", [], Catalog, lambda: _assemble(load_variables(), (_built_in_layer(),)))


def _kept(name: str, own: list[Path], kind: type[Made], make: Callable[[], Made]) -> Made:
    """What an earlier run read and checked of the very same files, else made and kept for the next."""
    try:
        built_in = [_HERE / name for name in (*_BUILT_IN, "variables.toml", "units.txt")]
        key = digest(pydantic.VERSION, digest_of_sources(), digest_of_files([*built_in, *own]))
    except OSError:
        return make()  # it says which file cannot be read
    found = recall(name, key)
    if not isinstance(found, kind):
        found = make()
        keep(name, key, found)
    return found


@cache
def _built_in_layer() -> Layer:
    return read_layer([_HERE / name for name in _BUILT_IN])


def _assemble(variables: dict[str, Variable], layers: tuple[Layer, ...]) -> Catalog:
    built_in, *own = layers
    files = [d.file for layer in own for definitions in layer.definitions.values() for d in definitions.values()]
    references = {file: without_source(file) for file in files}
    for layer in (built_in, *own):
        references.update(layer.references)
    tables: dict[str, dict[str, Entry]] = {}
    for kind in KINDS:
        join = Join(kind, variables, references, [layer.definitions[kind] for layer in layers])
        names = dict.fromkeys(name for layer in layers for name in layer.definitions[kind])
        known = _unchanged(kind, built_in, own) if own else {}
        tables[kind] = {name: known[name] if name in known else join.entry(name) for name in names}
    return Catalog(variables, tables, references)


def _unchanged(kind: Kind, built_in: Layer, own: Sequence[Layer]) -> dict[str, Entry]:
    """The built-in entries of a table that are as they were: no file of a user states them or what they extend."""
    definitions, stated = built_in.definitions[kind], {name for layer in own for name in layer.definitions[kind]}

    def unchanged(name: Any) -> bool:
        base = definitions[name].stated.get("extends") if name in definitions and name not in stated else name
        return base is None or (base != name and unchanged(base))

    return {name: entry for name, entry in _built_in().tables[kind].items() if unchanged(name)}


def _plain(value: Any) -> Any:
    """Text from a command line as the number or flag that it spells."""
    flag = isinstance(value, str) and value.lower() in ("true", "false")
    return value.lower() == "true" if flag else number_or_text(value)
