"""How the best designs are searched: even samples, slopes from the best of them, whole counts, exact designs nearby."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from perfgrid.engine.lockstep import Minimum, minimize_together
from perfgrid.optimizer.problem import TOGETHER, Batch, Problem

ROUGH, FINE = 1e-2, 1e-3  # temperatures: relative widths over which kinks are rounded off
ROUNDS = 4  # at most, of choosing layouts again and of correcting limits by the exact model
AT_ONCE = 64  # designs whose slopes are evaluated together
MOST_COUNTS = 4  # counts of which both neighbours are tried
NEARBY = (
    0.05,
    0.05,
    0.03,
    0.03,
    0.02,
    0.02,
    0.01,
    0.01,
    0.005,
)  # reach of the exact search around an optimum, in parts of the ranges
NEAR = 1e-4  # slack, and disagreement about it, that matters
KEPT = 1e-6  # a limit broken by less is kept


@dataclass
class Found:
    """Designs that were found, one per problem of a batch: points, exact objectives, broken limits, smooth state."""

    batch: Batch
    points: np.ndarray
    value: np.ndarray  # exact
    broken: np.ndarray  # exact: the sum of what limits are broken by
    minima: list[Minimum]
    chosen: np.ndarray | None = None  # layouts of the points, where they moved away from those of the batch

    @property
    def layout(self) -> np.ndarray:
        """The layouts of the points."""
        return self.batch.layout if self.chosen is None else self.chosen

    def of(self, index: np.ndarray) -> Found:
        """Some of the designs."""
        minima = [self.minima[i] for i in index]
        return Found(self.batch.of(index), self.points[index], self.value[index], self.broken[index], minima)


def sampled(problem: Problem, count: int, seed: int) -> np.ndarray:
    """Designs spread evenly over the bounds, the stated one first."""
    from scipy.stats import qmc  # takes long to import

    draws = qmc.Sobol(len(problem.knobs), rng=seed).random(2 ** int(np.ceil(np.log2(max(count, 2)))))[: count - 1]
    return np.concatenate((problem.knobs.start()[None], draws))


def best_found(problem: Problem, groups: np.ndarray, bounds: np.ndarray, starts: int, seed: int) -> Found:
    """The best design of every problem (a group and the bounds of its limits), from several starts each."""
    designs = sampled(problem, max(64, min(16 * len(problem.knobs), 256)), seed)
    value, broken, layout = problem.screen(designs)
    problem.positive = bool((value > 0).all())
    problem.scale = float(np.max(np.abs(value))) or 1.0
    batch, points = _starts(problem, groups, bounds, designs, value, broken, layout, starts)
    owner = np.repeat(np.arange(len(groups)), starts)
    found = _improved(problem, batch, points, ROUGH)
    for _ in range(ROUNDS):  # another layout may be better where the design has moved to
        changed = _chosen_again(problem, found)
        again = _improved(problem, changed, found.points, FINE)
        same = (changed.layout == found.batch.layout).all()
        found = _better(problem, found, again)
        if same:
            break
    best = found.of(_best_of(problem, found, owner, len(groups)))
    best = _with_whole_counts(problem, best)
    best = _or_sample(problem, _corrected(problem, best), designs, value, broken, layout)
    return _polished(problem, best, seed)


def _or_sample(
    problem: Problem, found: Found, designs: np.ndarray, value: np.ndarray, broken: np.ndarray, layout: np.ndarray
) -> Found:
    """The best sample of a group where slopes led to nothing better: over steps of the exact model, say."""
    points, values, missed, chosen = found.points.copy(), found.value.copy(), found.broken.copy(), found.layout.copy()
    stated = np.array([x.bound for x in problem.limits])
    for i, group in enumerate(found.batch.group):
        if not np.array_equal(found.batch.bounds[i], stated):  # of a front: samples were weighed by other limits
            continue
        merit = problem.merit(value[:, group], np.where(broken[:, group] > KEPT, broken[:, group] + 1e-3, 0.0))
        best = int(np.argmin(merit))
        if merit[best] < problem.merit(values[i], np.where(missed[i] > KEPT, missed[i] + 1e-3, 0.0)):
            points[i], values[i], missed[i] = designs[best], value[best, group], broken[best, group]
            chosen[i] = layout[best, group]
    return replace(found, points=points, value=values, broken=missed, chosen=chosen)


def _starts(
    problem: Problem, groups: np.ndarray, bounds: np.ndarray, designs: np.ndarray, value: np.ndarray,
    broken: np.ndarray, layout: np.ndarray, starts: int,
) -> tuple[Batch, np.ndarray]:  # fmt: skip
    """The best designs of each group, those of different layouts first."""
    chosen, points, layouts = [], [], []
    merit = problem.merit(value, broken)
    for group in groups:
        order = np.argsort(merit[:, group], kind="stable")
        seen: dict[bytes, int] = {}
        for i in order:
            seen.setdefault(layout[i, group].tobytes(), int(i))
        picked = list(seen.values())[:starts]
        picked += [int(i) for i in order if i not in picked][: starts - len(picked)]
        chosen += [group] * starts
        points += [designs[i] for i in picked]
        layouts += [layout[i, group] for i in picked]
    count = len(problem.constraint_names())
    repeated = np.repeat(bounds, starts, axis=0).reshape(len(chosen), len(problem.limits))
    batch = Batch(np.array(chosen), np.array(layouts), {}, np.zeros((len(chosen), count)), repeated)
    return batch, np.array(points)


def _improved(problem: Problem, batch: Batch, points: np.ndarray, temperature: float) -> Found:
    """Every design improved with its layout kept, and evaluated exactly."""

    def evaluate(numbers: np.ndarray, where: np.ndarray) -> list[Any]:
        pieces = range(0, len(numbers), AT_ONCE)
        return [a for i in pieces for a in problem.answers(
            batch.of(numbers[i : i + AT_ONCE]), where[i : i + AT_ONCE], temperature)]  # fmt: skip

    problem.slack(batch, points, temperature)  # tells which counts there are
    if batch.shift.shape[1] != len(problem.constraint_names()):
        batch = replace(batch, shift=np.zeros((len(points), len(problem.constraint_names()))))
    rough, knobs = temperature == ROUGH, len(problem.knobs)
    if rough:  # away from the bounds, where a search starts with its hands tied
        minima = minimize_together(evaluate, np.clip(points, 0.01, 0.99), 15 + 2 * knobs, 1e-5)
    else:
        minima = minimize_together(evaluate, points, 20 + 4 * knobs, 1e-9)
    where = np.array([m.point for m in minima])
    score, slack = problem.slack(batch, where, 0.0)
    slack = slack[:, : slack.shape[1] - len(problem.count_names())]
    value = np.exp(score) if problem.positive else score * problem.scale
    if problem.maximize:
        value = np.exp(-score) if problem.positive else -score * problem.scale
    broken = np.maximum(-slack, 0.0).sum(axis=1) + np.where(np.isfinite(value), 0.0, 1e3)
    return Found(batch, where, np.nan_to_num(value), np.nan_to_num(broken, nan=1e3), minima)


def _score(problem: Problem, found: Found) -> np.ndarray:
    missed = np.where(found.broken > KEPT, found.broken + 1e-3, 0.0)
    return problem.merit(found.value, missed)


def _better(problem: Problem, old: Found, new: Found) -> Found:
    """The better of two designs of every problem; of equals the new one, whose slopes are finer."""
    keep = _score(problem, old) < _score(problem, new) - 1e-4
    return _merged(old, new, keep)


def _merged(old: Found, new: Found, keep: np.ndarray) -> Found:
    def pick(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(keep.reshape((-1,) + (1,) * (a.ndim - 1)), a, b)

    names = set(old.batch.counts) | set(new.batch.counts)
    nothing = np.full(len(keep), np.nan)
    counts = {n: pick(old.batch.counts.get(n, nothing), new.batch.counts.get(n, nothing)) for n in names}
    batch = Batch(
        new.batch.group, pick(old.batch.layout, new.batch.layout), counts,
        pick(old.batch.shift, new.batch.shift) if old.batch.shift.shape == new.batch.shift.shape else new.batch.shift,
        new.batch.bounds,
    )  # fmt: skip
    minima = [a if k else b for k, a, b in zip(keep, old.minima, new.minima, strict=True)]
    return Found(batch, pick(old.points, new.points), pick(old.value, new.value), pick(old.broken, new.broken), minima)


def _best_of(problem: Problem, found: Found, owner: np.ndarray, count: int) -> np.ndarray:
    """The number of the best design of every owner."""
    score = _score(problem, found)
    return np.array([np.flatnonzero(owner == i)[np.argmin(score[owner == i])] for i in range(count)])


def _chosen_again(problem: Problem, found: Found) -> Batch:
    """The batch with the best layout of each design where it stands now."""
    layouts = found.batch.layout.copy()
    for bounds in np.unique(found.batch.bounds, axis=0):
        members = np.flatnonzero((found.batch.bounds == bounds).all(axis=1))
        own = found.batch.group[members]
        _, _, layout = problem.screen(found.points[members], bounds, own)
        layouts[members] = layout[np.arange(len(members)), np.searchsorted(np.unique(own), own)]
    return replace(found.batch, layout=layouts)


def _with_whole_counts(problem: Problem, found: Found) -> Found:
    """The best of designs whose counts are the whole numbers beside the unrounded ones."""
    names = problem.count_names()[:MOST_COUNTS]
    if not names:
        return found
    total = len(problem.constraint_names())
    unrounded, moved = unrounded_counts(problem, found)
    order, counts, owner = [], {name: [] for name in names}, []
    for i in range(len(found.points)):
        choices = []
        for name in names:
            low = max(np.floor(unrounded[name][i] + 1e-6), 1.0)
            between = moved[name][i] and unrounded[name][i] - low > 1e-3
            choices.append((low, low + 1.0) if between else (low if moved[name][i] else np.nan,))
        for combination in product(*choices):
            order.append(i)
            owner.append(i)
            for name, value in zip(names, combination, strict=True):
                counts[name].append(value)
    batch = found.batch.of(np.array(order))
    batch = replace(batch, counts={n: np.array(v) for n, v in counts.items()}, shift=np.zeros((len(order), total)))
    tried = _improved(problem, batch, found.points[order], FINE)
    return tried.of(_best_of(problem, tried, np.array(owner), len(found.points)))


def unrounded_counts(problem: Problem, found: Found) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Counts before rounding, at designs, and whether the knobs move them."""
    names = problem.count_names()
    one = replace(found.batch, counts={n: np.ones(len(found.points)) for n in names})
    answers = problem.answers(one, found.points, FINE)
    ups = {name: up for part in problem.parts for name, up in part.single.counts.items()}
    first = len(problem.constraint_names()) - len(names)
    slack = np.array([a[2] for a in answers])[:, first:]
    moved = np.abs(np.array([a[3] for a in answers])[:, first:]).max(axis=2) > 0
    values = {n: np.exp(slack[:, i] * (-1.0 if ups[n] else 1.0)) for i, n in enumerate(names)}
    return values, {n: moved[:, i] for i, n in enumerate(names)}


def _corrected(problem: Problem, found: Found) -> Found:
    """Designs whose limits are those of the exact model: the smooth one is shifted to agree where they end."""
    for _ in range(ROUNDS):
        counts = len(problem.count_names())
        _, exact = problem.slack(found.batch, found.points, 0.0)
        _, smooth = problem.slack(found.batch, found.points, FINE)
        shift = np.nan_to_num(exact - smooth)
        shift[:, shift.shape[1] - counts :] = 0.0
        pressing = (exact < -KEPT) | (smooth + found.batch.shift < NEAR)  # elsewhere a difference changes nothing
        if not (pressing & (np.abs(shift - found.batch.shift) > NEAR)).any():
            break
        found = _better(problem, found, _improved(problem, replace(found.batch, shift=shift), found.points, FINE))
    return found


def _polished(problem: Problem, found: Found, seed: int) -> Found:
    """Designs moved to the best exact one nearby: there the model climbs and falls in steps, by waves of tiles say."""
    draw, best = np.random.default_rng(seed), found.points.copy()
    value, broken = found.value.copy(), found.broken.copy()
    layout = found.batch.layout.copy()
    for reach in NEARBY:
        for i in range(len(best)):
            moved = draw.normal(0.0, reach, (TOGETHER, best.shape[1]))
            moved *= draw.random(moved.shape) < np.maximum(2 / best.shape[1], 0.3)  # some of the coordinates
            points = np.clip(best[i] + moved, 0.0, 1.0)
            group = found.batch.group[i]
            new, missed, layouts = problem.screen(points, found.batch.bounds[i], [group])
            new, missed = new[:, 0], missed[:, 0]
            score = problem.merit(new, np.where(missed > KEPT, missed + 1e-3, 0.0))
            j = int(np.argmin(score))
            if score[j] < problem.merit(value[i], np.where(broken[i] > KEPT, broken[i] + 1e-3, 0.0)):
                best[i], value[i], broken[i], layout[i] = points[j], new[j], missed[j], layouts[j, 0]
    return replace(found, points=best, value=value, broken=broken, chosen=layout)
