"""The nomenclature: every word that screens print, with its meaning, the quantity behind it, unit and source."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from perfgrid.catalog import load_variables
from perfgrid.catalog.names import resolved
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.formulas import WORKLOADS, registry_of


@dataclass(frozen=True)
class Word:
    """A word of screens: its meaning, symbol, quantity if there is one, unit and keys of the bibliography."""

    name: str
    section: str
    text: str
    symbol: str = ""
    quantity: str = ""
    unit: str = ""
    source: str = ""
    also: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """Where the page has it."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.name.lower()).split())


@dataclass(frozen=True)
class Known:
    """What formulas or the glossary say of a quantity in one workload."""

    name: str
    unit: str
    meaning: str
    source: str
    arguments: tuple[str, ...]
    workload: str  # empty for a given quantity


@cache
def words() -> dict[str, Word]:
    """The nomenclature by word, in the order of the page."""
    stated = tomllib.loads(Path(__file__).with_name("nomenclature.toml").read_text(encoding="utf-8"))
    found = {}
    for section in stated.values():
        for name, own in section["words"].items():
            about = next(known(own["quantity"]), None) if "quantity" in own else None
            own = {**own, "also": tuple(own.get("also", ()))}
            own |= {"unit": about.unit, "source": about.source if about.workload else ""} if about else {}
            found[name] = Word(name, section["title"], **own)
    return found


def word_of(name: str) -> Word | None:
    """The word that a text means; None for none. PerfgridError where several are meant."""
    spelled = {one: word for word in reversed(words().values()) for one in (*word.also, word.name)}
    found = resolved(name, spelled, parts=False)
    return spelled[found] if found else None


def known(quantity: str) -> Iterator[Known]:
    """What is known of a quantity: its formula in every workload that has another one, or the glossary's entry."""
    seen = set()
    for workload in WORKLOADS:
        registry = registry_of(workload)
        if quantity in registry.names():
            about = registry.get(quantity)
            arguments = tuple(getattr(about, "arguments", ()))
            one = Known(quantity, about.unit, about.meaning, about.source, arguments, workload)
            if (one.meaning, one.arguments) not in seen:
                seen.add((one.meaning, one.arguments))
                yield one
    if (given := load_variables().get(quantity)) is not None and not seen:
        yield Known(quantity, given.unit, given.meaning, f"stated: {given.of}", (), "")


def explained(name: str) -> tuple[Word | None, list[Known]]:
    """What a name of a word or of a quantity stands for. PerfgridError where it is neither."""
    word = word_of(name)
    legal = {q for workload in WORKLOADS for q in registry_of(workload).names()} | set(load_variables())
    quantity = word.quantity if word else name if name in legal else resolved(name, legal, parts=False)
    if word is None and quantity is None:
        raise PerfgridError(f"no word or quantity {name!r}{nearest(name, [*words(), *legal])}")
    return word, list(known(quantity)) if quantity else []
