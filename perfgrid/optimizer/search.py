"""How the best designs are searched: even samples, slopes from the best of them, whole counts, exact designs nearby."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.study.limits import KEPT

from .batch import Batch
from .batched_slsqp import optimality
from .descent import FINE, ROUGH, improved, with_whole_counts
from .found import Found, best_of, scores, smooth_scores, updated
from .problem import BROKEN, STRICT, Problem

RIVALS = 4  # joint labels of each problem that go on after the first, rough search
SETTLED = 1e-5  # residual below which a search is not begun again
ROUNDS = 4  # at most, of choosing layouts again and of correcting limits by the exact model
# reach of the exact search around an optimum, in parts of the ranges
NEARBY = (0.05, 0.05, 0.03, 0.03, 0.02, 0.02, 0.01, 0.01, 0.005)
POLISHED = 32  # exact designs at each reach
NEAR = 1e-4  # slack, and disagreement about it, that matters


def sampled(problem: Problem, count: int, seed: int) -> np.ndarray:
    """Designs spread evenly over the bounds, the stated one first."""
    from scipy.stats import qmc  # takes long to import

    draws = qmc.Sobol(len(problem.knobs), rng=seed).random(2 ** int(np.ceil(np.log2(max(count, 2)))))[: count - 1]
    return np.concatenate((problem.knobs.start()[None], draws))


def best_found(problem: Problem, optima: np.ndarray, bounds: np.ndarray, starts: int, seed: int) -> Found:
    """The best design of every problem (the number of an optimum and the bounds of its limits), from several starts.

    A layout that breaks a limit by little may have looked better than one that keeps all of them: where none was found
    that does, though samples do, it is searched anew with limits that weigh more.
    """
    if not isinstance(starts, int) or starts < 1:
        raise PerfgridError(f"the number of starts must be 1 or more, found {starts!r}")
    designs = sampled(problem, max(64, min(16 * len(problem.knobs), 256)), seed)
    if starts > len(designs):
        raise PerfgridError(f"the number of starts must be at most that of samples, {len(designs)}, found {starts}")
    # a bad case is seldom far from the best design for estimates as stated; along a front neighbours lead
    if problem.stated is not None and np.array_equal(bounds, np.tile(problem.bounds, (len(optima), 1))):
        before = problem.stated.evaluations
        as_stated = best_found(problem.stated, optima, bounds, starts, seed)
        problem.evaluations += problem.stated.evaluations - before
        designs = np.concatenate((designs, np.unique(as_stated.points, axis=0)))
    found = _searched(problem, optima, bounds, designs, starts, seed)
    lost, problem.weight = np.flatnonzero(found.broken > KEPT), STRICT
    groups = groups_of(problem, optima)
    kept = [(problem.screen(designs, bounds[i], groups[i])[1] <= KEPT).any() for i in lost]
    if (lost := lost[np.array(kept, bool)]).size:
        again = _searched(problem, optima[lost], bounds[lost], designs, starts, seed)
        better = np.flatnonzero(again.broken <= KEPT)
        found = updated(found, lost[better], again.of(better))
    problem.weight = BROKEN
    return found


def groups_of(problem: Problem, optima: np.ndarray) -> np.ndarray:
    """The groups, one for each joint label, of which an optimum is the best [optima, labels]."""
    return optima[:, None] * problem.labels + np.arange(problem.labels)


def _searched(
    problem: Problem, optima: np.ndarray, bounds: np.ndarray, designs: np.ndarray, starts: int, seed: int
) -> Found:
    """The best designs that are reached from the best of these samples.

    Layouts are compared only when the counts of each are whole: one that would like 3.5 memory stacks may be the best
    with three of them, and the second best with three and a half. Joint labels are compared before, on the rough
    companion, and the best few go on.
    """
    value, broken, layout = problem.screen(designs)
    problem.positive = bool((value > 0).all())
    problem.scale = float(np.max(np.abs(value))) or 1.0
    merit, groups = problem.merit(value, broken), groups_of(problem, optima)
    owner = np.repeat(np.arange(len(optima)), problem.labels * starts)
    group = np.repeat(np.ravel(groups), starts)
    start = np.concatenate([_starts(merit[:, group], layout[:, group], starts) for group in np.ravel(groups)])
    batch = Batch(group, layout[start, group], {}, np.zeros((len(owner), 0)), bounds[owner])
    problem.slack(batch, designs[start], ROUGH)  # finds the counts
    found = improved(problem, batch.unshifted(len(problem.constraint_names())), designs[start], ROUGH)
    for _ in range(ROUNDS):  # another layout may be better where the design has moved to
        changed = _chosen_again(problem, found).batch
        moved = np.flatnonzero((changed.layout != found.batch.layout).any(axis=1))
        if not len(moved):
            break
        found = updated(found, moved, improved(problem, changed.of(moved), found.points[moved], ROUGH))
    by_label = _by_label(problem, found)
    found, owner = _rivals(problem, found, owner)
    found, owner = with_whole_counts(problem, found, owner)
    found = _corrected(problem, found)
    found = _settled(problem, found.of(best_of(scores(problem, found), owner)))
    smooth, found = found.batch, _chosen_again(problem, found)
    for i, own in enumerate(groups):  # the best sample where slopes led to nothing better: over steps, say
        if np.array_equal(bounds[i], problem.bounds):  # of a front samples were weighed by other limits
            for group in own:
                found.improve(problem, i, designs, value[:, group], broken[:, group], layout[:, group], group)
    _polish(problem, found, seed)
    return replace(found, smooth=smooth, by_label=by_label)


def _rivals(problem: Problem, found: Found, owner: np.ndarray) -> tuple[Found, np.ndarray]:
    """The best designs of every layout, and of the few best joint labels of each owner; and whose they are."""
    smooth = smooth_scores(problem, found)
    leading = best_of(smooth, owner, kinds=found.batch.group.tolist())
    leading = leading[best_of(smooth[leading], owner[leading], RIVALS)]
    labels = set(zip(owner[leading].tolist(), found.batch.group[leading].tolist(), strict=True))
    pairs = zip(owner.tolist(), found.batch.group.tolist(), strict=True)
    places = np.flatnonzero([pair in labels for pair in pairs])
    layouts = [(found.batch.group[i], found.batch.layout[i].tobytes()) for i in places]
    kept = places[best_of(smooth[places], owner[places], kinds=layouts)]
    return found.of(kept), owner[kept]


def _by_label(problem: Problem, found: Found) -> np.ndarray:
    """The best objective of the rough search of every optimum and joint label, NaN where limits are broken."""
    best = np.full(problem.groups, np.inf)
    for group, minimum in zip(found.batch.group, found.minima, strict=True):
        if (minimum.answer[2] > -NEAR).all():
            best[group] = min(best[group], minimum.answer[0])
    objective = np.where(np.isfinite(best), problem.objective(np.where(np.isfinite(best), best, 0.0)), np.nan)
    return objective.reshape(problem.optima, problem.labels)


def _starts(merit: np.ndarray, layout: np.ndarray, count: int) -> np.ndarray:
    """The numbers of the best designs of a group, those of different layouts first."""
    order = np.argsort(merit, kind="stable")
    _, first = np.unique(layout[order], axis=0, return_index=True)
    return np.concatenate((order[np.sort(first)], np.delete(order, first)))[:count]


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


def _settled(problem: Problem, found: Found) -> Found:
    """Designs at smooth optima: searches that ended early are begun again where they stand."""
    scale = np.array([k.span for k in problem.knobs.knobs])
    left = np.arange(len(found.points))
    for _ in range(ROUNDS):
        residual = [optimality(found.minima[i].point, found.minima[i].answer, scale).residual for i in left]
        left = left[np.array(residual) > SETTLED]
        if not len(left):
            break
        before = smooth_scores(problem, found.of(left))
        again = improved(problem, found.batch.of(left), np.array([found.minima[i].point for i in left]), FINE)
        minima = list(found.minima)
        for i, minimum in zip(left, again.minima, strict=True):
            minima[i] = minimum
        better = scores(problem, again) <= scores(problem, found.of(left)) + 1e-4
        found = replace(updated(found, left[better], again.of(np.flatnonzero(better))), minima=minima)
        left = left[smooth_scores(problem, again) < before - 1e-7]
    return found


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
        again = improved(problem, replace(now.batch.of(wrong), shift=shift[wrong]), now.points[wrong], FINE)
        kept = np.flatnonzero(scores(problem, again) <= scores(problem, now.of(wrong)) + 1e-4)
        off = off[wrong[kept]]
        if not len(off):
            break
        found = updated(found, off, again.of(kept))
    return found


def _polish(problem: Problem, found: Found, seed: int) -> None:
    """Move designs to the best exact one nearby: there the model climbs and falls in steps, by waves of tiles say."""
    draw, knobs = np.random.default_rng(seed), len(problem.knobs)
    for reach in NEARBY:
        for i, group in enumerate(found.batch.group):
            moved = draw.normal(0.0, reach, (POLISHED, knobs))
            moved *= draw.random(moved.shape) < np.maximum(2 / knobs, 0.3)  # some of the coordinates
            points = np.clip(found.points[i] + moved, 0.0, 1.0)
            value, broken, layout = (known[:, 0] for known in problem.screen(points, found.batch.bounds[i], [group]))
            found.improve(problem, i, points, value, broken, layout, group)
