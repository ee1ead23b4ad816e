"""Evaluate, stream, save, best, violations, explain: on real studies and their files."""

import itertools

import numpy as np
import pytest
import xarray as xr

import perfgrid as pg
from perfgrid.analysis import violations
from perfgrid.run import check_memory
from tests import small


@pytest.fixture(scope="module")
def result():
    return pg.evaluate(small.study())


def test_streaming_writes_what_evaluating_gives(result, tmp_path):
    path = pg.stream(small.study(), tmp_path / "streamed.nc", tile_points=700)
    with xr.open_dataset(path) as streamed:
        xr.testing.assert_allclose(streamed.load(), result, rtol=1e-6)
        assert set(streamed.coords) == set(result.coords)
        assert streamed.step_time.attrs["units"] == "s"
    assert [p.name for p in tmp_path.iterdir()] == ["streamed.nc"]


def test_saving_round_trips_and_protects_files(result, tmp_path):
    path = pg.save(result, tmp_path / "saved.nc")
    with xr.open_dataset(path) as back:
        xr.testing.assert_identical(back.load(), result)
    with pytest.raises(pg.PerfgridError, match="--overwrite"):
        pg.save(result, path)
    with pytest.raises(pg.PerfgridError, match="--overwrite"):
        pg.stream(small.study(), path)
    pg.save(result.isel(model=[0]), path, overwrite=True)
    with xr.open_dataset(path) as back:
        assert back.sizes["model"] == 1


def test_an_interrupted_stream_leaves_nothing(tmp_path):
    class Stop(Exception):
        pass

    def stop(phase, done, total):
        if phase == "evaluate" and done == 2:
            raise Stop

    with pytest.raises(Stop):
        pg.stream(small.study(), tmp_path / "broken.nc", tile_points=700, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_best_is_the_least_feasible_value_of_every_group(result):
    over = ["parallelism", "topology", "microbatch", "recompute"]
    at = {"hbm_bandwidth": 1.0, "scale_up_bandwidth": 1.0}
    best = pg.best(result, over, minimize="step_time", at=at)
    assert set(best.step_time.dims) == {"devices", "model", "device"}
    masked = result.step_time.where(pg.feasible(result)).sel(at)
    for devices, model, device in itertools.product(best.devices.values, best.model.values, best.device.values):
        group = masked.sel(model=model, device=device).isel(parallelism=(result.devices == devices).values)
        chosen = best.sel(devices=devices, model=model, device=device)
        if not bool(chosen.found):
            assert np.isnan(group.values).all()
            continue
        assert float(chosen.step_time) == np.nanmin(group.values)
        labels = {axis: chosen[axis].item() for axis in over}
        assert float(group.sel(labels)) == float(chosen.step_time)
        assert float(chosen.tp * chosen.pp * chosen.dp) == devices


def test_best_maximises_and_refuses_unknown_names(result):
    least = pg.best(result, "parallelism", minimize="step_time")
    most = pg.best(result.assign(rate=1 / result.step_time), "parallelism", maximize="rate")
    np.testing.assert_array_equal(least.parallelism.values, most.parallelism.values)
    for options, message in [
        ({"minimize": "step_tme"}, "no 'step_tme'; did you mean 'step_time'"),
        ({"minimize": "step_time", "at": {"devic": 1}}, "no axis 'devic'"),
        ({}, "either minimize or maximize"),
    ]:
        with pytest.raises(pg.PerfgridError, match=message):
            pg.best(result, "parallelism", **options)


def test_violations_are_counted_over_the_whole_grid(result):
    points, infeasible, reasons = violations(result)
    assert points == np.prod([result.sizes[d] for d in result.attrs["study_axes"].split()])
    full = pg.feasible(result).broadcast_like(result.step_time)
    assert infeasible == int((~full).sum())
    for found in reasons:
        assert found.points == int((result[found.name] == 0).broadcast_like(result.step_time).sum())
    assert {"fits_memory", "batch_divides"} <= {r.name for r in reasons}


def test_explain_agrees_with_the_grid_and_tells_why_a_point_is_infeasible(result, tmp_path):
    at = {
        "model": "llama-2-70b",
        "device": "h100-sxm-80gb",
        "topology": "rail-optimized",
        "microbatch": 1,
        "recompute": "none",
        "parallelism": "tp1.pp1.dp64.v1",
        "hbm_bandwidth": 1.0,
        "scale_up_bandwidth": 1.0,
    }
    path = pg.save(result, tmp_path / "r.nc")
    with xr.open_dataset(path) as saved:
        from_file = pg.explain(saved, "step_time", at)
    from_study = pg.explain(small.study(), "step_time", at)
    assert from_file.derivation.value == from_study.derivation.value
    assert float(result.step_time.sel(at)) == pytest.approx(from_file.derivation.value, rel=1e-6)
    assert [(v[0], v[1]) for v in from_file.violated] == [("fits_memory", "exceeds")]
    assert "exceed the device memory" in from_file.violated[0][2]
    sources = []

    def walk(node):
        sources.append((node.name, node.unit, node.source))
        for child in node.below:
            walk(child)

    walk(from_file.derivation)
    assert len({s[0] for s in sources}) > 150  # every formula below the step time
    assert all(unit and source for _, unit, source in sources)


def test_given_quantities_can_be_outputs():
    ds = pg.evaluate(small.study(outputs=["hbm_capacity", "scale_up_size"]))
    assert ds.hbm_capacity.dims == ("device",)
    assert ds.hbm_capacity.attrs == {"units": "byte", "long_name": "Device memory"}


def test_memory_is_checked_before_work():
    plan = small.study().plan()
    check_memory(plan, "x", available=plan.result_bytes() * 2)
    with pytest.raises(pg.PerfgridError, match=r"GiB.*--stream"):
        check_memory(plan, "x", available=plan.result_bytes())
