"""Branch and bound: winners are those of every point, intervals hold all values, what is proven away is counted."""

from contextlib import ExitStack
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from perfgrid.engine import formula, xp
from perfgrid.engine.execution import kernels as calls
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.reductions import preselection as module
from perfgrid.engine.reductions.interval import Interval, NoBounds
from perfgrid.engine.reductions.preselection import BestSearch

from . import toys
from .test_search import REGISTRY, whole_grid


def limits(**values: int) -> ExitStack:
    """Limits of the listing that suit little studies."""
    stack = ExitStack()
    for name, value in {"LIST_FROM": 0, "BOUND_FROM": 0, "ROWS": 1, "CELLS": 4, **values}.items():
        stack.enter_context(mock.patch.object(module, name, value))
    return stack


@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_winners_are_those_of_every_point(data):
    """Drawn sizes, axes, objectives, parts of axes and tiles, cells, lists and numbers of winners."""
    space = toys.drawn_space(data, 6)
    names = [axis.name for axis in space.axes]
    over = data.draw(st.lists(st.sampled_from(names), unique=True))
    maximize, count = data.draw(st.booleans()), data.draw(st.integers(1, 3))
    objective = data.draw(st.sampled_from(["order_time", "throughput", "energy_cost", "slack"]))
    parts = None
    if over and data.draw(st.booleans()):
        axis = next(a for a in space.axes if a.name == over[0])
        drawn = data.draw(st.lists(st.integers(0, 2), min_size=len(axis), max_size=len(axis)))
        parts = (axis.name, np.unique(drawn, return_inverse=True)[1])
    small = data.draw(st.sampled_from([0, 20, 60]))
    bounded, listed = data.draw(st.sampled_from([0, 10**9])), data.draw(st.sampled_from([20, 10**6]))
    part = mock.patch.object(calls, "PART_POINTS", data.draw(st.sampled_from([2**17, 200, 10])))
    with part, limits(BOUND_FROM=bounded, LISTED_ROWS=listed, CELLS=data.draw(st.integers(2, 5))):
        search = BestSearch(REGISTRY, space, objective, over, maximize, parts, None, "float64", small_points=small)
        found = search.winners(count)
    counts = search.counts
    assert counts.evaluated + counts.proven == counts.points == space.points
    assert counts.evaluated > 0
    assert counts.why_no_bounds in ("", module.NOT_LISTED)
    assert not (counts.why_no_bounds and counts.proven)
    score = whole_grid(space, objective, maximize)
    groups = [search.axes[i] for i in search.groups]
    labels = parts[1] if parts else np.zeros(1, int)
    for place in np.ndindex(found.found.shape[:-1]):
        part, *rows = place
        index: list[Any] = [slice(None)] * len(names)
        for name, row in zip(groups, rows, strict=True):
            index[names.index(name)] = slice(row, row + 1)
        if parts:
            index[names.index(parts[0])] = np.flatnonzero(labels == part)
        expected = np.sort(score[tuple(index)].reshape(-1))[:count]
        expected = expected[np.isfinite(expected)]
        assert found.found[place].sum() == len(expected)
        points = [tuple(int(axis[place][k]) for axis in found.index) for k in range(len(expected))]
        assert len(set(points)) == len(points)
        np.testing.assert_allclose([score[p] for p in points], expected, rtol=1e-12)
        for point in points:
            assert all(point[names.index(name)] == row for name, row in zip(groups, rows, strict=True))
            assert not parts or labels[point[names.index(parts[0])]] == part


def test_what_is_proven_away_is_counted():
    """What does not divide is known before any tile; bounds leave half of the rest."""
    space = toys.space(product=2, rate=16, distance=3)
    with limits():
        search = BestSearch(REGISTRY, space, "order_time", ["layout"], dtype="float64", small_points=40)
        first = search.winners()
        whole = BestSearch(REGISTRY, space, "order_time", ["layout"], dtype="float64", small_points=40)
        whole.bounds = None
        every = whole.winners()
    _, lines, _ = np.array(toys.layouts()).T
    pieces = space.axes[0].columns["pieces"]
    impossible = int((pieces[:, None] % lines > 0).sum()) * 2 * 3 * 16  # materials, distances, rates
    assert (search.counts.points, search.counts.by_constraints) == (3648, impossible)
    assert (search.counts.evaluated, search.counts.by_bounds) == (720, 1584)
    assert (whole.counts.evaluated, whole.counts.by_bounds) == (3648 - impossible, 0)
    for mine, theirs in zip(first.index, every.index, strict=True):  # ties go to the same row
        np.testing.assert_array_equal(mine[first.found], theirs[every.found])


def test_a_search_that_lists_no_candidates_says_so():
    with limits(MOST_PLANE=1):
        search = BestSearch(REGISTRY, toys.space(rate=8), "order_time", ["layout"], dtype="float64", small_points=40)
    assert search.counts.why_no_bounds == module.NOT_LISTED


@formula(unit="s", source="toy")
def sorted_time(order_time):
    """A time by a function that has no rule for intervals."""
    return order_time + 0.0 * xp.cumprod(order_time, axis=-1)


def test_an_objective_without_bounds_is_evaluated_everywhere():
    registry, space = Registry.collect([*toys.PARTS, sorted_time], toys.INNER), toys.space(rate=8)
    with limits():
        search = BestSearch(registry, space, "sorted_time", ["layout"], dtype="float64", small_points=40)
        found = search.winners()
        plain = BestSearch(registry, space, "order_time", ["layout"], dtype="float64", small_points=40)
        expected = plain.winners()
    assert "cumprod" in search.counts.why_no_bounds
    assert search.counts.by_bounds == 0
    assert plain.counts.by_bounds > 0
    for mine, theirs in zip(found.index, expected.index, strict=True):
        np.testing.assert_array_equal(mine[found.found], theirs[expected.found])


# ---- intervals ------------------------------------------------------------------------------------------------------

UNARY = [
    lambda x: -x,
    abs,
    xp.sqrt,
    xp.exp,
    xp.expm1,
    xp.log,
    xp.log2,
    xp.log1p,
    xp.floor,
    xp.ceil,
    xp.round,
    lambda x: x**2,
    lambda x: xp.clip(x, 0.5, 2.0),
    lambda x: xp.sum(x, axis=-1, keepdims=True) + x,
    lambda x: xp.where(x <= xp.min(x, axis=-1, keepdims=True), x, 9.0),
    lambda x: xp.where(x >= xp.max(x, axis=-1, keepdims=True), -x, 1.0),
    lambda x: xp.concatenate([x[..., 1:], 2 * x[..., :1]], axis=-1),
    lambda x: xp.where(xp.logical_not(x > 1), 1 / (1 + abs(x)), x),
]
BINARY = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a, b: a % b,
    lambda a, b: abs(a) ** b,
    xp.maximum,
    xp.minimum,
    lambda a, b: xp.where(a < b, a, 2 * b),
    lambda a, b: xp.where((a == b) | (a >= 2 * b), a, a - b),
    lambda a, b: xp.where((a > 0) & (b != 1), a * b, 3.0),
]


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_intervals_hold_every_rounded_value(data):
    """Drawn chains of operations on drawn intervals: float32 values in NumPy and compiled, and float64 ones."""
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    width, low = data.draw(st.sampled_from([0.0, 1e-3, 0.5])), data.draw(st.sampled_from([-2.0, 0.0, 0.5]))
    start = generator.uniform(low, 3, (2, 40, 4)).astype(np.float32)
    if data.draw(st.booleans()):
        start = np.round(start)
    ends = start * np.float32(1 - width), start * np.float32(1 + width)
    lo, hi = np.minimum(*ends), np.maximum(*ends)
    inside = [lo + np.float32(share) * (hi - lo) for share in (0.0, 0.3, 1.0)]
    inside = [np.clip(x, lo, hi) for x in inside]
    steps = data.draw(st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), min_size=1, max_size=6))

    def chain(a: Any, b: Any) -> Any:
        for binary, which in steps:
            a, b = (BINARY[which % len(BINARY)](a, b), a) if binary else (UNARY[which % len(UNARY)](a), b)
        return a

    positive = bool((lo >= 0).all())
    with np.errstate(all="ignore"):
        bounds = chain(*(Interval(lo[i], hi[i], positive) for i in (0, 1)))
        compiled = jax.jit(lambda a, b: jnp.asarray(chain(a, b)))
        for x in inside:
            for value in (chain(x[0], x[1]), compiled(x[0], x[1]), chain(*x.astype(np.float64))):
                value = np.asarray(value).astype(np.float32)  # what only float64 can hold is no concern of the bounds
                known = np.isfinite(value)
                assert not (known & (value < bounds.lo)).any()
                assert not (known & (value > bounds.hi)).any()


def test_what_has_no_rule_is_named():
    with pytest.raises(NoBounds, match="cumsum"):
        xp.cumsum(Interval(np.zeros(3), np.ones(3)), axis=0)
