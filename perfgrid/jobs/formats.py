"""Formats of jobs: which key of a framework states which quantity, as data in ``formats/*.toml``.

A *key* states one quantity. A *case* is a value of a quantity that several keys state together: reading takes the first
case whose keys have the stated values, writing writes the keys of the first case with the value. *Products* join
quantities, among them a format's own ones: what one of them lacks follows from the others. All three work both ways.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache, cached_property
from math import isfinite, nan, prod
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfgrid.catalog import Variable, load_catalog
from perfgrid.catalog.schema import convert
from perfgrid.engine.errors import PerfgridError, mistake_text, nearest

from .arguments import Arguments, hyphenated
from .extended import FOLDER, whole
from .subjects import covers
from .syntaxes import TABLES, Syntax

USUAL = "usual"  # of a quantity that the software states: what it states
INSIDE, BETWEEN = "ici_", "dcn_"  # of an axis of a mesh: its part inside and between scale-up domains
_PRODUCT = re.compile(r"(\w+) = (\w+(?: \* \w+)*|\w+(?: \+ \w+)+)(?: if (.+))?")
_CONDITION = re.compile(r"(\w+) ([<=>]) (\w+)")
_COMPARED = {"<": operator.lt, "=": operator.eq, ">": operator.gt}
Number = int | float


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Key(_Row):
    """A key of a format: what it states and how, since and until which version."""

    quantity: str
    kind: Literal["integer", "number", "flag", "text", "switch", "count", "slots", "modules", "stages"] | None = None
    # of own quantities; switch: no value; the last four: lists, see `lists`
    unset: tuple[str, ...] = ()  # values that state nothing, such as -1
    aliases: tuple[str, ...] = ()
    write: bool = True
    write_zero: bool = False
    empty: int | None = None  # what the values in unset stand for, if anything
    above: int = 0  # the largest value that is not written
    words: Mapping[str, str] = Field(default_factory=dict)  # of the format -> of perfgrid
    inverted: bool = False  # of a flag
    suffixed: bool = False  # a number may end in k (1000) or K (1024), m, M, g, G
    note: str = ""  # listed with what is assumed
    only: str | None = None  # written for models that have this, such as experts
    since: str | None = None
    until: str | None = None  # the first version without it


class Case(_Row):
    """A value of a quantity, and the keys that state it: false is a key that is absent."""

    quantity: str
    value: bool | Number | str
    keys: Mapping[str, bool | Number | str | list[str]] = Field(default_factory=dict)
    contains: Mapping[str, str] = Field(default_factory=dict)  # key -> a word of the list that it holds
    also: Mapping[str, bool | Number | str] = Field(default_factory=dict)  # written beside; env:NAME is a variable
    since: str | None = None
    until: str | None = None
    read: bool = True
    write: bool = True
    only: str | None = None  # written for models that have this, such as experts
    note: str = ""  # listed with what is assumed
    means: str = ""  # what is said of an own quantity


class Fallback(_Row):
    """What a quantity is that nothing states, under conditions: a value, or that of another quantity."""

    quantity: str
    value: bool | Number | str | None = None
    of: str = ""
    when: str = ""  # as behind the "if" of a product
    why: str = ""


class Needed(_Row):
    """A quantity that has to be given where nothing states it, and why."""

    quantity: str
    when: str = ""
    why: str


class Refused(_Row):
    """Values that a framework does not take together, and why."""

    values: Mapping[str, bool | Number | str]
    why: str


class Unpriced(_Row):
    """Keys that change time, memory or cost by much and that perfgrid does not model: they stop the reader by name.

    ``harmless``: values beside false, null and 0 with which they are not in effect. ``values``: the only ones that do,
    of keys that are read with others.
    """

    keys: tuple[str, ...]
    why: str
    values: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    quantity: str = ""  # with which the user may state its effect


class Product(_Row):
    """One quantity as the product (or the sum) of others and of numbers, perhaps only where others have a value."""

    left: str
    right: tuple[str, ...]
    sums: bool = False
    when: tuple[tuple[str, str, str], ...] = ()

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether it applies to these values."""
        return holds(self.when, values)

    def known(self, values: Mapping[str, Any]) -> bool:
        """Whether it applies and all of it is known."""
        names = (self.left, *self.right)
        return self.holds(values) and all(name.isdigit() or values.get(name) is not None for name in names)

    def total(self, values: list[float]) -> float:
        """The product, or the sum."""
        return sum(values) if self.sums else prod(values)

    def rest(self, whole: float, others: float) -> float:
        """What makes the whole, beside others; NaN for none."""
        if self.sums:
            return whole - others
        return whole / others if others else nan


def conditions_in(text: str) -> tuple[tuple[str, str, str], ...]:
    """Conditions joined by "and", such as ``shards > 1``. PerfgridError for what is none."""
    found = [_CONDITION.fullmatch(one) for one in text.split(" and ") if one]
    if not all(found):
        raise PerfgridError(f"{text!r} is no condition")
    return tuple((c[1], c[2], c[3]) for c in found if c)


def holds(conditions: Iterable[tuple[str, str, str]], values: Mapping[str, Any]) -> bool:
    """Whether all conditions hold; one on a quantity without a value does not."""
    for name, sign, limit in conditions:
        own, other = values.get(name), int(limit) if limit.isdigit() else values.get(limit)
        if own is None or other is None or not _COMPARED[sign](own, other):
            return False
    return True


class Renamed(_Row):
    """A former name of a key."""

    to: str
    version: str  # the first one with the new name


class Format(_Row):
    """All that is known of a format."""

    title: str
    workload: Literal["training", "inference"] = "training"
    source: str
    software: str
    prefix: str = ""
    syntaxes: tuple[Syntax, ...]
    writes: Syntax | None = None
    written_since: str | None = None  # the first version that is written
    versions: tuple[str, ...]
    dated: Mapping[Syntax, str] = Field(default_factory=dict)  # the version of files in a syntax, if none is stated
    command: str = ""  # what a written command line begins with; {names} stand for quantities
    keys: Mapping[str, Key]
    cases: tuple[Case, ...] = ()
    products: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()  # further products, of writing alone: which of several ways is taken
    fixed: Mapping[str, bool | Number | str] = Field(default_factory=dict)  # written beside every design
    defaults: Mapping[str, bool | Number | str] = Field(default_factory=dict)  # a text may name another quantity
    implied: Mapping[str, bool | Number | str] = Field(default_factory=dict)  # that the format has no key for
    degrees: tuple[str, ...] = ()  # defaults that hold before devices are divided: what a file leaves out fills none
    open: tuple[str, ...] = ()  # quantities of a design that no key states, which a reader has to be given
    leaves: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)  # key -> what it states beyond what is read
    parts: tuple[str, ...] = ()  # own quantities that need not be whole
    tiers: tuple[str, ...] = ()  # "axis=quantity": axes whose ici_ and dcn_ parts fill a domain, innermost first
    replaced: Mapping[str, Mapping[str, Number | str]] = Field(default_factory=dict)  # values that cannot be written
    launchers: Mapping[str, Mapping[str, int | str]] = Field(default_factory=dict)  # see `syntaxes.Launchers`
    programs: tuple[str, ...] = ()  # commands that start it, as patterns of words; see `syntaxes.launched`
    positional: str = ""  # the key that the first word behind its program states, without a flag
    switches: tuple[str, ...] = ()  # flags without a value, beside its keys of that kind; or patterns
    several: tuple[str, ...] = ()  # flags with several values; or patterns
    whole_context: bool = False  # a server that starts only where a request of its longest context fits
    pairs: bool = False  # its program takes bare key=value words, which win over its file
    abbreviated: bool = False  # its parser takes an unambiguous beginning of a flag
    files: tuple[str, ...] = ()  # last names of keys that name a further file of settings
    files_win: bool = False  # what such a file states replaces what the command line does
    backends: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)  # key -> its value -> the format to read
    options: tuple[str, ...] = ()  # keys that stand as --key=value among pairs
    complete: bool = False  # keys/NAME.txt lists every flag of its program: a pattern of ignored keys stands for these
    tables: tuple[str, ...] = ()  # of its keys; a key of another table counts by its last name
    refused: tuple[Refused, ...] = ()
    unpriced: tuple[Unpriced, ...] = ()
    strict: bool = False  # keys that could matter and are not known stop the reader, values that are not known, too
    distinctive: tuple[str, ...] = ()  # keys, or patterns of them, of which its files have one
    within: tuple[str, ...] = ()  # patterns of tables around its own, such as modules.*.overrides
    underscored: bool = False  # its files have underscores where its keys have dashes
    named: str | None = None  # own quantity that names the model
    renamed: Mapping[str, Renamed] = Field(default_factory=dict)
    ignored: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)  # why -> keys, or patterns of them
    taken: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)  # key -> its values that the software stack has
    name: str = ""
    engines: Mapping[str, str] = Field(default_factory=dict)  # of a deployment: the word in its modules -> the format
    bases: tuple[str, ...] = ()  # formats that it extends or includes
    aliases: Mapping[str, str] = Field(default_factory=dict)  # other spellings of keys
    fallbacks: tuple[Fallback, ...] = ()  # in their order, behind the defaults
    needed: tuple[Needed, ...] = ()

    def equations(self, writing: bool = False) -> list[Product]:
        """Its products, to write a design with those that choose what reading leaves open."""
        found = []
        for text in (*self.products, *(self.choices if writing else ())):
            parts = _PRODUCT.fullmatch(text)
            if parts is None:
                raise PerfgridError(f"formats/{self.name}.toml: {text!r} is no product")
            when = conditions_in(parts[3] or "")
            right = tuple(re.split(r" [*+] ", parts[2]))
            found.append(Product(left=parts[1], right=right, sums="+" in parts[2], when=when))
        return found

    @cached_property
    def by_name(self) -> dict[str, str]:
        """A key by each of its names, and of its cases."""
        names = {alias: key for key, of in self.keys.items() for alias in (key, *of.aliases)}
        return names | {key: key for case in self.cases for key in (*case.keys, *case.contains)}

    @cached_property
    def arguments(self) -> Arguments:
        """How its program reads the words of a command line."""
        cases = [(key, value) for case in self.cases for key, value in case.keys.items()]
        own = [n for key, row in self.keys.items() if row.kind == "switch" for n in (key, *row.aliases)]
        own += [key for key, value in cases if isinstance(value, bool) and key not in self.keys]
        plain = (key for keys in self.ignored.values() for key in keys if not key.endswith("*"))
        names = frozenset((*self.by_name, *self.renamed, *plain))
        return Arguments(self.positional, (*own, *self.switches), self.several, names, self.pairs, self.abbreviated)

    @cached_property
    def ignored_names(self) -> frozenset[str]:
        """Keys that are ignored for a reason, by their names and not by a pattern; with hyphens."""
        return frozenset(hyphenated(key) for keys in self.ignored.values() for key in keys if not key.endswith("*"))

    @cached_property
    def by_last_name(self) -> dict[str, str]:
        """A key by its name without its table; of several alike the first."""
        return {name.rpartition(".")[2]: key for name, key in reversed(self.by_name.items())}

    def name_of(self, key: str) -> str:
        """The key of the format that a stated key is: outside the tables that it has, by its last name alone."""
        for pattern in self.within:
            parts = pattern.split(".")
            if fnmatchcase(".".join(key.split(".")[: len(parts)]), pattern):
                key = ".".join(key.split(".")[len(parts) :]) or key
        if self.underscored:
            key = key.replace("_", "-")
        key = self.aliases.get(key, key)
        if key in self.by_name:
            return self.by_name[key]
        if not self.tables or key.partition(".")[0] in self.tables:
            table, point, last = key.partition(".")  # of a flag with a point only its own name is spelled otherwise
            spelled = self.arguments.named(key)
            if spelled == key and point:
                spelled = f"{hyphenated(table)}.{last}"
            return self.by_name.get(spelled, spelled if spelled in self.arguments.names else key)
        inner = key.partition(".")[2]
        return inner if inner.partition(".")[0] in self.tables else self.by_last_name.get(key.rpartition(".")[2], key)

    def stating(self, key: str) -> list[Case]:
        """The cases that a key states by its presence."""
        return [c for c in self.cases if c.keys.get(key, False) is not False or key in c.contains]

    def matters(self, key: str) -> bool:
        """Whether a stated key states a quantity."""
        return self.name_of(key) in self.by_name or key in self.renamed

    def unpriced_row(self, key: str, value: str | None = None) -> Unpriced | None:
        """What is known of a key, perhaps with a value, that is not modelled and would matter; None for others."""
        rows = (row for row in self.unpriced if not row.values or value in row.values)
        return next((row for row in rows if any(covers(one, key, False) for one in row.keys)), None)

    def reason_to_ignore(self, key: str) -> str | None:
        """Why a known key is ignored; None for one that is not."""
        every = self.ignored.items()
        return next((why for why, keys in every if any(covers(one, key, self.strict) for one in keys)), None)

    def shown(self, key: str) -> str:
        """A key as its users write it."""
        text = key.replace("-", "_") if self.underscored else key
        return text if key.isupper() else f"{self.prefix}{text}"  # variables have no prefix

    def at(self, version: str | None) -> str:
        """A version that the format knows; the newest one by default."""
        if version is None:
            return self.versions[-1]
        if version not in self.versions:
            raise PerfgridError(f"{self.name}: version {version!r} is not known; known are {', '.join(self.versions)}")
        return version

    def spelled(self, syntax: Syntax) -> Format:
        """The format as texts of a syntax have it: tables without the prefix of flags, versions as old as theirs."""
        own: dict[str, Any] = {"prefix": "" if syntax in TABLES else self.prefix, "written_since": None}
        return self.model_copy(update=own | ({"writes": syntax} if syntax in self.dated else {}))

    def has(self, row: Key | Case, version: str) -> bool:
        """Whether a version has a key or a case."""
        place = self.versions.index
        begun = row.since is None or place(row.since) <= place(version)
        return begun and (row.until is None or place(version) < place(row.until))


@cache
def formats() -> dict[str, Format]:
    """Every format by its name."""
    found = {}
    for path in sorted(FOLDER.glob("*.toml")):
        content = whole(path.stem)
        try:
            found[path.stem] = Format(**content, name=path.stem)
        except ValidationError as error:
            raise PerfgridError(f"{path}: {mistake_text(error.errors()[0])}") from None
    return found


def format_of(text: str) -> tuple[Format, str]:
    """A format and its version of ``NAME`` or ``NAME@VERSION``. PerfgridError for an unknown one."""
    name, _, version = text.partition("@")
    if name not in formats():
        raise PerfgridError(f"no format {name!r}{nearest(name, formats())}")
    found = formats()[name]
    return found, found.at(version or None)


@cache
def glossary() -> Mapping[str, Variable]:
    """The given quantities of perfgrid."""
    return load_catalog().variables


def solved(
    form: Format,
    values: Mapping[str, Any],
    where: str = "",
    origins: Mapping[str, str] | None = None,
    conflicts: set[str] | None = None,
    without: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Values with those that follow by the products of a format, ``without`` the products of some quantities.

    PerfgridError for values that contradict a product, and for one that could not be a whole number; ``origins``: the
    keys behind quantities, which the error names. With ``conflicts``, which takes in their names, none is raised.
    """
    found = dict(values)
    moved = True
    while moved:
        moved = False
        for product in form.equations(writing=conflicts is not None):
            every = (product.left, *product.right)
            lacking = [name for name in every if not name.isdigit() and found.get(name) is None]
            if len(lacking) > 1 or product.left in without or not product.holds(found):
                continue
            others = product.total([float(n) if n.isdigit() else found[n] for n in product.right if n not in lacking])
            if not isfinite(others):
                raise PerfgridError(f"{where}{_equation(product, found, origins, *lacking)}: must be finite")
            if not lacking:
                if abs(others - found[product.left]) > 1e-9 * max(1, abs(others)):
                    if conflicts is None:
                        raise _contradiction(product, found, where, origins)
                    conflicts.add(product.left)
                continue
            value = others if lacking[0] == product.left else product.rest(found[product.left], others)
            if abs(value - round(value) if isfinite(value) else 1) < 1e-9 * max(1, value):
                value = round(value)
            elif lacking[0] not in form.parts:
                if conflicts is None:
                    raise _contradiction(product, found, where, origins, lacking[0])
                conflicts.add(lacking[0])
                continue
            if told := _beyond(lacking[0], value):
                if conflicts is None:
                    raise PerfgridError(f"{where}{_equation(product, found, origins, lacking[0])}: {told}")
                conflicts.add(lacking[0])
                continue
            found[lacking[0]], moved = value, True
    return found


def _beyond(name: str, value: float) -> str:
    """Why a quantity may not have a value that follows: the bounds of the glossary; empty where it may."""
    variable = glossary().get(name)
    if variable is None or variable.kind not in ("integer", "number"):
        return "" if isfinite(value) else "must be finite"
    try:
        convert(variable, value, name)
    except PerfgridError as error:
        return str(error).partition(", found")[0]
    return ""


def _equation(product: Product, values: Mapping[str, Any], origins: Mapping[str, str] | None, lacking: str = "") -> str:
    """A product in words, with the numbers of what is known and the keys that state them."""

    def said(name: str) -> str:
        if name.isdigit() or name == lacking:
            return name
        key = (origins or {}).get(name)
        return f"{name} {values[name]:g}" + (f" ({key})" if key else "")

    return f"{said(product.left)} = {(' + ' if product.sums else ' x ').join(map(said, product.right))}"


def _contradiction(
    product: Product,
    values: Mapping[str, Any],
    where: str,
    origins: Mapping[str, str] | None,
    lacking: str = "",
) -> PerfgridError:
    """What to say of values that contradict a product, or leave no whole number for what is ``lacking``."""

    def said(name: str) -> str:
        if name.isdigit():
            return name
        key = (origins or {}).get(name)
        return f"{name} {values[name]:g}" + (f" ({key})" if key else "")

    known = [name for name in product.right if name != lacking]
    total = product.total([float(name) if name.isdigit() else values[name] for name in known])
    right = (" + " if product.sums else " x ").join(map(said, known)) + (f" = {total:g}" if len(known) > 1 else "")
    if lacking == product.left:
        return PerfgridError(f"{where}{lacking} would be {right}, which is not a whole number")
    relation = "is not" if not lacking else "is less than" if product.sums else "is not a multiple of"
    when = " and ".join(f"{name} {sign} {limit}" for name, sign, limit in product.when)
    return PerfgridError(f"{where}{said(product.left)} {relation} {right}{when and f', where {when}'}")
