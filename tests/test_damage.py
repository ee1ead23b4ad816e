"""Damaged results end with status 2 and one line that names the file, or with a list of what is damaged (verify)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile

import netCDF4
import numpy as np
import pytest

import perfgrid as pg
from perfgrid.results import factored, files, opening
from perfgrid.results.store.arrays import Arrays
from tests.test_bad_input import run

STUDY = """
outputs = ["step_time", "memory_per_device"]
[axes]
model = ["llama-2-7b"]
device = ["h100-sxm-80gb"]
topology = ["rail-optimized"]
parallelism = { devices = 16, tp = [1, 2], pp = 1 }
[workload_parameters]
sequence_length = 2048
global_batch = 128
"""
AT = ("--at", "parallelism=tp1.pp1.dp16")
SIDES = ("--a", "parallelism=tp1.pp1.dp16", "--b", "parallelism=tp2.pp1.dp8")
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a study and its result of every kind."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "study.toml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        for suffix in ("nc", "zarr", "pgf"):
            status, _, err = run(patch, _Silent(), "run", folder / "study.toml", "-o", folder / f"r.{suffix}")
            assert status == 0, err
    return folder


class _Silent:
    """In the place of a capture: nothing is looked at."""

    out = err = ""

    def readouterr(self):
        return self


@pytest.fixture
def refused(made, tmp_path, monkeypatch, capsys):
    """Run a command on a copy of a result that was damaged; its one sentence."""

    def check(suffix, damage, *command, status=2):
        path, good = tmp_path / f"bad.{suffix}", made / f"r.{suffix}"
        if path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(good, path) if good.is_dir() else shutil.copy(good, path)
        damage(path)
        words = [made / "r.nc" if word == "GOOD" else word for word in command[1:]]
        found, out, err = run(monkeypatch, capsys, command[0], path, *words)
        assert found == status, (out, err)
        if status == 2:
            assert len(err.strip().splitlines()) == 1, err
            assert str(path) in err
        return out + err

    return check


def _cut(part):
    def damage(path):
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * part)])

    return damage


def _attribute(name, value):
    def damage(path):
        if path.suffix == ".nc":
            with netCDF4.Dataset(path, "a") as file:
                file.setncattr(name, value)
        elif path.suffix == ".zarr":
            text = json.loads((path / "zarr.json").read_text())
            text["attributes"][name] = value
            (path / "zarr.json").write_text(json.dumps(text))
        else:
            _header(lambda h: h["attributes"].update({name: value}))(path)

    return damage


def _header(change):
    def damage(path):
        with zipfile.ZipFile(path) as file:
            members = {name: file.read(name) for name in file.namelist()}
        header = json.loads(members["header.json"])
        found = change(header)
        members["header.json"] = json.dumps(header if found is None else found).encode()
        with zipfile.ZipFile(path, "w") as file:
            for name, content in members.items():
                file.writestr(name, content)

    return damage


COMMANDS = [
    ("explain", "step_time", *AT),
    ("kernels", *AT),
    ("timeline", *AT),
    ("compare", *SIDES),
    ("diff", "GOOD"),
]


@pytest.mark.parametrize("value", ["{}", "[]", "null", DEEP, '{"axes": 3}'])
@pytest.mark.parametrize("suffix", ["nc", "zarr", "pgf"])
def test_attributes_that_are_no_description_of_a_study(refused, suffix, value):
    for name in ("perfgrid_study", "perfgrid_space"):
        for command in COMMANDS:
            assert name in refused(suffix, _attribute(name, value), *command)


@pytest.mark.parametrize(
    ("text", "bytes_there"),
    [
        (b'{"axes"', b"#" * 8),  # no JSON any more
        (b'{"axes"', b"\xff" * 8),  # no text any more
        (b'"labels"', b'"babels"'),  # a key is missing
        (b'"overrides"', b'"overridez"'),
    ],
)
def test_bytes_of_a_file_that_are_changed(refused, text, bytes_there):
    def damage(path):
        data = path.read_bytes()
        place = data.index(text)
        path.write_bytes(data[:place] + bytes_there + data[place + len(bytes_there) :])

    for command in COMMANDS:
        assert "attribute perfgrid_s" in refused("nc", damage, *command)


@pytest.mark.parametrize(("suffix", "part"), [("nc", 0.5), ("pgf", 0), ("pgf", 0.1), ("pgf", 0.5), ("pgf", 0.9)])
def test_files_cut_short(refused, suffix, part):
    for command in COMMANDS:
        assert "cannot read" in refused(suffix, _cut(part), *command)


@pytest.mark.parametrize("member", ["step_time/c.0.0.0.0", "parallelism/c/0"])
def test_chunks_that_are_emptied_are_reported_by_name(refused, made, member):
    damage = lambda path: (path / member).write_bytes(b"")  # noqa: E731
    assert (made / "r.zarr" / member).exists()
    name = member.split("/")[0]
    assert name in refused("zarr", damage, "diff", "GOOD")
    assert name in refused("zarr", damage, "verify", status=1)


def test_a_chunk_of_a_negative_size(refused):
    def damage(path):
        chunk = path / "step_time/c.0.0.0.0"
        data = chunk.read_bytes()
        chunk.write_bytes(data[:4] + b"\xff" * 4 + data[8:])  # how many bytes it expands to

    assert "variable step_time" in refused("zarr", damage, "diff", "GOOD")
    assert "the region of step_time cannot be read" in refused("zarr", damage, "verify", status=1)


def test_chunks_that_are_lost_are_no_values(refused):
    damage = lambda path: (path / "step_time/c.0.0.0.0").unlink()  # noqa: E731
    assert "variable step_time: 1 of 1 chunks are missing" in refused("zarr", damage, "diff", "GOOD")


def test_metadata_that_are_lost_or_changed(refused):
    told = refused("zarr", lambda path: (path / "step_time/zarr.json").unlink(), "verify", status=1)
    assert "step_time/zarr.json cannot be read" in told
    for text in ("", "{", "[]", DEEP, '{"zarr_format": "x"}'):
        for command in (("verify",), ("diff", "GOOD")):
            refused("zarr", lambda path, text=text: (path / "zarr.json").write_text(text), *command)


@pytest.mark.parametrize(
    "change",
    [
        lambda h: [],
        lambda h: {"format": 1},
        lambda h: h.update(sizes={**h["sizes"], "parallelism": 3}),
        lambda h: h["variables"]["step_time"].update(dims=["parallelism"]),
        lambda h: h["variables"]["step_time"].update(dims=["a/b"]),
        lambda h: h["variables"].update({"../../x": h["variables"]["step_time"]}),
        lambda h: h["coordinates"]["parallelism"].update(dims=["model"]),
        lambda h: h["quantities"]["layer_time"].update(key=[0]) if "layer_time" in h["quantities"] else [],
        lambda h: h["quantities"].clear(),
        lambda h: h.update(attributes=[]),
    ],
)
def test_headers_of_wrong_types(refused, change):
    for command in (("explain", "step_time", *AT), ("diff", "GOOD")):
        assert "damaged" in refused("pgf", _header(change), *command)


def test_members_of_wrong_shape(refused):
    def damage(path):
        with zipfile.ZipFile(path) as file:
            members = {name: file.read(name) for name in file.namelist()}
        with zipfile.ZipFile(path, "w") as file:
            for name, content in members.items():
                if name != "value/step_time.npy":
                    file.writestr(name, content)
            with file.open("value/step_time.npy", "w") as member:
                np.lib.format.write_array(member, np.zeros((7, 7)))

    assert "value/step_time is damaged" in refused("pgf", damage, "diff", "GOOD")


def test_a_header_that_expands_without_end(refused):
    def damage(path):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("header.json", b" " * 140_000_000)

    assert "its header has more than 128 MiB" in refused("pgf", damage, "explain", "step_time", *AT)


def test_what_a_user_put_beside_a_store_stays(made, tmp_path, monkeypatch, capsys):
    shutil.copytree(made / "r.zarr", tmp_path / "p.zarr")
    (tmp_path / ".p.zarr.old").mkdir()
    (tmp_path / ".p.zarr.old" / "thesis.txt").write_text("precious")
    command = ("run", made / "study.toml", "-o", tmp_path / "p.zarr", "--overwrite")
    assert run(monkeypatch, capsys, *command)[0] == 0
    assert (tmp_path / ".p.zarr.old" / "thesis.txt").read_text() == "precious"
    (tmp_path / "p.zarr" / "notes.txt").write_text("precious")
    status, _, err = run(monkeypatch, capsys, *command)
    assert (status, "holds 'notes.txt', which perfgrid did not write" in err) == (2, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".p.zarr.old", "p.zarr"]


@pytest.mark.parametrize("name", ["thesis/c/precious.txt", "thesis/c.notes.txt", "my.partial", "deep/er/c.0", "c.0"])
def test_a_folder_with_a_file_of_the_user_is_not_removed(name, made, tmp_path, monkeypatch, capsys):
    store = shutil.copytree(made / "r.zarr", tmp_path / "p.zarr")
    (store / name).parent.mkdir(parents=True, exist_ok=True)
    (store / name).write_text("precious")
    status, _, err = run(monkeypatch, capsys, "run", made / "study.toml", "-o", store, "--overwrite")
    assert (status, f"holds {name!r}, which perfgrid did not write" in err) == (2, True)
    assert (store / name).read_text() == "precious"


def test_a_signal_between_two_renames_loses_no_store(made, tmp_path, monkeypatch):
    old = shutil.copytree(made / "r.zarr", tmp_path / "p.zarr")
    part = shutil.copytree(made / "r.zarr", tmp_path / "part")
    (old / "mark").touch()
    renamed = []

    def rename(a, b):
        renamed.append(a)
        if len(renamed) == 2:
            raise SystemExit(143)
        shutil.move(a, b)

    monkeypatch.setattr(files.os, "rename", rename)
    with pytest.raises(SystemExit):
        files.put_in_place(part, old)
    assert (old / "mark").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.zarr", "part"]


KILLED = """
import os, signal, sys
from pathlib import Path
from perfgrid.results import files
target = Path(sys.argv[1])
if target.suffix == ".zarr":
    rename = os.rename
    def renamed(a, b):
        rename(a, b)
        os.kill(os.getpid(), signal.SIGKILL)
    os.rename = renamed
    files.put_in_place(target.with_name("p.part.zarr"), target)
with files.replacing(target) as temporary:
    Path(temporary).write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("suffix", ["nc", "zarr"])
def test_what_a_kill_leaves_is_what_the_documentation_says(suffix, made, tmp_path, monkeypatch, capsys):
    target, good = tmp_path / f"p.{suffix}", made / f"r.{suffix}"
    (shutil.copytree if good.is_dir() else shutil.copy)(good, target)
    if suffix == "zarr":
        (target / "mark").touch()
        shutil.copytree(good, tmp_path / "p.part.zarr")
    done = subprocess.run([sys.executable, "-c", KILLED, target])
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(".perfgrid-*")
    assert target.exists() == (suffix == "nc")
    old = target if suffix == "nc" else left / "p.zarr"
    assert "step_time" in pg.open_result(old).load()
    assert left.name.endswith(".part") == (suffix == "nc")
    command = ("run", made / "study.toml", "-o", target, "--resume" if suffix == "zarr" else "--overwrite")
    status, _, err = run(monkeypatch, capsys, *command)
    assert status == 0, err
    assert sorted(tmp_path.iterdir()) == [left, target]  # of a run that might be at work


def failing(error):
    def fail(*arguments, **options):
        raise error

    return fail


@pytest.mark.parametrize("suffix", ["nc", "zarr", "pgf"])
def test_what_is_no_damage_of_a_file_is_not_called_one(suffix, made, monkeypatch):
    path = made / f"r.{suffix}"
    with monkeypatch.context() as patch:  # a bug in what perfgrid does with what it read
        patch.setattr(opening, "_lazy", failing(TypeError("a bug")))
        patch.setattr(factored, "_attributes", failing(TypeError("a bug")))
        with pytest.raises(TypeError, match="a bug"):
            pg.open_result(path)
    for error in (MemoryError(), KeyboardInterrupt()):
        with monkeypatch.context() as patch:
            patch.setattr(opening.NetCDF4DataStore, "open", failing(error))
            patch.setattr(opening.ZarrStore, "open_group", failing(error))
            patch.setattr(factored.np.lib.format, "read_array", failing(error))
            with pytest.raises(type(error)):
                pg.open_result(path)


@pytest.mark.parametrize("suffix", ["nc", "pgf"])
def test_the_cause_of_damage_is_kept(suffix, made, tmp_path):
    path = tmp_path / f"bad.{suffix}"
    shutil.copy(made / f"r.{suffix}", path)
    _cut(0.5)(path)
    with pytest.raises(pg.PerfgridError, match="cannot read") as found:
        pg.open_result(path)
    assert found.value.__cause__ is not None


def test_values_that_do_not_fit_the_memory_are_no_damage(made, monkeypatch):
    arrays = Arrays(made / "r.zarr")
    monkeypatch.setattr(type(arrays.array("step_time")), "__getitem__", failing(MemoryError()))
    with pytest.raises(MemoryError):
        arrays.labels("step_time")
    with pytest.raises(MemoryError):
        arrays.read("step_time", (slice(0, 1),) * arrays.array("step_time").ndim)


def test_a_pipe_is_no_result(tmp_path):
    for name in ("p.nc", "p.pgf", "p.zarr"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(pg.PerfgridError, match="it is a pipe or a device"):
            pg.open_result(tmp_path / name)


def test_names_that_no_file_can_have(made, tmp_path, monkeypatch, capsys):
    for suffix in (".nc", ".zarr", ".pgf"):
        with pytest.raises(pg.PerfgridError, match="null character"):
            pg.open_result(f"a\0b{suffix}")
        path = f"{tmp_path}/{'x' * 300}{suffix}"
        for command in (("run", made / "study.toml", "-o", path), ("explain", path, "step_time"), ("diff", path, path)):
            status, _, err = run(monkeypatch, capsys, *command)
            assert (status, len(err.strip().splitlines())) == (2, 1), (command, err)


def test_plan_tells_the_memory_of_every_way(made, monkeypatch, capsys):
    status, out, _ = run(monkeypatch, capsys, "plan", made / "study.toml", "--json")
    assert status == 0
    assert list(json.loads(out)["peak_bytes"]) == ["in memory", ".nc", ".zarr", ".pgf", "best"]


def test_grids_beyond_any_disk_are_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    axes = "".join(
        f"{n} = {{ scale = {{ start = 1, stop = 1.1, num = 100000 }} }}\n" for n in ("die_area", "saw_street")
    )
    axes += "defect_density = { scale = { start = 1, stop = 1.1, num = 100000 } }\n"
    text = f'workload = "manufacturing"\noutputs = ["die_cost"]\n[axes]\ndevice = ["b200", "mi300x"]\n{axes}'
    (tmp_path / "s.toml").write_text(text)
    status, _, err = run(monkeypatch, capsys, "run", tmp_path / "s.toml", "-o", tmp_path / "s.zarr")
    assert (status, "a store has at most 1,048,576 tiles" in err) == (2, True)
    assert [p.name for p in tmp_path.iterdir()] == ["s.toml"]
    assert run(monkeypatch, capsys, "plan", tmp_path / "s.toml")[0] == 0


def test_a_histogram_has_few_bins(made, monkeypatch, capsys):
    command = ("distribution", made / "study.toml", "--of", "step_time", "--bins", 10**8)
    status, _, err = run(monkeypatch, capsys, *command)
    assert (status, "at most 100,000 bins" in err) == (2, True)
