"""Results of benchmarks of serving: JSON of vLLM (``--save-result``), of genai-perf and of AIPerf.

Means over requests of the time to the first token, the time per output token and the latency; output tokens per second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.catalog.numerals import amount, count
from perfgrid.catalog.reading import from_json
from perfgrid.engine.errors import PerfgridError, shown

from .measured import Measured
from .setup import Setup, fields, identity, setup_of

QUANTITIES = {  # quantity -> keys of vLLM, keys of genai-perf and AIPerf
    "time_to_first_token": ("mean_ttft_ms", "time_to_first_token"),
    "time_per_output_token": ("mean_tpot_ms", "inter_token_latency"),
    "request_latency": ("mean_e2el_ms", "request_latency"),
    "output_tokens_per_second": ("output_throughput", "output_token_throughput"),
}
PRINTED = {  # lines that vLLM prints -> keys of what it saves
    "Successful requests": "completed",
    "Maximum request concurrency": "max_concurrency",
    "Max request concurrency": "max_concurrency",
    "Request rate configured (RPS)": "request_rate",
    "Traffic request rate": "request_rate",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Output token throughput (tok/s)": "output_throughput",
    "Mean TTFT (ms)": "mean_ttft_ms",
    "Mean TPOT (ms)": "mean_tpot_ms",
    "Mean E2EL (ms)": "mean_e2el_ms",
}
BETWEEN = "time_per_output_token"
BLOCK = "Serving Benchmark Result"
END = re.compile(r"={20,}\s*$")
NAMESPACE = re.compile(r"\b(model|max_concurrency)=('[^']*'|[^\s,)]+)")
RATE = "tokens/s"
RATES = (RATE, "tokens/sec", "tokens/second", "tok/s")
UNLIMITED = ("inf", float("inf"))  # a rate of requests that all arrive at once
UNSET = (None, "None", "not set")
UNITS = {
    **dict.fromkeys(RATES, 1.0),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "\N{MICRO SIGN}s", "usec", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nsec", "nanosecond", "nanoseconds"), 1e-9),
}


def is_vllm(text: str) -> bool:
    """Whether a text holds results of vLLM's benchmark of serving, as saved or as printed."""
    if BLOCK in text and "Mean TTFT (ms)" in text:
        return True
    return text.lstrip().startswith("{") and '"request_throughput"' in text and '"mean_ttft_ms"' in text


def is_genai_perf(text: str) -> bool:
    """Whether a text is an export of genai-perf or AIPerf."""
    return text.lstrip().startswith("{") and '"output_token_throughput"' in text and '"request_latency"' in text


def vllm_records(measured: Measured, text: str, catalog: Catalog, record: type[BaseModel]) -> Iterator[tuple[int, Any]]:
    """The records of each result in a file: one, or one in each line. PerfgridError for one that is not complete."""
    for number, line in _documents(text):
        where = f"{measured.path}:{number}" if number else str(measured.path)
        found = line if isinstance(line, dict) else from_json(line, f"{where}: ", finite=False)
        if not isinstance(found, dict):
            raise PerfgridError(f"{where}: a result of the benchmark is a table, found {shown(found)}")
        if lacking := [k for k in ("completed", "total_input_tokens", "total_output_tokens") if k not in found]:
            raise PerfgridError(f"{where}: no complete result of the benchmark: it has no {', '.join(lacking)}")
        completed = count(found["completed"], f"{where}: completed", zero=True)
        if not completed:
            raise PerfgridError(f"{where}: no request was completed")
        tokens = {n: count(found[n], f"{where}: {n}") for n in ("total_input_tokens", "total_output_tokens")}
        setup = setup_of(measured, catalog, record)
        setup.where = where
        setup.served(found.get("model_id") or found.get("model"), "the result")
        lengths = {
            "prompt_tokens": tokens["total_input_tokens"] / completed,
            "output_tokens": tokens["total_output_tokens"] / completed,
        }
        load = _load(found.get("max_concurrency"), found.get("request_rate"), completed, where)
        single = tokens["total_output_tokens"] == completed  # answers of one token have no time between tokens
        stated = {q: key for q, (key, _) in QUANTITIES.items() if found.get(key) is not None}
        stated = {q: key for q, key in stated.items() if not (single and q == BETWEEN)}
        values = {q: (amount(found[key], f"{where}: {key}"), key) for q, key in stated.items()}
        seconds = {q: (v, RATE if q == "output_tokens_per_second" else "ms", k) for q, (v, k) in values.items()}
        tool = f"vLLM benchmark, {measured.path.name}"
        setup.usual_name("software", "sglang" if "sglang" in str(found.get("backend", "")) else "vllm")
        yield from _records(setup, measured, number, tool, lengths, load, seconds)


def genai_perf_records(
    measured: Measured, text: str, catalog: Catalog, record: type[BaseModel]
) -> Iterator[tuple[int, Any]]:
    """The records of an export. PerfgridError where lengths or the load are not stated."""
    where = str(measured.path)
    found = from_json(text, f"{where}: ", finite=False)
    setup = setup_of(measured, catalog, record)
    about = found.get("input_config") or {}
    setup.served(_first(about, ("model_names", "model", "formatted_model_name")), "the export")
    lengths = {}
    for quantity, key in (("prompt_tokens", "input_sequence_length"), ("output_tokens", "output_sequence_length")):
        if (average := _average(found, key, where)) is not None:
            lengths[quantity] = amount(average, f"{where}: avg of {key}")
    completed = _average(found, "request_count", where) or _first(about, ("request_count", "num_requests"))
    completed = None if completed is None else count(completed, f"{where}: requests")
    load = _load(_first(about, ("concurrency",)), _first(about, ("request_rate",)), completed, where)
    seconds = {}
    for quantity, (_, key) in QUANTITIES.items():
        if (value := _average(found, key, where)) is not None:
            rate = quantity == "output_tokens_per_second"
            unit = str(found[key].get("unit") or (RATE if rate else "ms")).lower()
            if (unit in RATES) != rate or unit not in UNITS:
                raise PerfgridError(
                    f"{measured.path}: {key} in unknown unit {unit!r}: known are "
                    f"{', '.join(u for u in UNITS if (u in RATES) == rate)}"
                )
            seconds[quantity] = (amount(value, f"{where}: avg of {key}"), unit, key)
    yield from _records(setup, measured, 0, f"genai-perf, {measured.path.name}", lengths, load, seconds)


def _printed(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """What a terminal shows of each result, by the number of its first line; what stood before it states the load."""
    before: dict[str, Any] = {}
    begun, found = 0, dict[str, Any]()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip().lstrip("# ")
        if BLOCK in line:
            begun, found = number, dict(before)
        elif begun and END.match(line):
            yield begun, found
            begun, before = 0, {n: v for n, v in before.items() if n == "model"}
        name, colon, value = line.partition(":")
        if colon and name in PRINTED:
            (found if begun else before)[PRINTED[name]] = value.strip()
        elif not begun and "Namespace(" in line:
            before |= {n: v.strip("'") for n, v in NAMESPACE.findall(line)}
    if begun:
        yield begun, found


def _average(found: Mapping[str, Any], key: str, where: str) -> Any:
    """What an export states as the average of a metric; None where it states none."""
    metric = found.get(key)
    if metric is not None and not isinstance(metric, Mapping):
        raise PerfgridError(f"{where}: {key} must be a table with avg and unit, found {shown(metric)}")
    return (metric or {}).get("avg")


def _load(clients: Any, rate: Any, requests: int | None, where: str) -> dict[str, Any]:
    """How a server was loaded: clients, requests per second, requests; None for what is not stated."""
    return {
        "concurrency": None if clients in UNSET else count(clients, f"{where}: concurrency"),
        "rate": None if rate in (*UNSET, *UNLIMITED) else amount(rate, f"{where}: request rate"),
        "requests": requests,
    }


def _documents(text: str) -> Iterator[tuple[int, Any]]:
    """A text of one JSON value, of one in each line with its number, or of what terminals show."""
    if BLOCK in text:
        yield from _printed(text)
        return
    lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) > 1 and all(line.lstrip().startswith("{") and line.rstrip().endswith("}") for _, line in lines):
        yield from lines
    else:
        yield 0, text


def _first(table: Any, keys: tuple[str, ...]) -> Any:
    """The first value of a key anywhere in a table; of a list its first item."""
    for key in keys:
        for name, value in _flat(table):
            if name == key and value not in (None, [], ""):
                return value[0] if isinstance(value, list) else value
    return None


def _flat(table: Any) -> Iterator[tuple[str, Any]]:
    for name, value in table.items() if isinstance(table, Mapping) else ():
        yield name, value
        yield from _flat(value)


def _records(
    setup: Setup,
    measured: Measured,
    line: int,
    tool: str,
    lengths: dict[str, float],
    load: dict[str, Any],
    values: dict[str, tuple[float, str, str]],
) -> Iterator[tuple[int, Any]]:
    """A record of each measured quantity."""
    setup.measured(lengths, "the result")
    stated = {"batch": load["concurrency"], "request_rate": None if load["concurrency"] else load["rate"]}
    setup.state(stated, "the result")
    if not {"batch", "request_rate"} & setup.values.keys() and load["requests"]:
        setup.usual("batch", load["requests"])  # all arrive at once
    setup.state({"requests": load["requests"]}, "the result")
    setup.values.pop("batch_rule", None)
    design = setup.design("inference")
    if not values:
        raise PerfgridError(f"{setup.where}: holds none of {', '.join(QUANTITIES)}")
    for quantity, (number, unit, key) in values.items():
        named = identity(measured.path, *([str(line)] if line else []), quantity)
        source = {"title": tool, "where": key, "url": None}
        yield (
            line,
            fields(
                setup,
                "inference",
                quantity,
                number * UNITS[unit],
                (key, number, "1/s" if unit in RATES else unit),
                **design,
                **named,
                source=source,
                note="mean over requests",
                derivation=None,
            ),
        )
