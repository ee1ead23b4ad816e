"""Resolves wanted quantities to an ordered graph, following argument names down to given quantities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache, lru_cache, reduce
from typing import Any

import numpy as np

from perfgrid.engine.errors import MissingQuantity, PerfgridError, nearest

from .host_formulas import HostFormula
from .namespace import xp
from .nodes import Graph, Node
from .registry import Choice, Constraint, Formula, Registry, same
from .selected import checked_where_read

KEPT = 64  # graphs: one question asks for the same ones several times
_Choices = tuple[tuple[str, str], ...]
_Labels = tuple[tuple[str, tuple[str, ...]], ...]


def _least(*values: Any) -> Any:
    return reduce(lambda a, b: xp.minimum(a, b), values)


def _which_least(*values: Any) -> Any:
    best, index = values[0], xp.zeros_like(values[0])
    for i, value in enumerate(values[1:], 1):
        index = xp.where(value < best, float(i), index)
        best = xp.minimum(best, value)
    return index


@cache
def _bound(function: Callable[..., Any], constants: tuple[tuple[int, float], ...]) -> Callable[..., Any]:
    """A function with constants bound to the arguments at the given positions."""

    def call(*values: Any) -> Any:
        arguments = list(values)
        for place, value in constants:
            arguments.insert(place, value)
        return function(*arguments)

    return call


@cache
def _selected(count: int) -> Callable[..., Any]:
    """The choice among so many alternatives by the number of one."""

    def select(code: Any, *values: Any) -> Any:
        result = values[-1]
        for number, value in zip(range(count - 1), values[:-1], strict=True):
            result = xp.where(code == number, value, result)
        return result

    return select


def check_choices(registry: Registry, choices: Mapping[str, str]) -> None:
    """PerfgridError for a quantity without alternatives, and for one that is none of them."""
    for name, label in choices.items():
        if name not in registry.choices:
            raise PerfgridError(f"{name!r} has no alternatives to choose from{nearest(name, registry.choices)}")
        legal = [str(a.label) for a in registry.choices[name].alternatives]
        if label not in legal:
            raise PerfgridError(f"{name!r} has no alternative {label!r}{nearest(label, legal)}")


def _chosen(choice: Choice, choices: Mapping[str, str], labels: Mapping[str, Sequence[str]]) -> tuple[Formula, ...]:
    """The alternatives that a study uses: the one it fixes, those of the labels present, or all."""
    by_label = {str(a.label): a for a in choice.alternatives}
    if choice.name in choices:
        return (by_label[choices[choice.name]],)
    if choice.by is None:
        return choice.alternatives
    if choice.by not in labels:
        raise MissingQuantity(choice.by, choice.name, "")
    for label in labels[choice.by]:
        if label not in by_label:
            legal = ", ".join(map(str, by_label))
            raise PerfgridError(f"{choice.by} = {label!r} is not one of {legal}{nearest(label, by_label)}")
    return tuple(by_label[label] for label in labels[choice.by])


class _Names:
    """Resolves names in a study: synonyms and only alternatives to their quantities, constants to their values."""

    def __init__(
        self, registry: Registry, given: Set[str], choices: Mapping[str, str], labels: Mapping[str, Sequence[str]]
    ):
        check_choices(registry, choices)
        self.registry, self.given, self.choices, self.labels = registry, given, choices, labels
        self._subjects = registry.subjects()  # evaluated under their own name, since constraints are about them
        self._chosen: dict[str, tuple[Formula, ...]] = {}
        self._nodes: dict[str, Node] = {}

    def chosen(self, name: str) -> tuple[Formula, ...]:
        """The alternatives of a quantity that the study uses. Raises PerfgridError."""
        if name not in self._chosen:
            self._chosen[name] = _chosen(self.registry.choices[name], self.choices, self.labels)
        return self._chosen[name]

    @property
    def selectors(self) -> frozenset[str]:
        """The label quantities by which alternatives were chosen so far."""
        return frozenset(by for name in self._chosen if (by := self.registry.choices[name].by) is not None)

    def meant(self, name: str) -> str:
        """The quantity that a name stands for. Raises PerfgridError for synonyms that name each other."""
        passed: list[str] = []
        while name not in self.given and (other := self._other(name)) is not None:
            if name in passed:
                raise PerfgridError("synonyms name each other: " + " <- ".join((*passed, name)))
            passed.append(name)
            name = other
        return name

    def _other(self, name: str) -> str | None:
        """The quantity whose value one has: of a synonym, an only alternative, or a cell of a table that names one."""
        found = self.registry.formulas.get(name)
        if found is None:
            found = self._only_one_of(name)
        elif found.same_as is not None:
            return found.same_as
        elif found.of is not None and self._only(found):
            return found.of
        if found is None or found.of is None or found.function is not same or found.name in self._subjects:
            return None
        return found.arguments[0]

    def _only_one_of(self, name: str) -> Formula | None:
        """The only alternative of a quantity that the study uses and does not state, if there is just one."""
        if name not in self.registry.choices:
            return None
        try:
            used = self.chosen(name)
        except PerfgridError:  # the labels present are unknown: reported where the quantity is visited
            return None
        return used[0] if len(used) == 1 and used[0].name not in self.given else None

    def _only(self, alternative: Formula) -> bool:
        """Whether an alternative is the only one of its quantity that the study uses."""
        of = str(alternative.of)
        if of in self.given:
            return False
        try:
            return self.chosen(of) == (alternative,)
        except PerfgridError:  # the labels present are unknown
            return False

    def constant(self, name: str) -> float | None:
        """The value of a constant, or of a quantity whose only alternative takes no arguments; otherwise None."""
        if name in self.given:
            return None
        found = self.registry.formulas.get(name) or self._only_one_of(name)
        if found is None or found.arguments or found.host is not None:
            return None
        try:
            value = np.asarray(found.function())
        except Exception:  # reported where the formula is tried
            return None
        return float(value) if value.ndim == 0 and value.dtype.kind in "iuf" else None

    def node_of(self, name: str, reader: str | None) -> Node:
        """The node of a quantity that is not given. Raises PerfgridError where no formula provides it."""
        if name not in self._nodes:
            self._nodes[name] = self._node_of(name, reader)
        return self._nodes[name]

    def _node_of(self, name: str, reader: str | None) -> Node:
        registry = self.registry
        if name in registry.choices:
            return self.choice(registry.choices[name])
        if name in registry.formulas:
            node = self.node(name, registry.formulas[name])
            other = self.meant(name)  # an output may be a synonym, which other readers skip
            return node if other == name else replace(node, function=same, arguments=(other,))
        base = name.removesuffix("_choice")
        if base != name and base in registry.choices:
            alternatives = registry.choices[base].alternatives
            arguments = tuple(self.meant(a.name) for a in alternatives)
            meaning = f"Which alternative of {base.replace('_', ' ')} is the least."
            flags = tuple(str(a.label) for a in alternatives)
            return Node(name, _which_least, arguments, "1", registry.choices[base].source, meaning, flags=flags)
        hint = nearest(name, (*self.given, *registry.names()))
        if reader is None:
            raise PerfgridError(f"unknown quantity {name!r}{hint}")
        raise MissingQuantity(name, reader, hint)

    def node(self, name: str, formula: Formula) -> Node:
        """The node of a formula under the given name, with constant arguments bound."""
        arguments, constants, units = [], [], []
        for place, argument in enumerate(map(self.meant, formula.arguments)):
            value = self.constant(argument)
            if value is not None:
                constants.append((place, value))
                units.append((value, (self.registry.formulas.get(argument) or self.registry.choices[argument]).unit))
            else:
                arguments.append(argument)
        function = _bound(formula.function, tuple(constants)) if constants else formula.function
        if formula.host is not None:
            function = HostFormula(formula.name, function, self.registry.inner, formula.host)
        checked = None
        if isinstance(formula, Constraint):
            checked = replace(formula, about=self.meant(formula.about) if formula.about else None)
        about = (formula.unit, formula.source, formula.meaning)
        return Node(name, function, tuple(arguments), *about, checked, formula.flags, formula.name, tuple(units))

    def choice(self, choice: Choice) -> Node:
        """The node of a quantity with alternatives: the only one used, one per label, or the least."""
        used = self.chosen(choice.name)
        if len(used) == 1:
            node = self.node(choice.name, used[0])
            stated = used[0].name in self.given
            return replace(node, function=same, arguments=(used[0].name,)) if stated else node
        about = (choice.unit, choice.source, choice.meaning)
        names = tuple(self.meant(a.name) for a in used)
        if choice.by is None:
            return Node(choice.name, _least, names, *about)
        labels, values = self.labels[choice.by], [self.constant(name) for name in names]
        read = [i for i, value in enumerate(values) if value is None]
        constants = tuple((i, value) for i, value in enumerate(values, 1) if value is not None)
        select = _bound(_selected(len(used)), constants) if constants else _selected(len(used))
        units = tuple((value, choice.unit) for _, value in constants)
        arguments = (choice.by, *(names[i] for i in read))
        shown = {"flags": choice.flags, "constants": units, "labels": tuple(labels[i] for i in read)}
        return Node(choice.name, select, arguments, *about, **shown)


def resolve(
    registry: Registry,
    wanted: Iterable[str],
    given: Iterable[str],
    choices: Mapping[str, str] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> Graph:
    """Order the formulas that lead from the given quantities to the wanted ones.

    ``choices`` maps quantities to the labels of fixed alternatives, ``labels`` maps label quantities to the labels
    present. A given name hides a formula of the same name (an override). Quantities that are not needed are left out.
    Raises PerfgridError for an unknown, missing or cyclic quantity.
    """
    return _resolved(registry, tuple(wanted), frozenset(given), _stated(choices), _listed(labels))


@lru_cache(maxsize=KEPT)
def _resolved(
    registry: Registry, wanted: tuple[str, ...], given: frozenset[str], choices: _Choices, labels: _Labels
) -> Graph:
    return _ordered(_Names(registry, given, dict(choices), dict(labels)), wanted)


def _ordered(names: _Names, wanted: Iterable[str]) -> Graph:
    wanted = tuple(dict.fromkeys(wanted))
    nodes: dict[str, Node] = {}
    leaves: dict[str, None] = {}

    def visit(name: str, path: tuple[str, ...], reader: str | None = None) -> None:
        if name in nodes or name in leaves:
            return
        if name in path:
            raise PerfgridError(
                "circular dependency between quantities: " + " <- ".join((*path[path.index(name) :], name))
            )
        if name in names.given:
            leaves[name] = None
            return
        node = names.node_of(name, reader)
        for argument in node.arguments:
            visit(argument, (*path, name), node.formula or name)
        nodes[name] = node

    for name in wanted:
        visit(name, ())
    return Graph(wanted, tuple(leaves), nodes, names.selectors)


def resolve_checked(
    registry: Registry,
    wanted: Iterable[str],
    given: Iterable[str],
    choices: Mapping[str, str] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> Graph:
    """The graph of the wanted quantities with every constraint on them; arguments and errors as `resolve`."""
    return _checked(registry, tuple(wanted), frozenset(given), _stated(choices), _listed(labels))


@lru_cache(maxsize=KEPT)
def _checked(
    registry: Registry, wanted: tuple[str, ...], given: frozenset[str], choices: _Choices, labels: _Labels
) -> Graph:
    present, checked = dict(labels), registry.constraints()
    names = _Names(registry, given, dict(choices), present)
    about = registry.subjects()
    meant = {name: names.meant(name) for name in about}

    def evaluated(graph: Graph) -> set[str]:
        return {name for name in about if {name, meant[name]} & (graph.nodes.keys() | given)}

    while True:
        graph = _ordered(names, (*wanted, *(c.name for c in checked)))
        found = registry.constraints(evaluated(graph))
        if found == checked:
            return replace(graph, nodes=checked_where_read(graph.nodes, wanted, present))
        checked = found


def _stated(choices: Mapping[str, str] | None) -> _Choices:
    return tuple((choices or {}).items())


def _listed(labels: Mapping[str, Sequence[str]] | None) -> _Labels:
    return tuple((name, tuple(of)) for name, of in (labels or {}).items())


def replay(graph: Graph, values: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate a graph at one point with NumPy in float64: study quantities are scalars, inner axes short vectors.

    ``values`` holds every leaf (label quantities as the index of their label). Returns every quantity by name.
    """
    results: dict[str, Any] = {}
    for name in graph.leaves:
        value = values[name]
        results[name] = value if isinstance(value, (bool, np.ndarray)) else np.float64(value)
    with np.errstate(all="ignore"):
        for node in graph.nodes.values():
            value = np.asarray(node.function(*(results[a] for a in node.arguments)))
            results[node.name] = _scalar(value) if value.size == 1 else value
    return {name: value.item() if isinstance(value, np.float64) else value for name, value in results.items()}


def _scalar(value: np.ndarray) -> Any:
    """One value: a number of NumPy, whose division by zero has a result as on arrays, or a truth value."""
    return np.float64(value.item()) if value.dtype.kind == "f" else value.item()
