"""Traces of PyTorch's profiler (Chrome trace JSON): where the seconds of a step go on one device.

At each moment of the profiled steps the device computes, only communicates, only copies, or is idle; what it computes
counts for the category of its kernel, so that categories add up to the step. Communication beside kernels is hidden.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError

from .kernels import gemm_fields
from .measured import Measured, device_called, names, stated_device
from .setup import fields, identity, setup_of

STEP = re.compile(r"ProfilerStep#(\d+)")
ON_DEVICE = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy", "memcpy": "copy", "memset": "copy"}
ON_HOST = ("user_annotation", "cpu_op", "operator")  # as what versions of the profiler mark steps
OTHER, COPIES, IDLE = "element-wise and others", "copies", "idle"
COMPUTE = ("matrix products", "attention", OTHER, "optimizer")
MICRO = 1e-6
PRODUCTS = {"aten::mm": 0, "aten::addmm": 1}  # operator -> where its two matrices stand among its inputs
FORMATS = {"c10::BFloat16": "bf16", "c10::Half": "fp16"}
LEAST_SAMPLES, MOST_SHAPES = 3, 20  # of a shape of a matrix product; of shapes, those that take longest


@dataclass(frozen=True)
class Kernel:
    """A kernel or copy on a device: when, how long, of which category, and for a collective the group of its ranks."""

    begin: float
    end: float
    category: str
    group: str = ""


@dataclass(frozen=True)
class Trace:
    """Seconds of a step of one device by category; communication by collective and group, exposed and hidden."""

    steps: int
    step_time: float
    device: str | None
    seconds: dict[str, float]
    exposed: dict[tuple[str, str], float]
    hidden: dict[tuple[str, str], float]
    note: str = ""
    products: dict[tuple[int, int, int, str], list[float]] = field(default_factory=dict)


def is_kineto(text: str) -> bool:
    """Whether a text is a Chrome trace."""
    return text.lstrip()[:1] in "{[" and '"traceEvents"' in text


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    return [(name, re.compile(pattern, re.I)) for name, pattern in names()["kernel"].items()]


@cache
def category_of(kernel: str) -> str:
    """The category of a kernel by its name."""
    return next((name for name, pattern in _patterns() if pattern.search(kernel)), OTHER)


@cache
def group_called(text: str) -> str:
    """The degree of a layout whose group of ranks a framework calls so; empty where its name says none."""
    return next((n for n, pattern in names()["group"].items() if re.search(pattern, text, re.I)), "")


def trace_of(text: str, where: str) -> Trace:
    """The seconds of a step in a trace. PerfgridError for text that is none, and for a trace without kernels."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise PerfgridError(f"{where}: a trace that is cut off, or no JSON") from None
    events = [e for e in content.get("traceEvents", []) if isinstance(e, dict) and e.get("ph") == "X"]
    on_device = [e for e in events if str(e.get("cat", "")).lower() in ON_DEVICE and float(e["dur"]) > 0]
    if not on_device:
        raise PerfgridError(f"{where}: no kernels on a device: profile with ProfilerActivity.CUDA")
    device = Counter(map(_device, on_device)).most_common(1)[0][0]
    mine = [e for e in on_device if _device(e) == device]
    count, first, last = _window(events, mine, where)
    note = "" if count else "the trace marks no steps (profiler.step()): all of it is taken as one"
    kernels = [_kernel(e) for e in mine if first <= float(e["ts"]) < last]
    count = max(count, 1)
    seconds, exposed, hidden = _swept(kernels, first, last)
    per_step = MICRO / count
    properties = content.get("deviceProperties") or [{}]
    gigabytes = properties[0].get("totalGlobalMem", 0) / 1e9 or None
    return Trace(
        count,
        (last - first) * per_step,
        device_called(str(properties[0].get("name", "")), gigabytes),
        {name: t * per_step for name, t in seconds.items()},
        {key: t * per_step for key, t in exposed.items()},
        {key: t * per_step for key, t in hidden.items()},
        note,
        _products(events, mine),
    )


def kineto_records(
    measured: Measured, text: str, catalog: Catalog, record: type[BaseModel]
) -> Iterator[tuple[int, Any]]:
    """The step time, where a job is given, and the times of matrix products whose shapes the trace states."""
    found = trace_of(text, str(measured.path))
    setup = setup_of(measured, catalog, record)
    setup.state({"device": stated_device(found.device, setup.names.get("device"))}, "the trace")
    source = {"title": f"trace of PyTorch's profiler, {measured.path.name}", "where": None, "url": None}
    if not found.products and setup.model is None:
        raise PerfgridError(
            f"{measured.path}: a trace states no job: give --job FILE (shapes of products need record_shapes=True)"
        )
    if setup.model is not None:
        setup.usual_name("software", "megatron-core")
        design = setup.design("training")
        note = found.note or f"mean of {found.steps} profiled steps"
        printed = ("step_time", found.step_time, "s")
        named = identity(measured.path)
        more = {"source": source, "note": note, "derivation": None}
        yield 0, fields(setup, "training", "step_time", found.step_time, printed, **design, **named, **more)
    ranked = sorted(found.products.items(), key=lambda item: -sum(item[1]))
    for (m, n, k, precision), times in ranked[:MOST_SHAPES]:
        if len(times) >= LEAST_SAMPLES:
            named = identity(measured.path, f"{m}x{n}x{k}")
            note = f"median of {len(times)} kernels in a step, beside whatever runs at the same time"
            made = gemm_fields(setup, m, n, k, precision, float(np.median(times)))
            yield 0, made | named | {"source": source, "note": note, "derivation": None}


def _window(events: list[dict[str, Any]], mine: list[dict[str, Any]], where: str) -> tuple[int, float, float]:
    """Number of profiled steps, and when they begin and end on the device; no step: from the first kernel to the last.

    The host runs ahead of the device: what it marks is the time of launches. The steps end with the last of their
    kernels or with the mark, whichever is later. They begin with the mark, or where the device ends what came before.
    PerfgridError where kernels outlast the mark and nothing tells whose they are.
    """
    marks = [e for e in events if STEP.match(str(e.get("name", ""))) and float(e["dur"]) > 0]
    host = [e for e in marks if str(e.get("cat", "")).lower() in ON_HOST]
    ranges = [
        e for e in marks if str(e.get("cat", "")).lower() == "gpu_user_annotation" and _device(e) == _device(mine[0])
    ]
    count = len({str(e["name"]) for e in host or ranges})
    if not count:
        return 0, *_extent(mine)
    begin, end = _extent(host or ranges)
    if own := ranges or _launched(events, mine, begin, end):
        first, last = _extent(own)
        before = max((_end(e) for e in mine if float(e["ts"]) < first), default=begin)
        return count, min(first, max(begin, before)), max(last, end)
    if max(map(_end, mine)) > end:
        raise PerfgridError(
            f"{where}: kernels outlast the profiled steps, and nothing tells whose they are: profile with "
            "ProfilerActivity.CPU too, or call torch.cuda.synchronize() before profiler.step()"
        )
    return count, begin, end


def _launched(
    events: list[dict[str, Any]], mine: list[dict[str, Any]], begin: float, end: float
) -> list[dict[str, Any]]:
    """The kernels that the host launches between two moments."""
    on_host = (e for e in events if str(e.get("cat", "")).lower() not in ON_DEVICE)
    calls = {c: float(e["ts"]) for e in on_host if (c := (e.get("args") or {}).get("correlation")) is not None}
    return [e for e in mine if begin <= calls.get((e.get("args") or {}).get("correlation"), -np.inf) < end]


def _extent(events: list[dict[str, Any]]) -> tuple[float, float]:
    return min(float(e["ts"]) for e in events), max(map(_end, events))


def _end(event: dict[str, Any]) -> float:
    return float(event["ts"]) + float(event["dur"])


def _device(event: dict[str, Any]) -> Any:
    return (event.get("args") or {}).get("device", event.get("pid"))


def _kernel(event: dict[str, Any]) -> Kernel:
    begin, length = float(event["ts"]), float(event["dur"])
    if ON_DEVICE[str(event["cat"]).lower()] == "copy":
        return Kernel(begin, begin + length, COPIES)
    about = event.get("args") or {}
    noted = names()["collective"].get(str(about.get("Collective name", "")).lower())
    category = noted or category_of(str(event.get("name", "")))
    group = str(about.get("Process Group Description") or about.get("Process Group Name") or "")
    return Kernel(begin, begin + length, category, group_called(group) if category not in COMPUTE else "")


def _swept(
    kernels: Iterable[Kernel], first: float, last: float
) -> tuple[dict[str, float], dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """Time by category with idle time; communication on its own and beside kernels by collective and group."""
    edges = sorted(
        [(k.begin, 1, k) for k in kernels] + [(min(k.end, last), 0, k) for k in kernels], key=lambda e: (e[0], e[1])
    )
    running: dict[int, Kernel] = {}
    seconds: defaultdict[str, float] = defaultdict(float)
    exposed: defaultdict[tuple[str, str], float] = defaultdict(float)
    hidden: defaultdict[tuple[str, str], float] = defaultdict(float)
    at = first
    for moment, begins, kernel in edges:
        spent = moment - at
        if spent > 0:
            computing = [k for k in running.values() if k.category in COMPUTE]
            moving = [k for k in running.values() if k.category not in (*COMPUTE, COPIES)]
            for k in computing:
                seconds[k.category] += spent / len(computing)
            for k in moving:
                (hidden if computing else exposed)[k.category, k.group] += spent / len(moving)
            if not computing and not moving:
                seconds[COPIES if running else IDLE] += spent
            at = moment
        if begins:
            running[id(kernel)] = kernel
        else:
            running.pop(id(kernel), None)
    seconds[IDLE] += max(0.0, last - at)
    return dict(seconds), dict(exposed), dict(hidden)


def _products(
    events: Iterable[dict[str, Any]], kernels: Iterable[dict[str, Any]]
) -> dict[tuple[int, int, int, str], list[float]]:
    """Seconds of matrix products by shape (m, n, k) and number format, where operators state their inputs.

    A kernel names its operator by an id. Traces of some devices number kernels on their own: where most kernels of
    products name no product, none is taken.
    """
    times: defaultdict[Any, float] = defaultdict(float)
    for event in kernels:
        key = (event.get("args") or {}).get("External id")
        if key is not None and category_of(str(event.get("name", ""))) == "matrix products":
            times[key] += float(event["dur"]) * MICRO
    found: defaultdict[tuple[int, int, int, str], list[float]] = defaultdict(list)
    for event in events:
        about = event.get("args") or {}
        place = PRODUCTS.get(str(event.get("name", "")))
        if place is None or about.get("External id") not in times:
            continue
        shapes, types = about.get("Input Dims") or [], about.get("Input type") or []
        if len(shapes) > place + 1 and len(types) > place and types[place] in FORMATS:
            left, right = shapes[place : place + 2]
            if len(left) == len(right) == 2 and left[1] == right[0]:
                found[left[0], right[1], left[1], FORMATS[types[place]]].append(times[about["External id"]])
    return dict(found) if 2 * sum(map(len, found.values())) >= len(times) else {}
