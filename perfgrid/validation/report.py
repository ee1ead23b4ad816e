"""The validation as rows of text for the command line, and the notes and aims that stand beside the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from perfgrid.analysis.limiting import WORDS
from perfgrid.text.numbers import number

from .groups import Prediction
from .schema import UNITS, data

ERRORS = ("median", "p90", "MAPE", "bias", "rank")
TOOLS = ("Calculon", "llm-analysis")
HEADERS = (
    "group",
    "n",
    "predicted",
    "over memory",
    *ERRORS,
    "constant: median",
    "constant: p90",
    "constant: rank",
    *TOOLS,
)
OWN = ("record", "measured", "predicted", "90 of 100 within", "ratio", "largest part")
WORST = ("record", "predicted", "measured", "ratio", "largest part")


def error_rows(groups: Mapping[str, Mapping[str, Any]], whole: Collection[str]) -> list[list[str]]:
    """One row per group with the columns HEADERS; other tools only for ``whole`` groups, whose medians are known."""
    rows = []
    for name, g in groups.items():
        own, base = [g[e.lower()] for e in ERRORS], [g["baseline"][e] for e in ("median", "p90", "rank")]
        others = [data("anchors")[tool.lower()].get(name) if name in whole else None for tool in TOOLS]
        signs = ["", "", "", "+", *[""] * 6]
        values = zip([*own, *base, *others], signs, strict=True)
        cells = ["-" if value is None else f"{value:{sign}.3f}" for value, sign in values]
        rows.append([name, str(g["n"]), str(g["predicted"]), str(g["over_memory"]), *cells])
    return rows


def own_rows(predictions: Iterable[Prediction]) -> list[list[str]]:
    """One row per record with the columns OWN: what is measured beside what is predicted, or why it is not."""
    rows = []
    for p in predictions:
        unit = UNITS[p.record.quantity]
        told = [p.record.id, number(p.record.value, unit)]
        if p.predicted is None or p.ratio is None:
            rows.append([*told, "-", "", "", "; ".join(p.reasons)])
            continue
        within = " to ".join(number(end, unit) for end in p.ends or ())
        rows.append(
            [*told, number(p.predicted, unit), within, f"{p.ratio:.3f}", _largest(p.largest_part, p.largest_part_share)]
        )
    return rows


def assumptions(predictions: Iterable[Prediction]) -> list[str]:
    """What was assumed of records, with how many records each is about where it is not about all."""
    rows = list(predictions)
    counts = Counter(told for p in rows for told in p.record.assumed)
    return [told if count == len(rows) else f"{told} ({count})" for told, count in counts.most_common()]


def _largest(part: str, share: float | None) -> str:
    return f"{WORDS.get(part, part.replace('_', ' '))} {share:.0%}" if part else ""


def worst_rows(worst: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """One row per prediction with the columns WORST."""
    rows = []
    for w in worst:
        unit = UNITS[w["quantity"]]
        largest = _largest(w["largest_part"], w["largest_part_share"])
        ratio = w["predicted"] / w["measured"]
        rows.append([w["id"], number(w["predicted"], unit), number(w["measured"], unit), f"{ratio:.3f}", largest])
    return rows


def reason_rows(reasons: Mapping[str, int]) -> list[list[str]]:
    """How many records are not predicted, and why."""
    return [[str(count), reason] for reason, count in reasons.items()]
