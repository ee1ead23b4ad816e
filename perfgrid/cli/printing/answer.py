"""An answer on one screen: the best designs side by side, what is near them, and what was assumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.text import number
from perfgrid.answers.answer import LABEL, NEAR
from perfgrid.answers.search import LAYOUT

from .console import out
from .tables import print_table

HEADING, COLUMN = 18, 30  # characters of the first column, and of one design
MOST_MISSES, MOST_REASONS = 3, 4
LEAST_SHARE = 0.01  # of what is worth a line
GROUPS = ("system", "devices")
Rows = Mapping[str, str]  # heading -> quantity


def print_answer(found: xr.Dataset, rows: Rows) -> None:
    """The designs of an answer side by side, as many as the terminal is wide enough for, and its notes."""
    dims = [dim for dim in GROUPS if dim in found.dims]
    every = [found.isel(dict(zip(dims, place, strict=True))) for place in np.ndindex(*(found.sizes[d] for d in dims))]
    out.print(found.attrs["title"])
    most = max(1, (out.width - HEADING) // COLUMN)
    for first in range(0, len(every), most):
        out.print()
        some = every[first : first + most]
        print_table(["", *map(_name, some)], list(_lines(some, rows, found.attrs["objective"])))
    out.print()
    for line in (*_excluded(found), *_misses(every), *_assumed(found)):
        out.print(line)


def layout_text(label: str) -> str:
    """A layout without the degrees that are one: tp4 pp4 dp32 for tp4.cp1.pp4.dp32.v1."""
    parts = (part for part in label.split(".") if part.lstrip("abcdefghijklmnopqrstuvwxyz") != "1")
    return " ".join(parts) or "one device"


def _name(group: xr.Dataset) -> str:
    size = int(group["devices"] if "devices" in group.coords else group["size"])
    return f"{size:,} x {group['system'].item()}" if size else str(group["system"].item())


def _lines(groups: Sequence[xr.Dataset], rows: Rows, objective: str) -> Iterator[list[str]]:
    """The rows of the table: quantities, then what takes several lines of a cell."""
    texts: dict[str, Callable[[xr.Dataset], list[str]]] = {}
    for heading, quantity in rows.items():
        texts[heading] = lambda group, quantity=quantity: [_value(group, quantity, objective)]
    texts |= {"memory": _memory, "layout": _layout, "limited by": _parts, "about as good": _others}
    for heading, text in texts.items():
        cells = [text(group) if group["found"].item() else [] for group in groups]
        if heading in rows and rows[heading] == objective:
            cells = [cell or ["no design"] for cell in cells]
        for i, line in enumerate(zip_longest(*cells, fillvalue="")):
            yield [heading if i == 0 else "", *line]


def _value(group: xr.Dataset, quantity: str, objective: str) -> str:
    unit = group[quantity].attrs.get("units", "1")
    text = number(group[quantity].item(), unit)
    ends = group[f"{objective}_interval"].values if quantity == objective else np.array([np.nan])
    return f"{text} ({' to '.join(number(end, unit) for end in ends)})" if np.isfinite(ends).all() else text


def _memory(group: xr.Dataset) -> list[str]:
    used, whole = (group[name].item() for name in ("memory_per_device", "hbm_capacity"))
    parts = {
        str(name).removesuffix("_memory").replace("_", " "): group[name].item()
        for name in group
        if "_memory" in str(name)
    }
    largest = sorted(parts.items(), key=lambda part: -part[1])
    of = [f"{name} {number(value, 'byte')}" for name, value in largest if value > LEAST_SHARE * used]
    return [f"{number(used, 'byte')} of {number(whole, 'byte')}", *of]


def _layout(group: xr.Dataset) -> list[str]:
    labels = [str(n) for n, v in group.data_vars.items() if str(v.attrs.get("long_name")).startswith(LABEL)]
    return [layout_text(group[LAYOUT].item()), *(f"{name} {group[name].item()}" for name in labels if name != LAYOUT)]


def _parts(group: xr.Dataset) -> list[str]:
    pairs = zip(group["part"].values, group["part_share"].values, strict=True)
    return [f"{word} {share:.0%}" for word, share in pairs if share >= LEAST_SHARE]


def _others(group: xr.Dataset) -> list[str]:
    rows = zip(*(group[f"alternative_{name}"].values for name in ("layout", "ratio", "tied")), strict=True)
    return [f"{layout_text(label)} ({ratio - 1:+.1%})" for label, ratio, tied in rows if tied]


def _excluded(found: xr.Dataset) -> Iterator[str]:
    """What part of the designs is excluded, and the most frequent reasons."""
    designs, counts = int(found["designs"].sum()), found["excluded"].sum(found["found"].dims).values
    if not counts.any():
        return
    yield f"{counts.sum() / designs:.0%} of {designs:,} designs are excluded:"
    for i in np.argsort(-counts)[:MOST_REASONS]:
        if counts[i] >= LEAST_SHARE * designs:
            yield f"{counts[i] / designs:>5.0%}  {found['reason'].values[i]} [{found['constraint'].values[i]}]"


def _misses(groups: Sequence[xr.Dataset]) -> Iterator[str]:
    """The designs nearest to a limit that it alone excludes."""
    for group in groups[:MOST_MISSES]:
        for limit in group["limit"].values:
            near = {
                n.removeprefix(NEAR): group[n].sel(limit=limit).item() for n in map(str, group) if n.startswith(NEAR)
            }
            if near["labels"]:
                yield f"Near: {_name(group)}, {near['labels']}: {_near(group, str(limit), near)}"


def _near(group: xr.Dataset, limit: str, near: Mapping[str, Any]) -> str:
    unit = "byte" if limit == "fits_memory" else "s"
    text = f"{number(near['value'], unit)} of {number(near['limit'], unit)} [{limit}]"
    if near["remedy"]:
        text += f"; {near['remedy']} fits, {near['remedied'] / near['objective'] - 1:+.0%}"
    return text


def _assumed(found: xr.Dataset) -> Iterator[str]:
    for line in found.attrs["assumptions"]:
        option, _, value = line.partition(": ")
        yield f"Assumed: {value} (--{option})"


def answer_rows(found: xr.Dataset) -> list[dict[str, Any]]:
    """One row of plain values for every design of an answer."""
    dims = tuple(dim for dim in GROUPS if dim in found.dims)
    names = [str(name) for name, values in found.data_vars.items() if values.dims == dims]
    rows = []
    for place in np.ndindex(*(found.sizes[d] for d in dims)):
        labels = {d: found[d].values[i].item() for d, i in zip(dims, place, strict=True)}
        rows.append(labels | {name: found[name].values[place].item() for name in names})
    return rows
