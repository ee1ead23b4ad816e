"""The grid equals a replay of the same formulas point by point, however it is ordered, staged and tiled."""

import gc
import weakref
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgrid.engine import replay, resolve
from perfgrid.engine.execution import materialised as calls
from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.execution.lanes import Lane
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.engine.grid.tiles import Tiles

from . import toys

pytestmark = pytest.mark.optimised

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def random_points(space: Space, count: int, seed: int = 0):
    generator = np.random.default_rng(seed)
    return [tuple(int(generator.integers(n)) for n in space.shape) for _ in range(count)]


def assert_equals_replay(registry, space, outputs, dtype, count=20, **options):
    tile_points, part_points = options.pop("tile_points", 2**21), options.pop("part_points", calls.PART_POINTS)
    plan = Plan(registry, space, outputs, **options)
    with mock.patch.object(calls, "PART_POINTS", part_points):
        results = Evaluation(plan, dtype, tile_points).collect()
    graph = resolve(registry, plan.wanted, space.names(), plan.choices, space.label_quantities())
    for index in random_points(space, count):
        values = replay(graph, {name: space.at(name, index) for name in graph.leaves})
        for name in plan.wanted:
            array = results[name]
            row = tuple(index[i] if array.shape[p] > 1 else 0 for p, i in enumerate(plan.order))
            found, expected = np.asarray(array[row], float), np.asarray(values[name], float)
            operands = [np.max(np.abs(np.asarray(values[a], float))) for a in graph.nodes[name].arguments]
            if graph.nodes[name].constraint is not None or graph.nodes[name].flags:
                assert (found == expected).all(), name
            else:
                scale = float(np.max([np.max(np.abs(expected)), *(operands if name == "slack" else [])]))
                assert np.max(np.abs(found - expected)) <= TOLERANCE[dtype] * scale, (name, index)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("small_points", "tile_points", "part_points"),
    [
        (None, 2**21, 2**17),
        (0, 2**21, 2**17),
        (0, 700, 2**17),
        (40, 61, 2**17),
        (2000, 4000, 2**17),
        (0, 1, 2**17),
        (0, 2**21, 300),
        (0, 900, 100),
        (0, 2**21, 1),
        (40, 2000, 50),
    ],
)
def test_grid_equals_replay(dtype, small_points, tile_points, part_points):
    space = toys.space(product=2, rate=3, distance=2) if tile_points < 100 else toys.space()
    how = {"small_points": small_points, "tile_points": tile_points, "part_points": part_points}
    assert_equals_replay(toys.registry(), space, toys.OUTPUTS, dtype, **how)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_randomly_drawn_studies(data):
    """Random sizes, axes orders, outputs, thresholds, tiles and parts of tiles."""
    space = toys.space(*(data.draw(st.integers(1, 6)) for _ in range(3)))
    order = data.draw(st.permutations(range(len(space.axes))))
    outputs = data.draw(st.lists(st.sampled_from(toys.OUTPUTS), min_size=1, unique=True))
    assert_equals_replay(
        toys.registry(),
        space.permuted(tuple(order)),
        outputs,
        data.draw(st.sampled_from(["float32", "float64"])),
        count=6,
        small_points=data.draw(st.sampled_from([None, 0, 30, 10**6])),
        tile_points=data.draw(st.sampled_from([50, 1000, 2**21])),
        part_points=data.draw(st.sampled_from([2**17, 500, 60, 7])),
        choices=data.draw(st.sampled_from([{}, {"transport": "rail"}])) if "transport_choice" not in outputs else {},
    )


def tiles_of(evaluation, **how):
    return [(t.number, {n: np.array(v) for n, v in t.values.items()}) for t in evaluation.run(**how)]


def test_tiles_evaluated_at_once_are_those_evaluated_in_turn():
    """In the same order and to the last bit, also after a run that was broken off."""
    plan = Plan(toys.registry(), toys.space(), toys.OUTPUTS, small_points=0)
    with mock.patch.object(calls, "PART_POINTS", 100):
        evaluation = Evaluation(plan, "float32", 300)
    assert any(call.parts for call in evaluation.calls)
    assert evaluation.tiles.count > 7
    alone = tiles_of(evaluation, at_once=1)
    next(evaluation.run(at_once=3))
    for found in (tiles_of(evaluation, at_once=3), tiles_of(evaluation)):
        assert [number for number, _ in found] == [number for number, _ in alone] == list(range(len(alone)))
        for (_, mine), (_, expected) in zip(found, alone, strict=True):
            assert all(np.array_equal(mine[n], expected[n], equal_nan=True) for n in expected)
    assert [number for number, _ in tiles_of(evaluation, numbers={5, 2, 3}, at_once=2)] == [2, 3, 5]


def test_an_evaluation_that_is_dropped_gives_its_memory_back_at_once():
    """Without the collector of cycles, which may come long after the next evaluation needs the memory."""
    gc.disable()
    try:
        evaluation = Evaluation(Plan(toys.registry(), toys.space(), toys.OUTPUTS, small_points=0), "float32", 300)
        next(evaluation.run(at_once=2))
        held = weakref.ref(evaluation)
        del evaluation
        assert held() is None
    finally:
        gc.enable()


def test_an_error_in_a_lane_reaches_the_caller_and_leaves_no_stale_values():
    evaluation = Evaluation(Plan(toys.registry(), toys.space(), toys.OUTPUTS, small_points=0), "float32", 300)
    expected = tiles_of(evaluation, at_once=1)
    for number, target, name in ((3, Lane, "_hand_over"), (5, evaluation.calls[-1], "compiled")):
        broken = mock.patch.object(target, name, mock.Mock(side_effect=MemoryError("no memory")))
        with broken, pytest.raises(MemoryError, match="no memory"):
            tiles_of(evaluation, numbers=[number], at_once=1)
        assert all(
            np.array_equal(v, expected[number][1][n]) for n, v in tiles_of(evaluation, numbers=[number])[0][1].items()
        )
    broken = mock.patch.object(evaluation.calls[-1], "compiled", mock.Mock(side_effect=MemoryError("no memory")))
    with broken, pytest.raises(MemoryError, match="no memory"):
        tiles_of(evaluation, at_once=2)


def test_two_runs_of_one_evaluation_do_not_disturb_each_other():
    evaluation = Evaluation(Plan(toys.registry(), toys.space(), ["order_time"], small_points=0), "float32", 300)
    expected = [values["order_time"] for _, values in tiles_of(evaluation, at_once=1)]
    for one, other in zip(evaluation.run(at_once=2), evaluation.run(sorted(range(1, 9)), at_once=1), strict=False):
        assert np.array_equal(one.values["order_time"], expected[one.number])
        assert np.array_equal(other.values["order_time"], expected[other.number])


def test_axes_order_and_tiles_change_nothing():
    registry, space = toys.registry(), toys.space()
    reference = None
    for order in [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 4, 0, 3, 1)]:
        for tile_points in (2**21, 900):
            plan = Plan(registry, space.permuted(order), ("order_time",), small_points=0)
            array = Evaluation(plan, "float64", tile_points).collect()["order_time"]
            names = [a.name for a in plan.space.axes]
            array = array.transpose([names.index(a.name) for a in space.axes])
            reference = array if reference is None else reference
            np.testing.assert_allclose(array, reference, rtol=1e-12)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), points=st.integers(1, 400))
def test_tiles_cover_every_point_once(sizes, points):
    tiles = Tiles.cut(tuple(sizes), points)
    seen = np.zeros(sizes, int)
    count = 0
    for rows in tiles.rows():
        count += 1
        assert all(len(r) == n for r, n in zip(rows, tiles.shape, strict=False))  # one padded shape
        seen[np.ix_(*(np.unique(r) for r in rows), *(range(n) for n in sizes[len(rows) :]))] += 1
    assert (seen == 1).all()
    assert count == tiles.count
    assert np.prod(tiles.shape) <= max(points, 1)


def test_a_quantity_is_evaluated_on_the_distinct_rows_of_its_columns():
    plan = Plan(toys.registry(), toys.space(), toys.OUTPUTS)
    tool, order = plan.quantities["tool_time"], plan.quantities["order_time"]
    assert tool.columns["layout"] == ("lanes",)
    assert tool.points == 3 * 4 * 2 * 7  # products x distinct lanes x materials x rates; not 18 layouts, no distances
    assert tool.values == tool.points * 6
    assert order.points == np.prod(toys.space().shape)


def test_two_axes_can_state_one_quantity_as_value_and_scale():
    space = Space(
        (
            Axis("machine", np.array(["a", "b"]), {"machine_rate": np.array([10.0, 30.0])}),
            Axis("machine_rate", np.array([1.0, 2.0, 4.0]), {}, {"machine_rate": np.array([1.0, 2.0, 4.0])}),
        ),
        {"size": 5.0, "lanes": 2.0, "material": "soft"},
    )
    plan = Plan(toys.registry(), space, ("piece_time",), constraints=False)
    assert plan.quantities["machine_rate"].points == 6
    result = Evaluation(plan, "float64").collect()["piece_time"]
    expected = [[(10 / r / s * 1.5 + 1) * 2.25 for s in (1, 2, 4)] for r in (10, 30)]
    order = [a.name for a in plan.space.axes]
    grid = result.reshape(result.shape[:2])
    np.testing.assert_allclose(grid if order[0] == "machine" else grid.T, expected, rtol=1e-15)


def test_small_quantities_are_exact_integers_below_a_float32_grid():
    """ceil(x / 96) goes wrong in float32 beyond 2^24; it is evaluated once in float64 and read by the grid."""
    from perfgrid.engine import Registry, formula, xp

    @formula(unit="1", source="toy")
    def blocks(count):
        """Blocks of 96."""
        return xp.ceil(count / 96.0)

    @formula(unit="1", source="toy")
    def odd(blocks, weight):
        """Whether the number of blocks is odd, weighted."""
        return blocks % 2.0 * weight

    @formula(unit="1", source="toy")
    def parity(blocks):
        """Whether the number of blocks is odd."""
        return blocks % 2.0

    @formula(unit="1", source="toy")
    def weighted(parity, weight):
        """The same, rounded before it meets the grid."""
        return parity * weight

    counts = 96.0 * np.arange(2**25, 2**25 + 50)
    weights = np.linspace(1, 2, 40)
    space = Space((Axis("count", counts, {"count": counts}), Axis("weight", weights, {"weight": weights})))
    plan = Plan(Registry.collect([blocks, odd, parity, weighted]), space, ("weighted", "odd"), small_points=50)
    assert plan.quantities["parity"].small
    assert not plan.quantities["weighted"].small
    results = Evaluation(plan, "float32").collect()
    order = [a.name for a in plan.space.axes]
    found = results["weighted"] if order == ["count", "weight"] else results["weighted"].T
    np.testing.assert_array_equal(found > 0, np.broadcast_to((np.arange(50) % 2 == 1)[:, None], found.shape))
    lost = results["odd"] if order == ["count", "weight"] else results["odd"].T
    assert (lost == 0).all()  # what a float32 grid makes of it: 2^25 + 1 is no float32
