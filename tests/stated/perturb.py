"""Every given quantity, in every way of stating it, on designs where it matters: does the answer move?

A statement may change an output, be refused in one line, or be named as without effect. Anything else is silent.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np

from perfgrid.analysis.idle_inputs import Point
from perfgrid.catalog import Catalog, Variable, load_catalog
from perfgrid.catalog.loader import entry_of
from perfgrid.catalog.schema import Kind
from perfgrid.catalog.writing import value_text
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.replay import replay_point
from perfgrid.formulas import registry_of
from perfgrid.study.entries import OWN as OWN_ENTRIES
from perfgrid.study.entries import USUAL, USUAL_IN_SERVING, entries_at
from perfgrid.study.ledger import OF_RESULTS, read_by, unread
from perfgrid.study.space import TABLES
from perfgrid.study.study import Study, build_study

_FILE = tomllib.loads(Path(__file__).with_name("bases.toml").read_text())
BASES: dict[str, dict[str, Any]] = {
    name: {"dtype": "float64", **own, "outputs": _FILE["outputs"].get(str(own["outputs"]), own["outputs"])}
    for name, own in _FILE["designs"].items()
}
CATALOGS = {name: load_catalog().with_values(own.pop("settings", {})) for name, own in BASES.items()}  # of designs
CHANGED, REFUSED, NAMED, EXCEPTED, SILENT = "changed", "refused", "named", "excepted", "silent"
WAYS = {"entry": ("set", "own", "bracket", "override", "axis"), "workload": ("parameter", "override", "axis")}
EXCEPTIONS: dict[str, str] = {}  # quantities of which a statement may be silent, and why
LAYOUT = ("devices", "tp", "pp", "dp")
OWN = "stated-here"  # name of an entry of a user's file


@dataclass(frozen=True)
class Base:
    """A design with its results, the quantities that these rest on, and its entries."""

    name: str
    study: Study
    read: frozenset[str]
    entries: Mapping[str, str]

    @cached_property
    def design(self) -> Point:
        """It, worked out, to look for what it feels."""
        return Point.at(self.study, (0,) * len(self.study.space.axes), {})

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        """Its outputs and constraints."""
        return _values(self.study)


@cache
def base(name: str) -> Base:
    """A design of `BASES`, evaluated."""
    study = build_study(BASES[name], name, CATALOGS[name])
    read = frozenset(read_by(study, study.graph()))
    entries = entries_at(study.space, [0] * len(study.space.axes), TABLES, study.defaults)
    return Base(name, study, read, entries)


@cache
def feels(name: str, quantity: str) -> bool:
    """Whether a design feels a quantity, which says where a statement should matter, and not whether it does."""
    return base(name).design.feels(quantity) is True


def _values(study: Study) -> dict[str, np.ndarray]:
    """Its outputs and constraints at its one design."""
    index = (0,) * len(study.space.axes)
    graph, values = replay_point(study.registry, study.space, study.outputs, index, study.file.choices)
    return {name: np.asarray(values[name]) for name in (*graph.wanted, *(node.name for node in graph.constraints))}


def ways(variable: Variable) -> tuple[str, ...]:
    """How a quantity may be stated."""
    if variable.of not in TABLES:
        return WAYS["workload"]
    return tuple(
        way for way in WAYS["entry"] if way != "bracket" or (variable.of == "device" and variable.axis is None)
    )


def outcome(variable: Variable, way: str) -> tuple[str, str]:
    """What becomes of a statement, and the design or the words that show it."""
    if variable.reader and (way == "own" or (way == "set" and variable.reader == OF_RESULTS)):
        return EXCEPTED, variable.reader  # an entry serves questions as well, and results
    holding = [name for name in BASES if variable.of not in TABLES or variable.of in base(name).entries]
    if way in ("own", "bracket"):
        holding = [name for name in holding if variable.of in BASES[name]["axes"]]
    reading = [name for name in holding if variable.name in base(name).read]
    felt = (n for n in reading if feels(n, variable.name))
    others = (n for n in reading if not feels(n, variable.name))
    found = (REFUSED, "no design has such an entry")
    for name in chain(felt, others) if reading else holding[:1]:  # where it should matter, first
        tried = []
        for value in alternatives(variable, base(name)):
            tried.append(_stated(base(name), variable, way, value))
            if tried[-1][0] == CHANGED:
                return tried[-1]
        tried = tried or [(SILENT, "no other value")]
        found = max(found, *tried, key=lambda one: (REFUSED, NAMED, SILENT).index(one[0]))
        if all(one[0] == REFUSED and one[1].partition(": ")[2] == tried[0][1].partition(": ")[2] for one in tried):
            return tried[0]
    return found


def _stated(own: Base, variable: Variable, way: str, value: Any) -> tuple[str, str]:
    """What becomes of one value on one design."""
    try:
        study = stated(own, variable, way, value)
        if study is None:
            return REFUSED, f"{variable.of} is not named by this design"
        after = _values(study)
    except PerfgridError as error:
        return REFUSED, str(error)
    before = own.values
    moved = [k for k in after if k in before and not np.array_equal(before[k], after[k], equal_nan=True)]
    if moved or set(after) - set(before):
        return CHANGED, f"{own.name}: {', '.join(moved[:3])}"
    lost = [one.quantity for one in unread(study)]
    return (NAMED, own.name) if variable.name in lost else (SILENT, f"{own.name}: {value!r}")


def stated(own: Base, variable: Variable, way: str, value: Any) -> Study | None:
    """The study of a design with one statement more; None where the way is none for this design."""
    content, catalog, name = BASES[own.name], CATALOGS[own.name], variable.name
    if way in ("parameter", "override"):
        table = {"parameter": "workload_parameters", "override": "overrides"}[way]
        return build_study(_with(content, table, name, value), own.name, catalog)
    if way == "axis":
        return build_study(_with(content, "axes", name, [value]), own.name, catalog)
    table, entry = cast(Kind, variable.of), own.entries.get(variable.of, "")
    if entry not in catalog.tables[table]:
        return None
    if way == "set":
        return build_study(content, own.name, catalog, catalog_values={f"{variable.of}.{entry}.{name}": value})
    if variable.of not in content["axes"]:
        return None
    if way == "bracket":
        catalog, new = catalog.named("device", f"{entry}[{name}={_text(variable, value)}]")
    else:
        new = OWN
        own_values: dict[str, Any] = (
            {name: value} if variable.block is None else {variable.block: _block(catalog, variable, entry, value)}
        )
        made = entry_of(table, new, {"extends": entry, "title": "own", **own_values}, "own.toml")
        catalog = catalog.with_entry(made)
    return build_study(_with(content, "axes", variable.of, [new]), own.name, catalog)


def _block(catalog: Catalog, variable: Variable, entry: str, value: Any) -> dict[str, Any]:
    known = catalog.entry(variable.of, entry).values
    inside = [v for v in catalog.variables.values() if v.block == variable.block]
    return {v.name: v.word(known[v.name]) for v in inside if v.name in known} | {variable.name: value}


def _with(content: Mapping[str, Any], table: str, key: str, value: Any) -> dict[str, Any]:
    """A study with one key of a table replaced; what states the same elsewhere gives way."""
    found = {**content, table: {**content.get(table, {}), key: value}}
    for other in {"axes", "workload_parameters", "overrides"} - {table}:
        if key in found.get(other, {}):
            found[other] = {k: v for k, v in found[other].items() if k != key}
    layout = found["axes"].get("parallelism")
    if layout and key in layout:
        kept = {k: v for k, v in layout.items() if k != key}
        if key in LAYOUT:  # of which the axis of layouts makes its rows: stated there
            kept, found[table] = layout | {key: value if isinstance(value, list) else [value]}, dict(found[table])
            found[table].pop(key)
        found["axes"] = {**found["axes"], "parallelism": kept}
    return found


def _text(variable: Variable, value: Any) -> str:
    """A value as brackets hold it, with its unit."""
    return str(value) if isinstance(value, str) else value_text(variable, value).strip('"')


def alternatives(variable: Variable, own: Base) -> Iterator[Any]:
    """Other values of a quantity than the one that a design has, as files state them."""
    value = _current(variable, own)
    others = [e.values.get(variable.name) for e in load_catalog().tables.get(variable.of, {}).values()]
    others = [variable.word(one) for one in others if one is not None]
    if variable.axis is not None:
        yield from _vectors(variable, value, others)
        return
    named = next((table for table, name in (OWN_ENTRIES | USUAL).items() if name == variable.name), "software")
    if variable.name in (*OWN_ENTRIES.values(), *USUAL.values(), *USUAL_IN_SERVING.values()):
        others = list(load_catalog().tables[named])  # the variable names an entry
    seen = [variable.word(value)] if value is not None else []
    for one in (*_near(variable, value, own), *others):
        if one not in seen and len(seen) < 8:
            seen.append(one)
            yield one


def _near(variable: Variable, value: Any, own: Base) -> Iterator[Any]:
    if variable.kind == "flag":
        yield not value
    elif variable.kind == "code":
        yield from variable.codes
    elif variable.kind == "label":
        choices = registry_of(own.study.file.workload).choices.values()
        yield from (str(a.label) for c in choices if c.by == variable.name for a in c.alternatives)
    else:
        yield from _numbers(variable, float(value or 0))


def _numbers(variable: Variable, value: float) -> Iterator[float]:
    whole = variable.kind == "integer"
    tried = (
        (2 * value, value / 2, 1.1 * value, value + 1, value - 1) if value else (1.0, 2.0, 0.5, 64.0, 1e3, 1e9, 1e-6)
    )
    low = variable.minimum if variable.minimum is not None else (variable.above or 0.0) + 1e-12
    high = np.inf if variable.maximum is None else variable.maximum
    for one in (*tried, low, min(high, 1e6)):
        if low <= one <= high and (not whole or one == round(one)):
            yield int(one) if whole else float(one)


def _vectors(variable: Variable, value: Any, others: list[Any]) -> Iterator[Any]:
    if variable.kind == "code":
        yield from (dict.fromkeys(variable.labels, code) for code in variable.codes)
    elif isinstance(value, Mapping):
        for factor in (2.0, 0.5):
            scaled = {k: min(v * factor, variable.maximum or np.inf) for k, v in value.items()}
            yield {k: round(v) if variable.kind == "integer" else v for k, v in scaled.items()}
        yield {k: 1.0 for k in value}
        yield {k: 0.0 for k in value}
    else:
        yield dict.fromkeys(variable.labels, 1.0)
    yield from others[:6]


def _current(variable: Variable, own: Base) -> Any:
    """What a design has of a quantity."""
    entry = own.entries.get(variable.of, "")
    known = CATALOGS[own.name].tables.get(variable.of, {})
    if entry in known and variable.name in known[entry].values:
        return known[entry].values[variable.name]
    space = own.study.space
    if variable.name not in space.names() or variable.axis is not None:
        return variable.default_value
    held = [np.asarray(values).reshape(-1)[0] for _, values in space.parts(variable.name)]
    return held[0].item() if isinstance(held[0], np.generic) else held[0]
