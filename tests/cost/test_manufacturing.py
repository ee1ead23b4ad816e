"""The workload "manufacturing": the scalar door, bills of material, properties, flags, units, derivatives, speed."""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfgrid as pg
from perfgrid.engine import replay, resolve
from perfgrid.engine.grid.plan import Plan
from tests.units import check

from .cases import ACTUARY, CATALOG, NONE, REGISTRY, cost, study

# ---- agreement ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distinct", [False, True])
def test_grid_is_chiplet_actuary_at_every_point(distinct):
    """The parameter set of Chiplet Actuary through studies: areas, counts, nodes and packages that its cases lack."""
    nodes, packages = ("3", "7", "14", "40"), ("os", "fo", "si")
    names = [
        "silicon_cost",
        "package_cost",
        "manufacturing_cost",
        "module_design_cost",
        "chip_design_cost",
        "development_cost",
    ]
    result = pg.evaluate(
        study(
            names,
            {
                "node": [f"actuary2022-{n}" for n in nodes],
                "package": [f"actuary2022-{p}" for p in packages],
                "dies": [1, 2, 3, 8],
                "module_area": ["60 mm^2", "333 mm^2", "800 mm^2"],
            },
            {**ACTUARY, "distinct_dies": distinct, "d2d_overhead": 0.08},
        )
    )
    for node in nodes:
        for kind in packages:
            for dies in (1, 2, 3, 8):
                for area in (60.0, 333.0, 800.0):
                    door = pg.chiplet_cost(
                        "actuary2022",
                        package=kind,
                        node=node,
                        total_module_area_mm2=area,
                        n_chiplets=dies,
                        d2d_area_overhead=0.08,
                        chiplets_distinct_designs=distinct,
                    )
                    at = {"node": f"actuary2022-{node}", "package": f"actuary2022-{kind}", "dies": dies}
                    found = result[names].sel(at).sel(module_area=area * 1e-6, method="nearest")
                    packaged = door["RE_raw_package"] + door["RE_defect_package"] + door["RE_wasted_KGD"]
                    expected = (
                        door["RE_raw_chips"] + door["RE_defect_chips"],
                        packaged,
                        door["RE_total"],
                        door["NRE_module"],
                        door["NRE_chip"],
                        door["NRE_total"],
                    )
                    for name, value in zip(names, expected, strict=True):
                        assert float(found[name]) == pytest.approx(value, rel=1e-9), (node, kind, dies, area, name)


BILLS = {"h100-sxm-80gb": 3320, "b200": 6400, "mi300x": 5300}  # USD, estimates of analysts (siliconanalysts.com, 2026)


@pytest.mark.parametrize("yields", ["negative_binomial", "harvested"])
def test_bills_of_material_lie_within_thirty_per_cent_of_estimates(yields):
    devices = study(
        ["manufacturing_cost"], {"device": list(BILLS)}, {"memory_in_package": "stacks", "yield_model": yields}
    )
    result = pg.evaluate(devices)
    assert bool(pg.feasible(result).all())
    for device, published in BILLS.items():
        found = float(result["manufacturing_cost"].sel(device=device))
        assert abs(found / published - 1) < 0.30, (device, found)


def test_only_harvest_makes_the_die_of_h100_as_cheap_as_it_is_said_to_be():
    plain, harvest = (
        float(pg.evaluate(study(["die_cost"], {"device": ["h100-sxm-80gb"]}, {"yield_model": y}))["die_cost"].item())
        for y in ("negative_binomial", "harvested")
    )
    assert plain > 450
    assert 200 <= harvest <= 300


# ---- properties -----------------------------------------------------------------------------------------------------

NODES = st.sampled_from([n for n, e in CATALOG.tables["node"].items() if e.values["wafer_price"]])
FLAT = [  # without I/O dies below the others, and every bump paid (a convention of Chiplet Actuary is otherwise)
    p for p, e in CATALOG.tables["package"].items() if not e.values["stacks_dies"] and not e.values["bumps_per_design"]
]
PACKAGES = st.sampled_from(FLAT)
AREAS, DIES = st.floats(20e-6, 800e-6), st.integers(1, 16).map(float)


@settings(max_examples=60)
@given(NODES, PACKAGES, AREAS, DIES, st.floats(1.01, 2.0))
def test_cost_rises_with_area_and_defects_and_falls_with_volume(node, package, area, dies, factor):
    at = {"node": node, "package": package, "dies": dies, "module_area": area}
    dense = CATALOG.entry("node", node).values["defect_density"]
    base = cost("device_cost", **at, production_volume=1e5)
    assert cost("device_cost", **{**at, "module_area": area * factor}, production_volume=1e5) > base
    assert cost("device_cost", **at, production_volume=1e5, defect_density=dense * factor) > base
    assert cost("device_cost", **at, production_volume=1e5 * factor) < base
    assert cost("device_cost", **at, production_volume=1e5, design_reuse=factor) < base
    assert cost("device_cost", **at) == cost("manufacturing_cost", **at), "no volume, no share of the design"


@settings(max_examples=60)
@given(NODES, PACKAGES, AREAS, st.integers(2, 16).map(float), st.floats(0.0, 0.3))
def test_chiplets_never_help_a_die_that_always_works(node, package, area, dies, overhead):
    """Without defects, and on a wafer so large that its rim takes nothing, dividing a die only adds."""
    perfect = {"node": node, "package": package, "module_area": area, "defect_density": 0.0, "wafer_diameter": 1e3}
    perfect |= {"interposer_defect_density": 0.0, "probe_cost": 0.0, "d2d_overhead": overhead}
    assert cost(**perfect, dies=dies) >= cost(**perfect, dies=1.0) * (1 - 1e-9)


@settings(max_examples=40)
@given(NODES, PACKAGES, AREAS, st.integers(2, 8).map(float))
def test_chiplets_with_interfaces_save_no_more_than_the_rim_of_real_wafers_without_defects(node, package, area, dies):
    """The rim takes more of large dies: where dividing saves no silicon it never pays, and never more than that."""
    perfect = {"node": node, "package": package, "module_area": area, "defect_density": 0.0}
    saved = dies * cost("die_cost", **perfect, dies=dies) / cost("die_cost", **perfect, dies=1.0)
    assert cost(**perfect, dies=dies) >= cost(**perfect, dies=1.0) * min(1.0, saved) * (1 - 1e-9)
    if saved >= 1:
        assert cost(**perfect, dies=dies) > cost(**perfect, dies=1.0)


@settings(max_examples=60)
@given(NODES, AREAS, st.sampled_from(["negative_binomial", "poisson", "murphy", "seeds", "bose_einstein", "harvested"]))
def test_yield_is_a_share(node, area, model):
    values = {"cores": 100.0, "fabricated_cores": 108.0, "yield_model": model}
    assert 0 < cost("die_yield", node, module_area=area, **values) <= 1


@given(st.floats(0.0, 1.0))
def test_untested_dies_are_cheaper_and_packages_dearer(coverage):
    tested = {"package": "cowos-s", "module_area": 400e-6, "dies": 2.0}
    assert cost("die_cost", **tested, probe_coverage=coverage) <= cost("die_cost", **tested) * (1 + 1e-12)
    assert cost(**tested, probe_coverage=coverage) >= cost(**tested) * (1 - 1e-12)
    quality = cost("die_quality", **tested, probe_coverage=coverage)
    assert quality * cost("die_tested_yield", **tested, probe_coverage=coverage) == pytest.approx(
        cost("die_yield", **tested)
    )


def test_defects_fall_as_a_process_is_learned():
    """2 nm: 0.12 per cm2 after three quarters of a year, 0.15 to 0.2 at the start, the limit two thirds of it."""

    def density(node, years):
        return cost("die_defects", node, process_age=years * 31_557_600) / cost("fabricated_area", node)

    start, stated, mature = (density("n2", years) for years in (0, 0.75, 30))
    assert stated == pytest.approx(1200)
    assert 1500 < start < 2000
    assert 600 < mature < 900
    assert density("n7", 0.0) == pytest.approx(900), "nothing left to learn"


def test_seams_of_an_interposer_can_fail():
    at = {"package": "cowos-s", "module_area": 800e-6, "dies": 2.0}
    assert cost("interposer_yield", **at, stitch_yield=0.9) == pytest.approx(0.9), "968 mm2 in fields of 858 mm2"
    assert cost("interposer_yield", **at, stitch_yield=0.9, field_area=429e-6) == pytest.approx(0.81)


def test_bridges_lead_from_die_to_die_and_to_each_memory_stack():
    at = {"package": "emib", "module_area": 800e-6, "dies": 2.0, "d2d_overhead": 0.0}
    assert cost("bridges", **at) == 2, "an edge of 20 mm"
    assert cost("bridges", **at, hbm_stacks=4.0) == 2 + 4 * 2, "an edge of 10.5 mm"
    assert cost("bridges", **{**at, "package": "organic"}) == 0


# ---- the whole graph ------------------------------------------------------------------------------------------------


def everything(**labels):
    """A space that states all that any formula of the workload needs."""
    space = study(
        ["device_cost"],
        {"device": ["mi300x"], "node": ["n3"], "package": ["soic-cowos-s"], "memory": ["hbm3e"]},
        {"memory_in_package": "stacks", "production_volume": 1e6, "module_area": "800 mm^2", **labels},
    ).space
    return space


def test_units_of_every_formula():
    units = {v.name: v.unit for v in CATALOG.variables.values()}
    units |= {f"{p}_{n}": u for n, u in list(units.items()) for p in ("stated", "native")}
    units |= {f"{table}_is_native": "1" for table in ("node", "package", "memory")}
    problems = []
    for model in ("negative_binomial", "poisson", "murphy", "seeds", "bose_einstein", "harvested"):
        space = everything(yield_model=model, wafer_fill="ferris_prabhu" if model == "murphy" else "de_vries")
        outputs = ["device_cost", "cost_per_transistor", "die_area", "compute_power_ratio"]
        problems += check(Plan(REGISTRY, space, outputs), units)
    assert not problems, "\n".join(sorted(set(problems)))


@pytest.mark.parametrize("model", ["negative_binomial", "harvested"])
def test_derivatives_are_finite_and_those_of_differences(model):
    """Of the cost of a device by every continuous quantity, with and without I/O dies, memory and interposer."""
    designs = [
        {"device": ["h100-sxm-80gb"]},
        {"device": ["mi300x"]},
        {"node": ["n3"], "package": ["organic"], "dies": [4], "module_area": ["800 mm^2"]},
        {"node": ["actuary2022-7"], "package": ["actuary2022-fo"], "dies": [1], "module_area": ["100 mm^2"]},
    ]
    with jax.enable_x64(True):
        for axes in designs if model == "negative_binomial" else designs[:2]:
            parameters = {"production_volume": 1e6, "memory_in_package": "stacks" if "device" in axes else "none"}
            named = study(
                ["device_cost"],
                axes,
                {**parameters, "yield_model": model},
                overrides={} if "device" in axes else {"cores": 64.0},
            )
            graph = resolve(REGISTRY, ("device_cost",), named.space.names(), {}, named.space.label_quantities())
            leaves = {n: named.space.at(n, (0,) * len(named.space.axes)) for n in graph.leaves}
            smooth = [n for n in leaves if n in CATALOG.variables and CATALOG.variables[n].differentiable]
            fixed = {
                n: jnp.asarray(float(v) if not isinstance(v, (bool, np.bool_)) else bool(v)) for n, v in leaves.items()
            }

            def total(values, graph=graph, fixed=fixed):
                known = {**fixed, **values}
                for node in graph.nodes.values():
                    known[node.name] = node.function(*(known[a] for a in node.arguments))
                return jnp.sum(known["device_cost"])

            slopes = jax.grad(total)({n: fixed[n] for n in smooth})
            assert len(smooth) >= 12
            for name, slope in slopes.items():
                assert np.isfinite(slope), (axes, name)
                at, step = float(leaves[name]), 1e-5 * float(leaves[name])
                if at not in (0, 1):  # not at the end of a range
                    up, down = (replay(graph, {**leaves, name: at + s})["device_cost"] for s in (step, -step))
                    assert float(slope) == pytest.approx((up - down) / (2 * step), rel=1e-3, abs=1e-9), name


def test_a_million_points_are_one_evaluation():
    axes = {
        "node": ["n7", "n5", "n3", "n2"],
        "package": ["organic", "info", "cowos-s", "cowos-l", "emib"],
        "dies": [1, 2, 4, 8],
        "module_area": {"start": 5e-5, "stop": 8e-4, "num": 120},
        "production_volume": {"start": 1e4, "stop": 1e7, "num": 110, "spacing": "log"},
    }
    million = pg.Study.make(
        workload="manufacturing", outputs=["device_cost", "cost_per_transistor"], axes=axes, workload_parameters=NONE
    )
    assert million.space.points > 1_000_000
    pg.evaluate(million)  # compiles
    start = time.perf_counter()
    result = pg.evaluate(million)
    took = time.perf_counter() - start
    assert bool(np.isfinite(result["device_cost"]).all())
    assert took < 10, f"{took:.2f} s"
    exact = cost("device_cost", "n3", "cowos-s", dies=4.0, module_area=8e-4, production_volume=1e4)
    found = result["device_cost"].sel(node="n3", package="cowos-s", dies=4).isel(module_area=-1, production_volume=0)
    assert float(found) == pytest.approx(exact, rel=1e-5)


def test_io_dies_are_made_at_their_own_node():
    """An axis of nodes for the I/O dies, and the node that a device states, with what is cited of it."""
    axes = {"node": ["n5"], "package": ["soic-cowos-s"], "dies": [8], "module_area": ["900 mm^2"], "io_dies": [4]}
    swept = study(["io_die_cost", "manufacturing_cost"], {**axes, "io_die_area": ["370 mm^2"], "io_node": ["n6", "n3"]})
    costs = pg.evaluate(swept)["io_die_cost"].squeeze()
    assert float(costs.sel(io_node="n3")) > 2 * float(costs.sel(io_node="n6"))
    assert float(costs.sel(io_node="n6")) == pytest.approx(cost("die_cost", "n6", module_area=370e-6))
    assert {"n5", "n6", "n3"} <= set(swept.sources()["node"])
    own = study(["io_die_cost"], {"device": ["mi300x"]})
    assert float(pg.evaluate(own)["io_die_cost"].item()) == pytest.approx(float(costs.sel(io_node="n6")))
    assert set(own.sources()["node"]) == {"n6"}
    unneeded = study(["die_cost"], {"device": ["mi300x"]})
    assert set(unneeded.sources()["node"]) == {"n5"}


STUDIES = Path(__file__).parents[2] / "studies"


def test_study_of_bills_of_material():
    result = pg.evaluate(pg.load_study(STUDIES / "bill_of_materials.toml"))
    assert bool(pg.feasible(result).all())
    parts = result["silicon_cost"] + result["memory_cost"] + result["package_cost"]
    flat = [d for d in result["device"].values if not d.startswith("mi3")]  # nothing is lost in bonding
    assert result["manufacturing_cost"].sel(device=flat).values == pytest.approx(
        parts.sel(device=flat).values, rel=1e-5
    )
    assert bool((result["manufacturing_cost"] >= parts * (1 - 1e-6)).all())


def test_study_of_chiplets_trades_cost_against_speed():
    """Dividing makes dies cheaper at every node and never slower; what a dollar buys rises, more at newer nodes."""
    result = pg.evaluate(pg.load_study(STUDIES / "papers" / "chiplet_tradeoff.toml")).squeeze()
    assert np.all(np.diff(result["silicon_cost"].values, axis=result["silicon_cost"].dims.index("budget_dies")) < 0)
    best = result["tokens_per_dollar"].where(pg.feasible(result)).max("parallelism").sel(production_volume=1e6)
    gain = (best.max("budget_dies") / best.sel(budget_dies=1)).sel(package="cowos-l")
    assert np.all(np.diff(gain.values) > 0)
    assert 1.01 < float(gain.sel(node="n5")) < 1.06
    assert float(gain.sel(node="a14")) > 1.1
    assert bool((result["step_time"] <= result["step_time"].sel(budget_dies=1) * (1 + 1e-6)).all())
