"""Signals at random moments, to the program as a user runs it and to its workers: the result comes out bit for bit."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import psutil
import pytest

from perfgrid import load_study, open_result, stream
from perfgrid.results.store.fill import part_of
from perfgrid.results.store.journal import NAME, read
from perfgrid.results.store.verify import verify
from tests.store.common import assert_same_stores, assert_same_values, written

pytestmark = pytest.mark.optimised

STATUS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}
TILE = 200  # hundreds of tiles, so that kills find something to interrupt


def command(folder, name, *options):
    program = [sys.executable, "-m", "perfgrid", "run", str(written(folder)), "-o", str(folder / name)]
    return [*program, "--tile-points", str(TILE), *map(str, options)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return stream(load_study(written(folder)), folder / "whole.zarr", tile_points=TILE)


def lines(store):
    path = part_of(store) / NAME
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_until(condition, process=None):
    """True as soon as the condition holds; False if the process ended before."""
    while not condition():
        if process is not None and process.poll() is not None:
            return False
        time.sleep(0.001)
    return True


def workers_of(process):
    """The living worker processes of a run; one that dies meanwhile is none."""
    found = []
    for child in psutil.Process(process.pid).children():
        with suppress(psutil.Error):
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


def kill_one(process, rng):
    """Whether a living worker was found and killed."""
    victims = workers_of(process)
    with suppress(psutil.NoSuchProcess):
        if victims:
            rng.choice(victims).kill()
            return True
    return False


def assert_partial_is_sound(store):
    """Whatever the journal names is on disk as it was written; nothing else is claimed."""
    if not part_of(store).exists():  # stopped before its first tile, it took everything away
        return 0
    header, entries, _ = read(part_of(store) / NAME)
    if header is None:
        return 0
    problems = [p for p in verify(store).problems if "not in the journal" not in p]
    assert problems == [f"{store} is not complete: it still is {part_of(store).name}, which --resume continues"]
    return len(entries)


def kill_program_often(whole, folder, trials, rng, signals=(signal.SIGKILL,)):
    """Kill the whole program at random moments, also before its first tile; the next run continues the store.

    A store that is complete before the signal arrives is begun anew.
    """
    store, words, killed = folder / "killed.zarr", folder / "stderr.txt", 0
    while killed < trials:
        with words.open("wb") as err:
            process = subprocess.Popen(command(folder, store.name, "--resume"), stdout=subprocess.DEVNULL, stderr=err)
        goal = lines(store) + rng.choice([0, 1, 2, 5, 12])
        sent = rng.choice(signals)
        if wait_until(lambda goal=goal: lines(store) > goal, process):
            time.sleep(rng.uniform(0, 0.02))
            os.kill(process.pid, sent)
        status = process.wait()
        assert status == STATUS[sent] or (status == 0 and store.exists()), (sent, status, words.read_text())
        if store.exists():
            assert_same_stores(whole, store)
            shutil.rmtree(store)
            continue
        killed += 1
        assert_partial_is_sound(store)
    done = subprocess.run(command(folder, store.name, "--resume"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_same_stores(whole, store)
    assert verify(store).problems == []


def kill_local_workers(whole, folder, trials, rng):
    """Kill one of two worker processes again and again: one run, no resume."""
    store = folder / "workers.zarr"
    process = subprocess.Popen(command(folder, store.name, "--workers", 2), stderr=subprocess.PIPE, text=True)
    for _ in range(trials):
        goal = lines(store) + rng.choice([1, 2, 4])
        assert wait_until(lambda goal=goal: lines(store) > goal, process)
        time.sleep(rng.uniform(0, 0.02))
        assert wait_until(lambda: kill_one(process, rng), process)  # none lives while they are being replaced
    assert process.wait() == 0, process.stderr and process.stderr.read()
    assert_same_stores(whole, store)


def fill_by_dask(whole, folder, trials, rng):
    """Two dask workers on loopback, killed at random moments; nothing listens beyond loopback."""
    from distributed import LocalCluster

    store, deaths = folder / "dask.zarr", []
    options: dict = {"host": "127.0.0.1", "dashboard_address": None, "memory_limit": 0}
    cluster: Any
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, **options) as cluster:
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        listening = {c.laddr.ip for p in processes for c in p.net_connections("tcp") if c.status == "LISTEN"}
        assert listening <= {"127.0.0.1", "::1"}

        def killer():
            for _ in range(trials):
                goal = lines(store) + rng.choice([1, 2, 4])
                wait_until(lambda goal=goal: lines(store) > goal)
                time.sleep(rng.uniform(0, 0.02))
                victim = rng.choice([nanny.pid for nanny in cluster.workers.values() if nanny.pid])
                os.kill(victim, signal.SIGKILL)
                deaths.append(victim)

        thread = threading.Thread(target=killer, daemon=True)
        thread.start()
        stream(load_study(written(folder)), store, tile_points=TILE, scheduler=cluster.scheduler_address)
        thread.join(60)
    assert len(deaths) == trials
    assert_same_stores(whole, store)


def test_kill_9_of_the_program_loses_nothing(whole, tmp_path):
    kill_program_often(whole, tmp_path, 1, random.Random(1))


@pytest.mark.slow
def test_kill_9_of_a_dask_worker_loses_nothing(whole, tmp_path):
    fill_by_dask(whole, tmp_path, 1, random.Random(2))


@pytest.mark.slow
def test_seventy_signals_at_random_moments_of_a_store(whole, tmp_path):
    kill_program_often(whole, tmp_path, 70, random.Random(), tuple(STATUS))


@pytest.mark.slow
def test_thirty_signals_at_random_moments_of_a_file(whole, tmp_path):
    """A netCDF file is there whole or not at all; only SIGKILL leaves the hidden file that was being written."""
    rng, target = random.Random(), tmp_path / "x.nc"
    for sent in [*STATUS] * 10:
        process = subprocess.Popen(
            command(tmp_path, target.name, "--stream"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        assert wait_until(lambda: any(tmp_path.glob(".*.part")), process)
        time.sleep(rng.uniform(0, 0.3))
        os.kill(process.pid, sent)
        status = process.wait()
        assert status in (0, STATUS[sent])
        assert target.exists() == (status == 0)
        left = list(tmp_path.glob(".*.part"))
        assert not left or sent == signal.SIGKILL
        for path in (*left, *tmp_path.glob("x.nc")):
            path.unlink()
    done = subprocess.run(command(tmp_path, target.name, "--stream"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open_result(target) as found, open_result(whole) as expected:
        assert_same_values(found, expected)


def dask_program(role, *arguments):
    program = [sys.executable, "-m", "distributed.cli.dask_" + role, *map(str, arguments)]
    return subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["scheduler", "memory"])
def test_a_lost_scheduler_and_workers_without_memory_end_in_a_sentence_and_are_resumed(whole, tmp_path, lost):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    host, port = address.split(":")
    store, limit = tmp_path / "lost.zarr", "120MB" if lost == "memory" else "0"
    scheduler = dask_program("scheduler", "--host", host, "--port", port, "--no-dashboard")
    worker = dask_program("worker", address, "--nthreads", 1, "--memory-limit", limit, "--no-dashboard")
    try:
        process = subprocess.Popen(
            command(tmp_path, store.name, "--scheduler", f"tcp://{address}"), stderr=subprocess.PIPE, text=True
        )
        if lost == "scheduler":
            assert wait_until(lambda: lines(store) > 3, process)
            scheduler.kill()
        _, err = process.communicate(timeout=180)
        assert process.returncode == 2, err
        assert err.strip().splitlines()[-1].startswith("perfgrid: ")
        assert "Traceback" not in err
    finally:
        for started in (worker, scheduler):
            started.kill()
            started.wait()
    resumed = subprocess.run(command(tmp_path, store.name, "--resume"), capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert_same_stores(whole, store)


@pytest.mark.slow
def test_kill_9_of_workers_at_many_random_moments(whole, tmp_path):
    kill_local_workers(whole, tmp_path, 5, random.Random())
    fill_by_dask(whole, tmp_path, 5, random.Random())


@pytest.mark.slow
def test_workers_end_with_the_program_that_started_them(whole, tmp_path):
    process = subprocess.Popen(command(tmp_path, "s.zarr", "--workers", 2), stderr=subprocess.DEVNULL)
    assert wait_until(lambda: lines(tmp_path / "s.zarr") > 2, process)
    workers = workers_of(process)
    assert len(workers) == 2
    process.kill()
    process.wait()
    assert psutil.wait_procs(workers, timeout=60)[1] == []
    done = subprocess.run(command(tmp_path, "s.zarr", "--resume"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_same_stores(whole, tmp_path / "s.zarr")
