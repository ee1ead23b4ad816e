"""Waterfalls: why one design is faster than another, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfgrid.analysis.compare import ROUNDING, Comparison, compare
from perfgrid.analysis.limiting import WORDS
from perfgrid.engine.errors import PerfgridError
from perfgrid.pictures.picture import Panel, Picture, Series
from perfgrid.study.view import View
from perfgrid.text.words import item_text, words

from .axes import category_axis, quantity_text, value_axis
from .marks import caption
from .steps import steps
from .subject import Subject
from .table import Table

REST = "other parts"
LONG = 20  # letters of a label that is not written beside its bar
SMALL = 2e-3  # of the longer time: changes below are put together


def waterfall(subject: Subject, view: View) -> Picture:
    """The times of designs ``a`` and ``b`` and what lies between, the largest change first; or steps along ``x``."""
    if view.x is not None:
        return steps(subject, view)
    if not (view.a or view.b):
        raise PerfgridError(
            f"view {view.name or view.kind}: a waterfall needs labels of two designs (a and b, or --a and --b), "
            "or an axis in x and an output in y"
        )
    found = compare(subject.what, view.a, view.b, view.at, subject.formulas)
    return waterfall_of(found, view, subject)


def waterfall_of(found: Comparison, view: View, subject: Subject | None = None) -> Picture:
    """The picture of a comparison."""
    of_a, of_b = found.work
    before, after = (time / work for time, work in zip(found.times, found.work, strict=True))
    steps = [(WORDS[n], y / of_b - x / of_a) for n, x, y in found.parts if abs(y / of_b - x / of_a) > ROUNDING * before]
    count = min(view.count, sum(abs(v) > SMALL * max(before, after) for _, v in steps))
    kept, rest = steps[:count], sum(v for _, v in steps[count:])
    kept += [(REST, rest)] if abs(rest) > ROUNDING * before else []
    a, b = (_different(own, other) for own, other in ((found.a, found.b), (found.b, found.a)))
    names = [_named("A", a), *(name for name, _ in kept), _named("B", b)]
    axis = value_axis(found.quantity, "s", [before, after], view.units, "linear")
    if found.per_token:
        axis = value_axis(found.quantity, "s", [before, after], view.units, "linear", "time per token")
    bases, ends, at = [0.0], [before], before
    for _, change in kept:
        bases, ends, at = [*bases, at], [*ends, at + change], at + change
    bases, ends = [*bases, 0.0], [*ends, after]
    texts = [quantity_text(before, "s"), *(_signed(v) for _, v in kept), quantity_text(after, "s")]
    last = len(names) - 1
    kinds = {"total": [0, last], "longer": [i + 1 for i, (_, v) in enumerate(kept) if v > 0]}
    kinds["shorter"] = [i + 1 for i, (_, v) in enumerate(kept) if v <= 0]
    series = tuple(
        Series(
            kind,
            "bars",
            tuple(ends[i] / axis.size for i in rows),
            tuple(float(last - i) for i in rows),
            tuple(bases[i] / axis.size for i in rows),
            labels=tuple(f"{names[i]} {texts[i]}" for i in rows),
            texts=tuple(texts[i] for i in rows),
            **_ends(found, rows, last, axis.size),
        )
        for kind, rows in kinds.items()
        if rows
    )
    lines = [
        "; ".join(f"{name}: {_text(own)}" for name, own in (("A", a), ("B", b))) + ".",
        f"B takes {1 / found.speedup:.3g} times as long as A.",
    ]
    if found.tied:
        lines[1] += " A tie: the difference is within the error of the model."
    told = caption(Table(subject, []), *lines) if subject is not None else tuple(lines)
    panel = Panel(axis, category_axis("", names[::-1]), series)
    return Picture(view.name, view.kind, view.title, (panel,), view.see, told, "time of B against A")


def _ends(found: Comparison, rows: list[int], last: int, size: float) -> dict[str, Any]:
    """The intervals of both totals, of steps."""
    if not found.intervals or rows != [0, last]:
        return {}
    ends = [(i.low / w / size, i.high / w / size) for i, w in zip(found.intervals, found.work, strict=True)]
    return {"low": tuple(e[0] for e in ends), "high": tuple(e[1] for e in ends)}


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + quantity_text(value, "s")


def _different(own: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in own.items() if other.get(n) != v}


def _text(labels: Mapping[str, Any]) -> str:
    return ", ".join(f"{words(n)} {item_text(v)}" for n, v in labels.items())


def _named(name: str, labels: Mapping[str, Any]) -> str:
    """A design with the first of its labels that the other one has not, with a name before a number."""
    first = next((item_text(v) for v in sorted(labels.values(), key=lambda v: not isinstance(v, str))), "")
    return f"{name}: {first}" if 0 < len(first) <= LONG else name
