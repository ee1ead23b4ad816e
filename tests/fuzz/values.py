"""Hostile values, mutations of nested documents, and TOML text of anything."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]  # of the drawing, left out

TEXTS = (
    "",
    " ",
    "x" * 300,
    "x" * 20_000,
    "a/b",
    ".",
    "..",
    "../../x",
    "/etc/passwd",
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "two\nlines",
    "tab\there",
    "nul\x00",
    "\u202eright to left",
    "é",
    "🙂",
    "%s %d {0} {x}",
    "[bold]markup[/bold]",
    "nan",
    "inf",
    "1e400",
    "8 GiB",
    "8 bananas",
    "-1 s",
    "true",
    "None",
    "h100",
    "step_time",
    "die_cost",
    "perfgrid",
    "a=b",
    "a,b",
    "-o",
    "--json",
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    64,
    10**6,
    10**9,
    10**18,
    -(10**18),
    0.5,
    -0.0,
    1e-320,
    1e300,
    math.nan,
    math.inf,
    -math.inf,
)
DATES = (datetime.date(2025, 1, 2), datetime.datetime(2025, 1, 2, 3, 4, 5), datetime.time(3, 4, 5))

texts = st.one_of(st.sampled_from(TEXTS), st.text(max_size=12))
scalars = st.one_of(texts, st.sampled_from(NUMBERS), st.booleans(), st.sampled_from(DATES), st.integers(), st.floats())
values = st.recursive(
    scalars,
    lambda inside: st.one_of(st.lists(inside, max_size=4), st.dictionaries(texts, inside, max_size=3)),
    max_leaves=6,
)


@dataclass(frozen=True)
class Deep:
    """A value that is nested beyond any sense; Python itself goes no deeper than a thousand levels."""

    depth: int
    mapping: bool

    def text(self, opened: str) -> str:
        """As TOML or JSON."""
        left, right = (opened, "}") if self.mapping else ("[", "]")
        return left * self.depth + "1" + right * self.depth


deep = st.builds(Deep, st.sampled_from([20, 200, 3000]), st.booleans())
hostile = st.one_of(values, values, values, deep)


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value below a document."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, inside in items:
        yield (*path, key)
        yield from places(inside, (*path, key))


def chance(draw: Any, percent: int) -> bool:
    """Whether something is done in so many of a hundred cases (integers would be drawn at the ends of their range)."""
    return draw(st.sampled_from(range(100))) >= 100 - percent  # the simplest case, to which others shrink, is legal


@st.composite
def mutated(draw: Any, document: Any, most: int = 3) -> Any:
    """A document of which up to ``most`` values are replaced, removed, renamed, repeated or joined by others."""
    document = _copy(document)
    for _ in range(draw(st.integers(1, most))):
        found = list(places(document))
        if not found:
            break
        *path, last = draw(st.sampled_from(found))
        holder = document
        for key in path:
            holder = holder[key]
        kind = draw(st.sampled_from(["replace", "replace", "remove", "rename", "add", "repeat", "swap"]))
        if kind == "replace":
            holder[last] = draw(hostile)
        elif kind == "remove":
            del holder[last]
        elif kind == "swap":
            holder[last] = _copy(_at(document, draw(st.sampled_from(found))))
        elif isinstance(holder, list):
            holder.append(draw(hostile) if kind == "add" else _copy(holder[last]))
        elif kind == "repeat":
            holder[last] = [_copy(holder[last])] * draw(st.sampled_from([1, 2, 40]))
        else:
            holder[draw(texts)] = holder.pop(last) if kind == "rename" else draw(hostile)
    return document


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value


def toml(document: dict[str, Any]) -> str:
    """A document as TOML, whatever it holds; what TOML has no word for is left out."""
    return "".join(f"{_text(k)} = {_toml(v)}\n" for k, v in document.items() if v is not None)


def json_text(value: Any) -> str:
    """A value as JSON, whatever it holds."""
    held: dict[str, str] = {}

    def other(item: Any) -> str:
        text = item.text('{"a":') if isinstance(item, Deep) else json.dumps(str(item))
        held[f'"@{len(held)}@"'] = text
        return f"@{len(held) - 1}@"

    text = json.dumps(value, default=other)
    for place, inside in held.items():
        text = text.replace(place, inside)
    return text


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(k)} = {_toml(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value if v is not None) + "]"
    return value.text("{a=") if isinstance(value, Deep) else _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return (
            "nan"
            if math.isnan(value)
            else "inf"
            if value == math.inf
            else "-inf"
            if value == -math.inf
            else repr(value)
        )
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _text(text: str) -> str:
    """A quoted text. Lone surrogates, which no file can hold, become question marks."""
    return json.dumps(text.encode(errors="replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")
