"""The best design over continuous quantities, together with every discrete choice; Pareto fronts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE, formula_hash, space_text
from perfgrid.results.provenance import global_attributes
from perfgrid.results.schema import STUDY_ATTRIBUTE
from perfgrid.study.file import Optimize
from perfgrid.study.limits import OPEN, limits, unit_of_quantity
from perfgrid.study.selection import reaching
from perfgrid.study.study import Study, expect_study, workloads

from .batched_slsqp import optimality
from .knobs import Knobs, refuse_contradictions
from .problem import KEPT, Problem
from .search import Found, best_found

MOST_POINTS = 10_000  # of a Pareto front
UNEXPLAINED = 1e-2  # residual from which multipliers are NaN


def optimize(
    study: Study,
    minimize: str | None = None,
    maximize: str | None = None,
    over: str | Sequence[str] | Mapping[str, Sequence[Any]] | None = None,
    subject_to: Sequence[str] | str | None = None,
    choose: Sequence[str] | str | None = None,
    starts: int = 4,
    seed: int = 0,
    pareto: str | None = None,
    points: int = 8,
) -> xr.Dataset:
    """The design that minimises or maximises an output within limits, for every label of the axes not in ``choose``.

    Constraints that concern the objective or a limited quantity hold as well. With ``[[workloads]]`` in the study the
    weighted sum of the objective is optimised, each workload with the best layout of its own.

    Parameters
    ----------
    study
        The study. What is not given here comes from its ``[optimize]``.
    minimize, maximize
        The objective; exactly one of them.
    over
        The free quantities, as a mapping with their bounds [low, high]. Without bounds those of the study's axis of
        that name hold, or the range in the catalog.
    subject_to
        Limits, such as ``"die_area < 800 mm^2"``; of one workload ``"name.die_area < 800 mm^2"``.
    choose
        Axes along which the best label is taken. Default: those of ``[best]``.
    starts
        Designs from which each search starts.
    seed
        Seed of the samples.
    pareto
        A second output to be small: the Pareto front between both, from the best of one to the best of the other. At
        every point the objective is optimised with the second output limited (epsilon constraint).
    points
        Points of the front; limits are evenly spaced by factor.

    Returns
    -------
    xarray.Dataset
        On the axes that are not chosen along, and ``point`` of a front: ``objective``, every free quantity and output
        by name (``workload.output``), and the layout. Along ``constraint``: ``slack`` and ``shadow_price``, the
        elasticity of the objective to loosening a limit. Along ``knob``: ``pull``, the same of the bound at which a
        quantity ends, and ``jump``, the part by which the exact objective gets worse, beyond its slope, when that
        quantity moves by 1 %. ``feasible``, and what an infeasible design ``breaks``. ``kkt_residual``: above 0.01 the
        search ended at a step of the model, and prices and pulls are NaN. ``trace`` along ``step``. Attributes: the
        free quantities ``without_effect``, and the model ``evaluations``, each slope counted as one. Outputs that a
        constraint makes illegal are NaN.

    Raises
    ------
    PerfgridError
        For an unknown name, a quantity without bounds or derivative, and where no design keeps the limits.

    Examples
    --------
    >>> import perfgrid as pg
    >>> bill = pg.Study.make(
    ...     workload="manufacturing", outputs=["die_cost", "die_area"], axes={"device": ["h100-sxm-80gb"]}
    ... )
    >>> found = pg.optimize(
    ...     bill, maximize="die_area", over={"die_area": ["100 mm^2", "800 mm^2"]}, subject_to="die_cost < 100 USD"
    ... )
    >>> found.die_area.round(6).item()
    0.000279
    """
    expect_study(study, "optimize")
    if pareto is not None:
        other = optimize(study, pareto, None, over, subject_to, choose, starts, seed)["objective"].values
        problem = problem_of(study, minimize, maximize, over, subject_to, choose, pareto)
        return _front(study, problem, other, points, starts, seed)
    problem = problem_of(study, minimize, maximize, over, subject_to, choose)
    found = best_found(problem, np.arange(problem.groups), np.tile(problem.bounds, (problem.groups, 1)), starts, seed)
    if (found.broken > KEPT).all():
        limits = "; ".join(broken(problem, found)[np.argmin(found.broken)])
        raise PerfgridError(
            f"{study.name}: no design within the bounds keeps every limit; the nearest one breaks {limits}"
        )
    return described(study, problem, found)


def _front(study: Study, problem: Problem, other: np.ndarray, points: int, starts: int, seed: int) -> xr.Dataset:
    """The Pareto front of a problem whose last limit is open, from the best values of the other output."""
    if not 1 <= points <= MOST_POINTS:
        raise PerfgridError(f"a Pareto front has at least one point and at most {MOST_POINTS:,}, found {points!r}")
    against, groups = problem.limits[-1].quantity, np.arange(problem.groups)
    free = best_found(problem, groups, np.tile(problem.bounds, (problem.groups, 1)), starts, seed)
    outputs = problem.outputs(free.points, free.batch.group, free.batch.layout)
    ends = np.ravel(other), np.sum([numbers[against] for numbers, _ in outputs], axis=0)
    low, high = np.minimum(*ends), np.maximum(*ends)
    if not (low > 0).all():
        raise PerfgridError(
            f"{study.name}: a Pareto front needs a second output above zero, found {low.min():g} of {against}"
        )
    steps = np.linspace(0, 1, points)
    limit = low[:, None] * (high / low)[:, None] ** steps * (1 + 1e-4)
    bounds = np.where(problem.bounds == OPEN, limit.reshape(-1, 1), problem.bounds)
    found = best_found(problem, np.repeat(groups, points), bounds, starts, seed)
    result = described(study, problem, found, points)
    unit = unit_of_quantity(problem.parts[0].study, against)
    about = {"units": unit, "long_name": "limit of " + against.replace("_", " ")}
    return result.assign_coords(
        limit=((*problem.parts[0].groups, "point"), limit.reshape(*problem.group_sizes, points), about)
    )


def problem_of(
    study: Study,
    minimize: str | None = None,
    maximize: str | None = None,
    over: str | Sequence[str] | Mapping[str, Sequence[Any]] | None = None,
    subject_to: Sequence[str] | str | None = None,
    choose: Sequence[str] | str | None = None,
    against: str | None = None,
) -> Problem:
    """The problem of arguments like those of `optimize`, checked; ``against``: an output with an open limit."""
    expect_study(study, "an optimisation")
    stated = study.file.optimize or Optimize()
    if minimize is None and maximize is None:
        minimize, maximize = stated.minimize, stated.maximize
    if (minimize is None) == (maximize is None):
        raise PerfgridError(f"{study.name}: give either minimize or maximize, here or in [optimize]")
    over = stated.over if over is None else [over] if isinstance(over, str) else over
    subject_to = stated.subject_to if subject_to is None else subject_to
    choose = stated.choose if choose is None else choose
    if choose is None and study.file.best is not None:
        choose = study.file.best.over
    choose = [choose] if isinstance(choose, str) else list(choose or ())
    studies = workloads(study)
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


def broken(problem: Problem, found: Found) -> list[list[str]]:
    """What each design that was found breaks, in words."""
    return problem.broken_by(found.points, found.batch.group, found.batch.layout, found.batch.bounds)


def jumps(problem: Problem, found: Found) -> np.ndarray:
    """By what part the exact objective gets worse, beyond its slope, when one quantity moves a percent either way.

    [designs, knobs]: steps of the model beside which a design stands. The layout stays; moves that break a limit do not
    count; of a range that reaches zero a percent is one of the range.
    """
    moves = np.array([np.log(1.01) / k.span if k.logarithmic else 0.01 for k in problem.knobs.knobs])
    around = np.concatenate((np.zeros((1, len(moves))), np.diag(moves), -np.diag(moves)))
    points = np.clip(found.points[:, None] + around, 0.0, 1.0)
    rows = np.repeat(np.arange(len(points)), len(around))
    batch = replace(found.batch.of(rows), counts={}).unshifted(0)
    score, slack = problem.slack(batch, points.reshape(len(rows), -1), 0.0)
    kept = (slack >= -KEPT).all(axis=1).reshape(len(points), -1)
    score = score.reshape(len(points), -1)
    smooth = np.abs([m.answer[1] for m in found.minima]) * moves
    worse = np.where(kept, score - score[:, :1], 0.0)[:, 1:].reshape(len(points), 2, -1).max(axis=1) - smooth
    return np.expm1(np.maximum(worse, 0.0)) if problem.positive else np.maximum(worse, 0.0)


def described(study: Study, problem: Problem, found: Found, points: int = 0) -> xr.Dataset:
    """The designs that were found on the axes that are not chosen along, and along ``point`` those of a front."""
    shape = problem.group_sizes + ((points,) if points else ())
    groups = problem.parts[0].groups + (("point",) if points else ())

    def on_groups(values: Any, *extra: str, **attributes: Any) -> xr.Variable:
        array = np.array(values)
        return xr.Variable((*groups, *extra), array.reshape(shape + array.shape[1:]), attributes)

    slopes = [np.abs(np.vstack((m.answer[1][None], m.answer[3]))).max(axis=0) for m in found.minima]
    idle = np.max(slopes, axis=0) == 0
    knobs = problem.knobs.knobs
    data = _searched(problem, found, on_groups)
    coordinates: dict[str, Any] = {"constraint": problem.constraint_names(), "knob": [k.name for k in knobs]}
    if problem.knobs.shares:
        coordinates["split"] = list(problem.knobs.shares)
    coordinates |= {a.name: a.labels for a in problem.parts[0].space.axes if a.name in groups}
    outputs, labels = _evaluated(problem, found, on_groups)
    data |= {name: values for name, values in outputs.items() if name not in data}
    attributes: dict[str, Any] = {"study_axes": " ".join(groups)}
    for part in problem.parts:  # what `explain` needs
        prefix = f"{part.name}." if part.name else ""
        attributes[f"{prefix}{SPACE_ATTRIBUTE}"] = space_text(part.plan, part.study.space)
        attributes[f"{prefix}{STUDY_ATTRIBUTE}"] = global_attributes(part.study)[STUDY_ATTRIBUTE]
        attributes[f"{prefix}formula_hash"] = formula_hash(part.plan)
    attributes |= {
        "title": study.file.title,
        "objective": f"{'maximize' if problem.maximize else 'minimize'} {problem.parts[0].objective}",
        "evaluations": problem.evaluations,
        "limits": [x.text for x in problem.limits],
        "without_effect": [k.name for k, none in zip(knobs, idle, strict=True) if none],
    }
    return xr.Dataset(data, coordinates | labels, attributes)


def _searched(problem: Problem, found: Found, on_groups: Callable[..., xr.Variable]) -> dict[str, Any]:
    """Free quantities, objective, limits and multipliers of the designs that were found."""
    knobs, sign = problem.knobs.knobs, problem.sign
    named = [problem.knobs.named(p) for p in found.points]
    data: dict[str, Any] = {}
    for knob in knobs:
        about = {"units": knob.leaf.variable.unit, "range": [knob.low, knob.high]}
        data[knob.name] = on_groups([n[knob.name] for n in named], **about)
    unit = unit_of_quantity(problem.parts[0].study, problem.parts[0].objective)
    data["objective"] = on_groups(found.value, units=unit)
    data["feasible"] = on_groups(found.broken <= KEPT)
    data["breaks"] = on_groups(["; ".join(limits) for limits in broken(problem, found)])
    scale = np.array([k.span for k in knobs])
    explained = [optimality(m.point, m.answer, scale) for m in found.minima]
    data["kkt_residual"] = on_groups([e.residual for e in explained])
    valid = [1.0 if e.residual < UNEXPLAINED else np.nan for e in explained]  # multipliers explain nothing elsewhere
    prices = [-sign * e.multipliers * v for e, v in zip(explained, valid, strict=True)]
    pulls = [-sign * np.abs(e.bounds) * v for e, v in zip(explained, valid, strict=True)]
    data["slack"] = on_groups([m.answer[2] for m in found.minima], "constraint")
    data["shadow_price"] = on_groups(prices, "constraint")
    data["jump"] = on_groups(jumps(problem, found), "knob", units="1")
    data["pull"] = on_groups(pulls, "knob")
    if shares := problem.knobs.shares:
        apart = [[sum(abs(n[k.name] - (k.start or 0.0)) for k in ks) / 2 for ks in shares.values()] for n in named]
        data["moved"] = on_groups(apart, "split", units="1")
    steps = max(len(m.trace) for m in found.minima)
    traces = [np.pad(np.array(m.trace), (0, steps - len(m.trace)), mode="edge") for m in found.minima]
    data["trace"] = on_groups([problem.objective(t) for t in traces], "step")
    return data


def _evaluated(
    problem: Problem, found: Found, on_groups: Callable[..., xr.Variable]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs, whole counts and chosen labels of the designs that were found, of every workload."""
    data: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    outputs = problem.outputs(found.points, found.batch.group, found.batch.layout)
    for number, (part, (numbers, counts)) in enumerate(zip(problem.parts, outputs, strict=True)):
        prefix = f"{part.name}." if part.name else ""
        rows = part.rows(found.batch.group, found.batch.layout[:, number]).T
        for output, value in numbers.items():
            data[prefix + output] = on_groups(value, units=unit_of_quantity(part.study, output))
        for name, up in part.single.counts.items():
            exact = np.ceil(counts[name] - 1e-9) if up else np.floor(counts[name] * (1 + 1e-9))
            data.setdefault(name, on_groups(exact))
        for axis, of_axis in zip(part.plan.space.axes, rows, strict=True):
            if axis.name in part.chosen:
                labels[prefix + axis.name] = on_groups(axis.labels[of_axis].tolist())
    return data, labels
