"""What a picture is of: a study or a result, narrowed to the labels that a view names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.best_design import left_open
from perfgrid.catalog import Variable, load_variables
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.graph.registry import Constraint
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.formulas import INNER
from perfgrid.results.provenance import stated_best, stated_views, workload_of
from perfgrid.results.schema import STUDY_ATTRIBUTE, stored
from perfgrid.study.entries import unit_of
from perfgrid.study.file import Best
from perfgrid.study.study import Study
from perfgrid.study.view import View
from perfgrid.study.where import filtered
from perfgrid.text.words import item_text, words

FOUND = "found"  # coordinate of best designs: whether a group has one
MOST_CITED, MOST_STATED = 4, 8  # sources and assumptions that a caption names
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")


@dataclass(frozen=True)
class Subject:
    """A study or a result, and the user's own formulas with which a result was made."""

    what: Study | xr.Dataset
    formulas: tuple[Callable[..., Any], ...] = ()

    @cached_property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """The labels of every axis of its designs."""
        if isinstance(self.what, Study):
            return {a.name: tuple(a.labels.tolist()) for a in self.what.space.axes}
        named = str(self.what.attrs.get("study_axes", "")).split()
        if FOUND in self.what.coords:  # best designs, of every number of devices and rank too
            named = list(dict.fromkeys([*named, *map(str, self.what[FOUND].dims)]))
        return {d: tuple(self.what[d].values.tolist()) for d in named if d in self.what.dims and d in self.what.coords}

    @cached_property
    def coordinates(self) -> dict[str, tuple[str, np.ndarray]]:
        """The coordinates along each axis, such as tp along parallelism: their axis and their values."""
        if isinstance(self.what, Study):
            return {
                name: (a.name, np.asarray(a.columns[name]))
                for a in self.what.space.axes
                for name in a.shown
                if name != a.name
            }
        found = {str(n): c for n, c in self.what.coords.items() if c.ndim == 1 and str(n) not in self.what.dims}
        return {n: (str(c.dims[0]), c.values) for n, c in found.items() if str(c.dims[0]) in self.axes}

    def inner(self, name: str) -> bool:
        """Whether a name is that of an inner axis of outputs, such as product or pass, and of no axis of designs."""
        return name in INNER.labels and name not in self.axes and name not in self.coordinates

    @cached_property
    def scaled(self) -> frozenset[str]:
        """The axes whose labels are factors."""
        if isinstance(self.what, Study):
            return frozenset(a.name for a in self.what.space.axes if a.scales)
        if SPACE_ATTRIBUTE not in self.what.attrs:
            return frozenset()
        return frozenset(a["name"] for a in stored(self.what.attrs, SPACE_ATTRIBUTE)["axes"] if a["scales"])

    @property
    def title(self) -> str:
        """That of the study."""
        return self.what.file.title if isinstance(self.what, Study) else str(self.what.attrs.get("title", ""))

    @property
    def workload(self) -> str:
        """That of the study."""
        return workload_of(self.what)

    @property
    def objective(self) -> Best | None:
        """What the study calls best."""
        return self.what.file.best if isinstance(self.what, Study) else stated_best(self.what.attrs)

    @property
    def views(self) -> list[View]:
        """The views that the study states."""
        return list(self.what.file.view) if isinstance(self.what, Study) else stated_views(self.what.attrs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The quantities that it holds, without constraints."""
        if isinstance(self.what, Study):
            return self.what.outputs
        return tuple(str(n) for n, v in self.what.data_vars.items() if "constraint" not in v.attrs)

    def knows(self, quantity: str) -> bool:
        """Whether it holds a quantity, or can evaluate it."""
        if quantity in self.outputs or not isinstance(self.what, Study):
            return quantity in self.outputs
        return quantity in self.what.registry.names() or quantity in self.what.space.names()

    def is_number(self, quantity: str) -> bool:
        """Whether an output is a number, and neither a label nor a constraint."""
        if isinstance(self.what, Study):
            found = self.what.registry.formulas.get(quantity)
            stated = quantity in (*self.what.registry.choices, *self.what.space.names())
            return stated if found is None else not found.flags and not isinstance(found, Constraint)
        return "flag_meanings" not in self.what[quantity].attrs and self.what[quantity].dtype.kind == "f"

    def reason(self, constraint: str) -> str:
        """Why designs that violate a constraint are infeasible."""
        if isinstance(self.what, Study):
            found = self.what.registry.formulas.get(constraint)
            return found.reason if isinstance(found, Constraint) else ""
        known = constraint in self.what.data_vars
        return str(self.what[constraint].attrs["reason"]) if known else words(constraint)

    def unit(self, quantity: str) -> str:
        """The unit of an output, an axis or a coordinate."""
        if quantity in self.scaled:
            return "1"
        if isinstance(self.what, Study):
            known = quantity in self.what.registry.names()
            return self.what.registry.get(quantity).unit if known else unit_of(self.variables, quantity)
        known = quantity in self.what.variables and "units" in self.what[quantity].attrs
        return str(self.what[quantity].attrs["units"]) if known else unit_of(self.variables, quantity)

    @property
    def variables(self) -> Mapping[str, Variable]:
        """The given quantities."""
        return self.what.catalog.variables if isinstance(self.what, Study) else load_variables()

    def text(self, axis: str, label: Any) -> str:
        """A label with the unit of what its axis states."""
        return item_text(label, self.unit(axis))

    def narrowed(self, at: Mapping[str, Any], placed: Iterable[str] = ()) -> Subject:
        """The same with the labels of ``at`` left; a list keeps several.

        Along axes that are not ``placed`` hardware that is swept stays as it is. PerfgridError for an unknown axis or
        label, and where labels contradict each other.
        """
        single = {name: label for name, label in at.items() if not isinstance(label, list)}
        best = self.objective
        held = best.at if best is not None else {}
        single |= {n: label for n, label in held.items() if n in self.axes and n not in (*at, *placed, *single)}
        for name in (n for n in self.axes if n not in (*placed, *at, *single) and n in self.scaled):
            same = [label for label in self.axes[name] if label == 1]
            single |= {name: same[0]} if same else {}
        kept = {name: np.arange(len(labels)) for name, labels in self.axes.items()}
        for name, label in [*single.items(), *((n, one) for n, one in at.items() if isinstance(one, list))]:
            several = label if isinstance(label, list) else [label]
            rows = [self._rows(name, one) for one in several]
            for axis in rows[0]:
                kept[axis] = np.intersect1d(kept[axis], np.unique(np.concatenate([found[axis] for found in rows])))
                if not len(kept[axis]):
                    raise PerfgridError(f"no design has {name} = {item_text(label)} beside the other labels")
        return self.taking(kept)

    def _rows(self, name: str, label: Any) -> dict[str, np.ndarray]:
        """The rows of an axis at a label of it, or of a coordinate along it."""
        if name not in self.axes and name not in self.coordinates:
            raise PerfgridError(f"the study has no axis {name!r}{nearest(name, (*self.axes, *self.coordinates))}")
        axis = self.coordinates[name][0] if name in self.coordinates else name
        if isinstance(self.what, xr.Dataset) and (FOUND in self.what.coords or SPACE_ATTRIBUTE not in self.what.attrs):
            values = np.asarray(self.axes[axis] if axis == name else self.coordinates[name][1])
            return {
                axis: np.array([Axis(name, np.unique(values)).index(label) == i for i in _places(values)]).nonzero()[0]
            }
        return {axis: left_open(self.what, {name: label})[2][axis]}

    def taking(self, kept: Mapping[str, np.ndarray]) -> Subject:
        """The same with some rows of its axes."""
        if isinstance(self.what, Study):
            axes = (filtered(a, kept[a.name]) if a.name in kept else a for a in self.what.space.axes)
            study = replace(self.what, space=Space(tuple(axes), self.what.space.constants))
            return Subject(study, self.formulas)
        return Subject(self.what.isel({n: rows for n, rows in kept.items() if n in self.what.dims}), self.formulas)

    @property
    def points(self) -> int:
        """Design points."""
        return int(np.prod([len(labels) for labels in self.axes.values()], dtype=np.int64))

    # -- what a caption says ------------------------------------------------------------------------------------------

    def stated(self, but: Iterable[str] = ()) -> str:
        """What is the same for all designs: axes with one label, and the parameters of the workload."""
        items = {n: self.text(n, labels[0]) for n, labels in self.axes.items() if len(labels) == 1}
        if isinstance(self.what, Study):
            items |= {n: item_text(value, self.unit(n)) for n, value in self.what.file.workload_parameters.items()}
        shown = [f"{words(n)} {text}" for n, text in items.items() if n not in but]
        more = [f"{len(shown) - MOST_STATED} more"] if len(shown) > MOST_STATED else []
        return ", ".join(shown[:MOST_STATED] + more)

    def sources(self) -> str:
        """The sources of the catalog entries and formulas, those that state most first, as authors and years."""
        counted: Counter[str] = Counter()
        if isinstance(self.what, Study):
            tables = self.what.sources()
        else:
            known = STUDY_ATTRIBUTE in self.what.attrs
            tables = stored(self.what.attrs, STUDY_ATTRIBUTE)["sources"] if known else {}
        for entries in (tables.get(table, {}) for table in ("device", "model", "node", "memory")):
            counted.update({short(text) for values in entries.values() for text in values.values()})
        cited = [name for name, _ in sorted(counted.items(), key=lambda item: (-item[1], item[0]))]
        more = f" and {len(cited) - MOST_CITED} more" if len(cited) > MOST_CITED else ""
        return "; ".join(cited[:MOST_CITED]) + more


def _places(values: np.ndarray) -> list[int]:
    """The place of each value among the different ones."""
    return np.unique(values, return_inverse=True)[1].tolist()


def short(citation: str) -> str:
    """Authors and year of a citation."""
    year = _YEAR.findall(citation)
    author = citation.partition(",")[0] + (" et al." if " et al." in citation else "")
    return f"{author} {year[0]}" if year else author
