"""A plan whose axes but a few are one axis of listed rows: any rows of a grid, with all that its quantities share.

A `Cut` keeps a grid's small quantities on their distinct rows. Here rows of some axes (a layout, a microbatch and a
model each) become the rows of one axis, and quantities that tell only some of their columns apart are evaluated for
those alone, as on the grid. Kept axes may be cut into cells, each of which stands for all its rows: given ones are
intervals then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Key, Partition, Partitions, Space

from .interval import Interval, interval
from .subgrid import Cut, above

LISTED = "listed rows"  # no name that an axis can have


class Listing(Plan):
    """The plan of quantities on listed rows of some axes and all rows of the others.

    ``rows`` are the listed rows of every axis that is not kept (one array each, of one length); ``order`` are the axes
    of this plan, the kept ones and `LISTED`. An axis in ``cells`` (first rows of ranges of its rows) has one row for
    each of them. All quantities above the cut stay in the tile stage.
    """

    def __init__(
        self,
        cut: Cut,
        wanted: Sequence[str],
        rows: Mapping[str, np.ndarray],
        order: Sequence[str],
        cells: Mapping[str, np.ndarray] | None = None,
    ):
        names = list(cut.sizes)
        self.registry, self.choices = cut.registry, {}
        length = len(next(iter(rows.values())))
        cells = cells or {}
        sizes = {**cut.sizes, LISTED: length} | {axis: len(starts) for axis, starts in cells.items()}
        self.space = self.study_space = Space(tuple(Axis(n, np.arange(sizes[n])) for n in order))
        self.outputs, self.wanted, self.constraints = tuple(wanted), tuple(wanted), ()
        self.order, self.small_points = tuple(range(len(order))), 0
        self.graph = above(cut, self.wanted)
        self.partitions = tuple(Partitions(sizes[n]) for n in order)
        at = dict(zip(order, self.partitions, strict=True))
        whole = {axis: at[axis].of(np.arange(len(starts))) for axis, starts in cells.items()}
        known: dict[tuple[int, ...], Partition | None] = {}

        def listed(key: Key) -> Partition | None:
            """Which listed rows a quantity tells apart."""
            parts = [(p, rows[n]) for n, p in zip(names, key, strict=True) if n in rows and p is not None]
            same = tuple(id(p) for p, _ in parts)
            if same not in known:
                found = None
                for p, taken in parts:
                    found = at[LISTED].join(found, at[LISTED].of(p.inverse[taken]))
                known[same] = found
            return known[same]

        def moved(key: Key) -> Key:
            own = dict(zip(names, key, strict=True))
            own[LISTED] = listed(key)
            own |= {axis: every for axis, every in whole.items() if own[axis] is not None}
            return tuple(own[n] for n in order)

        every = (*self.graph.leaves, *self.graph.nodes)
        keys = {n: moved(cut.quantities[n].key) for n in every}
        place = list(order).index(LISTED)
        self.quantities = {
            n: replace(
                cut.quantities[n],
                key=keys[n],
                small=n in self.graph.leaves,
                columns=cut.quantities[n].columns | ({} if keys[n][place] is None else {LISTED: ()}),
            )
            for n in every
        }
        self.given = {n: self._gathered(cut, n, rows, order, cells) for n in self.graph.leaves}

    def _gathered(
        self,
        cut: Cut,
        name: str,
        rows: Mapping[str, np.ndarray],
        order: Sequence[str],
        cells: Mapping[str, np.ndarray],
    ) -> Any:
        """A sub-grid on the distinct rows of this plan, an interval if it varies within the cells."""
        value, partitions = cut.values[name], dict(zip(cut.sizes, cut.quantities[name].key, strict=True))
        chosen = self.quantities[name].key[list(order).index(LISTED)]
        index = []
        for axis, partition in partitions.items():
            if axis not in rows:
                place = list(order).index(axis)
                found = np.arange(1 if partition is None else partition.size)
            else:
                place = list(order).index(LISTED)
                first = rows[axis][:1] if chosen is None else rows[axis][chosen.rows]
                found = np.zeros(1, int) if partition is None else partition.inverse[first]
            index.append(found.reshape(tuple(len(found) if i == place else 1 for i in range(len(order)))))
        value = value[tuple(index)]
        least, most = (np.logical_and, np.logical_or) if value.dtype == bool else (np.minimum, np.maximum)
        lo = hi = value
        for axis, starts in cells.items():
            partition, place = partitions[axis], list(order).index(axis)
            if partition is not None:
                lo = least.reduceat(np.take(lo, partition.inverse, axis=place), starts, axis=place)
                hi = most.reduceat(np.take(hi, partition.inverse, axis=place), starts, axis=place)
        return value if hi is value else Interval(lo, hi)


class Listed(Evaluation):
    """The evaluation of a listing."""

    def _given(self, name: str) -> np.ndarray:
        assert isinstance(self.plan, Listing)
        return self.plan.given.pop(name)  # read once: what the tiles read of it is kept


class Bounds(Listed):
    """The evaluation of a listing with cells: intervals of every quantity above the cut."""

    known_by_text = False  # what is known of the signs of values is compiled in

    def _evaluate_small(self) -> dict[str, Any]:
        found = super()._evaluate_small()
        self._positive = {n: bool(np.all((v.lo if isinstance(v, Interval) else v) >= 0)) for n, v in found.items()}
        self._plain = {n for n, v in found.items() if not isinstance(v, Interval)}
        return found

    def _number(self, name: str, make: Callable[[], Any]) -> Any:
        return make() if name in self._plain else Interval(make(), make())

    def _handed(self, name: str, value: Any) -> Any:
        """Gathered once for all that reads it, and with what is known of its sign."""
        if not isinstance(value, Interval):
            value = jax.lax.optimization_barrier(value)
            return Interval(value, value, self._positive[name])
        lo, hi = jax.lax.optimization_barrier((value.lo, value.hi))
        return Interval(lo, hi, self._positive[name])

    def _number_of(self, name: str, result: Any) -> Any:
        found = result if isinstance(result, Interval) else interval(jnp.asarray(result))
        self._positive[name] = found.positive
        return found

    def _materialised(self) -> set[str]:
        """Every quantity: what is fused, XLA computes again for both bounds of what reads it."""
        return {name for name, quantity in self.plan.quantities.items() if not quantity.small}
