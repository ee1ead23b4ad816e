"""Traces of requests: what a study takes from a file of prompts, answers and, if it has them, times of arrival.

CSV with a header, or one JSON object a line. Columns by the names of public traces: those of Azure (TIMESTAMP,
ContextTokens, GeneratedTokens), BurstGPT (Timestamp, Request tokens, Response tokens) and Mooncake (JSON lines with
timestamp in ms, input_length, output_length), or prompt_tokens and output_tokens.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from perfgrid.catalog.reading import read_text
from perfgrid.engine.errors import PerfgridError

COLUMNS = {
    "prompt": ("contexttokens", "request tokens", "input_length", "prompt_tokens"),
    "output": ("generatedtokens", "response tokens", "output_length", "output_tokens"),
    "time": ("timestamp", "arrival_time"),
}
LONGEST = 1e9  # tokens of a request
FRACTION = re.compile(r"\.(\d+)")  # of a second, of any length
MILLISECONDS = {("timestamp", ".jsonl")}  # Mooncake's


def trace_parameters(path: Path, place: str) -> dict[str, Any]:
    """Workload parameters of a trace: mean lengths, their variations as lognormal ones, and the rate of arrivals.

    Requests without a token of prompt or answer are left out. PerfgridError for a file that is no trace, in one line.
    """
    prompts, outputs, times = [], [], []
    for line, row in _rows(path, read_text(path)):
        where = f"{path}, line {line}"
        named = {name: _column(name, row, where) for name in ("prompt", "output")}
        prompt, output = (_tokens(row[column], f"{where}, {column}") for column in named.values())
        if prompt and output:
            prompts.append(prompt)
            outputs.append(output)
            if time := next((column for column in row if column.strip().lower() in COLUMNS["time"]), None):
                unit = 1e-3 if (time.strip().lower(), path.suffix) in MILLISECONDS else 1.0
                times.append(_seconds(row[time], unit, f"{where}, {time}"))
    if not prompts:
        raise PerfgridError(f"{place}: {path} has no request with a prompt and an answer")
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
        reader = csv.DictReader(lines, restval="")
        yield from ((reader.line_num, row) for row in reader)
        return
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise PerfgridError(f"{path}, line {number}: must be a JSON object, found {line.strip()!r:.40}")
        yield number, row


def _column(name: str, row: Mapping[str, Any], where: str) -> str:
    found = next((column for column in row if str(column).strip().lower() in COLUMNS[name]), None)
    if found is None:
        legal = " or ".join(COLUMNS[name])
        raise PerfgridError(f"{where}: no column of {name} tokens ({legal}), found {', '.join(map(str, row))!r:.60}")
    return found


def _tokens(value: Any, where: str) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = -1.0
    if not 0 <= found <= LONGEST:
        raise PerfgridError(f"{where}: must be a number of tokens, found {value!r:.40}")
    return found


def _seconds(value: Any, unit: float, where: str) -> float:
    """A time in seconds: a number of units, or a date and time, with or without a zone (UTC)."""
    try:
        found = float(value) * unit
    except (TypeError, ValueError):
        text = str(value).strip()
        fraction = FRACTION.search(text)
        try:
            date = datetime.fromisoformat(FRACTION.sub("", text, count=1))
            date = date if date.tzinfo else date.replace(tzinfo=UTC)
            found = date.timestamp() + float(fraction[0] if fraction else 0)
        except ValueError:
            found = np.nan
    if not abs(found) < 1e15:
        raise PerfgridError(f"{where}: must be a number or a date and time, found {value!r:.40}")
    return found
