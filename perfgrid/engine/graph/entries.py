"""The entries of a registry: formulas, constraints and quantities with alternatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from perfgrid.engine.errors import PerfgridError

Family = Mapping[str, Sequence[str] | Mapping[str, str]]  # members, or the member whose value each of them has
Others = Mapping[str | tuple[str, ...], float | str]  # labels of alternatives -> a number, or another quantity
WORKLOAD = "workload"  # label known before evaluation; selects formulas, see `Registry.of_workload`

Sense = Literal["", "least", "most"]
EXCEEDS = "exceeds"  # kind of the constraints that compare a value with a limit


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
    sense: Sense = ""  # what one wants of it, where its unit does not tell
    same_as: str | None = None  # of another name: the quantity that it returns as it is


def same(value: Any) -> Any:
    """The value itself."""
    return value


def renamed(entry: Formula, of: str) -> Formula:
    """The entry as another name of the quantity ``of``: readers read that one, so that it is not evaluated."""
    return replace(entry, function=same, arguments=(of,), host=None, same_as=of)


def plain(entry: Formula) -> Formula:
    """An alternative selected by the workload, renamed to the quantity that it computes there."""
    if entry.by != WORKLOAD:
        return entry
    return replace(entry, name=str(entry.of), of=None, by=None, label=None)


@dataclass(frozen=True)
class Constraint(Formula):
    """A formula that is true where a design is possible."""

    kind: Literal["illegal", "exceeds"] = "illegal"
    reason: str = ""
    about: str | None = None  # checked only where this quantity is evaluated
    workloads: tuple[str, ...] = ()  # that check it; if empty, those that ask for its module


def occurs(member: Formula, workload: str, asked: bool) -> bool:
    """Whether a formula belongs to a workload. ``asked``: whether the workload asks for the formula's module.

    A constraint belongs to the workloads that it names, or else to those that ask for its module.
    """
    if member.by == WORKLOAD:
        return member.label == workload
    if isinstance(member, Constraint):
        return workload in member.workloads if member.workloads else asked
    return True


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
    def flags(self) -> tuple[str, ...]:
        """The labels of the values, which all alternatives share."""
        return self.alternatives[0].flags

    @property
    def sense(self) -> Sense:
        """What one wants of it, as the alternatives say."""
        return self.alternatives[0].sense

    @property
    def source(self) -> str:
        """The sources of all alternatives."""
        return ", ".join(dict.fromkeys(a.source for a in self.alternatives))

    @property
    def meaning(self) -> str:
        """What the quantity is, made from its name and the labels of its alternatives."""
        how = f" by {self.by.replace('_', ' ')}" if self.by else ", the least of"
        return f"{self.name.replace('_', ' ').capitalize()}{how}: {', '.join(str(a.label) for a in self.alternatives)}."


def members(bare: Formula, family: Family | None) -> tuple[Formula, ...]:
    """The members of a family: one formula per combination, each placeholder replaced by a member's name.

    A member that a mapping gives the value of another one is a synonym of that one.
    """
    for placeholder in family or {}:
        if placeholder not in bare.name:
            raise PerfgridError(f"formula {bare.name!r} has a family, but its name does not contain {placeholder!r}")
    if not family:
        return (bare,)
    found = []
    for combination in product(*family.values()):
        swap = dict(zip(family, combination, strict=True))
        like = {p: of[swap[p]] if isinstance(of, Mapping) else swap[p] for p, of in family.items()}

        def named(text: Any, swap: dict[str, str] = swap) -> Any:
            for placeholder, member in swap.items():
                text = text.replace(placeholder, member) if isinstance(text, str) else text
            return text

        changed = {k: named(getattr(bare, k)) for k in ("name", "meaning", "of", "by", "label", "same_as")}
        if isinstance(bare, Constraint):
            changed |= {"reason": named(bare.reason), "about": named(bare.about)}
        one = replace(bare, arguments=tuple(map(named, bare.arguments)), **changed)
        found.append(one if like == swap else renamed(one, named(bare.name, like)))
    return tuple(found)


def beside(bare: Formula, family: Family | None, others: Others) -> list[Formula]:
    """The alternatives of the same quantity that are a number or another quantity, by their labels."""
    found: list[Formula] = []
    for labels, value in others.items():
        function, arguments = (same, (value,)) if isinstance(value, str) else (always(value), ())
        meaning = f"{bare.meaning.rstrip('.')}; LABEL: {value}."
        one = replace(bare, name=f"LABEL_{bare.of}", function=function, arguments=arguments, meaning=meaning)
        every = {**(family or {}), "LABEL": (labels,) if isinstance(labels, str) else labels}
        found += members(replace(one, label="LABEL"), every)
    return found


def always(value: float) -> Callable[[], float]:
    """A function of nothing that returns a number."""

    def constant() -> float:
        return value

    return constant
