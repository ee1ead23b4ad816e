"""The numbers of a view: the best design at each of its places, or every design."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from math import prod
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.best import best
from perfgrid.analysis.best_design import FASTEST
from perfgrid.analysis.best_of_result import FORBIDDEN
from perfgrid.analysis.prediction_intervals import has_interval, space_of
from perfgrid.analysis.prediction_intervals import intervals as intervals_at
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.dataset import bare_variables, constraints_of, feasible
from perfgrid.engine.grid.replay import index_of
from perfgrid.formulas import INNER
from perfgrid.results.evaluate import evaluate
from perfgrid.study.file import CLUSTER_SIZE, Best, ties_of
from perfgrid.study.selection import reaching
from perfgrid.study.study import Study
from perfgrid.study.view import View

from .subject import FOUND, Subject

MOST_KEPT = 2**24  # values of a study up to which it is evaluated once for all places of a view
MOST_MARKS = 20_000
MOST_INTERVALS = 64  # designs whose intervals are computed


@dataclass(frozen=True)
class Row:
    """A design: the labels of its place, its own along all axes, its numbers (NaN where infeasible), and why."""

    place: Mapping[str, Any]
    design: Mapping[str, Any]
    values: Mapping[str, float]
    reasons: Mapping[str, str]  # of a quantity that is infeasible here
    fits: bool = True  # False: its numbers are right, but it is beyond a limit
    interval: tuple[float, float] | None = None  # of the objective


@dataclass(frozen=True)
class Table:
    """The rows of a view, what they are of, and how they were chosen."""

    subject: Subject  # narrowed
    rows: list[Row]
    objective: str = ""
    chosen: str = ""  # such as: best by least step_time along parallelism
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of outputs that are labels


@dataclass(frozen=True)
class Inside:
    """Inner axes of outputs in a view: those along which it has marks, and the labels of others."""

    placed: tuple[str, ...]
    at: Mapping[str, Any]

    def selected(self, found: xr.Dataset, wanted: Sequence[str]) -> xr.Dataset:
        """The dataset at the stated labels. PerfgridError for unknown ones, and for inner axes that nothing names."""
        designs = str(found.attrs.get("study_axes", "")).split()
        held = {
            str(d): q for q in wanted if q in found for d in found[q].dims if d in INNER.labels and d not in designs
        }
        for name in (*self.placed, *self.at):
            if name not in held:
                raise PerfgridError(f"the view names {name!r}, along which {', '.join(wanted)} has no numbers")
        for name, quantity in held.items():
            if name not in (*self.placed, *self.at):
                raise PerfgridError(f"{quantity} has a number for each {name}: name it in x, y, colour, facets or at")
        for name, label in self.at.items():
            known = found[name].values.tolist()
            for one in label if isinstance(label, list) else [label]:
                if one not in known:
                    raise PerfgridError(f"the view names no label of {name}: {one!r}{nearest(str(one), known)}")
        return found.sel({name: label for name, label in self.at.items()})


def choice_of(subject: Subject, view: View, open_axes: Sequence[str], shown: Sequence[str]) -> Best:
    """What is best in a view: as it says, or the study, or the step time. PerfgridError where nothing says so."""
    ends = [
        end if isinstance(end, str) or end is None else next(iter(end), None) for end in (view.minimize, view.maximize)
    ]
    if any(ends):
        return Best(over=list(open_axes), minimize=ends[0], maximize=ends[1])
    best = subject.objective
    if best is not None and subject.knows(best.minimize or best.maximize or ""):
        return Best(over=list(open_axes), minimize=best.minimize, maximize=best.maximize)
    if not open_axes:
        return Best(over=[], minimize=shown[0])  # every place is one design
    if subject.workload == "training" and subject.knows(FASTEST.minimize or ""):
        return Best(over=list(open_axes), minimize=FASTEST.minimize)
    raise PerfgridError(
        f"nothing says which design is best along {', '.join(open_axes)}: state minimize or maximize in the view, "
        "or [best] in the study, or name a label of each"
    )


def best_table(
    subject: Subject, view: View, placed: Sequence[str], shown: Sequence[str], intervals: bool = True
) -> Table:
    """The best design for each combination of labels of axes and coordinates, with the ``shown`` outputs.

    ``placed`` may name inner axes of outputs too (product, pass), and ``at`` of the view labels of them.
    """
    placed = list(dict.fromkeys(placed))
    inside = {n: label for n, label in view.at.items() if subject.inner(n)}
    inner = Inside(tuple(n for n in placed if subject.inner(n)), inside)
    placed = [n for n in placed if n not in inner.placed]
    found = subject.narrowed({n: label for n, label in view.at.items() if n not in inside}, placed)
    along = {found.coordinates[name][0] for name in placed if name in found.coordinates}
    open_axes = [n for n, labels in found.axes.items() if n not in placed and (len(labels) > 1 or n in along)]
    if view.over is not None:
        open_axes = [view.over] if isinstance(view.over, str) else list(view.over)
        if left := [n for n, labels in found.axes.items() if len(labels) > 1 and n not in (*open_axes, *placed)]:
            raise PerfgridError(f"the view names no label of {left[0]}: name it in x, colour, facets, over or at")
    open_axes = [n for n in open_axes if n in along or len(found.axes.get(n, (0, 0))) > 1]
    choice = choice_of(found, view, open_axes, shown)
    objective = choice.minimize or choice.maximize or ""
    wanted = list(dict.fromkeys((*shown, objective)))
    held = found
    if isinstance(found.what, Study):
        study = reaching(found.what, wanted)
        kept = list(dict.fromkeys((*wanted, *ties_of(study.file.best, objective).by)))
        study = replace(study, file=study.file.model_copy(update={"outputs": kept}))
        small = found.points * (len(wanted) + 1) <= MOST_KEPT
        held = Subject(evaluate(study) if small else study, subject.formulas)
    paces = intervals and found.points > 0 and has_interval(held.what, objective, subject.formulas)
    rows = list(islice(_rows(held, choice, placed, wanted, paces, inner), MOST_MARKS + 1))
    if len(rows) > MOST_MARKS:
        raise PerfgridError(f"more than {MOST_MARKS:,} marks: name labels in at")
    way = ""
    if any(len(found.axes[n]) > 1 for n in choice.over if n in found.axes):
        way = f"{'least' if choice.minimize else 'largest'} {objective}"
    return Table(found, rows, objective, way, _flags(held.what))


def _rows(
    held: Subject, choice: Best, placed: Sequence[str], wanted: Sequence[str], paces: bool, inner: Inside
) -> Iterator[Row]:
    """A row for each place."""
    objective = choice.minimize or choice.maximize or ""
    if isinstance(held.what, xr.Dataset) and FOUND not in held.what.coords and not choice.over:
        yield from _single_rows(inner.selected(held.what, wanted), placed, wanted, objective, paces)
        return
    beside = [name for name in placed if name in held.coordinates]
    labels = [np.unique(held.coordinates[name][1]).tolist() for name in beside]
    for combination in product(*labels):
        at = dict(zip(beside, combination, strict=True))
        rows: dict[str, np.ndarray] = {}
        for name, label in at.items():
            axis, values = held.coordinates[name]
            rows[axis] = np.intersect1d(rows.get(axis, np.arange(len(values))), np.flatnonzero(values == label))
        if any(len(kept) == 0 for kept in rows.values()):
            yield Row(at, {}, {}, {})  # no such design: no legal layout has both
            continue
        part = held.taking(rows) if rows else held
        over = [*choice.over, *([CLUSTER_SIZE] if CLUSTER_SIZE in held.coordinates else [])]
        if isinstance(part.what, xr.Dataset) and FOUND in part.what.coords:
            winners = part.what  # best designs already
        else:
            small = prod(len(v) for n, v in part.axes.items() if n not in choice.over) <= MOST_INTERVALS
            winners = best(part.what, over, choice.minimize, choice.maximize, intervals=paces and small)
        yield from (
            replace(row, place={**row.place, **at})
            for row in winner_rows(
                inner.selected(winners, wanted), placed, wanted, objective, held.reason, inner.placed
            )
        )


def _single_rows(
    what: xr.Dataset, placed: Sequence[str], wanted: Sequence[str], objective: str, paces: bool
) -> Iterator[Row]:
    """A row for each design of a result; beyond a limit its numbers stay."""
    dims = [str(d) for d in xr.broadcast(*(what[q] for q in wanted), feasible(what, of=list(wanted)))[0].dims]
    dims = list(dict.fromkeys([*dims, *(n for n in placed if n in what.dims)]))
    about = bare_variables(what)
    flags = {q: constraints_of(what, q) for q in wanted}
    names = {*wanted, *(c for own in flags.values() for c in own)} | {str(c) for c in what.coords}
    columns = {n: (what[n].dims, what[n].values) for n in names if set(what[n].dims) <= set(dims)}
    rows, axes = [], str(what.attrs.get("study_axes", "")).split()
    for place in np.ndindex(*(what.sizes[d] for d in dims)):
        index = dict(zip(dims, place, strict=True))
        row = {n: values[tuple(index[str(d)] for d in own)].item() for n, (own, values) in columns.items()}
        broken = {q: [c for c in own if not row[c]] for q, own in flags.items()}
        illegal = {q for q, own in broken.items() if any(about[c].attrs["constraint"] == "illegal" for c in own)}
        reasons = {q: "; ".join(str(about[c].attrs["reason"]) for c in own) for q, own in broken.items() if own}
        where = {d: row[d] for d in dims} | {n: row[n] for n in placed if n in row}
        values = {q: np.nan if q in illegal else float(row[q]) for q in wanted}
        rows.append(Row(where, {a: row[a] for a in (*axes, CLUSTER_SIZE) if a in row}, values, reasons, not reasons))
    if paces and len(rows) <= MOST_INTERVALS:
        space = space_of(what)
        some = [i for i, row in enumerate(rows) if np.isfinite(row.values[objective])]
        first = {axis.name: axis.labels.tolist()[0] for axis in space.axes}  # of axes that no output depends on
        designs = [first | {a: rows[i].design[a] for a in axes if a in rows[i].design} for i in some]
        for i, found in zip(some, intervals_at(what, [index_of(space, d) for d in designs], objective), strict=True):
            rows[i] = replace(rows[i], interval=(found.low, found.high))
    yield from rows


def winner_rows(
    winners: xr.Dataset,
    placed: Sequence[str],
    wanted: Sequence[str],
    objective: str,
    reason: Callable[[str], str],
    inner: Sequence[str] = (),
) -> Iterator[Row]:
    """The rows of a dataset of best designs, one per group and label of inner axes."""
    placed = [*placed, *inner]
    groups = [*winners["found"].dims, *(n for n in inner if n in winners.dims)]
    cells = {str(n): v for n, v in winners.variables.items() if set(v.dims) <= set(groups)}
    arrays = {name: v.values for name, v in cells.items()}
    about = bare_variables(winners)
    flags = {q: [c for c in constraints_of(winners, q) if c in arrays] for q in wanted if q in winners}
    ends = winners.get(f"{objective}_interval")
    axes = str(winners.attrs.get("study_axes", "")).split()
    for place in np.ndindex(*(winners.sizes[d] for d in groups)):
        index = dict(zip(groups, place, strict=True))
        row = {name: arrays[name][tuple(index[d] for d in v.dims)].item() for name, v in cells.items()}
        where = {str(d): row[str(d)] for d in groups if str(d) in placed or winners.sizes[d] > 1}
        if not row["found"]:
            by = str(row.get(FORBIDDEN[0], ""))
            yield Row(where, {}, {}, dict.fromkeys(wanted, (reason(by) if by else "") or "no feasible design"))
            continue
        reasons = {}
        for quantity, concerning in flags.items():
            if broken := [str(about[c].attrs["reason"]) for c in concerning if not row[c]]:
                reasons[quantity] = "; ".join(broken)
        values = {q: np.nan if q in reasons else float(row[q]) for q in wanted if q in row}
        design = {a: row[a] for a in (*axes, CLUSTER_SIZE) if a in row}
        interval = None
        if ends is not None and np.isfinite(ends.isel(index).values).all():
            low, high = ends.isel(index).values.tolist()
            interval = low, high
        yield Row(where, design, values, reasons, interval=interval)


def _flags(what: Study | xr.Dataset) -> dict[str, tuple[str, ...]]:
    """The words of outputs that are labels."""
    if isinstance(what, Study):
        return {}
    found = {n: str(v.attrs.get("flag_meanings", "")).split() for n, v in bare_variables(what).items()}
    return {n: tuple(w) for n, w in found.items() if w and "constraint" not in what[n].attrs}


def every_design(subject: Subject, view: View, names: Sequence[str], shown: Sequence[str]) -> Table:
    """Every legal design at the labels of a view; those beyond a limit have a reason and are not feasible."""
    found = subject.narrowed(view.at)
    what = found.what
    if found.points > MOST_MARKS:
        raise PerfgridError(
            f"a scatter shows at most {MOST_MARKS:,} designs, found {found.points:,}: name labels in at"
        )
    if isinstance(what, Study):
        study = reaching(what, shown)
        what = evaluate(replace(study, file=study.file.model_copy(update={"outputs": list(shown)})))
    legal = feasible(what, ("illegal",), list(shown))
    values = xr.broadcast(*(what[q] for q in shown), legal)
    dims = [str(d) for d in values[0].dims]
    kept = np.argwhere(values[-1].values)
    about, flags = bare_variables(what), constraints_of(what, list(shown))
    columns = {str(n): c for n, c in what.coords.items() if set(c.dims) <= set(dims)}
    columns |= {n: what[n] for n in flags}
    rows = []
    for place in kept:
        index = dict(zip(dims, place.tolist(), strict=True))
        row = {n: c.values[tuple(index[str(d)] for d in c.dims)].item() for n, c in columns.items()}
        broken = [str(about[n].attrs["reason"]) for n in flags if not row[n]]
        numbers = {q: float(v.values[tuple(place)]) for q, v in zip(shown, values, strict=False)}
        design = {n: row[n] for n in (*found.axes, *names) if n in row}
        rows.append(Row(design, design, numbers, dict.fromkeys(shown, "; ".join(broken)) if broken else {}, not broken))
    return Table(found, rows, words=_flags(what))
