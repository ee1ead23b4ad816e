"""What a step waits for: shares that add up, change without a jump, and follow from what would be gained."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfgrid as pg
from perfgrid.formulas.kernels.roofline import NEGLIGIBLE, SHARPNESS, shared

SHARES = ("arithmetic", "on_chip", "hbm", "communication", "bubble", "rest")
TIMES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=5)


@given(TIMES, st.floats(0.9, 1.1))
def test_shares_add_up_and_move_with_the_times(times, factor):
    """A time that changes by a part x moves no chance by more than p/4·x, of two equal ones."""
    changed = [times[0] * factor, *times[1:]]
    assert sum(shared(*times)) == pytest.approx(max(times), rel=1e-12)
    moved = np.abs(chances(*changed) - chances(*times)).max()
    assert moved <= SHARPNESS / 4 * abs(np.log(factor)) + 4 * NEGLIGIBLE  # where a share begins
    order = np.argsort(times, kind="stable")
    assert np.min(np.diff(np.array(shared(*times))[order]), initial=0.0) >= -1e-9


def chances(*times):
    """Parts of the longest time."""
    return np.divide(shared(*times), max(*times, 1e-300))


def test_chances_are_those_of_times_that_err():
    """Times drawn around 10, 9 and 7: how often each is the longest."""
    drawn = np.log([10.0, 9.0, 7.0]) + np.random.default_rng(0).gumbel(0, 1 / SHARPNESS, (200_000, 3))
    often = np.bincount(drawn.argmax(axis=1)) / len(drawn)
    assert chances(10.0, 9.0, 7.0) == pytest.approx(often, abs=0.005)
    assert drawn.std(axis=0) == pytest.approx([0.16] * 3, abs=0.002)
    assert shared(0.0, 0.0) == [0.0, 0.0]
    assert shared(10.0, 10.0) == [5.0, 5.0]


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
