"""Which values of the catalog are older than values of their kind stay good."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perfgrid.catalog import Catalog
from perfgrid.catalog.files import Layer
from perfgrid.catalog.references import year_of
from perfgrid.catalog.schema import BLOCKS, Variable


@dataclass(frozen=True)
class Age:
    """How many years values of a kind stay good, how such values are known, and why they age."""

    years: int
    confidences: tuple[str, ...]
    reason: str


# Data sheets and counted facts do not age, measured devices stay what they are, calibrated values are fitted anew.
AGES = {
    "price": Age(2, ("estimate", "measured"), "prices change"),
    "software": Age(3, ("estimate", "measured"), "releases change it"),
    "other": Age(5, ("estimate",), "newer sources may exist"),
}


@dataclass(frozen=True)
class Old:
    """A value that deserves another look."""

    table: str
    entry: str
    quantity: str
    year: int
    reason: str


def age_of(variable: Variable) -> Age:
    """The kind of a quantity: amounts of money and conditions of a market, software, any other."""
    kind = "price" if variable.of == "price" or "USD" in variable.unit else str(variable.of)
    return AGES.get(kind, AGES["other"])


def old_values(catalog: Catalog, layer: Layer, this_year: int) -> Iterator[Old]:
    """The old ones among the values that a set of files states, by their year or else that of their own source."""
    for kind, definitions in layer.definitions.items():
        for name, definition in definitions.items():
            entry = catalog.entry(kind, name)
            blocks = (definition.stated.get(block, {}) for block in BLOCKS)
            stated: Mapping[str, Any] = {q: v for part in (definition.stated, *blocks) for q, v in part.items()}
            for quantity, detail in entry.details.items():
                about, age = stated.get(quantity), age_of(catalog.variables[quantity])
                if not isinstance(about, Mapping) or detail.confidence not in age.confidences:
                    continue
                year = detail.year or year_of(
                    catalog.references.get(str(about.get("source")), "")
                )  # "none" is no source
                if year and year < this_year - age.years:
                    yield Old(kind, name, quantity, year, f"over {age.years} years old, {age.reason}")


def summary(found: Iterable[Old]) -> Iterator[tuple[str, str]]:
    """A line for each quantity of a table with the entries by year: its subject and its sentence."""
    together = defaultdict[tuple[str, str, str], dict[int, list[str]]](lambda: defaultdict(list))
    for old in found:
        together[old.table, old.quantity, old.reason][old.year].append(old.entry)
    for (table, quantity, reason), years in together.items():
        entries = "; ".join(f"{', '.join(names)} ({year})" for year, names in sorted(years.items()))
        yield f"{table} {quantity}", f"{reason}: {entries}"
