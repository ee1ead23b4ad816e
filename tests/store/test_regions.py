"""Regions of tiles: every value is written exactly once, by whole chunks."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfgrid.engine.execution.regions import Regions
from perfgrid.engine.grid.tiles import CALLS, Tiles

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


@given(SIZES, st.integers(1, 200), st.data())
def test_owned_regions_cover_every_variable_once(sizes, points, data):
    axes = tuple("abcd"[: len(sizes)])
    regions = Regions(axes, Tiles.cut(sizes, points))
    dims = tuple(data.draw(st.permutations([a for a in axes if data.draw(st.booleans())])))
    shape = tuple(sizes[axes.index(dim)] for dim in dims)
    chunks, count = regions.chunks(dims, shape), np.zeros(shape, int)
    covered = 0
    for number in range(regions.tiles.count):
        covered += math.prod(regions.lengths(number).values())
        if regions.owns(number, dims):
            region = regions.region(number, dims)
            count[region] += 1
            for part, chunk, n in zip(region, chunks, shape, strict=True):
                first, last, _ = part.indices(n)
                assert first % chunk == 0
                assert last == min(first + chunk, n)  # one chunk, nobody else's
    assert covered == math.prod(sizes)
    assert (count == 1).all()


@given(SIZES, st.integers(1, 200))
def test_a_store_can_cut_its_grid_again(sizes, points):
    regions = Regions(tuple("abcd"[: len(sizes)]), Tiles.cut(sizes, points))
    assert Tiles.cut(sizes, regions.tile_points) == regions.tiles
    assert Regions.from_json(regions.to_json()) == regions


@given(st.integers(1, 400), st.integers(1, 2**21), st.integers(1, 2**23))
def test_tiles_take_least(rows, inside, points):
    """No other chunk of the axis takes less for calls and repeated rows; cutting again finds the same tiles."""
    tiles = Tiles.cut((rows, inside), points)
    if tiles.axis != 0:
        return

    def taken(chunk):
        return -(-rows // chunk) * (chunk * inside + CALLS)

    assert math.prod(tiles.shape) <= points
    assert taken(tiles.chunk) == min(taken(chunk) for chunk in range(1, min(rows, points // inside) + 1))
    assert Tiles.cut((rows, inside), math.prod(tiles.shape)) == tiles


def test_a_third_row_is_not_evaluated_twice():
    """Two of three rows at a time would evaluate four; one at a time is dearer only where a row is small."""
    assert Tiles.cut((3, 10**6), 2 * 10**6).count == 3
    assert Tiles.cut((3, 10**4), 2 * 10**4).count == 2


@given(SIZES, st.integers(1, 200))
def test_tiles_by_number_are_those_of_the_walk(sizes, points):
    """Rows by counting like an odometer."""
    tiles = Tiles.cut(sizes, points)
    seen = [tuple(tuple(r.tolist()) for r in tiles.at(n)) for n in range(tiles.count)]
    if tiles.axis < 0:
        assert seen == [()]
        return
    expected = [()]
    for size in sizes[: tiles.axis]:
        expected = [(*row, (i,)) for row in expected for i in range(size)]
    n = sizes[tiles.axis]
    chunks = [tuple(min(i, n - 1) for i in range(s, s + tiles.chunk)) for s in range(0, n, tiles.chunk)]
    assert seen == [(*row, chunk) for row in expected for chunk in chunks]
