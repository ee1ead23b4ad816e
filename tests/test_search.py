"""The best designs of a study without its grid, against the best of the whole result; the command."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import perfgrid as pg
from perfgrid.analysis import best_of_study as search
from perfgrid.analysis.explanation.text import explanation_lines
from perfgrid.formulas import INNER
from perfgrid.printing import best_table
from tests import small
from tests.test_bad_input import run

STUDY = """
title = "Small"
outputs = ["step_time", "memory_per_device", "bubble_fraction", "layer_phase_time"]
[axes]
model = ["llama-2-7b", "llama-2-13b"]
device = ["a100-sxm-80gb", "h100-sxm-80gb"]
topology = ["rail-optimized"]
microbatch = [1, 2, 64]
recompute = ["none", "full"]
[axes.parallelism]
devices = [16, 64]
tp = [1, 2, 4]
pp = [1, 2, 4]
[axes.hbm_bandwidth]
scale = [0.5, 1, 2]
[workload_parameters]
global_batch = 64
sequence_length = 2048
[best]
over = ["parallelism", "microbatch", "recompute"]
minimize = "step_time"
at = { hbm_bandwidth = 1 }
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("search") / "small.toml"
    path.write_text(STUDY, encoding="utf-8")
    return pg.load_study(path)


@pytest.fixture(scope="module")
def result(study):
    return pg.evaluate(study)


@pytest.mark.parametrize(
    "asked",
    [
        {"over": ["parallelism", "microbatch", "recompute"], "minimize": "step_time", "at": {"hbm_bandwidth": 1}},
        {"over": ["parallelism", "hbm_bandwidth"], "maximize": "bubble_fraction"},
        {"over": ["model", "device"], "minimize": "memory_per_device", "at": {"recompute": "full"}},
        {"over": [], "minimize": "step_time"},
    ],
)
def test_the_best_of_a_study_is_the_best_of_its_result(study, result, asked):
    found, expected = pg.best(study, **asked), pg.best(result, **asked)
    objective = asked.get("minimize") or asked.get("maximize")
    assert set(expected[objective].dims) <= set(found[objective].dims)
    exists = expected.found.broadcast_like(found.found).transpose(*found.found.dims)
    np.testing.assert_array_equal(found.found, exists)
    values = expected[objective].broadcast_like(found[objective]).transpose(*found[objective].dims)
    np.testing.assert_allclose(found[objective], values, rtol=2e-6)
    for name in ("step_time", "memory_per_device", "layer_phase_time"):
        assert found[name].attrs["units"] == expected[name].attrs["units"]
    if asked["over"]:  # the labels are those of a design with these outputs
        at = {d: found[d].values[0] for d in found.found.dims if d != "devices"} | asked.get("at", {})
        row = found.sel({d: v for d, v in at.items() if d in found.dims})
        row = row.isel(devices=0) if "devices" in row.dims else row
        if bool(row.found):
            at |= {axis: row[axis].item() for axis in asked["over"]}
            memory = result["memory_per_device"]
            memory = memory.sel({d: v for d, v in at.items() if d in memory.dims})
            assert float(memory) == pytest.approx(float(row.memory_per_device), rel=2e-6)


def test_outputs_of_many_groups_are_evaluated_in_parts(study, monkeypatch):
    asked = {"over": ["parallelism", "microbatch"], "minimize": "step_time"}
    found = pg.best(study, **asked)
    monkeypatch.setattr(search, "POINTS_AT_ONCE", 5)
    in_parts = pg.best(study, **asked)
    assert int(found.found.sum()) > 2 * 5
    xr.testing.assert_allclose(in_parts, found, rtol=1e-6)
    assert in_parts.attrs | {"history": ""} == found.attrs | {"history": ""}
    assert {n: v.attrs for n, v in in_parts.variables.items()} == {n: v.attrs for n, v in found.variables.items()}


def test_a_winner_is_explained_like_any_other_design_of_the_study(study, result):
    found = pg.best(study, over=["parallelism", "microbatch", "recompute"], minimize="step_time", at={})
    one = found.isel(model=1, device=0, hbm_bandwidth=2, topology=0, devices=-1)
    assert bool(one.found)
    axes = ("model", "device", "topology", "parallelism", "microbatch", "recompute", "hbm_bandwidth")
    at = {a: one[a].item() for a in axes}
    lines, same = (list(explanation_lines(pg.explain(r, "step_time", at), INNER)) for r in (found, result))
    assert len(lines) > 100
    assert lines == same
    group = {d: one[d].item() for d in map(str, found.found.dims)}  # what was chosen along follows
    assert list(explanation_lines(pg.explain(found, "step_time", group), INNER)) == lines
    least = found.sel({k: v for k, v in group.items() if k != "model"}).step_time.min()  # along what is left open
    told = pg.explain(found, "step_time", {k: v for k, v in group.items() if k != "model"})
    assert float(told.derivation.value) == pytest.approx(least.item(), rel=1e-5)


def test_several_best_designs(study, result):
    at = {"hbm_bandwidth": 1}
    found = pg.best(study, count=5)
    possible = result.step_time.where(pg.feasible(result)).sel(at)
    for size in (16, 64):
        rows = possible.isel(parallelism=result.devices.values == size)
        for model in study.space.axes[0].labels:
            group = {"model": model, "device": "h100-sxm-80gb", "topology": "rail-optimized"}
            values = np.sort(rows.sel(group).values.reshape(-1))
            best = found.step_time.sel(devices=size, **group)
            np.testing.assert_allclose(best, values[:5], rtol=2e-6)
    assert found["rank"].values.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"over": "parallelism"}, "either minimize or maximize"),
        ({"over": "layout", "minimize": "step_time"}, "no axis 'layout'"),
        ({"over": "parallelism", "minimize": "step_tim"}, "did you mean 'step_time'"),
        ({"over": "parallelism", "minimize": "layer_phase_time"}, "several values"),
        ({"over": "model", "minimize": "step_time", "at": {"model": "llama-2-7b"}}, "at once"),
        ({"over": "model", "minimize": "step_time", "count": 0}, "1 or more"),
    ],
)
def test_bad_questions_are_refused(study, asked, why):
    if "minimize" not in asked:
        asked["maximize"] = asked["minimize"] = "step_time"
    with pytest.raises(pg.PerfgridError, match=why):
        pg.best(study, **asked)


def test_the_command(study, monkeypatch, capsys, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(STUDY, encoding="utf-8")
    status, out, _ = run(monkeypatch, capsys, "best", path, "--top", "2", "--json")
    assert status == 0
    data = json.loads(out)
    assert data["points"] == study.space.points
    best = pg.best(study, count=2)
    assert len(data["best"]) == best.found.size
    first = data["best"][0]
    assert first["group"]["rank"] == 1
    assert first["outputs"]["step_time"] == pytest.approx(float(best.step_time.values.reshape(-1)[0]), rel=1e-6)
    _, out, _ = run(monkeypatch, capsys, "best", path, "--over", "parallelism,microbatch", "--minimize", "step_time")
    assert "points searched in" in out
    assert "constraints excluded 0 of them" in out
    status, out, err = run(monkeypatch, capsys, "best", path, "--minimize", "step_tim")
    assert (status, out) == (2, "")
    assert "did you mean 'step_time'" in err


def test_a_table_of_many_groups_ends(monkeypatch, capsys, tmp_path):
    """The first rows are printed with the number of the others; the file holds all."""
    monkeypatch.setattr(best_table, "MOST_ROWS", 3)
    path = tmp_path / "small.toml"
    path.write_text(STUDY, encoding="utf-8")
    over = ("--over", "parallelism,microbatch", "--minimize", "step_time")
    status, out, _ = run(monkeypatch, capsys, "best", path, *over, "-o", tmp_path / "b.nc")
    assert status == 0
    with pg.open_result(tmp_path / "b.nc") as kept:
        groups = kept.found.size
    assert f"and {groups - 3} rows more" in out
    _, out, _ = run(monkeypatch, capsys, "best", path, *over, "--json")
    assert len(json.loads(out)["best"]) == groups


def test_cluster_sizes_are_weighed_against_each_other_where_that_is_asked_for(study):
    """Of a study and of its result, with the size of the best among the labels."""
    way = {"minimize": "memory_per_device", "at": {"hbm_bandwidth": 1}}
    over = ["parallelism", "microbatch", "recompute", "device", "model"]
    apart = pg.best(study, over, **way)
    assert apart.sizes["devices"] == 2
    least = int(apart.memory_per_device.squeeze().values.argmin())
    for found in (
        pg.best(study, [*over, "devices"], **way),
        pg.best(pg.evaluate(study), [*over, "devices"], **way),
    ):
        assert float(found.memory_per_device.squeeze()) == float(apart.memory_per_device.min())
        assert int(found.devices.squeeze()) == int(apart.devices[least])


def test_a_device_without_a_price_is_not_the_cheapest():
    """Constraints about an evaluated quantity hold in a search as they do in a result."""
    axes = {**small.CONTENT["axes"], "device": ["h100-sxm-80gb", "a100-pcie-80gb"], "topology": ["rail-optimized"]}
    study = small.study(
        axes=axes, outputs=["step_time", "cluster_cost"], catalog=Path(__file__).with_name("unpriced.toml")
    )
    over = ["device", "parallelism", "microbatch", "recompute"]
    asked = {"over": over, "minimize": "cluster_cost", "at": {"hbm_bandwidth": 1, "scale_up_bandwidth": 1}}
    found, expected = pg.best(study, **asked), pg.best(pg.evaluate(study), **asked)
    np.testing.assert_allclose(found.cluster_cost, expected.cluster_cost.broadcast_like(found.cluster_cost), rtol=2e-6)
    assert set(found.device.values.reshape(-1)) == {"h100-sxm-80gb"}
