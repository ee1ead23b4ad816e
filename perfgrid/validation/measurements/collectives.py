"""Output of nccl-tests and rccl-tests: a record of each size, with the time of one collective out of place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError

from ..tables import completed
from .blocks import block
from .measured import Measured, device_called, lines_of
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
RANK_MARK = re.compile(r"\[\w+\]:?")  # with which launchers begin what a rank prints
RANK = re.compile(r"Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+ on\s+(\S+)\s+device\s+(\d+) \[[^\]]*\]\s+(.+)$")
EXACT = 1 << 16  # bytes from which on the printed bandwidths have digits enough to tell operations apart


def is_nccl(text: str) -> bool:
    """Whether a text has the header of a table of nccl-tests."""
    return "algbw" in text and "busbw" in text


def nccl_records(measured: Measured, text: str, catalog: Catalog, record: type[BaseModel]) -> Iterator[tuple[int, Any]]:
    """A record of each size, by line. PerfgridError where ranks, device or operation are not stated."""
    setup = setup_of(measured, catalog, record)
    lines = lines_of(text)
    placed = {int(m[1]): (m[2], m[4], int(m[3])) for _, line in lines if (m := RANK.search(line))}
    rows = [(i, row) for i, line in lines if (row := _row(line)) is not None]
    if not rows:
        raise PerfgridError(f"{measured.path}: a header of nccl-tests without a line of results: the run was cut off")
    listed = max(placed, default=-1) + 1
    ranks = setup.values.get("group_size") or setup.values.get("devices") or listed
    if not ranks:
        raise PerfgridError(f"{measured.path}: the ranks are not stated: give --set devices=...")
    if len(placed) < listed:
        setup.assumed.append(f"ranks = {ranks}, of which {len(placed)} are listed")
    called = {name for _, name, _ in placed.values()}
    if "device" not in setup.names and len(called) == 1 and (device := device_called(next(iter(called)))):
        setup.state({"device": device}, "the lines of ranks")
    complete = len(placed) == listed and listed > 0
    per_node = max(Counter(host for host, *_ in placed.values()).values()) if complete else 0
    per_node = per_node or max((local for *_, local in placed.values()), default=min(ranks, 8) - 1) + 1
    op = _operation(measured, text, [row for _, row in rows], ranks)
    _check_ranks(measured, op, [row for _, row in rows], ranks)
    setup.values["devices_per_node"] = per_node
    for line, (size, _, microseconds, *_) in rows:
        if size and microseconds:
            values = {"op": op, "size": size, "ranks": ranks}
            made = collective_fields(setup, values, "collective_time", microseconds / 1e6, ("time", microseconds))
            made["reported"] |= {"value": microseconds, "unit": "us"}
            source = {"title": f"nccl-tests, {measured.path.name}", "where": f"line {line}", "url": None}
            named = identity(measured.path, op, str(size))
            yield line, made | named | {"source": source, "note": "out of place", "derivation": None}


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


def _row(line: str) -> tuple[int, bool, float, float, float] | None:
    """Size, whether it reduces, microseconds, algorithm and bus bandwidth of a line of results; None for other lines.

    Behind size, count and type stand a reduction and, in newer versions, a root; then four numbers out of place and
    four in place, so that an odd count of numbers has a root.
    """
    words = RANK_MARK.sub(" ", line).split()
    if len(words) < 6 or not (words[0].isdigit() and words[1].isdigit() and words[2][0].isalpha()):
        return None
    numbers = words[3:]
    reduces = bool(numbers) and numbers[0].isalpha() and numbers[0] != "none"
    numbers = numbers[1:] if numbers and numbers[0].isalpha() else numbers
    numbers = numbers[1:] if len(numbers) % 2 else numbers
    try:
        microseconds, algorithm, bus = map(float, numbers[:3])
    except ValueError:
        return None
    return int(words[0]), reduces, microseconds, algorithm, bus


def _operation(measured: Measured, text: str, rows: list[tuple[int, bool, float, float, float]], ranks: int) -> str:
    """The collective: by the command or the file's name, else by its bandwidths and reduction."""
    stated = str(measured.stated.get("collective", ""))
    if stated:
        return stated
    named = f"{measured.path.name}\n{text}".lower()
    for op, programs in NAMES.items():
        if any(program in named or program.removesuffix("_perf") in measured.path.name.lower() for program in programs):
            return op
    size, reduces, _, algorithm, bus = max(rows)
    if reduces and size >= EXACT and algorithm:
        return "reduce_scatter" if bus < algorithm * 0.99 and ranks > 1 else "all_reduce"
    raise PerfgridError(
        f"{measured.path}: the collective is not stated: name it in the file's name or give --set collective=all_gather"
    )


def _check_ranks(measured: Measured, op: str, rows: list[tuple[int, bool, float, float, float]], ranks: int) -> None:
    """PerfgridError where the two bandwidths of the largest size belong to another number of ranks."""
    size, _, _, algorithm, bus = max(rows)
    if op in FACTORS and size >= EXACT and algorithm and abs(bus / algorithm - FACTORS[op](ranks)) > 0.02:
        told = f"{ranks} ranks are stated, but {algorithm:g} and {bus:g} GB/s of {op} belong to another number"
        raise PerfgridError(f"{measured.path}: {told}: give --set devices=... (the lines of ranks are cut?)")
