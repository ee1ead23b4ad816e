"""What a checked study holds: its file, the space of its designs, its formulas and the catalog that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from perfgrid.catalog import Catalog
from perfgrid.engine.errors import MissingQuantity, PerfgridError
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import Graph, resolve_checked
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Space

from .entries import IO_NODE, NATIVE, OWN_PREFIX, STATED, label_in
from .file import StudyFile
from .space import TABLES


@dataclass(frozen=True)
class Content:
    """What a study states, and the graph and the plan of its outputs: what checks and searches read of it."""

    file: StudyFile
    space: Space
    registry: Registry
    catalog: Catalog
    name: str = "study"
    source: str = ""
    formulas: tuple[Callable[..., Any], ...] = ()  # the user's own
    stated: frozenset[str] = frozenset()  # quantities that its axes and overrides state instead of the catalog
    implied: Mapping[str, str] = field(default_factory=dict)  # what follows from a stated quantity -> that quantity
    defaults: Mapping[str, str] = field(default_factory=dict)  # table -> the entry taken where none is stated
    tables: frozenset[str] = frozenset()  # of which its axes state entries; of others they are assumed
    notes: tuple[str, ...] = ()  # which of two statements about one thing counts
    settings: Mapping[str, Any] = field(default_factory=dict)  # single catalog values that replace those of entries
    pools: Mapping[str, Self] = field(default_factory=dict)  # of pairs of pools: axis -> the designs behind its labels

    @property
    def outputs(self) -> tuple[str, ...]:
        """The wanted quantities."""
        return tuple(self.file.outputs)

    def graph(self) -> Graph:
        """The formulas of the outputs, with the constraints on them; errors like `plan`."""
        given = (self.space.names(), self.file.choices, self.space.label_quantities())
        with self._naming():
            return resolve_checked(self.registry, self.outputs, *given)

    def plan(self, small_points: int | None = None) -> Plan:
        """The plan of this study. Raises PerfgridError for a label as an output and a quantity that nothing states."""
        with self._naming():
            return Plan(self.registry, self.space, self.outputs, self.file.choices, small_points)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Makes errors of the engine name the study and where a quantity is stated."""
        coordinates = {c for a in self.space.axes for c in (a.name, *a.shown)} | set(self.space.label_quantities())
        for name in self.outputs:
            if name in coordinates:
                raise PerfgridError(f"{self.name}, outputs: {name!r} labels designs; a result has it as a coordinate")
        try:
            yield
        except MissingQuantity as missing:
            variable = self.catalog.variables.get(missing.quantity)
            if variable is None:
                raise PerfgridError(f"{self.name}: {missing}") from missing
            where = "[workload_parameters] or [axes]"
            if variable.of in (*TABLES, "parallelism"):
                where = f"[axes], as {variable.of}"
            reader = self.registry.formulas.get(missing.reader)
            choice = f", or another {reader.by}" if reader is not None and reader.by is not None else ""
            raise PerfgridError(
                f"{self.name}: {missing.quantity!r}, needed by {missing.reader!r}, is not stated "
                f"({variable.meaning}): state it in {where}{choice}"
            ) from missing
        except PerfgridError as error:
            raise PerfgridError(f"{self.name}: {error}") from error

    def label(self, axis: str, value: Any) -> Any:
        """A label as a user writes it, with a unit say, as the axis holds it."""
        found = next((a for a in self.space.axes if a.name == axis), None)
        if found is None or axis in found.scales:
            return value
        return label_in(self.catalog.variables, axis, found.labels, value)

    def sources(self) -> dict[str, dict[str, dict[str, str]]]:
        """Table -> entry -> quantity -> citation, of the catalog entries that the study uses."""
        used: dict[str, set[str]] = {table: set() for table in TABLES}
        for axis in self.space.axes:
            if axis.name in TABLES:
                used[axis.name] |= set(map(str, axis.labels)) - {NATIVE}
            names = {c.removeprefix(STATED).removeprefix(OWN_PREFIX) for c in axis.columns}
            held = {v.of for v in self.catalog.variables.values() if v.name in names}
            for table in held & set(TABLES) & set(axis.columns):  # a device also names what the study has no need of
                used[table] |= set(map(str, axis.columns[table])) - {NATIVE}
            if IO_NODE in held:  # the nodes of I/O dies, on an axis of their own or of devices
                nodes = axis.labels if axis.name == IO_NODE else axis.columns.get("io_process_node", [])
                used["node"] |= set(map(str, nodes)) - {"none"}
        for table, entry in self.defaults.items():
            used[table] |= {entry} - {NATIVE}
        cited = self.catalog.references
        return {
            table: {
                name: {q: cited.get(key, key) for q, key in self.catalog.entry(table, name).sources.items()}
                for name in sorted(names)
            }
            for table, names in used.items()
            if names
        }
