"""Error statistics against numbers worked by hand."""

from math import log

import numpy as np
import pytest

from perfgrid.validation.baseline import bubble_share
from perfgrid.validation.metrics import Error, constant_rate, error_of, spearman
from tools.validation.weights import equal_weights, rates_of_others, weighted_quantile


def test_error_of_three_rows():
    found = error_of([1.0, 2.0, 4.0], [2.0, 2.0, 2.0])
    assert found.rows == 3
    assert found.median == pytest.approx(log(2))  # of ln 2, 0, ln 2
    assert found.p90 == pytest.approx(log(2))
    assert found.mape == pytest.approx((0.5 + 0 + 1) / 3)
    assert found.bias == pytest.approx(0)
    assert found.rank is None  # all measured alike


def test_p90_lies_between_rows():
    found = error_of([1.0] * 11, [float(np.exp(i / 10)) for i in range(11)])  # magnitudes 0, 0.1, ... 1
    assert (found.median, found.p90, found.bias) == (pytest.approx(0.5), pytest.approx(0.9), pytest.approx(-0.5))


def test_ranks_are_those_of_throughput():
    # rates 10/1, 10/2, 30/4 = 10, 5, 7.5; measured 10/2, 10/3, 30/4 = 5, 3.3, 7.5
    found = error_of([1.0, 2.0, 4.0], [2.0, 3.0, 4.0], [10.0, 10.0, 30.0])
    assert found.rank == pytest.approx(0.5)  # ranks 3, 1, 2 and 2, 1, 3: 1 - 6·2 / (3·8)


def test_spearman_shares_the_ranks_of_equals():
    # ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5
    assert spearman(np.array([1, 2, 2, 3.0]), np.array([1, 2, 3, 4.0])) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert spearman(np.array([1, 2, 3.0]), np.array([9, 5, 1.0])) == pytest.approx(-1)
    assert spearman(np.array([1, 2.0]), np.array([1, 2.0])) is None


def test_no_rows_have_no_error():
    assert error_of([], []) == Error(0)


def test_one_constant_for_each_kind():
    # a: 2 / 1 and 6 / 2, their median 2.5; b: 10 / 10
    assert constant_rate([1, 2, 10], [2, 6, 10], ["a", "a", "b"]) == [2.5, 5, 10]


def test_bubble_of_the_baseline():
    columns = {"global_batch": 64, "dp": 2, "microbatch": 1, "pp": 4, "chunks": 2}
    assert bubble_share(columns) == pytest.approx(3 / 64)  # 32 microbatches, two virtual stages


def test_sources_weigh_equally():
    assert equal_weights(["a", "a", "b"]) == pytest.approx([0.25, 0.25, 0.5])


def test_a_weighted_quantile_is_one_of_the_values():
    values, weights = np.array([0.3, 0.1, 0.2, 1.0]), np.array([0.25, 0.25, 0.25, 0.25])
    assert weighted_quantile(values, weights, 0.5) == 0.2  # 0.1 and 0.2 hold half
    assert weighted_quantile(values, weights, 0.9) == 1.0
    assert weighted_quantile(values, np.array([0.6, 0.2, 0.1, 0.1]), 0.5) == 0.3  # 0.1 and 0.2 hold 0.3 of the weights


def test_the_rate_of_a_row_comes_from_other_units():
    """Kind "a" has two units: each takes the rate of the other; "b" has one and takes the share of peak of others."""
    work, measured = [1.0, 1.0, 1.0, 2.0], [2.0, 4.0, 6.0, 8.0]
    found = rates_of_others(
        work, measured, ["a", "a", "a", "b"], [1, 1, 1, 2], ["s", "s", "t", "u"], ["s", "s", "t", "u"]
    )
    assert found[:3] == [6.0, 6.0, 2.0]  # the lower median of 2 and 4
    # times at peak 2, 4 with weight 1/4 each and 6 with 1/2: median 4 at a peak of 1, 2 at one of 2; two units of work
    assert found[3] == 4.0
