"""Units of every formula of systems, followed through the graphs that use them, and that all of them are used."""

from __future__ import annotations

import pytest

from perfgrid.catalog import load_catalog
from perfgrid.engine.graph.registry import Registry, same
from perfgrid.formulas import ECONOMY, INNER
from perfgrid.formulas.hardware import implementation
from tests.units import check

from .cases import study

MONEY = [
    "cost_per_training_run",
    "cost_per_million_tokens",
    "tokens_per_dollar",
    "model_flops_per_dollar",
    "capital_cost_fraction",
    "maintenance_cost_fraction",
    "energy_cost_fraction",
    "cluster_cost",
]
ENERGY = ["energy_per_token", "model_flops_per_joule", "power_fraction", "carbon_per_training_run"]
BUDGET = {"device": ["b200"], "budget": ["b200-budget"]}
RATES = [
    "peak_fp16_rate",
    "peak_fp8_rate",
    "peak_fp4_rate",
    "peak_int8_rate",
    "peak_tf32_rate",
    "peak_fp32_rate",
    "special_function_rate",
    "register_bandwidth",
    "shared_memory_bandwidth",
    "register_file_size",
    "die_area",
    "dies",
    "clock_frequency",
    "vector_rate",
    "l2_size",
    "hbm_capacity",
    "scale_up_bandwidth",
    "cores",
    "fabricated_cores",
    "shared_memory_size",
    "scale_out_bandwidth",
    "l2_bandwidth",
]


def studies():
    yield study([*MONEY, *ENERGY], power_view="kernels", training_cost_limit="1e9 USD")
    network = ["network_cost_per_device", "switch_cost", "cable_cost"]
    yield study([*MONEY, *network], network_sizing="budget", network_budget="3000 USD")
    yield study([*MONEY, *ENERGY], price_view="manufacturing", amortisation="depreciation", flash_attention=False)
    for precision in ("fp32", "tf32", "fp16", "fp8", "fp4"):
        yield study(ENERGY, {"device": ["b200"]}, precision=precision)
    again = {"node": ["native", "n3"], "memory": ["native", "hbm4"], "link": ["native", "nvlink6"]}
    yield study([*MONEY, *ENERGY, *[r for r in RATES if r in implementation.IMPLEMENTED["node"]]], again)
    yield study([*MONEY, *ENERGY, *RATES], again | BUDGET)


@pytest.fixture(scope="module")
def plans():
    return [made.plan() for made in studies()]


def test_every_formula_keeps_its_units(plans):
    units = {v.name: v.unit for v in load_catalog().variables.values()}
    units |= {f"{of}_{name}": unit for name, unit in list(units.items()) for of in ("native", "stated")}
    units |= dict.fromkeys(("node_is_native", "memory_is_native", "link_is_native"), "1")
    units |= dict.fromkeys(("device_basis", "circuit_basis"), "1")
    problems = [problem for plan in plans for problem in check(plan, units)]
    assert not problems, "\n".join(sorted(set(problems)))


def test_every_formula_is_reached_by_some_study(plans):
    evaluated = {name for plan in plans for node in plan.graph.nodes.values() for name in (node.name, node.formula)}
    stated = Registry.collect((*ECONOMY, implementation), INNER).formulas.values()
    stated = [f for f in stated if f.function is not same]  # readers of a cell that names a quantity read that one
    formulas = {f.name for f in stated if f.arguments}  # constants are bound to their readers
    assert formulas <= evaluated, sorted(formulas - evaluated)


def test_every_source_is_in_the_bibliography():
    references = load_catalog().references
    for formula in Registry.collect((*ECONOMY, implementation), INNER).formulas.values():
        for source in formula.source.split(","):
            assert source.strip() in references, f"{formula.name}: {source}"
