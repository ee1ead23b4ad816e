"""Minimisations side by side: known optima, multipliers, errors."""

from __future__ import annotations

import numpy as np
import pytest

from perfgrid.optimizer.batched_slsqp import minimize_together, optimality

CENTRES = np.array([[0.2, 0.7], [0.9, 0.9], [0.5, 0.1]])


def circle(numbers, points):
    """Squared distances to centres, within x + y <= 1."""
    answers = []
    for number, x in zip(numbers, points, strict=True):
        away = x - CENTRES[number]
        answers.append((float(away @ away), 2 * away, np.array([1 - x.sum()]), np.array([[-1.0, -1.0]])))
    return answers


def test_all_problems_reach_their_optimum_and_multipliers():
    found = minimize_together(circle, np.full((3, 2), 0.3), 50, 1e-12)
    np.testing.assert_allclose(found[0].point, [0.2, 0.7], atol=1e-6)
    np.testing.assert_allclose(found[1].point, [0.5, 0.5], atol=1e-6)
    told = optimality(found[1].point, found[1].answer, np.ones(2))
    assert told.multipliers[0] == pytest.approx(0.8, abs=1e-4)
    assert told.residual < 1e-5
    assert optimality(np.array([0.4, 0.4]), circle([1], [np.array([0.4, 0.4])])[0], np.ones(2)).residual > 0.5


def test_evaluations_are_shared_and_bounded():
    sizes = []

    def counted(numbers, points):
        sizes.append(len(points))
        return circle(numbers, points)

    minimize_together(counted, np.full((3, 2), 0.3), 4, 1e-12)
    assert sizes[0] == 3
    assert len(sizes) <= 4


def test_an_error_reaches_the_caller():
    def fails(numbers, points):
        raise ArithmeticError("no value")

    with pytest.raises(ArithmeticError, match="no value"):
        minimize_together(fails, np.full((2, 2), 0.5), 5, 1e-6)
