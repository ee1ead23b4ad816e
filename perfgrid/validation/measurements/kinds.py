"""Which reader a file has: by what it holds, not by its name."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.catalog.reading import LARGEST_FILE, check_file, read_text
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.validation.csv_rows import completed

from .collectives import is_nccl, nccl_records
from .kineto import is_kineto, kineto_records
from .measured import Measured
from .megatron import is_megatron, megatron_records
from .mllog import is_mllog, mllog_records
from .serving import genai_perf_records, is_genai_perf, is_vllm, vllm_records
from .table import is_table, table_records
from .torchtitan import is_torchtitan, torchtitan_records

LARGEST = 2**29  # bytes of the text of a trace
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, csv.Error)
RECORDS = "records"  # lines of JSON, which are records already
Records = Iterator[tuple[int, "dict[str, Any] | PerfgridError"]]


@dataclass(frozen=True)
class Kind:
    """A kind of measurements: how it is recognised, and how it is read."""

    title: str
    recognised: Callable[[str], bool]
    read: Callable[[Measured, str, Catalog, type[BaseModel]], Records]


KINDS = {  # in the order in which they are tried
    "mllog": Kind("log of MLPerf (:::MLLOG)", is_mllog, mllog_records),
    "kineto": Kind("trace of PyTorch's profiler", is_kineto, kineto_records),
    "vllm": Kind("result of vLLM's benchmark of serving", is_vllm, vllm_records),
    "genai-perf": Kind("export of genai-perf or AIPerf", is_genai_perf, genai_perf_records),
    "nccl-tests": Kind("output of nccl-tests", is_nccl, nccl_records),
    "megatron": Kind("log of Megatron-LM", is_megatron, megatron_records),
    "torchtitan": Kind("log of torchtitan", is_torchtitan, torchtitan_records),
    "csv": Kind("table", is_table, table_records),
}


def kind_in(text: str) -> str | None:
    """The kind of a text; None for one that is none, such as lines of records."""
    return next((name for name, kind in KINDS.items() if kind.recognised(text)), None)


def text_of(path: Path) -> str:
    """The text of a file, compressed or not. PerfgridError where it cannot be read or is too long."""
    if path.suffix != ".gz":
        return read_text(path, LARGEST if path.suffix == ".json" else LARGEST_FILE)
    try:
        with gzip.open(check_file(path, LARGEST)) as file:
            found = file.read(LARGEST + 1)
        text = found.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise PerfgridError(f"{path}: cannot be read: {error}") from None
    if len(found) > LARGEST:
        raise PerfgridError(f"{path}: cannot be read: it holds more than {LARGEST / 2**20:g} MiB")
    return text


def measured_records(measured: Measured, catalog: Catalog, record: type[BaseModel]) -> Records | None:
    """The records of a file of measurements by line; None for one whose lines are records.

    PerfgridError for an unknown kind, and for a file that is none.
    """
    if measured.kind is not None and measured.kind not in (*KINDS, RECORDS):
        raise PerfgridError(f"no kind {measured.kind!r} of measurements{nearest(measured.kind, (*KINDS, RECORDS))}")
    text = text_of(measured.path)
    beginning = text.lstrip().partition("\n")[0] if measured.path.suffix == ".jsonl" else text
    kind = measured.kind or kind_in(beginning)
    if kind in (None, RECORDS):
        if measured.kind is None and measured.path.suffix != ".jsonl":
            told = "; ".join(f"{name}: {about.title}" for name, about in KINDS.items())
            raise PerfgridError(
                f"{measured.path}: holds no measurements that are recognised ({told}); name one with --as"
            )
        return None
    return _guarded(KINDS[kind], replace(measured, kind=kind), text, catalog, record)


def _guarded(kind: Kind, measured: Measured, text: str, catalog: Catalog, record: type[BaseModel]) -> Records:
    """The records of a file; what its tool would not have written so is the user's mistake and no bug."""
    try:
        for line, found in kind.read(measured, text, catalog, record):
            yield line, completed(found, record) if isinstance(found, dict) else found
    except PerfgridError:
        raise
    except MALFORMED as error:
        told = f"{type(error).__name__}: {error}"
        raise PerfgridError(f"{measured.path}: is no {kind.title} that can be read ({told})") from None
