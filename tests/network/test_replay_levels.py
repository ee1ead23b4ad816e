"""Replays on fat trees, dragonflies and products of tiers."""

import math

import pytest

from perfgrid.calculators.collective_input import read_fabric
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.collectives.schedules.algorithms import Route, across_tiers
from perfgrid.formulas.collectives.schedules.fabric import place

from .replay import around, complete, everyone, pieces, strided
from .test_replay_tiers import ALPHA, B1, B2, LAM, SIZE, machine, predicted

# ---- fat trees ------------------------------------------------------------------------------------------------------


def tree_path(widths):
    """Up to the lowest switch that both ranks are below, and down; links (level, way, domain)."""

    def path(a, b):
        up, down, size = [("tree", 0, "up", a)], [("tree", 0, "down", b)], 1
        for level, width in enumerate(widths, start=1):
            size *= width
            if a // size == b // size:
                break
            up.append(("tree", level, "up", a // size))
            down.append(("tree", level, "down", b // size))
        return [(up + down[::-1], 1.0)]

    return path


def tree_bandwidth(widths, ratios):
    """A domain's uplinks: its ports, fewer by every ratio on the way."""

    def bandwidth(link):
        level = link[1]
        return B2 * math.prod(widths[:level]) / math.prod(ratios[:level])

    return bandwidth


TREES = [
    ((8, 4), (1.0,)),
    ((8, 4), (2.0,)),
    ((8, 4), (3.5,)),
    ((16, 2), (3.0,)),
    ((4, 3, 5), (2.0, 1.0)),
    ((4, 3, 2), (1.0, 4.0)),
    ((4, 2, 2, 2), (1.5, 1.0, 2.0)),
]


@pytest.mark.parametrize(("widths", "ratios"), TREES)
def test_all_to_all_on_fat_trees(widths, ratios):
    n = math.prod(widths)
    m = machine(SIZE / n, tree_bandwidth(widths, ratios))
    pieces(m, range(n))
    m.phases(lambda: [everyone(m, range(n), tree_path(widths))])
    one = [{"kind": "fat_tree", "shape": list(widths), "bandwidth": B2, "oversubscription": list(ratios)}]
    leaves = [
        {"kind": "switch", "shape": [widths[0]], "bandwidth": B2},
        {"kind": "fat_tree", "shape": list(widths[1:]), "bandwidth": B2, "oversubscription": list(ratios)},
    ]
    for tiers in (one, leaves):
        assert predicted(tiers, "all_to_all", "direct") == pytest.approx(m.time, rel=1e-9)


@pytest.mark.parametrize(("widths", "ratios"), TREES)
@pytest.mark.parametrize("collective", ["all_gather", "all_to_all", "all_reduce", "send_recv"])
def test_a_fat_tree_with_ports_of_its_own_above_domains(widths, ratios, collective):
    """One member in each domain: the tree alone, with its paths; uplinks of the domains' switches are longer."""
    tree = {"kind": "fat_tree", "shape": list(widths), "bandwidth": B2, "oversubscription": list(ratios)}
    domains = {"kind": "switch", "shape": [8], "bandwidth": B1}
    group = (math.prod(widths), 8)
    alone = predicted([tree], collective, "best")
    assert predicted([domains, tree | {"own_ports": True}], collective, "best", group=group) == pytest.approx(
        alone, rel=1e-12
    )
    uplinks = [domains, tree | {"oversubscription": [1.0, *ratios]}]
    assert predicted(uplinks, collective, "best", group=group) > alone


@pytest.mark.parametrize(("widths", "ratios"), TREES)
def test_rings_on_fat_trees(widths, ratios):
    n = math.prod(widths)
    tiers = [{"kind": "fat_tree", "shape": list(widths), "bandwidth": B2, "oversubscription": list(ratios)}]
    for size, stride in [(n, 1), (n // widths[0], widths[0]), (widths[0], 1), (n // 2, 2), (n // widths[-1], 1)]:
        group = strided(size, stride)
        m = machine(SIZE / size, tree_bandwidth(widths, ratios))
        pieces(m, range(n))
        runs = {}
        for rank in range(n):
            runs.setdefault(group(rank), []).append(rank)
        m.phases(lambda m=m, runs=runs: [around(m, run, tree_path(widths)) for run in runs.values()])
        time = complete(m, range(n), group)
        assert predicted(tiers, "all_gather", "ring", (size, stride)) == pytest.approx(time, rel=1e-9)


# ---- dragonfly ------------------------------------------------------------------------------------------------------


def dragonfly_path(p, a, h):
    """Terminal, local, global, local, terminal; groups i and j share the link of offset j - i."""
    groups = a * h + 1

    def place(rank):
        return rank // (p * a), rank // p % a

    def path(s, t):
        (gs, rs), (gt, rt) = place(s), place(t)
        links: list[tuple] = [("terminal", "up", s)]
        if gs != gt:
            leave, enter = ((gt - gs) % groups - 1) // h, ((gs - gt) % groups - 1) // h
            links += [("local", gs, rs, leave)] if rs != leave else []
            links.append(("global", gs, gt))
            links += [("local", gt, enter, rt)] if enter != rt else []
        elif rs != rt:
            links.append(("local", gs, rs, rt))
        return [([*links, ("terminal", "down", t)], 1.0)]

    return path


@pytest.mark.parametrize(("p", "a", "h"), [(1, 2, 1), (2, 4, 2), (1, 3, 2), (3, 2, 1), (2, 3, 3), (2, 4, 1)])
def test_dragonfly(p, a, h):
    shape = [p, a, a * h + 1]
    n, path = math.prod(shape), dragonfly_path(p, a, h)
    tiers = [{"kind": "dragonfly", "shape": shape, "bandwidth": B2, "global_links_per_router": h}]
    m = machine(SIZE / n, lambda link: B2)
    pieces(m, range(n))
    m.phases(lambda: [everyone(m, range(n), path)])
    assert predicted(tiers, "all_to_all", "minimal") == pytest.approx(m.time, rel=1e-9)
    m = machine(SIZE / n, lambda link: B2)
    pieces(m, range(n))
    for inner, size in ((p * a, shape[2]), (p, a), (1, p)):  # groups, then routers, then terminals
        if size > 1:
            lines = {}
            for rank in range(n):
                lines.setdefault((rank // (inner * size), rank % inner), []).append(rank)
            m.phases(lambda lines=lines: [everyone(m, line, path) for line in lines.values()])
    time = complete(m, range(n), lambda rank: 0)
    # with two routers and one global link each no two ranks of equal position are five links apart
    longest = max(len(path(r, r + p * a * g)[0][0]) for r in range(p * a) for g in range(1, shape[2]))
    time += (5 - longest) * LAM
    assert predicted(tiers, "all_gather", "hierarchical") == pytest.approx(time, rel=1e-9)


@pytest.mark.parametrize(("size", "stride"), [(2, 1), (4, 2), (8, 1), (9, 8), (18, 4), (36, 2), (4, 1)])
def test_groups_on_a_dragonfly_are_bounded_from_above(size, stride):
    """Of parts of a dragonfly only the most loaded case has a closed form: never below the replay."""
    p, a, h = 2, 4, 2
    n, path, group = p * a * (a * h + 1), dragonfly_path(p, a, h), strided(size, stride)
    tiers = [{"kind": "dragonfly", "shape": [p, a, a * h + 1], "bandwidth": B2, "global_links_per_router": h}]
    m = machine(SIZE / size, lambda link: B2)
    pieces(m, range(n))
    runs = {}
    for rank in range(n):
        runs.setdefault(group(rank), []).append(rank)
    m.phases(lambda: [everyone(m, run, path) for run in runs.values()])
    found = predicted(tiers, "all_to_all", "direct", (size, stride))
    assert m.time * (1 - 1e-9) <= found <= 3 * m.time


@pytest.mark.parametrize(("size", "stride"), [(64, 1), (32, 1), (16, 1), (8, 8), (4, 8), (16, 4)])
def test_a_cluster_on_eight_of_nine_groups_of_a_dragonfly(size, stride):
    """The ninth group stays idle; all-to-all and all-gather are bounded from above by the replay of 64 ranks."""
    p, a, h, used = 2, 4, 2, 64
    path, group = dragonfly_path(p, a, h), strided(size, stride)
    tiers = [{"kind": "dragonfly", "shape": [p, a, a * h + 1], "bandwidth": B2, "global_links_per_router": h}]
    fabric = read_fabric({"tiers": tiers, "step_latency": ALPHA, "hop_latency": LAM})
    with pytest.raises(PerfgridError, match="do not divide the 72 ranks"):
        place(fabric, size, stride)
    places = place(fabric, size, stride, spare=True)
    assert math.prod(found.members for found in places) == size
    m = machine(SIZE / size, lambda link: B2)
    pieces(m, range(used))
    runs = {}
    for rank in range(used):
        runs.setdefault(group(rank), []).append(rank)
    m.phases(lambda: [everyone(m, run, path) for run in runs.values()])
    for collective in ("all_to_all", "all_gather"):
        route = across_tiers(places, collective)["direct"]
        assert isinstance(route, Route)
        found = route.on(places).time(SIZE)
        assert m.time * (1 - 1e-9) <= found <= 3 * m.time


def test_products_of_tiers_route_in_dimension_order():
    """A ring inside, a full mesh between: every part goes round the ring first."""
    ring, mesh = 4, 3

    def path(s, t):
        across, turns = (s // ring, t // ring), (t - s) % ring
        ways = [(turns, 1)] if turns < ring - turns else [(ring - turns, -1)]
        ways = [(ring // 2, 1), (ring // 2, -1)] if 2 * turns == ring else ways
        found = []
        for distance, way in ways:
            links = [("ring", s // ring, (s + way * i) % ring, way) for i in range(distance)]
            links += [("mesh", t % ring, *across)] if across[0] != across[1] else []
            found.append((links, 1 / len(ways)))
        return found

    n = ring * mesh
    m = machine(SIZE / n, lambda link: B1 if link[0] == "ring" else B2)
    pieces(m, range(n))
    m.phases(lambda: [everyone(m, range(n), path)])
    tiers = [
        {"kind": "ring", "shape": [ring], "bandwidth": B1},
        {"kind": "fully_connected", "shape": [mesh], "bandwidth": B2},
    ]
    assert predicted(tiers, "all_to_all", "dimension_order") == pytest.approx(m.time, rel=1e-9)


@pytest.mark.parametrize(("size", "stride"), [(72, 1), (36, 2), (9, 8), (18, 4), (8, 1), (4, 2), (2, 1)])
def test_messages_to_the_next_rank_on_a_dragonfly_are_bounded_from_above(size, stride):
    """Which local link leads to the next group depends on the cabling: never below the replay."""
    p, a, h = 2, 4, 2
    n, path, group = p * a * (a * h + 1), dragonfly_path(p, a, h), strided(size, stride)
    tiers = [{"kind": "dragonfly", "shape": [p, a, a * h + 1], "bandwidth": B2, "global_links_per_router": h}]
    m = machine(SIZE, lambda link: B2)
    pieces(m, range(n))
    m.step(
        [(r, r + stride, m.block(r), path(r, r + stride)) for r in range(n - stride) if group(r) == group(r + stride)]
    )
    found = predicted(tiers, "send_recv", "direct", (size, stride))
    assert m.time * (1 - 1e-9) <= found <= 3 * m.time
