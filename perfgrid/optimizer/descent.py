"""Designs improved along slopes, first with open counts, then with whole ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .batch import Batch
from .batched_slsqp import minimize_together
from .found import Found, best_of, scores, smooth_scores
from .problem import CLOSE, Problem

ROUGH, MIDDLE, FINE = 1e-2, 3e-3, 1e-3  # temperatures: relative widths over which kinks are rounded off
DIVERS = 4  # designs of each problem that are kept while counts become whole
FINALISTS = 2  # of the designs with whole counts that are improved on the finest companion
AT_ONCE = 64  # designs whose slopes are evaluated together


def improved(problem: Problem, batch: Batch, points: np.ndarray, temperature: float) -> Found:
    """Every design improved with its layout kept, and evaluated exactly."""

    def evaluate(numbers: np.ndarray, where: np.ndarray) -> list[Any]:
        pieces = range(0, len(numbers), AT_ONCE)
        parts = ((batch.of(numbers[i : i + AT_ONCE]), where[i : i + AT_ONCE]) for i in pieces)
        return [answer for some, points in parts for answer in problem.answers(some, points, temperature)]

    knobs = len(problem.knobs)
    if temperature == FINE:
        minima = minimize_together(evaluate, points, 20 + 4 * knobs, 1e-9)
    else:  # away from the bounds, where a search starts with its hands tied
        minima = minimize_together(evaluate, np.clip(points, 0.01, 0.99), 15 + 2 * knobs, 1e-5)
    where = np.array([m.point for m in minima])
    score, slack = problem.slack(batch, where, 0.0)
    value = problem.objective(score)
    broken = np.maximum(-slack, 0.0).sum(axis=1) + np.where(np.isfinite(value), 0.0, 1e3)
    return Found(batch, where, np.nan_to_num(value), np.nan_to_num(broken, nan=1e3), minima)


def with_whole_counts(problem: Problem, found: Found, owner: np.ndarray) -> tuple[Found, np.ndarray]:
    """The best designs with whole counts, and whose they are: a dive from unrounded ones, as in integer programming.

    One count after the other is set to the whole numbers beside it, the rest is improved again: two memory interfaces
    more may leave the edge for three links less. Later counts may follow from earlier ones (network ports from links).
    """
    found = replace(found, batch=replace(found.batch, counts={}))
    for name in problem.count_names():
        batch, source = _rounded(problem, found.batch, found.points, name)
        points, owner = found.points[source], owner[source]
        if len(source) == len(found.points):  # nothing moves this count
            found = replace(found, batch=batch)
            continue
        found = improved(problem, batch, points, MIDDLE)
        last = name == problem.count_names()[-1]
        kept = best_of((scores if last else smooth_scores)(problem, found), owner, DIVERS)
        found, owner = found.of(kept), owner[kept]
    kept = best_of(scores(problem, found), owner, FINALISTS)
    return improved(problem, found.batch.of(kept), found.points[kept], FINE), owner[kept]


def _rounded(problem: Problem, batch: Batch, points: np.ndarray, name: str) -> tuple[Batch, np.ndarray]:
    """Designs with a count as its formula rounds it, and where the free quantities move it as the other way round too.

    With the numbers of the designs that they came from.
    """
    unrounded, moved = unrounded_count(problem, batch, points, name)
    low, high = np.floor(unrounded * (1 + 1e-9)), np.ceil(unrounded * (1 - 1e-9))
    own, other = (high, low) if problem.rounded_up(name) else (low, high)
    least = np.where(moved, 1.0, 0.0)
    own, other = np.maximum(own, least), np.maximum(other, least)
    two = moved & (np.abs(unrounded - own) > 1e-3) & (other != own)
    source = np.concatenate((np.arange(len(points)), np.flatnonzero(two)))
    batch = batch.of(source)
    return replace(batch, counts=batch.counts | {name: np.concatenate((own, other[two]))}), source


def unrounded_count(problem: Problem, batch: Batch, points: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A count before rounding, at designs, and whether the free quantities move it."""
    one = replace(batch, counts=batch.counts | {name: np.ones(len(points))})
    answers = problem.answers(one.unshifted(0), points, FINE)
    place = problem.constraint_names().index(name)
    sign = -1.0 if problem.rounded_up(name) else 1.0
    values = np.exp(sign * np.array([a[2][place] + CLOSE for a in answers]))
    return values, np.array([np.abs(a[3][place]).max() for a in answers]) > 0
