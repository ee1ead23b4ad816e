"""Replays on fat trees, dragonflies and products of tiers."""

import itertools
import math

import pytest

from perfgrid.calculators.collective_input import read_fabric
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.collectives.schedules.algorithms import Route, across_tiers
from perfgrid.formulas.collectives.schedules.fabric import place
from tests.network.bounds import lower_bound

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


def routed(p, way):
    """The path of a message between ranks on routers of p terminals, from the ways between two routers."""

    def path(s, t):
        first, last = ("terminal", "up", s), ("terminal", "down", t)
        return [([first, *links, last], share) for links, share in way(s // p, t // p)]

    return path


def by_all_routers(way, routers):
    """The ways between two routers by way of every router in equal shares."""

    def found(here, there):
        return [
            (to + on, first * second / routers)
            for middle in range(routers)
            for to, first in way(here, middle)
            for on, second in way(middle, there)
        ]

    return found


def dragonfly_way(a, h, groups=None):
    """Ways between two routers: local, global, local link; all links between two groups carry equal shares.

    A group deals its links out to its peers in equal numbers, those left over stay idle; to its routers one after the
    other. Link j of groups i and i + d is number (d - 1) * links + j of group i.
    """
    groups = a * h + 1 if groups is None else groups
    between = a * h // (groups - 1) if groups > 1 else 1

    def way(here, there):
        (gs, rs), (gt, rt) = divmod(here, a), divmod(there, a)
        if gs == gt:
            return [([("local", gs, rs, rt)] if rs != rt else [], 1.0)]
        found = []
        for j in range(between):
            leave = (((gt - gs) % groups - 1) * between + j) % a
            enter = (((gs - gt) % groups - 1) * between + j) % a
            links = [("local", gs, rs, leave)] if rs != leave else []
            links.append(("global", gs, gt, j))
            links += [("local", gt, enter, rt)] if enter != rt else []
            found.append((links, 1 / between))
        return found

    return way


def dragonfly_path(p, a, h, groups=None):
    return routed(p, dragonfly_way(a, h, groups))


BALANCED = [(1, 2, 1, 3), (2, 4, 2, 9), (1, 3, 2, 7), (3, 2, 1, 3), (2, 3, 3, 10), (2, 4, 1, 5)]
FEWER_GROUPS = [
    (2, 4, 2, 5),  # two links between any two groups
    (2, 4, 2, 8),  # eight links for seven peers: one stays idle
    (2, 4, 2, 4),  # eight links for three peers: two each, two idle
    (3, 4, 2, 2),  # eight links between two groups
    (2, 4, 3, 6),  # twelve links for five peers, on four routers two of which hold three
    (4, 2, 3, 3),
    (2, 5, 1, 4),  # five links for three peers: one router has none
    (5, 3, 1, 3),
]
ONE_GROUP = [(2, 4, 1, 1), (3, 1, 2, 1), (3, 1, 4, 5)]  # a full mesh of routers; one router; groups of one router


@pytest.mark.parametrize(("p", "a", "h", "g"), [*BALANCED, *FEWER_GROUPS, *ONE_GROUP])
def test_dragonfly(p, a, h, g):
    shape = [p, a, g]
    n, path = math.prod(shape), dragonfly_path(p, a, h, g)
    tiers = [{"kind": "dragonfly", "shape": shape, "bandwidth": B2, "global_links_per_router": h}]
    m = machine(SIZE / n, lambda link: B2)
    pieces(m, range(n))
    m.phases(lambda: [everyone(m, range(n), path)])
    longest = max(len(way) for s in range(n) for t in range(n) if s != t for way, _ in path(s, t))
    bound = 5 if g > 1 else 3 if a > 1 else 2
    found = predicted(tiers, "all_to_all", "minimal")
    assert found == pytest.approx(m.time + (bound - longest) * LAM, rel=1e-9)
    assert lower_bound(places_of(tiers), "all_to_all", SIZE) <= found - ALPHA  # by any routing
    m = machine(SIZE / n, lambda link: B2)
    pieces(m, range(n))
    late = 0
    for inner, size, most in ((p * a, g, 5), (p, a, 3), (1, p, 2)):  # groups, then routers, then terminals
        if size > 1:
            lines = {}
            for rank in range(n):
                lines.setdefault((rank // (inner * size), rank % inner), []).append(rank)
            m.phases(lambda lines=lines: [everyone(m, line, path) for line in lines.values()])
            ways = [way for line in lines.values() for s in line for t in line if s != t for way, _ in path(s, t)]
            late += most - max(map(len, ways))  # between ranks of equal position the longest path may be shorter
    time = complete(m, range(n), lambda rank: 0) + late * LAM
    assert predicted(tiers, "all_gather", "hierarchical") == pytest.approx(time, rel=1e-9)


def places_of(tiers):
    fabric = read_fabric({"tiers": tiers, "step_latency": ALPHA, "hop_latency": LAM})
    return place(fabric, fabric.size, 1)


def test_fewer_groups_have_more_bandwidth_between_two_of_them():
    """All-to-all within two groups of eight: with five groups instead of nine twice the links join them."""
    times = {}
    for groups in (9, 5, 3, 2):
        tiers = [{"kind": "dragonfly", "shape": [4, 4, groups], "bandwidth": B2, "global_links_per_router": 2}]
        n = 16 * groups
        times[groups] = (predicted(tiers, "all_to_all", "direct") - ALPHA - 5 * LAM) / (16 * 16 / n * SIZE / B2)
    assert times == pytest.approx({9: 1.0 + 1 / 16, 5: 1.0 / 2 + 1 / 16, 3: 1.0 / 4 + 1 / 16, 2: 1.0 / 8 + 1 / 16})


@pytest.mark.parametrize("groups", [9, 8, 5, 4])
@pytest.mark.parametrize("collective", ["all_to_all", "send_recv"])
@pytest.mark.parametrize(("size", "stride"), [(2, 1), (4, 2), (8, 1), (0, 8), (0, 4), (0, 2), (0, 1), (4, 1)])
def test_groups_on_a_dragonfly_are_bounded_from_above(size, stride, collective, groups):
    """Of parts of a dragonfly only the most loaded case has a closed form: never below the replay."""
    p, a, h = 2, 4, 2
    n, path = p * a * groups, dragonfly_path(p, a, h, groups)
    size = size or n // stride
    group = strided(size, stride)
    tiers = [{"kind": "dragonfly", "shape": [p, a, groups], "bandwidth": B2, "global_links_per_router": h}]
    runs = {}
    for rank in range(n):
        runs.setdefault(group(rank), []).append(rank)
    minimal = replayed(runs.values(), collective, path)
    spread = replayed(runs.values(), collective, routed(p, by_all_routers(dragonfly_way(a, h, groups), a * groups)))
    found = predicted(tiers, collective, "direct", (size, stride))
    assert min(minimal, spread) * (1 - 1e-9) <= found <= 3 * min(minimal, spread)


def replayed(runs, collective, path):
    """Time of an all-to-all of every run of ranks, or of a message from each to the next."""
    size = len(next(iter(runs)))
    m = machine(SIZE / size if collective == "all_to_all" else SIZE, lambda link: B2)
    pieces(m, itertools.chain(*runs))
    if collective == "all_to_all":
        return m.phases(lambda: [everyone(m, run, path) for run in runs]).time
    m.step([(s, t, m.block(s), path(s, t)) for run in runs for s, t in itertools.pairwise(run)])
    return m.time


@pytest.mark.parametrize(("a", "h", "groups"), [(4, 2, 9), (4, 2, 5), (4, 2, 8), (6, 1, 4), (1, 3, 4)])
def test_the_worst_traffic_of_a_dragonfly_takes_all_its_links(a, h, groups):
    """Every rank of a group sends to the next group: by all routers exactly twice an all-to-all of the fabric."""
    p, n = 4, 4 * a * groups
    tiers = [{"kind": "dragonfly", "shape": [p, a, groups], "bandwidth": B2, "global_links_per_router": h}]
    way = dragonfly_way(a, h, groups)
    shift = p * a
    times = {}
    for name, path in {"minimal": routed(p, way), "spread": routed(p, by_all_routers(way, a * groups))}.items():
        m = machine(SIZE, lambda link: B2)
        pieces(m, range(n))
        m.step([(s, (s + shift) % n, m.block(s), path(s, (s + shift) % n)) for s in range(n)])
        times[name] = m.time
    found = predicted(tiers, "send_recv", "direct", (groups, shift)) - ALPHA
    uniform = predicted(tiers, "all_to_all", "direct") - ALPHA
    assert min(times.values()) - ALPHA - 9 * LAM <= found
    if times["spread"] < times["minimal"]:
        longest = 8 if a > 1 else 4
        load = 2 * (uniform - 5 * LAM)
        assert times["spread"] - ALPHA - longest * LAM == pytest.approx(max(load, SIZE / B2), rel=1e-9)
        assert found == pytest.approx(max(load, SIZE / B2) + longest * LAM, rel=1e-9)


# ---- flattened butterfly --------------------------------------------------------------------------------------------


def butterfly_way(sides):
    """Ways between two routers: one link along every side in which they differ."""

    def way(here, there):
        links, weight = [], 1
        for side, length in enumerate(sides):
            to = here + (there // weight % length - here // weight % length) * weight
            links += [(side, here, to)] if to != here else []
            here, weight = to, weight * length
        return [(links, 1.0)]

    return way


@pytest.mark.parametrize(("p", "sides"), [(2, (4,)), (4, (3, 2)), (1, (3, 4)), (3, (2, 2, 3)), (4, (2, 5))])
def test_flattened_butterfly(p, sides):
    shape, path = [p, *sides], routed(p, butterfly_way(sides))
    n = math.prod(shape)
    tiers = [{"kind": "flattened_butterfly", "shape": shape, "bandwidth": B2}]
    for size, stride in [(n, 1), (n // p, p), (p, 1), (p * sides[0], 1), (sides[-1], n // sides[-1]), (n // 2, 2)]:
        if size < 2 or (n % 2 and stride == 2) or (stride == 2 and p % 2):
            continue
        group, runs = strided(size, stride), {}
        for rank in range(n):
            runs.setdefault(group(rank), []).append(rank)
        found = predicted(tiers, "all_to_all", "direct", (size, stride))
        minimal = replayed(runs.values(), "all_to_all", path)
        spread = replayed(runs.values(), "all_to_all", routed(p, by_all_routers(butterfly_way(sides), n // p)))
        if minimal <= spread:
            assert found == pytest.approx(minimal, rel=1e-9), (size, stride)
        assert min(minimal, spread) * (1 - 1e-9) <= found <= minimal * (1 + 1e-9)
    assert lower_bound(places_of(tiers), "all_to_all", SIZE) <= predicted(tiers, "all_to_all", "direct")
    m = machine(SIZE / n, lambda link: B2)
    pieces(m, range(n))
    inner = n
    for size in reversed(shape):  # the last side first
        inner //= size
        if size > 1:
            lines = {}
            for rank in range(n):
                lines.setdefault((rank // (inner * size), rank % inner), []).append(rank)
            m.phases(lambda lines=lines: [everyone(m, line, path) for line in lines.values()])
    time = complete(m, range(n), lambda rank: 0)
    assert predicted(tiers, "all_gather", "hierarchical") == pytest.approx(time, rel=1e-9)
    found, minimal = predicted(tiers, "send_recv", "direct"), replayed([range(n)], "send_recv", path)
    assert minimal * (1 - 1e-9) <= found <= 2 * minimal


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
    runs = {}
    for rank in range(used):
        runs.setdefault(group(rank), []).append(rank)
    minimal = replayed(runs.values(), "all_to_all", path)
    spread = replayed(runs.values(), "all_to_all", routed(p, by_all_routers(dragonfly_way(a, h), 36)))
    for collective in ("all_to_all", "all_gather"):
        route = across_tiers(places, collective)["direct"]
        assert isinstance(route, Route)
        found = route.on(places).time(SIZE)
        assert min(minimal, spread) * (1 - 1e-9) <= found <= 3 * min(minimal, spread)


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
