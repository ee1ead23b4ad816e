"""The objective of many groups as a pivot: two axes span a table, the others head one table each."""

from __future__ import annotations

from itertools import permutations, product
from string import ascii_uppercase
from typing import Any

import numpy as np
import xarray as xr
from rich.cells import cell_len

from perfgrid.analysis.best_of_result import FORBIDDEN
from perfgrid.printing.console import out
from perfgrid.printing.tables import GAP, print_table
from perfgrid.study.study import Study
from perfgrid.text.numbers import column, header

from .labels import axis_label, marks, print_legend

MOST_LINES = 200
MOST_CAPITALS = 9  # labels of the chosen axis that have a letter


def print_pivot(study: Study, winners: xr.Dataset, groups: list[str], objective: str, over: list[str]) -> bool:
    """Print the objective of the best design of each group, or nothing and False where no two axes fit the width.

    The longest axis runs down and the next across; another pair is taken where its labels do not fit. Of a single axis
    that is chosen along (`over`) a capital letter stands behind each value, if few labels win.
    """
    winners = winners.squeeze(drop=True)
    found = winners["found"].transpose(*groups).values
    values = winners[objective].broadcast_like(winners["found"]).transpose(*groups).values
    why = np.full(found.shape, "", dtype=object)
    if FORBIDDEN[0] in winners.coords:
        why = winners[FORBIDDEN[0]].transpose(*groups).values
    letters = marks(str(name) for name in why[~found])
    cells = [float(v) if ok else letters[str(w)] for v, ok, w in zip(values.flat, found.flat, why.flat, strict=True)]
    unit, texts = column(cells, winners[objective].attrs.get("units", "1"))
    labels = {axis: [axis_label(study, axis, label) for label in winners[axis].values.tolist()] for axis in groups}
    sides = _sides(labels, texts)
    if sides is None:
        return False
    down, across = sides
    capitals, marked = _marked(study, winners, groups, over, texts)
    if _sides(labels, marked) != sides:
        capitals, marked = {}, texts  # no room for letters
    grid = np.array(marked, dtype=object).reshape(found.shape)
    rest = [axis for axis in groups if axis not in sides]
    out.print(f"{header(objective, unit)} by {down} (rows) and {across} (columns); each value is the best of its group")
    tables = list(product(*(range(len(labels[axis])) for axis in rest)))
    printed = max(1, MOST_LINES // (len(labels[down]) + 2))
    for place in tables[:printed]:
        at = dict(zip(rest, place, strict=True))
        if at:
            out.print()
            out.print_items("", (f"{axis} = {labels[axis][i]}" for axis, i in at.items()))
        one = np.moveaxis(grid, [groups.index(a) for a in (*rest, down, across)], range(len(groups)))[place]
        _print_one(labels[down], labels[across], one, down)
    if len(tables) > printed:
        out.print(f"and {len(tables) - printed:,} tables more")
    for name, letter in capitals.items():
        out.print(f"{letter}  {over[0]} = {name}", indent="   ")
    print_legend(study, letters)
    out.print(f"{found.size:,} groups; --rows prints a row for each, with the chosen labels and other outputs")
    return True


def _marked(
    study: Study, winners: xr.Dataset, groups: list[str], over: list[str], texts: list[str]
) -> tuple[dict[str, str], list[str]]:
    """A letter for each label that wins along a single axis, and the values with their letters, if they are few."""
    if len(over) != 1 or over[0] not in winners.coords:
        return {}, texts
    found, taken = xr.broadcast(winners["found"], winners[over[0]])
    cells = zip(found.transpose(*groups).values.flat, taken.transpose(*groups).values.flat, strict=True)
    names = [axis_label(study, over[0], label) if ok else "" for ok, label in cells]
    distinct = list(dict.fromkeys(filter(None, names)))
    if len(distinct) > MOST_CAPITALS:
        return {}, texts
    capitals = dict(zip(distinct, ascii_uppercase, strict=False))
    return capitals, [f"{text} {capitals.get(name, ' ')}" for text, name in zip(texts, names, strict=True)]


def _print_one(down: list[str], across: list[str], cells: Any, name: str) -> None:
    """One table, whose headers are labels."""
    width = max(cell_len(text) for text in cells.flat)
    lines = [[label, *(text.rjust(width) for text in row)] for label, row in zip(down, cells, strict=True)]
    print_table([name, *across], lines, right=across, names=False)


def _sides(labels: dict[str, list[str]], cells: list[str]) -> tuple[str, str] | None:
    """The axes that run down and across: of those that fit the width the longest pair."""
    cell = max(map(cell_len, cells))
    longest = sorted(labels, key=lambda axis: -len(labels[axis]))
    for down, across in permutations(longest, 2):
        first = max(map(cell_len, (down, *labels[down])))
        if first + sum(GAP + max(cell, cell_len(label)) for label in labels[across]) <= out.width:
            return down, across
    return None
