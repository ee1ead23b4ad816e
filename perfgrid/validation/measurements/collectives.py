"""Output of nccl-tests and rccl-tests: a record of each size, with the time of one collective out of place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.catalog.numerals import amount, count
from perfgrid.engine.errors import PerfgridError
from perfgrid.validation.csv_rows import completed

from .blocks import block
from .measured import Measured, device_called, lines_of, stated_device
from .setup import Setup, identity, setup_of

COLLECTIVE = ("op", "collective", "size", "ranks", "algorithm")
NAMES = {
    "all_reduce": ("all_reduce_perf",),
    "reduce_scatter": ("reduce_scatter_perf",),
    "all_gather": ("all_gather_perf",),
    "all_to_all": ("alltoall_perf", "all_to_all_perf"),
    "broadcast": ("broadcast_perf",),
    "send_recv": ("sendrecv_perf",),
}
FACTORS = {  # bus bandwidth over size per time, by ranks
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
}
OTHER = re.compile(r"(?<![a-z_])(?:reduce|gather|scatter|hypercube)_perf")  # programs whose collective no record has
RANK_MARK = re.compile(r"\[[\w,]+\](?:<\w+>)?:?")  # with which launchers begin what a rank prints
RANK = re.compile(r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+ on\s+(\S+)\s+device\s+(\d+) \[[^\]]*\]\s+(.+)$")
EXACT = 1 << 16  # bytes from which on the printed bandwidths have digits enough to tell operations apart
TYPES = re.compile(r"u?int\d+|u?char|half|float|double|b?float\d+|fp8\w*|f8e\w+", re.I)  # of elements, behind the count
OFF, ROUNDED = 0.02, 0.01  # of the bus bandwidth: relative to the other, and GB/s of two printed digits each
Row = tuple[int, bool, float, float, float]  # size, whether it reduces, microseconds, algorithm and bus bandwidth


@dataclass(frozen=True)
class Table:
    """One run of a program: line of its header, the lines before it, the lines of ranks, and its rows by line."""

    line: int
    before: list[str]
    ranks: list[re.Match[str]]
    rows: list[tuple[int, Row]]


def is_nccl(text: str) -> bool:
    """Whether a text has the header of a table of nccl-tests."""
    return "algbw" in text and "busbw" in text


def nccl_records(measured: Measured, text: str, catalog: Catalog, record: type[BaseModel]) -> Iterator[tuple[int, Any]]:
    """A record of each size, by line. PerfgridError where ranks, device or operation are not stated.

    A file may hold several runs, each with its own header, operation and ranks.
    """
    given = setup_of(measured, catalog, record)
    tables = _tables(lines_of(text), str(measured.path))
    if not any(table.rows for table in tables):
        raise PerfgridError(f"{measured.path}: a header of nccl-tests without a line of results: the run was cut off")
    known: set[tuple[str, int]] = set()
    for table in tables:
        setup = given.of_row(f"{measured.path}:{table.line}")
        ranks, per_node = _ranks(setup, table)
        op = _operation(measured, table, ranks, setup.where)
        setup.values["devices_per_node"] = per_node
        for line, (size, _, microseconds, *_) in table.rows:
            if size:  # of no bytes only the latency is printed
                values = {"op": op, "size": size, "ranks": ranks}
                made = collective_fields(setup, values, "collective_time", microseconds / 1e6, ("time", microseconds))
                made["reported"] |= {"value": microseconds, "unit": "us"}
                source = {"title": f"nccl-tests, {measured.path.name}", "where": f"line {line}", "url": None}
                again = [str(line)] if (op, size) in known else []
                named = identity(measured.path, op, str(size), *again)
                known.add((op, size))
                yield line, made | named | {"source": source, "note": "out of place", "derivation": None}


def _tables(lines: list[tuple[int, str]], where: str) -> list[Table]:
    """The runs in a file: a header with what precedes it; ranks as in the run before where none are listed.

    PerfgridError for a line of results of which a number is none.
    """
    tables: list[Table] = []
    before: list[str] = []
    ranks: list[re.Match[str]] = []
    for number, line in lines:
        if "algbw" in line and "busbw" in line:
            listed = [m for text in before if (m := RANK.search(text))]
            ranks = listed or ranks
            tables.append(Table(number, before, ranks, []))
            before = []
        elif tables and (row := _row(line, f"{where}:{number}")) is not None:
            tables[-1].rows.append((number, row))
            before = []
        elif "concluded" not in line:
            before.append(line)
    return tables


def _ranks(setup: Setup, table: Table) -> tuple[int, int]:
    """Ranks of a collective and ranks of a node. PerfgridError where neither the file nor an option states them."""
    placed = {int(m[1]): m for m in table.ranks}
    listed = max(placed, default=-1) + 1
    complete = 0 < listed == len(placed)
    groups = Counter(m[2] for m in placed.values())
    expected = max(groups.values()) if complete else listed
    option = next((n for n in ("group_size", "devices") if n in setup.values), "")
    ranks = setup.values[option] if option else expected
    if not ranks:
        raise PerfgridError(f"{setup.where}: the ranks are not stated: give --set devices=...")
    if ranks not in (expected, listed) if complete else ranks < listed:
        origin = setup.origins.get(option, "an option")
        raise PerfgridError(f"{setup.where}: {option} is {ranks} by {origin}, but {expected} ranks are listed")
    if complete and option == "devices":
        ranks = expected
    if not complete and listed:
        setup.assumed.append(f"ranks = {ranks}, of which {len(placed)} are listed")
    called = {m[5] for m in placed.values()}
    if len(called) == 1:
        setup.state(
            {"device": stated_device(device_called(next(iter(called))), setup.names.get("device"))},
            "the lines of ranks",
        )
    if complete:
        return ranks, max(Counter(m[3] for m in placed.values()).values())
    return ranks, max((int(m[4]) for m in placed.values()), default=min(ranks, 8) - 1) + 1


def collective_fields(
    setup: Setup, values: dict[str, Any], quantity: str, value: float, printed: tuple[str, float]
) -> dict[str, Any]:
    """The fields of a record of a collective on its own. PerfgridError for another quantity than time and bandwidth."""
    if quantity not in ("collective_time", "collective_bandwidth"):
        raise PerfgridError(f"{setup.where}: of a collective time_us or busbw_gb_s are compared, found {printed[0]}")
    shape = {n: values[n] for n in ("op", "size", "ranks", "algorithm") if n in values}
    for name in ("op", "size", "ranks"):
        if name not in shape:
            raise PerfgridError(f"{setup.where}: a collective needs a column {name}")
    unit = "s" if quantity == "collective_time" else "byte/s"
    per_node = setup.values.get("devices_per_node")
    machine = setup.machine(shape["ranks"])
    if per_node:
        setup.values["devices_per_node"] = per_node
    topology = setup.names.get("topology")
    return machine | {
        "kind": "collective",
        "tier": "core",
        "predictable": True,
        "missing": [],
        "assumed": setup.assumed,
        "collective": completed(shape, block(setup.record, "collective")),
        "quantity": quantity,
        "value": value,
        "reported": {"quantity": quantity, "value": value, "unit": unit},
        "certainty": "seen",
        **({"topology": topology} if topology else {}),
    }


def _row(line: str, place: str) -> Row | None:
    """Size, whether it reduces, microseconds, algorithm and bus bandwidth of a line of results; None for other lines.

    Behind size, count and type stand a reduction and, in newer versions, a root; then four numbers out of place and
    four in place, so that an odd count of numbers has a root.
    """
    words = RANK_MARK.sub(" ", line).split()
    if len(words) < 3 or not TYPES.fullmatch(words[2]) or not any(re.search(r"\d", word) for word in words[:2]):
        return None
    size = count(words[0], f"{place}: size", zero=True)
    numbers = words[3:]
    reduces = bool(numbers) and numbers[0].isalpha() and numbers[0] != "none"
    numbers = numbers[1:] if numbers and numbers[0].isalpha() else numbers
    numbers = numbers[1:] if len(numbers) % 2 else numbers
    if len(numbers) < 3:
        raise PerfgridError(f"{place}: a line of results that is cut off")
    microseconds = amount(numbers[0], f"{place}: time", zero=not size)
    algorithm, bus = (
        amount(word, f"{place}: {name}", zero=True) if size else 0.0
        for word, name in zip(numbers[1:3], ("algbw", "busbw"), strict=True)
    )
    return size, reduces, microseconds, algorithm, bus


def _operation(measured: Measured, table: Table, ranks: int, where: str) -> str:
    """The collective of a run: by its command or the file's name, else by its reduction and bandwidths.

    PerfgridError where nothing states it, where an option says otherwise, and where the figures are of another.
    """
    stated, text = str(measured.stated.get("collective", "")), "\n".join(table.before).lower()
    started = [line for line in table.before if "Collective test starting" in line]
    text = started[-1].lower() if started else text
    named = _named(text)
    if not named and not stated and (other := OTHER.search(text)):
        raise PerfgridError(f"{where}: of the collective of {other[0]} there are no records")
    if len(named) > 1:  # such as the output of a build
        named = [op for op in named if _fits(op, table, ranks)] or named
    if stated and named and stated not in named:
        raise PerfgridError(f"{where}: collective is {stated} by --set, but the table is of {', '.join(named)}")
    if not stated and not named:
        file = measured.path.name.lower()
        named = [op for op, names in NAMES.items() if any(name.removesuffix("_perf") in file for name in names)]
    if not stated and not named and any(reduces and size >= EXACT for _, (size, reduces, *_) in table.rows):
        named = [op for op in ("all_reduce", "reduce_scatter") if _fits(op, table, ranks)][:1]
    if not stated and len(named) != 1:
        told = f"either of {', '.join(named)}" if named else "not stated"
        raise PerfgridError(
            f"{where}: the collective is {told}: name it in the file's name or give --set collective=all_gather"
        )
    op = stated or named[0]
    _check(op, table, ranks, where)
    return op


def _named(text: str) -> list[str]:
    return [op for op, programs in NAMES.items() if any(program in text for program in programs)]


def _off(op: str, row: Row, ranks: int) -> bool:
    """Whether the bandwidths of a row belong to another number of ranks or another operation."""
    size, _, _, algorithm, bus = row
    if op not in FACTORS or size < EXACT or not algorithm:
        return False
    return abs(bus - FACTORS[op](ranks) * algorithm) > OFF * algorithm + ROUNDED


def _fits(op: str, table: Table, ranks: int) -> bool:
    return not any(_off(op, row, ranks) or row[1] != ("reduce" in op) for _, row in table.rows)


def _check(op: str, table: Table, ranks: int, where: str) -> None:
    """PerfgridError where the two bandwidths of a row belong to another number of ranks."""
    for line, row in table.rows:
        if _off(op, row, ranks):
            told = f"{ranks} ranks are stated, but {row[3]:g} and {row[4]:g} GB/s of {op} in line {line} belong to "
            raise PerfgridError(
                f"{where}: {told}another number or operation: give --set devices=... (the lines of ranks are cut?)"
            )
