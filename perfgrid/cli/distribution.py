"""``perfgrid distribution``: quantiles and a histogram over the feasible designs of a study of any size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import numpy as np
import xarray as xr
from typer import Option

from perfgrid.analysis.distribution import distribution
from perfgrid.engine.errors import PerfgridError
from perfgrid.printing.cells import cells
from perfgrid.printing.console import out, print_json
from perfgrid.printing.labels import axis_label
from perfgrid.printing.progress import Reporter
from perfgrid.printing.tables import print_table
from perfgrid.study.study import Study
from perfgrid.text.numbers import column, count_text, header, number

from .arguments import asks_best, names_in, places_at, study_of
from .options import AsJson, AtDesigns, Formulas, Output, Overwrite, Settings, StudyFile, Wide
from .saving import Target

SHOWN = 60  # rows that are printed


def distribution_command(
    study: StudyFile,
    of: Annotated[str, Option(help="Quantity.")],
    over: Annotated[str | None, Option(help="Axes to reduce, comma-separated. Default: all.")] = None,
    at: AtDesigns = None,
    quantiles: Annotated[str, Option(help="Shares of the feasible designs.")] = "0.05,0.5,0.95",
    bins: Annotated[int, Option(help="Bins of a histogram.")] = 0,
    logarithmic: Annotated[bool, Option("--log", help="Bins of equal ratio instead of equal width.")] = False,
    output: Output = None,
    overwrite: Overwrite = False,
    settings: Settings = None,
    formulas: Formulas = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Quantiles and a histogram over the feasible designs of a study of any size."""
    loaded = study_of(study, settings, formulas)
    target = Target(output, overwrite)
    try:
        levels = [float(text) for text in names_in(quantiles)]
    except ValueError:
        raise PerfgridError(f"--quantiles needs numbers between 0 and 1, found {quantiles!r}") from None
    axes = None if over is None else names_in(over)
    if axes is None and asks_best(at):
        raise PerfgridError("--at best needs --over: the axes along which designs are counted")
    places = {axis: label for axis, label in places_at(loaded, at, as_json, [of]).items() if axis not in (axes or ())}
    with Reporter(loaded.space.points) as reporter:
        found = distribution(loaded, of, axes, places, levels, bins, logarithmic, progress=reporter)
    target.save(found)
    if as_json:
        rows = list(_rows(found, of))
        edges = [*found["bin_from"].values.tolist(), float(found["bin_to"][-1])] if bins else []
        print_json({"points": loaded.space.points, "seconds": reporter.seconds, "edges": edges, "groups": rows})
        return
    _print(loaded, found, of, levels, bins)
    out.print(f"{count_text(loaded.space.points, 'point')} in {reporter.seconds:.1f} s")


def _print(study: Study, found: xr.Dataset, of: str, levels: list[float], bins: int) -> None:
    groups, count = [str(d) for d in found["designs"].dims], found["designs"].size
    unit = found[of].attrs["units"]
    heads = [f"{level:.4g}" for level in levels]
    rows = list(islice(_rows(found, of), None if out.wide else SHOWN))
    common, texts = column([v if v is not None else "" for row in rows for v in row["quantiles"]], unit)
    lines = []
    for place, row in enumerate(rows):
        labels = [axis_label(study, axis, label) for axis, label in row["group"].items()]
        lines.append([*labels, f"{row['designs']:,}", *texts[place * len(heads) : (place + 1) * len(heads)]])
    out.print(f"{study.file.title}: {header(of, common)} of feasible designs; a share of them lies at or below")
    print_table([*groups, "designs", *heads], lines, right=["designs", *heads], groups=len(groups))
    if count > len(rows):
        out.print(f"and {count - len(rows):,} more groups (--wide prints them, -o FILE.nc keeps all)")
    if bins:
        counts = found["histogram"].values.reshape(-1, bins).sum(axis=0)
        rows = [
            [f"{number(a, unit)} to {number(b, unit)}", f"{n:,}", "#" * int(np.ceil(40 * n / max(counts.max(), 1)))]
            for a, b, n in zip(found["bin_from"].values, found["bin_to"].values, counts.tolist(), strict=True)
        ]
        print_table([of, "designs", ""], rows, right=["designs"])


def _rows(found: xr.Dataset, of: str) -> Iterator[dict[str, Any]]:
    """Every group: labels, number of feasible designs, quantiles, counts by bin."""
    for labels, at in cells(found, found["designs"].dims):
        place = tuple(at.values())
        values = [None if np.isnan(v) else v for v in found[of].values[place].tolist()]
        row = {"group": labels, "designs": int(found["designs"].values[place]), "quantiles": values}
        yield row | ({"histogram": found["histogram"].values[place].tolist()} if "histogram" in found else {})
