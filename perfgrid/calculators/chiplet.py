"""The cost of one package with any dies, from the manufacturing equations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfgrid.catalog import Catalog, Entry, load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.cost import die as die_equations
from perfgrid.formulas.cost import package as package_equations

from .chiplet_input import KEYWORDS, MM2, Die, Memory, entry_values, flag, read_dies, read_memory
from .collective_input import known, number

WAFER, FIELD = 0.3, 26 * 33 * MM2  # diameter in m, exposure field in m^2


@dataclass(frozen=True)
class ParameterSet:
    """A set of nodes and packages of the catalog, and how it counts dies: formula, rim of the wafer, streets (m)."""

    prefix: str
    dies_per_wafer: Callable[..., Any]
    edge: float
    street: float

    def entries(self, catalog: Catalog, table: str) -> dict[str, Entry]:
        """The entries of a table that belong to the set, by the name that they have in it."""
        others = tuple(s.prefix for s in PARAMETER_SETS.values() if s.prefix and s is not self)
        own = {n: e for n, e in catalog.tables[table].items() if n.startswith(self.prefix)}
        return {n.removeprefix(self.prefix): e for n, e in own.items() if not n.startswith(others)}

    def per_wafer(self, area: float, what: str) -> float:
        """Dies of an area (m^2) on a wafer; PerfgridError where it holds none."""
        found = float(self.dies_per_wafer(area, WAFER, self.edge, self.street))
        if found < 1:
            raise PerfgridError(f"{what} of {area / MM2:g} mm2 does not fit on a wafer of {WAFER * 1e3:g} mm")
        return found


PARAMETER_SETS = {
    "actuary2022": ParameterSet("actuary2022-", die_equations.perimeter, 5e-3, 0.2e-3),
    "market2025": ParameterSet("", die_equations.de_vries, 3e-3, 0.1e-3),
}


@dataclass(frozen=True)
class PricedDie:
    """A kind of die with the values of its node (none for a dummy) and what one costs before and after its test."""

    die: Die
    node: Mapping[str, Any] | None = None
    raw_cost: float = 0.0
    good_cost: float = 0.0


@dataclass(frozen=True)
class Carrier:
    """What carries the dies: interposer (area 0 without) and substrate, areas in m^2, costs before any loss."""

    interposer_area: float
    interposers_per_wafer: float
    interposer_cost: float
    interposer_yield: float
    substrate_area: float
    substrate_layers: float  # price over that of a substrate with few layers
    substrate_cost: float
    bridges: float


def chiplet_cost(parameter_set: str = "market2025", catalog: Catalog | None = None, **inputs: Any) -> dict[str, Any]:
    """Costs of one package with any dies, to manufacture and to design.

    Source: feng2022actuary.

    Parameters
    ----------
    parameter_set
        "actuary2022" (nodes "3" to "55", packages "OS", "FO", "SI") or "market2025" (the nodes and packages of the
        catalog, such as "n5" and "cowos-s").
    catalog
        A loaded catalog. Default: the built-in one.
    **inputs
        ``package``: its name. ``chip_last``: default true; false: the interposer is grown around the dies.

        ``dies``: a list of ``{node, area_mm2, count, modules}``, or ``{dummy_area_mm2, count}`` for dies without
        circuits; ``modules`` (default: the whole die is one) a list of ``{name, area_mm2, count, is_d2d}``. Each
        member of the list is a design of its own. Or ``node``, ``total_module_area_mm2``, ``n_chiplets``,
        ``d2d_area_overhead`` (default 0.1, where there are several) and ``chiplets_distinct_designs`` (default false),
        which make such a list; beside ``dies`` they, ``kind`` and ``note`` are labels only.

        ``memory``: ``{stacks, cost, stack_area_mm2}`` in the package, its cost in USD, 110 mm^2 a stack by default.
        ``volume``: packages over which the design is paid.

    Returns
    -------
    dict
        In USD for each good package ``RE_raw_chips`` (dies and memory), ``RE_defect_chips`` (dies that failed their
        test), ``RE_raw_package``, ``RE_defect_package`` (packages scrapped), ``RE_wasted_KGD`` (good dies scrapped with
        them) and ``RE_total``; once for the design ``NRE_module``, ``NRE_chip``, ``NRE_package``, ``NRE_total``;
        ``package_area_mm2`` and ``cost_substrate``; with an interposer ``interposer_area_mm2``, ``interposer_yield``,
        ``interposers_per_wafer`` and ``cost_interposer_raw``; with a volume ``NRE_per_unit`` and ``total_per_unit``;
        and ``exceeded``, messages on what is larger than equipment makes.

    Raises
    ------
    PerfgridError
        For anything missing, unknown or impossible, in one line.

    Examples
    --------
    >>> import perfgrid as pg
    >>> dies = [{"node": "7", "area_mm2": 74, "count": 8}, {"node": "14", "area_mm2": 416}]
    >>> round(pg.chiplet_cost("actuary2022", package="OS", dies=dies)["RE_total"])
    211
    """
    if parameter_set not in PARAMETER_SETS:
        raise PerfgridError(f"parameter_set: {parameter_set!r} is unknown; legal: {', '.join(PARAMETER_SETS)}")
    known(inputs, KEYWORDS, "chiplet_cost", required=("package",))
    rules, catalog = PARAMETER_SETS[parameter_set], catalog or load_catalog()
    package = entry_values(rules.entries(catalog, "package"), inputs["package"], "package")
    if package["stacks_dies"]:
        raise PerfgridError(
            f"package: {inputs['package']!r} stacks dies; evaluate a study of the workload manufacturing"
        )
    chip_first = package["chip_first"] or not flag(inputs, "chip_last", True)
    nodes = rules.entries(catalog, "node")
    dies = [_priced(d, nodes, rules) for d in read_dies(inputs)]
    memory = read_memory(inputs.get("memory"))

    carrier = _carrier(package, rules, [d.die for d in dies], memory)
    recurring, design = _recurring(package, carrier, dies, memory, chip_first), _design(package, carrier, dies)
    result: dict[str, Any] = recurring | design
    result |= {"package_area_mm2": carrier.substrate_area / MM2, "cost_substrate": carrier.substrate_cost}
    if carrier.interposer_area:
        result["interposer_area_mm2"] = carrier.interposer_area / MM2
        result["interposer_yield"] = carrier.interposer_yield
        result["interposers_per_wafer"] = carrier.interposers_per_wafer
        result["cost_interposer_raw"] = carrier.interposer_cost
    if "volume" in inputs:
        result["NRE_per_unit"] = design["NRE_total"] / number(inputs["volume"], "volume", above=0)
        result["total_per_unit"] = recurring["RE_total"] + result["NRE_per_unit"]
    return result | {"exceeded": _exceeded(package, carrier, dies)}


def _priced(die: Die, nodes: Mapping[str, Entry], rules: ParameterSet) -> PricedDie:
    """A die with the cost of one, good or bad, and of one that passed its test."""
    if not die.node:
        return PricedDie(die)
    node = entry_values(nodes, die.node, "node")
    if not node["wafer_price"]:
        raise PerfgridError(f"node: the wafer price of {die.node!r} is unknown")
    raw = node["wafer_price"] / rules.per_wafer(die.area, "a die")
    works = die_equations.negative_binomial(die.area * node["defect_density"], node["defect_clustering"])
    return PricedDie(die, node, raw, (raw + node["probe_cost"]) / float(works))


def _carrier(package: Mapping[str, Any], rules: ParameterSet, dies: Sequence[Die], memory: Memory) -> Carrier:
    area = sum(d.area * d.count for d in dies) + memory.stacks * memory.stack_area
    parts = sum(d.count for d in dies) + memory.stacks
    interposer = package["interposer_area_ratio"] * area
    held = rules.per_wafer(interposer, "an interposer") if interposer else 0.0
    cost = package["interposer_price"] * interposer
    cost += package["interposer_wafer_price"] / held if interposer else 0.0
    defects = interposer * package["interposer_defect_density"]
    works = die_equations.negative_binomial(defects, package["interposer_defect_clustering"])
    works *= package["stitch_yield"] ** float(package_equations.stitches(interposer, FIELD))

    substrate = package["substrate_area_ratio"] * (interposer or area)
    limits = package_equations.SMALL_PACKAGE, package_equations.LARGE_PACKAGE
    layers = float(package_equations.layer_factor(substrate, parts, package["substrate_layers_grow"], *limits))
    neighbours = (parts - memory.stacks - 1, max(d.area for d in dies)), (memory.stacks, memory.stack_area)
    bridges = sum(float(package_equations.bridges_between(*n, package["bridge_edge"])) for n in neighbours)
    bridges = bridges if package["bridge_price"] else 0.0
    substrate_cost = substrate * package["substrate_price"] * layers + bridges * package["bridge_price"]
    return Carrier(interposer, held, cost, float(works), substrate, layers, substrate_cost, bridges)


def _recurring(
    package: Mapping[str, Any], carrier: Carrier, dies: Sequence[PricedDie], memory: Memory, chip_first: bool
) -> dict[str, float]:
    """Costs of each good package."""
    bumped = sum(d.die.area * (1 if package["bumps_per_design"] else d.die.count) for d in dies)
    raw = sum(d.raw_cost * d.die.count for d in dies) + package["bump_price"] * bumped + memory.cost
    lost = sum((d.good_cost - d.raw_cost) * d.die.count for d in dies)
    parts = sum(d.die.count for d in dies) + memory.stacks
    on_interposer, on_substrate = package_equations.attach_yields(
        carrier.interposer_area > 0, parts, package["attach_yield"], package["interposer_attach_yield"]
    )
    on_substrate *= package["bridge_yield"] ** carrier.bridges
    yields = carrier.interposer_yield, on_interposer, on_substrate, carrier.interposer_area > 0 and chip_first
    found = {
        "RE_raw_chips": raw,
        "RE_defect_chips": lost,
        "RE_raw_package": carrier.interposer_cost + carrier.substrate_cost + package["assembly_cost"],
        "RE_defect_package": package_equations.lost_package(carrier.interposer_cost, carrier.substrate_cost, *yields),
        "RE_wasted_KGD": package_equations.lost_dies(raw + lost, *yields),
    }
    return _with_total(found, "RE_total")


def _design(package: Mapping[str, Any], carrier: Carrier, dies: Sequence[PricedDie]) -> dict[str, float]:
    """Design of every different module and die, of every interface (once at a node), and of the package."""
    reference, worth = package_equations.DESIGN_REFERENCE_AREA, package_equations.INTERFACE_DESIGN_AREA
    modules: dict[tuple[Any, ...], float] = {}
    chips = 0.0
    for priced in dies:
        if priced.node is None:
            continue
        die, cost = priced.die, priced.node["design_cost"]
        chips += package_equations.chip_design(cost, die.area, reference) + priced.node["mask_cost"]
        for module in die.modules:
            key = (module.name, die.node, None if module.interface else module.area)
            area = worth if module.interface else module.area
            modules[key] = package_equations.module_design(cost, area, reference)
    designed = carrier.interposer_area or carrier.substrate_area * carrier.substrate_layers
    found = {
        "NRE_module": sum(modules.values()),
        "NRE_chip": chips,
        "NRE_package": package["package_design_price"] * designed + package["package_design_cost"],
    }
    return _with_total(found, "NRE_total")


def _with_total(costs: Mapping[str, Any], total: str) -> dict[str, float]:
    found = {name: float(cost) for name, cost in costs.items()}
    return found | {total: sum(found.values())}


def _exceeded(package: Mapping[str, Any], carrier: Carrier, dies: Sequence[PricedDie]) -> list[str]:
    """Messages on what is larger than equipment makes; the costs ignore that."""
    found = [
        f"a die of {d.die.area / MM2:g} mm2 is larger than the exposure field of {FIELD / MM2:g} mm2"
        for d in dies
        if d.node is not None and d.die.area > FIELD
    ]
    limit, interposer = package["interposer_area_limit"], carrier.interposer_area
    if limit and interposer > limit:
        found.append(f"the interposer of {interposer / MM2:g} mm2 is larger than the {limit / MM2:g} mm2 that are made")
    return found
