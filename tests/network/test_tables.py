"""Formulas on tables of schedules against single calls; derivatives with respect to the tiers' speed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfgrid.calculators.collective import algorithms_for, collective_time
from perfgrid.calculators.collective_input import read_fabric
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.axes import INNER, table
from perfgrid.formulas.collectives import ideal
from perfgrid.formulas.collectives.ideal_tables import ALGORITHMS, schedules
from perfgrid.formulas.collectives.schedules.algorithms import COLLECTIVES
from perfgrid.formulas.collectives.schedules.schedule import UNAVAILABLE
from tests.slopes import slopes_of

pytestmark = pytest.mark.optimised  # reverse mode of unoptimised code is not finite here


def tier(kind, shape, bandwidth, **more):
    return {"kind": kind, "shape": shape, "bandwidth": bandwidth, **more}


FABRICS = {
    "rail": [tier("switch", [8], 4e11), tier("rail", [6], 5e10)],
    "fat tree of pods": [tier("switch", [4], 4e11), tier("fat_tree", [4, 3], 5e10, oversubscription=[2.0, 4.0])],
    "torus": [tier("torus", [4, 2, 6], 4.5e10)],
    "ring of full meshes": [tier("fully_connected", [4], 6e10), tier("ring", [6], 1e10)],
    "mesh over rails": [tier("mesh", [2, 4], 9e10), tier("rail_only", [4], 2e10)],
    "dragonfly": [tier("dragonfly", [2, 4, 9], 2.5e10, global_links_per_router=2)],
}
GROUPS = [(s, q) for s in (2, 4, 6, 8, 12, 24, 48) for q in (1, 2, 4, 8, 16)]
STEP, HOP, POST = 2e-6, 3e-7, 1e-7


def speeds(tiers):
    """Latencies and bandwidths by tier; one that is absent repeats the inner one."""
    return STEP * np.ones(2), HOP * np.ones(2), np.array([tiers[0]["bandwidth"], tiers[-1]["bandwidth"]]), POST


def given(found, size, step, hop, bandwidth, post):
    """The arguments of the formulas."""
    step, hop, bandwidth = (table("tier", scale_up=x[0], scale_out=x[1]) for x in (step, hop, bandwidth))
    return size, INNER.vector("tier", found), step, hop, post, bandwidth, 0.0


@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_formulas_are_single_calls(name, collective):
    tiers = FABRICS[name]
    topology = {"tiers": tiers, "step_latency": STEP, "hop_latency": HOP, "message_latency": POST}
    fabric, legal = read_fabric(topology), 0
    for size, stride in GROUPS:
        found = schedules(fabric, collective, size, stride, False)
        case = {"collective": collective, "topology": topology, "group": {"size": size, "stride": stride}}
        try:
            names = algorithms_for(topology, collective, case["group"])
        except PerfgridError:
            assert not np.squeeze(ideal.any_offered(INNER.vector("tier", found)))
            continue
        legal += 1
        for bytes_ in (1e3, 3e6, 1e9):
            every = given(found, bytes_, *speeds(tiers))
            group, split = (np.ravel(t) for t in ideal.candidates(*every))
            offered = {name for name, time in zip(ALGORITHMS, group, strict=True) if time < UNAVAILABLE}
            assert offered == {*names} - {"tier_by_tier"}
            for algorithm in names:
                time = split[0] if algorithm == "tier_by_tier" else group[ALGORITHMS.index(algorithm)]
                assert time == pytest.approx(collective_time(algorithm=algorithm, size=bytes_, **case), rel=1e-12)
            if "tier_by_tier" in names:
                best = float(np.squeeze(ideal.fastest_time(*every)))
                assert best == pytest.approx(collective_time(size=bytes_, **case), rel=1e-12)
    assert legal >= 3
    alone = given(schedules(fabric, collective, 1, 1), 1e9, *speeds(tiers))
    assert np.squeeze(ideal.fastest_time(*alone)) == 0.0


PAIRS = pytest.mark.parametrize(
    ("name", "collective"), [("rail", "all_reduce"), ("torus", "broadcast"), ("dragonfly", "all_to_all")]
)


def offered(name, collective):
    fabric = read_fabric({"tiers": FABRICS[name]})
    tables = [schedules(fabric, collective, *group, False) for group in GROUPS]
    return [t for t in tables if np.squeeze(ideal.any_offered(INNER.vector("tier", t)))]


@PAIRS
def test_slopes_by_tier_are_finite(name, collective):

    def fastest(found, inner, outer, inside, outside, hop, post, size):
        return ideal.fastest_time(*given(found, size, (inner, outer), (hop, hop), (inside, outside), post))

    (inner, outer), (hop, _), (inside, outside), post = speeds(FABRICS[name])
    at = {"inner": inner, "outer": outer, "inside": inside, "outside": outside, "hop": hop, "post": post}
    for found in offered(name, collective):
        slopes = slopes_of(partial(fastest, found), size=3e6, **at)
        assert all(np.isfinite(slope).all() for slope in slopes.values())
        for name, slope in slopes.items():  # more bandwidth is never slower
            assert (slope <= 0).all() if name in ("inside", "outside") else (slope >= 0).all()
        assert sum(np.abs(slope).sum() for slope in slopes.values()) > 0


@pytest.mark.slow
@PAIRS
def test_gradients_in_reverse_mode_are_finite(name, collective):
    tables, tiers = offered(name, collective), FABRICS[name]

    def total(step, hop, bandwidth, post, size):
        return sum(jnp.sum(ideal.fastest_time(*given(t, size, step, hop, bandwidth, post))) for t in tables)

    with jax.enable_x64(True):
        where = (*map(jnp.asarray, speeds(tiers)), jnp.asarray(3e6))
        value, slopes = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2, 3, 4)))(*where)
        assert all(np.isfinite(s).all() for s in slopes)
        assert (slopes[2] <= 0).all()  # more bandwidth is never slower
        assert all((s >= 0).all() for s in (slopes[0], slopes[1], slopes[3], slopes[4]))
        assert float(value) == pytest.approx(float(total(*speeds(tiers), 3e6)), rel=1e-12)
