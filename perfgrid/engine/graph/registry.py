"""Formulas, constraints and alternatives: what a decorator notes on a function, and the registry that collects them.

A formula is a pure function named after the quantity it returns whose arguments are named after the quantities it
needs. Nothing else declares the wiring.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import FunctionType, ModuleType
from typing import Any, Literal, TypeVar

from perfgrid.engine.errors import PerfgridError, nearest

from .inner_axes import InnerAxes

Function = TypeVar("Function", bound=Callable[..., Any])
Family = Mapping[str, Sequence[str]]
_MARK = "__perfgrid__"


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
    flags: tuple[str, ...] = ()  # the words that its values 0, 1, ... stand for
    where: str = ""  # the equation, table or section of the source
    same_as: str | None = None  # a glossary entry: another name of this quantity
    value: float | None = None  # a glossary entry: a constant


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
    name: str, of: str, meaning: str, *, unit: str, source: str, family: Family | None = None
) -> tuple[Formula, ...]:
    """Entries of a `Glossary`: ``name`` is another name of the quantity ``of``; one entry per member of a family."""
    return _members(Formula(name, same, (of,), unit, source, meaning, same_as=of), family)


def constant(
    name: str, value: float, meaning: str, *, unit: str, source: str, family: Family | None = None
) -> tuple[Formula, ...]:
    """Entries of a `Glossary`: ``name`` is the constant ``value`` in SI units; one entry per member of a family."""
    return _members(Formula(name, _Value(value), (), unit, source, meaning, value=float(value)), family)


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


@dataclass(frozen=True)
class Choice:
    """A quantity with alternatives: the best of them, one fixed by the study, or one per label of a quantity."""

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


@dataclass
class _Mark:
    """What a decorator leaves on a function until a registry collects it."""

    formulas: list[Formula] = field(default_factory=list)


def _arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a formula's arguments. Raises PerfgridError where one is not plain."""
    if isinstance(function, FunctionType) and not {"__signature__", "__wrapped__"} & vars(function).keys():
        code = function.__code__
        special = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or code.co_kwonlyargcount
        if not special and not function.__defaults__:
            return code.co_varnames[: code.co_argcount]  # `inspect` takes ten times as long, for a thousand formulas
    parameters = inspect.signature(function).parameters.values()
    for p in parameters:
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY) or p.default is not p.empty:
            raise PerfgridError(
                f"formula {function.__name__!r}: argument {p.name!r} must be a plain quantity name without a default"
            )
    return tuple(p.name for p in parameters)


def _mark(function: Callable[..., Any], family: Family | None, build: Callable[[Formula], Formula]) -> None:
    name = function.__name__
    arguments = _arguments(function)
    document = inspect.getdoc(function)
    if not document:
        raise PerfgridError(f"formula {name!r} needs a docstring whose first line says what the quantity means")
    bare = build(Formula(name, function, arguments, "", "", document.splitlines()[0]))
    for what in ("unit", "source"):
        if not getattr(bare, what):
            raise PerfgridError(f"formula {name!r} needs a {what}")
    setattr(function, _MARK, _Mark(list(_members(bare, family))))


def _members(bare: Formula, family: Family | None) -> tuple[Formula, ...]:
    """The members of a family: one formula per combination, each placeholder replaced by a member's name."""
    for placeholder in family or {}:
        if placeholder not in bare.name:
            raise PerfgridError(f"formula {bare.name!r} belongs to a family but its name lacks {placeholder!r}")
    if not family:
        return (bare,)
    members = []
    for combination in product(*family.values()):
        swap = dict(zip(family, combination, strict=True))

        def named(text: Any, swap: dict[str, str] = swap) -> Any:
            for placeholder, member in swap.items():
                text = text.replace(placeholder, member) if isinstance(text, str) else text
            return text

        changed = {k: named(getattr(bare, k)) for k in ("name", "meaning", "of", "by", "label", "same_as")}
        if isinstance(bare, Constraint):
            changed |= {"reason": named(bare.reason), "about": named(bare.about)}
        members.append(replace(bare, arguments=tuple(map(named, bare.arguments)), **changed))
    return tuple(members)


def formula(
    *,
    unit: str = "",
    source: str = "",
    family: Family | None = None,
    host: bool = False,
    inner: Sequence[str] = (),
    flags: Sequence[str] = (),
    where: str = "",
) -> Callable[[Function], Function]:
    """Mark a function as the formula of the quantity it is named after.

    ``unit`` is an SI unit string ("1" for pure numbers), ``source`` a key of the bibliography. With ``family``
    (``{"GROUP": ("tp", "dp")}``) the function is a template: one quantity per member, the placeholder replaced in its
    name, arguments and meaning. With ``host`` it takes the plain values of one design and returns an array on the axes
    ``inner`` (see `host_formulas`). ``flags`` are the words that the values 0, 1, ... stand for, ``where`` is the
    equation, table or section of the source. Raises PerfgridError for a missing unit, source or docstring.
    """
    axes = tuple(inner) if host else None

    def decorate(function: Function) -> Function:
        if inner and not host:
            raise PerfgridError(f"formula {function.__name__!r}: only a host formula declares inner axes")
        _mark(
            function, family, lambda f: replace(f, unit=unit, source=source, host=axes, flags=tuple(flags), where=where)
        )
        return function

    return decorate


def instantiated(template: Callable[..., Any], family: Family) -> Callable[..., Any]:
    """A copy of a family's template for other members, marked as a formula: another workload's kernels, say."""
    first: Formula = getattr(template, _MARK).formulas[0]
    copy = FunctionType(template.__code__, template.__globals__, template.__name__)
    copy.__doc__, copy.__module__ = template.__doc__, template.__module__
    return formula(unit=first.unit, source=first.source, family=family)(copy)


def alternative(
    *,
    of: str,
    label: str,
    by: str | None = None,
    unit: str = "",
    source: str = "",
    family: Family | None = None,
    where: str = "",
) -> Callable[[Function], Function]:
    """Mark a function as one way to obtain the quantity ``of``.

    Without ``by`` the least of all alternatives is taken unless a study fixes one by its label; with ``by`` the named
    label quantity (say ``precision``) selects. Raises PerfgridError like `formula`.
    """

    def decorate(function: Function) -> Function:
        _mark(function, family, lambda f: replace(f, unit=unit, source=source, of=of, label=label, by=by, where=where))
        return function

    return decorate


def constraint(
    *,
    kind: Literal["illegal", "exceeds"],
    reason: str,
    source: str = "",
    family: Family | None = None,
    about: str | None = None,
) -> Callable[[Function], Function]:
    """Mark a function as a constraint: true where a design is possible.

    ``illegal``: other values mean nothing where it is false; ``exceeds``: they are kept, the design is out of bounds.
    ``reason`` is the sentence shown for a violated point. A constraint ``about`` a quantity is checked only in studies
    that evaluate this quantity, any other one in all. Raises PerfgridError like `formula`.
    """
    if kind not in ("illegal", "exceeds"):
        raise PerfgridError(f"constraint kind must be 'illegal' or 'exceeds', found {kind!r}")

    def decorate(function: Function) -> Function:
        def build(f: Formula) -> Formula:
            stated = {"kind": kind, "reason": reason or f.meaning, "about": about}
            return Constraint(f.name, f.function, f.arguments, "1", source, f.meaning, **stated)

        _mark(function, family, build)
        return function

    return decorate


class Registry:
    """All formulas of a subject, by name, with the inner axes that they may use."""

    def __init__(self, inner: InnerAxes | None = None):
        self.inner = inner or InnerAxes({})
        self.formulas: dict[str, Formula] = {}
        self.choices: dict[str, Choice] = {}

    @classmethod
    def collect(cls, parts: Iterable[ModuleType | Callable[..., Any]], inner: InnerAxes | None = None) -> Registry:
        """Gather every marked function of the given modules (or single functions).

        Raises PerfgridError for a name defined twice and for alternatives that disagree in unit or selector.
        """
        registry = cls(inner)
        for part in parts:
            glossary = getattr(part, "GLOSSARY", None) if isinstance(part, ModuleType) else part
            for entry in glossary.entries if isinstance(glossary, Glossary) else ():
                registry.add(entry)
            if isinstance(part, Glossary):
                continue
            functions = vars(part).values() if isinstance(part, ModuleType) else [part]
            found = [f for f in functions if callable(f) and isinstance(getattr(f, _MARK, None), _Mark)]
            if isinstance(part, ModuleType):  # what a module imports from another belongs to the other
                found = [f for f in found if f.__module__ == part.__name__]
            elif not found:
                raise PerfgridError(
                    f"{getattr(part, '__name__', part)!r} carries no @formula, @constraint or @alternative"
                )
            for function in found:
                for member in getattr(function, _MARK).formulas:
                    registry.add(member)
        return registry

    def add(self, member: Formula) -> None:
        """Enter one formula; PerfgridError if its name is taken or its siblings disagree with it."""
        if member.name in self.formulas or member.name in self.choices:
            raise PerfgridError(f"quantity {member.name!r} is defined twice")
        self.formulas[member.name] = member
        if member.of is None:
            return
        if member.of in self.formulas:
            raise PerfgridError(f"quantity {member.of!r} is defined by a formula and by alternative {member.name!r}")
        siblings = self.choices[member.of].alternatives if member.of in self.choices else ()
        for sibling in siblings:
            for what in ("unit", "by"):
                if getattr(sibling, what) != getattr(member, what):
                    raise PerfgridError(
                        f"alternatives of {member.of!r} disagree in {what}: {sibling.name!r} has "
                        f"{getattr(sibling, what)!r}, {member.name!r} has {getattr(member, what)!r}"
                    )
            if sibling.label == member.label:
                raise PerfgridError(
                    f"alternatives {sibling.name!r} and {member.name!r} share the label {member.label!r}"
                )
        self.choices[member.of] = Choice(member.of, (*siblings, member), member.by)

    def extended(self, functions: Iterable[Callable[..., Any]]) -> Registry:
        """A copy in which the given marked functions replace or join the registered ones (a user's own formulas)."""
        added = Registry.collect(functions)
        copy = Registry(self.inner)
        for member in self.formulas.values():
            replaced = member.name in added.formulas or member.of in added.formulas
            if not replaced:
                copy.add(member)
        for member in added.formulas.values():
            copy.add(member)
        return copy

    def constraints(self, evaluated: Container[str] = ()) -> tuple[Constraint, ...]:
        """The constraints of every study and those about ``evaluated`` quantities, in the order of their definition."""
        found = (f for f in self.formulas.values() if isinstance(f, Constraint))
        return tuple(c for c in found if c.about is None or c.about in evaluated)

    def below(self, names: Iterable[str], given: Container[str] = ()) -> set[str]:
        """The named quantities and all that they may rest on, whichever alternatives are taken; given ones end it."""
        found: set[str] = set()
        about: dict[str | None, list[str]] = {}
        for member in self.formulas.values():
            if isinstance(member, Constraint):
                about.setdefault(member.about, []).append(member.name)
        waiting = about.get(None, []) + list(names)
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found.add(name)
            waiting += about.get(name, [])
            base = name if name in self.choices else name.removesuffix("_choice")
            if name in given:
                continue
            if base in self.choices:
                waiting += [a.name for a in self.choices[base].alternatives]
                waiting += [by] if (by := self.choices[base].by) else []
            elif name in self.formulas:
                waiting += self.formulas[name].arguments
        return found

    def names(self) -> tuple[str, ...]:
        """Every quantity that a formula or a choice provides."""
        return (*self.formulas, *self.choices)

    def get(self, name: str) -> Formula | Choice:
        """The formula or choice of a quantity; PerfgridError with the nearest names if there is none."""
        found = self.choices.get(name) or self.formulas.get(name)
        if found is None:
            raise PerfgridError(f"unknown quantity {name!r}{nearest(name, self.names())}")
        return found
