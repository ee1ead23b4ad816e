"""The entries of a registry: formulas, constraints, quantities with alternatives, synonyms and constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from perfgrid.engine.errors import PerfgridError

Family = Mapping[str, Sequence[str]]
WORKLOAD = "workload"  # label known before evaluation; selects formulas, see `Registry.of_workload`


@dataclass(frozen=True)
class Formula:
    """One quantity: its function, what it needs, its unit, its meaning and where the formula comes from."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    unit: str
    source: str
    meaning: str
    of: str | None = None  # the quantity that this is an alternative of
    label: str | None = None  # the alternative's name in studies
    by: str | None = None  # the label quantity that selects among the alternatives
    host: tuple[str, ...] | None = None  # the inner axes of a host formula
    flags: tuple[str, ...] = ()  # labels of its values 0, 1, ...
    where: str = ""  # the equation, table or section of the source
    same_as: str | None = None  # of a synonym: the quantity that it names
    value: float | None = None  # of a constant


class Glossary:
    """Names that need no formula: synonyms of other quantities, and constants. A module states its own as ``GLOSSARY``.

    Readers of a synonym read the quantity that it names, readers of a constant take its value: neither is evaluated.
    """

    def __init__(self, *parts: Iterable[Formula]):
        self.entries = tuple(entry for part in parts for entry in part)

    def __getitem__(self, name: str) -> Glossary:
        """The glossary of one entry."""
        return Glossary([entry for entry in self.entries if entry.name == name])


def synonym(
    name: str, of: str, meaning: str, *, unit: str, source: str, family: Family | None = None, workload: str = ""
) -> tuple[Formula, ...]:
    """Entries of a `Glossary`: ``name`` is another name of the quantity ``of``.

    One entry per member of a family. With ``workload``, only in studies of that workload.
    """
    return members(_in_workload(Formula(name, same, (of,), unit, source, meaning, same_as=of), workload), family)


def constant(
    name: str, value: float, meaning: str, *, unit: str, source: str, family: Family | None = None, workload: str = ""
) -> tuple[Formula, ...]:
    """Entries of a `Glossary`: ``name`` is the constant ``value`` in SI units.

    One entry per member of a family. With ``workload``, only in studies of that workload.
    """
    entry = Formula(name, _Value(value), (), unit, source, meaning, value=float(value))
    return members(_in_workload(entry, workload), family)


def _in_workload(entry: Formula, workload: str) -> Formula:
    """The entry; with ``workload``, as an alternative selected by that workload."""
    if not workload:
        return entry
    return replace(entry, name=f"{workload}_{entry.name}", of=entry.name, by=WORKLOAD, label=workload)


def same(value: Any) -> Any:
    """The value itself."""
    return value


@dataclass(frozen=True)
class _Value:
    """A function without arguments that returns a constant."""

    value: float

    def __call__(self) -> float:
        return float(self.value)


@dataclass(frozen=True)
class Constraint(Formula):
    """A formula that is true where a design is possible."""

    kind: Literal["illegal", "exceeds"] = "illegal"
    reason: str = ""
    about: str | None = None  # checked only where this quantity is evaluated
    workloads: tuple[str, ...] = ()  # that check it; if empty, those that ask for its module


@dataclass(frozen=True)
class Choice:
    """A quantity with alternatives: the least, one fixed by the study, or one per label of the quantity ``by``."""

    name: str
    alternatives: tuple[Formula, ...]
    by: str | None

    @property
    def unit(self) -> str:
        """The unit that all alternatives share."""
        return self.alternatives[0].unit

    @property
    def source(self) -> str:
        """The sources of all alternatives."""
        return ", ".join(dict.fromkeys(a.source for a in self.alternatives))

    @property
    def meaning(self) -> str:
        """What the quantity is, made from its name and the labels of its alternatives."""
        labels = ", ".join(str(a.label) for a in self.alternatives)
        return (
            f"{self.name.replace('_', ' ').capitalize()} by {self.by.replace('_', ' ')}: {labels}."
            if self.by
            else (f"{self.name.replace('_', ' ').capitalize()}, the least of: {labels}.")
        )


def members(bare: Formula, family: Family | None) -> tuple[Formula, ...]:
    """The members of a family: one formula per combination, each placeholder replaced by a member's name."""
    for placeholder in family or {}:
        if placeholder not in bare.name:
            raise PerfgridError(f"formula {bare.name!r} has a family, but its name does not contain {placeholder!r}")
    if not family:
        return (bare,)
    found = []
    for combination in product(*family.values()):
        swap = dict(zip(family, combination, strict=True))

        def named(text: Any, swap: dict[str, str] = swap) -> Any:
            for placeholder, member in swap.items():
                text = text.replace(placeholder, member) if isinstance(text, str) else text
            return text

        changed = {k: named(getattr(bare, k)) for k in ("name", "meaning", "of", "by", "label", "same_as")}
        if isinstance(bare, Constraint):
            changed |= {"reason": named(bare.reason), "about": named(bare.about)}
        found.append(replace(bare, arguments=tuple(map(named, bare.arguments)), **changed))
    return tuple(found)
