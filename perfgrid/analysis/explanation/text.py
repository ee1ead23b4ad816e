"""The parts of a number as lines of text and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from perfgrid.engine.graph.inner_axes import InnerAxes
from perfgrid.text.numbers import column, number, whole_number
from perfgrid.text.values import quantity_value

from .derivation import Derivation, Explanation, Violated
from .story import Part
from .terms import Factor

WIDTH = 120  # of a line
CONVERSIONS = {"s/h": 3600.0}  # units in which a constant with this number is 1
NAME_WIDTH, LEAST_NAME = 44, 36  # of the first column, and in a narrow terminal
CLAUSE = re.compile(r"[;:,] | \(")  # begins one
_OPEN = "a an and as at because by for from if in is of on or per so than that the to where which while with without"
OPEN = frozenset(_OPEN.split())  # a phrase goes on behind these
LEAST_WORDS = 12  # characters left in a line for a meaning
STRONGEST = 8  # elasticities in the last line
MOMENT, BY_MOMENT = "memory_moment", "_by_moment"  # inner axis of the moments of a step, and names along it


def most_lines(depth: int) -> int:
    """How many parts are printed at a depth: a screen at 2, two at 3."""
    return 20 if depth < 3 else 54 + 40 * (depth - 3)


def story_lines(
    found: Explanation, inner: InnerAxes, depth: int, sources: bool = False, width: int = WIDTH
) -> Iterator[str]:
    """What adds up to a number, ``depth`` levels down, between its point and its elasticities."""
    yield from point_lines(found.point, found.violated, inner)
    if found.illegal:
        yield f"{found.quantity} has no meaning at this point"
        return
    rows = list(story_rows(found, inner, depth, sources, min(NAME_WIDTH, max(LEAST_NAME, width * 3 // 8))))
    names, values = max(len(r[0]) for r in rows), max(len(r[1]) for r in rows)
    for name, value, share, words in rows:
        line = f"{name:{names}}  {value:>{values}}  {share:>5}  "
        yield (line + (words if sources else _shortened(words, width - len(line)))).rstrip()
    yield from moment_lines(found, inner)
    if line := interval_line(found):
        yield line
    if line := elasticity_line(found.elasticities(), width):
        yield line


def moment_lines(found: Explanation, inner: InnerAxes) -> Iterator[str]:
    """A table of the moments of a step that a number is the largest of: memory at each."""
    node = found.replayed.graph.nodes.get(found.quantity)
    name = next((name for name in node.arguments if name.endswith(BY_MOMENT)), "") if node else ""
    if not name:
        return
    values = [float(value) for value in np.ravel(found.replayed.values[name])]
    unit, texts = column(values, found.about(name)[0])
    width = max(map(len, inner.labels[MOMENT]))
    yield f"{name}:"
    for label, text, value in zip(inner.labels[MOMENT], texts, values, strict=True):
        yield f"  {label:{width}}  {text} {unit}{'  largest' * (value == max(values))}"


def interval_line(found: Explanation) -> str:
    """Where measurements of the number are expected; empty where nothing is known of it."""
    if (ends := found.interval()) is None:
        return ""
    unit, texts = column(ends, found.about(found.quantity)[0])
    low, high = (text.strip() for text in texts)
    return f"90 of 100 within {low} to {high} {unit}".rstrip()


def elasticity_line(elasticities: Mapping[str, float], width: int = WIDTH) -> str:
    """The largest elasticities in one line, those of equal size once; empty if there are none."""
    line, seen = "", list[float]()
    for name, e in elasticities.items():
        if any(abs(abs(e) - other) < 1e-9 for other in seen) or abs(e) < 0.005 or len(seen) == STRONGEST:
            continue
        seen.append(abs(e))
        more = f"{line}, {name} {e:+.2f}" if line else f"% per 1 % more: {name} {e:+.2f}"
        if len(more) > width:
            break
        line = more
    return line


def story_rows(
    found: Explanation, inner: InnerAxes, depth: int, sources: bool = False, name_width: int = NAME_WIDTH
) -> Iterator[tuple[str, str, str, str]]:
    """Name (indented by its level), value, share and words of what adds up to a number, ``depth`` levels down.

    Of a product whose names exceed ``name_width`` the last factors are named.
    """
    yield from _rows(found, found.story(depth, most_lines(depth)), inner, 0, None, sources, name_width)


def _rows(
    found: Explanation,
    part: Part,
    inner: InnerAxes,
    level: int,
    whole: float | None,
    sources: bool,
    name_width: int,
) -> Iterator[tuple[str, str, str, str]]:
    """Name, value, share of the number (or of the factor) that it is a part of, and words, for a part and all below."""
    indent = "  " * level
    sign = part.factor + " " if part.factor in ("x", "/") else ""
    words = [_product(found, part), _rival(part), _meaning(found, part)]
    if sources:
        words.append(_source(found, part))
    share = f"{part.value / whole:.1%}" if whole and not part.factor else ""
    name = _short_name(part.name, name_width - len(indent + sign))
    value = _value(found, part, inner) if level == 0 else _text(part)
    yield indent + sign + name, value, share, "; ".join(filter(None, words))
    own = part.value if part.factor or level == 0 else whole
    own = own if isinstance(own, float) and np.isfinite(own) else None
    for below in part.below:
        yield from _rows(found, below, inner, level + 1, own, sources, name_width)
    if (folded := part.folded).count:
        most = np.ceil(1000 * folded.largest / abs(own)) / 10 if own else 0.0
        share = f"{folded.value / own:.1%}" if own else ""
        yield f"{indent}  and {folded.count} parts below {most:.1f} %", number(folded.value, part.unit), share, ""


def _value(found: Explanation, part: Part, inner: InnerAxes) -> str:
    """The number itself: labels and flags in words, vectors by their sum."""
    value, node = found.value, found.replayed.graph.nodes.get(part.name)
    if node is not None and node.flags and np.size(value) == 1:
        return node.flags[int(value)]
    if isinstance(part.value, float) and np.size(value) > 1:
        return f"{number(part.value, part.unit)} in all"
    return quantity_value(value, part.unit, inner)


def _text(part: Part) -> str:
    """The value of a part or factor; of a vector its range."""
    if isinstance(part.value, np.ndarray) and part.value.size:
        return f"{number(float(part.value.min()), part.unit)} to {number(float(part.value.max()), part.unit)}"
    if isinstance(part.value, (bool, np.bool_)):
        return "yes" if part.value else "no"
    return number(float(part.value), part.unit) if np.size(part.value) else "0"


def _product(found: Explanation, part: Part) -> str:
    """The numbers of a product: 32 x 366 ms; empty where one is a vector. What a single factor is, by name."""
    if len(part.factors) == 1 and not part.below and part.factors[0].name not in ("", part.name, part.taken):
        return part.factors[0].name
    if len(part.factors) < 2 or any(np.size(f.value) != 1 for f in part.factors):
        return ""
    texts = [(_factor(found, f), f.divides) for f in part.factors if not _converts(f)]
    return " x ".join(t for t, d in texts if not d) + "".join(f" / {t}" for t, d in texts if d)


def _converts(factor: Factor) -> bool:
    """Whether a factor is a constant that with its unit is 1: the units beside the others see to it."""
    return CONVERSIONS.get(factor.unit) == np.asarray(factor.value).item()


def _factor(found: Explanation, factor: Factor) -> str:
    """The number of a factor; a constant in the unit of which it is a whole multiple: 1 h and not 3,600 s."""
    value = float(np.asarray(factor.value).item())
    return whole_number(value, factor.unit) if factor.unit else number(value, found.about(factor.text)[0])


def _rival(part: Part) -> str:
    """Which operand of a maximum or minimum was taken, and how far the next one is."""
    if part.rival is None:
        return ""
    taken, other, value = part.rival.taken, part.rival.other, part.rival.value
    apart = f"{number(abs(value - part.value), part.unit)} {'less' if value < part.value else 'more'}"
    same = abs(value - part.value) <= 1e-9 * abs(part.value)
    return f"that of {taken}, {other} {'is equal' if same else apart}"


def _meaning(found: Explanation, part: Part) -> str:
    """What a quantity means, of several alternatives the one that was taken; the inner axis of a label."""
    if part.axis:
        return part.axis.replace("_", " ")
    meaning = found.about(part.taken or part.quantity or part.name)[1].rstrip(".")
    return f"{part.taken}: {meaning}" if part.taken else meaning


def _source(found: Explanation, part: Part) -> str:
    """Where a quantity comes from: its source and its formula."""
    return " ".join(filter(None, (f"[{s}]" if (s := found.about(part.name)[2]) else "", found.formula(part.name))))


def _short_name(name: str, width: int) -> str:
    """A name that fits; of a product the factors behind."""
    while len(name) > width and " x " in name.removeprefix("... x "):
        name = "... x " + name.removeprefix("... x ").partition(" x ")[2]
    return name if len(name) <= width else name[: width - 3] + "..."


def _shortened(text: str, room: int) -> str:
    """The first whole clauses of a text; cut at a word, with points, if none fits."""
    if len(text) <= room:
        return text
    if room < LEAST_WORDS:
        return ""
    ends = [found.start() for found in CLAUSE.finditer(text) if found.start() <= room]
    ends = [end for end in ends if text.count("(", 0, end) == text.count(")", 0, end) and _closes(text, end)]
    if ends:
        return text[: ends[-1]]
    words = text[: room - 3].split(" ")[:-1]
    while len(words) > 1 and words[-1].rstrip(",;:(").lower() in OPEN:
        words.pop()
    return " ".join(words).rstrip(",;:(") + "..."


def _closes(text: str, end: int) -> bool:
    """Whether a text may end at a sign of `CLAUSE`: not behind a word such as of, nor in the middle of a phrase."""
    before, behind = text[:end], text[end:]
    if before.rpartition(" ")[2].lower() in OPEN or re.search(r"; \S*\d$", before):  # "; 0: all"
        return False
    if behind.startswith(" ("):
        return re.match(r" \([^()]*\)($|[;:,])", behind) is not None
    clause = re.split("[;:]", before)[-1]
    begun = before[: len(before) - len(clause)]
    return behind[0] != "," or not (
        begun.endswith(":") or "," in clause or re.search(r",| (?:and|or) ", re.split("[;:]", behind[1:])[0])
    )


def as_data(found: Explanation, depth: int) -> dict[str, Any]:
    """An explanation as plain data: point, violated constraints, parts with meaning and source, elasticities."""
    violated = [{"name": v.name, "kind": v.kind, "reason": v.reason} for v in found.violated]
    data: dict[str, Any] = {"point": found.point, "violated": violated}
    if found.illegal:
        return data
    if (ends := found.interval()) is not None:
        data["interval"] = list(ends)
    return data | {"story": _json(found, found.story(depth, most_lines(depth))), "elasticities": found.elasticities()}


def _json(found: Explanation, part: Part) -> dict[str, Any]:
    _, meaning, source = found.about(part.quantity or part.name)
    data: dict[str, Any] = {"name": part.name, "value": np.asarray(part.value).tolist(), "unit": part.unit}
    data |= {"relation": {"": "part", "x": "factor", "/": "divisor", "of": "argument"}[part.factor]}
    data |= {"meaning": meaning, "source": source, "formula": found.formula(part.quantity or part.name)}
    if part.factors:
        data["product"] = [
            {"name": f.text, "value": np.asarray(f.value).tolist(), "divides": f.divides} for f in part.factors
        ]
    if part.taken:
        data["alternative"] = part.taken
    if part.rival is not None:
        data["taken"] = {"quantity": part.rival.taken, "rather_than": part.rival.other, "value": part.rival.value}
    if part.folded.count:
        data["folded"] = {"parts": part.folded.count, "value": part.folded.value}
    return data | {"below": [_json(found, below) for below in part.below]}


def explanation_lines(found: Explanation, inner: InnerAxes, depth: int | None = None) -> Iterator[str]:
    """The derivation as an indented tree, preceded by the violated constraints; an illegal point has no derivation."""
    yield from point_lines(found.point, found.violated, inner)
    if found.illegal:
        yield f"{found.quantity} has no meaning at this point"
        return
    yield from _tree(found.derivation, inner, 0, depth)


def point_lines(point: Mapping[str, Any], violated: Iterable[Violated], inner: InnerAxes) -> Iterator[str]:
    """The labels of a point in one line, and a line for each constraint that it violates."""
    yield "at " + ", ".join(f"{axis}={label}" for axis, label in point.items())
    for broken in violated:
        values = ", ".join(f"{s.name} = {quantity_value(s.value, s.unit, inner)}" for s in broken.sides)
        yield f"infeasible ({broken.kind}): {broken.reason} [{broken.name}: {values}]"


def _tree(node: Derivation, inner: InnerAxes, level: int, depth: int | None) -> Iterator[str]:
    strength = "" if node.elasticity is None else f"  ({node.elasticity:+.2f})"
    notes = [f"[{node.source}]"] if node.source else []
    notes += [node.meaning.rstrip(".")] if node.meaning else []
    tail = "  (derived above)" if node.repeated and node.below == [] else ""
    value = quantity_value(node.value, node.unit, inner)
    yield f"{'  ' * level}{node.name} = {value}{strength}  {' '.join(notes)}{tail}"
    if depth is None or level < depth:
        for child in node.below:
            yield from _tree(child, inner, level + 1, depth)
