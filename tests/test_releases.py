"""What a release wrote stays readable: its studies run, its results open, and commands take them."""

import json
import re
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.cli.main import app, warning_text
from perfgrid.engine import renamed
from perfgrid.engine.renamed import Renamed
from tests.test_bad_input import run

RELEASES = sorted((Path(__file__).parent / "releases").iterdir())


@pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)
def test_studies_and_results_of_a_release_stay_readable(release, capsys):
    stored = pg.open_result(release / "result.nc")
    found = pg.evaluate(pg.load_study(release / "study.toml"))
    assert found.step_time.dims == stored.step_time.dims
    assert {"step_time", "memory_per_device", "cost_per_million_tokens"} <= set(stored.data_vars) & set(found.data_vars)
    assert np.array_equal(found.parallelism, stored.parallelism)
    assert float((found.step_time / stored.step_time).median()) == pytest.approx(1, abs=0.3)  # the model moves on
    for name, *options in (("plot",), ("explain", "step_time", "--at", "best"), ("diff", str(release / "result.nc"))):
        app([name, str(release / "result.nc"), *options], standalone_mode=False)
    assert "step_time" in capsys.readouterr().out
    assert stored.attrs["catalog_release"]


@pytest.mark.filterwarnings("ignore::perfgrid.engine.renamed.Renamed")  # of those that are not looked at
def test_earlier_names_are_read_with_a_warning(release_of_tomorrow, tmp_path, monkeypatch, capsys):
    """A study, a catalog file, a result and a command line with names that the next release would have changed."""
    (tmp_path / "chip.toml").write_text(
        'kind = "device"\n[chip]\nextends = "b200"\ntitle = "Chip"\nmemory_rate = "9 TB/s"\n'
    )
    (tmp_path / "study.toml").write_text(
        'outputs = ["time_of_step"]\nwhere = "memory_rate > 1e9"\ncatalog = ["chip.toml"]\n'
        '[axes]\nmodel = ["llama-2-7b"]\ndevice = ["chip"]\nmemory_rate.scale = [1, 2]\n'
        "[axes.parallelism]\ndevices = [8]\n[workload_settings]\nsequence_length = 4096\nglobal_batch = 64\n"
    )
    with pytest.warns(Renamed) as told:
        study = pg.load_study(tmp_path / "study.toml")
    assert f"{tmp_path / 'study.toml'}: workload_settings is called workload_parameters since 0.3.0" in {
        str(w.message) for w in told
    }
    found = pg.evaluate(study)
    assert float(found.step_time.min()) > 0
    assert found.hbm_bandwidth.values.tolist() == [1, 2]
    names = {"step_time": "time_of_step", "hbm_bandwidth": "memory_rate", "fits_memory": "memory_suffices"}
    assert set(names) <= set(found.variables)
    earlier = found.rename(names)
    for holder in (earlier, *earlier.variables.values()):  # attributes name variables, too
        for (key, text), (new, old) in product(list(holder.attrs.items()), names.items()):
            if isinstance(text, str):
                holder.attrs[key] = re.sub(rf"\b{new}\b", old, holder.attrs[key])
    earlier.to_netcdf(tmp_path / "earlier.nc")
    with pytest.warns(Renamed, match="time_of_step is called step_time since 0.3.0"):
        stored = pg.open_result(tmp_path / "earlier.nc")
    assert np.array_equal(stored.step_time, found.step_time)
    assert stored.step_time.dims == found.step_time.dims
    assert np.array_equal(pg.feasible(stored), pg.feasible(found))
    assert renamed.current({"step_time": 2, "time_of_step": 1}, "study.toml") == {"step_time": 2}
    assert renamed.current(["-o", "memory_rate.nc"], "the command line") == ["-o", "memory_rate.nc"]
    settings = ("--as-json", "--set", "axes.memory_rate.scale=[3]")
    with pytest.warns(Renamed, match="the command line: --as-json is called --json since 0.3.0") as told:
        status, out, _ = run(monkeypatch, capsys, "plan", tmp_path / "study.toml", *settings)
    assert (status, json.loads(out)["points"] > 0) == (0, True)
    assert warning_text(told[0].message, told[0].category, "main.py", 1) == f"perfgrid: {told[0].message}\n"


@pytest.fixture
def release_of_tomorrow(monkeypatch):
    monkeypatch.setattr(
        renamed,
        "RENAMED",
        {
            "time_of_step": ("step_time", "0.3.0"),
            "memory_suffices": ("fits_memory", "0.3.0"),
            "memory_rate": ("hbm_bandwidth", "0.3.0"),
            "workload_settings": ("workload_parameters", "0.3.0"),
            "--as-json": ("--json", "0.3.0"),
        },
    )


def test_earlier_names_are_kept_for_two_minor_versions():
    major, minor = map(int, version("perfgrid").split(".")[:2])
    for name, (_, since) in renamed.RENAMED.items():
        there = [int(part) for part in since.split(".")[:2]]
        assert there >= [major, minor - 2], f"{name} of {since} can go"


def test_versions_of_program_catalog_and_records(monkeypatch, tmp_path, capsys):
    """A result carries the version of the catalog with a hash that newer files change; every command takes them."""
    from perfgrid.catalog.loader import catalog_release

    app(["--version"], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["perfgrid", "catalog", "records"]
    newer = tmp_path / "newer.toml"
    newer.write_text('kind = "device"\n[h100-sxm-80gb]\nextends = "h100-sxm-80gb"\nhbm_capacity = "96 GiB"\n')
    monkeypatch.setenv("PERFGRID_CATALOG", str(newer))
    catalog_release.cache_clear()
    try:
        assert load_catalog().entry("device", "h100-sxm-80gb").values["hbm_capacity"] == 96 * 2**30
        assert catalog_release() != lines[1].split()[1]
        bill = pg.Study.make(workload="manufacturing", outputs=["die_cost"], axes={"device": ["h100-sxm-80gb"]})
        assert pg.evaluate(bill).attrs["catalog_release"] == catalog_release()
        monkeypatch.setenv("PERFGRID_CATALOG", str(tmp_path / "none.toml"))
        with pytest.raises(pg.PerfgridError, match=r"none\.toml"):
            load_catalog()
    finally:
        catalog_release.cache_clear()
