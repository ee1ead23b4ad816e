"""``python -m perfgrid.evidence``: validate the shipped records and write what the present formulas reach.

Writes perfgrid/evidence/accuracy.json, to which the tests hold later changes, and docs/accuracy.md.
"""

import json
from pathlib import Path

from .report import accuracy_page
from .schema import read_records
from .validation import RECORDED, validate

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"


def main() -> None:
    """Write both files."""
    summary = validate().summary()
    RECORDED.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(accuracy_page(summary, read_records()[0]), encoding="utf-8")
    print(f"wrote {RECORDED} and {PAGE}")


if __name__ == "__main__":
    main()
