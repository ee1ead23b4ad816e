"""What a step waits for: shares that add up, change without a jump, and follow from what would be gained."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfgrid as pg
from perfgrid.formulas.kernels.roofline import shared

SHARES = ("arithmetic", "on_chip", "hbm", "communication", "bubble", "rest")
TIMES = st.lists(st.floats(0, 1e3), min_size=1, max_size=5)


@given(TIMES)
def test_shares_are_what_is_gained_on_average_over_all_orders(times):
    """By the definition: resources become free one after the other, in every order."""
    gained = np.zeros(len(times))
    orders = list(permutations(range(len(times))))
    for order in orders:
        left = [max((times[i] for i in order[n:]), default=0.0) for n in range(len(times) + 1)]
        gained[list(order)] += -np.diff(left) / len(orders)
    np.testing.assert_allclose(shared(times), gained, atol=1e-9 * max(times), rtol=0)


@given(TIMES, st.floats(0.9, 1.1))
def test_shares_add_up_and_move_no_more_than_a_time_does(times, factor):
    changed = [times[0] * factor, *times[1:]]
    before, after = np.array(shared(times)), np.array(shared(changed))
    assert before.sum() == pytest.approx(max(times), rel=1e-12, abs=1e-12)
    assert np.abs(after - before).max() <= abs(changed[0] - times[0]) + 1e-9 * max(times)
    assert (before >= -1e-12 * max(times)).all()
    assert (before <= np.array(times) + 1e-12 * max(times)).all()


def test_the_interval_that_several_take_is_divided_among_them():
    assert shared((10.0, 5.0)) == pytest.approx((7.5, 2.5))
    assert shared((10.0, 10.0, 4.0)) == pytest.approx((13 / 3, 13 / 3, 4 / 3))


def of_designs(scaled, factor):
    """Shares of the step of designs of all kinds whose devices have more of something."""
    study = pg.Study.make(
        outputs=[f"{name}_fraction" for name in SHARES],
        axes={
            "model": ["llama-3.1-8b", "gpt3-175b", "deepseek-v3"],
            "device": ["a100-sxm-80gb", "h100-sxm-80gb", "b200", "mi300x", "tpu-v5p"],
            "software": ["megatron-lm"],
            "topology": ["rail-optimized"],
            "microbatch": [1, 4],
            "precision": ["bf16", "fp8"],
            "parallelism": {"devices": [64], "tp": [1, 8], "pp": [1, 4], "ep": [1, 8]},
            scaled: {"scale": [1.0, factor]},
        },
        workload_parameters={"global_batch": 256, "sequence_length": 4096},
    )
    return pg.evaluate(study, dtype="float64")


@pytest.mark.parametrize(
    "scaled", ["hbm_bandwidth", "l2_bandwidth", "shared_memory_bandwidth", "scale_up_bandwidth", "peak_bf16_rate"]
)
def test_a_percent_of_a_bandwidth_moves_no_share_by_three_points(scaled):
    found = of_designs(scaled, 1.01)
    shares = np.stack([found[f"{name}_fraction"].transpose(..., scaled).values for name in SHARES])
    np.testing.assert_allclose(shares.sum(axis=0), 1.0, atol=1e-9)
    assert np.abs(np.diff(shares, axis=-1)).max() < 0.03


def test_no_share_jumps_from_node_to_node():
    """Where the step changes by less than 15 %, no share changes by 12 points; 14 where another layout is the best."""
    best = pg.best(pg.load_study("studies/papers/node_scaling.toml")).squeeze(drop=True)
    steps, layouts = (best[name].transpose("node", ...).values for name in ("step_time", "parallelism"))
    shares = np.stack([best[f"{name}_fraction"].transpose("node", ...).values for name in SHARES])
    np.testing.assert_allclose(shares.sum(axis=0), 1.0, atol=1e-5)
    alike = np.abs(steps[1:] / steps[:-1] - 1) < 0.15
    moved = np.abs(np.diff(shares, axis=1)).max(axis=0)
    assert alike.sum() > 60
    assert moved[alike & (layouts[1:] == layouts[:-1])].max() < 0.12
    assert moved[alike].max() < 0.14
