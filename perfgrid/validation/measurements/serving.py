"""Results of benchmarks of serving: JSON of vLLM (``--save-result``), of genai-perf and of AIPerf.

Means over requests of the time to the first token, the time per output token and the latency; output tokens per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.catalog.reading import from_json
from perfgrid.engine.errors import PerfgridError

from .measured import Measured
from .setup import Setup, fields, identity, setup_of

QUANTITIES = {  # quantity -> keys of vLLM, keys of genai-perf and AIPerf
    "time_to_first_token": ("mean_ttft_ms", "time_to_first_token"),
    "time_per_output_token": ("mean_tpot_ms", "inter_token_latency"),
    "request_latency": ("mean_e2el_ms", "request_latency"),
    "output_tokens_per_second": ("output_throughput", "output_token_throughput"),
}
UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "us": 1e-6, "ns": 1e-9, "tokens/sec": 1.0, "tokens/s": 1.0, "": 1e-3}


def is_vllm(text: str) -> bool:
    """Whether a text is a result of vLLM's benchmark of serving."""
    return text.lstrip().startswith("{") and '"request_throughput"' in text and '"mean_ttft_ms"' in text


def is_genai_perf(text: str) -> bool:
    """Whether a text is an export of genai-perf or AIPerf."""
    return text.lstrip().startswith("{") and '"output_token_throughput"' in text and '"request_latency"' in text


def vllm_records(measured: Measured, text: str, catalog: Catalog, record: type[BaseModel]) -> Iterator[tuple[int, Any]]:
    """The records of each result in a file: one, or one in each line. PerfgridError for one that is not complete."""
    for number, line in _documents(text):
        where = f"{measured.path}:{number}" if number else str(measured.path)
        found = from_json(line, f"{where}: ")
        completed = int(found.get("completed") or 0)
        if not completed:
            raise PerfgridError(f"{where}: no request was completed")
        setup = setup_of(measured, catalog, record)
        setup.where = where
        if setup.model is None and (name := found.get("model_id") or found.get("model")):
            setup.state({"model": str(name).lower().rpartition("/")[2]}, "the result")
        lengths = {
            "prompt_tokens": round(found["total_input_tokens"] / completed),
            "output_tokens": round(found["total_output_tokens"] / completed),
        }
        rate = found.get("request_rate")
        rate = None if rate in (None, "inf", math.inf) else float(rate)
        load = {"concurrency": found.get("max_concurrency"), "rate": rate, "requests": completed}
        values = {q: (found[key], key) for q, (key, _) in QUANTITIES.items() if found.get(key)}
        seconds = {q: (v * (1 if q == "output_tokens_per_second" else 1e-3), v, k) for q, (v, k) in values.items()}
        tool = f"vLLM benchmark, {measured.path.name}"
        setup.usual_name("software", "sglang" if "sglang" in str(found.get("backend", "")) else "vllm")
        yield from _records(setup, measured, number, tool, lengths, load, seconds)


def genai_perf_records(
    measured: Measured, text: str, catalog: Catalog, record: type[BaseModel]
) -> Iterator[tuple[int, Any]]:
    """The records of an export. PerfgridError where lengths or the load are not stated."""
    found = from_json(text, f"{measured.path}: ")
    setup = setup_of(measured, catalog, record)
    about = found.get("input_config") or {}
    if setup.model is None and (name := _first(about, ("model_names", "model", "formatted_model_name"))):
        setup.state({"model": str(name).lower().rpartition("/")[2]}, "the export")
    lengths = {}
    for quantity, key in (("prompt_tokens", "input_sequence_length"), ("output_tokens", "output_sequence_length")):
        if average := (found.get(key) or {}).get("avg"):
            lengths[quantity] = round(average)
    completed = (found.get("request_count") or {}).get("avg") or _first(about, ("request_count", "num_requests"))
    load = {
        "concurrency": _first(about, ("concurrency",)),
        "rate": _first(about, ("request_rate",)),
        "requests": completed,
    }
    seconds = {}
    for quantity, (_, key) in QUANTITIES.items():
        metric = found.get(key) or {}
        if value := metric.get("avg"):
            unit = UNITS.get(str(metric.get("unit", "")), 1e-3) if quantity != "output_tokens_per_second" else 1.0
            seconds[quantity] = (value * unit, value, key)
    yield from _records(setup, measured, 0, f"genai-perf, {measured.path.name}", lengths, load, seconds)


def _documents(text: str) -> Iterator[tuple[int, str]]:
    """A text of one JSON value, or of one in each line with its number."""
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
    lengths: dict[str, int],
    load: dict[str, Any],
    values: dict[str, tuple[float, float, str]],
) -> Iterator[tuple[int, Any]]:
    """A record of each measured quantity."""
    setup.state({n: v for n, v in lengths.items() if n not in setup.values}, "the result")
    for name in lengths or ("prompt_tokens", "output_tokens"):
        setup.needed(name)
    if load["concurrency"]:
        rule = {"batch_rule": "concurrency", "batch": int(load["concurrency"])}
    elif load["rate"]:
        rule = {"batch_rule": "rate", "request_rate": float(load["rate"])}
    elif load["requests"]:
        rule = {"batch_rule": "concurrency", "batch": int(load["requests"])}
        setup.assumed.append("all requests arrive at once")
    else:
        raise PerfgridError(f"{setup.where}: neither concurrency nor request rate is stated: give --set batch=...")
    for name in ("batch", "batch_rule", "request_rate"):
        setup.values.pop(name, None)
    setup.usual("precision", "bf16")
    setup.usual("weight_precision", setup.values["precision"])
    setup.usual("kv_precision", "bf16")
    design = setup.design("inference")
    count = int(load["requests"]) if load["requests"] else None
    design["workload"] |= rule | {"requests": count}
    if not values:
        raise PerfgridError(f"{setup.where}: holds none of {', '.join(QUANTITIES)}")
    for quantity, (value, number, key) in values.items():
        named = identity(measured.path, *([str(line)] if line else []), quantity)
        unit = "1/s" if quantity == "output_tokens_per_second" else "ms" if value != number else "s"
        source = {"title": tool, "where": key, "url": None}
        yield (
            line,
            fields(
                setup,
                "inference",
                quantity,
                value,
                (key, number, unit),
                **design,
                **named,
                source=source,
                note="mean over requests",
                derivation=None,
            ),
        )
