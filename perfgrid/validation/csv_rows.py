"""Tables of records: a CSV file with a row for each configuration, beside a TOML file with what all rows share.

``[record]`` of the TOML file holds fields of records as docs/records.md has them; fields that neither it nor a row
states are null. Columns are named by fields (``plan.tp``); ``model`` names one of ``[models.NAME]``. Columns listed in
``[measured]`` hold values: each gives a record of its own, whose id is the row's and the column's name.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from perfgrid.catalog.numerals import amount
from perfgrid.catalog.reading import Malformed, check_columns, csv_rows, from_json, from_toml, read_text
from perfgrid.catalog.units import in_unit
from perfgrid.engine.errors import PerfgridError, nearest, shown

SI = {"time_to_first_token": "s", "time_per_output_token": "s", "request_latency": "s"}  # units of measured columns


def block_of(annotation: Any) -> type[BaseModel] | None:
    """The block that a field holds, if it holds one."""
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return next((a for a in options if isinstance(a, type) and issubclass(a, BaseModel)), None)


def completed(stated: dict[str, Any], block: type[BaseModel]) -> dict[str, Any]:
    """The fields of a block with null for required ones that are not stated, inner blocks included."""
    found = dict(stated)
    for name, field in block.model_fields.items():
        inner = block_of(field.annotation)
        if isinstance(found.get(name), dict) and inner is not None:
            found[name] = completed(found[name], inner)
        elif field.is_required():
            found.setdefault(name, None)
    return found


def value_of(text: str, where: str) -> Any:
    """A cell: a number, true or false, or a word. PerfgridError for a number that floating point does not hold."""
    try:
        return from_json(text, f"{where}: ")
    except Malformed:
        return text


def shares(path: Path) -> bool:
    """Whether a table has fields of records as its columns, or what its rows share in a file beside it."""
    header = next((line for line in read_text(path).splitlines() if line.strip() and not line.startswith("#")), "")
    return path.with_suffix(".toml").exists() or any("." in column for column in header.split(","))


def rows(path: Path, record: type[BaseModel]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of a table, each with the number of its line.

    Raises PerfgridError for a missing or malformed TOML file, columns that are no fields, and unknown models.
    """
    beside = path.with_suffix(".toml")
    if not beside.exists():
        raise PerfgridError(f"{path}: a table of records needs {beside.name} beside it, with [record] and [measured]")
    shared = from_toml(read_text(beside), f"{beside}: ")
    for table in ("measured", "models", "record"):
        if not isinstance(shared.setdefault(table, {}), dict):
            raise PerfgridError(f"{beside}: {table} must be a table, found {shown(shared[table])}")
    measured, models = shared["measured"], shared["models"]
    for name, about in (*measured.items(), *models.items()):
        if not isinstance(about, dict):
            raise PerfgridError(f"{beside}: {name} must be a table, found {shown(about)}")
    for name, of in measured.items():
        if of.get("quantity") not in SI or not isinstance(of.get("unit"), str):
            raise PerfgridError(f"{beside}: measured.{name} needs a unit and a quantity{nearest('', SI)}")
    lines = csv_rows(read_text(path).splitlines(), str(path))
    header = next((cells for _, cells in lines), [])
    check_columns(header, str(path))
    for column in header:
        if column.partition(".")[0] not in {*record.model_fields, *measured}:
            known = (*record.model_fields, *measured)
            raise PerfgridError(f"{path}: column {column!r} is no field of a record{nearest(column, known)}")
    for line, cells in lines:
        if len(cells) > len(header):
            raise PerfgridError(f"{path}:{line}: {len(cells)} cells in a table of {len(header)} columns")
        row = dict(zip(header, cells, strict=False))
        found = json.loads(json.dumps(shared["record"], default=str))
        for column, text in row.items():
            if text and column not in measured:
                *outer, last = column.split(".")
                place = found
                for name in outer:
                    if not isinstance(place := place.setdefault(name, {}), dict):
                        raise PerfgridError(f"{path}: column {column!r}: {name} is no table in [record] of {beside}")
                place[last] = value_of(text, f"{path}:{line}") if column not in ("id", "note") else text
        if found.get("model") not in models:
            problem = f"model {shown(found.get('model'))} is none of [models]{nearest(str(found.get('model')), models)}"
            raise PerfgridError(f"{path}:{line}: {problem}")
        found["model"] = {"name": found["model"], **models[found["model"]]}
        for name, of in measured.items():
            if row.get(name):
                size = amount(row[name], f"{path}:{line}: {name}")
                printed = {"quantity": of["quantity"], "value": size, "unit": of["unit"]}
                value = in_unit(f"{size!r} {of['unit']}", SI[of["quantity"]])
                own = {"quantity": of["quantity"], "value": value, "reported": printed}
                yield line, completed({**found, "id": f"{found.get('id')}-{name}", **own}, record)
