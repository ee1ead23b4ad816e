"""From wanted quantities to an ordered graph: arguments are followed by name until only given quantities are left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from .errors import MissingQuantity, PerfgridError, nearest
from .host import HostFormula
from .inner import InnerAxes
from .namespace import xp
from .registry import Choice, Constraint, Formula, Registry


@dataclass(frozen=True)
class Node:
    """One computed quantity of a graph: a function of the named arguments."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    unit: str
    source: str
    meaning: str
    constraint: Constraint | None = None
    flags: tuple[str, ...] = ()  # the labels that its values 0, 1, ... stand for

    @property
    def host(self) -> HostFormula | None:
        """The host formula that computes it, if one does."""
        return self.function if isinstance(self.function, HostFormula) else None


@dataclass(frozen=True)
class Graph:
    """The quantities that the wanted ones need, each after its arguments."""

    wanted: tuple[str, ...]
    leaves: tuple[str, ...]
    nodes: dict[str, Node]

    @property
    def constraints(self) -> tuple[Node, ...]:
        """The nodes that are constraints."""
        return tuple(n for n in self.nodes.values() if n.constraint is not None)

    def concerning(self, names: Iterable[str]) -> tuple[str, ...]:
        """The constraints that concern some quantities: those that a study of them alone would check.

        A constraint concerns all quantities unless it is about one; then it concerns those that rest on this one, be it
        through another constraint that concerns them.
        """
        held, _ = self._held(names, *self._always)
        return tuple(n.name for n in self.constraints if n.name in held)

    @cached_property
    def _always(self) -> tuple[Set[str], Set[str]]:
        """The constraints that concern all quantities, and all that they rest on."""
        return self._held((), set(), set())

    def _held(self, names: Iterable[str], held: Set[str], below: Set[str]) -> tuple[Set[str], Set[str]]:
        """The constraints held and what is below them, with those that some quantities add."""
        about = {n.name: n.constraint.about for n in self.constraints if n.constraint is not None}
        waiting, held, below = list(names), set(held), set(below)
        while True:
            while waiting:
                name = waiting.pop()
                if name not in below:
                    below.add(name)
                    waiting += self.nodes[name].arguments if name in self.nodes else ()
            waiting = [n for n, of in about.items() if n not in held and (of is None or n in below or of in below)]
            if not waiting:
                return held, below
            held.update(waiting)

    def before_host(self) -> set[str]:
        """The host formulas and everything that they depend on."""
        found: set[str] = set()
        for node in reversed(self.nodes.values()):
            if node.host is not None or node.name in found:
                found |= {node.name, *node.arguments}
        return found

    def readers(self) -> dict[str, tuple[str, ...]]:
        """For every quantity the quantities that take it as an argument."""
        found: dict[str, list[str]] = {name: [] for name in (*self.leaves, *self.nodes)}
        for node in self.nodes.values():
            for argument in dict.fromkeys(node.arguments):
                found[argument].append(node.name)
        return {name: tuple(readers) for name, readers in found.items()}


def _least(*values: Any) -> Any:
    return reduce(lambda a, b: xp.minimum(a, b), values)


def _which_least(*values: Any) -> Any:
    best, index = values[0], xp.zeros_like(values[0])
    for i, value in enumerate(values[1:], 1):
        index = xp.where(value < best, float(i), index)
        best = xp.minimum(best, value)
    return index


def _same(value: Any) -> Any:
    return value


def _selected(codes: Sequence[int]) -> Callable[..., Any]:
    def select(code: Any, *values: Any) -> Any:
        result = values[-1]
        for c, value in zip(codes[:-1], values[:-1], strict=True):
            result = xp.where(code == c, value, result)
        return result

    return select


def _choice_node(choice: Choice, choices: Mapping[str, str], labels: Mapping[str, Sequence[str]]) -> Node:
    """The node of a quantity with alternatives: fixed by a study, by a label quantity, or the least."""
    by_label = {str(a.label): a for a in choice.alternatives}
    if choice.name in choices:
        label = choices[choice.name]
        if label not in by_label:
            raise PerfgridError(f"{choice.name!r} has no alternative {label!r}{nearest(label, by_label)}")
        alternative = by_label[label]
        return Node(choice.name, _same, (alternative.name,), choice.unit, alternative.source, alternative.meaning)
    if choice.by is None:
        arguments = tuple(a.name for a in choice.alternatives)
        return Node(choice.name, _least, arguments, choice.unit, choice.source, choice.meaning)
    if choice.by not in labels:
        raise MissingQuantity(choice.by, choice.name, "")
    present = labels[choice.by]
    for label in present:
        if label not in by_label:
            legal = ", ".join(map(str, by_label))
            raise PerfgridError(f"{choice.by} = {label!r} is none of {legal}{nearest(label, by_label)}")
    used = [by_label[label] for label in present]
    if len(used) == 1:
        return Node(choice.name, _same, (used[0].name,), choice.unit, used[0].source, used[0].meaning)
    return Node(
        choice.name,
        _selected(range(len(present))),
        (choice.by, *(a.name for a in used)),
        choice.unit,
        choice.source,
        choice.meaning,
    )


def _formula_node(formula: Formula, inner: InnerAxes) -> Node:
    constraint = formula if isinstance(formula, Constraint) else None
    function = formula.function
    if formula.host is not None:
        function = HostFormula(formula.name, function, inner, formula.host)
    return Node(
        formula.name,
        function,
        formula.arguments,
        formula.unit,
        formula.source,
        formula.meaning,
        constraint=constraint,
        flags=formula.flags,
    )


def resolve(
    registry: Registry,
    wanted: Iterable[str],
    given: Iterable[str],
    choices: Mapping[str, str] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> Graph:
    """Order the formulas that lead from the given quantities to the wanted ones.

    ``choices`` fixes alternatives by label, ``labels`` lists the labels that occur of each label quantity. A given name
    hides a formula of the same name (an override). What nobody asked for is left out. Raises PerfgridError for an
    unknown, missing or cyclic quantity.
    """
    wanted, given = tuple(dict.fromkeys(wanted)), set(given)
    choices, labels = choices or {}, labels or {}
    for name in choices:
        if name not in registry.choices:
            raise PerfgridError(f"{name!r} has no alternatives to choose from{nearest(name, registry.choices)}")
    nodes: dict[str, Node] = {}
    leaves: dict[str, None] = {}
    legal = (*given, *registry.names())

    def node_of(name: str, reader: str | None) -> Node:
        if name in registry.choices:
            return _choice_node(registry.choices[name], choices, labels)
        if name in registry.formulas:
            return _formula_node(registry.formulas[name], registry.inner)
        base = name.removesuffix("_choice")
        if base != name and base in registry.choices:
            alternatives = registry.choices[base].alternatives
            names = tuple(a.name for a in alternatives)
            meaning = f"Which alternative of {base.replace('_', ' ')} is the least."
            flags = tuple(str(a.label) for a in alternatives)
            return Node(name, _which_least, names, "1", registry.choices[base].source, meaning, flags=flags)
        if reader is None:
            raise PerfgridError(f"unknown quantity {name!r}{nearest(name, legal)}")
        raise MissingQuantity(name, reader, nearest(name, legal))

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in nodes or name in leaves:
            return
        if name in path:
            raise PerfgridError(
                "quantities need each other in a circle: " + " <- ".join((*path[path.index(name) :], name))
            )
        if name in given:
            leaves[name] = None
            return
        node = node_of(name, path[-1] if path else None)
        for argument in node.arguments:
            visit(argument, (*path, name))
        nodes[name] = node

    for name in wanted:
        visit(name, ())
    return Graph(wanted, tuple(leaves), nodes)


def resolve_checked(
    registry: Registry,
    wanted: Iterable[str],
    given: Iterable[str],
    choices: Mapping[str, str] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> Graph:
    """The graph of the wanted quantities with every constraint on them; arguments and errors as `resolve`."""
    wanted, given, checked = tuple(wanted), tuple(given), registry.constraints()
    while True:
        graph = resolve(registry, (*wanted, *(c.name for c in checked)), given, choices, labels)
        found = registry.constraints({*graph.leaves, *graph.nodes})
        if found == checked:
            return graph
        checked = found


def replay(graph: Graph, values: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate a graph at one point with NumPy in float64: study quantities are scalars, inner axes short vectors.

    ``values`` holds every leaf (label quantities as the index of their label). Returns every quantity by name.
    """
    results: dict[str, Any] = {}
    for name in graph.leaves:
        value = values[name]
        results[name] = value if isinstance(value, (bool, np.ndarray)) else float(value)
    with np.errstate(all="ignore"):
        for node in graph.nodes.values():
            value = np.asarray(node.function(*(results[a] for a in node.arguments)))
            results[node.name] = value.item() if value.size == 1 else value
    return results
