"""Reading the arguments of `chiplet_cost`; an error is one line: the place, what was found, what is legal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfgrid.catalog import Entry
from perfgrid.engine.errors import PerfgridError

from .collective_input import known, number, whole

MM2 = 1e-6  # m^2
KEYWORDS = (
    "package",
    "dies",
    "chip_last",
    "memory",
    "volume",
    "kind",
    "note",
    "node",
    "total_module_area_mm2",
    "n_chiplets",
    "d2d_area_overhead",
    "chiplets_distinct_designs",
)
SPLIT = ("node", "total_module_area_mm2", "n_chiplets")


@dataclass(frozen=True)
class Module:
    """A module of a die: its area (m^2), and whether it is the interface to other dies."""

    name: str
    area: float
    interface: bool = False


@dataclass(frozen=True)
class Die:
    """A kind of die of a package: its area (m^2), how many, its node (none for a dummy), its modules."""

    area: float
    count: int
    node: str = ""
    modules: tuple[Module, ...] = ()


@dataclass(frozen=True)
class Memory:
    """Memory stacks of a package: how many, the cost of all in USD, the area of one in m^2."""

    stacks: int = 0
    cost: float = 0.0
    stack_area: float = 110 * MM2


def entry_values(entries: Mapping[str, Entry], name: Any, where: str) -> Mapping[str, Any]:
    """The values of an entry; capitals and a trailing nm do not matter. PerfgridError with the legal names."""
    same = {n.lower(): e for n, e in entries.items()}
    wanted = str(name).lower()
    found = same.get(wanted) or same.get(wanted.removesuffix("nm"))
    if found is None:
        raise PerfgridError(f"{where}: {name!r} is unknown; legal: {', '.join(entries)}")
    return found.values


def read_dies(inputs: Mapping[str, Any]) -> list[Die]:
    """The kinds of die that the inputs list, or make by division. PerfgridError for anything wrong."""
    if "dies" not in inputs:
        return _divided(inputs)
    if not isinstance(inputs["dies"], (list, tuple)) or not inputs["dies"]:
        raise PerfgridError(f"dies: needs a list of dies, found {inputs['dies']!r}")
    found = [_die(d, f"dies[{i}]") for i, d in enumerate(inputs["dies"])]
    if not any(d.node for d in found):
        raise PerfgridError("dies: all are dummies; at least one die needs a node")
    return found


def _die(given: Any, where: str) -> Die:
    if isinstance(given, Mapping) and "dummy_area_mm2" in given:
        known(given, ("dummy_area_mm2", "count"), where)
        return Die(_area(given, "dummy_area_mm2", where), _count(given, where))
    known(given, ("node", "area_mm2", "count", "modules"), where, required=("node", "area_mm2"))
    area, modules, taken = _area(given, "area_mm2", where), [], 0.0
    for i, module in enumerate(given.get("modules", ())):
        place = f"{where}.modules[{i}]"
        known(module, ("name", "area_mm2", "count", "is_d2d"), place, required=("name", "area_mm2"))
        modules.append(Module(str(module["name"]), _area(module, "area_mm2", place), flag(module, "is_d2d", False)))
        taken += modules[-1].area * number(module.get("count", 1), f"{place}.count", above=0)
    if modules and not math.isclose(taken, area, rel_tol=1e-6):
        raise PerfgridError(f"{where}: its modules take {taken / MM2:g} mm2, but its area_mm2 is {given['area_mm2']:g}")
    return Die(area, _count(given, where), str(given["node"]), tuple(modules) or (Module(where, area),))


def _area(given: Mapping[str, Any], key: str, where: str) -> float:
    return number(given[key], f"{where}.{key}", above=0) * MM2


def _count(given: Mapping[str, Any], where: str) -> int:
    return whole(given.get("count", 1), f"{where}.count")


def _divided(inputs: Mapping[str, Any]) -> list[Die]:
    """Equal chiplets that share the area of all modules."""
    for name in SPLIT:
        if name not in inputs:
            raise PerfgridError(f"chiplet_cost lacks dies, or else {name!r} (it takes {', '.join(SPLIT)})")
    total = number(inputs["total_module_area_mm2"], "total_module_area_mm2", above=0) * MM2
    count, node = whole(inputs["n_chiplets"], "n_chiplets"), str(inputs["node"])
    overhead = number(inputs.get("d2d_area_overhead", 0.1), "d2d_area_overhead", minimum=0) if count > 1 else 0.0
    each = total / count
    interface = (Module("interface", each * overhead, True),) if overhead else ()
    if not flag(inputs, "chiplets_distinct_designs", False):
        return [Die(each * (1 + overhead), count, node, (Module("module", each), *interface))]
    return [Die(each * (1 + overhead), 1, node, (Module(f"module {i}", each), *interface)) for i in range(count)]


def read_memory(given: Any) -> Memory:
    """The memory stacks of the package, none by default. PerfgridError for anything wrong."""
    if given is None:
        return Memory()
    known(given, ("stacks", "cost", "stack_area_mm2"), "memory", required=("stacks", "cost"))
    area = _area(given, "stack_area_mm2", "memory") if "stack_area_mm2" in given else Memory.stack_area
    return Memory(whole(given["stacks"], "memory.stacks"), number(given["cost"], "memory.cost", minimum=0), area)


def flag(given: Mapping[str, Any], name: str, otherwise: bool) -> bool:
    """True or false, as 1 or 0 too; PerfgridError for anything else."""
    value = given.get(name, otherwise)
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise PerfgridError(f"{name} must be true or false, found {value!r}")
    return bool(value)
