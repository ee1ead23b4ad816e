"""How the best designs are searched: even samples, slopes from the best of them, whole counts, exact designs nearby."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfgrid.engine.errors import PerfgridError

from .batched_slsqp import Minimum, minimize_together, optimality
from .problem import BROKEN, CLOSE, KEPT, STRICT, TOGETHER, Batch, Problem

ROUGH, MIDDLE, FINE = 1e-2, 3e-3, 1e-3  # temperatures: relative widths over which kinks are rounded off
DIVERS = 4  # designs of each problem that are kept while counts become whole
FINALISTS = 2  # of the designs with whole counts that are improved on the finest companion
SETTLED = 1e-5  # residual below which a search is not begun again
ROUNDS = 4  # at most, of choosing layouts again and of correcting limits by the exact model
AT_ONCE = 64  # designs whose slopes are evaluated together
# reach of the exact search around an optimum, in parts of the ranges
NEARBY = (0.05, 0.05, 0.03, 0.03, 0.02, 0.02, 0.01, 0.01, 0.005)
NEAR = 1e-4  # slack, and disagreement about it, that matters


@dataclass
class Found:
    """Designs that were found, one per problem of a batch: points, exact objectives, broken limits, smooth state."""

    batch: Batch
    points: np.ndarray
    value: np.ndarray  # exact
    broken: np.ndarray  # exact: the sum of what limits are broken by
    minima: list[Minimum]

    def of(self, index: np.ndarray) -> Found:
        """Some of the designs."""
        minima = [self.minima[i] for i in index]
        return Found(self.batch.of(index), self.points[index], self.value[index], self.broken[index], minima)

    def improve(
        self,
        problem: Problem,
        i: int,
        points: np.ndarray,
        value: np.ndarray,
        broken: np.ndarray,
        layout: np.ndarray,
    ) -> None:
        """Put the best of some exactly known designs in the place of one that is worse."""
        merit = problem.merit(value, _missed(broken))
        j = int(np.argmin(merit))
        if merit[j] < problem.merit(self.value[i], _missed(self.broken[i])):
            self.points[i], self.value[i], self.broken[i] = points[j], value[j], broken[j]
            self.batch.layout[i] = layout[j]


def sampled(problem: Problem, count: int, seed: int) -> np.ndarray:
    """Designs spread evenly over the bounds, the stated one first."""
    from scipy.stats import qmc  # takes long to import

    draws = qmc.Sobol(len(problem.knobs), rng=seed).random(2 ** int(np.ceil(np.log2(max(count, 2)))))[: count - 1]
    return np.concatenate((problem.knobs.start()[None], draws))


def best_found(problem: Problem, groups: np.ndarray, bounds: np.ndarray, starts: int, seed: int) -> Found:
    """The best design of every problem (a group and the bounds of its limits), from several starts each.

    A layout that breaks a limit by little may have looked better than one that keeps all of them: where none was found
    that does, though samples do, it is searched anew with limits that weigh more.
    """
    if not isinstance(starts, int) or starts < 1:
        raise PerfgridError(f"the number of starts must be 1 or more, found {starts!r}")
    designs = sampled(problem, max(64, min(16 * len(problem.knobs), 256)), seed)
    if starts > len(designs):
        raise PerfgridError(f"the number of starts must be at most that of samples, {len(designs)}, found {starts}")
    found = _searched(problem, groups, bounds, designs, starts, seed)
    lost, problem.weight = np.flatnonzero(found.broken > KEPT), STRICT
    kept = [(problem.screen(designs, bounds[i], groups[i : i + 1])[1] <= KEPT).any() for i in lost]
    if (lost := lost[np.array(kept, bool)]).size:
        again = _searched(problem, groups[lost], bounds[lost], designs, starts, seed)
        better = np.flatnonzero(again.broken <= KEPT)
        found = _updated(found, lost[better], again.of(better))
    problem.weight = BROKEN
    return found


def _searched(
    problem: Problem, groups: np.ndarray, bounds: np.ndarray, designs: np.ndarray, starts: int, seed: int
) -> Found:
    """The best designs that are reached from the best of these samples.

    Layouts are compared only when the counts of each are whole: one that would like 3.5 memory stacks may be the best
    with three of them, and the second best with three and a half.
    """
    value, broken, layout = problem.screen(designs)
    problem.positive = bool((value > 0).all())
    problem.scale = float(np.max(np.abs(value))) or 1.0
    merit, owner = problem.merit(value, broken), np.repeat(np.arange(len(groups)), starts)
    start = np.concatenate([_starts(merit[:, group], layout[:, group], starts) for group in groups])
    batch = Batch(groups[owner], layout[start, groups[owner]], {}, np.zeros((len(owner), 0)), bounds[owner])
    problem.slack(batch, designs[start], ROUGH)  # finds the counts
    found = _improved(problem, batch.unshifted(len(problem.constraint_names())), designs[start], ROUGH)
    for _ in range(ROUNDS):  # another layout may be better where the design has moved to
        changed = _chosen_again(problem, found).batch
        moved = np.flatnonzero((changed.layout != found.batch.layout).any(axis=1))
        if not len(moved):
            break
        found = _updated(found, moved, _improved(problem, changed.of(moved), found.points[moved], ROUGH))
    kept = _best_of(problem, found, owner, apart=True, relaxed=True)
    found, owner = _with_whole_counts(problem, found.of(kept), owner[kept])
    found = _corrected(problem, found)
    found = _settled(problem, found.of(_best_of(problem, found, owner)))
    found = _chosen_again(problem, found)
    for i, group in enumerate(groups):  # the best sample where slopes led to nothing better: over steps, say
        if np.array_equal(bounds[i], problem.bounds):  # of a front samples were weighed by other limits
            found.improve(problem, i, designs, value[:, group], broken[:, group], layout[:, group])
    _polish(problem, found, seed)
    return found


def _starts(merit: np.ndarray, layout: np.ndarray, count: int) -> np.ndarray:
    """The numbers of the best designs of a group, those of different layouts first."""
    order = np.argsort(merit, kind="stable")
    _, first = np.unique(layout[order], axis=0, return_index=True)
    return np.concatenate((order[np.sort(first)], np.delete(order, first)))[:count]


def _improved(problem: Problem, batch: Batch, points: np.ndarray, temperature: float) -> Found:
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


def _score(problem: Problem, found: Found) -> np.ndarray:
    return problem.merit(found.value, _missed(found.broken))


def _missed(broken: Any) -> Any:
    """What broken limits count for where designs are compared."""
    return np.where(broken > KEPT, broken + 1e-3, 0.0)


def _updated(old: Found, index: np.ndarray, new: Found) -> Found:
    """Designs of which those at ``index`` are replaced by the new ones."""
    place = np.arange(len(old.points))
    place[index] = len(place) + np.arange(len(index))
    rows = {n: np.concatenate((getattr(old, n), getattr(new, n))) for n in ("points", "value", "broken")}
    return Found(_joined(old.batch, new.batch), minima=[*old.minima, *new.minima], **rows).of(place)


def _joined(one: Batch, other: Batch) -> Batch:
    """The problems of two batches."""
    names = dict.fromkeys((*one.counts, *other.counts))
    counts = {n: np.concatenate([x.counts.get(n, np.full(len(x.group), np.nan)) for x in (one, other)]) for n in names}
    parts = {n: np.concatenate([getattr(x, n) for x in (one, other)]) for n in ("group", "layout", "bounds", "shift")}
    return Batch(counts=counts, **parts)


def _best_of(
    problem: Problem, found: Found, owner: np.ndarray, count: int = 1, apart: bool = False, relaxed: bool = False
) -> np.ndarray:
    """The numbers of the best designs of every owner, so many of each; with ``apart`` so many of each of its layouts.

    ``relaxed``: by the smooth companion, where counts are still open, else exactly.
    """
    score = _relaxed(problem, found) if relaxed else _score(problem, found)
    kept: list[int] = []
    seen: dict[Any, int] = {}
    for i in np.argsort(score, kind="stable"):
        key = (owner[i], found.batch.layout[i].tobytes() if apart else b"")
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= count:
            kept.append(int(i))
    return np.array(sorted(kept, key=lambda i: owner[i]))


def _chosen_again(problem: Problem, found: Found) -> Found:
    """The designs with the best layout of each where it stands now, and with what they exactly are."""
    layouts, value, broken = found.batch.layout.copy(), found.value.copy(), found.broken.copy()
    for bounds in np.unique(found.batch.bounds, axis=0):
        members = np.flatnonzero((found.batch.bounds == bounds).all(axis=1))
        own = found.batch.group[members]
        place = (np.arange(len(members)), np.searchsorted(np.unique(own), own))
        values, wrong, layout = problem.screen(found.points[members], bounds, own)
        layouts[members], value[members], broken[members] = layout[place], values[place], wrong[place]
    return Found(replace(found.batch, layout=layouts), found.points.copy(), value, broken, found.minima)


def _with_whole_counts(problem: Problem, found: Found, owner: np.ndarray) -> tuple[Found, np.ndarray]:
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
        found = _improved(problem, batch, points, MIDDLE)
        last = name == problem.count_names()[-1]
        kept = _best_of(problem, found, owner, DIVERS, relaxed=not last)
        found, owner = found.of(kept), owner[kept]
    kept = _best_of(problem, found, owner, FINALISTS)
    return _improved(problem, found.batch.of(kept), found.points[kept], FINE), owner[kept]


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


def _settled(problem: Problem, found: Found) -> Found:
    """Designs at smooth optima: searches that ended early are begun again where they stand."""
    scale = np.array([k.span for k in problem.knobs.knobs])
    left = np.arange(len(found.points))
    for _ in range(ROUNDS):
        residual = [optimality(found.minima[i].point, found.minima[i].answer, scale).residual for i in left]
        left = left[np.array(residual) > SETTLED]
        if not len(left):
            break
        before = _relaxed(problem, found.of(left))
        again = _improved(problem, found.batch.of(left), np.array([found.minima[i].point for i in left]), FINE)
        minima = list(found.minima)
        for i, minimum in zip(left, again.minima, strict=True):
            minima[i] = minimum
        better = _score(problem, again) <= _score(problem, found.of(left)) + 1e-4
        found = replace(_updated(found, left[better], again.of(np.flatnonzero(better))), minima=minima)
        left = left[_relaxed(problem, again) < before - 1e-7]
    return found


def _relaxed(problem: Problem, found: Found) -> np.ndarray:
    """What designs are chosen by on the smooth companion."""
    return np.array([m.answer[0] + problem.weight * np.maximum(-m.answer[2], 0.0).sum() for m in found.minima])


def _corrected(problem: Problem, found: Found) -> Found:
    """Designs whose limits are those of the exact model: the smooth one is shifted to agree where they end."""
    off = np.arange(len(found.points))
    for _ in range(ROUNDS):
        now = found.of(off)
        _, exact = problem.slack(now.batch, now.points, 0.0)
        _, smooth = problem.slack(now.batch, now.points, FINE)
        shift = np.nan_to_num(exact - smooth)
        moved = np.abs(shift - now.batch.shift)
        pressing = (exact < -KEPT) | (smooth + now.batch.shift < NEAR)  # elsewhere a difference changes nothing
        wrong = np.flatnonzero((pressing & (moved > np.where(exact < -KEPT, KEPT, NEAR))).any(axis=1))
        if not len(wrong):
            break
        again = _improved(problem, replace(now.batch.of(wrong), shift=shift[wrong]), now.points[wrong], FINE)
        kept = np.flatnonzero(_score(problem, again) <= _score(problem, now.of(wrong)) + 1e-4)
        off = off[wrong[kept]]
        if not len(off):
            break
        found = _updated(found, off, again.of(kept))
    return found


def _polish(problem: Problem, found: Found, seed: int) -> None:
    """Move designs to the best exact one nearby: there the model climbs and falls in steps, by waves of tiles say."""
    draw, knobs = np.random.default_rng(seed), len(problem.knobs)
    for reach in NEARBY:
        for i, group in enumerate(found.batch.group):
            moved = draw.normal(0.0, reach, (TOGETHER, knobs))
            moved *= draw.random(moved.shape) < np.maximum(2 / knobs, 0.3)  # some of the coordinates
            points = np.clip(found.points[i] + moved, 0.0, 1.0)
            known = problem.screen(points, found.batch.bounds[i], [group])
            found.improve(problem, i, points, *(of_group[:, 0] for of_group in known))
