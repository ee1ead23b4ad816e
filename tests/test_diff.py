"""Two results compared: every difference is listed and nothing else, wherever they are stored."""

import json

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import perfgrid as pg
from perfgrid.analysis import diff as module
from tests import small
from tests.test_bad_input import run


@pytest.fixture(scope="module")
def result():
    return pg.evaluate(small.study(axes={**small.CONTENT["axes"], "topology": ["rail-optimized"]}))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of zarr, on names as labels
def test_a_result_is_the_same_as_itself_in_any_order_and_format(result, tmp_path):
    assert pg.diff(result, result, tolerance=0).same
    turned = result.isel(model=[1, 0], parallelism=slice(None, None, -1)).transpose()
    found = pg.diff(result, turned, tolerance=0)
    assert found.same
    assert found.points == np.prod([result.sizes[d] for d in result.attrs["study_axes"].split()])
    pytest.importorskip("zarr")
    result.drop_encoding().to_zarr(tmp_path / "r.zarr")
    with pg.open_result(tmp_path / "r.zarr") as stored:
        assert pg.diff(stored, result, tolerance=0).same


@settings(max_examples=12)
@given(data=st.data())
def test_a_changed_value_is_found_where_it_is(result, data):
    """Brute force over the whole arrays gives the count, the largest and the median difference."""
    name = data.draw(st.sampled_from(["step_time", "memory_per_device"]))
    changed = result.copy(deep=True)
    flat = changed[name].values.reshape(-1)
    rows = data.draw(st.lists(st.integers(0, flat.size - 1), min_size=1, max_size=40, unique=True))
    flat[rows] *= np.array([data.draw(st.floats(1.001, 3.0)) for _ in rows], flat.dtype)
    tolerance = data.draw(st.sampled_from([0.0, 1e-5, 0.1]))
    points = data.draw(st.sampled_from([1000, 10**6]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_POINTS", points)
        found = {v.name: v for v in pg.diff(result, changed, tolerance).variables}
    x, y = (d[name].values.astype(float) for d in (result, changed))
    apart = np.abs(x - y) / np.maximum(np.abs(x), np.abs(y))
    assert found[name].differing == (apart > tolerance).sum()
    assert found[name].largest == pytest.approx(apart.max())
    worst = {
        d: result[d].values[i].item()
        for d, i in zip(result[name].dims, np.unravel_index(apart.argmax(), apart.shape), strict=True)
    }
    assert found[name].where == worst
    assert (found[name].a, found[name].b) == (x.reshape(-1)[apart.argmax()], y.reshape(-1)[apart.argmax()])
    above = np.sort(apart[apart > tolerance])
    median = above[(len(above) - 1) // 2] if len(above) else 0.0
    assert found[name].median == pytest.approx(median, rel=2**-7)
    assert all(v.differing == 0 for v in found.values() if v.name != name)


def test_labels_variables_and_feasibility_that_differ(result):
    other = result.isel(device=[0, 2], microbatch=[0, 1]).drop_vars("model_flops_utilization").copy(deep=True)
    other = other.assign(extra=other.step_time * 2)
    other["fits_memory"] = xr.ones_like(other["fits_memory"])
    found = pg.diff(result, other)
    assert [(a.axis, a.only_a, a.only_b) for a in found.axes] == [("device", ["h100-sxm-80gb"], [])]
    assert (found.only_a, found.only_b) == (["model_flops_utilization"], ["extra"])
    before, after = (pg.feasible(d.isel(device=d.device != "h100-sxm-80gb")) for d in (result, other))
    grid = np.broadcast_shapes(*(xr.broadcast(before, after)[0].shape for _ in (1,)))
    assert found.feasible_only_a == 0
    assert found.feasible_only_b / found.points == pytest.approx(float((~before & after).sum()) / np.prod(grid))
    fits = next(v for v in found.variables if v.name == "fits_memory")
    assert fits.largest is None
    assert (fits.a, fits.b) == (0, 1)
    assert not found.same


def test_no_tolerance_hides_a_flag_or_a_choice(result):
    changed = result.copy(deep=True)
    for name in ("fits_memory", "tp_gather_algorithm"):
        changed[name].values = 1 - result[name].values
    found = {v.name: v.differing for v in pg.diff(result, changed, tolerance=2.0).variables}
    assert {name for name, differing in found.items() if differing} == {"fits_memory", "tp_gather_algorithm"}


def test_a_missing_value_and_a_new_axis_are_differences(result):
    hole = result.copy(deep=True)
    hole.step_time.values[(0,) * hole.step_time.ndim] = np.nan
    found = next(v for v in pg.diff(result, hole).variables if v.differing)
    assert (found.name, found.largest) == ("step_time", np.inf)
    assert pg.diff(hole, hole).same
    wider = result.expand_dims(study=["x", "y"])
    apart = pg.diff(result, wider)
    assert [a.axis for a in apart.axes] == ["study"]
    assert all(v.differing == 0 for v in apart.variables)
    with pytest.raises(pg.PerfgridError, match="no label of axis 'model' in common"):
        pg.diff(result.isel(model=[0]), result.isel(model=[1]))
    with pytest.raises(pg.PerfgridError, match="did you mean 'step_time'"):
        pg.diff(result, result, variables=["step_tim"])
    with pytest.raises(pg.PerfgridError, match="0 or more"):
        pg.diff(result, result, tolerance=-1)


def test_a_part_is_compared_with_its_place_in_the_whole(result):
    """One label of an axis, taken with ``sel`` or by ``expand --at``, leaves a scalar coordinate behind."""
    model = str(result.model.values[1])
    part = result.sel(model=model)
    for found, side in ((pg.diff(part, result, tolerance=0), "only_b"), (pg.diff(result, part, tolerance=0), "only_a")):
        assert not any(v.differing for v in found.variables)
        (axis,) = found.axes
        assert (axis.axis, getattr(axis, side)) == ("model", [str(result.model.values[0])])
    with pytest.raises(pg.PerfgridError, match="open_result"):
        pg.diff("a.nc", result)  # pyright: ignore[reportArgumentType]


def test_the_command(result, tmp_path, monkeypatch, capsys):
    """A netCDF file against a factored one: the same of the same study, different where the catalog is."""
    axes = {**small.CONTENT["axes"], "topology": ["rail-optimized"]}
    study = small.study(axes=axes)
    a, b, c = (tmp_path / name for name in ("a.nc", "b.pgf", "c.pgf"))
    pg.save(result, a)
    pg.save(study, b)
    faster = pg.load_catalog().with_values({"device.mi300x.hbm_bandwidth": 6e12})
    pg.save(pg.Study.make(faster, **small.content(axes=axes)), c)
    status, out, err = run(monkeypatch, capsys, "diff", a, b)
    assert status == 0, out + err
    assert "the same" in out
    status, out, _ = run(monkeypatch, capsys, "diff", a, c)
    assert status == 1
    assert "step_time" in out
    assert "device = mi300x" in out
    assert "given quantities that differ: hbm_bandwidth" in out
    status, out, _ = run(monkeypatch, capsys, "diff", a, c, "--variables", "step_time", "--json")
    data = json.loads(out)
    assert status == 1
    assert not data["same"]
    assert data["variables"][0]["where"]["device"] == "mi300x"
    assert data["variables"][0]["b"] < data["variables"][0]["a"]
    assert run(monkeypatch, capsys, "diff", a, c, "--tolerance", "0.9", "--variables", "step_time")[0] == 0
    assert run(monkeypatch, capsys, "diff", a, tmp_path / "none.nc")[0] == 2
