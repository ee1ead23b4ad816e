"""Tables of a page as plain data: columns in one unit, cells with what is printed and what is sorted by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.text.numbers import column, header, label_text

from .grid import Grid

MOST_ROWS = 500


def column_of(name: str, values: Sequence[Any], unit: str = "1", meaning: str = "") -> dict[str, Any]:
    """One column: its header with the unit of its numbers, the texts, and what they are sorted by."""
    if any(isinstance(v, str) for v in values):
        return {"name": name, "header": name, "texts": list(map(str, values)), "sorted": None, "meaning": meaning}
    numbers = [float(v) for v in values]
    shown, texts = column(numbers, unit)
    keys = [v if np.isfinite(v) else None for v in numbers]
    texts = [text.strip() for text in texts]
    return {"name": name, "header": header(name, shown), "texts": texts, "sorted": keys, "meaning": meaning}


def designs_table(grid: Grid, found: xr.Dataset, first: Sequence[str] = ()) -> dict[str, Any]:
    """Designs as rows: their labels, then the quantities; ``first`` come before the others.

    Rows hold the rows of the grid's axes too, so that a design can be derived.
    """
    dims = [str(d) for d in (found["found"].dims if "found" in found.coords else found.dims) if d != "bound"]
    places = list(np.ndindex(*(found.sizes[d] for d in dims)))[:MOST_ROWS]

    def along(values: xr.DataArray) -> list[Any]:
        every = values.variable.set_dims({d: found.sizes[d] for d in dims}).transpose(*dims).values
        return [every[place].item() for place in places]

    columns: list[dict[str, Any]] = []
    ahead = 0
    labels = [n for n in (*dims, *grid.axes) if n in found.coords and set(map(str, found[n].dims)) <= set(dims)]
    for name in dict.fromkeys(labels):
        texts = [label_text(v, str(found[name].attrs.get("units", "1"))) for v in along(found[name])]
        if len(set(texts)) > 1 or not set(found[name].dims) <= {name}:
            values = along(found[name])
            numeric = not isinstance(values[0], str)
            keys = [float(v) for v in values] if numeric else None
            columns.append({"name": name, "header": name, "texts": texts, "sorted": keys, "meaning": ""})
            ahead += name in dims
    behind, columns = columns[ahead:], columns[:ahead]
    quantities = [n for n in dict.fromkeys((*first, *grid.quantities)) if n in found.data_vars]
    for name in quantities:
        if name not in first:
            columns, behind = [*columns, *behind], []
        unit, meaning = (str(found[name].attrs.get(key, "")) for key in ("units", "long_name"))
        columns.append(column_of(name, along(found[name]), unit or "1", meaning))
        if (interval := f"{name}_interval") in found:
            ends = [along(found[interval].isel(bound=i)) for i in (0, 1)]
            both = column_of(name, [*ends[0], *ends[1]], unit or "1")
            texts = [
                f"{a} to {b}" for a, b in zip(both["texts"][: len(places)], both["texts"][len(places) :], strict=True)
            ]
            about = {"meaning": "ends between which 90 of 100 measurements are expected"}
            shown = "90 % interval" + both["header"].removeprefix(name)
            columns.append({"name": interval, "header": shown, "texts": texts, "sorted": ends[0], **about})
    columns += behind
    return {"columns": columns, "designs": [_rows(grid, found, dims, place) for place in places]}


def _rows(grid: Grid, found: xr.Dataset, dims: Sequence[str], place: Sequence[int]) -> dict[str, int] | None:
    """The rows of the grid's axes of one design; None where it is none."""
    here = found.isel(dict(zip(dims, place, strict=True)))
    if "found" in here.coords and not bool(here["found"]):
        return None
    rows = {}
    for axis in grid.axes:
        if axis not in here.coords or here[axis].ndim:
            rows[axis] = 0
            continue
        same = np.flatnonzero(grid.labels(axis) == here[axis].item())
        if not len(same):
            return None
        rows[axis] = int(same[0])
    return rows


def table_of(rows: Sequence[Mapping[str, Any]], units: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Rows of the same keys as a table."""
    names = list(rows[0]) if rows else []
    return {"columns": [column_of(n, [r[n] for r in rows], (units or {}).get(n, "1")) for n in names], "designs": []}
