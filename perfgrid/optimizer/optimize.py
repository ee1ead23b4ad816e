"""The best design over continuous quantities, together with every discrete choice; Pareto fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.study.file import Optimize
from perfgrid.study.limits import KEPT, OPEN, limits, unit_of_quantity
from perfgrid.study.selection import reaching
from perfgrid.study.study import Study, expect_study, workloads

from .described import broken, described, outputs
from .knobs import Knobs, once, refuse_contradictions
from .loosened import loosened
from .part import TOGETHER
from .problem import Problem
from .sampled import as_stated, in_common
from .search import best_found

MOST_POINTS = 10_000  # of a Pareto front


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
    choose_jointly: Sequence[str] | str | None = None,
    quantile: float | None = None,
    loosen: Sequence[float] = (),
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
    choose_jointly
        Axes along which the best label is taken that all workloads share, such as the memory of the device.
    quantile
        A share of the axis ``sample``: the quantile of the objective over the samples is optimised, and every limit and
        constraint is kept in this share of the samples. Layouts and labels are chosen before estimates are known.
    loosen
        Shares, such as 0.01, by which each limit is loosened alone (a negative one tightens), and the design improved
        again with its labels, layouts and whole counts.

    Returns
    -------
    xarray.Dataset
        On the axes that are not chosen along, and ``point`` of a front: ``objective``, every free quantity and output
        by name (``workload.output``), and the labels chosen. Along ``constraint``: ``slack`` and ``shadow_price``, the
        elasticity of the objective to loosening a limit; along ``by`` too ``loosened``, the relative change found by
        searching again. Along ``knob``: ``pull``, the same of the bound at which a quantity ends, and ``jump``, the
        part by which the exact objective gets worse, beyond its slope, when that quantity moves by 1 %. ``by_label``:
        objectives of the first, rough search by joint label. ``feasible``, and what an infeasible design ``breaks``.
        ``kkt_residual``: above 0.01 the search ended at a step of the model, and prices and pulls are NaN. ``trace``
        along ``step``. Attributes: the free quantities ``without_effect``, and the model ``evaluations``, each slope
        counted as one. Outputs that a constraint makes illegal are NaN; over samples they are medians.

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
        other = optimize(study, pareto, None, over, subject_to, choose, starts, seed, None, 8, choose_jointly, quantile)
        problem = problem_of(study, minimize, maximize, over, subject_to, choose, pareto, choose_jointly, quantile)
        return _front(study, problem, other["objective"].values, points, starts, seed)
    problem = problem_of(study, minimize, maximize, over, subject_to, choose, None, choose_jointly, quantile)
    found = best_found(problem, np.arange(problem.optima), np.tile(problem.bounds, (problem.optima, 1)), starts, seed)
    if (found.broken > KEPT).all():
        limits = "; ".join(broken(problem, found)[np.argmin(found.broken)])
        raise PerfgridError(
            f"{study.name}: no design within the bounds keeps every limit; the nearest one breaks {limits}"
        )
    result = described(study, problem, found)
    return result if not len(loosen) else result.assign(loosened=loosened(problem, found, loosen))


def _front(study: Study, problem: Problem, other: np.ndarray, points: int, starts: int, seed: int) -> xr.Dataset:
    """The Pareto front of a problem whose last limit is open, from the best values of the other output."""
    if not 1 <= points <= MOST_POINTS:
        raise PerfgridError(f"a Pareto front has at least one point and at most {MOST_POINTS:,}, found {points!r}")
    against, groups = problem.limits[-1].quantity, np.arange(problem.optima)
    free = best_found(problem, groups, np.tile(problem.bounds, (problem.optima, 1)), starts, seed)
    values = outputs(problem, free.points, free.batch.group, free.batch.layout)
    ends = np.ravel(other), np.sum([numbers[against] for numbers, _ in values], axis=0)
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
    choose_jointly: Sequence[str] | str | None = None,
    quantile: float | None = None,
    together: int = TOGETHER,
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
    jointly = stated.choose_jointly if choose_jointly is None else choose_jointly
    jointly = [jointly] if isinstance(jointly, str) else list(jointly or ())
    quantile = stated.quantile if quantile is None else quantile
    studies = workloads(study)
    _check_axes(study.name, {name: one for name, (one, _) in studies.items()}, choose, jointly)
    texts = [subject_to] if isinstance(subject_to, str) else list(subject_to)
    held = limits({name: one for name, (one, _) in studies.items()}, texts, against)
    asked = {name: [minimize or maximize or "", *(x.quantity for x in held if x.workload == name)] for name in studies}
    studies = {name: (reaching(one, asked[name]), weight) for name, (one, weight) in studies.items()}
    if quantile is not None:
        common = in_common(study.name, {name: one for name, (one, _) in studies.items()}, quantile)
        studies = {name: (common[name], weight) for name, (_, weight) in studies.items()}
    knobs = Knobs(next(iter(studies.values()))[0], over)
    held = once(held, knobs)
    refuse_contradictions(study.name, knobs, held)
    objective = minimize or maximize or ""
    asked_for = knobs, objective, maximize is not None, held, choose, jointly
    problem = Problem(studies, *asked_for, quantile, together)
    if quantile is not None:
        stated_studies = {name: (as_stated(one), weight) for name, (one, weight) in studies.items()}
        with suppress(PerfgridError):  # estimates as they are stated may leave no design
            problem.stated = Problem(stated_studies, *asked_for, None, together)
    return problem


def _check_axes(name: str, studies: Mapping[str, Study], choose: Sequence[str], jointly: Sequence[str]) -> None:
    """PerfgridError for unknown axes, and for joint ones that not all workloads have with the same labels."""
    axes = {key: {a.name: a.labels.tolist() for a in one.space.axes} for key, one in studies.items()}
    known = {axis for own in axes.values() for axis in own}
    for key, names in (("choose", choose), ("choose_jointly", jointly)):
        for axis in names:
            if axis not in known:
                raise PerfgridError(f"{name}: {key} names {axis!r}, which is no axis of it{nearest(axis, known)}")
    if both := sorted(set(choose) & set(jointly)):
        raise PerfgridError(f"{name}: {both[0]!r} stands in choose and in choose_jointly")
    for axis in jointly:
        if any(own.get(axis) != next(iter(axes.values())).get(axis) for own in axes.values()):
            raise PerfgridError(f"{name}: choose_jointly names {axis!r}, whose labels differ between the workloads")
