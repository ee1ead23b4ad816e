"""Where a command saves its result."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr

from perfgrid.printing.console import print_line
from perfgrid.results.files import check_output, write_text
from perfgrid.results.save import save
from perfgrid.text.numbers import header


@dataclass(frozen=True)
class Target:
    """The file of an option, if any. PerfgridError before anything is evaluated if it cannot be written."""

    path: Path | None
    overwrite: bool
    suffix: str = ".nc"

    def __post_init__(self) -> None:
        if self.path is not None:
            check_output(self.path, self.overwrite, self.suffix)

    def save(self, found: xr.Dataset) -> None:
        """Write the result."""
        if self.path is not None:
            save(found, self.path, self.overwrite)

    def save_rows(self, rows: Sequence[Mapping[str, Any]], units: Mapping[str, str]) -> None:
        """Write rows of the same names as CSV, in the units that the header names."""
        if self.path is None:
            return
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header(name, units.get(name, "")) for name in rows[0])
        writer.writerows(row.values() for row in rows)
        write_text(self.path, text.getvalue())

    def save_json(self, found: Mapping[str, Any]) -> None:
        """Write a JSON object without blanks."""
        if self.path is not None:
            write_text(self.path, json.dumps(found, separators=(",", ":"), allow_nan=False))

    def tell(self, size: bool = False) -> None:
        """Print that the result is saved."""
        if self.path is not None:
            size_text = f" ({self.path.stat().st_size / 1e6:.1f} MB)" if size else ""
            print_line(f"saved {self.path}{size_text}", whole=True)
