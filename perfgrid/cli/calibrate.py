"""``perfgrid calibrate``: the constants of a software stack or a device family from measurements, as a catalog file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from typer import Option

from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.printing.console import out, print_json, print_line
from perfgrid.printing.tables import print_table
from perfgrid.results.files import check_output, write_text
from perfgrid.validation.calibration import calibrate
from perfgrid.validation.overlay import CONSTANTS, calibration_rows, overlay, stated

from .arguments import measured_files
from .options import AsJson, CatalogFiles, Facts, JobFiles, KindOfFile, OnDevice, Overwrite, Records, Wide


def calibrate_command(
    files: Records = None,
    kind: KindOfFile = None,
    job: JobFiles = None,
    on: OnDevice = None,
    facts: Facts = None,
    software: Annotated[
        list[str] | None, Option("--software", help="Software stack to fit; several share the constants.")
    ] = None,
    device: Annotated[list[str] | None, Option("--device", help="Device to fit; several share the constants.")] = None,
    constant: Annotated[list[str] | None, Option("--constant", help="Quantity to fit; repeatable.")] = None,
    group: Annotated[list[str] | None, Option("--group", help="Source whose records to use; repeatable.")] = None,
    catalog: CatalogFiles = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Catalog file to write (.toml).")] = None,
    overwrite: Overwrite = False,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Fit constants of a software stack or of devices to measurements, and write them as a catalog file."""
    if bool(software) == bool(device):
        raise PerfgridError("give either --software NAME or --device NAME")
    if output is not None:
        check_output(output, overwrite, ".toml")
    known = load_catalog(*(catalog or ()))
    table = "software" if software else "device"
    found = calibrate(
        measured_files(files, kind, job, on, facts),
        table,
        software or device or (),
        constant or (),
        known,
        group or (),
    )
    today = datetime.now(UTC).date()
    if output is not None:
        write_text(output, overlay(found, known, today))
    if as_json:
        print_json(stated(found, today))
        return
    rows = calibration_rows({"": stated(found, today)})
    print_table(CONSTANTS, rows, right=CONSTANTS[1:], keys=1)
    for source, error in found.left_out.items():
        out.print(f"without {source}: median {error.median:.3f} on its {error.rows} rows, bias {error.bias:+.3f}")
    for label, why in found.dropped.items():
        out.print(f"{label} is not fitted: {why}")
    if output is not None:
        print_line(f"saved {output}", whole=True)
