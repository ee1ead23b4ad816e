"""The nodes of a graph: quantities that are computed, each with its formula and what it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from perfgrid.engine.hashing import digest, signature_of

from .host_formulas import HostFormula
from .registry import Constraint


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
    flags: tuple[str, ...] = ()  # labels of its values 0, 1, ...
    formula: str = ""  # name of the formula; differs from ``name`` for an alternative
    constants: tuple[tuple[float, str], ...] = ()  # bound to it: values and units
    labels: tuple[str, ...] = ()  # of a choice: those of its alternatives, which follow the label quantity
    guards: int = 0  # of a constraint: label quantities after its own arguments that say where it is checked

    @property
    def host(self) -> HostFormula | None:
        """The host formula that computes it, if any."""
        return self.function if isinstance(self.function, HostFormula) else None

    @property
    def compared(self) -> tuple[str, ...]:
        """The arguments of a constraint itself."""
        return self.arguments[: len(self.arguments) - self.guards]


_SIGNED: WeakKeyDictionary[Callable[..., Any], str | None] = WeakKeyDictionary()


def _signature(function: Callable[..., Any]) -> str | None:
    """The signature of a formula, made once."""
    if function not in _SIGNED:
        _SIGNED[function] = signature_of((), [function])
    return _SIGNED[function]


@dataclass(frozen=True)
class Graph:
    """The quantities that the wanted ones need, each after its arguments."""

    wanted: tuple[str, ...]
    leaves: tuple[str, ...]
    nodes: dict[str, Node]
    selectors: frozenset[str] = frozenset()  # label quantities that select among alternatives

    @property
    def constraints(self) -> tuple[Node, ...]:
        """The nodes that are constraints."""
        return tuple(n for n in self.nodes.values() if n.constraint is not None)

    @cached_property
    def signatures(self) -> tuple[dict[str, str], str]:
        """The signatures of the formulas that have one, by quantity, and a hash of them and of how they are wired."""
        made = {name: _signature(node.function) for name, node in self.nodes.items() if node.host is None}
        signed = {name: signature for name, signature in made.items() if signature is not None}
        wiring = (part for name, s in signed.items() for part in (name, s, *self.nodes[name].arguments))
        return signed, digest(*wiring)

    def concerning(self, names: Iterable[str]) -> tuple[str, ...]:
        """The constraints that concern some quantities: those that a study of them alone would check.

        A constraint without ``about``, and one about a given quantity that it reads, a limit of the study, concern all
        quantities. With ``about``, it concerns the quantities that depend on that one, directly or through another
        constraint that concerns them.
        """
        held, _ = self._held(names, *self._always)
        return tuple(n.name for n in self.constraints if n.name in held)

    @cached_property
    def _always(self) -> tuple[Set[str], Set[str]]:
        """The constraints that concern all quantities, and everything that they depend on."""
        return self._held((), set(), set())

    def _held(self, names: Iterable[str], held: Set[str], below: Set[str]) -> tuple[Set[str], Set[str]]:
        """Adds to constraints ``held``, and to ``below`` (all that they depend on), those that concern ``names``."""
        about = {n.name: n.constraint.about for n in self.constraints if n.constraint is not None}
        limits = {n.name for n in self.constraints if about[n.name] in n.arguments and about[n.name] in self.leaves}
        about |= dict.fromkeys(limits)
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

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """For each quantity, those that take it as an argument."""
        found: dict[str, list[str]] = {name: [] for name in (*self.leaves, *self.nodes)}
        for node in self.nodes.values():
            for argument in dict.fromkeys(node.arguments):
                found[argument].append(node.name)
        return {name: tuple(readers) for name, readers in found.items()}
