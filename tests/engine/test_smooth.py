"""Forward derivatives in NumPy: JAX's own are the oracle; smooth companions and margins by their properties."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgrid.engine import xp
from perfgrid.engine.autodiff.dual import Dual, margin_of
from perfgrid.engine.autodiff.rules import smoothing

NUMBER = st.floats(0.05, 20)


def dual(x, y):
    """Two numbers and the two directions along them."""
    one, none = np.ones_like(x), np.zeros_like(x)
    return Dual(x, np.stack([one, none])), Dual(y, np.stack([none, one]))


FUNCTIONS = {
    "arithmetic": lambda x, y: (x + 2 * y) / (x * y + 1) - (-x) ** 2 + 3.0 / y,
    "powers": lambda x, y: x**y + 2.0**x + y**0.5 + x**3,
    "transcendental": lambda x, y: (
        xp.exp(-x) * xp.log(y + 1) + xp.sqrt(x * y) + xp.log1p(x) + xp.expm1(-y) + xp.log2(y)
    ),
    "choice": lambda x, y: (
        xp.where(x > y, x * y, x / y) + xp.maximum(x, 2 * y) + xp.minimum(x * x, y) + xp.abs(x - 1.1 * y)
    ),
    "rounding": lambda x, y: xp.ceil(x / y) * y + xp.floor(x) + x % y,
    "clip": lambda x, y: xp.clip(x, 1.0, 3.0) * y,
    "reductions": lambda x, y: (
        xp.sum(xp.concatenate([x * y, y], axis=-1), axis=-1, keepdims=True)
        * xp.max(xp.concatenate([x, y], axis=-1), axis=-1, keepdims=True)
        + xp.min(xp.concatenate([x, y + 0.0], axis=-1), axis=-1, keepdims=True)
    ),
    "shapes": lambda x, y: (
        xp.reshape(xp.broadcast_to(x, (2, *np.shape(x))), (-1, 2))[:50] * xp.take(y, np.array([0, 2]), axis=-1)
    ),
    "along an axis": lambda x, y: (
        xp.cumsum(x * y, axis=-1)
        + xp.roll(x, 1, axis=-1) * xp.cumprod(y, axis=-1)
        + xp.expand_dims(x / y, 0)[0]
        + xp.expand_dims(xp.prod(x, axis=-1), -1)
        + xp.take_along_axis(x, xp.argsort(y, axis=-1), axis=-1)
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_those_of_jax(name):
    x, y = np.random.default_rng(0).uniform(0.05, 20, (2, 50, 3))
    x[:10] = np.ceil(x[:10])
    y[:10] = x[:10] / np.array([1.0, 2.0, 4.0])  # ties and whole numbers
    found = FUNCTIONS[name](*dual(x, y))
    with jax.enable_x64(True):
        given_to_jax = jnp.asarray(x), jnp.asarray(y)
        value, along = jax.linearize(jax.jit(FUNCTIONS[name]), *given_to_jax)
        for direction, tangents in enumerate([(1.0, 0.0), (0.0, 1.0)]):
            slope = along(*(jnp.full(x.shape, t) for t in tangents))
            np.testing.assert_allclose(found.slope[direction], slope, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.value, value, rtol=1e-12)


@given(NUMBER, NUMBER, st.floats(1e-4, 0.05))
def test_smooth_extremes_stay_close_and_their_slopes_are_differences(x, y, temperature):
    def larger(a, b):
        with smoothing(temperature):
            return np.maximum(a, b), np.minimum(a, b)

    first, second = dual(np.array([x]), np.array([y]))
    big, small = larger(first, second)
    assert max(x, y) <= big.value[0] <= max(x, y) + temperature * np.sqrt(x * y) * 1.000001
    assert min(x, y) - temperature * np.sqrt(x * y) * 1.000001 <= small.value[0] <= min(x, y)
    h = 1e-6 * x
    up, down = larger(*dual(np.array([x + h]), np.array([y]))), larger(*dual(np.array([x - h]), np.array([y])))
    for result, high, low in zip((big, small), up, down, strict=True):
        assert result.slope[0, 0] == pytest.approx((high.value[0] - low.value[0]) / (2 * h), rel=1e-3, abs=1e-3)
    assert big.value + small.value == pytest.approx(x + y)  # what one gains the other loses


def test_roundings_follow_their_mean():
    x = np.linspace(3.0, 7.0, 40_001)
    with smoothing(1e-3):
        up, down = np.ceil(Dual(x, np.ones((1, *x.shape)))), np.floor(Dual(x, np.ones((1, *x.shape))))
    assert up.value.mean() == pytest.approx(np.ceil(x).mean(), rel=1e-3)
    assert down.value.mean() == pytest.approx(np.floor(x).mean(), rel=1e-3)
    np.testing.assert_allclose(up.slope, 1.0, rtol=1e-3)
    assert up.unrounded.value[0] == 3.0


def test_margins_tell_how_far_a_flag_is_from_turning_over():
    x, y = dual(np.array([3.0, 1.0]), np.array([1.0, 3.0]))
    for flag in (x > y, ~(x <= y), (x > y) & (y > 0), (x > y) | (y < 0), np.where(y > 0, x > y, x < y)):
        np.testing.assert_array_equal(flag.value, [True, False])
        margin = margin_of(flag)
        np.testing.assert_allclose(margin.value, [0.5, -0.5])
        np.testing.assert_allclose(margin.slope[0], [1 / 8, 3 / 8])  # d/dx (x - y)/(x + y)
    np.testing.assert_array_equal(margin_of(np.array([True, False])), [1.0, -1.0])


def test_a_flag_of_whole_numbers_tells_its_margin_without_slopes():
    x, _ = dual(np.array([2.2]), np.array([1.0]))
    margin = margin_of(np.ceil(x) * 2.0 > 4.0)
    np.testing.assert_allclose(margin.value, [0.2])  # (6 - 4)/(6 + 4)
    assert not margin.tangents


def test_updating_in_place_makes_a_new_number():
    x, y = dual(np.array([2.0]), np.array([3.0]))
    before = x
    x += y
    x *= 2.0
    assert before.value == 2.0
    assert x.value == 10.0
    np.testing.assert_array_equal(x.slope, [[2.0], [2.0]])
