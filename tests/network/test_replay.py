"""The schedules replayed link by link on shapes of all kinds: `collective_time` must agree to 1e-9."""

import itertools
from typing import Any

import pytest

from perfgrid.calculators.collective import collective_time

from .replay import (
    Grid,
    Machine,
    around,
    both_ways,
    complete,
    everyone,
    exchange,
    meet_half_way,
    pieces,
    strided,
)

ALPHA, LAM, B, SIZE = 1.3e-6, 0.4e-6, 37e9, 5e6


def machine(piece):
    return Machine(lambda link: B, ALPHA, LAM, lambda p: piece)


def predicted(kind, shape, collective, algorithm, group=None, **tier):
    topology = {
        "tiers": [{"kind": kind, "shape": list(shape), "bandwidth": B, **tier}],
        "step_latency": ALPHA,
        "hop_latency": LAM,
    }
    named: dict[str, Any] = {"group": {"size": group[0], "stride": group[1]}} if group else {}
    return collective_time(collective=collective, algorithm=algorithm, topology=topology, size=SIZE, **named)


def all_of(grid):
    return strided(len(grid.ranks), 1)


# ---- rings and lines, whole and in groups ---------------------------------------------------------------------------

RINGS = [(n, n, 1) for n in (2, 3, 5, 8, 12)] + [
    (12, 4, 3),
    (12, 3, 4),
    (10, 5, 2),
    (12, 4, 1),
    (12, 3, 1),
    (12, 2, 3),
    (16, 4, 2),
]


@pytest.mark.parametrize(("n", "size", "stride"), RINGS)
def test_ring(n, size, stride):
    grid, group = Grid((n,), wraps=True), strided(size, stride)
    closed = size * stride == n
    m = machine(SIZE / size / 2)
    pieces(m, grid.ranks, (0, 1))
    if closed:
        m.phases(
            lambda: [
                around(m, line[::way], grid.along(0, way), part)
                for line in grid.lines(0, group)
                for part, way in ((0, 1), (1, -1))
            ]
        )
    else:
        m.phases(lambda: [both_ways_all(m, line, grid) for line in grid.lines(0, group)])
    time = complete(m, grid.ranks, group, (0, 1))
    assert predicted("ring", [n], "all_gather", "ring", (size, stride)) == pytest.approx(time, rel=1e-9)
    assert predicted("ring", [n], "all_reduce", "ring", (size, stride)) == pytest.approx(2 * time, rel=1e-9)
    if size > 1:
        assert predicted("torus", [n], "reduce_scatter", "bucket", (size, stride)) == pytest.approx(time, rel=1e-9)


def both_ways_all(m, line, grid):
    """Both parts of the message on a line."""
    for messages in zip(*(both_ways(m, line, near(grid), part) for part in (0, 1)), strict=True):
        yield [message for part in messages for message in part]


def near(grid):
    """Straight along the first side, without the wrap."""
    return lambda a, b: [(grid.walk(a, 0, grid.at(b)[0] - grid.at(a)[0])[0], 1.0)]


@pytest.mark.parametrize(("n", "size", "stride"), RINGS)
def test_one_way_ring(n, size, stride):
    grid, group = Grid((n,), wraps=True), strided(size, stride)
    m = machine(SIZE / size)
    pieces(m, grid.ranks)
    m.phases(lambda: [around(m, line, grid.along(0, 1)) for line in grid.lines(0, group)])
    time = complete(m, grid.ranks, group)
    found = predicted("ring", [n], "all_gather", "ring", (size, stride), bidirectional=False)
    assert found == pytest.approx(time, rel=1e-9)
    m = machine(SIZE / size)
    pieces(m, grid.ranks)
    m.phases(lambda: [everyone(m, line, grid.along(0, 1)) for line in grid.lines(0, group)])
    found = predicted("ring", [n], "all_to_all", "direct", (size, stride), bidirectional=False)
    assert found == pytest.approx(m.time, rel=1e-9)


@pytest.mark.parametrize(("n", "size", "stride"), [r for r in RINGS if r[1] * r[2] == r[0]])
def test_half_hops(n, size, stride):
    grid, group = Grid((n,), wraps=True), strided(size, stride)
    parts = [(None, 0), (None, 1)]
    m = machine(SIZE / size / 2)
    pieces(m, grid.ranks, parts)

    def path(a, b):  # neighbours on the group's ring; of two ranks both ways lead to the other
        d = (grid.at(b)[0] - grid.at(a)[0]) % n
        return [(grid.walk(a, 0, d if d <= n - d else d - n)[0], 1.0)]

    def two(a, b):
        return [(grid.walk(a, 0, stride)[0], 0.5), (grid.walk(a, 0, -stride)[0], 0.5)]

    way = two if size == 2 else path
    m.phases(lambda: [meet_half_way(m, line, way) for line in grid.lines(0, group)])
    time = complete(m, grid.ranks, group, parts)
    assert predicted("ring", [n], "all_gather", "ring_half_hops", (size, stride)) == pytest.approx(time, rel=1e-9)


# ---- tori and meshes ------------------------------------------------------------------------------------------------

SHAPES = [
    (5,),
    (3, 4),
    (4, 3),
    (2, 6),
    (5, 3),
    (4, 4),
    (2, 3, 4),
    (4, 2, 3),
    (3, 3, 3),
    (2, 2, 5, 2),
    (2, 3, 2, 4),
    (3, 1, 4),
]


@pytest.mark.parametrize("kind", ["torus", "mesh"])
@pytest.mark.parametrize("shape", SHAPES)
def test_bucket(kind, shape):
    grid = Grid(shape, wraps=kind == "torus")
    group = all_of(grid)
    time = _bucket(grid, group, len(grid.ranks))
    assert predicted(kind, shape, "all_gather", "bucket") == pytest.approx(time, rel=1e-9)


def _bucket(grid, group, size, sides=None):
    """Sides one after the other (the last first in a gather: the time is the same reversed)."""
    parts = (0, 1) if grid.wraps else (None,)
    m = machine(SIZE / size / len(parts))
    pieces(m, grid.ranks, parts)

    def phase(side):
        def steps():
            found = []
            for line in grid.lines(side, group):
                gap = grid.at(line[1])[side] - grid.at(line[0])[side] if len(line) > 1 else 0
                closed = grid.wraps and gap * len(line) == grid.sides[side]
                if len(line) == 1:
                    continue
                if closed:
                    found += [around(m, line[::w], grid.along(side, w), p) for p, w in ((0, 1), (1, -1))]
                else:
                    straight = lambda a, b: [(grid.walk(a, side, grid.at(b)[side] - grid.at(a)[side])[0], 1.0)]  # noqa: E731
                    found += [both_ways(m, line, straight, part) for part in parts]
            return found

        return steps

    m.phases(*(phase(side) for side in reversed(range(len(grid.sides)))))
    return complete(m, grid.ranks, group, parts)


@pytest.mark.parametrize(
    ("kind", "shape", "size", "stride"),
    [
        ("torus", (4, 6), 6, 4),  # whole second side
        ("torus", (4, 6), 4, 1),  # whole first side
        ("torus", (4, 6), 2, 1),  # a piece of the first
        ("torus", (4, 6), 12, 2),  # every second of the first, all of the second
        ("torus", (4, 6), 3, 8),  # every second of the second
        ("torus", (4, 4, 4), 16, 4),
        ("torus", (4, 4, 4), 8, 2),
        ("torus", (2, 4, 6, 2), 12, 4),
        ("mesh", (4, 6), 6, 4),
        ("mesh", (4, 6), 2, 2),
        ("mesh", (4, 6), 8, 1),
        ("mesh", (3, 4, 2), 8, 3),
    ],
)
def test_bucket_in_groups(kind, shape, size, stride):
    grid = Grid(shape, wraps=kind == "torus")
    time = _bucket(grid, strided(size, stride), size)
    assert predicted(kind, shape, "all_gather", "bucket", (size, stride)) == pytest.approx(time, rel=1e-9)


@pytest.mark.parametrize("kind", ["torus", "mesh"])
@pytest.mark.parametrize("shape", SHAPES)
def test_rotated(kind, shape):
    grid = Grid(shape, wraps=kind == "torus")
    present = [i for i, side in enumerate(shape) if side > 1]
    count, group = len(present), all_of(grid)
    parts = [(d, way) for d in range(count) for way in ((1, -1) if grid.wraps else (0,))]
    m = machine(SIZE / len(grid.ranks) / len(parts))
    pieces(m, grid.ranks, parts)

    def phase(p):
        def steps():
            found = []
            for d, way in parts:
                side = present[(d + p) % count]
                for line in grid.lines(side, group_of_line):
                    if way:
                        found.append(around(m, line[::way], grid.along(side, way), (d, way)))
                    else:
                        straight = lambda a, b, s=side: [(grid.walk(a, s, grid.at(b)[s] - grid.at(a)[s])[0], 1.0)]  # noqa: E731
                        found.append(both_ways(m, line, straight, (d, way)))
            return found

        return steps

    def group_of_line(rank):
        return 0

    m.phases(*(phase(p) for p in reversed(range(count))))
    time = complete(m, grid.ranks, group, parts)
    assert predicted(kind, shape, "all_gather", "rotated") == pytest.approx(time, rel=1e-9)
    assert predicted(kind, shape, "all_reduce", "rotated") == pytest.approx(2 * time, rel=1e-9)


@pytest.mark.parametrize("kind", ["torus", "mesh"])
@pytest.mark.parametrize("shape", [*SHAPES, (7,), (8, 5), (6, 6)])
def test_all_to_all_on_grids(kind, shape):
    grid = Grid(shape, wraps=kind == "torus")
    m = machine(SIZE / len(grid.ranks))
    pieces(m, grid.ranks)
    m.phases(lambda: [everyone(m, list(grid.ranks), grid.path)])
    assert predicted(kind, shape, "all_to_all", "direct") == pytest.approx(m.time, rel=1e-9)
    assert predicted(kind, shape, "all_gather", "direct") == pytest.approx(m.time, rel=1e-9)


@pytest.mark.parametrize(
    ("shape", "size", "stride"), [((12,), 4, 3), ((12,), 4, 1), ((4, 6), 12, 2), ((4, 6), 2, 1), ((4, 4, 4), 8, 2)]
)
def test_all_to_all_in_groups(shape, size, stride):
    grid, group = Grid(shape, wraps=True), strided(size, stride)
    m = machine(SIZE / size)
    pieces(m, grid.ranks)
    runs = {}
    for rank in grid.ranks:
        runs.setdefault(group(rank), []).append(rank)
    m.phases(lambda: [everyone(m, run, grid.path) for run in runs.values()])
    assert predicted("torus", shape, "all_to_all", "direct", (size, stride)) == pytest.approx(m.time, rel=1e-9)


@pytest.mark.parametrize("shape", [(2,), (8,), (32,), (4, 8), (8, 2), (2, 4, 4), (2, 2, 2, 4)])
def test_halving_doubling_on_tori(shape):
    grid = Grid(shape, wraps=True)
    m = machine(SIZE / len(grid.ranks))
    pieces(m, grid.ranks)

    def phase(side):
        rounds = [1 << q for q in range(shape[side].bit_length() - 1)]
        partners = [lambda i, d=d: i ^ d for d in reversed(rounds)]
        return lambda: [exchange(m, line, grid.path, partners) for line in grid.lines(side, lambda rank: 0)]

    m.phases(*(phase(side) for side in reversed(range(len(shape)))))
    time = complete(m, grid.ranks, all_of(grid))
    assert predicted("torus", shape, "all_gather", "halving_doubling") == pytest.approx(time, rel=1e-9)


@pytest.mark.parametrize(
    "shape", [(2,), (4,), (8,), (32,), (2, 2), (4, 4), (8, 8), (2, 2, 2), (4, 4, 4), (2, 2, 2, 2), (4, 4, 4, 4)]
)
def test_swing(shape):
    """Each of 2·D parts swings through the sides in its own order, mirrored in half of them."""
    grid, count = Grid(shape, wraps=True), len(shape)
    rounds = shape[0].bit_length() - 1
    parts = [(d, mirror) for d in range(count) for mirror in (1, -1)]
    m = machine(SIZE / len(grid.ranks) / len(parts))
    pieces(m, grid.ranks, parts)
    distance = [(1 - (-2) ** (s + 1)) // 3 for s in range(rounds)]

    def steps(d, mirror):
        for q in reversed(range(rounds * count)):
            side, shift = (d + q) % count, distance[q // count] * mirror
            messages = []
            for rank in grid.ranks:
                at = grid.at(rank)
                way = shift if at[side] % 2 == 0 else -shift
                if abs(shift) * 2 == shape[side]:  # a ring of two: both cables lead there, one for each mirror
                    way = shift
                path, end = grid.walk(rank, side, way)
                messages.append((rank, end, m.block(rank, (d, mirror)), [(path, 1.0)]))
            yield messages

    m.phases(lambda: [steps(d, mirror) for d, mirror in parts])
    time = complete(m, grid.ranks, all_of(grid), parts)
    assert predicted("torus", shape, "all_reduce", "swing") == pytest.approx(2 * time, rel=1e-9)


def test_the_replay_refuses_what_is_not_held():
    m = machine(1.0)
    pieces(m, range(3))
    with pytest.raises(AssertionError):
        m.step([(0, 1, frozenset({(2, None)}), [([("a",)], 1.0)])])
    with pytest.raises(AssertionError):
        complete(m, range(3), lambda rank: 0)
    assert list(itertools.islice(around(m, [0, 1], lambda a, b: [([a], 1.0)]), 1))
