"""Where a command saves its result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from perfgrid.cli.printing.console import print_line
from perfgrid.results.files import check_output
from perfgrid.results.save import save


@dataclass(frozen=True)
class Target:
    """The file of ``-o``, if any. PerfgridError before anything is evaluated if it cannot be written."""

    path: Path | None
    overwrite: bool

    def __post_init__(self) -> None:
        if self.path is not None:
            check_output(self.path, self.overwrite)

    def save(self, found: xr.Dataset) -> None:
        """Write the result."""
        if self.path is not None:
            save(found, self.path, self.overwrite)

    def tell(self, size: bool = False) -> None:
        """Print that the result is saved."""
        if self.path is not None:
            size_text = f" ({self.path.stat().st_size / 1e6:.1f} MB)" if size else ""
            print_line(f"saved {self.path}{size_text}", whole=True)
