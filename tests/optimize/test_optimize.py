"""Optima of textbook problems, of studies against dense grids, of several workloads; what is refused, in words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.optimize import brentq
from typer.testing import CliRunner

import perfgrid as pg
from perfgrid.analysis.prediction_intervals import interval
from perfgrid.cli.main import app
from perfgrid.formulas import xp
from perfgrid.formulas.axes import at
from perfgrid.results.provenance import formulas_changed

from .comparison import FRESH, STUDIES, compared


@pg.formula(unit="s", source="williams2009roofline")
def balanced_time(area_split, budget_area):
    """Arithmetic and traffic that overlap, each faster with its share of the area."""
    arithmetic, traffic = 3.0 / at(area_split, component="matrix"), 1.0 / at(area_split, component="memory")
    return xp.maximum(arithmetic, traffic) / budget_area


@pg.formula(unit="USD", source="feng2022actuary")
def split_cost(budget_area):
    """A square metre of silicon in dies: what defects cost grows with their area, what is paid for each falls."""
    return 1000.0 * xp.exp(20000.0 * budget_area) + 0.05 / budget_area


@pg.formula(unit="1", source="feng2022actuary")
def whole_things(budget_area):
    """Things of 30 mm^2 that an area holds."""
    return xp.floor(budget_area / 30e-6)


@pg.formula(unit="USD", source="feng2022actuary")
def area_per_thing(budget_area, whole_things):
    """What is paid for each of them, and for all."""
    return (budget_area * 1e6 + 100.0) / whole_things


@pg.formula(unit="USD", source="feng2022actuary")
def split_price(die_cost, module_area):
    """What a square metre costs in dies that each need 100 USD more."""
    return (die_cost + 100.0) / module_area


def study(outputs, **given: Any):
    content: dict[str, Any] = {"axes": {"device": ["h100-sxm-80gb"], "budget": ["h100-budget"]}} | given
    formulas = [balanced_time, split_cost, whole_things, area_per_thing]
    return pg.Study.make(workload="manufacturing", formulas=formulas, outputs=outputs, **content)


def test_a_roofline_is_balanced():
    found = pg.optimize(study(["balanced_time"]), "balanced_time", over=["area_split.matrix", "area_split.memory"])
    together = 0.102 + 0.086
    assert float(found["area_split.matrix"]) == pytest.approx(together * 3 / 4, rel=2e-3)
    assert float(found["area_split.matrix"] + found["area_split.memory"]) == pytest.approx(together, rel=1e-12)
    assert float(found.kkt_residual) < 1e-3
    assert float(found.objective) == pytest.approx(4.0 / together / 814e-6, rel=2e-3)


def test_the_split_of_dies_is_that_of_calculus():
    area = brentq(lambda a: 1000 * 20000 * np.exp(20000 * a) - 0.05 / a**2, 1e-6, 1e-2)
    found = pg.optimize(study(["split_cost"]), "split_cost", over={"budget_area": ["5 mm^2", "800 mm^2"]})
    assert float(found.budget_area) == pytest.approx(area, rel=1e-4)
    assert float(found.kkt_residual) < 1e-5


def test_a_limit_has_its_shadow_price():
    limited = study(["split_cost"])
    loose = pg.optimize(limited, "split_cost", over={"budget_area": [5e-6, 8e-4]}, subject_to="budget_area < 30 mm^2")
    assert float(loose.budget_area) == pytest.approx(30e-6, rel=1e-5)
    area = 30e-6
    slope = area * (1000 * 20000 * np.exp(20000 * area) - 0.05 / area**2) / float(loose.objective)
    assert float(loose.shadow_price.sel(constraint="budget_area < 30 mm^2")) == pytest.approx(slope, rel=1e-3)


def test_counts_are_whole_and_paid_for():
    found = pg.optimize(study(["area_per_thing"]), "area_per_thing", over={"budget_area": [4e-5, 8e-4]})
    assert float(found.budget_area) == pytest.approx(780e-6, rel=1e-6)  # 26 things, not an unused rest
    assert float(found.objective) == pytest.approx(880 / 26, rel=1e-6)


MODULES = {"module_area": ["1 cm^2", "8 cm^2"]}


def dies(outputs, nodes=("n5",), **content: Any):
    return pg.Study.make(
        overrides={"dies": 1},
        workload="manufacturing",
        outputs=outputs,
        axes={"node": list(nodes), "package": ["cowos-s"]},
        **content,
        workload_parameters={"module_area": "800 mm^2", "memory_in_package": "none"},
    )


def test_a_maximum_and_several_discrete_choices():
    found = pg.optimize(dies(["die_yield", "die_cost"], ["n7", "n5"]), maximize="die_yield", over=MODULES)
    assert found.objective.dims == ("node",)
    np.testing.assert_allclose(found.module_area, 1e-4, rtol=1e-9)  # the smallest die
    assert (found.pull.sel(knob="module_area") > 0).all()  # a larger yield by a lower bound
    spent = pg.optimize(dies(["fabricated_area"]), maximize="fabricated_area", over=MODULES)
    assert spent.pull.item() == pytest.approx(1, abs=1e-3)  # a percent more area is a percent more area


def test_two_workloads_share_the_design():
    entries = [{"name": "one", "weight": 3.0}, {"name": "four", "overrides": {"dies": 4}}]
    found = pg.optimize(
        dies(["die_cost", "silicon_cost"], workloads=entries),
        "silicon_cost",
        over=MODULES,
        choose=[],
        subject_to="four.silicon_cost > 120 USD",
    )
    one = pg.evaluate(dies(["silicon_cost"]), "float64")
    assert float(found["four.silicon_cost"]) == pytest.approx(120, rel=1e-4)
    assert float(found["one.silicon_cost"]) > 120
    assert float(found["one.silicon_cost"]) < one.silicon_cost.item()
    assert float(found.objective) == pytest.approx(3 * found["one.silicon_cost"] + found["four.silicon_cost"])


def test_every_optimum_is_explained_at_its_values(tmp_path):
    """Of a label, of a workload, of a point of a front, read again from a file: the number that it holds."""
    entries = [{"name": "one", "weight": 3.0}, {"name": "four", "overrides": {"dies": 4}}]
    shared = pg.optimize(
        dies(["die_cost", "silicon_cost"], ["n7", "n5"], workloads=entries),
        "silicon_cost",
        over=MODULES,
        choose=["node"],
        subject_to="four.silicon_cost > 120 USD",
    )
    apart = pg.optimize(dies(["die_cost"], ["n7", "n5"]), maximize="die_cost", over=MODULES, subject_to="die_cost < 99")
    line = pg.optimize(dies(["die_yield", "die_cost"]), maximize="die_yield", over=MODULES, pareto="die_cost", points=3)
    for found, name, where in (
        (shared, "four.die_cost", {}),
        (shared, "one.silicon_cost", {"workload": "one"}),
        (apart, "die_cost", {"node": "n5"}),
        (line, "die_yield", {"point": 1}),
    ):
        kept = pg.open_result(pg.save(found, tmp_path / "found.nc", overwrite=True))
        shown = pg.explain(kept, name, where)
        one = (
            found.isel(point=1) if "point" in where else found.sel({k: v for k, v in where.items() if k in found.dims})
        )
        assert float(shown.derivation.value) == pytest.approx(one[name].item(), rel=1e-12)
        assert not formulas_changed(kept)
    matrix = pg.optimize(study(["balanced_time"]), "balanced_time", over=["area_split.matrix", "area_split.memory"])
    formulas = [balanced_time, split_cost, whole_things, area_per_thing]
    shown = pg.explain(matrix, "balanced_time", {}, formulas)
    assert float(shown.derivation.value) == pytest.approx(matrix.objective.item(), rel=1e-12)
    split = next(d for d in shown.derivation.below if d.name == "area_split")
    assert split.source == "free in the optimum"
    assert float(np.sum(at(split.value, component="matrix"))) == pytest.approx(matrix["area_split.matrix"].item())
    with pytest.raises(pg.PerfgridError, match=r"not given: node \(such as n7\)"):
        pg.explain(apart, "die_cost", {})
    with pytest.raises(pg.PerfgridError, match="workload=NAME names one, legal names: one, four"):
        pg.explain(shared, "die_cost", {})
    with pytest.raises(pg.PerfgridError, match="found 'fuor'; did you mean 'four'"):
        pg.explain(shared, "die_cost", {"workload": "fuor"})


def test_optima_are_compared(tmp_path):
    """Saved and opened again they are the same; with another limit its name, the optimum and what it breaks differ."""
    free = pg.optimize(dies(["die_cost"]), maximize="die_cost", over=MODULES)
    kept = pg.open_result(pg.save(free, tmp_path / "free.nc"))
    assert pg.diff(free, kept).same
    limited = pg.optimize(dies(["die_cost"]), maximize="die_cost", over=MODULES, subject_to="die_cost < 99 USD")
    found = pg.diff(kept, limited)
    assert [axis.only_b for axis in found.axes if axis.axis == "constraint"] == [["die_cost < 99 USD"]]
    assert {"die_cost", "module_area", "objective"} <= {v.name for v in found.variables if v.differing}
    shown = pg.diff(kept, kept.assign(breaks=kept.breaks + "x"), variables=["breaks"]).variables[0]
    assert shown.differing == 1


def test_a_front_runs_from_one_best_to_the_other():
    varied = dies(["split_price", "die_cost"], formulas=[split_price])
    found = pg.optimize(varied, "split_price", over=MODULES, pareto="die_cost", points=5)
    cost, other = found.objective.values.ravel(), found.die_cost.values.ravel()
    assert (np.diff(cost) < 1e-6 * cost[:-1]).all()
    assert (np.diff(other) > 0).all()
    assert cost[-1] == pytest.approx(float(pg.optimize(varied, "split_price", over=MODULES).objective), rel=1e-4)


AREA = {"budget_area": [1e-4, 8e-4]}
REFUSED = [
    ({"minimize": "split_cost", "over": AREA, "subject_to": "split_cost < 1 USD"}, "no design within the bounds keeps"),
    (
        {"minimize": "split_cost", "over": AREA, "subject_to": "split_cost < 1 USD, budget_area < 2e-4"},
        "nearest one breaks split_cost < 1 USD .missed by",
    ),
    (
        {"minimize": "split_cost", "over": AREA, "subject_to": "budget_area < 2e-4, budget_area > 3e-4"},
        "'budget_area < 2e-4' and 'budget_area > 3e-4' contradict each other",
    ),
    ({"minimize": "split_cost", "over": AREA, "subject_to": "split_cost > 3 kUSD, split_cost < 2 kUSD"}, "contradict"),
    ({"minimize": "split_cost", "over": AREA, "subject_to": "budget_area > 9 cm^2"}, "contradicts the bounds of"),
    ({"minimize": "split_cost", "over": AREA, "subject_to": "served.split_cost < 1 kUSD"}, "study lists no workloads"),
    ({"minimize": "split_cost", "over": AREA, "starts": 65}, "starts must be at most that of samples, 64, found 65"),
    ({"minimize": "split_cost", "over": AREA, "subject_to": "budget_power < 1 W"}, "every design breaks budget_"),
    ({"minimize": "split_cost", "over": ["budget_area"]}, "has no bounds, neither in the study nor in the catalog"),
    ({"minimize": "split_cost", "over": {"budget_area": [1e-4, float("inf")]}}, "must be finite"),
    ({"minimize": "split_cost", "over": {"budget_area": [3e-4, 1e-4]}}, "the low end must lie below the high end"),
    ({"minimize": "split_cost", "over": {"budget_dies": [1, 4]}}, "is a whole number and has no derivative"),
    ({"minimize": "split_cost", "over": {"budget_aera": [1, 4]}}, "did you mean 'budget_area'"),
    ({"minimize": "split_cost", "over": {"die_cost": [1, 4]}}, "is computed by a formula and cannot be free"),
    ({"minimize": "split_cost", "over": {"budget_power": [1, 4]}}, "depends on 'budget_power'"),
    ({"minimize": "split_csot", "over": AREA}, "did you mean 'split_cost'"),
    ({"minimize": "split_cost", "over": AREA, "subject_to": "die_cost"}, "must read 'quantity < value'"),
    ({"minimize": "split_cost", "over": AREA, "subject_to": "budget_aera < 1"}, "did you mean 'budget_area'"),
    ({"minimize": "split_cost", "over": AREA, "subject_to": "budget_area < 1 kg"}, "kg"),
    ({"minimize": "split_cost", "over": ["area_split.matrix"]}, "a single one cannot vary"),
    ({"minimize": "split_cost", "over": {"area_split.matrix": [0.1, 0.2], "area_split.l2": []}}, "takes no bounds"),
    ({"minimize": "split_cost", "over": []}, "name at least one quantity"),
    ({"over": AREA}, "give either minimize or maximize"),
    ({"minimize": "split_cost", "over": "budget_area", "subject_to": "budget_area < 1"}, "'budget_area' has no bounds"),
    ({"minimize": "split_cost", "over": {"budget_area": 4e-4}}, "need a low and a high value, found 0.0004"),
    ({"minimize": "split_cost", "over": AREA, "starts": 0}, "starts must be 1 or more, found 0"),
    ({"minimize": "split_cost", "over": AREA, "choose": "parallelism"}, "is no axis"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_cannot_be_optimised_is_reported_in_a_sentence(arguments, message):
    with pytest.raises(pg.PerfgridError, match=message):
        pg.optimize(study(["split_cost"]), **arguments)


def test_steps_nearby_and_quantities_without_effect_are_reported():
    """The best whole number of things fills the area: a percent less holds one thing less."""
    one = study(["area_per_thing"])
    found = pg.optimize(
        one,
        "area_per_thing",
        over={"budget_area": [1e-4, 8e-4], "budget_power": [1.0, 2.0]},
        subject_to="budget_power < 3 W",
        starts=2,
    )
    things = np.floor(found.budget_area.item() / 30e-6 * (1 + 1e-9))
    lost = (0.99 * found.budget_area.item() * 1e6 + 100) / (things - 1) / found.objective.item() - 1
    assert lost - 0.01 < found.jump.sel(knob="budget_area").item() < lost  # a percent of area alone is less than one
    assert found.jump.sel(knob="budget_power").item() == 0
    assert found.breaks.item() == ""


TRAINED = {
    "outputs": ["step_time"],
    "axes": {
        "model": ["llama-3.1-8b", "llama-3.1-405b"],
        "device": ["h100-sxm-80gb"],
        "topology": ["rail-optimized"],
        "parallelism": {"devices": [64], "tp": [1, 8], "pp": [1]},
    },
    "workload_parameters": {"sequence_length": 4096, "global_batch": 64, "recompute": "least"},
    "choices": {},
}


def test_objectives_and_limits_need_not_be_outputs():
    """What they rest on, prices and energies, is part of the study then; an impossible group says what it breaks."""
    one = pg.Study.make(**TRAINED)
    over = {"hbm_bandwidth": [2e12, 4e12], "peak_fp16_rate": [1e14, 1e15], "electricity_price": [1e-8, 1e-7]}
    found = pg.optimize(
        one, "cost_per_million_tokens", over=over, subject_to="step_time < 1 min", choose="parallelism", starts=1
    )
    small, large = (found.sel(model=m) for m in TRAINED["axes"]["model"])
    assert bool(small.feasible)
    assert small.electricity_price.item() == pytest.approx(1e-8)
    assert "peak_fp16_rate" in found.attrs["without_effect"]
    assert interval(found, {"model": "llama-3.1-8b"}).value == pytest.approx(small.step_time.item())
    assert pg.kernels(found, {"model": "llama-3.1-8b"}).point["parallelism"] == small.parallelism.item()
    with pytest.raises(pg.PerfgridError, match="every optimum has free quantities of its own"):
        pg.compare(found, {"model": "llama-3.1-8b"}, {"model": "llama-3.1-405b"})
    assert not bool(large.feasible)
    assert "fits_memory" in large.breaks.item()
    best = pg.best(one, "parallelism", minimize="cost_per_million_tokens")
    assert best.cost_per_million_tokens.sel(model="llama-3.1-8b").item() > 0
    with pytest.raises(pg.PerfgridError, match="is a choice or a flag"):
        pg.optimize(one, "fits_memory", over={"hbm_bandwidth": [2e12, 4e12]}, choose="parallelism")


def test_a_layout_that_breaks_a_limit_by_little_hides_none_that_keeps_it():
    """Against every layout evaluated at the bound at which each is fastest; a front along a free quantity."""
    content = TRAINED | {
        "outputs": ["step_time", "memory_per_device"],
        "axes": TRAINED["axes"]
        | {"model": ["llama-2-7b"], "parallelism": {"devices": [16], "tp": [1, 2, 4], "pp": [1, 2]}},
    }
    every = pg.evaluate(pg.Study.make(**content, overrides={"hbm_bandwidth": 4e12}), "float64")
    one, over = pg.Study.make(**content), {"hbm_bandwidth": [1e12, 4e12]}
    for memory in np.sort(every.memory_per_device.values.ravel())[1:4] * 0.99:
        kept = every.step_time.where(every.memory_per_device < memory).min().item()
        found = pg.optimize(
            one, "step_time", over=over, choose="parallelism", starts=2, subject_to=f"memory_per_device < {memory} byte"
        )
        assert found.objective.item() == pytest.approx(kept, rel=1e-6)
    line = pg.optimize(one, "step_time", over=over, choose="parallelism", starts=1, pareto="hbm_bandwidth", points=3)
    np.testing.assert_allclose(line.hbm_bandwidth, [1e12, 2e12, 4e12], rtol=1e-3)
    assert "hbm_bandwidth < limit" in line.constraint.values


def test_the_command_prints_the_design_and_what_presses(tmp_path):
    path = tmp_path / "dies.toml"
    path.write_text(
        'workload = "manufacturing"\noutputs = ["die_cost", "die_yield"]\n'
        '[axes]\npackage = ["cowos-s"]\nnode = ["n7", "n5"]\n'
        '[workload_parameters]\nmodule_area = "8 cm^2"\nmemory_in_package = "none"\n[overrides]\ndies = 1\n'
        '[optimize]\nmaximize = "die_yield"\nsubject_to = ["die_cost > 30 USD"]\n'
        '[optimize.over]\nmodule_area = ["50 mm^2", "800 mm^2"]\n'
    )
    command = [sys.executable, "-m", "perfgrid", "optimize", str(path)]
    shown = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout)
    assert [d["at"]["node"] for d in shown["designs"]] == ["n7", "n5"]
    for design in shown["designs"]:
        assert design["outputs"]["die_cost"] == pytest.approx(30, rel=1e-4)
        assert design["pressing"]["die_cost > 30 USD"] > 0
    table = CliRunner().invoke(app, ["optimize", str(path), "-o", str(tmp_path / "dies.nc")])
    assert "model evaluations" in table.stdout
    with xr.open_dataset(tmp_path / "dies.nc") as saved:
        np.testing.assert_allclose(saved.module_area, [d["knobs"]["module_area"] for d in shown["designs"]], rtol=1e-6)
    assert "die_cost > 30 USD" in table.stdout
    header, *designs = table.stdout.splitlines()[1:4]
    assert re.split(r"  +", header)[:4] == ["node", "die yield", "die cost [$]", "module area [mm2]"]
    for node, line in zip(("n7", "n5"), designs, strict=True):
        assert re.match(rf"{node} +\S+ +30 ", line)
    front = CliRunner().invoke(
        app,
        [
            "optimize",
            str(path),
            "--pareto",
            "die_cost",
            "--points",
            "2",
            "--subject-to",
            "module_area > 1 cm^2",
            "--set",
            'axes.node=["n7"]',
        ],
    )
    assert re.search(r"^point +limit of die cost +die yield +die cost", front.stdout, re.MULTILINE)
    assert re.search(r"^point +what presses +elasticity", front.stdout, re.MULTILINE)
    wrong = CliRunner().invoke(app, ["optimize", str(path), "--over", "module_area=1"])
    assert isinstance(wrong.exception, pg.PerfgridError)
    assert "name=low:high" in str(wrong.exception)


@pytest.mark.parametrize("name", ["parts in sequence", "parts that overlap"])
def test_slopes_beat_grids_and_evolution(name):
    row = compared(name)
    assert row["optimum"] <= row["grid"] * 1.01
    assert row["optimum"] < row["evolution"]
    assert row["kkt"] < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in (*STUDIES, *FRESH) if "," in n])
def test_slopes_beat_grids_and_evolution_on_whole_models(name):
    row = compared(name)
    assert row["optimum"] <= row["grid"] * 1.01
    assert row["optimum"] < row["evolution"]
    assert row["kkt"] < 1e-3
