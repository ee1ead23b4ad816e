"""The inputs of a study: what is stated and by whom, what follows from it, what is assumed; and what nothing reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from perfgrid.catalog.schema import OVERRIDE, Entry
from perfgrid.catalog.writing import value_text
from perfgrid.engine.graph.resolver import Graph

from .entries import DEFAULTS, IMPLIED, IO_NODE, NATIVE, OWN, OWN_PREFIX, STATED, USUAL, USUAL_IN_SERVING, stated_unit
from .file import CLUSTER_SIZE, LAYOUT
from .samples import SAMPLE
from .selection import asking
from .space import TABLES
from .study import Study, workloads

Status = Literal["stated", "implied", "assumed"]
Origin = tuple[Status, str] | None  # of an input: its status, and by whom or from what
MOST_LABELS = 4  # of an axis that are written out
REPLACED = "the study states it of all designs"
OF_RESULTS = "prediction intervals"  # the one reader of quantities that works on studies; others work on questions
FAMILY = ("length_distribution", "trace")  # of keys that are checked beside the graph


@dataclass(frozen=True)
class Input:
    """One input: its value as text, by whom it is stated or what it follows from, and whether an output rests on it.

    ``single``: it is stated of one entry and for this study, and not in a file that serves others; ``entry``: the
    table and the entry that it is stated of.
    """

    quantity: str
    value: str
    status: Status
    by: str
    read: bool = True
    single: bool = False
    entry: tuple[str, str] | None = None
    why: str = "no output of this study depends on it"

    @property
    def name(self) -> str:
        """It with its value and by whom it is stated."""
        return f"{self.quantity} = {self.value} ({self.by})"

    @property
    def text(self) -> str:
        """What to say of one that nothing reads."""
        return f"{self.name} has no effect: {self.why}"


def ledger(study: Study, origins: Mapping[str, Origin] | None = None, graph: Graph | None = None) -> list[Input]:
    """Every input of a study but what entries of the built-in catalog state.

    ``origins``: where inputs of a question come from that its study states; None of what is searched, which is left
    out; ``graph``: that of the study, where it is known. Errors as of `Study.graph`.
    """
    graph = graph or study.graph()
    read = read_by(study, graph)
    found = [*_of_study(study, read), *_of_entries(study, read), *_of_tables(study)]
    known = {one.quantity for one in found}
    found += [one for one in _of_glossary(study, graph) if one.quantity not in known]
    origins = origins or {}
    kept = (one for one in found if origins.get(one.quantity, ()) is not None)
    return [replace(one, status=of[0], by=of[1]) if (of := origins.get(one.quantity)) else one for one in kept]


def unread(study: Study) -> list[Input]:
    """What a study states and no output of it depends on: a value without effect. Errors as of `Study.graph`.

    Of a user's entries that extend others only what differs from these counts: a whole entry serves many studies.
    """
    each = [one for one, _ in workloads(study).values()] if study.file.workloads else [study, *study.pools.values()]
    read = set[str]().union(*(read_by(one, _searched(one)) for one in each))
    return [one for one in (*_of_study(study, read), *_of_entries(study, read)) if not one.read]


def stated(study: Study) -> list[Input]:
    """What a study states itself, and of a user's entries what they state beyond those that they extend."""
    read = read_by(study, study.graph())
    return [*_of_study(study, read), *_of_entries(study, read)]


def asked_for(study: Study) -> list[str]:
    """The outputs, and what else searches and pictures of the study name."""
    words = set[str]()
    for table in (study.file.optimize, *study.file.view):
        words |= set(re.findall(r"\w+", table.model_dump_json())) if table is not None else set()
    more = words & set(study.registry.names()) - {*study.outputs, *study.space.names(), *_names(study)}
    return [*study.outputs, *sorted(more)]


def _searched(study: Study) -> Graph:
    """The formulas of the outputs, and of what else searches and pictures of the study name."""
    asked = asked_for(study)
    return asking(study, asked).graph() if len(asked) > len(study.outputs) else study.graph()


def read_by(study: Study, graph: Graph) -> set[str]:
    """The quantities on which some output or constraint rests, and the labels that select formulas or entries."""
    plain = {name.removeprefix(STATED).removeprefix(OWN_PREFIX) for name in (*graph.leaves, *graph.selectors)}
    stated = {axis.name for axis in study.space.axes} | {c for axis in study.space.axes for c in axis.columns}
    plain |= {variable.name for variable in study.catalog.variables.values() if variable.reader}
    plain |= set(re.findall(r"\w+", study.file.where or "")) | {CLUSTER_SIZE, *FAMILY}
    usual = USUAL_IN_SERVING if study.file.workload == "inference" else USUAL
    plain |= {name for table, name in usual.items() if table not in study.file.axes and not _zipped(study, table)}
    plain |= {name for table, name in OWN.items() if table in stated}
    if any(variable.of == IO_NODE and variable.name in stated for variable in study.catalog.variables.values()):
        plain.add("io_process_node")
    return plain


def _names(study: Study) -> set[str]:
    """The names of axes and of what results show beside them."""
    return {name for axis in study.space.axes for name in (axis.name, *axis.shown)}


def _zipped(study: Study, table: str) -> bool:
    """Whether rows of an axis state a table."""
    return any(table in (spec.get("zip") or ()) for spec in study.file.axes.values() if isinstance(spec, dict))


def _of_study(study: Study, read: set[str]) -> Iterator[Input]:
    """What the study states itself: parameters, overrides, axes and single values of entries."""
    for place in ("workload_parameters", "overrides"):
        for name, value in getattr(study.file, place).items():
            yield Input(name, _with_unit(study, name, value), "stated", place, name in read)
    for key, spec in study.file.axes.items():
        place = f"axes.{key}"
        if key in TABLES or key in (SAMPLE, "io_node") or key in study.pools:
            continue
        if key == LAYOUT:
            yield from (Input(name, _text(values), "stated", place) for name, values in spec.items())
            continue
        columns = spec["zip"] if isinstance(spec, dict) and isinstance(spec.get("zip"), dict) else {key: spec}
        for name, values in columns.items():
            if name not in TABLES:
                yield Input(name, _with_unit(study, name, values), "stated", place, name in read)
    for name, by in study.implied.items():
        yield Input(name, _with_unit(study, name, IMPLIED[by][name]), "implied", by, name in read)
    for key, value in study.settings.items():
        quantity = next((part for part in reversed(key.split(".")) if part in study.catalog.variables), key)
        used = quantity in read and study.catalog.variables[quantity].reader in ("", OF_RESULTS)
        one = Input(quantity, _with_unit(study, quantity, value), "stated", f"--set {key}", used)
        yield one if quantity not in study.stated else replace(one, read=False, why=REPLACED)


def _of_entries(study: Study, read: set[str]) -> Iterator[Input]:
    """What a user states of the entries that the study uses, beyond what they extend."""
    variables, set_here = study.catalog.variables, {key.partition(".")[2] for key in study.settings}
    for table, names in study.sources().items():
        for name in names:
            entry = study.catalog.entry(table, name)
            for quantity, file in entry.stated.items():
                if quantity in study.stated and file != OVERRIDE:
                    continue  # the study states it of all designs
                said = any(key.startswith(f"{name}.{quantity}") for key in set_here)
                if said if file == OVERRIDE else not _differs(study, entry, quantity):
                    continue
                text = value_text(variables[quantity], entry.values[quantity]).strip('"')
                by = f"{table} {name}" if file == OVERRIDE else file
                one = Input(quantity, text, "stated", by, quantity in read, file == OVERRIDE, (table, name))
                yield one if quantity not in study.stated else replace(one, read=False, why=REPLACED)


def _differs(study: Study, entry: Entry, quantity: str) -> bool:
    """Whether an entry states another value than the one that it extends; of a whole entry nothing is said."""
    base = study.catalog.tables[entry.kind].get(entry.base)
    return base is not None and (base is entry or base.values.get(quantity) != entry.values[quantity])


def _of_tables(study: Study) -> Iterator[Input]:
    """The entries that the study names, those that its devices imply, and those that are assumed."""
    usual = USUAL_IN_SERVING if study.file.workload == "inference" else USUAL
    for axis in study.space.axes:
        for table in TABLES:
            if table == axis.name or table in axis.columns:
                labels = axis.labels if table == axis.name else np.unique(axis.columns[table])
                named = table in study.file.axes or _zipped(study, table)
                by = f"axes.{axis.name}" if named else f"{(usual | OWN).get(table, table)} of the device"
                yield Input(table, _text(labels.tolist()), "stated" if named else "implied", by)
    for table, entry in study.defaults.items():
        if entry == NATIVE:
            continue
        implied = table in usual and entry != DEFAULTS.get(table) and "device" in study.sources()
        by = f"{usual[table]} of the device" if implied else "default"
        yield Input(table, entry, "implied" if implied else "assumed", by)


def _of_glossary(study: Study, graph: Graph) -> Iterator[Input]:
    """What outputs rest on and the glossary has a default of: no entry and nobody states it."""
    elsewhere = {*TABLES, "io_node", "computed"}
    for name in (*graph.leaves, *sorted(graph.selectors)):
        variable = study.catalog.variables.get(name)
        if variable is None or variable.of in elsewhere or name not in study.space.constants:
            continue
        default = variable.default
        if default is not None and not isinstance(default, dict):
            yield Input(name, _with_unit(study, name, default), "assumed", "default")


def _with_unit(study: Study, quantity: str, value: Any) -> str:
    """A stated value on one line: bare numbers, alone or in a list, with their unit."""
    unit, text = stated_unit(study.catalog.variables, study.registry, quantity), _text(value)
    several = value if isinstance(value, list | tuple) and value else [value]
    return text if unit == "1" or not all(isinstance(one, int | float) for one in several) else f"{text} {unit}"


def _text(value: Any) -> str:
    """A stated value on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        some = ", ".join(map(_text, value[:MOST_LABELS]))
        return some + (f", ... ({len(value)})" if len(value) > MOST_LABELS else "")
    return str(value)
