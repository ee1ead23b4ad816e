"""``perfgrid run -o STORE.zarr`` and ``perfgrid verify`` as a user runs them."""

import json
import subprocess
import sys

import pytest
import xarray as xr

from perfgrid.results.store.fill import part_of
from perfgrid.results.store.journal import NAME
from tests.store.common import written
from tests.test_bad_input import run


def test_run_resume_verify(monkeypatch, capsys, tmp_path):
    study, store = written(tmp_path), tmp_path / "s.zarr"
    status, out, _ = run(monkeypatch, capsys, "run", study, "-o", store, "--tile-points", 2000, "--memory", "8GB")
    assert status == 0
    assert "18,056 points in" in out
    assert "does not hold one die [die_fits_field" in " ".join(out.split())
    assert f"saved {store}" in out
    with xr.open_dataset(store) as ds:
        assert ds.sizes["die_area"] == 61
    status, out, _ = run(monkeypatch, capsys, "verify", store, "--study", study)
    assert (status, "sound" in out, "at feasible points" in out) == (0, True, True)
    chunk = store / "die_cost" / "c.0.0.0.0"
    chunk.rename(tmp_path / "chunk")
    status, out, _ = run(monkeypatch, capsys, "verify", store)
    assert status == 1
    assert "wrong: tile 0: the region of die_cost is missing" in out
    (tmp_path / "chunk").rename(chunk)
    status, _, err = run(monkeypatch, capsys, "run", study, "-o", store)
    assert (status, "exists; give --overwrite" in err) == (2, True)

    part = part_of(store)
    store.rename(part)
    lines = (part / NAME).read_text().splitlines(keepends=True)
    (part / NAME).write_text("".join(lines[:4]))
    status, out, _ = run(monkeypatch, capsys, "verify", store, "--json")
    found = json.loads(out)
    assert (status, found["sound"]) == (1, False)
    assert len(found["problems"]) == 2
    status, _, err = run(monkeypatch, capsys, "run", study, "-o", store)
    assert (status, "is an unfinished run; give --resume" in err) == (2, True)
    changed = ("--set", "axes.yield_model=['harvested']")
    status, _, err = run(monkeypatch, capsys, "run", study, "-o", store, "--resume", *changed)
    assert (status, "differs in key 'axes.yield_model' of the study" in err) == (2, True)
    status, out, _ = run(monkeypatch, capsys, "run", study, "-o", store, "--resume", "--json")
    assert (status, json.loads(out)["points"]) == (0, 18_056)
    status, _, _ = run(monkeypatch, capsys, "verify", store)
    assert status == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "s.zarr", "--memory", "4"), "--memory: '4' has no unit, expected byte; write a number with a unit"),
        (("-o", "s.zarr", "--memory", "1MB"), "a memory of 0.001 GB is too little"),
        (("-o", "s.nc", "--resume"), "need -o STORE.zarr"),
        (("-o", "s.zarr", "--rows"), ".zarr, .pgf and --stream print no table: leave out --rows and --wide"),
        (("-o", "s.nc", "--stream", "--wide"), "print no table"),
        (("--workers", "2"), "need -o STORE.zarr"),
        (("-o", "s.zarr", "--workers", "0"), "--workers must be 1 or more"),
        (("-o", "s.zarr", "--workers", "2", "--scheduler", "tcp://127.0.0.1:1"), "give one of them"),
        (("-o", "s.zarr", "--scheduler", "127.0.0.1"), "no dask scheduler answers at '127.0.0.1'"),
    ],
)
def test_options_that_make_no_sense(monkeypatch, capsys, tmp_path, options, message):
    study = written(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("perfgrid.results.store.executors.CONNECT_SECONDS", 0.3)
    status, _, err = run(monkeypatch, capsys, "run", study, *options)
    assert status == 2
    assert message in err
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".zarr"] == []


def test_verify_wants_a_store(monkeypatch, capsys, tmp_path):
    for path, message in [(tmp_path / "r.nc", "only stores"), (tmp_path / "no.zarr", "No such file")]:
        status, _, err = run(monkeypatch, capsys, "verify", path)
        assert (status, message in err) == (2, True)


def test_a_file_that_may_not_grow_is_a_sentence(monkeypatch, capsys, tmp_path):
    """The operating system itself refuses, in the place of a full disk."""
    command = [sys.executable, "-m", "perfgrid", "run", str(written(tmp_path)), "-o", str(tmp_path / "s.zarr")]
    done = subprocess.run(["sh", "-c", 'ulimit -f 40; exec "$@"', "sh", *command], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "cannot write" in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    status, _, _ = run(monkeypatch, capsys, *command[3:], "--resume")
    assert status == 0


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupted_run_names_resume_if_there_is_something_to_resume(monkeypatch, capsys, tmp_path, begun):
    def interrupted(study, output, *_, **__):
        if begun:
            part_of(output).mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr("perfgrid.cli.run.stream", interrupted)
    status, _, err = run(monkeypatch, capsys, "run", written(tmp_path), "-o", tmp_path / "s.zarr")
    assert (status, "--resume" in err, "no result was written" in err) == (130, begun, not begun)
