"""The generated parts of docs/accuracy.md: its headline table, and the errors by source as docs/accuracy.csv."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfgrid.validation.schema import Record, data

TABLES = ("python -m tools.validation", "python -m tools.validation.left_out")  # what makes each table
END = "<!-- end of table -->"
KINDS = {
    "training": "training step",
    "inference": "serving",
    "kernel": "kernel",
    "mixer": "mixer kernel",
    "collective": "collective",
    "memory": "memory",
}
HEADLINE = ("records", "quantity", "n", "median", "90th percentile", "largest", "bias", "inside the interval")
LEFT_OUT = ("training steps of", "n", "sources", "refused", "median", "90th percentile", "constant: median", "90th")
PARTS = {"dense models": "dense", "mixtures of experts": "MoE", "hybrid models": "hybrids"}
COLUMNS = (
    "source", "kind", "share", "records", "predicted", "over_memory", "median", "p90", "largest", "mape", "bias",
    "rank", "baseline_median", "held_out_median", "inside", "held_out_inside", "software", "not_modelled",
)  # fmt: skip


def headline(totals: Mapping[str, Mapping[str, Any]]) -> str:
    """The Markdown table of errors by share and kind, from `Validation.shares`."""
    rows = []
    for name, group in totals.items():
        share, kind, part = name.split(": ")
        what = KINDS.get(kind, kind) + (f", {PARTS[part]}" if part in PARTS else "")
        inside = "" if group["covered"] is None else f"{group['covered']:.0%}"
        errors = [*(f"{group[error]:.3f}" for error in ("median", "p90", "largest")), f"{group['bias']:+.3f}"]
        rows.append([share, what, str(group["predicted"]), *errors, inside])
    return _markdown(HEADLINE, rows)


def left_out_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """The Markdown table of errors of left-out units, from `LeftOut.table`."""
    lines = []
    for row in rows:
        errors = [f"{row['errors'][way][error]:.3f}" for way in ("left out", "constant") for error in ("median", "p90")]
        lines.append([row["subset"], *(str(row[name]) for name in ("rows", "sources", "refused")), *errors])
    return _markdown(LEFT_OUT, lines)


def with_tables(page: str, *tables: str) -> str:
    """The page with its generated tables replaced, in the order of `TABLES`."""
    for made_by, table in zip(TABLES, tables, strict=True):
        begin = f"<!-- table: {made_by} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(END)}", re.DOTALL)
        page = pattern.sub(lambda _, new=f"{begin}\n{table}\n{END}": new, page, count=1)
    return page


def by_source(summary: Mapping[str, Any], records: Sequence[Record], fits: Mapping[str, Mapping[str, Any]]) -> str:
    """Errors by source as CSV, from the recorded summary, all records and the calibrations by software."""
    held_out = {source: error["median"] for fit in fits.values() for source, error in fit["left_out"].items()}
    of_group: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        of_group.setdefault((record.group, record.kind), []).append(record)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name, group in {**summary["groups"], **summary["unseen"]["groups"]}.items():
        source = name.removesuffix(f" {group['kind']}")
        shares = sorted({record.share for record in of_group[source, group["kind"]]})
        known = {**data("conventions")["default"], **data("conventions")["group"].get(source, {})}
        training = group["kind"] == "training"
        _, outside = summary["held_out"].get(name, (0, None))
        errors = [group[e] for e in ("median", "p90", "largest", "mape", "bias", "rank")] + [
            group["baseline"]["median"]
        ]
        errors += [held_out.get(name) if training else None, group["covered"], outside if training else None]
        stack = [known["software"][0], known["left_out"]] if training else ["", ""]
        counts = [group["n"], group["predicted"], group["over_memory"]]
        writer.writerow([source, group["kind"], " and ".join(shares), *counts, *map(_rounded, errors), *stack])
    return text.getvalue()


def _rounded(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _markdown(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)
