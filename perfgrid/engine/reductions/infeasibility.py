"""How many designs each constraint forbids, counted where a search found none: nothing else is evaluated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Space

from .scan import Rows
from .subgrid import Cut, Selection

MOST_POINTS = 2**30  # on which a constraint is evaluated


class Forbidden:
    """Counts of the designs that constraints forbid, by group.

    Those of the small stage are counted first; where one of them forbids every design of every group, no tile is
    evaluated. A constraint that tells more than 2^30 of the designs asked about apart is left out.
    """

    def __init__(
        self,
        registry: Registry,
        space: Space,
        constraints: Sequence[str],
        choices: Mapping[str, str] | None = None,
        dtype: str = "float32",
        tile_points: int = 2**22,
        small_points: int | None = None,
    ):
        self.names, self.tile_points = tuple(constraints), tile_points
        self.cut = Cut.of(Plan(registry, space, self.names, choices, small_points, constraints=False), dtype)

    def counts(self, rows: Mapping[str, np.ndarray], over: Collection[str]) -> tuple[list[str], dict[str, np.ndarray]]:
        """The axes that are not in ``over``, and the designs that each constraint forbids by their rows.

        ``rows`` are those of every axis that are asked about.
        """
        groups = [axis for axis in self.cut.sizes if axis not in over]
        small = [name for name in self.names if name in self.cut.values]
        found = self._counted(small, rows, over)
        every = prod(len(rows[axis]) for axis in self.cut.sizes if axis in over)
        most = np.maximum.reduce([np.zeros([len(rows[axis]) for axis in groups]), *found.values()])
        if (most < every).any():
            found |= self._counted([name for name in self.names if name not in small], rows, over)
        return groups, {name: found[name] for name in self.names if name in found}

    def _counted(
        self, names: Sequence[str], rows: Mapping[str, np.ndarray], over: Collection[str]
    ) -> dict[str, np.ndarray]:
        plan = Selection(self.cut, names, rows)
        kept = [name for name in names if plan.quantities[name].points <= MOST_POINTS]
        if not kept:
            return {}
        part = Evaluation(Selection(self.cut, kept, rows), self.cut.dtype, self.tile_points)
        searched = [axis.name in over for axis in part.plan.space.axes]
        counts = {name: _Count(part, name, searched) for name in kept}
        for name, count in counts.items():
            if name in part.small:
                count.add(part.small[name], ())
        for tile in part.run():
            for name, value in tile.values.items():
                counts[name].add(value, tile.rows)
        return {name: count.spread() for name, count in counts.items()}


class _Count:
    """How often one flag is false along the axes searched, by rows of the others, added up over tiles."""

    def __init__(self, part: Evaluation, name: str, searched: Sequence[bool]):
        cut = -1 if name in part.small else part.tiles.axis
        self.rows = Rows(part.plan.quantities[name].key, part.plan.space.shape, cut)
        self.classes = [np.zeros(1, int) if over else self.rows.classes(i) for i, over in enumerate(searched)]
        self.total = np.zeros([int(c.max()) + 1 for c in self.classes], np.int64)
        self.searched = searched

    def add(self, flag: Any, cut_rows: Sequence[np.ndarray]) -> None:
        """Count a tile; one that differs from another only along axes that the flag does not depend on counts once."""
        if not self.rows.first(cut_rows):
            return
        rows, weights = self.rows.of(cut_rows)
        flag = np.asarray(flag)
        missed: Any = ~flag.reshape(flag.shape[: len(rows)])[tuple(slice(len(r)) for r in rows)]
        for axis in sorted(np.flatnonzero(self.searched), key=lambda i: weights[i].max()):  # plain sums first
            if weights[axis].max() == 1:
                missed = missed.sum(axis=axis, keepdims=True, dtype=np.int64)
            else:
                missed = np.expand_dims(np.tensordot(missed, weights[axis], (axis, 0)), axis)
        places = zip(self.classes, rows, self.searched, strict=True)
        self.total[np.ix_(*(classes if over else classes[r] for classes, r, over in places))] += missed

    def spread(self) -> np.ndarray:
        """The counts on every row of the axes that are not searched."""
        total = self.total[np.ix_(*self.classes)]
        return total.reshape([n for n, over in zip(total.shape, self.searched, strict=True) if not over])
