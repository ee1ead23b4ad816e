"""Frontiers of a scan against brute force over the whole grid, for drawn objectives, axes, tiles and thresholds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.execution.evaluation import Evaluation, enable_compilation_cache
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.reductions import pareto as module
from perfgrid.engine.reductions.pareto import front, unbeaten
from perfgrid.engine.reductions.scan import Scan
from tests.engine import toys

QUANTITIES = ("order_time", "throughput", "energy_cost", "slack", "transport", "distance")
DEADLINE = 9e4  # of the toys
enable_compilation_cache()


def _brute(scores: np.ndarray) -> set[tuple[float, ...]]:
    """The distinct score vectors that no other point beats."""
    points = np.unique(scores, axis=0)
    beaten = [(np.all(points <= p, axis=1) & np.any(points < p, axis=1)).any() for p in points]
    return set(map(tuple, points[~np.array(beaten, bool)]))


@settings(max_examples=60)
@given(data=st.data(), count=st.integers(1, 300), objectives=st.integers(2, 4), groups=st.integers(1, 4))
def test_unbeaten_is_what_pairwise_comparison_leaves(data, count, objectives, groups):
    """Few distinct values, so that equal points and ties in single objectives occur; samples small enough to filter."""
    draw = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    scores = draw.integers(0, data.draw(st.sampled_from([3, 50])), (count, objectives)).astype(float)
    group = draw.integers(0, groups, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SAMPLE", data.draw(st.sampled_from([4, 2**13])))
        kept = unbeaten(group, scores)
    for g in range(groups):
        mine = scores[kept & (group == g)]
        assert len(np.unique(mine, axis=0)) == len(mine)  # one of equal points
        if (group == g).any():
            assert set(map(tuple, mine)) == _brute(scores[group == g])


@settings(max_examples=10)
@given(
    objectives=st.lists(st.sampled_from(QUANTITIES), min_size=2, max_size=3, unique=True),
    signs=st.lists(st.sampled_from([1.0, -1.0]), min_size=3, max_size=3),
    over=st.lists(
        st.sampled_from(["product", "layout", "material", "machine_rate", "distance"]), min_size=1, unique=True
    ),
    tile=st.sampled_from([37, 300, 10**6]),
    threshold=st.sampled_from([1, 64, 10**6]),
)
def test_a_front_is_that_of_the_whole_grid(objectives, signs, over, tile, threshold):
    """No design of a group beats one of its front, and each is beaten by or equal to one of it, but for rounding."""
    space, registry = toys.space(rate=4), toys.registry()
    flags = ("pieces_divide", "in_time")
    wanted = dict(zip(objectives, signs, strict=False))
    scan = Scan(registry, space, wanted, flags, dtype="float64", tile_points=tile, small_points=threshold)
    found = front(scan, over)
    plan = Plan(registry, space, [*objectives, *flags], small_points=10**6, constraints=False)
    values = Evaluation(plan, "float64").collect()
    rank, shape, back = len(space.axes), space.shape, np.argsort(plan.order)

    def full(name):
        return np.broadcast_to(values[name].reshape(values[name].shape[:rank]).transpose(back), shape)

    possible = np.logical_and(*(full(f).astype(bool) for f in flags))
    scores = np.stack([sign * full(name) for name, sign in wanted.items()], axis=-1)
    rounding = 1e-9 * np.abs(scores).max(axis=tuple(range(rank)))
    assert possible[found.index].all()
    np.testing.assert_allclose(scores[found.index], found.scores, rtol=1e-9, atol=1e-9 * DEADLINE)
    groups = [i for i, axis in enumerate(space.axes) if axis.name not in over]
    for place in np.ndindex(*(shape[i] for i in groups)):
        at: list = [slice(None)] * rank
        here = np.ones(len(found.scores), bool)
        for axis, row in zip(groups, place, strict=True):
            at[axis], here = row, here & (found.index[axis] == row)
        every = scores[tuple(at)].reshape(-1, len(wanted))[possible[tuple(at)].reshape(-1)]
        mine = found.scores[here]
        assert len(np.unique(mine, axis=0)) == len(mine)
        for design in mine:
            assert not (every < design - rounding).all(axis=1).any()
            weakly = (every <= design - rounding).any(axis=1) & (every <= design + 0.0).all(axis=1)
            assert not weakly.any()
        for design in every:
            assert (mine <= design + rounding).all(axis=1).any()


def test_a_quantity_with_inner_axes_has_no_front():
    with pytest.raises(PerfgridError, match="several values"):
        Scan(toys.registry(), toys.space(), {"order_time": 1.0, "tool_time": 1.0})
