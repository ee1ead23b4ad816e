"""The best design over continuous quantities, together with every discrete choice; the front between two objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE, formula_hash, space_text
from perfgrid.results.provenance import STUDY_ATTRIBUTE, global_attributes
from perfgrid.study.selection import reaching
from perfgrid.study.study import Study, expect_study

from .batched_slsqp import optimality
from .input import OPEN, Knobs, limits, parts, refuse_contradictions, unit_of_quantity
from .problem import KEPT, Problem
from .search import Found, best_found

UNEXPLAINED = 1e-2  # residual from which multipliers are not told


def optimize(
    study: Study,
    minimize: str | None = None,
    maximize: str | None = None,
    over: str | Sequence[str] | Mapping[str, Sequence[Any]] | None = None,
    subject_to: Sequence[str] | str | None = None,
    choose: Sequence[str] | str | None = None,
    starts: int = 4,
    seed: int = 0,
) -> xr.Dataset:
    """The design that minimises (or maximises) an output within limits, for every label of the axes not in ``choose``.

    ``over`` names the free quantities, with [low, high] where it is a mapping; without, bounds are those of the study's
    axis of that name or of the catalog. ``subject_to`` are limits such as ``"die_area < 800 mm^2"``; constraints that
    concern the objective or a limited quantity hold as well, outputs that another makes illegal are NaN. What is not
    stated comes from ``[optimize]`` of the study, ``choose`` (axes along which the best label is taken) from ``[best]``
    if need be. With ``[[workloads]]`` the weighted sum of the objective is optimised, each workload with the best
    layout of its own.

    The result lies on the other axes: ``objective``; every free quantity and output by name (``workload.output``); the
    layout; ``slack`` and ``shadow_price`` along ``constraint`` (the elasticity of the objective to loosening a limit),
    ``pull`` along ``knob`` (the same of the bound at which a quantity ends; both NaN where the search ended on a step
    of the model, with a residual above 0.01), ``kkt_residual``, ``feasible`` and what an infeasible design ``breaks``;
    ``jump`` along ``knob``, the part by which the exact objective gets worse, beyond its slope, when that quantity
    moves by a percent; ``trace`` along ``step``; as attributes the free quantities ``without_effect`` there and the
    number of model evaluations, every slope counted as one. Raises PerfgridError for unknown names, for quantities
    without bounds or derivative, and where no design keeps the limits.
    """
    problem = problem_of(study, minimize, maximize, over, subject_to, choose)
    groups = np.arange(problem.groups)
    found = best_found(problem, groups, np.tile([x.bound for x in problem.limits], (problem.groups, 1)), starts, seed)
    if (found.broken > KEPT).all():
        raise PerfgridError(nothing_kept(study, problem, found))
    return described(study, problem, found)


def front(
    study: Study,
    against: str,
    points: int = 8,
    minimize: str | None = None,
    maximize: str | None = None,
    over: str | Sequence[str] | Mapping[str, Sequence[Any]] | None = None,
    subject_to: Sequence[str] | str | None = None,
    choose: Sequence[str] | str | None = None,
    starts: int = 4,
    seed: int = 0,
) -> xr.Dataset:
    """The best values of an objective against a second output that should be small, from one's best to the other's.

    At every point of the front the objective is optimised with the second output limited (epsilon constraint), the
    limits evenly spaced by factor; the result is that of `optimize` with an axis ``point``. Raises PerfgridError alike.
    """
    expect_study(study, "a front")
    if points < 1:
        raise PerfgridError(f"a front needs at least one point, found {points!r}")
    stated = study.file.optimize
    texts = subject_to if subject_to is not None else stated.subject_to if stated is not None else []
    texts = [texts] if isinstance(texts, str) else list(texts)
    other = optimize(study, against, None, over, texts, choose, starts, seed)
    problem = problem_of(study, minimize, maximize, over, texts, choose, against)
    last = [i for i, x in enumerate(problem.limits) if x.bound == OPEN]
    fixed = np.tile([x.bound for x in problem.limits], (problem.groups, 1))
    groups = np.arange(problem.groups)
    free = best_found(problem, groups, fixed, starts, seed)
    ends = np.ravel(other["objective"].values), second_of(problem, free)
    low, high = np.minimum(*ends), np.maximum(*ends)
    if not (low > 0).all():
        raise PerfgridError(f"{study.name}: a front needs a second output above zero, found {low.min():g} of {against}")
    steps = np.linspace(0, 1, points)
    limit = low[:, None] * (high / low)[:, None] ** steps * (1 + 1e-4)
    bounds = np.repeat(fixed, points, axis=0)
    bounds[:, last] = limit.reshape(-1, 1)
    found = best_found(problem, np.repeat(groups, points), bounds, starts, seed)
    result = described(study, problem, found, points)
    about = {"units": unit_of_quantity(study_of(problem), against), "long_name": f"limit of {against}"}
    return result.assign_coords(
        limit=((*problem.parts[0].groups, "point"), limit.reshape(*problem.group_sizes, points), about)
    )


def second_of(problem: Problem, found: Found) -> np.ndarray:
    """The output of the last limit, of all workloads together, at designs."""
    outputs = problem.outputs(found.points, found.batch.group, found.layout)
    return np.sum([n[part.limits[-1].quantity] for part, (n, _) in zip(problem.parts, outputs, strict=True)], axis=0)


def problem_of(
    study: Study,
    minimize: str | None = None,
    maximize: str | None = None,
    over: str | Sequence[str] | Mapping[str, Sequence[Any]] | None = None,
    subject_to: Sequence[str] | str | None = None,
    choose: Sequence[str] | str | None = None,
    against: str | None = None,
) -> Problem:
    """The problem of arguments like those of `optimize` or `front`, checked."""
    expect_study(study, "an optimisation")
    stated = study.file.optimize
    if minimize is None and maximize is None and stated is not None:
        minimize, maximize = stated.minimize, stated.maximize
    if (minimize is None) == (maximize is None):
        raise PerfgridError(f"{study.name}: give either minimize or maximize, here or in [optimize]")
    if over is None:
        over = stated.over if stated is not None else []
    over = [over] if isinstance(over, str) else over
    if subject_to is None:
        subject_to = stated.subject_to if stated is not None else []
    if choose is None and stated is not None:
        choose = stated.choose
    if choose is None and study.file.best is not None:
        choose = study.file.best.over
    choose = [choose] if isinstance(choose, str) else list(choose or ())
    studies = parts(study)
    known = {a.name for one, _ in studies.values() for a in one.space.axes}
    for axis in choose:
        if axis not in known:
            raise PerfgridError(f"{study.name}: choose names {axis!r}, which is no axis of it{nearest(axis, known)}")
    texts = [subject_to] if isinstance(subject_to, str) else list(subject_to)
    held = limits({name: one for name, (one, _) in studies.items()}, texts, against)
    asked = {name: [minimize or maximize or "", *(x.quantity for x in held if x.workload == name)] for name in studies}
    studies = {name: (reaching(one, asked[name]), weight) for name, (one, weight) in studies.items()}
    knobs = Knobs(next(iter(studies.values()))[0], over)
    refuse_contradictions(study.name, knobs, held)
    return Problem(studies, knobs, minimize or maximize or "", maximize is not None, held, choose)


# -- what was found ---------------------------------------------------------------------------------------------------


def nothing_kept(study: Study, problem: Problem, found: Found) -> str:
    """The sentence for a search that ended without a design that keeps every limit."""
    best = int(np.argmin(found.broken))
    told = "; ".join(broken(problem, found)[best])
    return f"{study.name}: no design within the bounds keeps every limit; the nearest one breaks {told}"


def broken(problem: Problem, found: Found) -> list[list[str]]:
    """What each design that was found breaks, in words."""
    return problem.broken_by(found.points, found.batch.group, found.layout, found.batch.bounds)


def jumps(problem: Problem, found: Found) -> np.ndarray:
    """By what part the exact objective gets worse, beyond its slope, when one quantity moves a percent either way.

    [designs, knobs]: steps of the model beside which a design stands. The layout stays; moves that break a limit do not
    count; of a range that reaches zero a percent is one of the range.
    """
    moves = np.array([np.log(1.01) / k.span if k.logarithmic else 0.01 for k in problem.knobs.knobs])
    around = np.concatenate((np.zeros((1, len(moves))), np.diag(moves), -np.diag(moves)))
    points = np.clip(found.points[:, None] + around, 0.0, 1.0)
    rows = np.repeat(np.arange(len(points)), len(around))
    batch = replace(found.batch.of(rows), layout=found.layout[rows], counts={}).unshifted(0)
    score, slack = problem.slack(batch, points.reshape(len(rows), -1), 0.0)
    kept = (slack >= -KEPT).all(axis=1).reshape(len(points), -1)
    score = score.reshape(len(points), -1)
    smooth = np.abs([m.answer[1] for m in found.minima]) * moves
    worse = np.where(kept, score - score[:, :1], 0.0)[:, 1:].reshape(len(points), 2, -1).max(axis=1) - smooth
    return np.expm1(np.maximum(worse, 0.0)) if problem.positive else np.maximum(worse, 0.0)


def described(study: Study, problem: Problem, found: Found, points: int = 0) -> xr.Dataset:
    """The designs that were found on the axes that are not chosen along, and along ``point`` those of a front."""
    first = problem.parts[0]
    shape = problem.group_sizes + ((points,) if points else ())
    groups = first.groups + (("point",) if points else ())

    def on_groups(values: Any) -> tuple[Any, ...]:
        array = np.array(values)
        return (*groups, *extra), array.reshape(shape + array.shape[1:])

    extra: tuple[str, ...] = ()
    named = [problem.knobs.named(p) for p in found.points]
    data: dict[str, Any] = {}
    for knob in problem.knobs.knobs:
        unit = knob.leaf.variable.unit
        data[knob.name] = (*on_groups([n[knob.name] for n in named]), {"units": unit, "range": [knob.low, knob.high]})
    splits: dict[str, list[Any]] = {}
    for knob in problem.knobs.knobs:
        if knob.share:
            splits.setdefault(knob.leaf.quantity, []).append(knob)
    objective = first.objective
    data["objective"] = (*on_groups(found.value), {"units": unit_of_quantity(study_of(problem), objective)})
    data["feasible"] = on_groups(found.broken <= KEPT)
    data["breaks"] = on_groups(["; ".join(told) for told in broken(problem, found)])
    scale = np.array([k.span for k in problem.knobs.knobs])
    explained = [optimality(m.point, m.answer, scale) for m in found.minima]
    data["kkt_residual"] = on_groups([e.residual for e in explained])
    told = [1.0 if e.residual < UNEXPLAINED else np.nan for e in explained]  # multipliers explain nothing there
    names = problem.constraint_names()
    extra = ("constraint",)
    data["slack"] = on_groups([m.answer[2] for m in found.minima])
    sign = -1.0 if problem.maximize else 1.0
    data["shadow_price"] = on_groups([-sign * e.multipliers * t for e, t in zip(explained, told, strict=True)])
    extra = ("knob",)
    data["jump"] = (*on_groups(jumps(problem, found)), {"units": "1"})
    slopes = [np.abs(np.vstack((m.answer[1][None], m.answer[3]))).max(axis=0) for m in found.minima]
    idle = np.max(slopes, axis=0) == 0
    data["pull"] = on_groups([-sign * np.abs(e.bounds) * t for e, t in zip(explained, told, strict=True)])
    if splits:
        extra = ("split",)
        apart = [[sum(abs(n[k.name] - k.start) for k in ks) / 2 for ks in splits.values()] for n in named]
        data["moved"] = (*on_groups(apart), {"units": "1"})
    extra = ("step",)
    steps = max(len(m.trace) for m in found.minima)
    traces = [np.pad(np.array(m.trace), (0, steps - len(m.trace)), mode="edge") for m in found.minima]
    shown = (lambda t: np.exp(sign * t)) if problem.positive else (lambda t: sign * t * problem.scale)
    data["trace"] = on_groups([shown(t) for t in traces])
    extra = ()
    coordinates: dict[str, Any] = {"constraint": names, "knob": [k.name for k in problem.knobs.knobs]}
    if splits:
        coordinates["split"] = list(splits)
    for name in first.groups:
        axis = next(a for a in first.space.axes if a.name == name)
        coordinates[name] = axis.labels
    outputs = problem.outputs(found.points, found.batch.group, found.layout)
    for number, (part, (numbers, counts)) in enumerate(zip(problem.parts, outputs, strict=True)):
        prefix = f"{part.name}." if part.name else ""
        rows = part.rows(found.batch.group, found.layout[:, number])
        for output, value in numbers.items():
            if prefix or output not in data:
                data[prefix + output] = (*on_groups(value), {"units": unit_of_quantity(part.study, output)})
        for name, up in part.single.counts.items():
            exact = np.ceil(counts[name] - 1e-9) if up else np.floor(counts[name] * (1 + 1e-9))
            data.setdefault(name, on_groups(exact))
        for axis in part.chosen:
            labels = [part.labels(row, [axis])[axis] for row in rows]
            coordinates[prefix + axis] = on_groups(labels)
    attributes: dict[str, Any] = {"study_axes": " ".join(groups)}
    for part in problem.parts:  # what is needed to explain their outputs
        prefix = f"{part.name}." if part.name else ""
        attributes[f"{prefix}{SPACE_ATTRIBUTE}"] = space_text(part.plan, part.study.space)
        attributes[f"{prefix}{STUDY_ATTRIBUTE}"] = global_attributes(part.study)[STUDY_ATTRIBUTE]
        attributes[f"{prefix}formula_hash"] = formula_hash(part.plan)
    attributes |= {
        "title": study.file.title,
        "objective": f"{'maximize' if problem.maximize else 'minimize'} {objective}",
        "evaluations": problem.evaluations,
        "limits": [x.text for x in problem.limits],
        "without_effect": [k.name for k, none in zip(problem.knobs.knobs, idle, strict=True) if none],
    }
    return xr.Dataset(data, coordinates, attributes)


def study_of(problem: Problem) -> Study:
    """The study of the first workload."""
    return problem.parts[0].study
