"""Feasibility per output: asking for more outputs takes nothing from others; what forbids the designs of a group."""

import json
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import xarray as xr

import perfgrid as pg
from perfgrid.engine.grid.dataset import CONCERNING, constraints_of
from perfgrid.engine.reductions import preselection
from perfgrid.results import feasibility
from perfgrid.results.feasibility import violations
from perfgrid.results.store.verify import Opened, verify
from tests import small
from tests.test_bad_input import run

OUTPUTS = ["step_time", "memory_per_device", "cost_per_million_tokens", "cluster_cost", "die_cost"]
UNPRICED = Path(__file__).with_name("unpriced.toml")
DEVICES = ["h100-sxm-80gb", "mi325x", "b300"]  # the file states the last two without a price
TEXT = f"""
title = "Priced or not"
catalog = ["{UNPRICED.as_posix()}"]
outputs = ["step_time", "cost_per_million_tokens"]
[axes]
model = ["llama-2-7b", "llama-3.1-405b"]
device = ["h100-sxm-80gb", "mi325x", "b300"]
topology = ["rail-optimized"]
recompute = ["selective"]
microbatch = [1, 2]
[axes.parallelism]
devices = [8, 64]
tp = [1, 2, 4, 8]
pp = [1, 2, 4]
[workload_parameters]
global_batch = 64
sequence_length = 4096
[best]
over = ["parallelism", "microbatch"]
minimize = "step_time"
"""
PRICE, MEMORY = "device_has_a_price", "fits_memory"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def axes():
    return {**small.CONTENT["axes"], "device": DEVICES, "model": ["llama-2-7b"], "microbatch": [1]}


@pytest.fixture(scope="module")
def result(axes):
    return pg.evaluate(small.study(axes=axes, outputs=OUTPUTS, catalog=[UNPRICED]))


@pytest.mark.parametrize("asked", [[name] for name in OUTPUTS] + [["cluster_cost", "step_time"], OUTPUTS[3:]])
def test_asking_for_more_outputs_takes_nothing_from_others(result, axes, asked):
    """Values, constraints and feasibility of each output, whatever else is asked for."""
    fewer = pg.evaluate(small.study(axes=axes, outputs=asked, catalog=[UNPRICED]))
    for name in asked:
        np.testing.assert_array_equal(result[name], fewer[name])
        assert constraints_of(result, name) == constraints_of(fewer, name)
        xr.testing.assert_equal(pg.feasible(result, of=name), pg.feasible(fewer, of=name))
    if len(asked) == 1:
        xr.testing.assert_equal(pg.feasible(result, of=asked), pg.feasible(fewer))


def test_a_price_concerns_costs(result):
    assert PRICE in result.cluster_cost.attrs[CONCERNING].split()
    assert PRICE not in result.step_time.attrs[CONCERNING].split()
    assert MEMORY in result.cluster_cost.attrs[CONCERNING].split()  # a design that does not exist costs nothing
    possible = pg.feasible(result, of="step_time")
    assert possible.sel(device="b300").any()
    assert not pg.feasible(result, of="cluster_cost").sel(device="b300").any()
    assert not pg.feasible(result).sel(device="b300").any()


def test_files_keep_what_concerns_what(axes, tmp_path):
    """netCDF, a store that is verified, a factored result; one with more outputs differs in these alone."""
    study = small.study(axes=axes, outputs=["step_time", "cluster_cost"])
    result = pg.evaluate(study)
    pg.save(result, tmp_path / "r.nc")
    pg.stream(study, tmp_path / "r.zarr")
    pg.save(study, tmp_path / "r.pgf")
    for name in ("r.nc", "r.zarr", "r.pgf"):
        with pg.open_result(tmp_path / name) as kept:
            for of in (None, "step_time", "cluster_cost"):
                expected = pg.feasible(result, of=of)
                xr.testing.assert_equal(pg.feasible(kept, of=of).transpose(*expected.dims), expected)
    found = verify(tmp_path / "r.zarr")
    assert found.problems == []
    for name in ("step_time", "cluster_cost"):
        kept = result[name].where(pg.feasible(result, of=name))
        assert found.ranges[name] == pytest.approx((float(kept.min()), float(kept.max())))
    alone = pg.diff(pg.evaluate(small.study(axes=axes, outputs=["step_time"])), result)
    assert not any(variable.differing for variable in alone.variables)
    assert "cluster_cost" in alone.only_b
    assert (alone.feasible_only_a, alone.feasible_only_b) == (0, 0)


def test_the_best_by_one_output_is_that_of_a_study_of_it_alone(path):
    both, alone = pg.load_study(path), pg.load_study(path, ['outputs=["step_time"]'])
    more, fewer = pg.best(both), pg.best(alone)
    xr.testing.assert_equal(more.step_time, fewer.step_time)
    np.testing.assert_array_equal(more.parallelism, fewer.parallelism)
    dear = more.device != "h100-sxm-80gb"
    assert more.cost_per_million_tokens.where(dear & more.found, 0).isnull().sum() == (dear & more.found).sum()
    assert (more.cost_per_million_tokens.where(~dear & more.found, 1) > 0).all()
    assert not more[PRICE].where(dear & more.found, 0).any()
    of_result = pg.best(pg.evaluate(both), ["parallelism", "microbatch"], minimize="step_time")
    for name in ("step_time", "cost_per_million_tokens"):
        expected = of_result[name].broadcast_like(more[name]).transpose(*more[name].dims)
        np.testing.assert_allclose(more[name], expected, rtol=2e-6)


def test_pareto_fronts_and_distributions_heed_their_objectives(path):
    study = pg.load_study(path)
    times = pg.distribution(study, "step_time", over=["parallelism", "microbatch"])
    costs = pg.distribution(study, "cost_per_million_tokens", over=["parallelism", "microbatch"])
    assert int(times.designs.sel(model="llama-2-7b", device="b300").sum()) > 0
    assert int(costs.designs.sel(device="b300").sum()) == 0
    front = pg.pareto(study, ["step_time", "memory_per_device"], over=["parallelism", "microbatch"])
    assert set(front.device.values) == set(DEVICES)
    dear = front.device != "h100-sxm-80gb"
    np.testing.assert_array_equal(front.cost_per_million_tokens.isnull(), dear)
    dearer = pg.pareto(study, ["step_time", "cost_per_million_tokens"], over=["parallelism", "microbatch"])
    assert set(dearer.device.values) == {"h100-sxm-80gb"}


def test_an_optimum_heeds_the_constraints_of_its_objective(path):
    study = pg.load_study(path, ['axes.device=["mi325x"]', 'axes.model=["llama-2-7b"]', "axes.parallelism.devices=[8]"])
    asked = {"over": {"hbm_bandwidth": [4e12, 8e12]}, "choose": ["parallelism", "microbatch"], "starts": 1}
    found = pg.optimize(study, "step_time", **asked)
    assert bool(found.feasible)
    assert np.isnan(found.cost_per_million_tokens)
    assert float(found.step_time) > 0
    with pytest.raises(pg.PerfgridError, match="whatever the free quantities are, every design breaks no market"):
        pg.optimize(study, "cost_per_million_tokens", **asked)


# ---- groups without a design ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["step_time", "cost_per_million_tokens"])
@pytest.mark.parametrize("preselected", [False, True])
def test_a_group_without_a_design_tells_what_forbids_most(path, objective, preselected):
    """With and without preselection, against flags counted on the grid."""
    study = pg.load_study(path)
    asked = {"over": ["parallelism", "microbatch"], "minimize": objective}
    with mock.patch.object(preselection, "PRESELECT_FROM", 0 if preselected else 2**62):
        found = pg.best(study, **asked)
    result = pg.evaluate(study)
    expected = pg.best(result, **asked)
    assert not found.found.all()
    for row in (found.stack(group=found.found.dims)).transpose("group", ...).group.values:
        at = dict(zip(found.found.dims, row, strict=True))
        one = found.sel(at)
        if bool(one.found):
            assert (one.forbidden_by.item(), int(one.forbids), int(one.designs)) == ("", 0, 0)
            continue
        here = result.isel(parallelism=result.devices.values == at["devices"])
        here = here.sel({k: v for k, v in at.items() if k != "devices"})
        counts = {}
        for name in constraints_of(here, objective):
            size = here.sizes["parallelism"] * here.sizes["microbatch"]
            counts[name] = int((here[name] == 0).sum()) * size // here[name].size
        assert int(one.forbids) == max(counts.values()) == counts[one.forbidden_by.item()]
        assert int(one.designs) == size
        other = expected.sel({k: v for k, v in at.items() if k in expected.found.dims})
        assert [other[n].item() for n in ("forbids", "designs")] == [int(one.forbids), size]
        assert other.forbidden_by.item() == one.forbidden_by.item()


def test_reasons_are_only_reported_where_a_group_is_without(path):
    study = pg.load_study(path, ['axes.model=["llama-2-7b"]'])
    found = pg.best(study)
    assert found.found.all()
    assert "forbidden_by" not in found.coords
    assert "forbidden_by" not in pg.best(pg.evaluate(study), ["parallelism", "microbatch"], "step_time").coords


@pytest.mark.parametrize("command", ["best", "run"])
def test_the_commands_tell_of_groups_without_a_design(path, monkeypatch, capsys, command, tmp_path):
    status, out, _ = run(monkeypatch, capsys, command, path)
    assert status == 0
    assert out.count("none (a)") == 4
    why = "weights, optimizer state and activations exceed the device memory"
    assert f"a  no feasible design; fits_memory forbids most: {why}" in out
    assert "cost_per_million_tokens: no market price of the device is known" in out
    status, out, _ = run(monkeypatch, capsys, command, path, "--json")
    rows = json.loads(out)["best"]
    without = [row for row in rows if not row["feasible"]]
    assert [(r["constraint"], r["forbids"], r["designs"]) for r in without] == [(MEMORY, 18, 18)] * 3 + [
        (MEMORY, 24, 24)
    ]
    assert all("exceed the device memory" in row["reason"] for row in without)
    priced = [row for row in rows if row["feasible"] and row["group"]["device"] == "h100-sxm-80gb"]
    dear = [row for row in rows if row["feasible"] and row["group"]["device"] != "h100-sxm-80gb"]
    assert all(row["outputs"]["cost_per_million_tokens"] > 0 and "infeasible" not in row for row in priced)
    assert all(row["outputs"]["cost_per_million_tokens"] is None for row in dear)
    assert all("no market price" in row["infeasible"]["cost_per_million_tokens"] for row in dear)


@pytest.mark.parametrize("outputs", [["step_time", "cost_per_million_tokens"], ["die_cost", "cluster_cost"], OUTPUTS])
def test_infeasible_is_what_has_no_feasible_output(path, outputs, tmp_path):
    """In memory and as the tiles of a store count it, against the flags of each output on the whole grid."""
    study = pg.load_study(path, [f"outputs={json.dumps(outputs)}", f'best.minimize="{outputs[0]}"'])
    result = pg.evaluate(study)
    whole = xr.broadcast(*(pg.feasible(result, of=name) for name in outputs), *result.coords.values())[: len(outputs)]
    some, every = np.logical_or.reduce(whole), np.logical_and.reduce(whole)
    found = violations(result)
    each = found.points // some.size
    assert (found.infeasible, found.partly) == (each * (~some).sum(), each * (some & ~every).sum())
    assert found.partly > 0
    with mock.patch.object(feasibility, "SLICE_POINTS", 7):
        assert violations(result) == found
    assert Opened(pg.stream(study, tmp_path / "r.zarr", tile_points=40)).violations() == found


def test_a_run_tells_which_outputs_a_constraint_concerns(path, monkeypatch, capsys, tmp_path):
    for output in ((), ("-o", tmp_path / "r.zarr")):
        _, out, _ = run(monkeypatch, capsys, "run", path, *output)
        assert re.search(r"infeasible \([\d.]+%\), [\d,]+ more for some outputs only \(", out)
        assert "[device_has_a_price, of cost_per_million_tokens only]" in out
        assert "[fits_memory]" in out
    _, out, _ = run(monkeypatch, capsys, "run", path, "--set", 'outputs=["step_time"]')
    assert "infeasible (" in out
    assert "more for some" not in out
    assert "device_has_a_price" not in out


def test_ranks_that_a_group_lacks_are_left_out(path, monkeypatch, capsys):
    few = ("--set", "axes.parallelism.devices=[8]", "--top", "40")
    status, out, _ = run(monkeypatch, capsys, "best", path, *few)
    assert status == 0
    assert "no more feasible designs" not in out  # rows without a design end the list of a group
    assert "no feasible design; fits_memory forbids most" in out
    _, out, _ = run(monkeypatch, capsys, "best", path, *few, "--json")
    lacking = [row for row in json.loads(out)["best"] if not row["feasible"]]
    assert {row.get("constraint") for row in lacking} == {MEMORY}
    assert all((row["reason"] == "") == ("constraint" not in row) for row in lacking)


def test_a_comparison_tells_what_forbids_a_side(path):
    with pytest.raises(pg.PerfgridError, match=r"no feasible design for .*: fits_memory forbids 18 of 18 \(weights"):
        pg.compare(
            pg.load_study(path, ["axes.parallelism.devices=[8]"]),
            {"device": "mi325x"},
            {"device": "b300"},
            at={"model": "llama-3.1-405b"},
        )


def test_a_table_without_any_design(path, monkeypatch, capsys, tmp_path):
    never = ("--set", 'axes.model=["llama-3.1-405b"]', "--set", "axes.parallelism.devices=[8]")
    status, out, _ = run(monkeypatch, capsys, "best", path, *never, "-o", tmp_path / "b.nc")
    assert status == 0
    assert "no group has a feasible design" in out
    assert out.count("none (a)") == 3
    with pg.open_result(tmp_path / "b.nc") as kept:
        assert set(kept.forbidden_by.values.reshape(-1)) == {MEMORY}


def test_wrong_names_are_reported_together(path, monkeypatch, capsys):
    status, _, err = run(monkeypatch, capsys, "best", path, "--over", "paralelism,microbach", "--minimize", "step_time")
    assert status == 2
    assert "'paralelism'; did you mean 'parallelism'? Also: the study has no axis 'microbach'" in err
    wrong = "hbm_bandwith=1e12:2e12,hbm_capasity"
    status, _, err = run(monkeypatch, capsys, "optimize", path, "--minimize", "step_time", "--over", wrong)
    assert status == 2
    assert "'hbm_bandwith'; did you mean 'hbm_bandwidth'" in err
    assert "Also: nothing states a quantity 'hbm_capasity'; did you mean 'hbm_capacity'" in err
    with pytest.raises(pg.PerfgridError, match=r"'hbm_bandwith'.*'hbm_capasity'"):
        pg.function(pg.load_study(path), "step_time", over=["hbm_bandwith", "hbm_capasity"])


def test_limits_of_a_front_are_reported_like_other_numbers(path, monkeypatch, capsys):
    one = (
        "--set",
        'axes.device=["mi325x"]',
        "--set",
        'axes.model=["llama-2-7b"]',
        "--set",
        "axes.parallelism.devices=[8]",
    )
    asked = ("--minimize", "step_time", "--over", "hbm_bandwidth=4e12:8e12", "--choose", "parallelism,microbatch")
    more = ("--pareto", "memory_per_device", "--points", "2", "--starts", "1")
    status, out, _ = run(monkeypatch, capsys, "optimize", path, *one, *asked, *more)
    assert status == 0
    assert "limit" in out
    assert re.search(r"\d GiB ", out)
    _, out, _ = run(monkeypatch, capsys, "optimize", path, *one, *asked, "--json")
    assert json.loads(out)["designs"][0]["outputs"]["cost_per_million_tokens"] is None
