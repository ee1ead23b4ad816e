"""Rules of derivatives against central differences, in NumPy and in JAX; kinks; tangents on their own axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgrid.engine import PerfgridError, xp
from perfgrid.engine.autodiff.dual import Dual
from perfgrid.engine.autodiff.rules import smoothing

INTERIOR = {
    "sum": lambda a, b: a + 2.0 * b,
    "difference": lambda a, b: 3.0 - a - b,
    "product": lambda a, b: a * b * 2.0,
    "quotient": lambda a, b: (a - 0.3) / b,
    "reciprocal": lambda a, b: 1.0 / (a * b),
    "power": lambda a, b: a**b,
    "square": lambda a, b: a**2 - b**-1,
    "power of a number": lambda a, b: 2.0 ** (a - b),
    "remainder": lambda a, b: (10.0 * a) % b,
    "exponential": lambda a, b: xp.exp(-a) + xp.expm1(b),
    "logarithm": lambda a, b: xp.log(a) * xp.log2(b) + xp.log1p(a),
    "root": lambda a, b: xp.sqrt(a + b * a),
    "maximum": lambda a, b: xp.maximum(a, 2.0 * b) + xp.minimum(a * b, 1.1),
    "clip": lambda a, b: xp.clip(a - b, 0.1, 0.7),
    "absolute": lambda a, b: xp.abs(a - b) + abs(b),
    "where": lambda a, b: xp.where(a > b, a * b, b / a),
    "unguarded where": lambda a, b: xp.where(a > 0, a * b, xp.sqrt(a - 5.0) / (a - a)),
    "stairs": lambda a, b: a * xp.ceil(7.0 * b) + xp.floor(b / a) + xp.round(a),
    "rows": lambda a, b: xp.sum(xp.concatenate([xp.asarray(a), xp.asarray(b * a)], axis=-1) ** 2, axis=-1),
    "largest": lambda a, b: xp.max(xp.concatenate([xp.asarray(a), xp.asarray(b)], axis=-1), axis=-1, keepdims=True),
    "part": lambda a, b: (xp.reshape(a, (1, 1, 1)) * b)[..., 0, :] + xp.broadcast_to(b, (1, 1))[..., 0:1],
    "cumulative": lambda a, b: xp.cumsum(xp.concatenate([xp.asarray(a), xp.asarray(b)], axis=-1), axis=-1),
}


def numbers(low=0.2, high=3.0):
    return st.floats(low, high, allow_nan=False)


@pytest.mark.parametrize("name", INTERIOR)
def test_rules_are_the_slope_of_differences(name):
    """At 100 drawn points; those with a kink or jump within the step are few and left out."""
    function, step, left_out = INTERIOR[name], 1e-6, 0
    for a, b, da, db in np.random.default_rng(1).uniform((0.2, 0.2, -1, -1), (3, 3, 1, 1), (100, 4)):

        def value(t, a=a, b=b, da=da, db=db):
            return np.asarray(function(np.array([[a + t * da]]), np.array([[b + t * db]])), float)

        with np.errstate(all="ignore"):
            found = function(
                Dual(np.array([[a]]), {0: np.array([[[da]]])}), Dual(np.array([[b]]), {0: np.array([[[db]]])})
            )
            up, here, down = value(step), value(0.0), value(-step)
        if (np.abs((up - here) - (here - down)) > 1e-4 * step * (1 + np.abs(here))).any():
            left_out += 1
            continue
        expected = (up - down) / (2 * step)
        np.testing.assert_allclose(np.broadcast_to(found.tangents[0][0], here.shape), expected, rtol=1e-6, atol=2e-9)
    assert left_out <= 2


@pytest.mark.parametrize("name", sorted(set(INTERIOR) - {"stairs"}))
def test_the_rules_are_the_same_in_jax_and_agree_with_its_own(name):
    function = INTERIOR[name]
    a, b = np.array([[1.3]]), np.array([[0.7]])
    with np.errstate(all="ignore"):
        in_numpy = function(Dual(a, {0: np.ones((1, 1, 1))}), b)
    with jax.enable_x64(True):
        x, y = jnp.asarray(a), jnp.asarray(b)
        in_jax = function(Dual(x, {0: jnp.ones((1, 1, 1))}), y)
        np.testing.assert_allclose(in_jax.tangents[0], in_numpy.tangents[0], rtol=1e-12)
        if name != "unguarded where":  # there JAX's own rule lets the excluded branch through only in reverse mode
            own = jax.jvp(lambda v: function(v, y), (x,), (jnp.ones((1, 1)),))[1]
            np.testing.assert_allclose(np.broadcast_to(in_jax.tangents[0][0], own.shape), own, rtol=1e-12)


def test_at_a_tie_the_mean_of_the_one_sided_derivatives():
    a = Dual(np.array(2.0), {0: np.ones(1)})
    assert xp.maximum(a, 2.0).tangents[0] == 0.5
    assert xp.minimum(2.0, a).tangents[0] == 0.5
    assert xp.abs(a - 2.0).tangents[0] == 0.0
    assert xp.clip(a, 2.0, 5.0).tangents[0] == 0.5
    tied = Dual(np.array([2.0, 2.0, 1.0]), {0: np.array([[1.0, 0.0, 7.0]])})
    assert xp.max(tied, axis=-1).tangents[0] == 0.5


@pytest.mark.parametrize("name", ["sqrt", "log", "log2"])
def test_no_infinite_slope_at_zero(name):
    with np.errstate(all="ignore"):
        assert getattr(xp, name)(Dual(np.array(0.0), {0: np.ones(1)})).tangents[0] == 0.0
        assert (Dual(np.array(0.0), {0: np.ones(1)}) ** 0.5).tangents[0] == 0.0


@given(a=numbers(0.01, 100), b=numbers(0.01, 100), p=st.sampled_from([2, 8, 16]))
def test_smooth_companions_keep_values_and_euler_sums(a, b, p):
    """The elasticity of a maximum is the mean of its operands' with weights a^p : b^p, and slopes reach both."""
    x, y = Dual(np.array(a), {"a": np.array([a])}), Dual(np.array(b), {"b": np.array([b])})
    pair = Dual(np.array([a, b]), {"a": np.array([[a, 0.0]]), "b": np.array([[0.0, b]])})
    with smoothing(sharpness=p):
        for function, power in ((xp.maximum, p), (xp.minimum, -p)):
            found = function(x, y)
            assert found.value == function(a, b)
            weights = np.array([found.tangents["a"][0], found.tangents["b"][0]]) / found.value
            np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-12)
            np.testing.assert_allclose(weights[0], 1 / (1 + (b / a) ** power), rtol=1e-9, atol=1e-300)
        both = xp.max(pair, axis=-1)
        np.testing.assert_allclose(both.tangents["a"], xp.maximum(x, y).tangents["a"], rtol=1e-12)
        assert xp.ceil(x).value == np.ceil(a)
        assert xp.ceil(x).tangents["a"] == a  # straight through
    assert xp.ceil(x).tangents == {}  # exact: slope 0


@given(a=numbers(-3, 3))
def test_smooth_companions_leave_clips_at_zero_alone(a):
    with smoothing(sharpness=8):
        found = xp.maximum(Dual(np.array(a), {0: np.ones(1)}), 0.0)
    assert found.tangents[0] == (1.0 if a > 0 else 0.5 if a == 0 else 0.0)


def test_tangents_stay_on_their_own_axes():
    first = Dual(np.linspace(1, 2, 5).reshape(5, 1), {"x": np.ones((1, 5, 1))})
    second = Dual(np.linspace(1, 2, 7).reshape(1, 7), {"y": np.ones((1, 1, 7))})
    both = first + 3.0 * second
    assert both.shape == (5, 7)
    assert both.tangents["x"].shape == (1, 5, 1)
    assert both.tangents["y"].shape == (1, 1, 7)
    total = xp.sum(both, axis=-1, keepdims=True)
    np.testing.assert_array_equal(total.tangents["x"], np.full((1, 5, 1), 7.0))
    assert (both[..., 2:4]).tangents["x"].shape == (1, 5, 1)


def test_a_function_without_a_rule_says_so():
    with pytest.raises(PerfgridError, match=r"xp\.sinh has no rule for derivatives"):
        xp.sinh(Dual(np.array(1.0), {0: np.ones(1)}))
