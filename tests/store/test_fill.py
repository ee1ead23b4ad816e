"""Stores filled, interrupted in this process, resumed, refused and verified."""

import errno
import json
import os
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import perfgrid as pg
from perfgrid.engine.grid import tiles
from perfgrid.results.feasibility import violations
from perfgrid.results.store.fill import part_of
from perfgrid.results.store.journal import NAME, TABLES
from perfgrid.results.store.verify import Opened, verify
from tests import small
from tests.store.common import TEXT, assert_same_stores, assert_same_values, study

pytestmark = pytest.mark.optimised

TILE = 700  # of 18,056 points: the last tile along an axis is ragged
TILES = 38


def fill(path, made=None, **how):
    return pg.stream(made or study(), path, tile_points=TILE, small_points=64, **how)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("whole") / "whole.zarr")


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "copy.zarr"))


def test_a_store_holds_what_evaluating_gives(whole):
    result = pg.evaluate(study(), small_points=64)
    with xr.open_dataset(whole) as stored:
        assert_same_values(stored, result)
        assert stored.die_cost.attrs == result.die_cost.attrs
        assert stored.die_fits_field.attrs["reason"] == result.die_fits_field.attrs["reason"]
        assert {k: v for k, v in result.attrs.items() if k != "history"}.items() <= stored.attrs.items()
    assert Opened(whole).violations() == violations(result)
    assert violations(result).partly > 0


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_regions_without_any_feasible_design_and_labels_that_are_true_or_false(tmp_path, suffix):
    """A flag that is violated everywhere equals what zarr takes for absent; netCDF has no truth values."""
    made = small.study(
        outputs=["state_memory"],
        axes={
            "model": ["llama-2-7b"],
            "device": ["h100-sxm-80gb"],
            "topology": ["rail-optimized"],
            "parallelism": {"devices": [64], "tp": [1, 2], "pp": [2]},
            "case": {"labels": ["a", "b"], "zip": {"global_batch": [5, 7], "flash_attention": [True, False]}},
        },
        workload_parameters={"sequence_length": 2048},
    )
    result = pg.evaluate(made, small_points=2)
    assert not pg.feasible(result).any()
    path = pg.stream(made, tmp_path / f"store{suffix}", tile_points=1, small_points=2)
    with xr.open_dataset(path) as stored:
        assert_same_values(stored, result)
    if suffix == ".zarr":
        assert verify(path).problems == []


def test_what_killed_writers_leave_is_no_part_of_the_store(whole, tmp_path):
    """A writer dies between the first byte of a file and its name, in a run that others finish."""
    path = tmp_path / "s.zarr"

    def die_while_writing(what, *_):
        if what == "evaluate":
            (part_of(path) / "die_cost" / "c.4f1e.partial").write_bytes(b"half")

    assert_same_stores(whole, fill(path, progress=die_while_writing))


def test_a_store_of_a_training_study_with_inner_axes_and_choices(tmp_path):
    """Zipped axes, columns told apart coarsely, quantities with inner axes, all small but the largest."""
    made = small.study(outputs=[*small.CONTENT["outputs"], "layer_streams", "hbm_capacity"])
    result = pg.evaluate(made, tile_points=2000)
    with xr.open_dataset(pg.stream(made, tmp_path / "s.zarr", tile_points=2000)) as stored:
        assert_same_values(stored, result)
        assert Opened(tmp_path / "s.zarr").violations() == violations(result)
    assert not verify(tmp_path / "s.zarr", made).problems
    with xr.open_dataset(pg.stream(made, tmp_path / "s.nc", tile_points=2000)) as stored:
        assert_same_values(stored, result)


def test_every_interruption_is_resumed_bit_for_bit(whole, tmp_path):
    """Stopped again and again at any place: after an entry, before one, while a variable is written."""
    path, stops = tmp_path / "s.zarr", iter([1, 2, 5, 3, 8, 1])
    state = {"left": 0}
    refusals: list[tuple[dict, str]] = [
        ({"memory": 10**8}, r"tiles of .* points: a memory of 0.1 GB is too little"),
        ({"dtype": "float64"}, r"the precision .*; give another name, or --overwrite to begin anew$"),
    ]

    class Stop(Exception):
        pass

    def stop(phase, done, total):
        state["left"] -= 1
        if phase == "evaluate" and state["left"] <= 0:
            raise Stop

    rounds = 0
    while not path.exists():
        state["left"] = next(stops, 1000)
        rounds += 1
        try:
            fill(path, progress=stop, resume=True)
        except Stop:
            assert part_of(path).exists()
        else:
            break
        for options, message in refusals:
            with pytest.raises(pg.PerfgridError, match=message):
                fill(path, resume=True, **options)
    assert rounds > 5
    assert_same_stores(whole, path)
    assert not part_of(path).exists()


def test_a_store_keeps_the_tiles_that_it_was_begun_with(whole, tmp_path, monkeypatch):
    """Also where tiles are cut otherwise by now: regions and tiles must be the same."""
    path, done = tmp_path / "s.zarr", []

    def stop(phase, *_):
        done.append(phase)
        if done.count("evaluate") > 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tiles, "CALLS", 1)
        with pytest.raises(KeyboardInterrupt):
            fill(path, progress=stop)
    fill(path, resume=True)
    with xr.open_dataset(whole) as expected, xr.open_dataset(path) as stored:
        assert Opened(path).regions != Opened(whole).regions
        assert_same_values(stored, expected)
    assert not verify(path, study()).problems


def test_errors_of_writing_are_sentences_and_lose_nothing(whole, tmp_path, monkeypatch):
    path, calls = tmp_path / "s.zarr", []
    real = os.fsync

    def full(handle):
        calls.append(handle)
        if len(calls) > 120:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(pg.PerfgridError, match=r"cannot write .*the disk is full; \d+ of 38 .*--resume"):
        fill(path)
    monkeypatch.undo()
    lacking = TILES - len([n for n in Opened(path).entries if n >= 0])
    incomplete, missing, *tables = verify(path).problems
    assert tables == ([] if TABLES in Opened(path).entries else ["the tables are not in the journal"])
    assert incomplete.startswith(f"{path} is not complete")
    assert missing.startswith(f"{lacking} of {TILES} tiles not in the journal: ")
    assert 0 < len(Opened(path).entries) < TILES
    fill(path, resume=True)
    assert_same_stores(whole, path)


def test_places_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(pg.PerfgridError, match=r"there is no folder '.*nowhere'"):
        fill(tmp_path / "nowhere" / "s.zarr")
    (tmp_path / "file.zarr").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(pg.PerfgridError, match="exists and is no store of perfgrid"):
            fill(tmp_path / "file.zarr", overwrite=overwrite)
    (tmp_path / "other.part.zarr").mkdir()
    (tmp_path / "other.part.zarr" / "thesis.txt").write_text("precious")
    with pytest.raises(pg.PerfgridError, match="exists and is no store of perfgrid"):
        fill(tmp_path / "other.zarr", resume=True)
    assert (tmp_path / "other.part.zarr" / "thesis.txt").exists()

    def forbidden(self, *_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(pg.PerfgridError, match=r"cannot write '.*s.zarr': Permission denied$"):
        fill(tmp_path / "s.zarr")


def test_stores_of_other_runs_are_refused_with_what_differs(copy, tmp_path, monkeypatch):
    other = {**study().file.axes, "yield_model": ["harvested"]}
    catalog = study().catalog.with_values({"node.n5.defect_density": 1234.0})
    for made, options, message in [
        (
            study(axes=other),
            {},
            r"key 'axes.yield_model' of the study \(\[\"negative_binomial\", .*\] there",
        ),
        (study(outputs=["die_cost"]), {}, "key 'outputs' of the study"),
        (study(), {"dtype": "float64"}, r"the precision \(float32 there, float64 here\)"),
        (study(catalog=catalog), {}, r"catalog value 'defect_density' of device mi300x \(.* there, 1234.0 here\)"),
    ]:
        with pytest.raises(pg.PerfgridError, match=message):
            fill(copy, made, resume=True, **options)
    monkeypatch.setattr("perfgrid.results.store.identity.version", lambda name: "9.9")
    with pytest.raises(pg.PerfgridError, match=r"the version of jax \(.* there, 9.9 here\)"):
        fill(copy, resume=True)
    monkeypatch.undo()
    monkeypatch.setattr("perfgrid.results.store.identity.formula_hash", lambda plan: "0" * 16)
    with pytest.raises(pg.PerfgridError, match=r"the formulas \((perfgrid [\d.]+, )?hash \w+ there, 0{16} here\)"):
        fill(copy, resume=True)
    monkeypatch.undo()
    assert fill(copy, resume=True) == copy  # its own run has nothing to do
    assert fill(copy, study(title="another title", best={"over": [], "minimize": "die_cost"}), resume=True) == copy


def test_a_damaged_journal_is_reported_and_replaced(tmp_path):
    path = tmp_path / "s.zarr"

    def stop(what, done, _):
        if what == "evaluate" and done > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(path, progress=stop)
    journal = part_of(path) / NAME
    header, _, *rest = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([header, b"no entry\n", *rest, b"no entry\n"]))
    for _ in range(2):  # the second time it is no other process that holds it
        with pytest.raises(pg.PerfgridError, match="damaged in line 2; --overwrite begins anew"):
            fill(path, resume=True)
    fill(path, overwrite=True)
    assert verify(path).problems == []


def test_an_overwriting_that_is_refused_loses_nothing(tmp_path):
    path = tmp_path / "s.zarr"

    def stop(what, done, _):
        if what == "evaluate" and done > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(path, progress=stop)
    before = (part_of(path) / NAME).read_bytes()
    with pytest.raises(pg.PerfgridError, match="memory"):
        fill(path, overwrite=True, memory=1000)
    assert (part_of(path) / NAME).read_bytes() == before
    fill(path, resume=True)
    assert verify(path).problems == []


@pytest.mark.parametrize("how", [{"tile_points": 0}, {"tile_points": -5}, {"memory": "4GB"}, {"memory": 0}])
def test_tiles_of_nothing_and_memory_that_is_no_number_are_refused(tmp_path, how):
    with pytest.raises(pg.PerfgridError, match=f"{next(iter(how))} must be a number of"):
        pg.stream(study(), tmp_path / "s.zarr", **how)
    assert list(tmp_path.iterdir()) == []


def test_a_precision_that_grids_have_not_is_refused_before_anything_is_begun(tmp_path):
    for begin in (
        lambda: pg.stream(study(), tmp_path / "s.zarr", dtype="float16"),
        lambda: pg.save(study(), tmp_path / "s.pgf", dtype="float16"),
    ):
        with pytest.raises(pg.PerfgridError, match="float32 or float64"):
            begin()
    assert list(tmp_path.iterdir()) == []


def test_finished_and_unfinished_stores_are_protected(copy, tmp_path):
    with pytest.raises(pg.PerfgridError, match="exists; give --overwrite"):
        fill(copy)
    part = part_of(copy)
    copy.rename(part)
    with pytest.raises(pg.PerfgridError, match="is an unfinished run; give --resume to continue it or --overwrite"):
        fill(copy)
    with pytest.raises(pg.PerfgridError, match="give one of them"):
        fill(copy, resume=True, overwrite=True)
    lines = (part / NAME).read_text().splitlines(keepends=True)
    (part / NAME).write_text("".join(lines[:4]))
    fill(copy, study(outputs=["die_cost"]), overwrite=True)
    with xr.open_dataset(copy) as stored:
        assert "die_yield" not in stored
    fill(copy, overwrite=True)
    with xr.open_dataset(copy) as stored:
        assert "die_yield" in stored
    assert [p.name for p in tmp_path.iterdir()] == ["copy.zarr"]


def test_a_template_that_was_not_finished_is_begun_anew(whole, copy):
    part = part_of(copy)
    copy.rename(part)
    (part / NAME).write_text("")
    shutil.rmtree(part / "die_cost")
    assert_same_stores(whole, fill(copy, resume=True))


def test_verify_finds_what_is_wrong(whole, copy):
    assert verify(whole, study()).problems == []
    ranges = verify(whole).ranges
    result = pg.evaluate(study())
    masked = result.die_yield.where(pg.feasible(result, of="die_yield"))
    assert ranges["die_yield"] == pytest.approx((float(masked.min()), float(masked.max())))

    def problems(change, made=None):
        target = Path(shutil.copytree(whole, copy.with_name("changed.zarr")))
        change(target)
        found = verify(target, made).problems
        shutil.rmtree(target)
        return found

    def rewrite(target, name, value):
        import zarr

        zarr.open_array(target / name, mode="r+")[0] = value

    def journal(target, old, new):
        (target / NAME).write_text((target / NAME).read_text().replace(old, new, 1))

    def attribute(target, old, new):
        text = (target / "zarr.json").read_text()
        assert old in text
        (target / "zarr.json").write_text(text.replace(old, new))

    region = Opened(whole).regions.region(3, Opened(whole).dims["die_cost"])
    chunks = Opened(whole).arrays.array("die_cost").chunks
    one = "c." + ".".join(str((r.start or 0) // n) for r, n in zip(region, chunks, strict=True))
    assert problems(lambda t: (t / "die_cost" / one).unlink()) == ["tile 3: the region of die_cost is missing"]
    assert "cannot be read" in problems(lambda t: (t / "die_cost" / one).write_bytes(b"\x02" * 40))[0]
    swapped = next(p for p in (whole / "die_cost").glob("c.*") if p.name != one).read_bytes()
    assert problems(lambda t: (t / "die_cost" / one).write_bytes(swapped)) == [
        "tile 3: its values are not those that were written"
    ]
    assert all("not those that were written" in p for p in problems(lambda t: rewrite(t, "die_cost", 1.0)))
    lost, other = problems(lambda t: journal(t, '{"tile":5,', '{"tile":4,'))
    assert lost == f"1 of {TILES} tiles not in the journal: 5"
    assert other == "tile 4: its values are not those that were written"
    assert "its study or catalog values were changed" in problems(lambda t: attribute(t, "mi300x", "mi301x"))[0]
    assert "differs in key 'outputs'" in problems(lambda t: None, study(outputs=["die_cost"]))[0]
    with pytest.raises(pg.PerfgridError, match="is no store of perfgrid"):
        verify(copy.parent)


def test_values_that_are_not_finite_where_feasible_are_found(tmp_path):
    @pg.formula(unit="USD", source="mine")
    def die_cost(die_area):
        """Nothing for dies of a middling size."""
        return die_area / (1 - ((die_area > 4e-4) & (die_area < 5e-4)))

    made = pg.Study.make(formulas=[die_cost], **{**tomllib.loads(TEXT), "outputs": ["die_cost", "die_yield"]})
    found = verify(pg.stream(made, tmp_path / "s.zarr", tile_points=1000))
    assert any("die_cost is not finite at a feasible point" in p for p in found.problems)
    assert "formulas of its user, die_cost" in found.notes[0]


def test_the_header_of_the_journal_ties_it_to_the_store(copy):
    header = json.loads((copy / NAME).read_text().splitlines()[0])
    assert header["tiles"] == TILES
    (copy / NAME).write_text((copy / NAME).read_text().replace(header["seal"], "0" * 64))
    assert "its journal belongs to another store" in verify(copy).problems
    assert np.isclose(Opened(copy).points, 18_056)
