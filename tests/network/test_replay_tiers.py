"""Schedules on switches, nodes with rails, fat trees and dragonflies, replayed link by link."""

from typing import Any

import pytest

from perfgrid.calculators.collective import collective_time

from .replay import Grid, Machine, around, both_ways, complete, everyone, exchange, pieces, strided

ALPHA, LAM, SIZE = 1.3e-6, 0.4e-6, 5e6
B1, B2 = 310e9, 43e9


def machine(piece, bandwidth):
    return Machine(bandwidth, ALPHA, LAM, lambda p: piece)


def predicted(tiers, collective, algorithm, group=None, **options):
    topology = {"tiers": tiers, "step_latency": ALPHA, "hop_latency": LAM}
    named: dict[str, Any] = {"group": {"size": group[0], "stride": group[1]}} if group else {}
    return collective_time(
        collective=collective, algorithm=algorithm, topology=topology, size=SIZE, **named, options=options
    )


def port(name):
    """Through a switch: out of one port and into another."""
    return lambda a, b: [([(name, "up", a), (name, "down", b)], 1.0)]


# ---- one switch, a full mesh ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 7, 8, 12])
@pytest.mark.parametrize("kind", ["switch", "fully_connected"])
def test_switch_and_full_mesh(kind, n):
    tiers = [{"kind": kind, "shape": [n], "bandwidth": B1}]
    path = port("switch") if kind == "switch" else (lambda a, b: [([(a, b)], 1.0)])
    schedules = {
        "direct": lambda m: everyone(m, range(n), path),
        "ring": lambda m: around(m, range(n), path),
    }
    if n == 8:
        schedules["halving_doubling"] = lambda m: exchange(m, range(n), path, [lambda i, d=d: i ^ d for d in (1, 2, 4)])
    for algorithm, schedule in schedules.items():
        m = machine(SIZE / n, lambda link: B1)
        pieces(m, range(n))
        m.phases(lambda m=m, schedule=schedule: [schedule(m)])
        time = complete(m, range(n), lambda rank: 0)
        assert predicted(tiers, "all_gather", algorithm) == pytest.approx(time, rel=1e-9)
        assert predicted(tiers, "all_reduce", algorithm) == pytest.approx(2 * time, rel=1e-9)
    m = machine(SIZE, lambda link: B1)  # the whole message to everyone
    pieces(m, range(n))
    m.phases(lambda: [everyone(m, range(n), path)])
    assert predicted(tiers, "all_reduce", "one_shot") == pytest.approx(m.time, rel=1e-9)


@pytest.mark.parametrize(("n", "chunks"), [(2, 1), (2, 5), (5, 1), (5, 7), (9, 4)])
def test_chain_broadcast(n, chunks):
    m = machine(SIZE / chunks, lambda link: B1)
    m.held[0] = set(range(chunks))
    for step in range(n - 2 + chunks):
        m.step((i, i + 1, frozenset({step - i}), [([(i, i + 1)], 1.0)]) for i in range(n - 1) if 0 <= step - i < chunks)
    assert m.held[n - 1] == set(range(chunks))
    tiers = [{"kind": "line", "shape": [n], "bandwidth": B1}]
    assert predicted(tiers, "broadcast", "pipelined_chain", chunks=chunks) == pytest.approx(m.time, rel=1e-9)
    free = predicted(tiers, "broadcast", "pipelined_chain")
    assert free <= m.time * (1 + 1e-12)
    every = [predicted(tiers, "broadcast", "pipelined_chain", chunks=c) for c in range(1, 400)]
    assert free == pytest.approx(min(every), rel=0.002)


@pytest.mark.parametrize("n", [2, 3, 6, 8, 13])
def test_binomial_broadcast(n):
    m = machine(SIZE, lambda link: B1)
    m.held[0] = {0}
    have = 1
    while have < n:
        m.step((i, i + have, frozenset({0}), port("s")(i, i + have)) for i in range(min(have, n - have)))
        have *= 2
    assert all(m.held[i] for i in range(n))
    tiers = [{"kind": "switch", "shape": [n], "bandwidth": B1}]
    assert predicted(tiers, "broadcast", "binomial_tree") == pytest.approx(m.time, rel=1e-9)


# ---- nodes joined by rails ------------------------------------------------------------------------------------------


def rails(inside, domains):
    return [
        {"kind": "switch", "shape": [inside], "bandwidth": B1},
        {"kind": "rail", "shape": [domains], "bandwidth": B2},
    ]


def of_link(link):
    return B1 if link[0] == "node" else B2


GROUPS = [
    (8, 4, 32, 1),
    (8, 4, 8, 4),
    (8, 4, 16, 2),
    (8, 4, 4, 8),
    (8, 4, 2, 16),
    (8, 4, 8, 1),
    (8, 4, 2, 2),
    (6, 5, 10, 3),
    (6, 5, 15, 2),
    (4, 3, 12, 1),
]


@pytest.mark.parametrize(("inside", "domains", "size", "stride"), GROUPS)
def test_hierarchical_gather(inside, domains, size, stride):
    """First round the rail, then to everyone in the node; all groups at the same time."""
    n, group = inside * domains, strided(size, stride)
    m = machine(SIZE / size, of_link)
    pieces(m, range(n))
    outer, inner = {}, {}
    for rank in range(n):
        outer.setdefault((group(rank), rank % inside), []).append(rank)
        inner.setdefault((group(rank), rank // inside), []).append(rank)
    if any(len(line) > 1 for line in outer.values()):
        m.phases(lambda: [around(m, line, port("rail")) for line in outer.values()])
    if any(len(line) > 1 for line in inner.values()):
        m.phases(lambda: [everyone(m, line, port("node")) for line in inner.values() if len(line) > 1])
    time = complete(m, range(n), group)
    assert predicted(rails(inside, domains), "all_gather", "hierarchical", (size, stride)) == pytest.approx(
        time, rel=1e-9
    )
    found = predicted(rails(inside, domains), "all_reduce", "hierarchical", (size, stride))
    assert found == pytest.approx(2 * time, rel=1e-9)


@pytest.mark.parametrize(("inside", "domains"), [(8, 4), (4, 2), (3, 6), (2, 4)])
def test_multi_ring(inside, domains):
    """Ring c enters a node at c and leaves it at c + 1 (or back): every rank has one rail hop and m - 1 inside."""
    n = inside * domains
    orders = []
    for c in range(inside):
        order = []
        for d in range(domains):
            local = (
                [(c - i) % inside for i in range(inside)]
                if d % 2 == 0
                else [(c + 1 + i) % inside for i in range(inside)]
            )
            order += [d * inside + x for x in local]
        orders.append(order)
    m = machine(SIZE / n / inside, of_link)
    pieces(m, range(n), range(inside))

    def path(a, b):
        return port("node" if a // inside == b // inside else "rail")(a, b)

    m.phases(lambda: [around(m, order, path, c) for c, order in enumerate(orders)])
    time = complete(m, range(n), lambda rank: 0, range(inside))
    assert predicted(rails(inside, domains), "all_gather", "multi_ring") == pytest.approx(time, rel=1e-9)


@pytest.mark.parametrize(("inside", "domains"), [(8, 4), (4, 8), (3, 5)])
@pytest.mark.parametrize("scarcity", [1.0, 2.5])
def test_all_to_all_over_rails(inside, domains, scarcity):
    """Node-local parts inside; the others out of the adapter, up to the spine where the rail differs, and down."""
    n = inside * domains

    def bandwidth(link):
        return B1 if link[0] == "node" else domains * B2 / scarcity if link[0] == "leaf" else B2

    def path(a, b):
        if a // inside == b // inside:
            return port("node")(a, b)
        if a % inside == b % inside:
            return [([("rail", "up", a), ("rail", "down", b)], 1.0)]
        spine = [("leaf", "up", a % inside), ("leaf", "down", b % inside)]
        return [([("rail", "up", a), *spine, ("rail", "down", b)], 1.0)]

    m = machine(SIZE / n, bandwidth)
    pieces(m, range(n))
    m.phases(lambda: [everyone(m, range(n), path)])
    tiers = rails(inside, domains)
    tiers[1]["oversubscription"] = scarcity
    assert predicted(tiers, "all_to_all", "direct") == pytest.approx(m.time, rel=1e-9)

    def forwarded(a, b):  # first to the destination's rail inside the node
        via = a // inside * inside + b % inside
        first = [("node", "up", a), ("node", "down", via)] if via != a else []
        second = [("rail", "up", via), ("rail", "down", b)] if via != b else []
        return [(first + second, 1.0)]

    m = machine(SIZE / n, of_link)
    pieces(m, range(n))
    m.phases(lambda: [everyone(m, range(n), forwarded)])
    tiers[1] = {"kind": "rail_only", "shape": [domains], "bandwidth": B2}
    assert predicted(tiers, "all_to_all", "rail_forward") == pytest.approx(m.time, rel=1e-9)


@pytest.mark.parametrize(
    ("size", "stride"), [(24, 1), (12, 2), (6, 4), (2, 12), (4, 1), (3, 4), (2, 1), (6, 2), (12, 1)]
)
def test_hierarchy_of_ring_full_mesh_and_switch(size, stride):
    """Outermost first, all groups at the same time; a group may own every second rank of the ring, or a piece of it."""
    ring, mesh, nodes, b3 = 4, 3, 2, 19e9
    n, group = ring * mesh * nodes, strided(size, stride)
    speed = {"ring": B1, "mesh": B2, "port": b3}
    m = machine(SIZE / size / 2, lambda link: speed[link[0]])
    pieces(m, range(n), (0, 1))

    def lines(below, width):
        found = {}
        for rank in range(n):
            found.setdefault((group(rank), rank % below, rank // (below * width)), []).append(rank)
        return [line for line in found.values() if len(line) > 1]

    def link(a, b):
        return [([("mesh", a, b)], 1.0)]

    def round_ring(way):
        def path(a, b):
            distance = (b - a) * way % ring
            start = a // ring * ring
            return [([("ring", start + (a - start + way * i) % ring, way) for i in range(distance)], 1.0)]

        return path

    for below, width, path in ((ring * mesh, nodes, port("port")), (ring, mesh, link)):
        if lines(below, width):
            m.phases(
                lambda below=below, width=width, path=path: [
                    everyone(m, line, path, part) for line in lines(below, width) for part in (0, 1)
                ]
            )
    if lines(1, ring):
        pair = lines(1, ring)[0]
        closed = (pair[1] - pair[0]) * len(pair) == ring
        m.phases(
            lambda: (
                [around(m, line[::w], round_ring(w), p) for line in lines(1, ring) for p, w in ((0, 1), (1, -1))]
                if closed
                else [
                    both_ways(m, line, lambda a, b: round_ring(1 if b > a else -1)(a, b), p)
                    for line in lines(1, ring)
                    for p in (0, 1)
                ]
            )
        )
    time = complete(m, range(n), group, (0, 1))
    tiers = [
        {"kind": "ring", "shape": [ring], "bandwidth": B1},
        {"kind": "fully_connected", "shape": [mesh], "bandwidth": B2},
        {"kind": "switch", "shape": [nodes], "bandwidth": b3},
    ]
    assert predicted(tiers, "all_gather", "hierarchical", (size, stride)) == pytest.approx(time, rel=1e-9)


def test_rails_in_pods_of_a_fat_tree():
    """Three tiers, counted by hand."""
    tiers = [
        {"kind": "switch", "shape": [4], "bandwidth": 400e9},
        {"kind": "rail", "shape": [4], "bandwidth": 50e9},
        {"kind": "fat_tree", "shape": [3], "bandwidth": 50e9, "oversubscription": 4.0},
    ]
    piece = SIZE / 48
    pods = 2 * (ALPHA + 4 * LAM + piece / 12.5e9)  # rings: a fourth of a port's bandwidth leaves the pod
    rail = 3 * (ALPHA + 2 * LAM + 3 * piece / 50e9)
    node = ALPHA + 2 * LAM + 3 * 12 * piece / 400e9  # to everyone at once
    assert predicted(tiers, "all_gather", "hierarchical") == pytest.approx(pods + rail + node, rel=1e-12)
    assert predicted(tiers, "all_reduce", "hierarchical") == pytest.approx(2 * (pods + rail + node), rel=1e-12)
    at_once = pods - ALPHA - 4 * LAM + rail - 2 * (ALPHA + 2 * LAM) + node  # on every tier: one step, the same bytes
    assert predicted(tiers, "all_gather", "tier_by_tier") == pytest.approx(at_once, rel=1e-12)
    flat = ALPHA + 6 * LAM + 32 * piece / 12.5e9  # port, rail's spine, pod, and down; 32 ranks are in other pods
    assert predicted(tiers, "all_to_all", "direct") == pytest.approx(flat, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "shape"), [("torus", (5,)), ("torus", (4, 3)), ("mesh", (3, 4)), ("torus", (3, 2, 4)), ("line", (6,))]
)
@pytest.mark.parametrize("chunks", [1, 3, 8])
def test_tree_broadcast_on_grids(kind, shape, chunks):
    """Every rank passes each chunk on to its children as soon as it has it, over links of their own."""
    grid = Grid(shape, wraps=kind == "torus")
    parent = {}
    for rank in grid.ranks:  # the way to a rank in dimension order from the root; its last link leads from the parent
        if rank:
            links = grid.path(0, rank)[0][0]
            parent[rank] = links[-1]
    m = machine(SIZE / chunks, lambda link: B2)
    m.held[0] = set(range(chunks))
    steps = 0
    while any(len(m.held[r]) < chunks for r in grid.ranks):
        messages = []
        for rank, link in parent.items():
            waiting = sorted(m.held[link[0]] - m.held[rank])
            if waiting:
                messages.append((link[0], rank, frozenset(waiting[:1]), [([link], 1.0)]))
        m.step(messages)
        steps += 1
    tiers = [{"kind": kind, "shape": list(shape), "bandwidth": B2}]
    name = "pipelined_tree"
    assert predicted(tiers, "broadcast", name, chunks=chunks) == pytest.approx(m.time, rel=1e-9)
