"""Many constrained minimisations at once, step by step together, so that every evaluation is one of a whole batch.

Each is SciPy's sequential least-squares programming (SLSQP) in a thread of its own; a thread that wants a value waits
until all others do, and one call answers all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
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
        self.asked: dict[int, tuple[np.ndarray, Future[Answer]]] = {}

    def ask(self, number: int, point: np.ndarray) -> Answer:
        answer = Future[Answer]()
        with self.ready:
            self.asked[number] = point, answer
            self.ready.notify_all()
        return answer.result()

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
                batch, self.asked = sorted(self.asked.items()), {}
            try:
                found = self.evaluate(np.array([n for n, _ in batch]), np.array([point for _, (point, _) in batch]))
            except BaseException as error:
                for _, (_, waiting) in batch:
                    waiting.set_exception(error)
            else:
                for (_, (_, waiting)), answer in zip(batch, found, strict=True):
                    waiting.set_result(answer)


def minimize_together(evaluate: Evaluate, starts: np.ndarray, most: int, tolerance: float) -> list[Minimum]:
    """Minimise from every start [problems, variables] within [0, 1], with ``most`` evaluations each.

    Errors of ``evaluate`` are raised here.
    """
    together = _Together(evaluate, len(starts))
    ends = [Future[Minimum]() for _ in starts]

    def one(number: int) -> None:
        try:
            ends[number].set_result(_minimum(lambda x: together.ask(number, x), starts[number], most, tolerance))
        except BaseException as error:
            ends[number].set_exception(error)
        finally:
            together.leave()

    for number in range(len(starts)):
        threading.Thread(target=one, args=(number,), daemon=True).start()
    together.serve()
    return [end.result() for end in ends]


def _minimum(ask: Callable[[np.ndarray], Answer], start: np.ndarray, most: int, tolerance: float) -> Minimum:
    seen: list[tuple[np.ndarray, Answer]] = []

    @lru_cache(maxsize=1)  # value, slope and constraints of one point are asked for one after the other
    def known(x: bytes) -> Answer:
        if len(seen) == most:
            raise _Enough
        point = np.clip(np.frombuffer(x), 0.0, 1.0)
        value, slope, slack, slopes = ask(point)
        answer = float(_finite(value, FAR)), _finite(slope, 0.0), _finite(slack, -FAR), _finite(slopes, 0.0)
        seen.append((point, answer))
        return answer

    def at(x: np.ndarray) -> Answer:
        return known(x.tobytes())

    from scipy.optimize import minimize  # a fifth of the time that all of perfgrid takes to import

    constraints = []
    if len(at(start)[2]):
        constraints = [{"type": "ineq", "fun": lambda x: at(x)[2], "jac": lambda x: at(x)[3]}]
    trace = [at(start)[0]]
    try:
        found = minimize(
            lambda x: at(x)[0],
            start,
            jac=lambda x: at(x)[1],
            method="SLSQP",
            bounds=[(0.0, 1.0)] * len(start),
            constraints=constraints,
            callback=lambda x: trace.append(at(x)[0]),
            options={"maxiter": most, "ftol": tolerance},
        )
        end = np.clip(found.x, 0.0, 1.0)
        if _score(at(end)) <= min(_score(answer) for _, answer in seen) + tolerance:
            return Minimum(end, at(end), tuple(trace))
    except _Enough:
        pass
    return Minimum(*min(seen, key=lambda pair: _score(pair[1])), tuple(trace))


def _score(answer: Answer) -> float:
    """The objective and what broken constraints cost."""
    return answer[0] + PENALTY * float(np.maximum(-answer[2], 0.0).sum())


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
    left = slope / scale - columns.T @ weights
    multipliers, bounds = np.zeros(len(values)), np.zeros(len(point))
    multipliers[binding] = weights[: len(binding)]
    bounds[low] = -weights[len(binding) : len(binding) + len(low)] / scale[low]
    bounds[high] = weights[len(binding) + len(low) :] / scale[high]
    broken = float(np.max(-values, initial=0.0))
    return Optimality(multipliers, bounds, max(float(np.max(np.abs(left), initial=0.0)), broken))
