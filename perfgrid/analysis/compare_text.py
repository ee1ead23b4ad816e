"""A comparison of two designs as a table and lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from perfgrid.text.numbers import column, header

from .compared import Compared
from .limiting import WORDS

ROUNDING = 1e-9


def comparison_table(found: Compared) -> tuple[list[str], list[list[str]]]:
    """Headers and rows: the times of A and B, as such or per token, with intervals and parts, in one unit."""
    of_a, of_b = found.work
    whole = "time per token" if found.per_token else found.quantity.replace("_", " ")
    times = [(whole, *found.times), *((WORDS[n], x, y) for n, x, y in found.parts if max(x, y) > 0)]
    parts = [(name, x / of_a, y / of_b) for name, x, y in times]
    _, before, after = parts[0]
    ends = [end / work for i, work in zip(found.intervals, found.work, strict=False) for end in (i.low, i.high)]
    unit, texts = column([time for _, *times in parts for time in times] + ends, "s", (before, after))
    texts, limits = texts[: 2 * len(parts)], [text.strip() for text in texts[2 * len(parts) :]]
    moved = [y - x if abs(y - x) > ROUNDING * max(x, y) else 0.0 for _, x, y in parts]
    changed, changes = column(moved, "s", (before, after))
    shares = [f"{(y - x) / (after - before):.0%}" if after != before else "" for _, x, y in parts]
    signed = [text if text.startswith("-") else f"+{text}" for text in changes]
    names = [name for name, *_ in parts]
    rows = [list(row) for row in zip(names, texts[::2], texts[1::2], signed, ["", *shares[1:]], strict=True)]
    within = [f"{low} to {high}" for low, high in zip(limits[::2], limits[1::2], strict=True)]
    between = [["90 of 100 within", *within, "", ""]] if within else []
    return ["", header("A", unit), header("B", unit), header("change", changed), "of the change"], [
        rows[0],
        *between,
        *rows[1:],
    ]


def tokens_line(found: Compared) -> str:
    """How many tokens each time makes, where these differ; else empty."""
    if not found.per_token:
        return ""
    whole = "step" if found.intervals else "request"
    return f"times per token: a {whole} of A has {found.tokens[0]:,.0f} tokens, of B {found.tokens[1]:,.0f}"


def outcome_lines(found: Compared) -> Iterator[str]:
    """Which one takes longer, by how much, and whether the difference is within the error of the model."""
    whole = "step" if found.intervals else "request"
    if found.same:
        yield f"A and B take the same time: their differences change no part of a {whole}"
        return
    ratio, margin = 1 / found.speedup, 1 + found.tie_margin
    within = f", 90 of 100 within {ratio / margin:.3g} to {ratio * margin:.3g}" if found.intervals else ""
    longer, what_for = ("per token ", "a token") if found.per_token else ("", f"a {whole}")
    yield f"B takes {ratio:.3g} times as long {longer}as A{within} ({what_for} is {found.speedup:.3g} times as fast)"
    if found.intervals and found.tied:
        yield f"a tie: differences below {found.tie_margin:.0%} are within the model's error between them"
