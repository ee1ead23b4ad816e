"""Pareto fronts and distributions of a study against those of its whole result; the commands."""

import json
from typing import Any, cast

import numpy as np
import pytest
import xarray as xr

import perfgrid as pg
from tests import small
from tests.test_bad_input import run
from tests.test_search import STUDY

pytestmark = pytest.mark.optimised


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("reduce") / "small.toml"
    path.write_text(STUDY, encoding="utf-8")
    return pg.load_study(path)


@pytest.fixture(scope="module")
def result(study):
    return pg.evaluate(study)


@pytest.mark.parametrize(
    "over", [["parallelism", "microbatch", "recompute"], ["device", "hbm_bandwidth", "parallelism"]]
)
def test_the_pareto_front_of_a_study_is_that_of_its_result(study, result, over):
    expected = pg.pareto(result, ["step_time", "memory_per_device"], over=over)
    found = pg.pareto(study, ["step_time", "memory_per_device"], over=over, tile_points=500)
    axes = [a.name for a in study.space.axes]

    def vectors(edge):
        groups = [a for a in axes if a not in over]
        labels = zip(*(edge[a].values.tolist() for a in groups), strict=True)
        values = zip(edge.step_time.values, edge.memory_per_device.values, strict=True)
        return sorted(
            (*label, *(float(f"{v:.4g}") for v in value)) for label, value in zip(labels, values, strict=True)
        )

    assert vectors(found) == vectors(expected)
    row = found.isel(design=0)
    at = {a: row[a].item() for a in axes}
    assert float(result.step_time.sel(at)) == pytest.approx(float(row.step_time), rel=2e-6)
    assert bool(pg.feasible(result).sel({a: v for a, v in at.items() if a in pg.feasible(result).dims}))
    assert found.step_time.attrs["units"] == "s"
    assert int(row.devices) in (16, 64)


def test_three_objectives_and_quantities_that_are_no_outputs(study, result):
    found = pg.pareto(study, ["step_time", "memory_per_device"], ["model_flops_utilization"], at={"hbm_bandwidth": 1})
    assert {"step_time", "memory_per_device", "model_flops_utilization"} <= set(found.data_vars)
    scores = np.stack([found.step_time, found.memory_per_device, -found.model_flops_utilization], axis=1)
    for i, design in enumerate(scores):
        assert not np.delete((scores <= design).all(axis=1), i).any()
    best = float(result.step_time.where(pg.feasible(result)).sel(hbm_bandwidth=1).min())
    assert scores[:, 0].min() == pytest.approx(best, rel=2e-6)
    assert found.hbm_bandwidth.item() == 1


def test_quantiles_and_histograms_are_those_of_the_result(study, result):
    over = ["parallelism", "microbatch", "recompute"]
    found = pg.distribution(study, "step_time", over, levels=[0, 0.3, 1], bins=4, tile_points=500)
    possible = result.step_time.where(pg.feasible(result))
    groups = [d for d in possible.dims if d not in over]
    flat = possible.transpose(*groups, *over).values.reshape(*(possible.sizes[d] for d in groups), -1)
    np.testing.assert_array_equal(found.designs.transpose(*groups), np.isfinite(flat).sum(axis=-1))
    expected = np.nanquantile(flat, [0, 0.3, 1], axis=-1, method="inverted_cdf")
    np.testing.assert_allclose(found.step_time.transpose("quantile", *groups), expected, rtol=2e-6)
    np.testing.assert_array_equal(found.histogram.sum("bin"), found.designs)
    assert float(found.bin_from[0]) == pytest.approx(np.nanmin(flat), rel=2e-6)
    at = pg.distribution(study, "step_time", over, {"model": "llama-2-7b"}, levels=[0.3])
    xr.testing.assert_allclose(at.step_time.isel(quantile=0), found.step_time.sel(model="llama-2-7b", quantile=0.3))


def test_points_that_a_quantity_does_not_tell_apart_count_each(study, result):
    """Parameters do not depend on most axes: quantiles weigh models by their feasible designs."""
    found = pg.distribution(study, "memory_per_device", levels=[0.1, 0.5, 0.9])
    every = result.memory_per_device.where(pg.feasible(result)).broadcast_like(result.step_time)
    expected = np.nanquantile(every.values, [0.1, 0.5, 0.9], method="inverted_cdf")
    np.testing.assert_allclose(found.memory_per_device, expected, rtol=2e-6)
    assert int(found.designs) == int(np.isfinite(every).sum())


def test_numbers_of_numpy_are_numbers(study):
    found = pg.distribution(study, "step_time", levels=np.linspace(0, 1, 3), bins=cast(Any, np.int64(4)))
    assert found.sizes["quantile"] == 3
    assert found.sizes["bin"] == 4
    assert pg.best(study, ["parallelism"], minimize="step_time", count=cast(Any, np.int64(2))).sizes["rank"] == 2


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda s: pg.pareto(s, ["step_time"]), "two or more"),
        (lambda s: pg.pareto(s, ["step_time"], ["step_time"]), "two or more"),
        (lambda s: pg.pareto(s, ["step_time", "memory"]), "memory"),
        (lambda s: pg.pareto(s, ["step_time", "bubble_fraction"], over="layout"), "no axis 'layout'"),
        (lambda s: pg.pareto(s, ["step_time", "layer_phase_time"]), "several values"),
        (lambda s: pg.distribution(s, "step_time", levels=[2]), "between 0 and 1"),
        (lambda s: pg.distribution(s, "step_time", bins=[3, 2]), "increasing edges"),
        (lambda s: pg.distribution(s, "step_time", bins=[0, float("nan"), 2]), "increasing edges"),
        (lambda s: pg.distribution(s, "step_tim"), "step_tim"),
        (lambda s: pg.distribution(s, "step_time", at={"devices": 64}), "column of 'parallelism': where = 'devices =="),
    ],
)
def test_bad_questions_are_refused(study, ask, why):
    with pytest.raises(pg.PerfgridError, match=why):
        ask(study)


def test_without_feasible_designs_the_front_is_empty():
    study = small.study(axes={**small.CONTENT["axes"], "microbatch": [5]})  # divides no batch
    found = pg.pareto(study, ["step_time", "memory_per_device"], over=["parallelism"])
    assert found.sizes["design"] == 0
    none = pg.distribution(study, "step_time")
    assert int(none.designs) == 0
    assert np.isnan(none.step_time).all()
    with pytest.raises(pg.PerfgridError, match="no design is feasible"):
        pg.distribution(study, "step_time", bins=3)


def test_the_commands(study, result, tmp_path, monkeypatch, capsys):
    path = tmp_path / "small.toml"
    path.write_text(STUDY, encoding="utf-8")
    target = tmp_path / "edge.nc"
    command = ("best", path, "--pareto", "step_time,memory_per_device,model_flops_utilization")
    status, out, err = run(
        monkeypatch, capsys, *command, "--maximize", "model_flops_utilization", "--json", "-o", target
    )
    assert status == 0, err
    data = json.loads(out)
    with xr.open_dataset(target) as edge:
        assert edge.sizes["design"] == len(data["designs"])
        assert data["designs"][0]["objectives"]["step_time"] == pytest.approx(float(edge.step_time[0]))
    status, out, _ = run(monkeypatch, capsys, "best", path, "--pareto", "step_time,memory_per_device")
    assert status == 0
    assert "Pareto front of" in out
    status, out, err = run(monkeypatch, capsys, *command, "--maximize", "step_tim")
    assert (status, out) == (2, "")
    assert "did you mean 'step_time'" in err
    assert run(monkeypatch, capsys, *command, "--top", "2")[0] == 2
    status, out, _ = run(
        monkeypatch,
        capsys,
        "distribution",
        path,
        "--of",
        "step_time",
        "--over",
        "parallelism,microbatch,recompute,hbm_bandwidth",
        "--bins",
        "3",
        "--log",
    )
    assert status == 0
    assert "llama-2-13b" in out
    status, out, _ = run(monkeypatch, capsys, "distribution", path, "--of", "step_time", "--quantiles", "0.5", "--json")
    data = json.loads(out)
    assert status == 0
    assert data["groups"][0]["designs"] == int(pg.feasible(result).broadcast_like(result.step_time).sum())
    assert run(monkeypatch, capsys, "distribution", path, "--of", "step_time", "--quantiles", "half")[0] == 2
