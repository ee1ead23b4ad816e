"""What a study takes from the catalog without naming it: default entries, and what ``native`` stands for.

A device names its own node, memory and package. Where a study has no axis of such a table, the device's own entry is
taken; where it has one, the label ``native`` stands for the own entry, and the device's quantities that follow from the
table are *re-implemented*: the device states them as ``native_<name>``, formulas derive ``<name>`` (`implementation`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from perfgrid.catalog import Catalog, Variable, convert
from perfgrid.catalog.names import resolved
from perfgrid.catalog.units import number_or_text
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.registry import Constraint, Registry
from perfgrid.engine.grid.space import Space
from perfgrid.formulas import IMPLEMENTED

NATIVE = "native"  # the label of the device as it is
STATED, OWN_PREFIX = "stated_", "native_"  # of quantities that a study states, and of the device's own
DEFAULTS = {  # entries taken where neither the study nor a device names one, and one is needed; software as of a device
    "link": NATIVE,
    "circuit": "unit-circuits",
    "price": "market-2025",
}
IMPLIED = {"cost_per_device_hour": {"utilization": 1.0}}  # by a stated quantity: every rented hour is used
USUAL = {"topology": "usual_topology", "software": "training_software"}  # a device names what it is mostly used with
USUAL_IN_SERVING = USUAL | {"software": "serving_software"}
OWN = {"node": "process_node", "memory": "hbm_generation", "package": "package"}  # a device names its own entry as
IO_NODE = "io_node"  # an axis of nodes for the I/O dies of a device
MOST_NAMES = 1000  # labels of an axis up to which a part of a name is looked for
SWITCHABLE = (*OWN, "link")  # tables whose axes may hold that label


def entries_at(
    space: Space, index: Sequence[int], tables: Collection[str], defaults: Mapping[str, str]
) -> dict[str, str]:
    """The catalog entry of every table at a point, given as the row of every axis; else the default."""
    found = dict(defaults)
    for axis, row in zip(space.axes, index, strict=True):
        labels = {axis.name: axis.labels, **axis.columns}
        found |= {table: str(labels[table][row]) for table in tables if table in labels}
    return found


def reimplemented(registry: Registry, stated: Collection[str]) -> set[str]:
    """The device quantities that formulas derive because the study states these tables."""
    changed = {quantity for table in stated for quantity in IMPLEMENTED.get(table, ())}
    return changed & set(registry.choices) if "device" in stated else set()


def bases(stated: Collection[str]) -> dict[str, str]:
    """The labels that say what a device made again follows from."""
    if "budget" in stated:
        return {"device_basis": "budget", "circuit_basis": "budget"}
    return {"device_basis": "device", "circuit_basis": "stated_node" if "node" in stated else "own_node"}


def reached(
    registry: Registry,
    catalog: Catalog,
    outputs: Sequence[str],
    stated: Collection[str],
    computed: Collection[str],
    labels: Mapping[str, str],
) -> set[str]:
    """Every quantity that the outputs may rest on, given what the catalog states as it is.

    ``computed``: what the user's own formulas compute in its place; ``labels`` that the study leaves at their defaults.
    """
    derived = reimplemented(registry, stated) | set(computed)
    given = {v.name for v in catalog.variables.values() if v.name not in derived}
    if "device" in stated:
        given -= {v.name for v in catalog.variables.values() if v.of in SWITCHABLE and v.of in stated}
    return registry.below(outputs, given, labels)


def switchable_columns(
    catalog: Catalog, table: str, names: Sequence[str], needed: Collection[str]
) -> dict[str, np.ndarray]:
    """Columns of an axis that may hold ``native``: ``stated_<name>``, and where the device's own entry is meant."""
    native = [name == NATIVE for name in names]
    entries = [None if own else catalog.entry(table, name) for own, name in zip(native, names, strict=True)]
    other = next(filter(None, entries), None)  # its values, in bounds, stand where the device's own are read instead
    filled = [e or other for e in entries]
    columns = {f"{table}_is_native": np.array(native, float)}
    for variable in catalog.variables.values():
        if variable.of == table and variable.kind != "label" and STATED + variable.name in needed:
            values = [1.0 if e is None else e.values[variable.name] for e in filled]
            columns[STATED + variable.name] = np.array(values)
    return columns


def own_columns(
    catalog: Catalog, table: str, devices: Sequence[str], needed: Collection[str], prefix: str, place: str
) -> dict[str, np.ndarray]:
    """Columns of a device axis with the entries of a table that its devices name; PerfgridError for one unknown."""
    wanted = [v for v in catalog.variables.values() if v.of == table and prefix + v.name in needed]
    if not wanted:
        return {}
    entries = []
    for device in devices:
        own = catalog.name_of(table, str(catalog.entry("device", device).values[OWN[table]]))
        if own not in catalog.tables[table]:
            legal = ", ".join(catalog.tables[table])
            raise PerfgridError(
                f"{place}: the {table} of {device} ({OWN[table]} = {own!r}) is not in the catalog, and the outputs "
                f"need {wanted[0].name}; state it (--set device.{device}.{OWN[table]}=...; known are {legal})"
            )
        entries.append(catalog.entry(table, own))
    columns = {prefix + v.name: np.array([e.values[v.name] for e in entries]) for v in wanted}
    return columns | ({} if prefix else {table: np.array([e.name for e in entries])})


def usual_entries(catalog: Catalog, devices: Sequence[str], workload: str) -> dict[str, list[str]]:
    """Table -> the entry that each device is mostly used with."""
    named = USUAL_IN_SERVING if workload == "inference" else USUAL
    own = [catalog.entry("device", device).values for device in devices]
    return {t: [catalog.name_of(t, str(values[name])) for values in own] for t, name in named.items()}


def default_entries(
    catalog: Catalog, missing: Collection[str], needed: Collection[str], usual: Mapping[str, str]
) -> Mapping[str, str]:
    """The default entries of the tables that a study does not state; beside software only where they are needed."""
    needed = set(needed)
    used = {v.of for v in catalog.variables.values() if v.name in needed or STATED + v.name in needed} | {"software"}
    entries = {**DEFAULTS, "software": str(catalog.variables[USUAL["software"]].default), **usual}
    return {table: name for table, name in entries.items() if table in missing and table in used}


def io_columns(catalog: Catalog, nodes: Sequence[str], needed: Collection[str], place: str) -> dict[str, np.ndarray]:
    """Columns ``io_<name>`` with the nodes of I/O dies, ``none`` for devices without; PerfgridError if unknown."""
    variables = [v for v in catalog.variables.values() if v.of == IO_NODE and v.name in needed]
    try:
        entries = {name: catalog.entry("node", name).values for name in nodes if name != "none"}
    except PerfgridError as error:
        raise PerfgridError(f"{place}: {error}") from None

    def value(node: str, name: str, otherwise: object) -> object:
        return entries[node][name.removeprefix("io_")] if node in entries else otherwise

    return {v.name: np.array([value(n, v.name, v.default_value) for n in nodes], float) for v in variables}


def given(variables: Mapping[str, Variable], quantity: str) -> Variable | None:
    """A given quantity, also of what a study states or a device has of its own; None for any other."""
    names = (quantity, *(quantity.removeprefix(prefix) for prefix in (STATED, OWN_PREFIX)))
    return next((variables[name] for name in names if name in variables), None)


def kind_of(variables: Mapping[str, Variable], registry: Registry, quantity: str) -> str:
    """The kind of a quantity that a study takes as given: a number where it states what a formula computes of others.

    Empty for labels and truth values that formulas compute.
    """
    if (found := given(variables, quantity)) is not None:
        return found.kind
    if (formula := registry.formulas.get(quantity)) is None:
        return "number" if quantity in registry.choices else ""
    return "" if formula.flags or isinstance(formula, Constraint) else "number"


def stated_unit(variables: Mapping[str, Variable], registry: Registry, quantity: str) -> str:
    """The unit of a quantity that a study takes as given, also of one that a formula computes otherwise."""
    known = given(variables, quantity) is not None or quantity not in registry.names()
    return unit_of(variables, quantity) if known else registry.get(quantity).unit


def unit_of(variables: Mapping[str, Variable], quantity: str) -> str:
    """The unit of a given quantity; a pure number otherwise."""
    found = given(variables, quantity)
    return "1" if found is None else found.unit


def label_in(variables: Mapping[str, Variable], axis: str, labels: np.ndarray, label: Any) -> Any:
    """A label as a user writes it, with a unit or in other letters say, as the axis holds it."""
    if not isinstance(label, str):
        return label
    if labels.dtype.kind == "U" and (labels == label).any():
        return label
    if labels.dtype.kind == "U":
        return resolved(label, labels.tolist(), parts=len(labels) <= MOST_NAMES) or label
    variable = variables.get(axis)
    if variable is None or labels.dtype.kind not in "if":
        return label
    try:
        number = convert(variable, label, axis)
        return label if isinstance(number_or_text(label), float) else number
    except PerfgridError:
        return label  # the axis says which labels it has
