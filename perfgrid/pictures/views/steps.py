"""Waterfalls along the labels of an axis: how an output grows or falls from each label to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfgrid.catalog import load_catalog
from perfgrid.catalog.units import in_unit
from perfgrid.engine.errors import PerfgridError
from perfgrid.pictures.picture import Axis, Panel, Picture, Series
from perfgrid.study.study import Study
from perfgrid.study.view import View
from perfgrid.text.words import words

from .axes import category_axis, quantity_text, value_axis
from .lines import facet_title
from .marks import caption, check_outputs, check_place, labels_of, place_of, tooltip
from .subject import Subject, short
from .table import Table, best_table

WHOLE = "all steps"
KINDS = ("total", "increase", "decrease")
BELOW = 0.25  # of the range of a logarithmic axis: how far totals reach below the least number


@dataclass(frozen=True)
class Chain:
    """The numbers of an output at labels of an axis, their designs, and why other labels have no number."""

    title: str
    values: Mapping[Any, float]
    designs: Mapping[Any, str]
    reasons: Mapping[Any, str]


def steps(subject: Subject, view: View) -> Picture:
    """Output ``y`` from label to label of ``x``: factors on a logarithmic axis, differences on a linear one.

    A panel for each label of the facets and for each published chain. A label without a number is passed over: the
    next bar starts where the last one ended.
    """
    place = f"view {view.name or view.kind}"
    places = check_place(subject, view, view.x, view.facets)
    if len(view.shown) != 1 or view.colour is not None or view.a or view.b:
        raise PerfgridError(f"{place}: a waterfall along x shows one output in y, with facets, without colour, a and b")
    (output,) = check_outputs(subject, view, view.shown)
    table = best_table(subject, view, places, [output], intervals=False)
    labels = labels_of(table, places[0])
    chains = [*_computed(table, view, output, labels), *_published(table, view, output, labels)]
    numbers = [v for chain in chains for v in chain.values.values()]
    if not numbers:
        raise PerfgridError(f"{place}: no design is feasible")
    log = view.y_scale == "log" or (view.y_scale is None and min(numbers) > 0)
    if log and min(numbers) <= 0:
        raise PerfgridError(f"{place}: numbers of zero or less have no logarithmic axis: state y_scale = 'linear'")
    axis = value_axis(output, table.subject.unit(output), numbers, view.units, "log" if log else "linear")
    floor = min(numbers) * (min(numbers) / max(numbers)) ** BELOW if log else 0.0
    names = [table.subject.text(places[0], label) for label in labels]
    panels = [_panel(table, chain, output, names, labels, axis, floor) for chain in chains]
    told = f"Each bar is the {'factor' if log else 'difference'} to the bar above it, the last one the whole."
    lines = caption(table, told, *_sources(subject, view), crosses=True)
    return Picture(view.name, view.kind, view.title, tuple(panels), view.see, lines, "change")


def _computed(table: Table, view: View, output: str, labels: Sequence[Any]) -> Iterator[Chain]:
    """A chain for each label of the facets: the best design at each label of the axis."""
    for facet in labels_of(table, view.facets):
        rows = [r for r in table.rows if view.facets is None or place_of(r, table, view.facets) == facet]
        at = {place_of(row, table, view.x or ""): row for row in rows}
        known = {n: at[n] for n in labels if n in at and np.isfinite(at[n].values.get(output, np.nan))}
        title = "" if facet is None else facet_title(table, view.facets or "", facet)
        reasons = {n: at[n].reasons.get(output, "no design") for n in labels if n in at and n not in known}
        values = {n: row.values[output] for n, row in known.items()}
        yield Chain(title, values, {n: tooltip(row, table, [output]) for n, row in known.items()}, reasons)


def _published(table: Table, view: View, output: str, labels: Sequence[Any]) -> Iterator[Chain]:
    """The chains that a view states. PerfgridError for a number in another unit, and for an unknown label."""
    unit = table.subject.unit(output)
    for one in view.published:
        known = {str(label): label for label in labels}
        try:
            stated = {n: in_unit(v, unit) if isinstance(v, str) else float(v) for n, v in one.values.items()}
        except ValueError as error:
            raise PerfgridError(f"view {view.name or view.kind}, published {one.name!r}: {error}") from None
        values = {known[n]: stated[n] for n in known if n in stated}
        designs = {n: f"{one.name}, {n}, {words(output)} {quantity_text(v, unit)}" for n, v in values.items()}
        yield Chain(one.name, values, designs, {})


def _sources(subject: Subject, view: View) -> Iterator[str]:
    """Where published numbers come from."""
    cited = (subject.what.catalog if isinstance(subject.what, Study) else load_catalog()).references
    for one in view.published:
        keys = [one.source] if isinstance(one.source, str) else one.source
        yield f"{one.name}: {'; '.join(short(cited.get(key, key)) for key in keys)}."


def _panel(
    table: Table, chain: Chain, output: str, names: Sequence[str], labels: Sequence[Any], axis: Axis, floor: float
) -> Panel:
    """One chain: a bar for each label that has a number, from that of the last one, and one for the whole."""
    unit, last, log = table.subject.unit(output), len(labels), axis.scale == "log"
    bars: dict[str, list[tuple[float, float, float, str, str]]] = {kind: [] for kind in KINDS}  # place, base, end, ...
    first = before = None
    for at, label in enumerate(labels):
        value = chain.values.get(label)
        if value is None:
            continue
        if first is None or before is None:
            first, kind, base, text = value, "total", floor, quantity_text(value, unit)
        else:
            kind, base = "increase" if value >= before else "decrease", before
            text = _change(value, before, unit, log)
        bars[kind].append((last - at, base, value, text, f"{text}: {chain.designs[label]}"))
        before = value
    if first is not None and before is not None:
        text = f"{quantity_text(before, unit)}, {_change(before, first, unit, log)}"
        bars["total"].append((0.0, floor, before, text, f"{WHOLE}: {text}"))
    series = [
        Series(
            kind,
            "bars",
            tuple(end / axis.size for _, _, end, *_ in found),
            tuple(float(at) for at, *_ in found),
            tuple(base / axis.size for _, base, *_ in found),
            labels=tuple(label for *_, label in found),
            texts=tuple(text for *_, text, _ in found),
        )
        for kind, found in bars.items()
        if found
    ]
    lacking = [(float(last - at), chain.reasons[n]) for at, n in enumerate(labels) if chain.reasons.get(n)]
    if lacking and series:
        series.append(_infeasible(lacking))
    return Panel(axis, category_axis("", [*names, WHOLE][::-1]), tuple(series), title=chain.title)


def _change(value: float, before: float, unit: str, log: bool) -> str:
    if log:
        return f"\u00d7{value / before:.3g}"
    return ("+" if value > before else "") + quantity_text(value - before, unit)


def _infeasible(lacking: Sequence[tuple[float, str]]) -> Series:
    """Crosses where no design is feasible."""
    nothing = (np.nan,) * len(lacking)
    places, reasons = zip(*lacking, strict=True)
    return Series("total", "bars", nothing, places, nothing, labels=reasons, reasons=tuple(reasons))
