"""The decorators that mark formulas, constraints and alternatives, and the registry that collects marked functions.

A formula is a pure function named after its quantity; its arguments are named after the quantities that it needs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any, Literal, TypeVar

from perfgrid.engine.errors import PerfgridError, nearest

from .entries import WORKLOAD as WORKLOAD
from .entries import Choice as Choice
from .entries import Constraint as Constraint
from .entries import Family as Family
from .entries import Formula as Formula
from .entries import Others, Sense, beside, members, occurs, plain, renamed
from .entries import same as same
from .inner_axes import InnerAxes

Function = TypeVar("Function", bound=Callable[..., Any])
_MARK = "__perfgrid__"


def _arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a formula's arguments. Raises PerfgridError for defaults, ``*args`` and keyword-only arguments."""
    if isinstance(function, FunctionType) and not {"__signature__", "__wrapped__"} & vars(function).keys():
        code = function.__code__
        special = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or code.co_kwonlyargcount
        if not special and not function.__defaults__:
            return code.co_varnames[: code.co_argcount]  # ten times faster than `inspect`
    parameters = inspect.signature(function).parameters.values()
    for p in parameters:
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY) or p.default is not p.empty:
            raise PerfgridError(
                f"formula {function.__name__!r}: argument {p.name!r} must be a plain quantity name without a default"
            )
    return tuple(p.name for p in parameters)


def _marking(
    family: Family | None, build: Callable[[Formula], Formula], others: Others | None = None
) -> Callable[[Function], Function]:
    """A decorator that adds to a function's formulas, which a registry collects: those built from its bare one."""

    def decorate(function: Function) -> Function:
        name = function.__name__
        arguments = _arguments(function)
        document = inspect.getdoc(function)
        if not document:
            raise PerfgridError(f"formula {name!r} needs a docstring whose first line says what the quantity means")
        bare = build(Formula(name, function, arguments, "", "", document.splitlines()[0]))
        for what in ("unit", "source"):
            if not getattr(bare, what):
                raise PerfgridError(f"formula {name!r} needs a {what}")
        owner, earlier = getattr(function, _MARK, (function, {}))  # `functools.wraps` copies the mark of another one
        found = {member.name: member for member in (*members(bare, family), *beside(bare, family, others or {}))}
        setattr(function, _MARK, (function, found if owner is not function else earlier | found))
        return function

    return decorate


def formula(
    *,
    unit: str = "",
    source: str = "",
    family: Family | None = None,
    host: bool = False,
    inner: Sequence[str] = (),
    flags: Sequence[str] = (),
    where: str = "",
    sense: Sense = "",
) -> Callable[[Function], Function]:
    """Mark a function as the formula of the quantity it is named after. Its arguments are names of quantities, too.

    Parameters
    ----------
    unit
        SI unit; "1" for pure numbers.
    source
        Key of the bibliography (of built-in formulas), or any text.
    family
        ``{"GROUP": ("tp", "dp")}`` makes one quantity per member: "tp" and "dp" replace "GROUP" in the function's name,
        arguments and docstring. ``{"GROUP": {"tp": "tp", "vocab": "tp"}}`` makes that of "vocab" another name of that
        of "tp".
    host
        The function takes the plain values of one design and returns an array on the axes ``inner``.
    inner
        Inner axes of the result of a host formula.
    flags
        Labels of the values 0, 1, ..., printed in their place.
    where
        Equation, table or section of the source.
    sense
        Whether the "least" or the "most" of it is best. Default: as its unit says (times and costs, rates).

    Raises
    ------
    PerfgridError
        For a missing unit, source or docstring.

    Examples
    --------
    >>> import perfgrid as pg
    >>> @pg.formula(unit="USD", source="our price list")
    ... def price_of_two(die_cost):
    ...     '''Price of two dies.'''
    ...     return 2 * die_cost
    >>> axes = {"device": ["h100-sxm-80gb"]}
    >>> bill = pg.Study.make(workload="manufacturing", outputs=["price_of_two"], axes=axes, formulas=[price_of_two])
    >>> pg.evaluate(bill).price_of_two.dims
    ('device',)
    """

    def build(bare: Formula) -> Formula:
        if inner and not host:
            raise PerfgridError(f"formula {bare.name!r}: only a host formula declares inner axes")
        axes = tuple(inner) if host else None
        return replace(bare, unit=unit, source=source, host=axes, flags=tuple(flags), where=where, sense=sense)

    return _marking(family, build)


def synonym(
    *, unit: str, source: str, family: Family | None = None, of: str | None = None, workload: str | None = None
) -> Callable[[Function], Function]:
    """Mark a function that returns its only argument: another name of that quantity, which its readers read instead.

    With ``of`` and ``workload``: of the quantity ``of`` in studies of that workload.
    """
    stated = {"unit": unit, "source": source, "of": of, "by": WORKLOAD if workload else None, "label": workload}

    def build(bare: Formula) -> Formula:
        if len(bare.arguments) != 1:
            raise PerfgridError(f"synonym {bare.name!r} needs exactly one argument, found {len(bare.arguments)}")
        return renamed(replace(bare, **stated), *bare.arguments)

    return _marking(family, build)


def synonyms(rows: Mapping[str, tuple[str, str, str, str]], workload: str | None = None) -> tuple[Formula, ...]:
    """Other names of quantities, as a module lists them in ``FORMULAS``: name -> quantity, unit, source, meaning.

    With ``workload``: what the quantities of these names are in studies of that workload.
    """

    def row(name: str, of: str, unit: str, source: str, meaning: str) -> Formula:
        if workload is None:
            return renamed(Formula(name, same, (of,), unit, source, meaning), of)
        own = Formula(f"{workload}_{name}", same, (of,), unit, source, meaning, of=name, by=WORKLOAD, label=workload)
        return renamed(own, of)

    return tuple(row(name, *rest) for name, rest in rows.items())


def constant(*, unit: str, source: str, family: Family | None = None) -> Callable[[Function], Function]:
    """Mark a function without arguments: a constant, whose value its readers take."""
    return formula(unit=unit, source=source, family=family)


def alternative(
    *,
    of: str,
    label: str | Sequence[str],
    by: str | None = None,
    unit: str = "",
    source: str = "",
    family: Family | None = None,
    where: str = "",
    flags: Sequence[str] = (),
    sense: Sense = "",
    others: Others | None = None,
) -> Callable[[Function], Function]:
    """Mark a function as one of several ways to compute a quantity.

    All formulas of the quantity must be alternatives: one that is also defined by a `formula` is an error.

    Parameters
    ----------
    of
        The quantity.
    label
        Name of this alternative. Several names make one alternative each, as a family over "LABEL" does.
    by
        Label quantity that selects among the alternatives, such as ``precision``. Default: the least value is taken,
        unless a study selects one in ``[choices]``; the quantity ``<of>_choice`` says which. With "workload", the
        function replaces the quantity in studies whose workload is ``label``.
    unit, source, family, where, flags, sense
        As for `formula`.
    others
        Further alternatives that need no function: label, or several, -> a number, or the quantity whose value it is.

    Raises
    ------
    PerfgridError
        As for `formula`.

    Examples
    --------
    >>> import perfgrid as pg
    >>> @pg.alternative(of="die_price", label="made", unit="USD", source="our price list")
    ... def made_die_price(die_cost):
    ...     '''Price of a die of our own.'''
    ...     return 1.5 * die_cost
    >>> @pg.alternative(of="die_price", label="bought", unit="USD", source="our price list")
    ... def bought_die_price():
    ...     '''Price of a die from a supplier.'''
    ...     return 100.0
    >>> axes, formulas = {"device": ["h100-sxm-80gb"]}, [made_die_price, bought_die_price]
    >>> bill = pg.Study.make(workload="manufacturing", outputs=["die_price"], axes=axes, formulas=formulas)
    >>> pg.evaluate(bill).die_price.item()
    100.0
    """
    of_each, name = (family, label) if isinstance(label, str) else ({**(family or {}), "LABEL": label}, "LABEL")
    about = {"unit": unit, "source": source, "of": of, "label": name, "by": by, "where": where, "flags": tuple(flags)}
    about["sense"] = sense
    return _marking(of_each, lambda bare: replace(bare, **about), others)


def constraint(
    *,
    reason: str,
    kind: Literal["illegal", "exceeds"] = "illegal",
    source: str = "",
    family: Family | None = None,
    about: str | None = None,
    of: str | None = None,
    workload: str | Sequence[str] = (),
) -> Callable[[Function], Function]:
    """Mark a function as a constraint: true where a design is feasible.

    Parameters
    ----------
    reason
        Text shown for designs that violate it, such as "the die is above 500 mm2".
    kind
        "illegal": the values of designs that violate it are meaningless. "exceeds": they are valid, but beyond a limit.
    source, family
        As for `formula`.
    about
        A quantity: the constraint is checked only in studies that evaluate or state it. Default: in all.
    of
        Name of a constraint that this one replaces in studies of the one workload given by ``workload``.
    workload
        Names of the workloads that check it. Default: all.

    Raises
    ------
    PerfgridError
        As for `formula`.

    Examples
    --------
    >>> import perfgrid as pg
    >>> @pg.constraint(kind="exceeds", reason="the die is above 500 mm2", source="our limit")
    ... def small_die(die_area):
    ...     '''Whether the die is small.'''
    ...     return die_area < 500e-6
    """
    if kind not in ("illegal", "exceeds"):
        raise PerfgridError(f"constraint kind must be 'illegal' or 'exceeds', found {kind!r}")
    named = (workload,) if isinstance(workload, str) else tuple(workload)
    if of is not None and len(named) != 1:
        raise PerfgridError(f"a constraint that replaces {of!r} must name one workload, found {len(named)}")

    def build(f: Formula) -> Formula:
        stated = {"kind": kind, "reason": reason or f.meaning, "about": about, "workloads": named}
        if of is not None:
            stated |= {"of": of, "by": WORKLOAD, "label": named[0]}
        return Constraint(f.name, f.function, f.arguments, "1", source, f.meaning, **stated)

    return _marking(family, build)


def marked(part: ModuleType | Callable[..., Any]) -> list[Callable[..., Any]]:
    """The marked functions of a module, in order, without those that it imports; of a single function itself."""
    whole = isinstance(part, ModuleType)
    found = [f for f in (vars(part).values() if whole else [part]) if callable(f)]
    found = [f for f in found if isinstance(getattr(f, _MARK, None), tuple)]
    return [f for f in found if f.__module__ == part.__name__] if whole else found


class Registry:
    """All formulas of a subject, by name, with the inner axes that they may use."""

    def __init__(self, inner: InnerAxes | None = None):
        self.inner = inner or InnerAxes({})
        self.formulas: dict[str, Formula] = {}
        self.choices: dict[str, Choice] = {}
        self.modules: dict[str, str] = {}  # the module that defines each formula
        self.workload = ""  # set by `of_workload`

    @classmethod
    def collect(cls, parts: Iterable[ModuleType | Callable[..., Any]], inner: InnerAxes | None = None) -> Registry:
        """Gather every marked function of the given modules (or single functions).

        Raises PerfgridError for a name defined twice and for alternatives that disagree in unit or selector.
        """
        registry = cls(inner)
        for part in parts:
            name = getattr(part, "__name__", "")
            for entry in getattr(part, "FORMULAS", ()):
                registry.add(entry, name)
            found = marked(part)
            if not found and not isinstance(part, ModuleType):
                raise PerfgridError(f"{name or part!r} has no @formula, @constraint or @alternative decorator")
            for function in found:
                for member in getattr(function, _MARK)[1].values():
                    registry.add(member, function.__module__)
        return registry

    def add(self, member: Formula, module: str = "") -> None:
        """Add a formula. Raises PerfgridError if its name is taken or it disagrees with other alternatives."""
        if member.name in self.formulas or member.name in self.choices:
            raise PerfgridError(f"quantity {member.name!r} is defined twice")
        self.formulas[member.name] = member
        self.modules[member.name] = module
        if member.of is None or member.by == WORKLOAD:
            return
        if member.of in self.formulas:
            both = f"by a formula and by alternative {member.name!r}"
            raise PerfgridError(f"quantity {member.of!r} is defined {both}: make the formula an alternative, too")
        siblings = self.choices[member.of].alternatives if member.of in self.choices else ()
        for sibling in siblings:
            for what in ("unit", "by"):
                if getattr(sibling, what) != getattr(member, what):
                    raise PerfgridError(
                        f"alternatives of {member.of!r} disagree in {what}: {sibling.name!r} has "
                        f"{getattr(sibling, what)!r}, {member.name!r} has {getattr(member, what)!r}"
                    )
            if sibling.label == member.label:
                both = f"{sibling.name!r} and {member.name!r}"
                raise PerfgridError(f"alternatives {both} share the label {member.label!r}")
        self.choices[member.of] = Choice(member.of, (*siblings, member), member.by)

    def of_workload(self, workload: str, asked: Iterable[ModuleType], drawn: Iterable[ModuleType] = ()) -> Registry:
        """The formulas of one workload: all of the modules ``asked``, and those of the modules ``drawn`` they need.

        Alternatives selected by the workload replace the quantities that they are alternatives of. Constraints are
        those of the modules ``asked`` and those that name the workload.
        """
        own, other = {m.__name__ for m in asked}, {m.__name__ for m in drawn}
        usable = {n: m for n, m in self.formulas.items() if self.modules[n] in own | other}
        replaced = {m.of for m in usable.values() if m.by == WORKLOAD and m.label == workload}
        view, kept, roots = Registry(self.inner), Registry(self.inner), []
        for name, member in usable.items():
            module = self.modules[name]
            if member.by != WORKLOAD and {member.name, member.of} & replaced:
                continue
            if occurs(member, workload, module in own):
                member = plain(member)
                view.add(member, module)
                roots += [member.of or member.name] if module in own else []
        kept.workload, needed = workload, view.below(roots)
        for name, member in view.formulas.items():
            if name in needed:
                kept.add(member, view.modules[name])
        return kept

    def extended(self, functions: Iterable[Callable[..., Any]]) -> Registry:
        """A copy in which the given marked functions replace or join the registered ones (a user's own formulas)."""
        found = Registry.collect(functions)
        return self.joined([plain(m) for m in found.formulas.values() if occurs(m, self.workload, True)])

    def joined(self, added: Sequence[Formula]) -> Registry:
        """A copy in which the given formulas replace or join the registered ones."""
        names, copy = {member.name for member in added}, Registry(self.inner)
        copy.workload = self.workload
        for member in self.formulas.values():
            if not {member.name, member.of} & names:
                copy.add(member, self.modules[member.name])
        for member in added:
            copy.add(member)
        return copy

    def constraints(self, evaluated: Container[str] = ()) -> tuple[Constraint, ...]:
        """The constraints of every study and those about ``evaluated`` quantities, in the order of their definition."""
        found = (f for f in self.formulas.values() if isinstance(f, Constraint))
        return tuple(c for c in found if c.about is None or c.about in evaluated)

    def subjects(self) -> set[str]:
        """The quantities that some constraint is about."""
        return {f.about for f in self.formulas.values() if isinstance(f, Constraint) and f.about is not None}

    def below(
        self, names: Iterable[str], given: Container[str] = (), labels: Mapping[str, str] | None = None
    ) -> set[str]:
        """The named quantities and all that they may depend on, by any alternative; stops at given ones.

        ``labels``: label quantities with one label only, whose other alternatives are left out.
        """
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
                by, alternatives = self.choices[base].by, self.choices[base].alternatives
                taken = [a.name for a in alternatives if a.label == (labels or {}).get(by or "")]
                waiting += taken or [a.name for a in alternatives]
                waiting += [by] if by else []
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
