"""Where a grid that mixes alternatives reads a quantity: the labels with which its value reaches a wanted one.

Every design takes one alternative of a quantity. A constraint about what only another alternative reads says nothing of
it: it is checked where that alternative is taken, as in a study of that design alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from operator import or_
from typing import Any

from .namespace import xp
from .nodes import Node

Labels = Mapping[str, frozenset[str]]  # label quantity -> its labels with which a quantity is read; absent: with all
ALL: Labels = {}


def checked_where_read(
    nodes: Mapping[str, Node], wanted: Iterable[str], present: Mapping[str, Sequence[str]]
) -> dict[str, Node]:
    """The nodes of a graph with constraints that hold wherever what they are about is not read.

    ``wanted``: the outputs; ``present``: the labels of every label quantity.
    """
    mixed = {name for name, labels in present.items() if len(labels) > 1}
    if not any(node.labels and node.arguments[0] in mixed for node in nodes.values()):
        return dict(nodes)
    found = dict(nodes)
    for name, where in read_with(nodes, wanted, present).items():
        node = nodes.get(name)
        if node is None or node.constraint is None or not where:
            continue
        codes = tuple(tuple(map(list(present[by]).index, sorted(labels))) for by, labels in where.items())
        function = _guarded(node.function, len(node.arguments), codes)
        found[name] = replace(node, function=function, arguments=(*node.arguments, *where), guards=len(where))
    return found


def read_with(
    nodes: Mapping[str, Node], wanted: Iterable[str], present: Mapping[str, Sequence[str]]
) -> dict[str, Labels]:
    """For every quantity that is read, the labels with which it is: at most with these of each label quantity.

    A constraint is checked with the labels with which the quantity is read that it is about, with all where it is about
    none or about a given one.
    """
    checked = {n.name: n.constraint.about for n in nodes.values() if n.constraint is not None}
    free = [name for name, about in checked.items() if about not in nodes]
    found: dict[str, Labels] = dict.fromkeys((*wanted, *free), ALL)
    while True:
        before = dict(found)
        for node in reversed(list(nodes.values())):  # readers first
            if node.name in found:
                for argument, where in _arguments(node, found[node.name]):
                    found[argument] = _either(found[argument], where, present) if argument in found else where
        for name, about in checked.items():
            if about in found and name not in found:
                found[name] = found[about]
            elif about in found:
                found[name] = _either(found[name], found[about], present)
        if found == before:
            return found


def _arguments(node: Node, where: Labels) -> Iterator[tuple[str, Labels]]:
    """The arguments of a quantity that is read with some labels, each with the labels with which it is read then."""
    if not node.labels:
        yield from ((argument, where) for argument in node.arguments)
        return
    by, *alternatives = node.arguments
    yield by, where
    for label, alternative in zip(node.labels, alternatives, strict=True):
        if label in where.get(by, (label,)):
            yield alternative, {**where, by: frozenset((label,))}


def _either(a: Labels, b: Labels, present: Mapping[str, Sequence[str]]) -> Labels:
    """The labels of one reader or the other."""
    joined = {by: a[by] | b[by] for by in a.keys() & b.keys()}
    return {by: labels for by, labels in joined.items() if len(labels) < len(present[by])}


@cache
def _guarded(function: Callable[..., Any], count: int, codes: tuple[tuple[int, ...], ...]) -> Callable[..., Any]:
    """A constraint of so many arguments that holds unless each of the labels that follow them has one of some codes."""

    def holds(*values: Any) -> Any:
        result = function(*values[:count])
        for value, own in zip(values[count:], codes, strict=True):
            result = xp.where(reduce(or_, [value == code for code in own]), result, True)
        return result

    return holds
