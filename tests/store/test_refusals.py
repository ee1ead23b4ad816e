"""What is checked before a store is begun, and what is left where a check fails."""

import shutil
from pathlib import Path

import pytest

import perfgrid as pg
from perfgrid.results.store.fill import part_of
from tests.store.common import study

TILE = 700


def fill(path, made=None, **how):
    return pg.stream(made or study(), path, tile_points=TILE, small_points=64, **how)


@pytest.fixture
def copy(tmp_path):
    return Path(fill(tmp_path / "copy.zarr"))


def test_a_finished_store_is_resumed_on_a_full_disk(copy, monkeypatch):
    """Nothing is left to write."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    assert fill(copy, resume=True) == copy


def test_tiles_are_counted_as_a_stated_memory_makes_them(monkeypatch, tmp_path):
    from perfgrid.results.store import fill as module

    monkeypatch.setattr(module, "MOST_TILES", 30)
    monkeypatch.setattr(module, "fitting_tile", lambda *_: TILE)
    with pytest.raises(pg.PerfgridError, match=r"18,056 points in 38 tiles; a store has at most 30 tiles"):
        pg.stream(study(), tmp_path / "s.zarr", small_points=64, memory=10**9)
    assert list(tmp_path.iterdir()) == []


CLOSED = []


class Client:
    """Stands for that of dask."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        CLOSED.append(self)

    def wait_for_workers(self, *_, **__):
        pass


def test_a_cluster_is_left_whatever_fails_and_has_its_own_memory(copy, monkeypatch, tmp_path):
    pytest.importorskip("distributed")
    from perfgrid.results.store import executors
    from perfgrid.results.store import fill as module

    monkeypatch.setattr("distributed.Client", Client)
    monkeypatch.setattr("perfgrid.results.memory.available_memory", lambda: 10)
    monkeypatch.setattr(module, "cluster", lambda task, numbers, *_: executors.serial(task, numbers))
    assert fill(tmp_path / "s.zarr", scheduler="tcp://elsewhere:1").exists()
    copy.rename(part_of(copy))
    with pytest.raises(pg.PerfgridError, match="belongs to another run"):
        fill(copy, study(outputs=["die_cost"]), resume=True, scheduler="tcp://elsewhere:1")
    assert len(CLOSED) == 2
    with pytest.raises(pg.PerfgridError, match="of memory at most"):
        fill(tmp_path / "here.zarr")
