"""The validation as rows of text for the command line, and the notes and aims that stand beside the records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from perfgrid.analysis.limiting import WORDS
from perfgrid.analysis.number_text import number

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


def worst_rows(worst: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """One row per prediction with the columns WORST."""
    rows = []
    for w in worst:
        unit = UNITS[w["quantity"]]
        part, share = w["largest_part"], w["largest_part_share"]
        largest = f"{WORDS.get(part, part.replace('_', ' '))} {share:.0%}" if part else ""
        ratio = w["predicted"] / w["measured"]
        rows.append([w["id"], number(w["predicted"], unit), number(w["measured"], unit), f"{ratio:.3f}", largest])
    return rows


def reason_rows(reasons: Mapping[str, int]) -> list[list[str]]:
    """How many records are not predicted, and why."""
    return [[str(count), reason] for reason, count in reasons.items()]


def aim_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row per group with a target: group, target, error, "missed" or "reached", cause; missed ones first."""
    known = {**summary["groups"], **summary["totals"]}
    rows = []
    for name, aim in data("aims").items():
        stated = [e for e in ("median", "p90", "rank") if e in aim and known[name][e] is not None]
        missed = [e for e in stated if (known[name][e] < aim[e] if e == "rank" else known[name][e] > aim[e])]
        reached, wanted = (", ".join(f"{e} {of[e]:.3g}" for e in stated) for of in (known[name], aim))
        rows.append([name, wanted, reached, "missed" if missed else "reached", aim.get("cause", "") if missed else ""])
    return sorted(rows, key=lambda row: row[3])
