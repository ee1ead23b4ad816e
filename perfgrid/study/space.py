"""From the tables of a study file to a design space: catalog entries, value lists, ranges, zipped rows, layouts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from perfgrid.catalog import Catalog, Variable, convert
from perfgrid.catalog.names import resolved
from perfgrid.catalog.naming import check_label, check_name
from perfgrid.catalog.schema import KINDS
from perfgrid.catalog.units import multiple, number_or_text
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import resolve
from perfgrid.engine.grid.space import Axis, Space
from perfgrid.formulas import INNER

from .entries import (
    IMPLIED,
    IO_NODE,
    OWN,
    OWN_PREFIX,
    SWITCHABLE,
    bases,
    default_entries,
    given,
    io_columns,
    own_columns,
    reached,
    reimplemented,
    switchable_columns,
    usual_entries,
)
from .file import StudyFile
from .layer_pattern import LAYER_PATTERN, layer_pattern
from .layouts import parallelism_axis, with_split_experts
from .partners import alone
from .precedence import Precedence
from .samples import SAMPLE, entries_of, ranges, sample_axis
from .unstated import Open, check_open, filled
from .values import check_keys, check_no_repeats, numbers
from .values import names as names_of

TABLES = KINDS
LARGEST = 1e38  # of what is stated of a computed quantity: a grid in single precision holds it


@dataclass
class SpaceBuilder:
    """Turns the tables of a study file into a design space."""

    file: StudyFile
    name: str
    catalog: Catalog
    registry: Registry
    computed: frozenset[str] = frozenset()  # quantities of the user's own formulas
    taken: set[str] = field(default_factory=set)  # quantities that a sweep or the study states itself
    tables: set[str] = field(default_factory=set)  # tables of which the study states entries
    needed: set[str] = field(default_factory=set)  # quantities that the outputs may rest on
    usual: dict[str, str] = field(default_factory=dict)  # entries that all its devices are mostly used with
    defaults: dict[str, str] = field(default_factory=dict)  # entries that it takes without stating them
    implied: dict[str, str] = field(default_factory=dict)  # what follows from a stated quantity -> that quantity
    opened: dict[str, Open] = field(default_factory=dict)  # by zipped axis: what some of its rows leave open
    notes: list[str] = field(default_factory=list)  # which of two statements about one thing counts

    def space(self) -> Space:
        """The design space of the study. Raises PerfgridError with the place of whatever is wrong."""
        variables, axes = self.catalog.variables, []
        by_axes = self._stated_by_axes()
        self._refuse_computed(by_axes)
        self.tables = set(by_axes) & set(TABLES)
        stated_elsewhere = set(TABLES) - ({"device", "model"} - self.tables)  # without a name: optional
        constants: dict[str, Any] = {
            v.name: self._placed(v, v.default_value)
            for v in variables.values()
            if v.optional and v.default is not None and v.of not in stated_elsewhere
        }
        limits = self.registry.subjects() & {*self.file.workload_parameters, *by_axes}
        wanted = (*self.file.outputs, *sorted(limits))
        elsewhere = {*self.file.workload_parameters, *self.file.overrides, *by_axes}
        labels = {
            v.name: str(v.default)
            for v in variables.values()
            if v.of == "workload" and v.kind == "label" and v.optional and v.name not in elsewhere
        }
        self.needed = reached(self.registry, self.catalog, wanted, self.tables, self.computed, labels)
        constants |= {label: text for label, text in bases(self.tables).items() if label in self.needed}
        self._state(constants, by_axes)
        self.taken |= set(by_axes) - set(TABLES)
        axes += [self._axis(key, spec) for key, spec in self.file.axes.items() if key != SAMPLE]
        missing = set(TABLES) - self.tables - {column for axis in axes for column in axis.columns}
        self.defaults = dict(default_entries(self.catalog, missing, self.needed, self.usual))
        self._imply(constants)
        for table, entry in self.defaults.items():
            for column, values in self._columns(table, [entry], f"{self.name}, {table}").items():
                constants.setdefault(column, values[0])
        constants = {name: value for name, value in constants.items() if name not in self.computed}
        axes = [replace(a, columns={k: v for k, v in a.columns.items() if k not in self.computed}) for a in axes]
        Precedence(self.catalog, axes, constants, self.taken, self.defaults, self.name, self.notes).settle()
        self.notes += alone(elsewhere | {*self.taken}, axes, constants)
        if "etp" in self.needed and "etp" not in self.computed:
            axes = with_split_experts(axes, constants)
        if LAYER_PATTERN in self.needed:
            constants[LAYER_PATTERN] = layer_pattern(Space(tuple(axes), constants))
        if SAMPLE in self.file.axes:
            axes.append(self._samples(axes, constants))
        for axis, other in itertools.permutations(axes, 2):
            if axis.name in other.shown:
                raise PerfgridError(
                    f"{self.name}, axes.{axis.name}: axes.{other.name} states {axis.name!r} too; "
                    "give this axis another name"
                )
        swept = {c for a in axes for c in a.columns}
        try:
            space = Space(tuple(axes), {k: v for k, v in constants.items() if k not in swept})
        except PerfgridError as error:
            raise PerfgridError(f"{self.name}, axes: {error}") from None
        self._check_scales(space)
        try:
            check_open(space, self.opened, self.registry, wanted, self.file.choices)
        except PerfgridError as error:
            raise PerfgridError(f"{self.name}, {error}") from None
        return space

    def _state(self, constants: dict[str, Any], by_axes: Mapping[str, str]) -> None:
        """Add what ``[workload_parameters]`` and ``[overrides]`` state to the constants."""
        variables = self.catalog.variables
        computed = {name for name, found in self.registry.formulas.items() if found.of is None}
        for key, value in self.file.workload_parameters.items():
            place = f"{self.name}, workload_parameters.{key}"
            stated = [v.name for v in variables.values() if v.of not in (*TABLES, IO_NODE)]
            if key not in stated:
                if key in variables:
                    raise PerfgridError(
                        f"{place}: {key!r} belongs to the {variables[key].of}; state it in [overrides], or as an axis "
                        f"with [axes.{key}]"
                    )
                raise PerfgridError(f"{place}: unknown parameter{self._elsewhere(key, stated)}")
            if key in computed and variables[key].of != "parallelism":
                meaning = self.registry.formulas[key].meaning.rstrip(".")
                raise PerfgridError(
                    f"{place}: the workload {self.file.workload} computes {key!r} ({meaning}); state what it follows "
                    "from, or replace it in [overrides]"
                )
            self._variable(key, place)  # refuses what no formula of the workload reads
            if key in by_axes:
                raise PerfgridError(f"{place}: axes.{by_axes[key]} states {key!r} too; state it once")
            constants[key] = self._placed(variables[key], self._checked(variables[key], value, place))
        for key, value in self.file.overrides.items():
            place = f"{self.name}, overrides.{key}"
            if key in by_axes or key in self.file.workload_parameters:
                other = f"axes.{by_axes[key]}" if key in by_axes else f"workload_parameters.{key}"
                raise PerfgridError(f"{place}: {other} states {key!r} too; state it once")
            variable = self._variable(key, place)
            if variable is None:
                raise PerfgridError(
                    f"{place}: unknown quantity{self._elsewhere(key, (*self.registry.names(), *variables))}"
                )
            constants[key] = self._placed(variable, self._checked(variable, value, place))
            self.taken.add(key)

    def _imply(self, constants: dict[str, Any]) -> None:
        """Add what follows from a stated quantity, unless the study, an entry it names or a user's entry says it."""
        for stated in sorted(IMPLIED.keys() & self.taken):
            for name, value in IMPLIED[stated].items():
                table = self.catalog.variables[name].of
                entry = self.catalog.tables[table].get(self.defaults.get(table, ""))
                said = name in self.taken or table in self.tables or (entry is not None and name in entry.stated)
                if name in self.needed and name not in self.computed and not said:
                    constants[name], self.implied[name] = value, stated

    def _refuse_computed(self, by_axes: Mapping[str, str]) -> None:
        """PerfgridError for a quantity that the study states and a formula of the user computes."""
        places = {name: f"axes.{axis}" for name, axis in by_axes.items()} | {
            key: f"axes.{key}" for key in self.file.axes
        }
        for table in ("workload_parameters", "overrides"):
            places |= {key: f"{table}.{key}" for key in getattr(self.file, table)}
        for name in sorted(self.computed & places.keys()):
            raise PerfgridError(
                f"{self.name}, {places[name]}: a formula of yours computes {name!r} too; keep one of them"
            )

    def _samples(self, axes: Sequence[Axis], constants: Mapping[str, Any]) -> Axis:
        """The axis of samples: factors on the estimates of the catalog that the outputs depend on."""
        entries = entries_of(axes, self.defaults, self.catalog)
        swept = {c for a in axes for c in a.columns}
        space = Space(tuple(axes), {k: v for k, v in constants.items() if k not in swept})
        try:
            graph = resolve(
                self.registry, self.file.outputs, space.names(), self.file.choices, space.label_quantities()
            )
        except PerfgridError as error:
            raise PerfgridError(f"{self.name}: {error}") from None
        found = ranges(self.catalog, entries, set(graph.leaves) - self.taken - self.implied.keys())
        return sample_axis(self.file.axes[SAMPLE], found, f"{self.name}, axes.{SAMPLE}")

    def _stated_by_axes(self) -> dict[str, str]:
        """The quantities (and tables) that axes state, with the axis."""
        found: dict[str, str] = {}
        for key, spec in self.file.axes.items():
            check_name(key, f"{self.name}, axes")
            names = [key]
            if isinstance(spec, dict):
                names = [] if "scale" in spec else list(spec) if key == "parallelism" else [key]
                if key == "parallelism":
                    names += ["tp", "pp", "dp"]
                if isinstance(spec.get("zip"), dict):
                    names = list(spec["zip"])
            for name in dict.fromkeys(names):
                if name in found:
                    raise PerfgridError(f"{self.name}: axes.{found[name]} and axes.{key} both state {name!r}")
                found[name] = key
        return found

    def _check_scales(self, space: Space) -> None:
        """A scaled quantity stays within its bounds."""
        for axis, name in ((a, n) for a in space.axes for n in a.scales):
            parts = [values for _, values in space.parts(name)]
            if (variable := given(self.catalog.variables, name)) is None:
                continue
            for value in (prod(float(end(v)) for v in parts) for end in (np.min, np.max)):
                place = f"{self.name}, axes.{axis.name}{'.scale' if axis.name == name else ''}: the scaled {name}"
                convert(variable.model_copy(update={"axis": None}), value, place)

    def _elsewhere(self, key: str, legal: Sequence[str]) -> str:
        """Where a misplaced key belongs, or the nearest legal ones, as the end of a message."""
        tables = (*TABLES, IO_NODE, "parallelism", SAMPLE)
        if key in tables:
            return f"; it is an axis: state it in [axes], such as {key} = [...]"
        if key in StudyFile.model_fields:
            return "; it is a key of the study: state it above all tables"
        return nearest(key, (*legal, *tables))

    def _variable(self, key: str, place: str) -> Variable | None:
        """What the glossary or a formula says of a quantity; None for an unknown one.

        Raises PerfgridError for a quantity that no formula reads: a model with experts, say, is not evaluated as dense.
        """
        formulas = self.registry.formulas
        read = any(key in f.arguments or key == f.by for f in formulas.values())
        if key in self.catalog.variables:
            if not read:
                raise PerfgridError(f"{place}: no formula of this workload depends on {key!r}")
            return self.catalog.variables[key]
        if key not in self.registry.names():
            return None
        same_as = formulas[key].same_as if key in formulas and formulas[key].of is None else None
        if same_as is not None and not read and not any(key == f.same_as for f in formulas.values()):
            raise PerfgridError(f"{place}: no formula of this workload depends on {key!r}, another name of {same_as!r}")
        found = self.registry.get(key)
        return Variable(
            name=key, unit=found.unit, meaning=found.meaning, of="computed", minimum=-LARGEST, maximum=LARGEST
        )

    def _checked(self, variable: Variable, value: Any, place: str) -> Any:
        """A stated value in SI. PerfgridError for a wrong one, and for a label that selects none of the formulas."""
        found = convert(variable, value, place)
        if variable.kind == "label":
            check_label(found, place)
            choices = (c for c in self.registry.choices.values() if c.by == variable.name)
            legal = dict.fromkeys(str(a.label) for choice in choices for a in choice.alternatives)
            if legal and (word := resolved(str(found), legal, parts=False)) is None:
                near = nearest(str(found), legal)
                raise PerfgridError(f"{place} must be one of {', '.join(map(str, legal))}, found {found!r:.100}{near}")
            return word if legal else found
        return found

    def _placed(self, variable: Variable, value: Any) -> Any:
        """A converted value as the engine wants it: vectors on their inner axis."""
        if variable.axis is None:
            return value
        return INNER.vector(variable.axis, [float(value[label]) for label in INNER.labels[variable.axis]])

    # -- axes -----------------------------------------------------------------------------------------------------

    def _axis(self, key: str, spec: Any) -> Axis:
        place = f"{self.name}, axes.{key}"
        if key in (*TABLES, IO_NODE):
            names = names_of(key, [spec] if isinstance(spec, str) else spec, place)
            check_no_repeats(names, place)
            of_nodes = key == IO_NODE
            columns = (
                io_columns(self.catalog, names, self.needed, place) if of_nodes else self._columns(key, names, place)
            )
            return Axis(key, np.array(names), columns)
        if key == "parallelism":
            return parallelism_axis(spec, place, self.catalog.variables)
        if isinstance(spec, dict) and "zip" in spec:
            return self._zipped(key, spec, place)
        variable = self._variable(key, place)
        if variable is None:
            legal = (*TABLES, IO_NODE, "parallelism", *self.catalog.variables, *self.registry.names())
            raise PerfgridError(f"{place}: unknown axis{nearest(key, legal)}")
        if isinstance(spec, dict) and set(spec) == {"scale"}:
            if variable.kind != "number" or variable.of == "computed":
                raise PerfgridError(f"{place}: only given numbers can be scaled, {key!r} is of kind {variable.kind}")
            factors = numbers(spec["scale"], f"{place}.scale", lambda text: multiple(text) or number_or_text(text))
            if min(factors) <= 0:
                raise PerfgridError(f"{place}.scale: factors must be greater than zero, found {min(factors)}")
            check_no_repeats(factors, place)
            return Axis(key, np.array(factors), {}, {key: np.array(factors)})
        if isinstance(spec, dict) and "start" in spec:
            values = numbers(spec, place, lambda text: convert(variable, text, place))
        elif isinstance(spec, list):
            values = spec
        else:
            raise PerfgridError(
                f"{place}: needs a list of values, a range {{ start, stop, num, spacing }} or {{ scale = ... }}, "
                f"found {spec!r}"
            )
        converted = [self._checked(variable, v, place) for v in values]
        check_no_repeats(converted, place)
        column = np.array([self._placed(variable, v) for v in converted])
        labels = np.array(converted) if variable.axis is None else np.arange(len(converted))
        if variable.kind == "integer":
            labels = labels.astype(np.int64)
        if variable.kind == "code" and variable.axis is None:
            labels = np.array([variable.word(v) for v in converted])
        if variable.kind == "flag":
            labels = np.array(["true" if v else "false" for v in converted])
        return Axis(key, labels, {key: column})

    def _columns(self, table: str, names: Sequence[str], place: str) -> dict[str, np.ndarray]:
        """The columns of catalog entries that the study does not state itself."""
        try:
            if table in SWITCHABLE and "device" in self.tables:
                return switchable_columns(self.catalog, table, names, self.needed)
            entries = [self.catalog.entry(table, n) for n in names]
        except PerfgridError as error:
            raise PerfgridError(f"{place}: {error}") from None
        found: dict[str, np.ndarray] = {}
        derived = reimplemented(self.registry, self.tables) if table == "device" else set()
        for variable in self.catalog.variables.values():
            if variable.of == table and variable.name not in self.taken | self.tables:
                values = [self._placed(variable, e.values[variable.name]) for e in entries]
                found[(OWN_PREFIX if variable.name in derived else "") + variable.name] = np.array(values)
        if table == "device" and IO_NODE not in self.file.axes:
            nodes = [str(e.values["io_process_node"]) for e in entries]
            found |= io_columns(self.catalog, nodes, self.needed - self.taken, place)
        for other in OWN if table == "device" else ():
            prefix = OWN_PREFIX if other in self.tables else ""
            found |= own_columns(self.catalog, other, names, self.needed - self.taken, prefix, place)
        if table == "device":
            found |= self._usual_columns(names, place)
        return found

    def _usual_columns(self, devices: Sequence[str], place: str) -> dict[str, np.ndarray]:
        """Columns of the tables that the study does not state, of which its devices use different entries."""
        found: dict[str, np.ndarray] = {}
        for table, entries in usual_entries(self.catalog, devices, self.file.workload).items():
            if table in self.tables:
                continue
            if len(set(entries)) == 1:
                self.usual[table] = entries[0]
            else:
                found |= self._columns(table, entries, place) | {table: np.array(entries)}
        return found

    def _zipped(self, key: str, spec: dict[str, Any], place: str) -> Axis:
        """Rows that state several quantities together; a table name stands for all columns of its entries."""
        check_keys(spec, ("zip", "labels"), place)
        columns: dict[str, np.ndarray] = {}
        if not isinstance(spec["zip"], dict):
            raise PerfgridError(f"{place}.zip: needs a table of lists, found {spec['zip']!r}")
        lengths = {k: len(v) if isinstance(v, list) else -1 for k, v in spec["zip"].items()}
        if not lengths or len(set(lengths.values())) != 1 or min(lengths.values()) < 1:
            raise PerfgridError(f"{place}.zip: needs lists of one common length, found {lengths}")
        count = next(iter(lengths.values()))
        shown = []
        for name, values in spec["zip"].items():
            where = f"{place}.zip.{name}"
            if name in TABLES:
                columns |= self._columns(name, names_of(name, values, where), where)
                columns[name] = np.array(values)  # the entry's name: a label of the row
                shown.append(name)
            elif (variable := self._variable(name, where)) is not None:
                values, open_rows = filled(variable, values, where)
                if open_rows is not None:
                    self.opened.setdefault(key, {})[name] = open_rows
                columns[name] = np.array([self._placed(variable, self._checked(variable, v, where)) for v in values])
                if variable.kind == "integer":
                    columns[name] = columns[name].astype(np.int64)
                if variable.axis is None and name != key and open_rows is None:
                    shown.append(name)
            else:
                raise PerfgridError(f"{where}: unknown quantity{nearest(name, (*TABLES, *self.catalog.variables))}")
        labels = spec.get("labels", [str(i) for i in range(count)])
        if not isinstance(labels, list) or len(labels) != count:
            raise PerfgridError(f"{place}.labels: needs a list of {count} names, found {labels!r}")
        for label in labels:
            check_label(label, f"{place}.labels")
        return Axis(key, np.array(labels), columns, {}, tuple(shown))
