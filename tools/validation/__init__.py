"""Studies of the evidence, for maintainers: fits of the shared constants, scatters, held-out errors, and their records.

``python -m tools.validation`` renews what is recorded of the errors; the others are commands of their own.
"""

import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RECORDED = FOLDER / "accuracy.json"  # errors at the time of writing, with which the tests compare
CALIBRATIONS = FOLDER / "calibrations.json"
SERVING = FOLDER / "serving"  # closed loops: validated on their own (`closed_loops`)


def data(name: str) -> dict[str, Any]:
    """A data file of this folder (TOML)."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
