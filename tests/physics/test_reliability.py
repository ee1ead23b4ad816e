"""Goodput against a simulated run, and the best interval between checkpoints against a search."""

import numpy as np
import pytest

from perfgrid.formulas.training.reliability import best_interval, progress

from .cases import design

HOUR = 3600.0
CASES = [(60.0, 600.0, 3 * HOUR), (10.0, 60.0, 24 * HOUR), (600.0, 900.0, 2 * HOUR), (5.0, 30.0, 300.0)]


def simulated(interval, checkpoint, restart, between_failures, segments=40_000):
    """Part of the time that is progress: segments of work and checkpoint repeated until no failure interrupts one."""
    generator = np.random.default_rng(1)
    spent, done = 0.0, 0
    while done < segments:
        failure = generator.exponential(between_failures)
        if failure >= interval + checkpoint:
            spent, done = spent + interval + checkpoint, done + 1
            continue
        spent += failure
        while (again := generator.exponential(between_failures)) < restart:
            spent += again  # fails again while it restarts
        spent += restart
    return done * interval / spent


@pytest.mark.parametrize(("checkpoint", "restart", "between"), CASES)
def test_progress_against_a_simulated_run(checkpoint, restart, between):
    interval = best_interval(checkpoint, between)
    found = progress(interval, checkpoint, restart, between)
    assert found == pytest.approx(simulated(interval, checkpoint, restart, between), rel=0.01)


@pytest.mark.parametrize(("checkpoint", "restart", "between"), CASES)
def test_the_best_interval_against_a_search(checkpoint, restart, between):
    tried = np.geomspace(checkpoint / 10, 10 * between, 4001)
    best = progress(tried, checkpoint, restart, between).max()
    assert progress(best_interval(checkpoint, between), checkpoint, restart, between) == pytest.approx(best, rel=1e-4)


def test_short_checkpoints_follow_the_square_root():
    """Young's first-order rule, sqrt(2·C·M); and checkpoints longer than the time between failures."""
    assert best_interval(1.0, 1e8) == pytest.approx(np.sqrt(2e8), rel=1e-3)
    assert best_interval(3.0, 1.0) == 1.0
    assert 0 < progress(1.0, 1e6, 1e9, 1.0) < 1e-20


def test_a_long_run_of_llama_3():
    """54 days on 16384 devices: 419 unexpected interruptions, more than 90 % of the time effective (table 5)."""
    q = design(
        "llama-3.1-405b",
        "h100-sxm-80gb",
        tp=8.0,
        pp=16.0,
        dp=128.0,
        global_batch=2048.0,
        sequence_length=8192.0,
        software="megatron-core",
        zero=1.0,
    )
    assert 54 * 24 * HOUR / q["time_between_failures"] == pytest.approx(419, rel=0.02)
    assert 0.9 < q["goodput"] < 1
    assert q["expected_training_time"] == pytest.approx(q["training_time"] / q["goodput"])
    assert q["expected_failures"] == pytest.approx(q["expected_training_time"] / q["time_between_failures"])
    assert q["checkpoint_size"] == pytest.approx(405.85e9 * 14, rel=0.01)
    assert q["checkpoint_time"] == pytest.approx(q["checkpoint_size"] / 2e12, rel=0.01)


def test_more_failures_and_slower_storage_cost_progress():
    def goodput(**changes):
        return design("llama-3.1-8b", dp=128.0, tp=8.0, global_batch=1024.0, **changes)["goodput"]

    for name, values in (
        ("device_failure_rate", (1e-9, 1e-8, 1e-6)),
        ("restart_time", (0.0, 60.0, 6000.0)),
        ("checkpoint_bandwidth", (1e10, 1e8, 1e6)),
    ):
        found = [goodput(**{name: value}) for value in values]
        assert found == sorted(found, reverse=True)
        assert all(0 < g <= 1 for g in found)
