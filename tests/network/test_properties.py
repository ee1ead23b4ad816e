"""Drawn fabrics, groups and sizes: bounds, monotony, the best of all; arrays and gradients against single calls."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfgrid.calculators.collective import algorithms_for, collective_coefficients, collective_time
from perfgrid.calculators.collective_input import placed
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.collectives.schedules import alltoall, grids, rings, switched
from perfgrid.formulas.collectives.schedules.algorithms import COLLECTIVES
from perfgrid.formulas.collectives.schedules.fabric import KINDS, OUTER
from perfgrid.formulas.collectives.schedules.schedule import Coefficients, Schedule
from tests.network.bounds import lower_bound

side = st.integers(2, 6)
speed = st.floats(1e9, 1e12)
ONE_PORT = {
    "all_gather": {"ring", "halving_doubling", "bucket", "line", "multi_ring"},
    "all_reduce": {"ring", "halving_doubling", "recursive_doubling", "double_binary_tree", "bucket", "multi_ring"},
    "broadcast": {"binomial_tree", "scatter_all_gather", "pipelined_chain"},
}


@st.composite
def single_tiers(draw):
    kind = draw(st.sampled_from([k for k in KINDS if k not in OUTER]))
    tier = {"kind": kind, "bandwidth": draw(speed)}
    if kind in ("ring", "line", "fully_connected", "switch"):
        tier["shape"] = [draw(st.integers(2, 24))]
    elif kind == "hypercube":
        tier["shape"] = [2] * draw(st.integers(1, 6))
    elif kind == "dragonfly":
        routers, links = draw(st.integers(2, 4)), draw(st.integers(1, 3))
        groups = draw(st.sampled_from([routers * links + 1, draw(st.integers(1, routers * links + 1))]))
        tier |= {"shape": [draw(st.integers(1, 3)), routers, groups], "global_links_per_router": links}
    elif kind == "twisted_torus":
        k = draw(st.integers(2, 4))
        tier |= {"shape": [k, 2 * k], "twist": {"0": [0, k]}}
    else:
        least = 2 if kind == "flattened_butterfly" else 1
        tier["shape"] = draw(st.lists(st.one_of(side, side, st.just(1)), min_size=least, max_size=4))
    if kind == "fat_tree":
        tier["oversubscription"] = [draw(st.floats(1, 8)) for _ in tier["shape"]]
    if kind == "torus" and draw(st.booleans()):
        tier["wraps"] = [draw(st.booleans()) for _ in tier["shape"]]
    if kind == "ring":
        tier["bidirectional"] = draw(st.booleans())
    return tier


def _short(tier):
    return tier | {key: tier[key][:2] for key in ("shape", "wraps") if key in tier}


@st.composite
def fabrics(draw):
    tiers = [draw(single_tiers())]
    if draw(st.booleans()):
        outer = {"kind": draw(st.sampled_from(["rail", "rail_only", "fat_tree", "switch", "ring", "fully_connected"]))}
        tiers = [_short(t) if len(t["shape"]) > 2 and t["kind"] != "dragonfly" else t for t in tiers]
        outer |= {"shape": [draw(st.integers(2, 6))], "bandwidth": draw(speed)}
        if outer["kind"] in ("fat_tree", "rail"):
            outer["oversubscription"] = draw(st.floats(1, 4))
        tiers.append(outer)
    latencies = {"step_latency": 2e-5, "hop_latency": 2e-6, "message_latency": 1e-6}
    return {"tiers": tiers, **{name: draw(st.floats(0, most)) for name, most in latencies.items()}}


@st.composite
def cases(draw):
    topology = draw(fabrics())
    total = math.prod(math.prod(t["shape"]) for t in topology["tiers"])
    assume(2 <= total <= 2000)
    stride = draw(st.sampled_from([d for d in range(1, total) if total % d == 0]))
    size = draw(st.sampled_from([d for d in range(2, total // stride + 1) if total // stride % d == 0]))
    group = draw(st.sampled_from([None, {"size": size, "stride": stride}]))
    collective = draw(st.sampled_from(COLLECTIVES))
    try:
        algorithms_for(topology, collective, group)
    except PerfgridError as error:
        assume(not str(error).startswith("group"))  # a group that does not fill whole domains; all else is legal here
        raise
    return {"collective": collective, "topology": topology, "group": group, "size": draw(st.floats(1, 1e11))}


def every_time(case):
    names = algorithms_for(case["topology"], case["collective"], case["group"])
    return {name: collective_time(algorithm=name, **case) for name in names}


@settings(max_examples=400)
@given(cases())
def test_nothing_beats_its_bounds_and_best_is_the_least(case):
    times = every_time(case)
    _, places = placed(case["collective"], case["topology"], case["group"])
    n = math.prod(p.members for p in places)
    bounds = {
        name: lower_bound(places, case["collective"], case["size"], in_network=name in ("in_network", "tier_by_tier"))
        for name in times
    }
    for name, time in times.items():
        assert time >= bounds[name] * (1 - 1e-9), name
        if name in ONE_PORT.get(case["collective"], ()) and n > 1:
            assert time >= math.ceil(math.log2(n)) * case["topology"]["step_latency"] * (1 - 1e-9), name
        assert n == 1 or time >= case["topology"]["step_latency"] * (1 - 1e-9)
    assert collective_time(**case) == min(times.values())


@settings(max_examples=150)
@given(cases(), st.floats(1.01, 10))
def test_monotone_in_message_bandwidth_and_latencies(case, factor):
    before = every_time(case)

    def all_tiers(**changes):
        topology = case["topology"]
        tiers = [t | {k: f(t[k]) for k, f in changes.items() if k in t} for t in topology["tiers"]]
        return case | {"topology": topology | {"tiers": tiers}}

    slower = [
        case | {"size": case["size"] * factor},
        all_tiers(bandwidth=lambda b: b / factor),
        all_tiers(oversubscription=lambda o: [x * factor for x in o] if isinstance(o, list) else o * factor),
        *(
            case | {"topology": case["topology"] | {name: case["topology"][name] * factor}}
            for name in ("step_latency", "hop_latency", "message_latency")
        ),
    ]
    for changed in slower:
        after = every_time(changed)
        assert all(after[name] >= time * (1 - 1e-12) for name, time in before.items())
    scaled = all_tiers(bandwidth=lambda b: b * factor)
    scaled["size"] *= factor  # bytes and byte/s in another unit
    assert every_time(scaled) == pytest.approx(before, rel=1e-9)


@settings(max_examples=150)
@given(cases())
def test_messages_to_different_ranks_are_counted(case):
    """A direct exchange posts one to every other rank, forwarding by tiers one to every rank of each tier."""
    case["topology"] |= {"message_latency": 0.0}
    posting = {**case, "topology": case["topology"] | {"message_latency": 1.0}}
    before, after = every_time(case), every_time(posting)
    _, places = placed(case["collective"], case["topology"], case["group"])
    n = math.prod(p.members for p in places)
    added = {name: after[name] - before[name] for name in before}
    expected = {
        "all_to_all": {
            "direct": n - 1,
            "rail_forward": sum(p.members - 1 for p in places),
            "hierarchical": sum(p.members - 1 for p in places),
        },
        "all_gather": {"direct": n - 1, "ring": 0, "halving_doubling": 0, "rotated": 0, "multi_ring": 0},
        "all_reduce": {"direct": 2 * (n - 1), "one_shot": n - 1, "ring": 0, "swing": 0},
    }
    for name, count in expected.get(case["collective"], {}).items():
        if name in added:
            assert added[name] == pytest.approx(count, rel=1e-6, abs=1e-6), name


# ---- arrays ---------------------------------------------------------------------------------------------------------

NUMBERS = np.array([2.0, 3, 4, 7, 8, 16, 60])
OF_NUMBER = [
    switched.ring,
    switched.halving_doubling,
    switched.recursive_doubling_all_reduce,
    switched.double_binary_tree_all_reduce,
    switched.in_network_all_reduce,
    switched.binomial_tree_broadcast,
    switched.scatter_all_gather_broadcast,
    switched.pipelined_chain_broadcast,
    rings.ring,
    rings.half_hops,
    rings.line,
    rings.halving_doubling,
    alltoall.ring,
    alltoall.line,
    alltoall.full_mesh,
    alltoall.switch,
    grids.hamiltonian_rings,
    grids.hypercube_rotated,
]


def cost(schedule: Schedule, size, step, hop, bandwidth):
    return schedule.on(step, hop, bandwidth).time(size)


@pytest.mark.parametrize("function", OF_NUMBER)
def test_arrays_are_loops_and_compile(function):
    values = NUMBERS
    sizes, links = np.array([1.0, 1e5, 1e9]), (1e-6, 2e-7, 5e10)
    one = [[float(cost(function(v), s, *links)) for s in sizes] for v in values]
    many = cost(function(values[:, None]), sizes, *links)
    np.testing.assert_allclose(many, one, rtol=1e-12)
    with jax.enable_x64(True):
        compiled = jax.jit(lambda v, s: cost(function(v), s, *links))(jnp.asarray(values[:, None]), jnp.asarray(sizes))
        np.testing.assert_allclose(compiled, one, rtol=1e-12)
        slopes = jax.jacfwd(lambda x: cost(function(jnp.asarray(values)), *x))(jnp.array([1e6, *links]))
        assert np.isfinite(slopes).all()
        step = 1e-4
        x = np.array([1e6, *links])
        for i in range(4):
            up, down = (np.where(np.arange(4) == i, x * (1 + d), x) for d in (step, -step))
            difference = (cost(function(values), *up) - cost(function(values), *down)) / (2 * step * x[i])
            np.testing.assert_allclose(
                slopes[:, i], difference, rtol=1e-5, atol=1e-12 * np.abs(difference).max() + 1e-30
            )
    with jax.enable_x64(False):
        single = jax.jit(lambda v: function(v))(jnp.asarray(values, jnp.float32))
        np.testing.assert_allclose(single.volume, function(values).volume, rtol=1e-5)


def test_gradient_at_nothing_is_finite():
    for c in (Coefficients(1e-6, 1e-11), Coefficients(1e-6, 1e-11, 1e-6, 1e-11), Coefficients(1e-6, 1e-11, 0.0, 1e-11)):
        for size in (0.0, 1.0, 1e9):
            slope = jax.grad(lambda s, c=c: jnp.asarray(c.time(s)))(size)
            assert np.isfinite(slope)
            assert slope >= 0


@pytest.mark.parametrize("step", [0.0, 1e-6, 3e-5])
def test_chunks_are_the_best_number_of_them(step):
    schedule = switched.pipelined_chain_broadcast(9.0)
    for size in (1e2, 1e5, 1e8):
        exact = min(float(cost(schedule.chunked(c), size, step, 3e-7, 1e10)) for c in np.geomspace(1, 1e5, 20001))
        assert float(cost(schedule, size, step, 3e-7, 1e10)) == pytest.approx(exact, rel=1e-6)


def test_coefficients_of_a_fabric_give_its_times():
    topology = {
        "tiers": [
            {"kind": "switch", "shape": [8], "bandwidth": 4.5e11},
            {"kind": "rail", "shape": [16], "bandwidth": 5e10},
        ],
        "step_latency": 3e-6,
        "hop_latency": 3e-7,
    }
    for collective in COLLECTIVES:
        for name, c in collective_coefficients(topology, collective).items():
            time = collective_time(collective=collective, topology=topology, size=1e7, algorithm=name)
            assert float(c.time(1e7)) == pytest.approx(time, rel=1e-12)
            tail = float(c.time(1e12)) - float(c.latency + c.inverse_bandwidth * 1e12)
            assert tail == pytest.approx(2e6 * math.sqrt(c.chunk_latency * c.chunk_inverse_bandwidth), rel=1e-9)


# ---- unequal sides can be balanced ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sides", [(4, 8), (4, 16), (2, 5), (3, 4, 8), (2, 2, 7), (2, 3, 4, 9)])
def test_shares_of_all_orders_balance_the_links(sides):
    """A linear programme over the orders of sides finds parts that load every link equally: the bandwidth bound."""
    optimize = pytest.importorskip("scipy.optimize")
    loads = []
    for order in itertools.permutations(range(len(sides))):
        load, left = [0.0] * len(sides), 1.0
        for d in order:
            load[d], left = left * (sides[d] - 1) / sides[d], left / sides[d]
        loads.append(load)
    count = len(loads)
    least = optimize.linprog(
        [0.0] * count + [1.0],
        A_ub=np.hstack([np.array(loads).T, -np.ones((len(sides), 1))]),
        b_ub=np.zeros(len(sides)),
        A_eq=[[1.0] * count + [0.0]],
        b_eq=[1.0],
    ).fun
    schedule = grids.balanced_rotated(np.array(sides, float), 2)
    assert float(schedule.volume) == pytest.approx(least / 2, rel=1e-9)
