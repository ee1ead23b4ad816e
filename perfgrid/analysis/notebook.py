"""What notebooks show: explanations and best designs as HTML tables. Labels of studies and files are text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import islice
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.errors import printable
from perfgrid.engine.grid.explain import Explanation
from perfgrid.formulas import INNER
from perfgrid.results.provenance import GROUPED

from .best_of_result import FORBIDDEN
from .number_text import column, header, label_text
from .story_text import elasticity_line, interval_line, story_rows
from .text import flag_word, point_lines

DEPTH = 2  # levels of an explanation
MOST_ROWS = 100  # of best designs
LONGEST = 160  # letters of a name: every factor of a product is named
NAME, NUMBER, WORDS = "text-align:left;white-space:pre", "text-align:right;white-space:pre", "text-align:left"


class Explained(Explanation):
    """An explanation that notebooks show as a table of what adds up to the number."""

    def _repr_html_(self) -> str:
        lines = list(point_lines(self.point, self.violated, INNER))
        if self.illegal:
            return paragraphs([*lines, f"{self.quantity} has no meaning at this point"])
        rows = list(story_rows(self, INNER, DEPTH, name_width=LONGEST))
        heads = [("quantity", NAME), ("value", NUMBER), ("share", NUMBER), ("what it is", WORDS)]
        last = [interval_line(self), elasticity_line(self.elasticities())]
        return paragraphs(lines) + table(heads, rows) + paragraphs(last)


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


def table(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> str:
    """An HTML table: heads with the style of their columns, and the texts of the rows."""
    styles = [style for _, style in heads]
    head = "".join(f'<th scope="col" style="{style}">{text(name)}</th>' for name, style in heads)
    body = ("".join(f'<td style="{s}">{text(v)}</td>' for v, s in zip(row, styles, strict=True)) for row in rows)
    lines = "".join(f"<tr>{cells}</tr>" for cells in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def paragraphs(lines: Sequence[str]) -> str:
    """Lines of text as paragraphs; empty ones are left out."""
    return "".join(f"<p>{text(line)}</p>" for line in lines if line)


def text(value: Any) -> str:
    """A text as HTML: what stands in it is shown, and control characters as escapes."""
    return escape(printable(str(value)))
