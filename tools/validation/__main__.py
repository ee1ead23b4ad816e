"""``python -m tools.validation``: validate the shipped records and write the accuracy of the present formulas.

Writes accuracy.json, against which the tests compare later changes, the part of it that perfgrid prints
(perfgrid/analysis/published_errors.json), the tables of docs/accuracy.md, docs/accuracy.csv and docs/accuracy.png.
``fit`` first fits the shared constants of the training stacks again (`joint`), leaves each unit out in turn, keeps the
fit in calibrations.json and prints the values as a catalog file has them. They are copied into the catalog by hand, and
so are the scatters of each stack (`model_error`, `unexplained_error`, `ranking_error`, `memory_error`), the
`expert_error` and the `scaling_error` of the glossary.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfgrid.analysis.published_errors import FILE as PUBLISHED
from perfgrid.analysis.published_errors import MEMORY
from perfgrid.catalog import load_catalog
from perfgrid.pictures.figures.draw import save_figure
from perfgrid.pictures.views.make import picture_of
from perfgrid.validation.schema import SHIPPED, UNSEEN, read_records
from perfgrid.validation.validate import Validation, validate

from . import CALIBRATIONS, RECORDED
from .joint_text import joint_lines, joint_stated
from .left_out import frozen, left_out, show
from .memory_errors import summary as memory_summary
from .page import by_source, headline, left_out_table, with_tables
from .scatter import expert_error, left_out_intervals, scatters
from .ties import scales

DOCS = Path(__file__).parents[2] / "docs"
JOINT = "joint"  # the key of the fit
SHARES_VIEW = {  # the picture of docs/accuracy.md
    "name": "measured",
    "title": "Predicted against measured training steps and serving",
    "colour": "share",
    "at": {"kind": ["training", "inference"]},
}


def of_users(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """What perfgrid prints beside its own predictions: errors by share, and how intervals of memory hold."""
    return {
        name: {error: of[error] for error in ("n", "median", "p90")}
        for name, of in summary["shares"].items()
        if of["kind"] in ("training", "inference")
    } | {MEMORY: summary["memory"]["left_out"]["peaks"]}


def main(arguments: list[str]) -> None:
    """Write all files; ``fit``: fit the shared constants first."""
    kept = json.loads(CALIBRATIONS.read_text(encoding="utf-8")) if CALIBRATIONS.exists() else {}
    if arguments == ["fit"]:
        records, today = read_records([SHIPPED, UNSEEN])[0], datetime.now(UTC).date()
        fitted = left_out([record for record in records if record.id in frozen()])
        show(fitted)
        kept = {JOINT: joint_stated(fitted, today)}
        CALIBRATIONS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(*joint_lines(fitted, load_catalog(), today), sep="\n")
    found, unseen = validate(), validate(UNSEEN)
    both = Validation([*found.predictions, *unseen.predictions])
    scatter = {name: asdict(s) for name, s in scatters(found.predictions, kept).items()}
    intervals = asdict(left_out_intervals(both.predictions, kept))
    held_out = intervals.pop("by_source")
    summary = {**found.summary(), "scatter": scatter, "held_out": held_out, "pairs": scales(found.predictions, kept)}
    summary["expert_error"] = expert_error(found.predictions, kept)
    summary["left_out_intervals"] = intervals
    summary["memory"] = memory_summary(found.predictions)
    summary["unseen"] = {**unseen.summary(), "pairs": scales(unseen.predictions, kept)}
    summary["shares"] = {group.name: group.stated() for group in both.shares()}
    RECORDED.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    PUBLISHED.write_text(json.dumps(of_users(summary), indent=1) + "\n", encoding="utf-8")
    page, records = DOCS / "accuracy.md", [*read_records()[0], *read_records([UNSEEN])[0]]
    tables = (headline(summary["shares"]), left_out_table(kept[JOINT]["headline"]))
    page.write_text(with_tables(page.read_text(encoding="utf-8"), *tables), encoding="utf-8")
    (DOCS / "accuracy.csv").write_text(by_source(summary, records, kept), encoding="utf-8")
    save_figure(picture_of(both.dataset(), SHARES_VIEW), DOCS / "accuracy.png", overwrite=True)
    print(f"wrote {RECORDED} and {DOCS / 'accuracy'}.md, .csv, .png")


if __name__ == "__main__":
    main(sys.argv[1:])
