"""Traces of requests: what a study takes from a file of prompts, answers and, if it has them, times of arrival.

CSV with a header, or one JSON object a line. Columns by the names of public traces: those of Azure (TIMESTAMP,
ContextTokens, GeneratedTokens), BurstGPT (Timestamp, Request tokens, Response tokens) and Mooncake (JSON lines with
timestamp in ms, input_length, output_length), or prompt_tokens and output_tokens.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from perfgrid.catalog.numerals import amount, number
from perfgrid.catalog.reading import LeftOut, Malformed, check_columns, csv_rows, from_json, read_text
from perfgrid.engine.errors import PerfgridError, shown

COLUMNS = {
    "prompt": ("contexttokens", "request tokens", "input_length", "prompt_tokens"),
    "output": ("generatedtokens", "response tokens", "output_length", "output_tokens"),
    "time": ("timestamp", "arrival_time"),
}
LONGEST = 1e9  # tokens of a request
LATEST = 1e15  # seconds
FRACTION = re.compile(r"\.(\d+)")  # of a second, of any length
MILLISECONDS = {("timestamp", ".jsonl")}  # Mooncake's


def trace_parameters(path: Path, place: str) -> dict[str, Any]:
    """Workload parameters of a trace: mean lengths, their variations as lognormal ones, and the rate of arrivals.

    Requests without a token of prompt or answer failed: they are left out, with a warning that counts them.
    PerfgridError for a file that is no trace, in one line, and for one in which only some requests have a time.
    """
    prompts, outputs, times, left_out = [], [], [], 0
    for line, row in _rows(path, read_text(path)):
        where = f"{path}, line {line}"
        named = {name: _column(name, row, where) for name in ("prompt", "output")}
        prompt, output = (_tokens(row[column], f"{where}, {column}") for column in named.values())
        left_out += not (prompt and output)
        if prompt and output:
            prompts.append(prompt)
            outputs.append(output)
            if time := next((column for column in row if column.strip().lower() in COLUMNS["time"]), None):
                unit = 1e-3 if (time.strip().lower(), path.suffix) in MILLISECONDS else 1.0
                times.append(_seconds(row[time], unit, f"{where}, {time}"))
    if times and len(times) < len(prompts):
        raise PerfgridError(
            f"{place}: {path}: {len(times):,} of {len(prompts):,} requests state a time: all must, or none"
        )
    if not prompts:
        raise PerfgridError(f"{place}: {path} has no request with a prompt and an answer")
    if left_out:
        told = f"{left_out:,} of {left_out + len(prompts):,} requests have no prompt or no answer and are left out"
        warnings.warn(f"{path}: {told}", LeftOut, stacklevel=2)
    found: dict[str, Any] = {}
    for name, lengths in (("prompt", prompts), ("output", outputs)):
        found[f"{name}_tokens"] = max(1, round(float(np.mean(lengths))))
        found[f"{name}_variation"] = float(np.std(lengths) / np.mean(lengths))
    varied = found["prompt_variation"] + found["output_variation"] > 0
    found["length_distribution"] = "lognormal" if varied else "constant"
    if len(times) > 1 and max(times) > min(times):
        found["request_rate"] = (len(times) - 1) / (max(times) - min(times))
    return found


def _rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The requests of a file by column, with the numbers of their lines."""
    lines = text.splitlines()
    if path.suffix != ".jsonl":
        rows = csv_rows(lines, str(path))
        header = next(rows, (0, list[str]()))[1]
        check_columns((name.strip().lower() for name in header), str(path))
        for line, cells in rows:
            if len(cells) > len(header):
                raise PerfgridError(f"{path}, line {line}: {len(cells)} cells in a table of {len(header)} columns")
            if cells:
                yield line, dict(zip(header, [*cells, *[""] * (len(header) - len(cells))], strict=True))
        return
    for line, stated in enumerate(lines, 1):
        if not stated.strip():
            continue
        try:
            row = from_json(stated, f"{path}, line {line}: ")
        except Malformed:
            row = None
        if not isinstance(row, dict):
            raise PerfgridError(f"{path}, line {line}: must be a JSON object, found {stated.strip()!r:.40}")
        yield line, row


def _column(name: str, row: Mapping[str, Any], where: str) -> str:
    """The one column of a quantity. PerfgridError where there is none, and where two state it."""
    found = [column for column in row if column.strip().lower() in COLUMNS[name]]
    if not found:
        legal = " or ".join(COLUMNS[name])
        raise PerfgridError(f"{where}: no column of {name} tokens ({legal}), found {', '.join(row)!r:.60}")
    if len(found) > 1:
        raise PerfgridError(f"{where}: {' and '.join(found)} both state {name} tokens: keep one of them")
    return found[0]


def _tokens(value: Any, where: str) -> float:
    try:
        found = amount(value, where, zero=True)
    except PerfgridError:
        found = -1.0
    if not 0 <= found <= LONGEST:
        raise PerfgridError(f"{where}: must be a number of tokens, found {shown(value)}")
    return found


def _seconds(value: Any, unit: float, where: str) -> float:
    """A time in seconds: a number of units, or a date and time, with or without a zone (UTC)."""
    try:
        found = number(value, where) * unit
    except PerfgridError:
        text = str(value).strip()
        fraction = FRACTION.search(text)
        try:
            date = datetime.fromisoformat(FRACTION.sub("", text, count=1))
            date = date if date.tzinfo else date.replace(tzinfo=UTC)
            found = date.timestamp() + float(fraction[0] if fraction else 0)
        except (ValueError, OverflowError):
            found = np.nan
    if not abs(found) < LATEST:
        raise PerfgridError(f"{where}: must be a number or a date and time, found {shown(value)}")
    return found
