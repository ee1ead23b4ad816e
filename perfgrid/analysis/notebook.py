"""Best designs as notebooks show them: an HTML table above the Dataset."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import xarray as xr

from perfgrid.results.provenance import GROUPED
from perfgrid.text.html import NAME, NUMBER, WORDS, paragraphs, table
from perfgrid.text.numbers import column, header, label_text
from perfgrid.text.values import flag_word

from .best_of_result import FORBIDDEN

MOST_ROWS = 100  # of best designs


class BestDesigns(xr.Dataset):
    """The Dataset of best designs, which notebooks show as a table; a part without designs as any Dataset."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        whole = super()._repr_html_()
        try:
            designs = _designs(self)
        except Exception:  # whatever xarray made of it: a repr never raises
            return whole
        return f"{designs}<details><summary>Dataset</summary>{whole}</details>"


def _designs(found: xr.Dataset) -> str:
    """A row for every group: its labels, the labels that were chosen, the outputs in the units of the field."""
    groups = [str(dim) for dim in found["found"].dims]
    axes = dict.fromkeys([*groups, found.attrs.get(GROUPED, ""), *found.attrs["study_axes"].split()])
    axes = [name for name in axes if name in found.coords]
    outputs = {
        str(name): variable
        for name, variable in found.data_vars.items()
        if set(variable.dims) <= set(groups) and "constraint" not in variable.attrs
    }
    wanted = [*axes, "found", *(name for name in FORBIDDEN if name in found.coords), *outputs]
    values = {name: found[name].variable.set_dims(found["found"].sizes).values for name in wanted}
    places = list(islice(np.ndindex(found["found"].shape), MOST_ROWS))
    cells = {name: [array[place].item() for place in places] for name, array in values.items()}
    same = {name: cells[name][0] for name in axes if len(set(cells[name])) == 1 and len(places) > 1}
    heads, columns = list[tuple[str, str]](), list[Sequence[str]]()
    for name in axes:
        if name not in same:
            heads.append((name, NAME))
            columns.append([label_text(label, found[name].attrs.get("units", "1")) for label in cells[name]])
    for name, variable in outputs.items():
        worth = [flag_word(v, variable.attrs) if ok else "" for v, ok in zip(cells[name], cells["found"], strict=True)]
        unit, texts = column(worth, variable.attrs.get("units", "1"))
        heads.append((header(name, unit), NUMBER))
        columns.append(texts)
        if (interval := f"{name}_interval") in found:
            ends = found[interval].transpose(*groups, ...).values
            unit, texts = column([float(end) for place in places for end in ends[place]], variable.attrs["units"])
            heads.append((header("90 of 100 within", unit), NUMBER))
            columns.append([f"{a.strip()} to {b.strip()}" for a, b in zip(texts[::2], texts[1::2], strict=True)])
    if not all(cells["found"]):
        reasons = zip(*(cells[name] for name in FORBIDDEN), strict=True)
        heads.append(("no feasible design", WORDS))
        columns.append([f"{by} forbids {n:,} of {of:,}" if by else "" for by, n, of in reasons])
    lines = [str(found.attrs.get("title", "")), ", ".join(f"{name} = {label_text(v)}" for name, v in same.items())]
    more = found["found"].size - len(places)
    rows = list(zip(*columns, strict=True))
    return paragraphs(lines) + table(heads, rows) + paragraphs([f"and {more:,} rows more" if more > 0 else ""])
