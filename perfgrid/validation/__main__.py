"""``python -m perfgrid.validation``: validate the shipped records and write what the present formulas reach.

Writes perfgrid/validation/accuracy.json, to which the tests hold later changes, and docs/accuracy.md. With the names of
software stacks (``all`` for every one that the catalog calls calibrated) it fits their constants anew first and keeps
what it finds in perfgrid/validation/calibrations.json and prints it as a catalog file: values with ranges and
correlations are taken over by hand, as are the scatters of every stack (`model_error`, `unexplained_error`,
`ranking_error`; of all together `scaling_error`, the default of the glossary), which follow from the whole.
"""

import json
import sys
import tomllib
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from perfgrid.catalog import load_catalog

from .calibration import calibrate
from .overlay import overlay, stated
from .report import accuracy_page
from .scatter import held_out_coverage, scatters
from .schema import UNSEEN, read_records
from .ties import scales
from .validate import RECORDED, validate

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
CALIBRATIONS = Path(__file__).with_name("calibrations.json")
FITTED = Path(__file__).with_name("calibrations.toml")


def main(names: list[str]) -> None:
    """Write all files."""
    fitted = tomllib.loads(FITTED.read_text(encoding="utf-8"))
    kept = json.loads(CALIBRATIONS.read_text(encoding="utf-8")) if CALIBRATIONS.exists() else {}
    for name in fitted if names == ["all"] else names:
        shared = fitted[name].get("shared_with", [])
        fit = calibrate(table="software", entries=[name, *shared], names=fitted[name]["constants"])
        kept[name] = stated(fit, datetime.now(UTC).date())
        CALIBRATIONS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(overlay(fit, load_catalog(), datetime.now(UTC).date()))
    found = validate()
    scatter = {name: asdict(s) for name, s in scatters(found.predictions, kept).items()}
    held_out = held_out_coverage(found.predictions, kept)
    summary = {**found.summary(), "scatter": scatter, "held_out": held_out, "pairs": scales(found.predictions, kept)}
    unseen = validate(UNSEEN)
    summary["unseen"] = {**unseen.summary(), "pairs": scales(unseen.predictions, kept)}
    RECORDED.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(accuracy_page(summary, read_records()[0], read_records([UNSEEN])[0], kept), encoding="utf-8")
    print(f"wrote {RECORDED} and {PAGE}")


if __name__ == "__main__":
    main(sys.argv[1:])
