"""Replays on hypercubes, HyperX and tori of which only some sides wrap around."""

from dataclasses import dataclass

import pytest

from .replay import Grid, around, both_ways, complete, everyone, exchange, pieces, strided
from .test_replay import SIZE, all_of, machine, predicted

# ---- hypercube and HyperX: every side a full mesh -------------------------------------------------------------------


def mesh_path(shape):
    """One link per side in which the ranks differ."""
    grid = Grid(shape, wraps=False)

    def path(a, b):
        links, at = [], grid.at(a)
        for side, c in enumerate(grid.at(b)):
            if at[side] != c:
                start = tuple(at)
                at[side] = c
                links.append((start, tuple(at)))
        return [(links, 1.0)]

    return grid, path


@pytest.mark.parametrize("shape", [(5,), (3, 4), (4, 4), (2, 5, 3), (3, 3, 3), (2, 3, 2, 2), (4, 1, 3)])
def test_hyperx(shape):
    grid, path = mesh_path(shape)
    present = [i for i, side in enumerate(shape) if side > 1]
    n, count = len(grid.ranks), len(present)
    m = machine(SIZE / n)
    pieces(m, grid.ranks)
    m.phases(lambda: [everyone(m, list(grid.ranks), path)])
    assert predicted("hyperx", shape, "all_to_all", "direct") == pytest.approx(m.time, rel=1e-9)
    for algorithm, parts in (("direct_per_dimension", [0]), ("rotated_direct", list(range(count)))):
        m = machine(SIZE / n / len(parts))
        pieces(m, grid.ranks, parts)
        m.phases(
            *(
                lambda p=p, m=m, parts=parts: [
                    everyone(m, line, path, d)
                    for d in parts
                    for line in grid.lines(present[(d + p) % count], lambda rank: 0)
                ]
                for p in reversed(range(count))
            )
        )
        time = complete(m, grid.ranks, all_of(grid), parts)
        assert predicted("hyperx", shape, "all_gather", algorithm) == pytest.approx(time, rel=1e-9)


@pytest.mark.parametrize("d", [1, 2, 4, 5])
def test_hypercube(d):
    shape = (2,) * d
    grid, path = mesh_path(shape)
    n = 2**d
    m = machine(SIZE / n)
    pieces(m, grid.ranks)
    m.phases(lambda: [everyone(m, list(grid.ranks), path)])
    assert predicted("hypercube", shape, "all_to_all", "direct") == pytest.approx(m.time, rel=1e-9)
    for algorithm, parts in (("halving_doubling", [0]), ("rotated_halving_doubling", list(range(d)))):
        m = machine(SIZE / n / len(parts))
        pieces(m, grid.ranks, parts)
        m.phases(
            lambda m=m, parts=parts: [
                exchange(m, list(grid.ranks), path, [lambda i, b=(p + q) % d: i ^ (1 << b) for q in range(d)], p)
                for p in parts
            ]
        )
        time = complete(m, grid.ranks, all_of(grid), parts)
        assert predicted("hypercube", shape, "all_gather", algorithm) == pytest.approx(time, rel=1e-9)


# ---- sides that wrap around beside sides that do not ---------------------------------------------------------------


@dataclass
class Mixed(Grid):
    """A grid in which only some sides are rings."""

    rings: tuple[bool, ...] = ()

    def side(self, number):
        return Grid(self.sides, wraps=self.rings[number])

    def walk(self, start, side, distance):
        return self.side(side).walk(start, side, distance) if self.wraps else super().walk(start, side, distance)

    def ways(self, side, start, end):
        return self.side(side).ways(side, start, end)


@pytest.mark.parametrize(
    ("shape", "rings"),
    [((4, 6), (False, True)), ((8, 16), (False, True)), ((2, 3, 4), (False, False, True)), ((5, 4), (True, False))],
)
def test_partly_wrapped_tori(shape, rings):
    grid = Mixed(shape, wraps=True, rings=rings)
    m = machine(SIZE / len(grid.ranks))
    pieces(m, grid.ranks)
    m.phases(lambda: [everyone(m, list(grid.ranks), grid.path)])
    found = predicted("torus", shape, "all_to_all", "direct", wraps=list(rings))
    assert found == pytest.approx(m.time, rel=1e-9)
    m = machine(SIZE / len(grid.ranks) / 2)
    pieces(m, grid.ranks, (0, 1))

    def phase(side):
        one = grid.side(side)
        straight = lambda a, b: [(one.walk(a, side, one.at(b)[side] - one.at(a)[side])[0], 1.0)]  # noqa: E731
        lines = grid.lines(side, lambda rank: 0)
        if rings[side]:
            return [around(m, line[::w], one.along(side, w), p) for line in lines for p, w in ((0, 1), (1, -1))]
        return [both_ways(m, line, straight, p) for line in lines for p in (0, 1)]

    m.phases(*(lambda side=side: phase(side) for side in reversed(range(len(shape)))))
    time = complete(m, grid.ranks, all_of(grid), (0, 1))
    assert predicted("torus", shape, "all_gather", "bucket", wraps=list(rings)) == pytest.approx(time, rel=1e-9)


# ---- a message to the next rank ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "shape", "size", "stride"),
    [
        ("ring", (12,), 12, 1),
        ("ring", (12,), 4, 3),
        ("ring", (12,), 3, 2),
        ("line", (8,), 4, 2),
        ("torus", (4, 6), 24, 1),
        ("torus", (4, 6), 6, 4),
        ("torus", (5, 3, 4), 60, 1),
        ("torus", (4, 4, 4), 16, 4),
        ("mesh", (4, 5), 20, 1),
        ("mesh", (3, 4, 2), 24, 1),
        ("mesh", (4, 6), 6, 4),
        ("hypercube", (2, 2, 2, 2), 16, 1),
        ("hyperx", (3, 4), 12, 1),
        ("hyperx", (3, 4), 4, 3),
    ],
)
def test_send_recv(kind, shape, size, stride):
    """Every member but the last sends to the next at the same time."""
    grid, group = Grid(shape, wraps=kind in ("ring", "torus")), strided(size, stride)
    path = mesh_path(shape)[1] if kind in ("hypercube", "hyperx") else grid.path
    m = machine(SIZE)
    pieces(m, grid.ranks)
    follow = [(r, r + stride) for r in grid.ranks if r + stride < len(grid.ranks) and group(r) == group(r + stride)]
    m.step([(a, b, m.block(a), path(a, b)) for a, b in follow])
    assert predicted(kind, shape, "send_recv", "direct", (size, stride)) == pytest.approx(m.time, rel=1e-9)
