"""The designs of an optimisation evaluated: exactly and whole (every layout), or smoothly, one by one, with slopes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfgrid.engine.autodiff.dual import Dual
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.graph.namespace import value_of
from perfgrid.study.limits import Limit
from perfgrid.study.study import Study

from .batch import Batch
from .batched_slsqp import UNMOVED, Answer
from .knobs import Knobs
from .part import TOGETHER, Part
from .quantile import quantile

CLOSE = 1e-7  # by which limits are kept: the solver meets them to within its own tolerance
IDLE = 1e-4  # slack of a constraint that nothing moves, where it is kept to within as much
BROKEN = 10.0  # times a broken limit (relative) that a design pays against a better one, when layouts are chosen
STRICT = 1e6  # the same where nothing counts before every limit is kept


class Problem:
    """The objective and the constraints of an optimisation, and how often they were evaluated."""

    def __init__(
        self,
        parts: Mapping[str, tuple[Study, float]],
        knobs: Knobs,
        objective: str,
        maximize: bool,
        limits: Sequence[Limit],
        choose: Sequence[str],
        jointly: Sequence[str] = (),
        robust: float | None = None,
        together: int = TOGETHER,
    ):
        """``jointly``: axes of labels that all workloads share. ``robust``: quantile over samples that is optimised.

        ``together`` designs are evaluated whole at once.
        """
        self.knobs, self.maximize, self.limits = knobs, maximize, list(limits)
        self.jointly, self.robust, self.together = tuple(jointly), robust, together
        self.sign = -1.0 if maximize else 1.0
        self.bounds = np.array([x.bound for x in self.limits])
        self.parts = []
        for name, (study, weight) in parts.items():
            legal = (*study.registry.names(), *study.space.names())
            if objective not in legal:
                raise PerfgridError(f"{study.name}: unknown quantity {objective!r}{nearest(objective, legal)}")
            own = [x for x in self.limits if x.workload == name]
            self.parts.append(Part(name, study, weight, objective, own, knobs, choose, self.jointly, robust, together))
        self.evaluations = 0
        groups = {part.groups for part in self.parts}
        if len(groups) > 1:
            raise PerfgridError(
                f"{self.parts[0].study.name}: the workloads have different axes of which every label would have an "
                f"optimum ({'; '.join(', '.join(g) or 'none' for g in groups)}); name the others in choose"
            )
        unread = [q for q in knobs.quantities if not any(q in part.free for part in self.parts)]
        if unread:
            raise PerfgridError(
                f"{self.parts[0].study.name}: neither the objective nor a limit depends on {unread[0]!r}"
            )
        if not any(part.weight > 0 for part in self.parts):
            raise PerfgridError(f"{self.parts[0].study.name}: one workload at least needs a weight above zero")
        lengths = {a.name: len(a) for a in self.parts[0].space.axes}
        self.group_sizes = tuple(lengths[name] for name in self.parts[0].groups)
        self.label_sizes = tuple(lengths[name] for name in self.jointly)
        self.optima = int(np.prod(self.group_sizes, dtype=int))  # each of which is the best of so many joint labels
        self.labels = int(np.prod(self.label_sizes, dtype=int))
        self.groups = self.optima * self.labels
        self.stated: Problem | None = None  # of an optimisation over samples: the same with estimates as stated
        self.positive = True  # whether the objective is positive: then its logarithm is minimised

    # -- exact, all layouts ---------------------------------------------------------------------------------------

    def screen(
        self, points: np.ndarray, bounds: np.ndarray | None = None, groups: Sequence[int] | np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Objective and broken limits [designs, groups] and the best layouts [designs, groups, parts] of designs.

        A layout is the better the smaller the logarithm of its objective and its broken limits. Each design counts as
        one evaluation per group. ``bounds`` replace those of the limits, ``groups`` are those that are meant.
        """
        values, broken, chosen = [], [], []
        meant = np.arange(self.groups) if groups is None else np.unique(groups)
        self.evaluations += len(points) * len(meant)
        bounds = self.bounds if bounds is None else bounds
        for start in range(0, len(points), self.together):
            piece = points[start : start + self.together]
            padded = np.concatenate((piece, np.repeat(piece[-1:], self.together - len(piece), axis=0)))
            found = self._screened(self.knobs.values(list(padded.T)), bounds)
            for kept, new in zip((values, broken, chosen), found, strict=True):
                kept.append(new[: len(piece), meant])
        return np.concatenate(values), np.concatenate(broken), np.concatenate(chosen)

    def _screened(self, values: Mapping[str, np.ndarray], bounds: np.ndarray) -> tuple[np.ndarray, ...]:
        total, missed, layouts = 0.0, 0.0, []
        for part in self.parts:
            found, wrong = part.exact(values)
            for limit in part.limits:
                bound, value = bounds[self.limits.index(limit)], self.held_to(limit, found[limit.quantity])
                wrong = wrong + np.maximum(-np.asarray(limit.slack(bound, value)), 0.0)
            value = found[part.objective]
            finite = np.isfinite(value).all(axis=3)
            wrong = np.where(finite, np.nan_to_num(wrong, nan=100.0), 1e3)
            value = np.where(finite[..., None], value, 0.0)
            score = self.reduced(value)
            score = self.sign * (np.log(np.maximum(score, 1e-300)) if (score > 0).all() else score)
            best = np.argmin(score * (part.weight > 0) + self.weight * wrong, axis=2)[..., None]
            total = total + part.weight * np.take_along_axis(value, best[..., None], 2)[:, :, 0]
            missed = missed + np.take_along_axis(wrong, best, 2)[..., 0]
            layouts.append(best[..., 0])
        total, shape = self.reduced(total), (self.together, self.groups)
        layouts = [np.broadcast_to(x, shape) for x in layouts]
        return np.broadcast_to(total, shape), np.broadcast_to(missed, shape), np.stack(layouts, axis=-1)

    def reduced(self, objective: Any, smooth: bool = False) -> Any:
        """The objective from its values along samples: the quantile that is optimised, a bad case."""
        return self._quantile(objective, not self.maximize, smooth)

    def held_to(self, limit: Limit, values: Any, smooth: bool = False) -> Any:
        """The value that a limit holds: of samples the one that as many keep as the quantile says."""
        return self._quantile(values, limit.at_most, smooth)

    def _quantile(self, values: Any, upper: bool, smooth: bool) -> Any:
        level = 1.0 if self.robust is None else self.robust
        return quantile(values, level if upper else 1 - level, smooth)

    def merit(self, value: np.ndarray, broken: np.ndarray) -> np.ndarray:
        """What a design is chosen by: the objective's logarithm and what it pays for broken limits."""
        score = np.log(np.maximum(value, 1e-300)) if self.positive else value / self.scale
        return self.sign * score + self.weight * broken

    def objective(self, score: Any) -> Any:
        """The objective from what is minimised in its place."""
        return np.exp(self.sign * score) if self.positive else self.sign * score * self.scale

    scale = 1.0
    weight = BROKEN  # of broken limits, where designs are chosen

    # -- smooth, single layouts -----------------------------------------------------------------------------------

    def answers(self, batch: Batch, points: np.ndarray, temperature: float) -> list[Answer]:
        """Objective and slack of every constraint with slopes, of one layout per problem; each slope counts."""
        self.evaluations += len(points) * (len(self.knobs) + 1)
        objective, slacks = self._evaluated(batch, self.knobs.directions(points), temperature)
        count, directions = points.shape
        slope = _slopes(objective, directions, count)
        value = np.broadcast_to(value_of(objective), (count,))
        columns, slopes = np.zeros((count, 0)), np.zeros((count, 0, directions))
        if slacks:
            columns = np.stack([np.broadcast_to(value_of(s), (count,)) for s in slacks], axis=1)
            slopes = np.stack([_slopes(s, directions, count) for s in slacks], axis=1)
        columns = columns + (batch.shift if batch.shift.shape == columns.shape else 0.0)
        steepest = np.abs(slopes).max(axis=2, initial=0.0)
        columns = columns - CLOSE * (steepest > 0)  # what nothing moves may be just kept
        # what only rounding off moves or breaks, such as the one link that there always is, binds nothing
        idle = (steepest < UNMOVED) & (columns > -max(IDLE, 2 * temperature))
        columns = np.where(idle, np.maximum(columns, IDLE), columns)
        return [(float(value[i]), slope[i], columns[i], slopes[i]) for i in range(count)]

    def slack(self, batch: Batch, points: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
        """Objective and slack of every constraint without slopes; at temperature zero exact, but for stated counts."""
        self.evaluations += len(points)
        objective, slacks = self._evaluated(batch, list(points.T), temperature)
        count = len(points)
        columns = [np.broadcast_to(value_of(s), (count,)) for s in slacks]
        return np.broadcast_to(value_of(objective), (count,)), np.stack(columns, 1) if columns else np.zeros((count, 0))

    def constraint_names(self) -> list[str]:
        """What the constraints of `answers` are, in order: limits, constraints of formulas, counts."""
        names = []
        for part in self.parts:
            names += map(self.limit_name, part.limits)
            names += map(part.labelled, part.single.flags)
        return [*names, *self.count_names()]

    def limit_name(self, limit: Limit) -> str:
        """A limit with the workload that it holds for, unless it holds for the design that all share."""
        if limit.quantity in {knob.name for knob in self.knobs.knobs}:
            return limit.text
        return f"{limit.workload}: " * bool(limit.workload) + limit.text.removeprefix(f"{limit.workload}.")

    def count_names(self) -> list[str]:
        """Counts that depend on the knobs, of all parts (a device has one number of stacks for all of them)."""
        return list(dict.fromkeys(name for part in self.parts for name in part.single.counts))

    def rounded_up(self, name: str) -> bool:
        """Whether a count is rounded up."""
        return any(part.single.counts.get(name, False) for part in self.parts)

    def _evaluated(self, batch: Batch, coordinates: Sequence[Any], temperature: float) -> tuple[object, list[Any]]:
        values = self.knobs.values(coordinates)
        total: Any = 0.0
        slacks: list[Any] = []
        unrounded: dict[str, Any] = {}
        for number, part in enumerate(self.parts):
            layout = batch.layout[:, number]
            numbers, margins, rounded = part.at(values, batch.group, layout, batch.counts, temperature)
            total = total + part.weight * numbers[part.objective]
            for limit in part.limits:
                bounds = batch.bounds[:, self.limits.index(limit)]
                slacks.append(limit.slack(bounds, self.held_to(limit, numbers[limit.quantity], temperature > 0)))
            slacks += [margins[flag] for flag in part.single.flags]
            unrounded = rounded | unrounded
        for name in self.count_names():
            given = batch.counts.get(name, np.full(len(batch.group), np.nan))
            limited = given >= 1  # neither open nor none
            ratio = np.log(np.maximum(unrounded[name], 1e-9)) - np.log(np.where(limited, given, 1.0))
            slacks.append(np.where(limited, -ratio if self.rounded_up(name) else ratio, 1.0))
        total = self.reduced(total, temperature > 0)
        score = self.sign * np.log(total) if self.positive else total * (self.sign / self.scale)
        return score, slacks


def _slopes(item: Any, directions: int, count: int) -> np.ndarray:
    """Slopes as [points, directions]; zero of what does not depend on the knobs."""
    if not isinstance(item, Dual):
        return np.zeros((count, directions))
    return np.broadcast_to(item.slope, (directions, count)).T
