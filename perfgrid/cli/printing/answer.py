"""An answer on one screen: the best designs side by side, what is near them, and what was assumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.text import number

from .console import out, print_table

TITLE, COLUMN = 18, 30  # characters of the first column, and of one design
MOST_MISSES = 3
Rows = Mapping[str, str]  # heading -> quantity


def print_answer(found: xr.Dataset, rows: Rows) -> None:
    """The designs of an answer side by side, as many as the terminal is wide enough for, and its notes."""
    out.print(found.attrs["title"])
    groups = [
        found.isel(system=i, devices=k) for i in range(found.sizes["system"]) for k in range(found.sizes["devices"])
    ]
    most = max(1, (out.width - TITLE) // COLUMN)
    for some in (groups[first : first + most] for first in range(0, len(groups), most)):
        out.print()
        print_table(["", *map(_name, some)], list(_lines(some, rows, found.attrs["objective"])), whole=True)
    out.print()
    for line in (*_excluded(found), *_misses(found), *_assumed(found)):
        out.print(line)


def _name(group: xr.Dataset) -> str:
    return f"{group['system'].item()} x {group['devices'].item():,}"


def _lines(groups: Sequence[xr.Dataset], rows: Rows, objective: str) -> Iterable[list[str]]:
    """The rows of the table: quantities, memory, layout, what limits, and what is about as good."""
    texts: dict[str, Callable[[xr.Dataset], list[str]]] = {
        heading: lambda group, quantity=quantity: [_value(group, quantity, objective)]
        for heading, quantity in rows.items()
    }
    found = {"memory": _memory, "layout": _layout, "limited by": _parts, "about as good": _others}
    texts |= {
        heading: lambda group, text=text: text(group) if group["found"].item() else []
        for heading, text in found.items()
    }
    for heading, text in texts.items():
        cells = zip_longest(*map(text, groups), fillvalue="")
        yield from ([heading if i == 0 else "", *line] for i, line in enumerate(cells))


def _value(group: xr.Dataset, quantity: str, objective: str) -> str:
    if not group["found"].item():
        return "no design" if quantity == objective else ""
    text = number(group[quantity].item(), group[quantity].attrs.get("units", "1"))
    if quantity == objective and f"{objective}_interval" in group:
        ends = [number(v, group[quantity].attrs["units"]) for v in group[f"{objective}_interval"].values]
        text += f" ({ends[0]} to {ends[1]})" if "-" not in ends else ""
    return text


def _memory(group: xr.Dataset) -> list[str]:
    names = [n for n in group if str(n).endswith("_memory")]
    used, whole = (group[n].item() for n in ("memory_per_device", "hbm_capacity"))
    parts = sorted(((group[n].item(), str(n).removesuffix("_memory").replace("_", " ")) for n in names), reverse=True)
    of = [f"{name} {number(value, 'byte')}" for value, name in parts if value > 0.01 * used]
    return [f"{number(used, 'byte')} of {number(whole, 'byte')}", *of]


def layout_text(label: str) -> str:
    """A layout without the degrees that are one: tp4 pp4 dp32 for tp4.cp1.pp4.dp32.v1."""
    return (
        " ".join(part for part in label.split(".") if part.strip("abcdefghijklmnopqrstuvwxyz") != "1") or "one device"
    )


def _layout(group: xr.Dataset) -> list[str]:
    others = [
        n for n, v in group.data_vars.items() if v.attrs.get("long_name") == f"label of {n}" and n != "parallelism"
    ]
    return [layout_text(group["parallelism"].item()), *(f"{n} {group[n].item()}" for n in others)]


def _parts(group: xr.Dataset) -> list[str]:
    pairs = zip(group["part"].values, group["part_share"].values, strict=True)
    return [f"{word} {share:.0%}" for word, share in pairs if word and share >= 0.005]


def _others(group: xr.Dataset) -> list[str]:
    rows = zip(*(group[f"alternative_{n}"].values for n in ("layout", "ratio", "tied")), strict=True)
    return [f"{layout_text(label)} ({ratio - 1:+.1%})" for label, ratio, tied in rows if tied]


def _excluded(found: xr.Dataset) -> Iterable[str]:
    """What part of the designs every constraint excludes."""
    counts, designs = found["excluded"].sum(("system", "devices")), int(found["designs"].sum())
    order = np.argsort(-counts.values)
    shares = [f"{found['constraint'].values[i]} {counts.values[i] / designs:.0%}" for i in order if counts.values[i]]
    if shares:
        yield f"Excluded of {designs:,} designs: {', '.join(shares)}"


def _misses(found: xr.Dataset) -> Iterable[str]:
    """The nearest designs that one limit excludes."""
    places = [p for p in np.ndindex(*found["near_miss_value"].shape) if np.isfinite(found["near_miss_value"].values[p])]
    for i, k, m in places[:MOST_MISSES]:
        near = {
            str(n).removeprefix("near_miss_"): found[n].values[i, k, m] for n in found if str(n).startswith("near_miss")
        }
        head, _, labels = near["layout"].partition(", ")
        yield (
            f"Near: {_name(found.isel(system=i, devices=k))} {layout_text(head)}, {labels}: "
            f"{number(near['value'], 'byte')} of {number(near['limit'], 'byte')}"
        )


def _assumed(found: xr.Dataset) -> Iterable[str]:
    for line in found.attrs["assumptions"]:
        option, _, value = line.partition(": ")
        yield f"Assumed  {value} (--{option})"


def answer_rows(found: xr.Dataset) -> list[dict[str, Any]]:
    """One row of plain values for every design of an answer."""
    names = [n for n, v in found.data_vars.items() if v.dims == ("system", "devices")]
    return [
        {"system": s, "devices": d} | {str(n): found[n].values[i, k].item() for n in names}
        for i, s in enumerate(found["system"].values.tolist())
        for k, d in enumerate(found["devices"].values.tolist())
    ]
