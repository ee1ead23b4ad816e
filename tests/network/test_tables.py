"""Tables of groups against single calls; gradients with respect to the tiers' speed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfgrid.calculators.collective import algorithms_for, collective_time
from perfgrid.calculators.collective_input import read_fabric
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.collectives.schedules.algorithms import COLLECTIVES
from perfgrid.formulas.collectives.schedules.schedule import UNAVAILABLE
from perfgrid.formulas.collectives.schedules.tables import (
    ALGORITHMS,
    HOW,
    best_time,
    group_table,
    table_coefficients,
    tier_by_tier_time,
    tier_coefficients,
)


def tier(kind, shape, bandwidth, **more):
    return {"kind": kind, "shape": shape, "bandwidth": bandwidth, **more}


FABRICS = {
    "rail": [tier("switch", [8], 4e11), tier("rail", [6], 5e10)],
    "rail in pods": [
        tier("switch", [4], 4e11),
        tier("rail", [4], 5e10),
        tier("fat_tree", [3], 5e10, oversubscription=4.0),
    ],
    "torus": [tier("torus", [4, 2, 6], 4.5e10)],
    "ring of full meshes": [tier("fully_connected", [4], 6e10), tier("ring", [6], 1e10)],
    "mesh over rails": [tier("mesh", [2, 4], 9e10), tier("rail_only", [4], 2e10)],
    "dragonfly": [tier("dragonfly", [2, 4, 9], 2.5e10, global_links_per_router=2)],
}
GROUPS = [(s, q) for s in (1, 2, 4, 6, 8, 12, 24, 48) for q in (1, 2, 4, 8, 16)]
TOGETHER = ("direct", "one_shot", "multi_ring", "rail_forward", "dimension_order")
STEP, HOP, POST = 2e-6, 3e-7, 1e-7


def speeds(tiers):
    same = np.ones(len(tiers))
    return STEP * same, HOP * same, np.array([t["bandwidth"] for t in tiers]), POST * same


@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_tables_are_single_calls(name, collective):
    tiers, sizes = FABRICS[name], np.array([1e3, 3e6, 1e9])
    topology = {"tiers": tiers, "step_latency": STEP, "hop_latency": HOP, "message_latency": POST}
    table = group_table(read_fabric(topology), collective, GROUPS, tiers=4)
    padded = [np.concatenate([x, np.full(4 - len(tiers), x[-1])]) for x in speeds(tiers)]
    whole = table_coefficients(table.schedule, table.how, table.offered, *padded)
    parts = tier_coefficients(table.by_tier, table.by_tier_offered, *padded)
    times = whole.time(sizes[:, None, None])  # [size, group, algorithm]
    least, split = best_time(whole, sizes[:, None]), tier_by_tier_time(parts, sizes[:, None])
    legal = 0
    for g, (size, stride) in enumerate(GROUPS):
        one_tier = np.sum(table.schedule.volume[g] > 0, axis=-1) <= 1  # how the tiers follow each other makes no odds
        for a in np.flatnonzero(table.offered[g] & ~one_tier):  # as formulas on ideal fabrics take it from the name
            expected = "pipelined" if ALGORITHMS[a] == "hierarchical_pipelined" else "in_sequence"
            assert HOW[table.how[g, a]] == ("together" if ALGORITHMS[a] in TOGETHER else expected)
        case = {"collective": collective, "topology": topology, "group": {"size": size, "stride": stride}}
        try:
            names = algorithms_for(topology, collective, case["group"])
        except PerfgridError:
            names = None
        assert table.placed[g] == (names is not None)
        if names is None:
            assert (times[:, g] >= UNAVAILABLE).all()
            continue
        legal += 1
        assert {a for a, there in zip(ALGORITHMS, table.offered[g], strict=True) if there} == {*names} - {
            "tier_by_tier"
        }
        for s, bytes_ in enumerate(sizes):
            for algorithm in names:
                found = split[s, g] if algorithm == "tier_by_tier" else times[s, g, ALGORITHMS.index(algorithm)]
                single = collective_time(algorithm=algorithm, size=bytes_, **case)
                assert found == pytest.approx(single, rel=1e-12), algorithm
            both = min(least[s, g], split[s, g]) if "tier_by_tier" in names else least[s, g]
            assert both == pytest.approx(collective_time(size=bytes_, **case), rel=1e-12)
    assert legal >= 3


@pytest.mark.parametrize(
    ("name", "collective"), [("rail in pods", "all_reduce"), ("torus", "broadcast"), ("dragonfly", "all_to_all")]
)
def test_gradients_by_tier_are_finite(name, collective):
    tiers = FABRICS[name]
    table = group_table(read_fabric({"tiers": tiers}), collective, GROUPS)

    def total(step, hop, bandwidth, post, size):
        whole = table_coefficients(table.schedule, table.how, table.offered, step, hop, bandwidth, post)
        parts = tier_coefficients(table.by_tier, table.by_tier_offered, step, hop, bandwidth, post)
        return jnp.sum(jnp.minimum(best_time(whole, size), tier_by_tier_time(parts, size)) * table.placed)

    with jax.enable_x64(True):
        where = (*map(jnp.asarray, speeds(tiers)), jnp.asarray(3e6))
        value, slopes = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2, 3, 4)))(*where)
        assert all(np.isfinite(s).all() for s in slopes)
        assert (slopes[2] <= 0).all()  # more bandwidth is never slower
        assert all((s >= 0).all() for s in (slopes[0], slopes[1], slopes[3], slopes[4]))
        assert float(value) == pytest.approx(float(total(*speeds(tiers), 3e6)), rel=1e-12)
