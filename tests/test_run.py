"""Evaluate, stream, save, best, violations, explain: on real studies and their files."""

import itertools
import json

import numpy as np
import pytest
import xarray as xr

import perfgrid as pg
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE
from perfgrid.results.feasibility import violations
from perfgrid.results.memory import check_memory, left_by_groups
from perfgrid.results.provenance import formulas_changed
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


def test_best_without_axes_shows_every_point_and_masks_what_is_infeasible(result):
    every = pg.best(result, over=[], minimize="step_time")
    np.testing.assert_array_equal(np.isfinite(every.step_time.values), every.found.values)
    never = result.assign(fits_memory=xr.zeros_like(result.fits_memory).assign_attrs(result.fits_memory.attrs))
    none = pg.best(never, over=["parallelism", "microbatch"], minimize="step_time")
    assert not none.found.any()
    assert set(np.unique(none.parallelism.values)) == {""}
    assert (none.tp == -1).all()
    assert (none.tp_gather_algorithm == -1).all()


def test_best_has_a_group_for_every_label_even_where_the_objective_is_the_same(result):
    """Memory does not depend on bandwidths; the step time of the design chosen does."""
    assert "hbm_bandwidth" not in result.memory_per_device.dims
    best = pg.best(result, "parallelism", minimize="memory_per_device")
    assert {"hbm_bandwidth", "scale_up_bandwidth"} <= set(best.found.dims)
    assert set(best.step_time.dims) == set(best.found.dims)
    place = {"model": 0, "device": 0, "topology": 0, "microbatch": 0, "recompute": -1, "hbm_bandwidth": 0}
    one = best.isel({d: place.get(str(d), -1) for d in best.found.dims})
    assert bool(one.found)
    at = {str(d): one[d].item() for d in one.coords if d in result.step_time.dims}
    assert float(one.step_time) == float(result.step_time.sel(at))


def test_labels_of_small_numbers_are_reported_apart():
    made = small.study(axes={**small.CONTENT["axes"], "launch_overhead": [1e-9, 5e-9]})
    best = pg.best(pg.evaluate(made), "parallelism", minimize="step_time", at={"launch_overhead": 5e-9})
    assert float(best.launch_overhead) == 5e-9


def test_a_selection_without_its_constraints_is_no_feasible_result(result):
    with pytest.raises(pg.PerfgridError, match=r"constraints of the result are not in this selection: .*batch_divides"):
        pg.feasible(result[["step_time"]])
    with pytest.raises(pg.PerfgridError, match="not in this selection"):
        pg.best(result[["step_time"]], "parallelism", minimize="step_time")


def test_violations_are_counted_over_the_whole_grid(result):
    found = violations(result)
    assert found.points == np.prod([result.sizes[d] for d in result.attrs["study_axes"].split()])
    full = pg.feasible(result).broadcast_like(result.step_time)
    assert (found.infeasible, found.partly) == (int((~full).sum()), 0)  # all constraints concern all outputs here
    for reason in found.violations:
        assert reason.points == int((result[reason.name] == 0).broadcast_like(result.step_time).sum())
    assert {"fits_memory", "batch_divides"} <= {r.name for r in found.violations}


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
    assert [(v.name, v.kind) for v in from_file.violated] == [("fits_memory", "exceeds")]
    assert "exceed the device memory" in from_file.violated[0].reason
    sources = []

    def walk(node):
        sources.append((node.name, node.unit, node.source))
        for child in node.below:
            walk(child)

    walk(from_file.derivation)
    assert len({s[0] for s in sources}) > 150  # every formula below the step time
    assert all(unit and source for _, unit, source in sources)
    cited = {name: source for name, _, source in sources}
    assert "NVIDIA" in cited["peak_bf16_rate"]  # the data sheet of this device
    assert "Llama 2" in cited["layers"]
    assert cited["tp"] == "given by parallelism"
    from_study_sources = []

    def walk_study(node):
        from_study_sources.append((node.name, node.unit, node.source))
        for child in node.below:
            walk_study(child)

    walk_study(from_study.derivation)
    assert from_study_sources == sources


def test_explain_knows_what_a_study_changed():
    at = {"parallelism": "tp8.pp1.dp1"}
    axes: dict = {"model": ["llama-2-7b"], "device": ["b200"], "topology": ["rail-optimized"]}
    axes["parallelism"] = {"devices": [8], "tp": [8], "pp": [1]}
    made = small.study(axes=axes, overrides={"hbm_bandwidth": "9 TB/s"}, outputs=["achieved_hbm_bandwidth"])
    below = {d.name: d for d in pg.explain(made, "achieved_hbm_bandwidth", at).derivation.below}
    assert below["hbm_bandwidth"].value == 9e12
    assert below["hbm_bandwidth"].source == "given by the study's overrides"
    assert "overrides" not in below["hbm_efficiency"].source


def test_explain_does_not_cite_a_data_sheet_for_what_a_study_states_or_scales(tmp_path):
    rows = {"zip": {"device": ["h100-sxm-80gb", "b200"], "hbm_bandwidth": ["1 TB/s", "2 TB/s"]}}
    axes = {
        "model": ["llama-2-7b"],
        "case": rows,
        "topology": ["rail-optimized"],
        "hbm_efficiency": {"scale": [0.5, 1]},
    }
    axes["parallelism"] = {"devices": [8], "tp": [8], "pp": [1]}
    made = small.study(axes=axes, outputs=["achieved_hbm_bandwidth"])
    with xr.open_dataset(pg.save(pg.evaluate(made), tmp_path / "r.nc")) as saved:
        for what in (made, saved):
            at = {"case": "1", "hbm_efficiency": 0.5}
            below = {d.name: d for d in pg.explain(what, "achieved_hbm_bandwidth", at).derivation.below}
            assert below["hbm_bandwidth"].value == 2e12
            assert below["hbm_bandwidth"].source == "given by the study's axes"
            assert below["hbm_efficiency"].source.endswith(", times 0.5")
            full = pg.explain(what, "achieved_hbm_bandwidth", at | {"hbm_efficiency": 1.0}).derivation.below
            assert "times" not in {d.name: d for d in full}["hbm_efficiency"].source


def test_a_result_made_with_user_formulas_asks_for_them(tmp_path):
    @pg.formula(unit="s", source="mine")
    def exposed_dp_time(dp):
        """My own idea of data parallelism."""
        return dp * 100.0

    made = pg.Study.make(formulas=[exposed_dp_time], **small.content(outputs=["step_time"]))
    ds = pg.evaluate(made)
    at = {a.name: a.labels[0] for a in made.space.axes}
    with pytest.raises(pg.PerfgridError, match="formulas of its user, exposed_dp_time"):
        pg.explain(ds, "step_time", at)
    found = pg.explain(ds, "step_time", at, formulas=[exposed_dp_time])
    assert found.derivation.value == pytest.approx(float(ds.step_time.sel(at)), rel=1e-6)


def test_the_formula_hash_sees_the_equations(monkeypatch, result):
    from perfgrid.formulas.kernels import gemm

    assert not formulas_changed(result)
    stated = gemm.wave_utilisation
    monkeypatch.setattr(gemm, "wave_utilisation", lambda *given: 0.99 * stated(*given))
    assert formulas_changed(result)


def test_a_result_of_a_version_with_other_inner_axes_is_explained(result):
    def deeper(values, rows):
        if np.ndim(values) <= rows:
            return values
        return np.reshape(values, (*np.shape(values), 1)).tolist()  # one more inner axis behind its own

    data = json.loads(result.attrs[SPACE_ATTRIBUTE])
    data["constants"] = {name: deeper(value, 0) for name, value in data["constants"].items()}
    for axis in data["axes"]:
        axis["columns"] = {name: deeper(values, 1) for name, values in axis["columns"].items()}
    data["outputs"].append("quantity_of_old")
    old = result.assign_attrs({SPACE_ATTRIBUTE: json.dumps(data)})
    assert old.attrs[SPACE_ATTRIBUTE] != result.attrs[SPACE_ATTRIBUTE]
    at = {str(axis): result[axis].values[0] for axis in result.step_time.dims}
    assert repr(pg.explain(old, "step_time", at)) == repr(pg.explain(result, "step_time", at))
    assert formulas_changed(old)


TABLE = {"factor": 2.0}


def _scaled_time(factor):
    @pg.formula(unit="s", source="user")
    def scaled_time(step_time):
        """Some multiple of the step time."""
        return step_time * factor

    return scaled_time


@pg.formula(unit="s", source="user")
def tabulated_time(step_time):
    """A multiple of the step time that a table of the module states."""
    return step_time * TABLE["factor"]


@pg.formula(unit="s", source="user")
def summed_time(step_time):
    """The same, the table looked up in a comprehension."""
    return sum([TABLE[name] * step_time for name in ("factor",)])


def test_the_formula_hash_sees_what_formulas_close_over_and_look_up(monkeypatch):
    def hash_of(formula):
        made = small.study(outputs=[formula.__name__], formulas=[formula])
        return pg.evaluate(made, small_points=10**9).attrs["formula_hash"]

    assert hash_of(_scaled_time(2.0)) == hash_of(_scaled_time(2.0)) != hash_of(_scaled_time(3.0))
    before = hash_of(tabulated_time), hash_of(summed_time)
    monkeypatch.setitem(TABLE, "factor", 3.0)
    assert hash_of(tabulated_time) != before[0]
    assert hash_of(summed_time) != before[1]


def test_given_quantities_can_be_outputs():
    ds = pg.evaluate(small.study(outputs=["hbm_capacity", "scale_up_size"]))
    assert ds.hbm_capacity.dims == ("device",)
    assert ds.hbm_capacity.attrs["units"] == "byte"
    assert ds.hbm_capacity.attrs["long_name"] == "Device memory"


def test_memory_that_a_container_or_a_job_leaves(tmp_path):
    """A job of 100 bytes in a container without a limit, of which 60 are in use and 20 of these are cached files."""
    (tmp_path / "own").write_text("12:cpu:/other\n0::/job/step\n")
    for folder, limit in (("", "1000"), ("job", "max"), ("job/step", "100")):
        group = tmp_path / "root" / folder
        group.mkdir()
        (group / "memory.max").write_text(limit)
        (group / "memory.current").write_text("60\n")
        (group / "memory.stat").write_text("anon 40\ninactive_file 20\n")
    assert left_by_groups(tmp_path / "root", tmp_path / "own") == [60, 960]
    assert left_by_groups(tmp_path / "none", tmp_path / "absent") == []


def test_memory_is_checked_before_work(monkeypatch):
    plan = small.study().plan()
    check_memory(plan, "x")
    monkeypatch.setattr("perfgrid.results.memory.available_memory", lambda: 10)
    with pytest.raises(pg.PerfgridError, match=r"GB of memory at most"):
        check_memory(plan, "x")


def test_ways_that_do_not_fit_are_not_offered(monkeypatch):
    plan, needed = small.study().plan(), {"in memory": 900, ".nc": 600, ".zarr": 400, ".pgf": 200, "best": 100}
    monkeypatch.setattr("perfgrid.results.memory.peaks", lambda *_, **__: {k: v * 10**9 for k, v in needed.items()})
    monkeypatch.setattr("perfgrid.results.memory.resident_memory", lambda: 10**9)
    for free, offered in ((500, {".zarr", ".pgf"}), (300, {".pgf"}), (100, set())):
        monkeypatch.setattr("perfgrid.results.memory.available_memory", lambda free=free: free * 10**9)
        with pytest.raises(pg.PerfgridError) as found:
            check_memory(plan, "x")
        assert {way for way in needed if f"-o FILE{way}" in str(found.value)} == offered


def test_local_workers_share_the_memory_of_this_machine(monkeypatch):
    plan = small.study().plan()
    monkeypatch.setattr("perfgrid.results.memory.peaks", lambda *_, **__: {".zarr": 4 * 10**9, ".nc": 10**9, ".pgf": 1})
    monkeypatch.setattr("perfgrid.results.memory.resident_memory", lambda: 3 * 10**8)
    monkeypatch.setattr("perfgrid.results.memory.available_memory", lambda: 9 * 10**9)
    check_memory(plan, "x", way=".zarr", processes=2)
    with pytest.raises(pg.PerfgridError, match=r"by 3 processes take 12\.\d GB .* or fewer --workers"):
        check_memory(plan, "x", way=".zarr", processes=3)
