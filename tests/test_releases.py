"""What a release wrote stays readable: its studies run, its results open, and commands take them."""

from pathlib import Path

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.cli.main import app

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
