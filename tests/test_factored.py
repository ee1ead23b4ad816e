"""Factored results: what is read is what evaluating gives, on any part; what belongs to other formulas is refused."""

import json
import pickle
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import perfgrid as pg
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.reductions.subgrid import Cut
from perfgrid.formulas.kernels import gemm
from perfgrid.results.xarray_backend import PerfgridBackendEntrypoint
from tests import small
from tests.engine import toys
from tests.test_bad_input import run, write

pytestmark = pytest.mark.optimised

ROOT = Path(__file__).parents[1]
DEADLINE = 9e4  # of the toys, from which their slack is subtracted


@pytest.fixture(scope="module")
def result():
    return pg.evaluate(small.study())


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return pg.save(small.study(), tmp_path_factory.mktemp("factored") / "small.pgf")


@pytest.fixture(scope="module")
def lazy(path):
    return xr.open_dataset(path, engine=PerfgridBackendEntrypoint)


def test_a_factored_result_is_the_result(lazy, result):
    assert not any(v._in_memory for v in lazy.variables.values() if v.dims != (*v.dims[:1],) and v.ndim > 1)
    xr.testing.assert_allclose(lazy.compute(), result, rtol=2e-6)
    for name in (*result.data_vars, *result.coords):
        assert lazy[name].dtype.kind == result[name].dtype.kind
        assert lazy[name].dims == result[name].dims
        assert lazy[name].attrs.keys() == result[name].attrs.keys()
    np.testing.assert_array_equal(pg.feasible(lazy), pg.feasible(result))


def _selector(size: int) -> st.SearchStrategy:
    return st.one_of(
        st.integers(0, size - 1),
        st.builds(
            slice, st.none() | st.integers(0, size), st.none() | st.integers(0, size), st.just(None) | st.just(2)
        ),
        st.lists(st.integers(0, size - 1), max_size=4).map(lambda rows: np.array(rows, int)),
    )


@settings(max_examples=40)
@given(data=st.data())
def test_any_part_is_that_part_of_the_result(lazy, result, data):
    name = data.draw(st.sampled_from(["step_time", "memory_per_device", "tp_gather_algorithm", "fits_memory"]))
    part = {d: data.draw(_selector(n), label=str(d)) for d, n in result[name].sizes.items()}
    xr.testing.assert_allclose(lazy[name].isel(part).compute(), result[name].isel(part), rtol=2e-6)


@settings(max_examples=12)
@given(
    axes=st.permutations(range(5)),
    threshold=st.sampled_from([1, 16, 64, 256]),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**16),
)
def test_a_cut_evaluates_any_rows(axes, threshold, dtype, seed):
    """Of drawn axis orders and thresholds, with rows repeated and in any order; both in NumPy and compiled."""
    space = toys.space().permuted(tuple(axes))
    plan = Plan(toys.registry(), space, toys.OUTPUTS, small_points=threshold)
    whole = Evaluation(plan, dtype).collect()
    cut = Cut.of(plan, dtype)
    draw = np.random.default_rng(seed)
    rows = {a.name: draw.integers(0, len(a), draw.integers(1, 6)) for a in plan.space.axes}
    found = cut.evaluate(plan.wanted, rows)
    for name, values in found.items():
        full = [rows[a.name] if a.name in plan.quantities[name].columns else [0] for a in plan.space.axes]
        inner = [np.arange(n) for n in plan.quantities[name].inner_shape]
        expected = whole[name][np.ix_(*full, *inner)]
        rounding = 1e-5 * DEADLINE if name == "slack" else 0.0
        if dtype == "float64":
            np.testing.assert_allclose(values, expected, rtol=1e-12)
        else:
            np.testing.assert_allclose(values, expected, rtol=1e-5, atol=rounding)


def test_only_what_is_asked_for_is_evaluated(lazy, result, monkeypatch):
    """Sizes of the evaluated parts, not time: one design costs one design."""
    points = []
    evaluate = Cut.evaluate

    def counted(cut, names, rows, *options):
        points.append((tuple(names), int(np.prod([len(r) for r in rows.values()]))))
        return evaluate(cut, names, rows, *options)

    monkeypatch.setattr(Cut, "evaluate", counted)
    one = {d: 1 for d in result.step_time.dims}
    assert float(lazy.step_time.isel(one)) == pytest.approx(float(result.step_time.isel(one)), rel=2e-6)
    lazy.step_time.isel({**one, "parallelism": slice(None)}).plot()
    assert points == [(("step_time",), 1), (("step_time",), result.sizes["parallelism"])]
    assert lazy.step_time.isel(one).isel({}).shape == ()


def test_large_parts_are_compiled_in_tiles(path, result, monkeypatch):
    monkeypatch.setattr("perfgrid.engine.reductions.subgrid.SMALL_LIMIT", 64)
    lazy = pg.open_result(path)
    xr.testing.assert_allclose(lazy.step_time.compute(), result.step_time, rtol=2e-6)


def test_other_processes_read_it(lazy, result, path):
    part = {"model": 0, "device": 1}
    xr.testing.assert_allclose(
        pickle.loads(pickle.dumps(lazy.step_time)).isel(part).compute(), result.step_time.isel(part), rtol=2e-6
    )
    code = (
        "import sys, xarray as xr; from perfgrid.results.xarray_backend import PerfgridBackendEntrypoint as B; "
        "assert 'perfgrid.engine' not in sys.modules; "
        "print(float(xr.open_dataset(sys.argv[1], engine=B).step_time.min()))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert float(found.stdout) == pytest.approx(float(result.step_time.min()), rel=2e-6)


def test_xarray_finds_the_engine():
    """The entry point names what exists; xarray asks it for files of this suffix only."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, name = project["entry-points"]["xarray.backends"]["perfgrid"].split(":")
    backend = getattr(import_module(module), name)()
    assert backend.guess_can_open("a/b.pgf")
    assert not backend.guess_can_open("a/b.nc")


def _edited(path, target, change):
    """A copy of a factored file with another header."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "header.json":
                header = json.loads(content)
                change(header)
                content = json.dumps(header).encode()
            new.writestr(name, content)
    return target


def test_changed_formulas_are_refused_or_recomputed(path, result, tmp_path, monkeypatch, capsys):
    other = _edited(path, tmp_path / "other.pgf", lambda h: h["attributes"].update(formula_hash="0" * 16))
    with pytest.raises(pg.PerfgridError, match=r"with other formulas \(hash 0000.*recompute=True"):
        pg.open_result(other)
    again = pg.open_result(other, recompute=True)
    xr.testing.assert_allclose(again.step_time.compute(), result.step_time, rtol=2e-6)
    assert again.attrs["formula_hash"] == result.attrs["formula_hash"]
    status, out, err = run(monkeypatch, capsys, "expand", other, "-o", tmp_path / "e.nc")
    assert (status, out) == (2, "")
    assert "--recompute" in err
    assert run(monkeypatch, capsys, "expand", other, "--recompute", "-o", tmp_path / "e.nc")[0] == 0
    with monkeypatch.context() as patched:
        stated = gemm.wave_utilisation
        patched.setattr(gemm, "wave_utilisation", lambda *given: stated(*given) ** 0.5)
        with pytest.raises(pg.PerfgridError, match="other formulas"):
            pg.open_result(path)
        changed = pg.open_result(path, recompute=True).compute()
        assert changed.attrs["formula_hash"] != result.attrs["formula_hash"]
    assert float(changed.step_time.min()) < float(result.step_time.min())


def test_what_is_no_factored_result_is_named(path, tmp_path):
    (tmp_path / "text.pgf").write_text("no archive")
    with pytest.raises(pg.PerfgridError, match="no complete archive"):
        pg.open_result(tmp_path / "text.pgf")
    whole = path.read_bytes()
    (tmp_path / "cut.pgf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(pg.PerfgridError, match="no complete archive"):
        pg.open_result(tmp_path / "cut.pgf")
    with pytest.raises(pg.PerfgridError, match="No such file"):
        pg.open_result(tmp_path / "none.pgf")
    for foreign in ("{}", "[1]"):
        with zipfile.ZipFile(tmp_path / "foreign.pgf", "w") as file:
            file.writestr("header.json", foreign)
        with pytest.raises(pg.PerfgridError, match=r"header\.json is damaged"):
            pg.open_result(tmp_path / "foreign.pgf")
    later = _edited(path, tmp_path / "later.pgf", lambda h: h.update(format=99))
    with pytest.raises(pg.PerfgridError, match="format 99"):
        pg.open_result(later)
    with pytest.raises(pg.PerfgridError, match="--overwrite"):
        pg.save(small.study(), path)
    with pytest.raises(pg.PerfgridError, match=r"must end in \.nc"):
        pg.save(small.study(), tmp_path / "a.txt")


def test_the_commands(path, result, tmp_path, monkeypatch, capsys):
    study = ROOT / "studies" / "quickstart.toml"
    status, out, _ = run(monkeypatch, capsys, "run", study, "-o", tmp_path / "q.pgf", "--json")
    data = json.loads(out)
    assert status == 0
    assert data["bytes"] == (tmp_path / "q.pgf").stat().st_size
    assert data["expanded_bytes"] > 18 * data["bytes"]
    assert run(monkeypatch, capsys, "run", study, "-o", tmp_path / "r.pgf", "--stream")[0] == 2
    status, out, err = run(monkeypatch, capsys, "expand", path, "-o", tmp_path / "e.nc", "--at", "model=llama-2-7b")
    assert status == 0, err
    with xr.open_dataset(tmp_path / "e.nc") as part:
        xr.testing.assert_allclose(part.step_time.load(), result.step_time.sel(model="llama-2-7b"), rtol=2e-6)
    status, _, err = run(monkeypatch, capsys, "expand", path, "-o", tmp_path / "f.nc", "--at", "model=llama-7b")
    assert status == 2
    assert "llama-2-7b" in err
    axes = (
        "model=llama-2-7b,device=mi300x,topology=rail-optimized,microbatch=1,recompute=none,hbm_bandwidth=1,"
        "scale_up_bandwidth=1,parallelism=tp1.pp1.dp64.v1"
    )
    status, out, err = run(monkeypatch, capsys, "explain", path, "step_time", "--at", axes)
    assert status == 0, err
    assert "step_time" in out


@pg.formula(unit="s", source="study")
def exposed_dp_time(dp):
    """A user's own: a microsecond for every data-parallel rank."""
    return dp * 1e-6


def test_conditions_and_own_formulas_are_part_of_it(tmp_path):
    study = pg.Study.make(formulas=[exposed_dp_time], **small.content(where="tp * microbatch <= 8 and pp < 8"))
    expected = pg.evaluate(study)
    target = pg.save(study, tmp_path / "own.pgf")
    with pytest.raises(pg.PerfgridError, match="formulas of its user, exposed_dp_time"):
        pg.open_result(target)
    lazy = pg.open_result(target, formulas=[exposed_dp_time])
    assert "where" in lazy.data_vars
    xr.testing.assert_allclose(lazy.compute(), expected, rtol=2e-6)


def test_chunks_are_tiles(path, result, monkeypatch):
    pytest.importorskip("dask")
    monkeypatch.setattr("perfgrid.results.factored.TILE_POINTS", 1000)
    chunked = xr.open_dataset(path, engine=PerfgridBackendEntrypoint, chunks={})
    assert chunked.step_time.data.npartitions > 1
    xr.testing.assert_allclose(chunked.step_time.compute(), result.step_time, rtol=2e-6)


def test_a_name_without_a_suffix_is_a_result_of_the_kind_that_fits(tmp_path, monkeypatch, capsys):
    """Few values are netCDF; beyond the limit, the memory or the disk they are kept factored, with a sentence."""
    study = write(tmp_path)
    size = pg.load_study(study).plan().result_bytes()
    status, out, error = run(monkeypatch, capsys, "run", study, "-o", tmp_path / "few")
    assert (status, error) == (0, "")
    assert (tmp_path / "few.nc").is_file()
    assert f"saved {tmp_path / 'few.nc'}" in out
    for what, replaced, value in (
        ("the limit for values", "EXPANDED_BYTES", size - 1),
        ("the free memory", "available_memory", lambda: size),
        ("half of the free disk", "shutil.disk_usage", lambda _: SimpleNamespace(free=size)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"perfgrid.cli.run.{replaced}", value)
            name = tmp_path / what.split()[-1]
            status, out, error = run(patch, capsys, "run", study, "-o", name)
            assert status == 0
            error = " ".join(error.split())
            assert f"points are saved factored: their values take {size:g}" in error
            assert what in error
            assert f"-o {name.name}.zarr writes the values" in error
            run(patch, capsys, "run", study, "-o", tmp_path / "stated.nc", "--overwrite")
        with pg.open_result(f"{name}.pgf") as found, pg.open_result(tmp_path / "few.nc") as values:
            np.testing.assert_allclose(found.step_time, values.step_time, rtol=1e-6)
    assert (tmp_path / "stated.nc").is_file()  # who names a kind gets it
    status, _, error = run(monkeypatch, capsys, "run", study, "-o", tmp_path / "r.h5")
    assert status == 2
    assert "netCDF files" in error
