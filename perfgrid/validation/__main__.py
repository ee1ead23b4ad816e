"""``python -m perfgrid.validation``: validate the shipped records and write the accuracy of the present formulas.

Writes perfgrid/validation/accuracy.json, against which the tests compare later changes, the table of docs/accuracy.md,
docs/accuracy.csv and, where Matplotlib is installed, docs/accuracy.png. With names of software stacks (``all``: every
calibrated one) it first fits their constants again, keeps the fits in perfgrid/validation/calibrations.json and prints
them as a catalog file. Values, ranges and correlations are copied into the catalog by hand, and so are the scatters of
each stack (`model_error`, `unexplained_error`, `ranking_error`) and the `scaling_error` of the glossary.
"""

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from perfgrid.catalog import load_catalog

from .calibration import calibrate
from .figure import draw_shares
from .overlay import overlay, stated
from .page import by_source, headline, with_table
from .scatter import held_out_coverage, scatters
from .schema import UNSEEN, data, read_records
from .ties import scales
from .validate import RECORDED, Validation, validate

DOCS = Path(__file__).parents[2] / "docs"
CALIBRATIONS = Path(__file__).with_name("calibrations.json")


def main(names: list[str]) -> None:
    """Write all files."""
    fitted = data("calibrations")
    kept = json.loads(CALIBRATIONS.read_text(encoding="utf-8")) if CALIBRATIONS.exists() else {}
    for name in fitted if names == ["all"] else names:
        shared = fitted[name].get("shared_with", [])
        fit = calibrate(table="software", entries=[name, *shared], names=fitted[name]["constants"])
        kept[name] = stated(fit, datetime.now(UTC).date())
        CALIBRATIONS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(overlay(fit, load_catalog(), datetime.now(UTC).date()))
    found, unseen = validate(), validate(UNSEEN)
    both = Validation([*found.predictions, *unseen.predictions])
    scatter = {name: asdict(s) for name, s in scatters(found.predictions, kept).items()}
    held_out = held_out_coverage(found.predictions, kept)
    summary = {**found.summary(), "scatter": scatter, "held_out": held_out, "pairs": scales(found.predictions, kept)}
    summary["unseen"] = {**unseen.summary(), "pairs": scales(unseen.predictions, kept)}
    summary["shares"] = {group.name: group.stated() for group in both.shares()}
    RECORDED.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    page, records = DOCS / "accuracy.md", [*read_records()[0], *read_records([UNSEEN])[0]]
    page.write_text(with_table(page.read_text(encoding="utf-8"), headline(summary["shares"])), encoding="utf-8")
    (DOCS / "accuracy.csv").write_text(by_source(summary, records, kept), encoding="utf-8")
    draw_shares(both, DOCS / "accuracy.png")
    print(f"wrote {RECORDED} and {DOCS / 'accuracy'}.md, .csv, .png")


if __name__ == "__main__":
    main(sys.argv[1:])
