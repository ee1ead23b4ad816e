"""The validation as rows of text for the command line, and the notes and aims that stand beside the records."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from perfgrid.analysis.limiting import WORDS
from perfgrid.analysis.text import number

from .schema import UNITS

ERRORS = ("median", "p90", "MAPE", "bias", "rank")
HEADERS = (
    "group",
    "n",
    "predicted",
    "over memory",
    *ERRORS,
    "constant: median",
    "p90",
    "rank",
    "Calculon",
    "llm-analysis",
)
WORST = ("record", "predicted", "measured", "ratio", "largest part")


@cache
def anchors() -> dict[str, dict[str, float]]:
    """Median errors of other tools on the same records, by tool and group."""
    return tomllib.loads(Path(__file__).with_name("anchors.toml").read_text(encoding="utf-8"))


def error_rows(groups: Mapping[str, Mapping[str, Any]], whole: Collection[str]) -> list[list[str]]:
    """One row per group with the columns HEADERS; other tools only for ``whole`` groups, whose medians are known."""
    rows = []
    for name, g in groups.items():
        own, base = [g[e.lower()] for e in ERRORS], [g["baseline"][e] for e in ("median", "p90", "rank")]
        others = [anchors()[tool].get(name) if name in whole else None for tool in ("calculon", "llm-analysis")]
        signs = [False, False, False, True, *[False] * 6]
        cells = [_cell(v, s) for v, s in zip([*own, *base, *others], signs, strict=True)]
        rows.append([name, str(g["n"]), str(g["predicted"]), str(g["over_memory"]), *cells])
    return rows


def _cell(value: float | None, signed: bool) -> str:
    return "-" if value is None else f"{value:+.3f}" if signed else f"{value:.3f}"


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


@cache
def findings() -> dict[str, list[dict[str, Any]]]:
    """Dated notes on the comparison of predictions with records, by kind: unseen, fitted, tried."""
    return tomllib.loads(Path(__file__).with_name("findings.toml").read_text(encoding="utf-8"))


@cache
def aims() -> dict[str, dict[str, Any]]:
    """Target errors by group."""
    return tomllib.loads(Path(__file__).with_name("aims.toml").read_text(encoding="utf-8"))


def aim_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row per group with a target: group, target, error, "missed" or "reached", cause; missed ones first."""
    known = {**summary["groups"], **summary["totals"]}
    rows = []
    for name, aim in aims().items():
        stated = [e for e in ("median", "p90", "rank") if e in aim and known[name][e] is not None]
        missed = [e for e in stated if (known[name][e] < aim[e] if e == "rank" else known[name][e] > aim[e])]
        reached, wanted = (", ".join(f"{e} {of[e]:.3g}" for e in stated) for of in (known[name], aim))
        rows.append([name, wanted, reached, "missed" if missed else "reached", aim.get("cause", "") if missed else ""])
    return sorted(rows, key=lambda row: row[3])
