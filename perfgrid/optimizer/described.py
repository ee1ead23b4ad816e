"""The designs that an optimisation found, as a dataset: values, labels, multipliers, what is broken, steps nearby."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.graph.namespace import value_of
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE, formula_hash, space_text
from perfgrid.results.provenance import stated_by
from perfgrid.results.schema import STUDY_ATTRIBUTE
from perfgrid.study.limits import KEPT, unit_of_quantity
from perfgrid.study.study import Study

from .batched_slsqp import optimality
from .found import Found
from .problem import Problem
from .quantile import quantile

UNEXPLAINED = 1e-2  # residual from which multipliers are NaN


def outputs(problem: Problem, points: np.ndarray, group: np.ndarray, layout: np.ndarray) -> list[tuple[Any, Any]]:
    """Numbers and counts before rounding of every part, exactly, at designs [designs, knobs] with their layouts.

    Two mappings from names to arrays [designs] for each part; a number is NaN where a constraint makes it illegal, and
    of samples the median.
    """
    values, found = problem.knobs.values(list(points.T)), []
    for number, part in enumerate(problem.parts):
        numbers, _, counts = part.at(values, group, layout[:, number], {}, 0.0)
        numbers, counts = ({n: value_of(v) for n, v in of.items()} for of in (numbers, counts))
        for name in part.numbers:
            legal = [numbers[c].astype(bool) for c in part.doubtful[name]]
            numbers[name] = np.where(reduce(np.logical_and, legal, True), numbers[name], np.nan)
        found.append(({n: quantile(numbers[n], 0.5) for n in part.numbers}, counts))
    return found


def broken_by(
    problem: Problem, points: np.ndarray, group: np.ndarray, layout: np.ndarray, bounds: np.ndarray
) -> list[list[str]]:
    """What each design breaks: limits, those that are missed most first, and constraints by their reason.

    ``bounds`` of limits: [designs, limits].
    """
    values: dict[str, Any] = problem.knobs.values(list(points.T))
    broken: list[list[tuple[float, str]]] = [[] for _ in points]  # how far it is missed, and what
    for number, part in enumerate(problem.parts):
        numbers, margins, _ = part.at(values, group, layout[:, number], {}, 0.0)
        gathered = part.gathered(part.rows(group, layout[:, number]))
        value = value_of(numbers[part.objective])
        for i in np.flatnonzero(~np.isfinite(value).all(axis=1)):
            broken[i].append((np.inf, part.labelled(f"{part.objective} is NaN there")))
        for limit in part.limits:
            bound = bounds[:, problem.limits.index(limit)]
            value = value_of(problem.held_to(limit, numbers[limit.quantity]))
            for i in np.flatnonzero(~np.isfinite(value)):
                broken[i].append((np.inf, part.labelled(f"{limit.quantity} is NaN there")))
            for i in np.flatnonzero(np.asarray(limit.slack(bound, value)) < -KEPT):
                missed = abs(value[i] - bound[i]) / max(abs(bound[i]), 1e-300)
                text = f"{limit.text.removeprefix(f'{part.name}.')} (missed by {missed:.1%})"
                broken[i].append((missed, part.labelled(text)))
        for flag in part.held:
            holds = value_of(margins[flag]) > -KEPT if flag in margins else _mostly(problem, gathered[flag])
            for i in np.flatnonzero(~np.broadcast_to(np.ravel(holds), len(points))):
                broken[i].append((0.0, part.labelled(f"{part.reason(flag)} [{flag}]")))
    return [[text for _, text in sorted(own, key=lambda pair: -pair[0])] for own in broken]


def _mostly(problem: Problem, flags: np.ndarray) -> np.ndarray:
    """Whether flags [designs, samples, ...] hold in as many samples as the quantile says."""
    return flags.reshape(len(flags), -1).mean(axis=1) > (problem.robust or 1.0) - 1e-9


def broken(problem: Problem, found: Found) -> list[list[str]]:
    """What each design that was found breaks, in words."""
    return broken_by(problem, found.points, found.batch.group, found.batch.layout, found.batch.bounds)


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
    if problem.jointly and found.by_label is not None and not points:
        data["by_label"] = _by_label(problem, found)
    values, labels = _evaluated(problem, found, on_groups)
    data |= {name: value for name, value in values.items() if name not in data}
    attributes: dict[str, Any] = {"study_axes": " ".join(groups)}
    for part in problem.parts:  # what `explain` needs
        prefix = f"{part.name}." if part.name else ""
        attributes[f"{prefix}{SPACE_ATTRIBUTE}"] = space_text(part.plan, part.study.space)
        attributes[f"{prefix}{STUDY_ATTRIBUTE}"] = stated_by(part.study)
        attributes[f"{prefix}formula_hash"] = formula_hash(part.plan)
    attributes |= {
        "title": study.file.title,
        "objective": f"{'maximize' if problem.maximize else 'minimize'} {problem.parts[0].objective}",
        "evaluations": problem.evaluations,
        "limits": [x.text for x in problem.limits],
        "quantile": problem.robust or 0.0,
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


def _by_label(problem: Problem, found: Found) -> xr.DataArray:
    """Objectives of the rough search by joint label, along axes ``tried_NAME``: ``NAME`` is the label chosen."""
    part = problem.parts[0]
    labels = {f"tried_{a.name}": a.labels for a in part.space.axes if a.name in problem.jointly}
    dims = (*part.groups, *(f"tried_{name}" for name in problem.jointly))
    assert found.by_label is not None
    values = found.by_label.reshape(*problem.group_sizes, *problem.label_sizes)
    return xr.DataArray(values, labels, dims, attrs={"units": unit_of_quantity(part.study, part.objective)})


def _evaluated(
    problem: Problem, found: Found, on_groups: Callable[..., xr.Variable]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs, whole counts and chosen labels of the designs that were found, of every workload."""
    data: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    found_outputs = outputs(problem, found.points, found.batch.group, found.batch.layout)
    for number, (part, (numbers, counts)) in enumerate(zip(problem.parts, found_outputs, strict=True)):
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
            elif axis.name in problem.jointly:
                labels[axis.name] = on_groups(axis.labels[of_axis].tolist())
    return data, labels
