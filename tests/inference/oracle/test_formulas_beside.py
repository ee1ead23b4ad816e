"""Formulas beside simulated systems: the shares within 10, 15 and 25 % of p50, p90 and p99 do not fall.

Aimed at are 0.95 below 80 % load and 0.85 above.
"""

import numpy as np
import pytest

from .__main__ import stored
from .compared import HIGH, errors, within

# p50, p90, p99 of first tokens, of times per token and of latencies of open arrivals
REACHED = {
    "replica": [[0.91, 0.95, 0.91], [0.93, 0.96, 0.95], [0.96, 0.97, 0.98]],
    "pipeline": [[0.86, 0.87, 0.91], [0.86, 0.95, 0.98], [0.88, 0.90, 0.98]],
    "lockstep": [[0.89, 0.90, 0.91], [0.87, 0.93, 0.96], [0.87, 0.93, 0.96]],
}


@pytest.fixture(scope="module")
def found():
    """Errors of the open arrivals of each structure."""
    records = [r for r in stored() if r["load"]["kind"] == "open" and r["structure"] in REACHED]
    return {name: np.array([errors(r) for r in records if r["structure"] == name]) for name in REACHED}


@pytest.mark.parametrize("structure", REACHED)
def test_as_many_systems_as_stated_are_within_the_bounds(found, structure):
    shares = within(found[structure])
    assert (shares >= np.array(REACHED[structure])).all(), shares.round(2)


@pytest.mark.parametrize("structure", REACHED)
def test_half_of_the_systems_are_close(found, structure):
    assert (np.abs(np.nanmedian(found[structure][:, :, 0], axis=0)) < 0.025).all()


def test_waits_do_not_explode_below_saturation():
    """In lockstep groups a first token was once predicted a thousand times too late: now at most 2.1 times.

    That is of a pipeline whose prompts have iterations of their own: near saturation few percent of capacity decide.
    """
    for record in stored():
        if record["structure"] != "pools" and record["load"]["kind"] == "open" and record["load"]["of_capacity"] < HIGH:
            assert np.nanmax(errors(record)[0], initial=0.0) < 1.15, record["seed"]


def test_two_pools_are_near_the_simulation():
    """Every sixth system with arrivals: each pool alone, and joined."""
    records = [r for r in stored() if r["structure"] == "pools" and r["load"]["kind"] == "open"][::6]
    reached = within(np.array([errors(record) for record in records]))
    assert (reached[0] >= 0.65).all(), reached  # first tokens
    assert (reached[1:] >= 0.8).all(), reached  # time per token, latency
