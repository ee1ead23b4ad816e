"""``perfgrid calibrate``: the constants of a software stack or a device family from measurements, as a catalog file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from perfgrid.catalog import Catalog, load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.printing.console import out, print_json, print_line
from perfgrid.printing.tables import print_table
from perfgrid.results.files import check_output, write_text
from perfgrid.validation.calibration import calibrate
from perfgrid.validation.cluster import calibrate_cluster, records_of
from perfgrid.validation.cluster_file import (
    FITTED,
    SETS,
    bound_lines,
    cluster_file,
    cluster_stated,
    fitted_rows,
    next_command,
    set_rows,
)
from perfgrid.validation.cluster_rows import ClusterRows
from perfgrid.validation.overlay import CONSTANTS, calibration_rows, overlay, stated

from .arguments import measured_files, on_device
from .options import AsJson, CatalogFiles, Facts, JobFiles, KindOfFile, OnDevice, Overwrite, Records, Wide

ONE_LAYOUT = ": all rows are of one layout, so that nothing is held out, and no more than this is fitted"


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
    only: Annotated[str | None, Option("--only", help="Device whose records to use, where there are several.")] = None,
    catalog: CatalogFiles = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Catalog file to write (.toml).")] = None,
    overwrite: Overwrite = False,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Fit what differs on your cluster, or named constants, to measurements, and write a catalog file."""
    if software and device:
        raise PerfgridError("give either --software NAME or --device NAME")
    if constant and not software and not device:
        raise PerfgridError("--constant needs --software NAME or --device NAME")
    if output is not None:
        check_output(output, overwrite, ".toml")
    known, on = on_device(load_catalog(*(catalog or ())), on)
    which = None if only is None else known.name_of("device", only, "--only: ")
    if not software and not device:
        _cluster(measured_files(files, kind, job, on, facts), known, group or (), which, output, as_json)
        return
    if only is not None:
        raise PerfgridError("--only chooses the records of a cluster: give it without --software and --device")
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


def _cluster(
    files: Iterable[Any], known: Catalog, group: Sequence[str], only: str | None, output: Path | None, as_json: bool
) -> None:
    """Calibrate the cluster that the records describe."""
    if not files:
        raise PerfgridError("give files with records of your cluster, or --software NAME or --device NAME")
    found = calibrate_cluster(ClusterRows(known, records_of(files, known, group, only)))
    today = datetime.now(UTC).date()
    if output is not None:
        write_text(output, cluster_file(found, today))
    if as_json:
        print_json(cluster_stated(found, today))
        return
    scope = found.measured.scope
    entries = ", ".join((scope.device, *scope.topology, *scope.software))
    print_line(f"{len(found.measured.rows)} rows of {entries}")
    for why, count in Counter("; ".join(why) for why in found.measured.unpredicted.values()).items():
        print_line(f"not used: {count} rows: {why}")
    if large := found.measured.exceeding:
        print_line(
            f"by prediction {len(large)} rows exceed the memory ({large[0]}): check their layout and recomputation"
        )
    print_table(SETS, set_rows(found), right=SETS[1:], keys=1)
    print_line(f"chosen: {found.chosen.name}{'' if found.chosen.held_out else ONE_LAYOUT}")
    if rows := fitted_rows(found):
        print_table(FITTED, rows, right=FITTED[1:-1], keys=1)
    for line in bound_lines(found):
        print_line(line)
    if output is None:
        print_line("nothing is saved: give -o mine.toml")
        return
    print_line(f"saved {output}", whole=True)
    print_line(f"next: {next_command(found, output)}", whole=True)
