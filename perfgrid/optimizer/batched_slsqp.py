"""Many constrained minimisations at once, step by step together, so that every evaluation is one of a whole batch.

Each is SciPy's sequential least-squares programming (SLSQP) in a thread of its own; a thread that wants a value waits
until all others do, and one call answers all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Answer = tuple[float, np.ndarray, np.ndarray, np.ndarray]  # objective, its slopes, constraints >= 0, their slopes
FAR = 1e6  # stands for a value that is not finite
UNMOVED = 1e-3  # slopes below this are what rounding off leaves of a constant
PENALTY = 10.0  # of a broken constraint, where points are compared
Evaluate = Callable[[np.ndarray, np.ndarray], list[Answer]]  # numbers of the problems, points [numbers, variables]


@dataclass(frozen=True)
class Minimum:
    """Where one minimisation ended, with what is known there, and the objective of every step."""

    point: np.ndarray
    answer: Answer
    trace: tuple[float, ...]


class _Together:
    def __init__(self, evaluate: Evaluate, count: int):
        self.evaluate, self.live = evaluate, count
        self.ready = threading.Condition()
        self.asked: dict[int, np.ndarray] = {}
        self.answers: dict[int, Answer | BaseException] = {}

    def ask(self, number: int, point: np.ndarray) -> Answer:
        with self.ready:
            self.asked[number] = point
            self.ready.notify_all()
            self.ready.wait_for(lambda: number in self.answers)
            answer = self.answers.pop(number)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def leave(self) -> None:
        with self.ready:
            self.live -= 1
            self.ready.notify_all()

    def serve(self) -> None:
        """Answer until nobody asks any more; an error goes to all who wait."""
        while True:
            with self.ready:
                self.ready.wait_for(lambda: len(self.asked) >= self.live)
                if not self.live:
                    return
                batch, self.asked = dict(sorted(self.asked.items())), {}
            found: list[Any]
            try:
                found = self.evaluate(np.array(list(batch)), np.array(list(batch.values())))
            except BaseException as error:
                found = [error] * len(batch)
            with self.ready:
                self.answers.update(zip(batch, found, strict=True))
                self.ready.notify_all()


def minimize_together(evaluate: Evaluate, starts: np.ndarray, most: int, tolerance: float) -> list[Minimum]:
    """Minimise from every start [problems, variables] within [0, 1], with ``most`` evaluations each.

    Errors of ``evaluate`` are raised here.
    """
    together = _Together(evaluate, len(starts))
    ends: list[Minimum | BaseException | None] = [None] * len(starts)

    def one(number: int) -> None:
        try:
            ends[number] = _minimum(lambda x: together.ask(number, x), starts[number], most, tolerance)
        except BaseException as error:
            ends[number] = error
        finally:
            together.leave()

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(len(starts))]
    for thread in threads:
        thread.start()
    together.serve()
    for thread in threads:
        thread.join()
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return [end for end in ends if isinstance(end, Minimum)]


def _minimum(ask: Callable[[np.ndarray], Answer], start: np.ndarray, most: int, tolerance: float) -> Minimum:
    known: dict[bytes, Answer] = {}
    trace: list[float] = []
    least: list[Any] = [np.inf, start, None]  # of all that was seen: score, point, answer
    asked = 0

    def at(x: np.ndarray) -> Answer:
        key = x.tobytes()
        if key not in known:
            nonlocal asked
            if asked == most:
                raise _Enough
            asked += 1
            value, slope, slack, slopes = ask(np.clip(x, 0.0, 1.0))
            finite = (_finite(value, FAR), _finite(slope, 0.0), _finite(slack, -FAR), _finite(slopes, 0.0))
            answer = (float(finite[0]), *finite[1:])
            known.clear()
            known[key] = answer
            score = answer[0] + PENALTY * float(np.maximum(-answer[2], 0.0).sum())
            if score < least[0]:
                least[:] = [score, np.clip(x, 0.0, 1.0), answer]
        return known[key]

    from scipy.optimize import minimize  # a fifth of the time that all of perfgrid takes to import

    constraints = []
    if len(at(start)[2]):
        constraints = [{"type": "ineq", "fun": lambda x: at(x)[2], "jac": lambda x: at(x)[3]}]
    trace.append(float(at(start)[0]))
    try:
        found = minimize(
            lambda x: at(x)[0],
            start,
            jac=lambda x: at(x)[1],
            method="SLSQP",
            bounds=[(0.0, 1.0)] * len(start),
            constraints=constraints,
            callback=lambda x: trace.append(float(at(x)[0])),
            options={"maxiter": most, "ftol": tolerance},
        )
        point = np.clip(found.x, 0.0, 1.0)
        answer = at(point)
        if answer[0] + PENALTY * float(np.maximum(-answer[2], 0.0).sum()) <= least[0] + tolerance:
            return Minimum(point, answer, tuple(trace))
    except _Enough:
        pass
    return Minimum(least[1], least[2], tuple(trace))


def _finite(value: Any, otherwise: float) -> Any:
    return np.nan_to_num(value, nan=otherwise, posinf=abs(otherwise), neginf=-abs(otherwise))


class _Enough(Exception):
    """All evaluations of a minimisation are used up."""


@dataclass(frozen=True)
class Optimality:
    """Multipliers at a point and how far it is from a Karush-Kuhn-Tucker point."""

    multipliers: np.ndarray  # of the constraints
    bounds: np.ndarray  # of the variables, per ``scale``: negative at a lower bound that presses, positive at an upper
    residual: float


def optimality(point: np.ndarray, answer: Answer, scale: np.ndarray, active: float = 1e-5) -> Optimality:
    """The multipliers that explain the slopes of the objective best, and what they leave unexplained.

    The residual is the largest of: slopes of the Lagrangian over ``scale`` (per logarithm of each variable, say), and
    how far a constraint is broken.
    """
    _, slope, values, slopes = answer
    moved = np.abs(slopes).max(axis=1, initial=0.0) > UNMOVED
    binding = np.flatnonzero((values < active) & moved)
    low, high = np.flatnonzero(point < active), np.flatnonzero(point > 1 - active)
    identity = np.eye(len(point))
    columns = np.concatenate((slopes[binding], identity[low], -identity[high])) / scale
    weights = np.zeros(len(columns))
    if len(columns):
        from scipy.optimize import nnls

        weights, _ = nnls(columns.T, slope / scale)
    left = slope / scale - (columns.T @ weights if len(columns) else 0.0)
    multipliers, bounds = np.zeros(len(values)), np.zeros(len(point))
    multipliers[binding] = weights[: len(binding)]
    bounds[low] = -weights[len(binding) : len(binding) + len(low)] / scale[low]
    bounds[high] = weights[len(binding) + len(low) :] / scale[high]
    broken = float(np.max(-values, initial=0.0))
    return Optimality(multipliers, bounds, max(float(np.max(np.abs(left), initial=0.0)), broken))
