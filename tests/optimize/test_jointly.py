"""Labels that all workloads share, quantiles over samples, limits that are moved, optima as study files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from typer.testing import CliRunner

import perfgrid as pg
from perfgrid.cli.main import app
from perfgrid.engine.autodiff.dual import Dual
from perfgrid.optimizer.design_file import design_studies
from perfgrid.optimizer.optimize import problem_of
from perfgrid.optimizer.quantile import quantile


def device(workloads: list[dict[str, Any]] | None = None, **content: Any) -> pg.Study:
    """Dies of two nodes in two packages, as one or four of them."""
    given: dict[str, Any] = {
        "workload": "manufacturing",
        "outputs": ["manufacturing_cost", "silicon_cost"],
        "axes": {"node": ["n7", "n3"], "package": ["cowos-s", "organic"]},
        "workload_parameters": {"module_area": "800 mm^2", "memory_in_package": "none"},
        "overrides": {"dies": 1},
        "formulas": [price_of_area],
    }
    return pg.Study.make(**(given | content), workloads=workloads or [])


@pg.formula(unit="USD", source="feng2022actuary")
def price_of_area(manufacturing_cost, module_area, wafer_price):
    """What a square metre costs in devices that each need as much as a hundredth of a wafer more."""
    return (manufacturing_cost + wafer_price / 100) * 1e-4 / module_area


TWO = [{"name": "one"}, {"name": "four", "overrides": {"dies": 4}, "weight": 2.0}]
AREA = {"module_area": ["100 mm^2", "800 mm^2"]}


def test_all_workloads_take_the_same_best_label():
    """The best of the optima that every label has: each found alone."""
    alone = pg.optimize(device(TWO), "price_of_area", over=AREA, choose=[], starts=2)
    shared = pg.optimize(device(TWO), "price_of_area", over=AREA, choose=[], starts=2, choose_jointly=["package"])
    assert shared.objective.dims == ("node",)
    np.testing.assert_allclose(shared.objective, alone.objective.min("package"), rtol=1e-6)
    best = alone.package.values[alone.objective.argmin("package").values]
    assert shared.package.values.tolist() == best.tolist()
    assert shared.by_label.dims == ("node", "tried_package")
    np.testing.assert_allclose(shared.by_label, alone.objective.transpose("node", "package"), rtol=1e-2)
    both = pg.optimize(device(TWO), "price_of_area", over=AREA, choose=[], starts=2, choose_jointly=["node", "package"])
    assert both.objective.item() == pytest.approx(float(alone.objective.min()), rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 1e-200, -3.0])
def test_a_quantile_of_samples_that_are_all_alike(value):
    alike = np.full((2, 8), value)
    assert quantile(alike, 0.9, smooth=True) == pytest.approx(quantile(alike, 0.9), rel=1e-6, abs=1e-12)


def test_a_quantile_is_smooth_and_near_the_exact_one():
    drawn = np.random.default_rng(0).lognormal(0.0, 0.3, (3, 64))
    slopes = np.random.default_rng(1).normal(size=(2, 3, 64))
    exact, smooth = quantile(drawn, 0.9), quantile(Dual(drawn, slopes), 0.9, smooth=True)
    np.testing.assert_allclose(exact, np.quantile(drawn, 0.9, axis=1))
    np.testing.assert_allclose(smooth.value, exact, rtol=0.05)
    for direction in range(2):
        ends = [quantile(drawn + h * slopes[direction], 0.9, smooth=True) for h in (1e-6, -1e-6)]
        np.testing.assert_allclose(smooth.slope[direction], (ends[0] - ends[1]) / 2e-6, rtol=1e-5)
    same = quantile(Dual(np.full((1, 8), 3.0), np.ones((1, 1, 8))), 0.9, smooth=True)
    assert same.value.item() == pytest.approx(3.0, rel=1e-6)
    assert same.slope.item() == pytest.approx(1.0, rel=1e-6)


SAMPLES = {"num": 64, "seed": 0, "of": ["wafer_price", "defect_density"]}


def test_a_robust_optimum_is_that_of_the_quantile():
    """Against a search of the quantile of evaluated samples; a limit is kept in nine of ten samples."""
    axes = {"node": ["n3"], "package": ["cowos-s"], "sample": SAMPLES}
    study = device(axes=axes, outputs=["price_of_area", "silicon_cost"])

    def bad_case(area: float) -> float:
        parameters = {"module_area": area, "memory_in_package": "none"}
        one = pg.evaluate(device(axes=axes, outputs=["price_of_area"], workload_parameters=parameters), "float64")
        return float(one.price_of_area.quantile(0.9))

    best = minimize_scalar(bad_case, bounds=(1e-4, 8e-4), method="bounded", options={"xatol": 1e-7})
    found = pg.optimize(study, "price_of_area", over=AREA, choose=[], quantile=0.9, starts=2)
    assert found.objective.item() == pytest.approx(best.fun, rel=2e-3)
    assert found.objective.item() == pytest.approx(bad_case(found.module_area.item()), rel=1e-9)
    assert found.kkt_residual.item() < 1e-4
    nominal = pg.optimize(device(axes={n: axes[n] for n in ("node", "package")}), "price_of_area", over=AREA, choose=[])
    assert found.objective.item() <= bad_case(nominal.module_area.item())
    limited = pg.optimize(
        study, "price_of_area", over=AREA, choose=[], quantile=0.9, subject_to="silicon_cost < 60 USD"
    )
    parameters = {"module_area": limited.module_area.item(), "memory_in_package": "none"}
    drawn = pg.evaluate(device(axes=axes, outputs=["silicon_cost"], workload_parameters=parameters), "float64")
    assert float(drawn.silicon_cost.quantile(0.9)) == pytest.approx(60, rel=1e-4)


def test_samples_are_the_same_draws_in_all_workloads():
    entries = [{"name": "one"}, {"name": "four", "outputs": ["silicon_cost"], "overrides": {"dies": 4}}]
    axes = {"node": ["n3"], "package": ["cowos-s"], "sample": {"num": 16, "seed": 3}}
    problem = problem_of(device(entries, axes=axes), "silicon_cost", None, AREA, None, [], quantile=0.9)
    one, four = ({a.name: a for a in p.study.space.axes}["sample"].scales for p in problem.parts)
    common = set(one) & set(four)
    assert common
    for name in common:
        np.testing.assert_array_equal(one[name], four[name])


def test_a_moved_limit_changes_the_optimum_as_its_price_says():
    found = pg.optimize(
        device(TWO, axes={"node": ["n3"], "package": ["cowos-s"]}),
        "price_of_area",
        over=AREA,
        choose=[],
        subject_to=["one.silicon_cost < 45 USD"],
        loosen=(-0.01, 0.01),
    )
    tight, loose = found.loosened.sel(constraint="one: silicon_cost < 45 USD").values
    price = found.shadow_price.sel(constraint="one: silicon_cost < 45 USD").item()
    assert price < -0.01
    assert (loose - tight) / 0.02 == pytest.approx(price, rel=0.02)


def test_a_limit_on_a_free_quantity_holds_once():
    found = pg.optimize(
        device(TWO), "price_of_area", over=AREA, choose=[], subject_to="module_area < 150 mm^2", starts=1
    )
    assert found.constraint.values.tolist().count("module_area < 150 mm^2") == 1


def test_an_optimum_is_saved_as_the_studies_that_it_is(tmp_path):
    study = device(TWO, outputs=["price_of_area"])
    found = pg.optimize(study, "price_of_area", over=AREA, choose=[], starts=1, choose_jointly=["package"])
    contents = design_studies(study, found)
    assert list(contents) == ["one-n7", "four-n7", "one-n3", "four-n3"]
    for node in ("n7", "n3"):
        costs = [
            pg.evaluate(pg.Study.make(**contents[f"{name}-{node}"], formulas=[price_of_area])).price_of_area.item()
            for name in ("one", "four")
        ]
        assert found.objective.sel(node=node).item() == pytest.approx(costs[0] + 2 * costs[1], rel=1e-9)
    path = tmp_path / "dies.toml"
    path.write_text(
        'workload = "manufacturing"\noutputs = ["die_cost", "die_yield"]\n[axes]\nnode = ["n7", "n5"]\n'
        'package = ["cowos-s", "organic"]\n[workload_parameters]\nmodule_area = "8 cm^2"\nmemory_in_package = "none"\n'
        '[overrides]\ndies = 1\n[optimize]\nmaximize = "die_yield"\nsubject_to = ["die_cost > 30 USD"]\n'
        'choose_jointly = "package"\n[optimize.over]\nmodule_area = ["50 mm^2", "800 mm^2"]\n'
    )
    found = CliRunner().invoke(
        app, ["optimize", str(path), "--save", str(tmp_path / "best.toml"), "--loosen", "0.01", "--starts", "1"]
    )
    assert found.exit_code == 0, found.output
    assert "when one limit is loosened" in found.output
    assert "package" in found.output
    again = pg.evaluate(pg.load_study(tmp_path / "best-n5.toml"))
    assert again.die_cost.item() == pytest.approx(30, rel=1e-4)
    wrong = CliRunner().invoke(app, ["optimize", str(path), "--loosen", "much"])
    assert isinstance(wrong.exception, pg.PerfgridError)


REFUSED = [
    ({"choose_jointly": ["packgae"]}, "choose_jointly names 'packgae', which is no axis of it; did you mean 'package'"),
    ({"choose_jointly": ["package"], "choose": ["package"]}, "stands in choose and in choose_jointly"),
    ({"quantile": 0.9}, "a quantile is taken over samples; state .axes.sample."),
    ({"quantile": 1.5}, "the quantile must lie between 0 and 1, found 1.5"),
    ({"loosen": [-2.0], "subject_to": "silicon_cost < 1 kUSD"}, "shares above -1"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_cannot_be_chosen_jointly_is_reported(options, message):
    with pytest.raises(pg.PerfgridError, match=message):
        pg.optimize(device(), "silicon_cost", over=AREA, starts=1, **({"choose": []} | options))
