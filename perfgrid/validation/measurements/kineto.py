"""Traces of PyTorch's profiler (Chrome trace JSON): where the seconds of a step go on one device.

At each moment of the profiled steps the device computes, only communicates, only copies, or is idle; what it computes
counts for the category of its kernel, so that categories add up to the step. Communication beside kernels is hidden.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.catalog.numerals import amount, count, number
from perfgrid.catalog.reading import Malformed, from_json
from perfgrid.engine.errors import PerfgridError, shown

from .kernel_fields import gemm_fields
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
class Event:
    """A complete event of a trace: what, of which kind, from when to when (us), on which device, with what beside."""

    name: str
    kind: str
    begin: float
    end: float
    device: Any
    about: dict[str, Any]

    @property
    def length(self) -> float:
        """Microseconds."""
        return self.end - self.begin


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
        content = from_json(text, f"{where}: ", finite=False)
    except Malformed:
        raise PerfgridError(f"{where}: a trace that is cut off, or no JSON") from None
    events = _events(content, where)
    on_device = [e for e in events if e.kind in ON_DEVICE and e.length > 0]
    if not on_device:
        raise PerfgridError(f"{where}: no kernels on a device: profile with ProfilerActivity.CUDA")
    device = Counter(e.device for e in on_device).most_common(1)[0][0]
    mine = [e for e in on_device if e.device == device]
    steps, first, last = _window(events, mine, where)
    note = "" if steps else "the trace marks no steps (profiler.step()): all of it is taken as one"
    kernels = [_kernel(e) for e in mine if first <= e.begin < last]
    steps = max(steps, 1)
    seconds, exposed, hidden = _swept(kernels, first, last)
    per_step = MICRO / steps
    return Trace(
        steps,
        (last - first) * per_step,
        _device_of(content, where),
        {name: t * per_step for name, t in seconds.items()},
        {key: t * per_step for key, t in exposed.items()},
        {key: t * per_step for key, t in hidden.items()},
        note,
        _products(events, mine, where),
    )


def _events(content: Any, where: str) -> list[Event]:
    """The complete events of a trace. PerfgridError for a trace without a list of them, and a time that is none."""
    listed = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise PerfgridError(f"{where}: traceEvents must be a list of events, found {shown(listed)}")
    found = []
    for i, event in enumerate(listed):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        name, about = str(event.get("name", "")), event.get("args") or {}
        place = f"{where}: traceEvents[{i}] ({shown(name)})"
        kind = str(event.get("cat", "")).lower()
        begin = end = number(event.get("ts"), f"{place}: ts")
        if kind in ON_DEVICE or STEP.match(name):  # profilers write negative ones of operators that did not end
            end += amount(event.get("dur"), f"{place}: dur", zero=True)
        if not isinstance(about, dict):
            raise PerfgridError(f"{place}: args must be a table, found {shown(about)}")
        device = about.get("device", event.get("pid"))
        device = device if isinstance(device, (int, str, float)) else None
        found.append(Event(name, kind, begin, end, device, about))
    return found


def _device_of(content: dict[str, Any], where: str) -> str | None:
    """The device that a trace names, as the catalog does. PerfgridError where its memory is no number."""
    listed = content.get("deviceProperties")
    about = listed[0] if isinstance(listed, list) and listed else {}
    if not isinstance(about, dict):
        return None
    memory = amount(about.get("totalGlobalMem") or 0, f"{where}: totalGlobalMem of deviceProperties", zero=True)
    return device_called(str(about.get("name", "")), memory / 1e9 or None)


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


def _window(events: list[Event], mine: list[Event], where: str) -> tuple[int, float, float]:
    """Number of profiled steps, and when they begin and end on the device; no step: from the first kernel to the last.

    The host runs ahead of the device: what it marks is the time of launches. The steps end with the last of their
    kernels or with the mark, whichever is later. They begin with the mark, or where the device ends what came before.
    PerfgridError where kernels outlast the mark and nothing tells whose they are.
    """
    marks = [e for e in events if STEP.match(e.name) and e.length > 0]
    host = [e for e in marks if e.kind in ON_HOST]
    ranges = [e for e in marks if e.kind == "gpu_user_annotation" and e.device == mine[0].device]
    steps = len({e.name for e in host or ranges})
    if not steps:
        return 0, *_extent(mine)
    begin, end = _extent(host or ranges)
    if own := ranges or _launched(events, mine, begin, end):
        first, last = _extent(own)
        before = max((e.end for e in mine if e.begin < first), default=begin)
        return steps, min(first, max(begin, before)), max(last, end)
    if max(e.end for e in mine) > end:
        raise PerfgridError(
            f"{where}: kernels outlast the profiled steps, and nothing tells whose they are: profile with "
            "ProfilerActivity.CPU too, or call torch.cuda.synchronize() before profiler.step()"
        )
    return steps, begin, end


def _launched(events: list[Event], mine: list[Event], begin: float, end: float) -> list[Event]:
    """The kernels that the host launches between two moments."""
    on_host = (e for e in events if e.kind not in ON_DEVICE)
    calls: dict[Any, float] = {c: e.begin for e in on_host if (c := _id(e, "correlation")) is not None}
    return [e for e in mine if begin <= calls.get(_id(e, "correlation"), -np.inf) < end]


def _extent(events: list[Event]) -> tuple[float, float]:
    return min(e.begin for e in events), max(e.end for e in events)


def _id(event: Event, name: str) -> int | str | None:
    """A number or a text by which events name each other; None where there is none."""
    found = event.about.get(name)
    return found if isinstance(found, (int, str)) else None


def _kernel(event: Event) -> Kernel:
    if ON_DEVICE[event.kind] == "copy":
        return Kernel(event.begin, event.end, COPIES)
    about = event.about
    noted = names()["collective"].get(str(about.get("Collective name", "")).lower())
    category = noted or category_of(event.name)
    group = str(about.get("Process Group Description") or about.get("Process Group Name") or "")
    return Kernel(event.begin, event.end, category, group_called(group) if category not in COMPUTE else "")


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
    events: Iterable[Event], kernels: Iterable[Event], where: str
) -> dict[tuple[int, int, int, str], list[float]]:
    """Seconds of matrix products by shape (m, n, k) and number format, where operators state their inputs.

    A kernel names its operator by an id. Traces of some devices number kernels on their own: where most kernels of
    products name no product, none is taken.
    """
    times: defaultdict[Any, float] = defaultdict(float)
    for event in kernels:
        key = _id(event, "External id")
        if key is not None and category_of(event.name) == "matrix products":
            times[key] += event.length * MICRO
    found: defaultdict[tuple[int, int, int, str], list[float]] = defaultdict(list)
    for event in events:
        place, key = PRODUCTS.get(event.name), _id(event, "External id")
        if place is None or key not in times:
            continue
        shapes, types = (_listed(event.about.get(name)) for name in ("Input Dims", "Input type"))
        form = FORMATS.get(str(types[place])) if len(types) > place else None
        if len(shapes) > place + 1 and form:
            left, right = map(_listed, shapes[place : place + 2])
            if len(left) == len(right) == 2 and left[1] == right[0]:
                told = f"{where}: Input Dims of {event.name}"
                m, k, n = (count(size, told, zero=True) for size in (*left, right[1]))
                if m and k and n:
                    found[m, n, k, form].append(times[key])
    return dict(found) if 2 * sum(map(len, found.values())) >= len(times) else {}


def _listed(found: Any) -> list[Any]:
    """A list of hashable items; an empty one for anything else."""
    return [x if isinstance(x, (str, int, float, list)) else None for x in found] if isinstance(found, list) else []
