"""Seconds in which texts of strangers are read or refused, by their size; ``python -m benchmarks.reading [--quick]``.

Each kind of text is written at sizes ten times apart, up to the limits on size. A reader is linear where seconds for a
million characters do not grow; a text beyond a limit is refused at once. CPU-seconds of this process, least of three.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfgrid.catalog.reading import csv_rows, from_json, from_toml, from_yaml
from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.read import read_job
from perfgrid.study.trace import trace_parameters
from perfgrid.validation.measurements.kineto import trace_of
from perfgrid.validation.measurements.measured import Measured
from perfgrid.validation.schema import read_records

STATED = {"model": "llama-3.1-8b", "devices": 16, "sequence_length": 8192}
Texts = dict[str, tuple[Callable[[int], str], Callable[[str], Any]]]


def _log(lines: int) -> str:
    return "".join(
        f" iteration {n:8d}/ {lines} | elapsed time per iteration (ms): 5,444.9 | global batch size:   128 |\n"
        for n in range(1, lines + 1)
    )


def _trace(events: int) -> str:
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "dur": 1, "args": {"device": 0, "stream": 7}}
    return json.dumps({"traceEvents": [kernel | {"ts": 2 * n} for n in range(events)]})


def _file(name: str, read: Callable[[Path], Any]) -> Callable[[str], Any]:
    def act(text: str) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8")
            return read(path)

    return act


def _records(path: Path) -> Any:
    return read_records([Measured(path, on="h100-sxm-80gb", stated=STATED)])


def _job(name: str, form: str | None = None) -> Callable[[str], Any]:
    """Reads a text under a name that is new every time: a parsed file is kept by its name."""
    return lambda text: read_job({f"{time.monotonic_ns()}-{name}": text}, format=form)


KINDS: Texts = {  # title -> text of a number of lines or parts, and what reads it
    "JSON, flat": (lambda n: json.dumps({f"key_{i}": i for i in range(n)}), from_json),
    "JSON, a key twice at the end": (
        lambda n: "{" + ",\n".join(f'"key_{i}": {i}' for i in range(n)) + ', "key_0": 1}',
        from_json,
    ),
    "JSON, brackets": (lambda n: "[" * n, from_json),
    "JSON, digits": (lambda n: "9" * n, from_json),
    "YAML, flat": (lambda n: "".join(f"key_{i}: {i}\n" for i in range(n)), from_yaml),
    "YAML, a number of base 60": (lambda n: "x: " + "1:" * n + "1", from_yaml),
    "YAML, brackets": (lambda n: "[" * n, from_yaml),
    "TOML, flat": (lambda n: "".join(f"key_{i} = {i}\n" for i in range(n)), from_toml),
    "TOML, tables": (lambda n: "".join(f"[key_{i}]\nx = 1\n" for i in range(n)), from_toml),
    "CSV": (lambda n: "a,b\n" + "1,2\n" * n, lambda text: list(csv_rows(text.splitlines(), "t.csv"))),
    "CSV, one cell": (lambda n: "a\n" + "x" * n, lambda text: list(csv_rows(text.splitlines(), "t.csv"))),
    "job, flat YAML": (lambda n: "".join(f"key_{i}: {i}\n" for i in range(n)), _job("run.yaml", "megatron-bridge")),
    "job, flat YAML, unnamed": (lambda n: "".join(f"key_{i}: {i}\n" for i in range(n)), _job("run.yaml")),
    "log of Megatron-LM": (
        _log,
        _file("run.log", lambda p: read_records([Measured(p, on="h100-sxm-80gb", stated=STATED)])),
    ),
    "trace of kernels": (_trace, lambda text: trace_of(text, "trace.json")),
    "trace of requests": (
        lambda n: "ContextTokens,GeneratedTokens\n" + "100,20\n" * n,
        _file("t.csv", lambda path: trace_parameters(path, "trace")),
    ),
}


def measure(title: str, parts: int) -> dict[str, Any]:
    """Characters, CPU-seconds and what came of a text of a kind."""
    make, read = KINDS[title]
    text, spent, outcome = make(parts), [], "read"
    for _ in range(3):
        start = time.process_time()
        try:
            read(text)
        except PerfgridError as error:
            outcome = f"refused: {error}"
        spent.append(time.process_time() - start)
        if spent[-1] > 1:
            break
    return {"characters": len(text), "seconds": min(spent), "outcome": outcome}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no text of more than 10,000 lines")
    sizes = (1_000, 10_000) if parser.parse_args().quick else (1_000, 10_000, 100_000)
    print(f"{'text':30} {'lines':>8} {'characters':>11} {'CPU-s':>8} {'per million':>11}  outcome")
    for title in KINDS:
        for parts in sizes:
            found = measure(title, parts)
            rate = found["seconds"] / found["characters"] * 1e6
            row = f"{title:30} {parts:8,} {found['characters']:11,} {found['seconds']:8.3f} {rate:11.2f}"
            print(f"{row}  {found['outcome'][:90]}", flush=True)


if __name__ == "__main__":
    main()
