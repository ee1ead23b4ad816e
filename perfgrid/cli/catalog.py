"""``perfgrid catalog``: list and show entries, check files, write new ones."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

from perfgrid.analysis.catalog_age import old_values, summary
from perfgrid.analysis.catalog_check import Remark, counted_parameters, remarks
from perfgrid.catalog import Catalog, Entry, Variable, load_catalog
from perfgrid.catalog.architectures import ARCHITECTURES
from perfgrid.catalog.files import Layer, files_of
from perfgrid.catalog.huggingface import CONFIG, Imported, catalog_text, imported, read_config
from perfgrid.catalog.join import near
from perfgrid.catalog.loader import entry_of, stated_in
from perfgrid.catalog.names import resolved
from perfgrid.catalog.naming import check_name
from perfgrid.catalog.references import read_references
from perfgrid.catalog.schema import BLOCKS
from perfgrid.catalog.writing import entry_text, new_text, quoted
from perfgrid.engine.errors import PerfgridError, nearest, printable, printable_lines
from perfgrid.printing.console import out, print_json, print_line
from perfgrid.printing.tables import print_table
from perfgrid.results.files import check_output, write_text
from perfgrid.study.study import setting_of
from perfgrid.text.numbers import column, header, number

from .options import AsJson, CatalogFiles, Overwrite, Wide

catalog_command = Typer(help="List, show, check and write catalog entries.", no_args_is_help=True)

KEY_FIGURES = {  # beside the counted parameters of models and the workload of software
    "device": ("device_vendor", "peak_bf16_rate", "hbm_capacity", "hbm_bandwidth"),
    "topology": ("library", "tier_kind"),
    "software": ("supported_vendors", "launch_overhead"),
    "node": ("wafer_price", "defect_density", "logic_density", "operation_energy"),
    "package": ("interposer_area_limit", "attach_yield"),
    "memory": ("memory_bandwidth", "memory_capacity", "memory_byte_energy", "memory_price"),
    "link": ("link_tier", "link_bandwidth", "link_energy"),
    "circuit": ("matrix_energy", "static_fraction"),
    "budget": ("budget_area", "budget_power"),
    "price": ("electricity_price", "interest_rate", "switch_price"),
}


@catalog_command.command("list")
def list_command(
    table: Annotated[
        str | None, Argument(help="Table: model, device, topology, node, price, ... Default: all.")
    ] = None,
    files: CatalogFiles = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """List names, titles and key figures."""
    catalog = load_catalog(*(files or ()))
    if table is not None and table not in catalog.tables:
        raise PerfgridError(f"the catalog has no table {table!r}{nearest(table, catalog.tables)}")
    tables = [table] if table else list(catalog.tables)
    rows = {kind: [figures_row(catalog, entry) for entry in catalog.tables[kind].values()] for kind in tables}
    if as_json:
        print_json(rows)
        return
    for position, (kind, listed) in enumerate(rows.items()):
        if position:
            out.print()
        figures = [q for q in (listed[0] if listed else {}) if q not in ("name", "title")]
        _print_list(catalog, kind, listed, figures)
        out.print(f"{len(listed)} {kind} entries")


@catalog_command.command("show")
def show_command(
    name: Annotated[str, Argument(help="Entry; table.entry where several tables hold it.")],
    in_table: Annotated[str | None, Argument(metavar="[ENTRY]", help="Entry of the table.")] = None,
    files: CatalogFiles = None,
    as_json: AsJson = False,
) -> None:
    """Show every value of an entry with unit, range, year, confidence and source, as a catalog file (TOML)."""
    catalog = load_catalog(*(files or ()))
    entry = find(catalog, name if in_table is None else f"{name}.{in_table}")
    counts = counted_parameters(entry.values) if entry.kind == "model" else {}
    rows = [value_row(catalog, entry, catalog.variables[q]) for q in entry.values]
    if as_json:
        head = {"name": entry.name, "table": entry.kind, "title": entry.title}
        print_json({**head, "counted": counts, "values": {r.pop("quantity"): r for r in rows}})
        return
    for quantity, value in counts.items():
        if quantity != "output_head_parameters":
            print_line(f"# counted {quantity} = {number(value)}", whole=True)
    for line in entry_text(entry, catalog.variables, catalog.references).splitlines():
        print_line(line, whole=True)
    print_line("")
    for key in dict.fromkeys(row["source"] for row in rows):
        print_line(f"# [{key}] {catalog.references[key]}", whole=True)


@catalog_command.command("check")
def check_command(
    files: Annotated[
        list[Path] | None, Argument(help="Catalog files or folders. Default: the built-in catalog.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check catalog files: errors end with status 2, warnings are listed."""
    catalog = load_catalog(*(files or ()))
    layer = stated_in(*(files or ()))
    counts = _per_file(layer, files or ())
    old = list(old_values(catalog, layer, date.today().year))
    found = [*remarks(catalog, layer, built_in=not files), *(Remark(*line) for line in summary(old))]
    if as_json:
        print_json({"files": counts, "warnings": [vars(r) for r in found], "old": [vars(o) for o in old]})
        return
    for path, holds in counts.items():
        held = ", ".join(f"{count} {kind}" for kind, count in holds.items())
        print_line(f"{path if files else Path(path).name}: {held}", whole=True)
    for remark in found:
        print_line(f"warning: {remark.subject}: {remark.sentence}", whole=True)
    out.print(f"no errors, {len(found)} warning{'' if len(found) == 1 else 's'}")


@catalog_command.command("import")
def import_command(
    config: Annotated[Path, Argument(help="Hugging Face config.json, or a folder with one.")],
    output: Annotated[Path | None, Option("--output", "-o", help="Catalog file to write (.toml).")] = None,
    name: Annotated[str | None, Option(help="Name of the entry. Default: that of the configuration.")] = None,
    source: Annotated[str, Option(help="Bibliography key of the numbers.")] = "huggingface2026models",
    files: CatalogFiles = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Convert a Hugging Face config.json to a catalog entry (TOML)."""
    catalog = load_catalog(*(files or ()))
    if source not in catalog.references:
        raise PerfgridError(f"--source {source!r} is not in the bibliography{near(source, catalog.references)}")
    if output is not None:
        check_output(output, overwrite, ".toml")
    folder = config.is_dir()
    config = config / CONFIG if folder else config
    stated = read_config(config)
    name = name or _name_of(stated, config, config.resolve().parent.name if folder else "")
    check_name(name, "--name", dots=True)
    model = imported(stated, catalog.variables, str(config))
    values = model.values
    given = {q: values.get(q, v.default) for q, v in catalog.variables.items() if v.of == "model"}
    counts = counted_parameters(given)
    if as_json:
        became = {**vars(model.keys), "model_type": model.kind, "other_towers": model.towers}
        data = {"name": name, "source": source, "values": values, "counted": counts, "keys": became}
        text = json.dumps(data) + "\n"
    else:
        total, token = counts["total_parameters"], counts["parameters_per_token"]
        comments = (
            f"{total:,.0f} parameters, of which a token's forward pass multiplies {token:,.0f}",
            f"imported from {printable(config.name)} of architecture {printable(model.kind)}",
            *_became(model),
        )
        text = catalog_text(name, name, source, values, catalog.variables, comments)
    if output is None:
        print(printable_lines(text), end="")
        return
    write_text(output, text)
    for line in _became(model):
        print_line(line, whole=True)
    print_line(f"saved {output} ({name})", whole=True)


def _became(model: Imported) -> Iterator[str]:
    """What became of the keys of a configuration, in lines."""
    keys = model.keys
    if not keys.by_row:
        near_by = nearest(model.kind, ARCHITECTURES)
        yield printable(
            f"model_type {model.kind!r} is unknown{near_by}: read by the keys that most share, as rotary positions, "
            f"{'three' if model.values['gated_ffn'] else 'two'} feed-forward matrices, full or windowed attention"
        )
    yield f"read: {', '.join(keys.read)}"
    if keys.small:
        yield f"left out, below 0.1 % of the parameters: {', '.join(keys.small)}"
    if model.towers:
        yield f"not counted, beside the language model: {printable(', '.join(model.towers))}"
    if keys.no_effect:
        yield f"without effect here: {len(keys.no_effect)} key{'s' if len(keys.no_effect) > 1 else ''}"
    if keys.ignored:
        yield printable(f"not known, taken to be without effect as words and flags: {', '.join(keys.ignored)}")
    if keys.unknown:
        yield printable(
            f"not understood, and may change the result: {', '.join(keys.unknown)}; complete the entry by hand"
        )
    else:
        yield "not understood: none"


def _print_list(catalog: Catalog, kind: str, listed: Sequence[Mapping[str, Any]], figures: Sequence[str]) -> None:
    """The entries of one table, each figure in one unit."""
    columns, right = {kind: [row["name"] for row in listed]}, list[str]()
    for name in figures:
        values, variable = [row[name] for row in listed], catalog.variables.get(name)
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            unit, texts = column(values, variable.unit if variable else "1")
            right.append(header(name, unit))
            columns[right[-1]] = texts
        else:
            columns[name] = [_shown(catalog, name, v) for v in values]
    columns["title"] = [row["title"] for row in listed]
    print_table(columns, list(zip(*columns.values(), strict=True)), right, prose=("title",), drop=list(columns)[:0:-1])


@catalog_command.command("new")
def new_command(
    table: Annotated[str, Argument(help="Table: model, device, topology, software, ...")],
    name: Annotated[str, Argument(help="Name of the new entry.")],
    like: Annotated[str, Option(help="Entry of the table whose values it has unless it states others.")],
    settings: Annotated[
        list[str] | None, Option("--set", help="Value that differs, such as hbm_bandwidth='5 TB/s'.")
    ] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="Catalog file to write (.toml).")] = None,
    files: CatalogFiles = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write a catalog file with an entry of your own that begins as another one (TOML)."""
    catalog = load_catalog(*(files or ()))
    base = catalog.entry(table, like)
    check_name(name, "NAME", dots=True)
    if name in catalog.tables[table]:
        raise PerfgridError(f"the catalog has a {table} {name!r} already: choose another name")
    if output is not None:
        check_output(output, overwrite, ".toml")
    own = {n: v for n, v in catalog.variables.items() if v.of == table}
    stated = {"extends": base.name, "title": name, **_settings(settings or (), own)}
    entry_of(base.kind, name, stated, "--set", *(files or ()))
    used = ", ".join(quoted(str(path)) for path in (*(files or ()), output or f"{name}.toml"))
    text = new_text(base, name, stated, catalog.variables, f"In a study: catalog = [{used}]")
    if output is not None:
        write_text(output, text)
    if as_json:
        print_json({"table": table, "name": name, "stated": stated, "catalog": used})
    elif output is None:
        print(printable_lines(text), end="")
    else:
        ways = f"use it with --catalog {output}, or in a study with catalog = [{used}]"
        print_line(f"saved {output} ({name}); {ways}", whole=True)


def _settings(settings: Iterable[str], variables: Mapping[str, Variable]) -> dict[str, Any]:
    """What ``quantity=value`` and ``quantity.label=value`` state of an entry, blocks as tables."""
    found: dict[str, Any] = {}
    for setting in settings:
        key, value = setting_of(setting)
        first, *rest = [part.strip() for part in key.split(".")]
        quantity = rest[0] if first in BLOCKS and rest else first
        label = rest[1:] if first in BLOCKS else rest
        if quantity == "extends" or len(label) > 1:
            raise PerfgridError(f"--set {setting!r} must read quantity=value or quantity.label=value")
        variable = variables.get(quantity)
        place = found.setdefault(variable.block, {}) if variable is not None and variable.block else found
        if label and isinstance(place, dict):
            place, quantity = place.setdefault(quantity, {}), label[0]
        if not isinstance(place, dict):
            raise PerfgridError(f"--set {setting!r}: {first} is stated twice")
        place[quantity] = value
    return found


def find(catalog: Catalog, name: str) -> Entry:
    """The entry of a name, or of ``table.name``; PerfgridError where none or several tables hold it."""
    kind, _, rest = name.partition(".")
    whole = {n for table in catalog.tables.values() for n in table}
    if kind in catalog.tables and name not in whole:
        return catalog.entry(kind, rest)
    name = resolved(name, whole) or name
    holders = [kind for kind, table in catalog.tables.items() if name in table]
    if not holders:
        every = [n for table in catalog.tables.values() for n in table]
        raise PerfgridError(f"the catalog has no entry {name!r}{near(name, every)}")
    if len(holders) > 1:
        names = " or ".join(f"{kind}.{name}" for kind in holders)
        raise PerfgridError(f"several tables hold an entry {name!r}; name one of them as {names}")
    return catalog.entry(holders[0], name)


def figures_row(catalog: Catalog, entry: Entry) -> dict[str, Any]:
    """Name, key figures in SI units and title of an entry."""
    figures: dict[str, Any] = {q: catalog.variables[q].word(entry.values[q]) for q in KEY_FIGURES.get(entry.kind, ())}
    if entry.kind == "model":
        counts = counted_parameters(entry.values)
        figures = {q: counts[q] for q in ("total_parameters", "parameters_per_token")}
    if entry.kind == "software":
        figures = {"workload": "inference" if entry.values["serves"] else "training", **figures}
    return {"name": entry.name, **figures, "title": entry.title}


def value_row(catalog: Catalog, entry: Entry, variable: Variable) -> dict[str, Any]:
    """One value of an entry in SI units with meaning, range, year, confidence, note and source."""
    detail = entry.details.get(variable.name)
    source = entry.sources[variable.name]
    about = {k: getattr(detail, k, None) for k in ("low", "high", "year", "confidence", "note")}
    return {
        "quantity": variable.name,
        "value": variable.word(entry.values[variable.name]),
        "unit": variable.unit,
        "meaning": variable.meaning,
        **about,
        "source": source,
        "citation": catalog.references[source],
    }


def _per_file(layer: Layer, files: Sequence[Path]) -> dict[str, dict[str, int]]:
    """How many entries of each table, or references, a file states."""
    counts = defaultdict[str, dict[str, int]](Counter)
    for kind, definitions in layer.definitions.items():
        for definition in definitions.values():
            counts[definition.file][kind] += 1
    for bibliography in [f for path in files for f in files_of(path) if f.suffix == ".bib"]:
        counts[str(bibliography)] = {"references": len(read_references(bibliography))}
    if not files:
        counts["references.bib"] = {"references": len(layer.references)}
    return counts


def _name_of(config: Mapping[str, Any], path: Path, folder: str) -> str:
    """The name that a configuration gives its model, or its folder or file does; PerfgridError where none does."""
    stated = config.get("_name_or_path")
    name = stated.rstrip("/").rpartition("/")[2].lower() if isinstance(stated, str) else ""
    name = name or (folder or (path.stem if path.name != CONFIG else "")).rpartition("--")[2].lower()
    if not name:
        raise PerfgridError(f"{path} does not name its model (_name_or_path); give --name")
    return name


def _shown(catalog: Catalog, quantity: str, value: Any) -> str:
    """A value as text; of a vector of flags the labels that are set."""
    variable = catalog.variables.get(quantity)
    if variable is not None and variable.axis and variable.kind == "integer" and variable.maximum == 1:
        return ", ".join(label for label, belongs in value.items() if belongs)
    return _text(value, variable.unit if variable else "1")


def _text(value: Any, unit: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        stated = {label: v for label, v in value.items() if v} or value
        return ", ".join(f"{label} {v if isinstance(v, str) else number(v, unit)}" for label, v in stated.items())
    if isinstance(value, float) and unit == "1" and value >= 1e9:
        return f"{value / 1e9:,.4g} billion" if value < 1e12 else f"{value / 1e12:,.4g} trillion"
    return value if isinstance(value, str) else number(value, unit)
