"""Tables with as few columns as one knows: what is measured by name and unit of a column, the job by others.

A row is a record of each measured column of serving, of memory and of collectives; of a training step the first of step
time, tokens, samples, MFU and FLOP/s. Columns, their other names and units: names.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.catalog.numerals import amount
from perfgrid.catalog.reading import check_columns, csv_rows
from perfgrid.catalog.units import in_unit
from perfgrid.engine.errors import PerfgridError, nearest, shown
from perfgrid.validation.csv_rows import value_of

from .collectives import COLLECTIVE, collective_fields
from .kernel_fields import KERNEL, kernel_fields
from .measured import LONGEST_LINE, Measured, names, slug
from .setup import OPTIONS, Setup, fields, setup_of
from .throughput import RATES, step_time

PER_DEVICE = re.compile(r"_(per|p)_?(device|gpu|chip|accelerator)(?=_|$)")
OF_MEMORY = ("peak_memory", "allocator_memory")
OF_SERVING = ("time_to_first_token", "time_per_output_token", "request_latency", "output_tokens_per_second")
OF_STEP = ("step_time", *RATES)
AGREE = 0.02  # relative difference up to which two columns say the same step time
Row = tuple[int, "dict[str, Any] | PerfgridError"]


class Column:
    """A measured column: what it measures, in which unit, and whether of one device."""

    def __init__(self, name: str, quantity: str, unit: str, per_device: bool):
        self.name, self.quantity, self.unit, self.per_device = name, quantity, unit, per_device


def plain(name: str) -> str:
    """A column's name in lower case, with _ for blanks and signs; ``tokens/s/GPU`` is tokens_per_s_per_gpu."""
    return re.sub(r"[^a-z0-9]+", "_", name.strip().lower().replace("/", " per ").replace("%", " percent ")).strip("_")


@cache
def columns() -> dict[str, str]:
    """Columns that state the job by every name that they may have."""
    known = {other: name for name, others in names()["column"].items() for other in others}
    return known | {name: name for name in names()["column"]}


def measured_column(name: str) -> Column | None:
    """What a column measures; None for one that states the job."""
    text = plain(name)
    text, per_device = PER_DEVICE.subn("", text)
    for quantity, about in names()["measured"].items():
        for start in sorted(about["names"], key=len, reverse=True):
            ending = text.removeprefix(start).strip("_")
            if text == start or (text.startswith(f"{start}_") and ending in names()["unit"]):
                return Column(name, quantity, names()["unit"][ending] if ending else about["unit"], bool(per_device))
    return None


def ambiguous(name: str) -> str:
    """What a column may mean where its name has several meanings; empty for others."""
    text = re.sub(r"Gb(/s|ps)", "gbps", name)  # bits, or bytes in a hurry
    return next((told for pattern, told in names()["ambiguous"].items() if re.fullmatch(pattern, plain(text))), "")


def is_table(text: str) -> bool:
    """Whether the first line that is no comment names a measured column beside others."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    first = next(lines, "")[:LONGEST_LINE]
    try:
        header = [] if first.startswith("{") else _cells(first, "")  # JSON has commas, too
    except PerfgridError:
        return False
    return len(header) > 1 and any(measured_column(name) or ambiguous(name) for name in header)


def table_records(measured: Measured, text: str, catalog: Catalog, record: type[BaseModel]) -> Iterator[Row]:
    """The records of a table by line; a row that is none as the error that says why.

    PerfgridError for a table without a measured column, and for a column that is no quantity.
    """
    lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    where = str(measured.path)
    header = [name.strip() for name in _cells(lines[0][1], where, lines[0][0])] if lines else []
    for name in header:
        if told := ambiguous(name):
            raise PerfgridError(f"{where}: column {name!r} has two meanings: name it {told}")
    found = [measured_column(name) for name in header]
    if not any(found):
        legal = ", ".join(names()["measured"])
        raise PerfgridError(f"{where}: no measured column among {', '.join(header)}; such are {legal}")
    stated = [None if column else _stated(name, where, catalog) for name, column in zip(header, found, strict=True)]
    check_columns(filter(None, stated), where)
    check_columns((f"{c.quantity} per device" if c.per_device else c.quantity for c in found if c), where)
    if len(lines) < 2:
        raise PerfgridError(f"{where}: holds no rows: add one for each run, {', '.join(header[:4])}, ...")
    setup = setup_of(measured, catalog, record)
    for number, line in lines[1:]:
        place = f"{where}:{number}"
        try:
            cells = _cells(line, where, number)
            if len(cells) > len(header):
                raise PerfgridError(f"{place}: {len(cells)} cells in a table of {len(header)} columns")
            cells = [cell.strip() for cell in cells]
            values = {n: c for n, c in zip(stated, cells, strict=False) if n and c}
            numbers = [(c, _number(c, cell, place)) for c, cell in zip(found, cells, strict=False) if c and cell]
            if not numbers:
                blank = ", ".join(c.name for c in found if c)
                raise PerfgridError(f"{place}: nothing is measured: fill in one of {blank}")
            for one in _row(setup.of_row(place), values, numbers, Path(where), number):
                yield number, one
        except PerfgridError as error:
            yield number, error


def _cells(line: str, where: str, number: int = 1) -> list[str]:
    """The cells of a row. PerfgridError for one that is no CSV, such as a cell that ends in another line."""
    return next((row for _, row in csv_rows([line], where, number)), [])


def _stated(name: str, where: str, catalog: Catalog) -> str:
    """The quantity, option or field that a column states."""
    found = columns().get(plain(name), plain(name))
    legal = {*columns().values(), *COLLECTIVE, *KERNEL, "group", "source"}
    if found not in legal and found not in catalog.variables:
        known = {*legal, *names()["measured"]}
        raise PerfgridError(f"{where}: column {name!r} is no quantity{nearest(plain(name), known)}")
    return found


def _number(column: Column, cell: str, place: str) -> float:
    """A cell in the SI unit of its quantity."""
    number = amount(cell.removesuffix("%"), f"{place}: {column.name}")
    if column.unit in ("1", "percent"):
        return number / 100 if column.unit == "percent" or number > 1 else number
    si = {
        "1/s": "1/s",
        "TFLOP/s": "FLOP/s",
        "GiB": "byte",
        "GB": "byte",
        "MiB": "byte",
        "GB/s": "byte/s",
        "Gbit/s": "byte/s",
    }
    return in_unit(f"{number!r} {column.unit}", si.get(column.unit, "s"))


def _row(
    setup: Setup, values: dict[str, str], numbers: list[tuple[Column, float]], path: Path, line: int
) -> Iterator[dict[str, Any]]:
    """The records of one row."""
    own = {name: values.pop(name, "") for name in ("id", "note", "group", "source")}
    base = {
        "id": slug(own["id"]) if own["id"] else f"{slug(path.stem)}-{line}",
        "group": own["group"] or path.stem,
        "source": {"title": own["source"] or path.name, "where": f"line {line}", "url": None},
        "note": own["note"],
        "derivation": None,
    }
    alone = {n: values.pop(n) for n in (*COLLECTIVE, *KERNEL) if n in values and n not in setup.catalog.variables}
    stated: dict[str, Any] = {n: v if n in OPTIONS else value_of(v, setup.where) for n, v in values.items()}
    per_node = _machine(stated, setup)
    setup.state(stated, "a column")
    if per_node:
        setup.values["devices_per_node"] = per_node
    if "op" in alone:  # an operator or a collective on its own
        made = collective_fields if "ranks" in alone else kernel_fields
        shape = stated | {n: value_of(v, setup.where) for n, v in alone.items()}
        for column, value in numbers:
            yield base | made(setup, shape, column.quantity, value, (column.name, value))
    else:
        yield from _of_design(setup, base, numbers)


def _machine(stated: dict[str, Any], setup: Setup) -> int | None:
    """Devices of a node, where stated; devices follow from nodes. PerfgridError where one lacks or they contradict."""
    counts = {n: stated.pop(n) for n in ("nodes", "devices_per_node") if n in stated}
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise PerfgridError(f"{setup.where}: {name} must be a whole number above zero, found {shown(count)}")
    nodes, each = counts.get("nodes"), counts.get("devices_per_node")
    devices = stated.get("devices", setup.values.get("devices"))
    if nodes and devices is None and each is None:
        raise PerfgridError(f"{setup.where}: nodes need a column devices_per_node, or devices in their place")
    if nodes and devices is None:
        stated["devices"] = nodes * each
    elif nodes and devices != nodes * (each or devices // nodes):
        told = f"{nodes} nodes" + (f" x {each} devices_per_node" if each else "")
        raise PerfgridError(f"{setup.where}: {told} do not make {devices} devices")
    return each or (devices // nodes if nodes else None)


def _of_design(setup: Setup, base: dict[str, Any], numbers: list[tuple[Column, float]]) -> Iterator[dict[str, Any]]:
    """The records of a run: one of its step, and one of each other quantity."""
    serving = any(c.quantity in OF_SERVING for c, _ in numbers) or (
        "output_tokens" in setup.values and "global_batch" not in setup.values
    )
    numbers = _served(setup, numbers) if serving else numbers
    training = [(column, value) for column, value in numbers if column.quantity in OF_STEP]
    measured = [(column, value) for column, value in numbers if column.quantity not in OF_STEP]
    design = base | setup.design("inference" if serving else "training")
    several = len(measured) + bool(training) > 1
    for column, value in (*training[:1], *measured):
        name, quantity, derivation = column.quantity, column.quantity, None
        if column.quantity in OF_STEP:
            kind, quantity = "training", "step_time"
            found, derivation = step_time(setup, column.quantity, value, column.per_device)
            name = plain(column.name)
            _agree(setup, training, found)
        else:
            kind, found = ("inference" if serving else "memory"), value
            if column.per_device and column.quantity not in OF_MEMORY:
                found, derivation = value * design["devices"], "times the number of devices"
                name = f"{quantity} per device"
        made = fields(setup, kind, quantity, found, (name, value, _si(column)), **design)
        made["derivation"] = derivation
        if several:
            made["id"] += f"-{slug(column.quantity)}"
        yield made


def _served(setup: Setup, numbers: list[tuple[Column, float]]) -> list[tuple[Column, float]]:
    """The same with tokens per second as generated ones. PerfgridError for what is measured of a training step."""
    found = {column.quantity: (column, value) for column, value in numbers}
    if wrong := [found[n][0].name for n in OF_STEP if n in found and n != "tokens_per_second"]:
        raise PerfgridError(f"{setup.where}: {wrong[0]} is measured of training, but the row is of serving")
    if "tokens_per_second" not in found:
        return numbers
    (column, value), generated = found["tokens_per_second"], "output_tokens_per_second"
    if generated in found:
        told = f"{column.name} beside {found[generated][0].name}: leave out the one that counts prompts too"
        raise PerfgridError(f"{setup.where}: {told}")
    setup.assumed.append(f"{column.name} = {generated}")
    own = (Column(column.name, generated, column.unit, column.per_device), value)
    return [own if pair[0] is column else pair for pair in numbers]


def _si(column: Column) -> str:
    si = {"1": "1", "percent": "1", "1/s": "1/s", "TFLOP/s": "FLOP/s"}
    return si.get(column.unit, "byte" if column.unit in ("GiB", "GB", "MiB") else "s")


def _agree(setup: Setup, training: list[tuple[Column, float]], seconds: float) -> None:
    """PerfgridError where tokens or samples per second say another step time."""
    for column, value in training:
        if column.quantity in ("step_time", "tokens_per_second", "samples_per_second"):
            other, _ = step_time(setup, column.quantity, value, column.per_device)
            if abs(other / seconds - 1) > AGREE:
                told = f"{column.name} says a step of {other:.4g} s, {training[0][0].name} one of {seconds:.4g} s"
                raise PerfgridError(f"{setup.where}: {told}")
