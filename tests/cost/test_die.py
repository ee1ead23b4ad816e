"""Dies per wafer against exact counts, yields against integrals and sums written out, their limits and derivatives."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from perfgrid.formulas.cost import die

WAFER, EDGE, STREET = 0.3, 3e-3, 1e-4
AREAS = st.floats(1e-6, 858e-6)
DEFECTS = st.floats(0.0, 20.0)
CLUSTERING = st.floats(0.5, 100.0)


def counted(width, height):
    """Most rectangles of a grid that lie inside a circle, over the positions of the grid (m)."""
    radius, (w, h) = WAFER / 2 - EDGE, (width + STREET, height + STREET)
    most = 0
    for dx in np.linspace(0, w, 24, endpoint=False):
        for dy in np.linspace(0, h, 24, endpoint=False):
            left = np.arange(-math.ceil(radius / w) - 1, math.ceil(radius / w) + 1) * w + dx
            low = np.arange(-math.ceil(radius / h) - 1, math.ceil(radius / h) + 1) * h + dy
            x, y = np.maximum(np.abs(left), np.abs(left + w)), np.maximum(np.abs(low), np.abs(low + h))
            most = max(most, int((x[:, None] ** 2 + y[None, :] ** 2 <= radius**2).sum()))
    return most


def test_de_vries_is_near_exact_counts():
    errors = {}
    for area in (25, 50, 100, 200, 400, 600, 814, 858):
        exact = [counted(math.sqrt(area * r) * 1e-3, math.sqrt(area / r) * 1e-3) for r in (1, 1.6)]
        errors[area] = float(die.de_vries(area * 1e-6, WAFER, EDGE, STREET)) / np.mean(exact) - 1
    assert np.mean(np.abs(list(errors.values()))) < 0.02, errors
    assert max(np.abs(list(errors.values()))) < 0.045, errors


@given(AREAS, st.floats(1.001, 3.0))
def test_fewer_large_dies_fit(area, factor):
    for count in (die.de_vries, die.ferris_prabhu, die.perimeter):
        few, many = (float(count(a, WAFER, EDGE, STREET)) for a in (area * factor, area))
        assert few < many
        assert many * area < math.pi * (WAFER / 2) ** 2


def harvested_by_integration(core, other, cores, needed, clustering):
    """Binomial sum over living cores, averaged over a gamma-distributed density of defects."""

    def given_density(g):
        alive = np.exp(-g * core)
        return (
            np.exp(-g * other)
            * stats.binom.sf(needed - 1, cores, alive)
            * stats.gamma.pdf(g, clustering, scale=1 / clustering)
        )

    edges = [0, *stats.gamma.ppf((1e-4, 0.01, 0.3, 0.7, 0.99, 0.9999), clustering, scale=1 / clustering), 60.0]
    parts = (integrate.quad(given_density, a, b, limit=200)[0] for a, b in itertools.pairwise(edges))
    return math.fsum(parts)


@pytest.mark.parametrize("clustering", [0.7, 2.0, 3.0, 10.0])
@pytest.mark.parametrize(
    ("core", "other", "cores", "needed"),
    [(0.003, 0.18, 144, 132), (0.0004, 0.02, 40, 38), (0.02, 0.5, 128, 108), (0.2, 0.1, 8, 8), (0.1, 0.0, 4, 2)],
)
def test_harvest_is_the_integral_of_the_binomial_sum(core, other, cores, needed, clustering):
    found = float(die.harvested(core, other, cores, needed, clustering))
    assert found == pytest.approx(harvested_by_integration(core, other, cores, needed, clustering), rel=2e-5)


@pytest.mark.parametrize(
    ("area", "cores", "needed", "density"),
    [(826, 128, 108, 0.09), (814, 144, 132, 0.10), (800, 80, 74, 0.10), (115, 40, 38, 0.10)],
)
def test_harvest_of_known_devices_where_defects_are_independent(area, cores, needed, density):
    """A100, H100, a die of B200 and of MI300X: one binomial sum; clustering changes it by less than 2 %."""
    defects = area * density / 100
    core, other = 0.55 * defects / cores, 0.45 * 0.5 * defects
    alone = math.exp(-other) * stats.binom.sf(needed - 1, cores, math.exp(-core))
    assert float(die.harvested(core, other, cores, needed, 1e5)) == pytest.approx(alone, rel=1e-5)
    assert float(die.harvested(core, other, cores, needed, 3.0)) == pytest.approx(alone, rel=0.02)


@given(DEFECTS, CLUSTERING, st.integers(1, 64))
def test_a_die_that_needs_all_its_cores_has_the_plain_yield(defects, clustering, cores):
    found = float(die.harvested(0.6 * defects / cores, 0.4 * defects, cores, cores, clustering))
    assert found == pytest.approx(float(die.negative_binomial(defects, clustering)), rel=1e-4)


@given(DEFECTS, CLUSTERING)
def test_yields_lie_in_their_order_and_range(defects, clustering):
    poisson, murphy, seeds = (
        float(f(defects)) for f in (die.IO_die_yield_poisson, die.IO_die_yield_murphy, die.IO_die_yield_seeds)
    )
    clustered, layers = (
        float(die.negative_binomial(defects, clustering)),
        float(die.IO_die_yield_bose_einstein(defects, 10.0)),
    )
    for value in (poisson, murphy, seeds, clustered, layers):
        assert 0 < value <= 1
    slack = 1 + 1e-9
    assert poisson <= murphy * slack
    assert murphy <= seeds * slack
    assert poisson <= clustered * slack
    assert poisson <= layers * slack
    assert layers <= seeds * slack


@given(DEFECTS)
def test_negative_binomial_holds_its_limits(defects):
    assert float(die.negative_binomial(defects, 1.0)) == pytest.approx(float(die.IO_die_yield_seeds(defects)))
    assert float(die.negative_binomial(defects, 1e6)) == pytest.approx(
        float(die.IO_die_yield_poisson(defects)), rel=1e-3
    )


@given(st.floats(1e-5, 1.0), st.integers(2, 100), st.integers(0, 20))
def test_spare_cores_help(defects, cores, spare):
    needed = max(cores - spare, 1)
    assert (
        float(die.harvested(defects / cores, 0.1, cores, needed, 3.0))
        >= float(die.harvested(defects / cores, 0.1, cores, cores, 3.0)) - 1e-12
    )


def test_yields_of_a_wafer_at_5_nm():
    """814 mm2 at 0.10 per cm2: the choice of a model moves the cost of a die by 12 % either way."""
    found = {
        "poisson": die.IO_die_yield_poisson(0.814),
        "nb10": die.negative_binomial(0.814, 10.0),
        "murphy": die.IO_die_yield_murphy(0.814),
        "nb3": die.negative_binomial(0.814, 3.0),
        "seeds": die.IO_die_yield_seeds(0.814),
    }
    assert [round(float(v), 3) for v in found.values()] == [0.443, 0.457, 0.468, 0.487, 0.551]


def test_derivatives_are_those_of_differences_and_finite_where_there_is_no_die():
    with jax.enable_x64(True):
        whole = {
            "area": lambda x: die.de_vries(x, WAFER, EDGE, STREET) * die.negative_binomial(x * 1e3, 3.0),
            "clustering": lambda x: die.harvested(0.003, 0.2, 144.0, 132.0, x),
            "defects": lambda x: die.IO_die_yield_murphy(x),
        }
        for name, at in (("area", 4e-4), ("clustering", 3.0), ("defects", 0.5)):
            function, step = whole[name], 1e-5 * at
            exact = jax.grad(lambda x, f=function: jnp.sum(f(x)))(at)
            difference = (function(at + step) - function(at - step)) / (2 * step)
            assert float(exact) == pytest.approx(float(difference), rel=1e-5), name
        for function, at in ((whole["area"], 0.0), (whole["defects"], 0.0), (whole["clustering"], 1e5)):
            assert np.isfinite(jax.grad(lambda x, f=function: jnp.sum(f(x)))(at))
