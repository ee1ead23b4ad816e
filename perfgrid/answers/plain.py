"""An answer as plain values: rows for a table, and all that the screen shows for JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.printing.answer import GROUPS, LABEL

LISTS = {  # dimension of an answer -> what a design has several of along it
    "largest": "parts",
    "alternative": "alternatives",
    "limit": "near_misses",
    "constraint": "excluded",
    "frontier": "frontier",
}
ABOUT = (
    "title",
    "objective",
    "sense",
    "ties",
    "within",
    "designs_searched",
    "warnings",
    "assumptions",
    "notes",
)  # shown
NUMBERS = {"i": int, "u": int, "f": float}  # kind of the labels of an axis -> what its texts are


def answer_rows(found: xr.Dataset) -> list[dict[str, Any]]:
    """One row of plain values for every design of an answer; None where there is none."""
    names = [str(name) for name, values in found.data_vars.items() if values.dims == _groups(found)]
    rows = []
    for place in np.ndindex(*(found.sizes[d] for d in _groups(found))):
        values = {d: found[d].values[i].item() for d, i in zip(_groups(found), place, strict=True)}
        values |= {name: _label(found[name], found[name].values[place].item()) for name in names}
        rows.append({name: _plain(value) for name, value in values.items()})
    return rows


def answer_units(found: xr.Dataset) -> dict[str, str]:
    """The SI units of the quantities of an answer that have one."""
    units = {str(name): str(values.attrs.get("units", "1")) for name, values in found.data_vars.items()}
    return {name: unit for name, unit in units.items() if unit != "1"}


def answer_json(found: xr.Dataset) -> dict[str, Any]:
    """An answer as one object: what was asked and assumed, and every design with all that is known of it."""
    designs = answer_rows(found)
    for row, place in zip(designs, np.ndindex(*(found.sizes[d] for d in _groups(found))), strict=True):
        one = found.isel(dict(zip(_groups(found), place, strict=True)))
        row |= {str(name): list(map(_plain, one[name].values.tolist())) for name in one if one[name].dims == ("bound",)}
        row |= {word: _list(found, one, dim) for dim, word in LISTS.items() if dim in found.dims}
    about = {name: found.attrs[name] for name in ABOUT if name in found.attrs}
    about |= {"question": json.loads(found.attrs["question"])}
    return about | {"units": answer_units(found), "designs": designs}


def _groups(found: xr.Dataset) -> tuple[str, ...]:
    return tuple(dim for dim in GROUPS if dim in found.dims)


def _list(found: xr.Dataset, one: xr.Dataset, dim: str) -> list[dict[str, Any]]:
    """What one design has along a dimension, without the places that are filled up for it."""
    own = {str(name): values for name, values in one.variables.items() if values.dims == (dim,)}
    columns = {name: [_label(values, value) for value in values.values.tolist()] for name, values in own.items()}
    filled = [name for name in columns if found[name].dims != (dim,)]
    rows = [dict(zip(columns, map(_plain, values), strict=True)) for values in zip(*columns.values(), strict=True)]
    return [row for row in rows if any(row[name] for name in filled)]


def _label(variable: xr.DataArray | xr.Variable, value: Any) -> Any:
    """A value; the label of an axis of numbers as a number, as results have it, None where there is none."""
    if not str(variable.attrs.get("long_name")).startswith(LABEL):
        return value
    return NUMBERS.get(variable.attrs.get("kind", ""), str)(value) if value else None


def _plain(value: Any) -> Any:
    """A value; None for NaN."""
    return None if value != value else value
