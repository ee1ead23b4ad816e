"""Breakdowns: what adds up to a time, a cost, an energy or a memory, of the best design at each label."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfgrid.analysis.explanation.story import Part, Replayed, story_of
from perfgrid.analysis.limiting import WORDS
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.replay import index_of, replay_point
from perfgrid.formulas import BREAKDOWN
from perfgrid.formulas.serving.shares import QUANTITIES, request_parts
from perfgrid.pictures.picture import Axis, Panel, Picture, Rule, Series
from perfgrid.results.provenance import designs
from perfgrid.study.file import CLUSTER_SIZE
from perfgrid.study.view import View
from perfgrid.text.words import words

from .axes import category_axis, quantity_text, value_axis
from .lines import ACROSS, lying, piled
from .marks import caption, check_outputs, check_place, labels_of, place_of, tooltip
from .subject import Subject
from .table import Row, Table, best_table

MEMORY, CAPACITY = "memory_per_device", "hbm_capacity"
REST = "other parts"
SMALL = 1e-4  # share of a whole below which a part is left out
VISIBLE = 5e-3  # share of all bars from which a part has a colour of its own
MOST_DESIGNS = 24
MOST_STACKED = 7  # named parts of a bar: as many as have a colour of their own
_STAGE = re.compile(r"^(first|middle|last)_stage_|_by_stage$")  # a part is the same whichever stage is the fullest


def breakdown(subject: Subject, view: View) -> Picture:
    """The parts of the outputs ``y``, a panel each: stacked at each label of x, or one bar each of a single design."""
    return _picture(subject, view, check_outputs(subject, view, view.shown or _main(subject)), 1)


def memory(subject: Subject, view: View) -> Picture:
    """The parts of the memory of a device against its capacity, at each label of x."""
    if not subject.knows(MEMORY):
        raise PerfgridError(f"view {view.name or view.kind}: this study has no {MEMORY}")
    return _picture(subject, view, [MEMORY], 2)


def _main(subject: Subject) -> list[str]:
    best = subject.objective
    named = best and (best.minimize or best.maximize)
    return [q for q in ("step_time", "request_latency") if q in subject.outputs][:1] or [named or subject.outputs[0]]


def _picture(subject: Subject, view: View, outputs: Sequence[str], depth: int) -> Picture:
    places = check_place(subject, view, view.x)
    table = best_table(subject, view, places, [*outputs], intervals=False)
    if len(table.rows) > MOST_DESIGNS:
        raise PerfgridError(
            f"view {view.name or view.kind}: a breakdown shows {MOST_DESIGNS} designs, found {len(table.rows)}: "
            "name labels in at, or axes to choose along in over"
        )
    panels = []
    for output in outputs:
        found = {i: _explained(subject, row, output, depth) for i, row in enumerate(table.rows) if row.design}
        found = {i: parts for i, parts in found.items() if parts[0]}
        if not found:
            raise PerfgridError(f"view {view.name or view.kind}: no design is feasible")
        maker = _stacked if view.x is not None else _single
        panels.append(maker(table, view, output, found))
    chosen = caption(table, crosses=True)
    return Picture(view.name, view.kind, view.title, tuple(panels), view.see, chosen, "part" if view.x else "")


def _explained(subject: Subject, row: Row, output: str, depth: int) -> tuple[dict[str, float], float]:
    """The parts of an output of a design, and the capacity of the memory of its device (NaN where none is known)."""
    labels = {n: label for n, label in row.design.items() if n != CLUSTER_SIZE or n in subject.axes}
    space, registry, choices, at = designs(subject.what, labels, subject.formulas)
    known = {"step_time": BREAKDOWN, "request_latency": QUANTITIES}.get(output, ())
    known = known if set(known) <= set(registry.names()) else ()
    graph, values = replay_point(registry, space, (output, *known), index_of(space, at), choices)
    capacity = float(np.ravel(values.get(CAPACITY, np.nan))[0])
    if known and output == "step_time":
        return {WORDS[n]: float(np.squeeze(values[n])) for n in BREAKDOWN}, capacity
    if known:
        parts = {WORDS[n]: value for n, value in request_parts(values).items()}
        return parts | {WORDS["waiting_time"]: float(np.squeeze(values[output])) - sum(parts.values())}, capacity
    units = {n: (v.unit, v.meaning, "") for n, v in subject.variables.items()}
    story = story_of(Replayed(graph, values, units, registry.inner), output, depth + 3)
    return _summed(_leaves(story, depth)), capacity


def _summed(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The sum of parts of each name."""
    found: dict[str, float] = {}
    for name, value in parts:
        found[name] = found.get(name, 0.0) + value
    return found


def _leaves(part: Part, depth: int) -> Iterator[tuple[str, float]]:
    """The parts so many levels down; a part of one part counts for no level."""
    parts = part.parts
    if not parts or depth == 0:
        yield words(_STAGE.sub("", part.name)), float(part.value)
        return
    for below in parts:
        yield from _leaves(below, depth - (len(parts) > 1))
    if part.folded.count:
        yield REST, float(part.folded.value)


def _stacked(table: Table, view: View, output: str, found: dict[int, tuple[dict[str, float], float]]) -> Panel:
    x = view.x or ""
    labels = labels_of(table, x)
    total = _summed((name, abs(value)) for parts, _ in found.values() for name, value in parts.items())
    whole, order = sum(total.values()), sorted(total, key=lambda name: -total[name])
    named = [n for n in order if total[n] > VISIBLE * whole and n != REST][: min(view.count, MOST_STACKED)]
    place = {label: i for i, label in enumerate(labels)}
    unit = table.subject.unit(output)
    sums = [sum(parts.values()) for parts, _ in found.values()]
    axis = value_axis(output, unit, sums, view.units, view.y_scale)
    rows = [(place[place_of(table.rows[i], table, x)], parts, table.rows[i]) for i, (parts, _) in found.items()]
    series = []
    for name in [*named, REST]:
        values = [
            parts.get(name, 0.0) if name != REST else sum(v for n, v in parts.items() if n not in named)
            for _, parts, _ in rows
        ]
        if name == REST and not any(abs(v) > SMALL * whole for v in values):
            continue
        tips = tuple(
            f"{name} {quantity_text(v, unit)} of {tooltip(row, table, [output])}"
            for v, (_, _, row) in zip(values, rows, strict=True)
        )
        at = tuple(float(p) for p, *_ in rows)
        series.append(Series(name, "bars", at, tuple(v / axis.size for v in values), labels=tips))
    names = category_axis(x, [table.subject.text(x, label) for label in labels])
    pile = list(piled(series))
    empty = [(float(place[place_of(row, table, x)]), {}, row) for row in table.rows if not row.design and row.reasons]
    if any(row.reasons.get(output) for *_, row in (*rows, *empty)):
        pile[-1] = _with_reasons(pile[-1], [*rows, *empty], table, output)
    panel = Panel(names, axis, tuple(pile))
    capacities = {place[place_of(table.rows[i], table, x)]: c / axis.size for i, (_, c) in found.items()}
    panel = _with_capacity(panel, capacities, output, unit, axis)
    if sum(map(len, names.categories)) > ACROSS:
        panel = lying(panel)
    return panel


def _with_reasons(top: Series, rows: Sequence[tuple[float, Any, Row]], table: Table, output: str) -> Series:
    """The uppermost bars with the reasons of infeasible designs, and of places that have none."""
    empty = rows[len(top.x) :]
    nothing = (math.nan,) * len(empty)
    return replace(
        top,
        x=(*top.x, *(at for at, *_ in empty)),
        y=(*top.y, *nothing),
        base=(*top.base, *nothing),
        labels=(*top.labels, *(tooltip(row, table, [output]) for *_, row in empty)),
        reasons=tuple(row.reasons.get(output, "") for *_, row in rows),
    )


def _with_capacity(panel: Panel, capacities: dict[int, float], output: str, unit: str, axis: Axis) -> Panel:
    """The capacity of the memory: a rule where all are the same, else a mark for each bar."""
    if output != MEMORY or not all(np.isfinite(list(capacities.values()))):
        return panel
    texts = {at: quantity_text(c * axis.size, unit) for at, c in capacities.items()}
    if len(set(capacities.values())) == 1:
        value = next(iter(capacities.values()))
        rule = Rule(f"capacity {next(iter(texts.values()))}", "y", value)
        return Panel(panel.x, panel.y, panel.series, None, (rule,), panel.title)
    at, up = (tuple(map(float, found)) for found in (capacities.keys(), capacities.values()))
    marks = Series("capacity", "limits", at, up, width=0.95, labels=tuple(f"capacity {texts[i]}" for i in capacities))
    return Panel(panel.x, panel.y, (*panel.series, marks), None, (), panel.title)


def _single(table: Table, view: View, output: str, found: dict[int, tuple[dict[str, float], float]]) -> Panel:
    """A bar for each part of one design, the largest on top."""
    ((row, (parts, _)),) = ((table.rows[i], one) for i, one in found.items())
    unit, whole = table.subject.unit(output), sum(map(abs, parts.values()))
    ordered = sorted((n for n, v in parts.items() if abs(v) > SMALL * whole), key=lambda n: -abs(parts[n]))
    kept, rest = ordered[: view.count], sum(parts[n] for n in ordered[view.count :])
    values = [*(parts[n] for n in kept), *([rest] if rest else [])]
    names = [*kept, *([REST] if rest else [])]
    axis = value_axis(output, unit, values, view.units, view.y_scale)
    last = len(names) - 1
    shares: list[Any] = [quantity_text(v, unit) + f", {v / whole:.0%}" for v in values]
    design = tooltip(row, table, [output])
    one = Series(
        words(output),
        "bars",
        tuple(v / axis.size for v in values),
        tuple(float(last - i) for i in range(len(names))),
        labels=tuple(f"{n} {s} of {design}" for n, s in zip(names, shares, strict=True)),
        texts=tuple(shares),
    )
    total = f"{words(output)} {quantity_text(row.values.get(output, np.nan), unit)}"
    return Panel(axis, category_axis("", list(reversed(names))), (one,), title=total)
