"""Quantiles and histograms of a scan against NumPy on the whole grid, for drawn axes, tiles, digits and dtypes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgrid.engine.execution.evaluation import Evaluation, enable_compilation_cache
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.reductions import quantiles as module
from perfgrid.engine.reductions.quantiles import Groups, extent, histogram, quantiles
from perfgrid.engine.reductions.scan import Scan
from tests.engine import toys

pytestmark = pytest.mark.optimised

enable_compilation_cache()
AXES = ["product", "layout", "material", "machine_rate", "distance"]
FLAGS = ("pieces_divide", "in_time")


@settings(max_examples=12)
@given(
    quantity=st.sampled_from(["order_time", "slack", "energy_cost", "throughput", "distance"]),
    sign=st.sampled_from([1.0, -1.0]),
    over=st.lists(st.sampled_from(AXES), min_size=1, unique=True),
    tile=st.sampled_from([37, 300, 10**6]),
    threshold=st.sampled_from([1, 10**6]),
    dtype=st.sampled_from(["float32", "float64"]),
    counters=st.sampled_from([2**10, 2**20]),
    levels=st.lists(st.floats(0, 1), min_size=1, max_size=4),
)
def test_they_are_those_of_the_whole_grid(quantity, sign, over, tile, threshold, dtype, counters, levels):
    space, registry = toys.space(rate=4), toys.registry()
    scan = Scan(registry, space, {quantity: sign}, FLAGS, None, dtype, tile, small_points=threshold)
    groups = Groups(scan, over)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COUNTERS", counters)
        found, count = (groups.spread(v) for v in quantiles(groups, levels))
    plan = Plan(registry, space, [quantity, *FLAGS], small_points=10**6, constraints=False)
    values = Evaluation(plan, "float64").collect()
    rank, back = len(space.axes), np.argsort(plan.order)

    def full(name):
        return np.broadcast_to(values[name].reshape(values[name].shape[:rank]).transpose(back), space.shape)

    possible = np.logical_and(*(full(f).astype(bool) for f in FLAGS))
    along = tuple(i for i, a in enumerate(space.axes) if a.name in over)
    np.testing.assert_array_equal(count, possible.sum(axis=along))
    every = np.where(possible, sign * full(quantity), np.nan)
    rounding = 1e-5 if dtype == "float32" else 1e-9
    absolute = rounding * 9e4 if quantity == "slack" else 0.0  # the deadline of the toys is subtracted
    for i, level in enumerate(levels):
        for place in np.ndindex(count.shape):
            at: list = list(place)
            for axis in along:
                at.insert(axis, slice(None))
            mine = every[tuple(at)]
            mine = mine[~np.isnan(mine)]
            if not len(mine):
                assert np.isnan(found[(*place, i)])
                continue
            rank_of = max(int(np.ceil(level * len(mine))), 1)  # as NumPy's method "inverted_cdf"
            np.testing.assert_allclose(found[(*place, i)], np.sort(mine)[rank_of - 1], rtol=rounding, atol=absolute)
    least, largest = extent(groups)
    if possible.any():
        np.testing.assert_allclose([least, largest], [np.nanmin(every), np.nanmax(every)], rtol=rounding, atol=absolute)
        edges = np.linspace(least, largest, 6) if largest > least else np.array([least, least + 1])
        counts = groups.spread(histogram(groups, edges))
        np.testing.assert_array_equal(counts.sum(axis=-1), count)
        inner = edges[1:-1] * (1 + 1e-3)  # away from values, where rounding decides
        wider = groups.spread(histogram(groups, np.array([-1e30, *inner, 1e30])))
        if (np.abs(every[..., None] - inner) > 1e-4 * np.abs(inner) + 1.0 * (quantity == "slack"))[possible].all():
            expected = np.apply_along_axis(
                lambda v: np.histogram(v[~np.isnan(v)], np.array([-1e30, *inner, 1e30]))[0],
                -1,
                np.moveaxis(every, along, range(-len(along), 0)).reshape(*count.shape, -1),
            )
            np.testing.assert_array_equal(wider, expected)
