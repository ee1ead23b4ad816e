"""The benchmark study is what its page says, and plain broadcasting gives the evaluator's values."""

import json

import numpy as np
import pytest
from PIL import Image

from benchmarks import history
from benchmarks.evaluate import broadcast, counts
from benchmarks.grids import EXPONENTS, GRID, GRID_5D, GRID_SERVING, GRIDS, SERVING, full_grid_outputs, sized
from benchmarks.search import exactness
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.study.study import load_study


def test_the_benchmark_grid_is_as_large_as_asked():
    plan = load_study(GRID).plan()
    axes = {a.name: len(a) for a in plan.space.axes}
    assert axes["parallelism"] >= 512
    assert axes["hbm_bandwidth"] > 1
    assert axes["scale_up_bandwidth"] > 1
    assert len(plan.outputs) == 20
    assert len(full_grid_outputs(plan)) >= 8


def test_the_grid_of_5_d_layouts_is_what_its_file_says():
    study = load_study(GRID_5D)
    plan = study.plan()
    axes = {a.name: a for a in plan.space.axes}
    assert 10e6 <= plan.space.points <= 30e6
    for degree in ("devices", "tp", "cp", "pp", "ep", "chunks"):
        assert len(np.unique(axes["parallelism"].columns[degree])) > 1, degree
    assert len(axes["hbm_bandwidth"]) == 64
    assert len(axes["scale_up_bandwidth"]) == 4
    assert min(axes["model"].columns["experts"]) <= 1 < max(axes["model"].columns["experts"])
    assert len(plan.outputs) == 20
    assert {"exposed_ep_time", "exposed_cp_time"} <= set(full_grid_outputs(plan))


def test_the_serving_grid_is_what_its_file_says():
    """Hybrids beside an ordinary model; the grid of ordinary models is as large and evaluates a few formulas less."""
    hybrids, ordinary = (load_study(GRID_SERVING, settings).plan() for settings in SERVING.values())
    axes = {a.name: a for a in hybrids.space.axes}
    layers = axes["model"].columns["mixer_layers"]
    assert min(layers) == 0 < np.sort(layers)[1]
    for degree in ("devices", "tp", "ep", "pp"):
        assert len(np.unique(axes["parallelism"].columns[degree])) > 1, degree
    assert len(axes["batch"]) * len(axes["prompt_tokens"]) * len(axes["hbm_bandwidth"]) == 10 * 5 * 64
    assert len(hybrids.outputs) == 20
    for plan in (hybrids, ordinary):
        assert 0.95e7 < plan.space.points < 1.05e7
    assert not any("mixer_layers" in a.columns and max(a.columns["mixer_layers"]) for a in ordinary.space.axes)
    assert full_grid_outputs(hybrids) == full_grid_outputs(ordinary)
    evaluated = [sum(not q.small for q in plan.quantities.values()) for plan in (hybrids, ordinary)]
    assert 0 < evaluated[0] - evaluated[1] < 15


def test_the_picture_of_the_history_shows_its_entries():
    """Its marks are the entries' rates, and the file was drawn from them (`python -m benchmarks.history`)."""
    entries = json.loads(history.FILE.read_text(encoding="utf-8"))["history"]
    drawn = history.picture(entries)
    with Image.open(history.PICTURE) as image:
        assert image.info["Description"] == repr(drawn)
    (dense, _), (_, best_5d) = (panel.series for panel in drawn.panels)
    assert (entries[int(dense.x[0])]["dense_values"], dense.y[0]) == (2e9, 2.0)
    ranges = {
        int(x): (low * 1e6, high * 1e6) for x, low, high in zip(best_5d.x, best_5d.low, best_5d.high, strict=True)
    }
    stated = {i: entry["5d_best_points"] for i, entry in enumerate(entries) if "5d_best_points" in entry}
    assert ranges == {i: pytest.approx((min(v), max(v)) if isinstance(v, list) else (v, v)) for i, v in stated.items()}


FEW = {
    GRID: ('axes.model=["llama-2-70b"]', 'axes.device=["h100-sxm-80gb", "b200"]', "axes.parallelism.devices=[1024]"),
    GRID_5D: (
        'axes.model=["mixtral-8x22b", "deepseek-v3"]',
        'axes.device=["h200-sxm-141gb"]',
        "axes.parallelism.devices=[512]",
        "axes.parallelism.tp=[1, 4]",
        "axes.parallelism.cp=[1, 4]",
        "axes.parallelism.pp=[1, 4]",
        "axes.parallelism.ep=[1, 8]",
    ),
    GRID_SERVING: (
        'axes.model=["qwen3-next-80b-a3b", "nemotron-h-8b", "qwen3-30b-a3b"]',
        'axes.device=["h200-sxm-141gb"]',
        "axes.parallelism.devices=[4]",
        "axes.batch=[1, 64]",
        "axes.prompt_tokens=[1024, 65536]",
    ),
}


SLOW = [pytest.param(grid, marks=[pytest.mark.slow] * (grid is GRID), id=grid.stem) for grid in FEW]


@pytest.mark.parametrize("grid", SLOW)
def test_plain_broadcasting_agrees_with_the_evaluator(grid):
    bandwidths = ("axes.hbm_bandwidth.scale=[0.5, 1.0]", "axes.scale_up_bandwidth.scale=[1.0, 2.0]")
    plan = load_study(grid, (*FEW[grid], *bandwidths)).plan(small_points=100)
    evaluation = Evaluation(plan)
    evaluated, plain = evaluation.collect(), broadcast(plan)
    for name in plan.outputs:
        expected = np.broadcast_to(plain[name], plan.result_shape(name))
        np.testing.assert_allclose(evaluated[name], expected, rtol=2e-4 if "exposed" in name else 2e-5, err_msg=name)
    if grid is GRID:  # operations are counted in either precision
        counted = counts(plan, evaluation)["equations"]["on the grid"]
        assert 100 < counts(plan, Evaluation(plan, "float64"))["equations"]["on the grid"] <= counted


@pytest.mark.parametrize("grid", GRIDS)
def test_searches_are_of_the_sizes_that_they_are_called(grid):
    for exponent in EXPONENTS:
        assert 0.9 < sized(grid, exponent).space.points / 10**exponent < 1.1


@pytest.mark.parametrize("grid", GRIDS)
def test_a_search_of_a_benchmark_grid_is_exact(grid):
    few = {"dense": 'axes.model=["llama-3.1-70b"]', "5-D": 'axes.model=["mixtral-8x22b"]'}[grid]
    settings = (few, *FEW[GRIDS[grid]][2:], 'axes.device=["h200-sxm-141gb"]', "axes.hbm_bandwidth.scale=[0.5, 1.0]")
    found = exactness(load_study(GRIDS[grid], settings))
    assert found["groups"] > 0
    assert 0 < found["feasible_points"] < 1
    assert found["same_groups_feasible"]
    assert found["largest_relative_gap"] <= 1e-6
