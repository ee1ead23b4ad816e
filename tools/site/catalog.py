"""A page for each entry of the catalog, with range, year, confidence and source of each value; a list of each table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfgrid.catalog import load_catalog
from perfgrid.cli.catalog import figures_row, value_row
from perfgrid.text.numbers import number

from .formulas import cited, linked
from .links import escaped, relative, table, trail

INDEX = "reference/catalog/index.md"


def catalog_pages() -> Iterator[tuple[str, str]]:
    """Path and text of all pages of the catalog."""
    catalog, tables = load_catalog(), []
    for kind, held in catalog.tables.items():
        index, rows = f"reference/catalog/{kind}/index.md", []
        for name, entry in held.items():
            page = f"reference/catalog/{kind}/{name}.md"
            figures = figures_row(catalog, entry)
            title = figures.pop("title")
            of = {q: _text(v, catalog.variables[q].unit if q in catalog.variables else "1") for q, v in figures.items()}
            of["name"] = f"[`{name}`]({relative(page, index)})"
            rows.append([*of.values(), escaped(title)])
            values = [_value(value_row(catalog, entry, catalog.variables[q]), page) for q in entry.values]
            header = ["quantity", "value", "range", "source", "note"]
            changed = f"perfgrid run STUDY --set '{kind}.{name}.QUANTITY=\"VALUE UNIT\"'  # another value in one study"
            shown = f"```sh\nperfgrid catalog show {kind}.{name}\n{changed}\n```\n\n"
            above = trail(page, ("Catalog", INDEX), (kind, index))
            yield (
                page,
                above
                + f"# {escaped(title)} {{ #{kind}-{name} }}\n\n`{name}` of table `{kind}`.\n\n{shown}"
                + table(header, values),
            )
        keys = [*figures, "title"]
        text = (
            f"# Catalog: {kind}\n\n{len(held)} entries. Every entry shows its values with range, year and source.\n\n"
        )
        yield index, text + table([k.replace("_", " ") for k in keys], rows)
        tables.append([f"[{kind}]({relative(index, INDEX)})", str(len(held))])
    yield (
        INDEX,
        "# Catalog\n\nWhat perfgrid ships; add your own: [own entries](../../catalog.md).\n\n"
        + table(["table", "entries"], tables),
    )


def _value(row: Mapping[str, Any], page: str) -> list[str]:
    """A value as the cells of its row."""
    unit = row["unit"]
    low, high = row["low"], row["high"]
    span = "" if low is None else f"{_text(low, unit)} to {_text(high, unit)}"
    source = ", ".join(str(x) for x in (cited(row["source"], page), row["confidence"], row["year"]) if x)
    return [linked(row["quantity"], page), _text(row["value"], unit), span, source, escaped(row["note"] or "")]


def _text(value: Any, unit: str) -> str:
    """A value with its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return escaped(", ".join(f"{label} {_text(v, unit)}" for label, v in value.items()))
    if isinstance(value, list | tuple):
        return escaped(", ".join(_text(v, unit) for v in value))
    if isinstance(value, int | float):
        return escaped(number(value, unit))
    return escaped(str(value))
