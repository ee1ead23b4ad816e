"""Bounds of the training model hold its values, and a search that uses them finds what one of every point finds."""

from unittest import mock

import numpy as np
import pytest

from perfgrid.engine.execution.small_stage import bring
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.reductions import preselection as candidates
from perfgrid.engine.reductions.interval import Interval, interval
from perfgrid.engine.reductions.listing import LISTED, Listing
from perfgrid.engine.reductions.preselection import BestSearch
from perfgrid.engine.reductions.subgrid import Cut
from tests import small

AXES = {
    "model": ["llama-2-7b", "mixtral-8x7b"],
    "device": ["h100-sxm-80gb", "b200"],
    "topology": ["rail-optimized"],
    "microbatch": [1, 2],
    "recompute": ["none", "selective"],
    "parallelism": {"devices": [64, 128], "tp": [1, 4], "cp": [1, 2], "pp": [1, 4], "ep": [1, 8], "chunks": [1, 2]},
    "scale_up_bandwidth": {"scale": {"start": 0.5, "stop": 4.0, "num": 8, "spacing": "log"}},
    "hbm_bandwidth": {"scale": {"start": 0.5, "stop": 4.0, "num": 12, "spacing": "log"}},
}
KEPT = ("scale_up_bandwidth", "hbm_bandwidth")
OVER = ("parallelism", "microbatch", "recompute")


def replayed(listing, kind):
    """All quantities of a listing in NumPy, its given ones in the precision of the grid."""
    values = {}
    for name, value in listing.given.items():
        values[name] = value if value.dtype == bool else value.astype(np.float32).astype(kind)
    with np.errstate(all="ignore"):
        for node in listing.graph.nodes.values():
            key, arguments = listing.quantities[node.name].key, []
            for name in node.arguments:
                value, own = values[name], listing.quantities[name].key
                if isinstance(value, Interval):
                    arguments.append(Interval(bring(value.lo, own, key), bring(value.hi, own, key), value.positive))
                else:
                    arguments.append(bring(value, own, key))
            values[node.name] = node.function(*arguments)
    return values


@pytest.fixture(scope="module")
def study():
    return small.study(axes=AXES, outputs=["step_time"])


def test_intervals_hold_every_quantity_of_a_training_step(study):
    """1,500 drawn designs with all rows of two bandwidths, every quantity above the small stage, in both precisions."""
    outputs = ["step_time", "communication_fraction", "bubble_fraction", "model_flops_utilization"]
    plan = Plan(study.registry, study.space, outputs, study.file.choices, small_points=2000)
    cut = Cut.of(plan)
    generator = np.random.default_rng(3)
    rows = {a.name: generator.integers(0, len(a), 1500) for a in plan.space.axes if a.name not in KEPT}
    order = (KEPT[0], LISTED, KEPT[1])
    points = Listing(cut, outputs, rows, order)
    cells = {KEPT[0]: np.array([0, 3, 4]), KEPT[1]: np.array([0, 1, 5, 9])}
    boxes = Listing(cut, outputs, rows, order, cells)
    boxes.given = {n: interval(v) if not isinstance(v, Interval) else v for n, v in boxes.given.items()}
    bounds = replayed(boxes, np.float32)
    inside = {a: np.searchsorted(starts, np.arange(cut.sizes[a]), side="right") - 1 for a, starts in cells.items()}
    checked = 0
    for kind in (np.float32, np.float64):
        values = replayed(points, kind)
        for name in points.graph.nodes:
            bound, value = interval(bounds[name]), np.asarray(values[name])
            lo, hi = bound.lo, bound.hi
            for place, axis in enumerate(order):
                if axis in cells and lo.ndim > place and lo.shape[place] == len(cells[axis]):
                    lo, hi = (np.take(end, inside[axis], axis=place) for end in (lo, hi))
            assert (lo <= value).all(), name
            assert (value <= hi).all(), name
            checked += value.size
    assert len(points.graph.nodes) > 60
    assert checked > 10**6


@pytest.mark.slow
def test_a_bounded_search_finds_what_one_of_every_point_finds(study):
    layouts = next(a for a in study.space.axes if a.name == "parallelism")
    sizes = np.unique(layouts.columns["devices"], return_inverse=True)[1]
    asked = (study.registry, study.space, "step_time", OVER, False, ("parallelism", sizes))
    with mock.patch.multiple(candidates, LIST_FROM=0, BOUND_FROM=0):
        bounded = BestSearch(*asked, small_points=2000)
        found = bounded.winners()
    expected = BestSearch(*asked, small_points=2000).winners()
    assert bounded.counts.by_bounds > bounded.counts.evaluated / 2
    np.testing.assert_array_equal(found.found, expected.found)
    for mine, theirs in zip(found.index, expected.index, strict=True):
        np.testing.assert_array_equal(mine[found.found], theirs[expected.found])
