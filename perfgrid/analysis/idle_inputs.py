"""Stated values that designs do not feel: with other values in their place all outputs and limits stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.catalog import Variable
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.graph.changes import moves
from perfgrid.engine.graph.resolver import Graph, replay, resolve_checked
from perfgrid.engine.grid.space import Space
from perfgrid.study.entries import OWN_PREFIX, STATED, entries_at
from perfgrid.study.ledger import Input, asked_for, stated
from perfgrid.study.space import TABLES
from perfgrid.study.study import Study
from perfgrid.study.where import filtered

Index = Sequence[int]  # of a design: the row of every axis
MOST_DESIGNS = 12  # on which values are tried, spread over all that are best
FAR = 1e6  # by which a number is multiplied and divided to see whether it is a limit


def idle_inputs(study: Study, designs: Sequence[Index], inputs: Iterable[Input] | None = None) -> list[Input]:
    """The inputs that none of some designs feels: no output and no constraint moves with them.

    A number is doubled and halved, a flag is turned, a word replaced by others. A limit that a design keeps with room
    counts as felt: a number `FAR` away would break it. What an entry states is tried where a design has that entry.
    Left out are axes of several values, layouts, and names of entries. ``inputs``: by default all that the study
    states; of several workloads none, since one may rest on what others do not.
    """
    if study.file.workloads:
        return []
    graphs: dict[Any, Graph] = {}
    points = [Point.at(study, index, graphs) for index in designs]
    every = stated(study) if inputs is None else inputs
    return [one for one in every if one.read and _tried(study, one) and _felt(points, one) is False]


def idle_among_winners(study: Study, winners: xr.Dataset) -> list[str]:
    """What to say of the stated values that the best designs of a study do not feel. Tried are some of all groups."""
    found = winners["found"]
    groups = np.argwhere(found.values)
    tried = groups[np.linspace(0, len(groups) - 1, min(len(groups), MOST_DESIGNS)).round().astype(int)]
    held = {axis.name: winners[axis.name] for axis in study.space.axes if len(axis) > 1}
    designs = []
    for place in tried:
        at = dict(zip(found.dims, place, strict=True))
        labels = {name: of.values[tuple(at[d] for d in of.dims)] for name, of in held.items()}
        designs.append([axis.index(labels[axis.name]) if axis.name in held else 0 for axis in study.space.axes])
    some = f"{len(tried)} of the {len(groups)}" if len(tried) < len(groups) else f"the {len(groups)}"
    place = "the best design" if len(groups) == 1 else f"{some} best designs"
    return [f"{one.name} has no effect on {place}" for one in idle_inputs(study, designs)]


@dataclass(frozen=True)
class Point:
    """One design of a study, worked out, with the entries that it uses."""

    study: Study
    space: Space
    entries: Mapping[str, str]
    graphs: dict[Any, Graph]  # by the words that select formulas, which many designs have alike

    @classmethod
    def at(cls, study: Study, index: Index, graphs: dict[Any, Graph]) -> Point:
        """The design at a row of every axis."""
        axes = tuple(filtered(axis, np.array([row])) for axis, row in zip(study.space.axes, index, strict=True))
        entries = entries_at(study.space, index, TABLES, study.defaults)
        return cls(study, Space(axes, study.space.constants), entries, graphs)

    @cached_property
    def graph(self) -> Graph:
        """Its formulas."""
        return self._graph(self.space)

    @cached_property
    def values(self) -> dict[str, Any]:
        """Every quantity by name."""
        return replay(self.graph, {name: self._leaf(self.space, name) for name in self.graph.leaves})

    def feels(self, quantity: str) -> bool | None:
        """Whether anything that counts moves with a quantity; None where no other value can be tried."""
        names = {prefix + quantity for prefix in ("", STATED, OWN_PREFIX)} & set(self.graph.leaves)
        if names:
            variable, value = self.study.catalog.variables.get(quantity), self.values[min(names)]
            tried = (
                self._moves(self.graph, self.values | dict.fromkeys(names, other), limits)
                for other, limits in _others(variable, value)
            )
        elif quantity in self.graph.selectors:
            tried = (self._moves_with(_stating(self.space, quantity, word)) for word in self._other_words(quantity))
        else:
            return None
        found = None
        for moved in tried:
            if moved:
                return True
            found = False
        return found

    def _graph(self, space: Space) -> Graph:
        words = space.label_quantities()
        key = tuple(sorted(words.items()))
        if key not in self.graphs:
            given = (space.names(), self.study.file.choices, words)
            self.graphs[key] = resolve_checked(self.study.registry, asked_for(self.study), *given)
        return self.graphs[key]

    def _leaf(self, space: Space, name: str) -> Any:
        return space.at(name, (0,) * len(space.axes))

    def _moves_with(self, space: Space) -> bool:
        """Whether another word moves anything; one that needs values which are not stated does."""
        try:
            graph = self._graph(space)
        except PerfgridError:
            return True
        return self._moves(graph, {name: self._leaf(space, name) for name in graph.leaves})

    def _moves(self, graph: Graph, leaves: Mapping[str, Any], limits: bool = False) -> bool:
        """Whether other leaves move anything that counts; with ``limits`` only whether they break one."""
        checks = [node.name for node in graph.constraints]
        return moves(self.graph, self.values, graph, leaves, checks if limits else {*graph.wanted, *checks})

    def _other_words(self, quantity: str) -> Iterator[str]:
        """The words that select other formulas, the default first."""
        now = self.space.labels_of(quantity)[0]
        variable = self.study.catalog.variables.get(quantity)
        choices = [c for c in self.study.registry.choices.values() if c.by == quantity]
        words = [str(variable.default)] if variable is not None and variable.default is not None else []
        words += [str(one.label) for choice in choices for one in choice.alternatives]
        yield from (word for word in dict.fromkeys(words) if word != now)


def _tried(study: Study, one: Input) -> bool:
    """Whether an input has one value, and not one for each of several designs."""
    if one.status != "stated" or one.entry is not None:
        return one.status == "stated"
    held = [axis for axis in study.space.axes if one.quantity in axis.columns or one.quantity in axis.scales]
    return all(len(axis) == 1 for axis in held)


def _felt(points: Iterable[Point], one: Input) -> bool | None:
    """Whether any design feels an input; None where it cannot be tried on any."""
    found = None
    for point in points:
        if one.entry is not None and point.entries.get(one.entry[0]) != one.entry[1]:
            continue
        felt = point.feels(one.quantity)
        if felt:
            return True
        found = felt if felt is not None else found
    return found


def _stating(space: Space, quantity: str, word: str) -> Space:
    """A single design with another word for a quantity."""
    axes = tuple(
        replace(axis, columns={**axis.columns, quantity: np.array([word])}) if quantity in axis.columns else axis
        for axis in space.axes
    )
    held = any(quantity in axis.columns for axis in axes)
    return Space(axes, space.constants if held else {**space.constants, quantity: word})


def _others(variable: Variable | None, value: Any) -> Iterator[tuple[Any, bool]]:
    """Other values of a quantity within its bounds, and whether each is so far away that only limits are watched."""
    if isinstance(value, bool):
        yield not value, False
        return
    now = np.asarray(value, np.float64)
    tried = [(2 * now, False), (now / 2, False), (now + 1, False), (FAR * now, True), (now / FAR, True)]
    low = high = None
    if variable is not None:
        low, high = variable.minimum, variable.maximum
        if variable.kind == "code":
            tried = [(np.full_like(now, code), False) for code in range(len(variable.codes))]
    for other, far in tried:
        other = other if low is None and high is None else np.clip(other, low, high)
        if variable is not None and variable.kind == "integer":
            other = np.floor(other)
        if not np.array_equal(other, now):
            yield (other if other.ndim else other.item()), far
