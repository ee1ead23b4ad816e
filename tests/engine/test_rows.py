"""Values whose rows along inner axes are arrays of their own while a grid is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfgrid.engine import InnerAxes, xp
from perfgrid.engine.graph.rows import MOST, Rows, compiled_by_row, leaves, whole

AXES = InnerAxes({"kind": ("a", "b"), "part": ("x", "y", "z"), "many": tuple(map(str, range(MOST + 1)))})
POINTS = np.random.default_rng(0).uniform(0.5, 2.0, (5, 1, 1, 1))
WIDE = np.random.default_rng(1).uniform(0.5, 2.0, (5, 2, 3, 1))


def parts(points):
    return AXES.table("part", x=points, y=points**2, z=1.5)


def nested(points):
    return AXES.table("kind", a=parts(points), b=parts(points + 1))


WAYS = {
    "a row of rows": lambda p: AXES.at(nested(p), kind="b", part="y"),
    "a row of an inner axis of rows": lambda p: AXES.at(nested(p), part="y"),
    "operators": lambda p: 2 * nested(p) + p / nested(p) - nested(p) ** 2,
    "comparison and choice": lambda p: xp.where(nested(p) > p, nested(p), 0.5),
    "beside an array": lambda p: xp.maximum(nested(p), WIDE) + WIDE * parts(p),
    "totals": lambda p: AXES.total(nested(p), "part") + AXES.total(nested(p), "kind") + AXES.largest(parts(p), "part"),
    "other functions": lambda p: xp.cumsum(nested(p), axis=-2) + xp.flip(nested(p), axis=-3),
    "reshaped": lambda p: xp.reshape(xp.reshape(nested(p), (5, 2, 1, 3)), (5, 2, 3, 1)),
    "of more than stand apart": lambda p: AXES.table("many", **{n: p for n in AXES.labels["many"]}) * nested(p),
    "put on one axis": lambda p: xp.reshape(nested(p), (5, 6)),
    "broadcast": lambda p: xp.broadcast_to(parts(p), (5, 2, 3, 1)),
    "taken": lambda p: xp.take(nested(p), np.array([4, 0]), axis=0),
    "rows of an axis": lambda p: xp.take(nested(p), np.array([1, 0]), axis=-2),
    "flags": lambda p: AXES.table("kind", a=p > 1, b=False) & (parts(p) > 1),
    "more than stand apart": lambda p: AXES.table("many", **{n: p * int(n) for n in AXES.labels["many"]}),
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_what_the_array_is(way):
    expected = WAYS[way](POINTS)

    def by_row(points):
        with compiled_by_row():
            return whole(WAYS[way](points))

    with jax.enable_x64(True):
        found = jax.jit(by_row)(POINTS)
    assert found.dtype == np.asarray(expected).dtype
    np.testing.assert_allclose(np.broadcast_to(found, expected.shape), expected, rtol=1e-12)


def test_rows_stand_apart_until_they_are_one_array():
    with compiled_by_row():
        found = nested(jnp.asarray(POINTS))
    assert isinstance(found, Rows)
    assert len(leaves(found)) == 6
    assert (found.shape, found.ndim, found.dtype) == ((5, 2, 3, 1), 4, jnp.float32)
    assert not isinstance(nested(jnp.asarray(POINTS)), Rows)
    assert isinstance(nested(POINTS), np.ndarray)
    with compiled_by_row():
        assert not isinstance(AXES.table("many", **dict.fromkeys(AXES.labels["many"], jnp.asarray(POINTS))), Rows)


def test_what_is_put_together_to_be_taken_apart_is_no_array():
    def by_row(points):
        with compiled_by_row():
            both = nested(points) * parts(points)
            return AXES.at(both, kind="a", part="z") + AXES.at(both, kind="b", part="x")

    made = {equation.primitive.name for equation in jax.make_jaxpr(by_row)(POINTS).eqns}
    assert not made & {"concatenate", "slice", "gather"}, made


def test_rows_are_an_array_to_whoever_takes_them_as_one():
    """Formulas of users may iterate, count axes from the front, or ask for options that no row can follow."""
    plain = nested(POINTS)
    with compiled_by_row():
        rows = nested(jnp.asarray(POINTS))
        ways = (
            lambda v: xp.sum(v, axis=2, keepdims=True),
            lambda v: xp.max(v, axis=-2, initial=0.0),
            lambda v: xp.reshape(v, -1),
            lambda v: xp.matmul(v, np.ones((1, 2))),
            lambda v: xp.broadcast_to(xp.sum(v, axis=-2, keepdims=True), (5, 2, 3, 1)),
            lambda v: sum(list(v)),
            lambda v: v.T,
        )
        for way in ways:
            np.testing.assert_allclose(whole(way(rows)), way(plain), rtol=1e-6)
