"""Rows of a zipped axis that leave a quantity open: ``nan`` in its list, where the row's labels have no need of it.

Rows that take different alternatives need different quantities: a batch where it is given, a rate where requests
arrive. An open cell is the quantity's default; where it has none, no formula that the row takes may read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfgrid.catalog import Variable
from perfgrid.engine.errors import MissingQuantity, PerfgridError
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import resolve_checked
from perfgrid.engine.grid.space import Space

Open = dict[str, np.ndarray]  # quantity without a default -> whether each row leaves it open


def is_open(cell: Any) -> bool:
    """Whether a cell states nothing."""
    return cell is None or (isinstance(cell, float) and cell != cell)


def filled(variable: Variable, cells: Sequence[Any], place: str) -> tuple[list[Any], np.ndarray | None]:
    """The cells of a quantity with a legal value in open ones, and which rows must not need it.

    PerfgridError where all are open, and for a quantity of the catalog's tables.
    """
    opened = np.array([is_open(cell) for cell in cells])
    if not opened.any():
        return list(cells), None
    if variable.of not in ("workload", "parallelism", "computed"):
        raise PerfgridError(f"{place}: a row leaves {variable.name!r} of the {variable.of} open; state it in every row")
    if variable.optional and variable.default is not None:
        return [variable.default if left else cell for cell, left in zip(cells, opened, strict=True)], None
    if opened.all():
        raise PerfgridError(f"{place}: every row leaves {variable.name!r} open; leave it out")
    known = next(cell for cell, left in zip(cells, opened, strict=True) if not left)
    return [known if left else cell for cell, left in zip(cells, opened, strict=True)], opened


def check_open(
    space: Space, opened: Mapping[str, Open], registry: Registry, outputs: Sequence[str], choices: Mapping[str, str]
) -> None:
    """PerfgridError for a row that leaves open what a formula needs with the row's labels. ``opened``: by axis."""
    labels, given = space.label_quantities(), set(space.names())
    for axis in space.axes:
        cells = opened.get(axis.name, {})
        own = [name for name in labels if name in axis.columns]
        done = set[tuple[Any, ...]]()
        for row in np.flatnonzero(np.any([*cells.values()], axis=0)) if cells else ():
            lacking = tuple(name for name, where in cells.items() if where[row])
            here = {name: (str(axis.columns[name][row]),) for name in own}
            if (kind := (lacking, *here.values())) in done:
                continue
            done.add(kind)
            place = f"axes.{axis.name}, row {str(axis.labels[row])!r}"
            try:
                graph = resolve_checked(registry, outputs, given - set(lacking), choices, {**labels, **here})
            except MissingQuantity as missing:
                raise PerfgridError(
                    f"{place}: leaves {missing.quantity!r} open, which {missing.reader!r} needs"
                ) from None
            if made := [name for name in lacking if name in graph.nodes]:
                raise PerfgridError(f"{place}: leaves {made[0]!r} open, which other rows state and this one needs")
