"""Intervals about predictions: what the catalog leaves open, joined with the derivatives of an output.

An assumption is a value of an entry with a range. To first order it moves ln y by its elasticity times the logarithm of
what its range allows; ranges are the central 90 %, and those of constants that were calibrated together carry their
correlations. Variances of all assumptions, and of what records show beyond them, add up (JCGM 100:2008, equations 13
and 16). A range may reach further up than down: each end of an interval has a deviation of its own. In the ratio of two
predictions the assumptions that both share cancel as far as their elasticities agree. Where a derivative says nothing
of an end, the output is evaluated there: at both ends of a whole number's range, and where a range begins at zero.
Software that a study of training does not state is an assumption too: it reaches to what the same design takes on other
stacks (`assumed_software`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.catalog import Catalog, load_catalog
from perfgrid.engine.autodiff.parameters import parameters_of
from perfgrid.engine.autodiff.sensitivity import Sensitivity
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import resolve
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.replay import index_of
from perfgrid.engine.grid.space import Space
from perfgrid.engine.reductions.argmin import listed
from perfgrid.formulas.training.error import CENTRAL_90
from perfgrid.results.provenance import design_at, restore, workload_of
from perfgrid.results.schema import STUDY_ATTRIBUTE, stored
from perfgrid.study.entries import NATIVE, OWN, OWN_PREFIX, STATED, entries_at
from perfgrid.study.study import Study

from .assumed_software import SOFTWARE, STEP, other_stacks

SCATTER = "unexplained_error"  # of software: deviation of ln(predicted / measured) beyond all assumptions
EXPERTS = "experts"  # the quantity that is above zero for mixtures
EXPERT_SCATTER = "expert_error"  # at least so much for mixtures of experts
SHARED_SCATTER = "ranking_error"  # the same between designs of one stack and machine
SCALED_SCATTER = "scaling_error"  # the same between sizes of one design
MEMORY_SCATTER = "memory_error"  # of the memory of training steps, with all assumptions
MEMORY = ("memory_per_device", "allocator_memory", "memory_utilization")  # what deviates by it
MOMENTS = "memory_by_moment"  # what the memory of training steps follows from
STEPS = (STEP, "pass_time")  # of training and of serving: what these deviate about, with all that follows
SIZE = frozenset(("devices", "dp", "global_batch"))  # all that differs between these
ORDER = 10  # at most by this factor
LEAST = 1e-3  # of a value: ends of a range below this count as zero, which has no logarithm
Assumption = tuple[str, str, str]  # table, entry, quantity


@dataclass(frozen=True)
class Interval:
    """A prediction, the ends between which 90 of 100 measurements are expected, and what makes them."""

    value: float
    low: float
    high: float
    assumptions: tuple[Assumption, ...]
    shifts: np.ndarray  # [assumption, end] of ln y where an assumption lies at its low, at its high end
    correlations: np.ndarray  # [assumption, assumption]
    scatter: float  # deviation of ln y beyond the assumptions
    shared_scatter: float  # the same beside another design of the same stack
    scaled_scatter: float  # the same beside another size of the same design
    design: Mapping[str, Any]  # every quantity that the prediction reads, and every label

    def largest(self, count: int = 3) -> list[tuple[str, float]]:
        """The assumptions that move the prediction most, with half of the distance of ln y between their ends."""
        sizes = np.abs(self.shifts[:, 1] - self.shifts[:, 0]) / 2
        return [(".".join(self.assumptions[i]), float(sizes[i])) for i in np.argsort(-sizes)[:count]]


def intervals(
    what: Study | xr.Dataset,
    points: Sequence[tuple[int, ...]],
    output: str = "step_time",
    formulas: Iterable[Callable[..., Any]] = (),
) -> list[Interval]:
    """The intervals of an output at single points, given as the rows of every axis; all are evaluated together.

    ``formulas`` are the user's own with which a result was made. Of a result the ranges are those of the built-in
    catalog. What records show beyond the assumptions concerns steps:
    it joins outputs that follow from one, or from a pass of serving. The memory of a training step deviates as records
    of its kind of stack do, at least as its assumptions say; of others only the assumptions are known.
    Raises PerfgridError for an output without derivatives.
    """
    if not points:
        return []
    setting = _setting(what, formulas)
    catalog, space, count = setting.catalog, listed(setting.space, list(np.transpose(points))), len(points)
    entries = [setting.entries(index) for index in points]
    ranged = _ranged(catalog)
    read = resolve(setting.registry, (output,), space.names(), setting.choices, space.label_quantities()).leaves
    steps = _steps(setting, space, entries, {name: kind for name in read if (kind := ranged.get(_bare(name)))})
    every = _stepped(space, count, steps)
    plan = Plan(setting.registry, every, (output,), setting.choices, small_points=len(every.axes[0]), constraints=False)
    parameters = parameters_of(plan, [n for n in plan.graph.leaves if ranged.get(_bare(n)) == "number"])
    values, derivatives = Sensitivity(plan, (output,), parameters, True, None, "float64").derivatives()
    value = np.broadcast_to(np.ravel(values[output]), every.points)
    slopes = {p.quantity: np.ravel(slope) for p, slope in zip(parameters, derivatives[output], strict=True)}
    stepped: dict[str, np.ndarray] = {}
    for row, (name, i, side, _) in enumerate(steps, count):
        move = np.log(value[row] / value[i]) if value[i] and value[row] else 0.0  # zero has no relative range
        stepped.setdefault(name, np.full((count, 2), np.nan))[i, side] = move
    told = {*read, *space.label_quantities(), *({EXPERTS} & set(space.names()))}
    designs = _designs(space, told)  # a label with one value is no leaf, but is compared
    timed = any(name in plan.graph.nodes for name in STEPS)
    held = output in MEMORY and MOMENTS in plan.graph.nodes
    found = []
    given = {name: space.along(name) for name in dict.fromkeys((*slopes, *stepped))}
    for i, of_point in enumerate(entries):
        here = {name: np.broadcast_to(slope, every.points)[i] for name, slope in slopes.items()}
        shifts: dict[Assumption, tuple[float, float]] = {}
        for name in dict.fromkeys((*here, *stepped)):
            if (about := _range(setting, of_point, name, given[name][i])) is None:
                continue
            key, value_here, low, high = about
            ends = np.maximum([low, high], LEAST * value_here) / value_here
            moves = np.nan_to_num(here.get(name, 0.0)) * np.log(ends)
            if name in stepped:
                moves = np.where(np.isnan(stepped[name][i]), moves, stepped[name][i])
            if np.any(moves):  # a quantity may be stated under two names
                shifts[key] = tuple(np.add(shifts.get(key, (0.0, 0.0)), moves))
        names, ends = tuple(shifts), np.array(list(shifts.values())).reshape(-1, 2)
        correlations = _correlations(catalog, names)
        scatter, shared, scaled = (
            _scatter(catalog, space, of_point, name, i) if timed else 0.0
            for name in (SCATTER, SHARED_SCATTER, SCALED_SCATTER)
        )
        if timed and designs[i].get(EXPERTS):
            scatter = max(scatter, _scatter(catalog, space, of_point, EXPERT_SCATTER, i))
        if held:
            scatter = _beyond(_scatter(catalog, space, of_point, MEMORY_SCATTER, i), ends, correlations)
        at = float(value[i])
        limits = _ends(at, ends, correlations, scatter)
        found.append(Interval(at, *limits, names, ends, correlations, scatter, shared, scaled, designs[i]))
    if not setting.guessed:
        return found
    stacks = other_stacks(setting.registry, catalog, space, setting.choices, output, setting.stated)
    guess = ((SOFTWARE, of_point.get(SOFTWARE, ""), SOFTWARE) for of_point in entries)
    return [
        widened(known, name, np.fmin(low, known.value), np.fmax(high, known.value))
        for known, name, (low, high) in zip(found, guess, stacks, strict=True)
    ]


def has_interval(what: Study | xr.Dataset, output: str, formulas: Iterable[Callable[..., Any]] = ()) -> bool:
    """Whether records of training say how far an output may be off: its memory, or what the time of a step decides.

    Of serving no interval is known to hold (docs/accuracy.md). PerfgridError for an unknown quantity.
    """
    if workload_of(what) != "training":
        return False
    setting = _setting(what, formulas)
    labels = setting.space.label_quantities()
    nodes = resolve(setting.registry, (output,), setting.space.names(), setting.choices, labels).nodes
    found = nodes.get(output)
    known = STEP in nodes or (output in MEMORY and MOMENTS in nodes)
    return found is not None and known and not found.flags and found.constraint is None


def widened(known: Interval, assumption: Assumption, low: float, high: float) -> Interval:
    """An interval with one more assumption: where it lies at its ends, the prediction is ``low`` and ``high``.

    An interval about zero has no relative width and stays.
    """
    if not known.value:
        return known
    shifts = np.vstack([known.shifts, np.log([low / known.value, high / known.value])])
    correlations = np.eye(len(shifts))
    correlations[:-1, :-1] = known.correlations
    names = (*known.assumptions, assumption)
    below, above = _ends(known.value, shifts, correlations, known.scatter)
    return replace(known, low=below, high=above, assumptions=names, shifts=shifts, correlations=correlations)


def _ends(value: float, shifts: np.ndarray, correlations: np.ndarray, scatter: float) -> tuple[float, float]:
    """The ends of the interval about a prediction."""
    below, above = (float(deviation(shifts, correlations, side, scatter)) for side in (-1, 1))
    return value * float(np.exp(-CENTRAL_90 * below)), value * float(np.exp(CENTRAL_90 * above))


def interval(what: Study | xr.Dataset, at: Mapping[str, Any] | None = None, output: str = "step_time") -> Interval:
    """The interval of an output of one design; ``at`` names a label of every axis that has several.

    Raises PerfgridError for an unknown axis or label, an axis left open, or an output without derivatives.
    """
    if isinstance(what, Study):
        names = {a: what.label(a, label) for a, label in (at or {}).items()}
    else:
        what, names = design_at(what, at or {})
    return intervals(what, [index_of(_setting(what).space, names)], output)[0]


def deviation(shifts: np.ndarray, correlations: np.ndarray, side: int, scatter: float = 0.0) -> np.ndarray:
    """Standard deviation of ln y above (side 1) or below (-1) a prediction.

    ``shifts``: [..., assumption, end] of ln y; ``scatter``: the deviation of what no assumption explains.
    """
    further = np.maximum(side * shifts, 0.0).max(axis=-1, initial=0.0) * np.sign(shifts[..., 1] - shifts[..., 0])
    variance = np.einsum("...i,ij,...j->...", further, correlations, further) / CENTRAL_90**2
    return np.sqrt(np.maximum(variance, 0.0) + scatter**2)


def between(a: Interval, b: Interval, side: int) -> float:
    """Deviation of ln(a / b) above (side 1) or below (-1), from the assumptions that the two do not share."""
    same = {n for n in {*a.assumptions} & {*b.assumptions} if n[2] == SOFTWARE}  # one guess: both have the same stack
    names = tuple(dict.fromkeys(n for n in (*a.assumptions, *b.assumptions) if n not in same))
    rows = {name: i for i, name in enumerate(names)}
    shifts, correlations = np.zeros((len(names), 2)), np.eye(len(names))
    for sign, one in ((1, a), (-1, b)):
        held = [i for i, n in enumerate(one.assumptions) if n not in same]
        own = [rows[one.assumptions[i]] for i in held]
        shifts[own] += sign * one.shifts[held]
        correlations[np.ix_(own, own)] = one.correlations[np.ix_(held, held)]
    return float(deviation(shifts, correlations, side))


def differing(a: Interval, b: Interval) -> frozenset[str]:
    """The quantities behind the predictions in which two designs differ."""
    names = a.design.keys() | b.design.keys()
    return frozenset(n for n in names if a.design.get(n) != b.design.get(n))


def scaled(a: Interval, b: Interval) -> bool:
    """Whether two designs differ in nothing but their size, and in that by no more than an order of magnitude."""
    names = differing(a, b)
    sizes = ([x.design.get(name, 0.0) for x in (a, b)] for name in names & SIZE)
    return names <= SIZE and all(max(pair) <= ORDER * min(pair) for pair in sizes)


def tie_margin(a: Interval, b: Interval) -> float:
    """Relative difference of two predictions below which their order is within the model's error.

    Beyond the margin the order is right in 95 of 100 cases. Sizes of one design scatter less than other designs
    (docs/accuracy.md); a further difference never makes their scatter smaller.
    """
    near = scaled(a, b)
    own, other = (min(i.shared_scatter, i.scaled_scatter) if near else i.shared_scatter for i in (a, b))
    scatter = np.hypot(own, other)
    deviations = (np.hypot(between(a, b, side), scatter) for side in (-1, 1))
    return float(np.exp(CENTRAL_90 * max(deviations)) - 1)


# ---- where the assumptions come from --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Setting:
    """Designs with the catalog behind them."""

    catalog: Catalog
    registry: Registry
    space: Space
    choices: Mapping[str, str]
    stated: frozenset[str]
    implied: frozenset[str]  # what follows from what is stated
    defaults: Mapping[str, str]
    guessed: bool  # it trains, and nobody stated its software

    def entries(self, index: tuple[int, ...]) -> dict[str, str]:
        """The entry of every table at a point; a device names some of its own."""
        found = entries_at(self.space, index, self.catalog.tables, self.defaults)
        device = self.catalog.tables["device"].get(found.get("device", ""))
        own = {} if device is None else {table: str(device.values.get(name, "")) for table, name in OWN.items()}
        return found | {table: name for table, name in own.items() if found.get(table, NATIVE) == NATIVE}


def is_guessed(workload: str, tables: Collection[str]) -> bool:
    """Whether the software of a study of training is a guess: ``tables`` are those of which it states entries."""
    return workload == "training" and SOFTWARE not in tables


def space_of(what: Study | xr.Dataset) -> Space:
    """The design space of a study, or of the one that made a result."""
    return _setting(what).space


def _setting(what: Study | xr.Dataset, formulas: Iterable[Callable[..., Any]] = ()) -> _Setting:
    if isinstance(what, Study):
        stated = frozenset(what.stated)
        guessed = is_guessed(what.file.workload, what.tables)
        known = stated, frozenset(what.implied)
        return _Setting(what.catalog, what.registry, what.space, what.file.choices, *known, what.defaults, guessed)
    space, registry, choices = restore(what, formulas)
    origin = stored(what.attrs, STUDY_ATTRIBUTE)
    single = {table: next(iter(names)) for table, names in origin["sources"].items() if len(names) == 1}
    stated = frozenset((*origin["stated"], *origin["overrides"]))
    guessed = is_guessed(origin["workload"], origin.get("tables", (SOFTWARE,)))  # releases before this kept no tables
    implied = frozenset(origin.get("implied", ()))
    return _Setting(load_catalog(), registry, space, choices, stated, implied, single, guessed)


def _ranged(catalog: Catalog) -> dict[str, str]:
    """Single numbers and whole numbers for which some entry states a range, with their kind."""
    single = {v.name: v.kind for v in catalog.variables.values() if v.kind in ("number", "integer") and v.axis is None}
    entries = [entry for table in catalog.tables.values() for entry in table.values()]
    known = {q for entry in entries for q, d in entry.details.items() if (d.low, d.high) != (None, None)}
    return {name: kind for name, kind in single.items() if name in known}


@cache
def _bare(name: str) -> str:
    return name.removeprefix(STATED).removeprefix(OWN_PREFIX)


def _designs(space: Space, names: Iterable[str]) -> list[dict[str, Any]]:
    """What every listed point has of some quantities."""
    (axis,) = space.axes
    names = list(names)
    every = {name: np.asarray(space.constants[name]).tolist() for name in names if name not in axis.columns}
    own = {name: np.asarray(axis.columns[name]).tolist() for name in names if name in axis.columns}
    return [{n: own[n][i] if n in own else every[n] for n in names} for i in range(len(axis))]


def _scatter(catalog: Catalog, space: Space, entries: Mapping[str, str], name: str, row: int) -> float:
    """A deviation of the software at a point: as the study has it, else of the entry, else the glossary's default."""
    if name in space.names():
        return float(space.at(name, (row,)))
    entry = catalog.tables["software"].get(entries.get("software", ""))
    value = entry.values.get(name) if entry is not None else None
    return float(value) if isinstance(value, float) else catalog.variables[name].default_at()


def _beyond(whole: float, shifts: np.ndarray, correlations: np.ndarray) -> float:
    """What is left of a deviation beside that of the assumptions above a prediction; 0 where these explain more."""
    return float(np.sqrt(max(whole**2 - float(deviation(shifts, correlations, 1)) ** 2, 0.0)))


def _correlations(catalog: Catalog, names: Sequence[Assumption]) -> np.ndarray:
    """Correlations of assumptions as the catalog states them: between constants of one entry."""
    found, rows = np.eye(len(names)), {name: i for i, name in enumerate(names)}
    for (table, entry, quantity), i in rows.items():
        for other, value in catalog.tables[table][entry].details[quantity].correlation.items():
            k = rows.get((table, entry, other))
            if k is not None:
                found[i, k] = found[k, i] = value
    return found


def _range(
    setting: _Setting, entries: Mapping[str, str], name: str, used: float
) -> tuple[Assumption, float, float, float] | None:
    """The assumption behind a quantity at a point, its value and the ends of its range; None where there is none.

    A value that the study states is known, unless it is the catalog's; so is one that follows from what it states.
    """
    quantity = _bare(name)
    table = str(setting.catalog.variables[quantity].of)
    entry = setting.catalog.tables.get(table, {}).get(entries.get(table, ""))
    value, detail = (entry.values.get(quantity), entry.details.get(quantity)) if entry else (None, None)
    if entry is None or detail is None or not isinstance(value, float) or value <= 0:
        return None
    if quantity in setting.implied or (quantity in setting.stated and used != value):
        return None
    low, high = (value if end is None else end for end in (detail.low, detail.high))
    return (table, entry.name, quantity), value, low, high


def _steps(
    setting: _Setting, space: Space, entries: Sequence[Mapping[str, str]], kinds: Mapping[str, str]
) -> list[tuple[str, int, int, float]]:
    """Ends of ranges at which an output is evaluated: name, point, the end (0: low, 1: high), value there."""
    found = []
    for name, kind in kinds.items():
        for i, (of_point, used) in enumerate(zip(entries, space.along(name).tolist(), strict=True)):
            if (about := _range(setting, of_point, name, used)) is not None:
                far = (end for end in enumerate(about[2:]) if kind == "integer" or end[1] < LEAST * about[1])
                found += [(name, i, side, end) for side, end in far if end != used]
    return found


def _stepped(space: Space, count: int, steps: Sequence[tuple[str, int, int, float]]) -> Space:
    """The points, and behind them each step's point with that whole number moved."""
    points = [*range(count), *(i for _, i, _, _ in steps)]
    moved = {name: space.along(name, points).astype(float) for name in dict.fromkeys(name for name, *_ in steps)}
    for row, (name, _, _, end) in enumerate(steps, count):
        moved[name][row] = end
    every = listed(space, [np.array(points)])
    (axis,) = every.axes
    axis = replace(axis, columns={**axis.columns, **moved})
    return Space((axis,), {k: v for k, v in every.constants.items() if k not in moved})
