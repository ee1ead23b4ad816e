"""A timeline as Chrome trace events, which Perfetto and chrome://tracing open.

A device of a pipeline (or a pass of serving) is a process, what it does side by side are its threads. Slices are
complete events (``X``), transfers between devices flow events (``s``, ``t``, ``f``), memory counter events (``C``).

Source: Trace Event Format, Google 2016; Perfetto, "Visualizing external trace formats".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import xarray as xr

from .execution import BESIDE, NONE

WORDS = {  # where the name of a kernel or of what a device does says too little
    "exchange": "expert exchange",
    "host": "host between passes",
    "tp": "tensor-parallel communication",
}
TICK = 2.0**-10  # us: times are multiples, so that sums are exact and slices that touch do not overlap
PROCESS = 1000  # ids between one process and the next; ids of its threads lie between, as readers want them unique
GIGABYTE = 1e9
COMPUTE, COMMUNICATION, HOST = "compute", "communication", "host"
GRADIENTS = ("backward", "input_gradient")


@dataclass
class Trace:
    """Trace events by time; slices of one thread that would overlap in part go to further threads."""

    events: list[tuple[tuple[float, ...], list[dict[str, Any]]]] = field(default_factory=list)
    names: list[dict[str, Any]] = field(default_factory=list)
    threads: dict[tuple[int, str], tuple[int, float, float]] = field(default_factory=dict)  # id, its last slice

    def process(self, number: int, name: str) -> None:
        """Name a process; they are sorted by number."""
        self._name(number, PROCESS * (number + 1), "process", name, number)

    def slice(
        self, number: int, thread: str, name: str, start: float, end: float, args: Mapping[str, Any], *flows: Any
    ) -> None:
        """A slice from ``start`` to ``end`` (s) with the flow events (phase, id) that are bound to it."""
        first, last = ticks(start), ticks(end)
        pid, lane = PROCESS * (number + 1), self._lane(number, thread, first, last)
        at = {"ts": first, "pid": pid, "tid": lane}
        own = [{"ph": "X", "name": name, "cat": thread, **at, "dur": last - first, "args": dict(args)}]
        for phase, flow in flows:  # directly behind their slice: they belong to the innermost one that is open
            own.append({"ph": phase, "name": "transfer", "cat": "transfer", "id": flow, **at})
            own[-1] |= {"bp": "e"} if phase != "s" else {}
        self.events.append(((first, lane, first - last), own))

    def counter(self, number: int, name: str, moment: float, values: Mapping[str, float]) -> None:
        """The values of a counter of a process from a moment (s) on."""
        pid, at = PROCESS * (number + 1), ticks(moment)
        event = {"ph": "C", "name": name, "ts": at, "pid": pid, "tid": pid, "args": dict(values)}
        self.events.append(((at, pid, 0.0), [event]))

    def object(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The whole trace as a JSON object."""
        sorted_events = [event for _, own in sorted(self.events, key=lambda item: item[0]) for event in own]
        about = {name: np.asarray(value).tolist() for name, value in metadata.items()}
        return {"traceEvents": self.names + sorted_events, "displayTimeUnit": "ms", "metadata": about}

    def _lane(self, number: int, thread: str, first: float, last: float) -> int:
        """The id of the first thread NAME, NAME 2 and so on that is free; slices of equal times lie in each other."""
        for lane in count(1):
            key = number, thread if lane == 1 else f"{thread} {lane}"
            if key not in self.threads:
                position = sum(process == number for process, _ in self.threads)
                self.threads[key] = PROCESS * (number + 1) + position, first, first
                self._name(number, self.threads[key][0], "thread", key[1], position)
            tid, begun, ended = self.threads[key]
            if ended <= first or (begun, ended) == (first, last):
                self.threads[key] = tid, first, last
                return tid
        raise AssertionError

    def _name(self, number: int, tid: int, kind: str, name: str, position: int) -> None:
        at = {"pid": PROCESS * (number + 1), "tid": tid}
        for what, value in (("name", name), ("sort_index", position)):
            self.names.append({"ph": "M", "name": f"{kind}_{what}", **at, "args": {what: value}})


def ticks(seconds: float) -> float:
    """Seconds in us, rounded to `TICK`."""
    return round(seconds * 1e6 / TICK) * TICK


def chrome_trace(found: xr.Dataset) -> dict[str, Any]:
    """The JSON object of a timeline, of training or serving, in the Trace Event Format.

    ``traceEvents`` with times in us, ``displayTimeUnit``, and the labels of the design as ``metadata``.
    """
    trace = Trace()
    fill = _passes if "pass" in found else _pipeline
    fill(found, trace)
    return trace.object(found.attrs)


def event_rows(found: xr.Dataset) -> Iterator[dict[str, Any]]:
    """Events of a timeline, one after another."""
    names = [str(name) for name, variable in found.data_vars.items() if variable.dims == ("event",)]
    for row in zip(*(found[name].values.tolist() for name in names), strict=True):
        yield dict(zip(names, row, strict=True))


def slice_name(kind: str) -> str:
    """What a kernel, a pass or a wait is called in a trace."""
    return WORDS.get(kind, kind.replace("_", " "))


# ---- a pipeline -----------------------------------------------------------------------------------------------------


def _pipeline(found: xr.Dataset, trace: Trace) -> None:
    """A process for each device: passes and waits, transfers, microbatches in flight and memory."""
    rows = list(event_rows(found))
    chunk = "direction" if found.attrs.get("schedule") == "dualpipe" else "chunk"
    shown_as = {"kind": "kind", "microbatch": "microbatch", "chunk": chunk, "stage": "stage", "receiver": "to stage"}
    flows: dict[tuple[int, bool, int], int] = {}  # of a microbatch that arrives at a stage, forward or not
    for row in rows:
        if row["kind"] == "transfer":
            flows[row["microbatch"], row["receiver"] > row["stage"], row["receiver"]] = len(flows) + 1
    for device in sorted({row["device"] for row in rows}):
        trace.process(device, f"pipeline rank {device}")
    before: dict[int, dict[str, Any]] = {}
    for row in rows:
        device, kind, microbatch = row["device"], row["kind"], row["microbatch"]
        args = {shown: row[name] for name, shown in shown_as.items() if row[name] != NONE}
        name = slice_name(kind) + (f" {microbatch}" if microbatch != NONE else "")
        if ticks(row["end"]) > ticks(row["start"]) or kind != "wait":  # rounding makes waits of no length
            thread = COMMUNICATION if kind in BESIDE else COMPUTE
            trace.slice(device, thread, name, row["start"], row["end"], args, *_flows(row, flows))
        if kind not in BESIDE:
            held = _held(found, device, row)
            if held != before.get(device):
                _count(trace, device, row["start"], held)
            before[device] = held
    for device in before:
        _count(trace, device, found.attrs["pipeline_time"], _held(found, device, None))


def _flows(row: Mapping[str, Any], flows: Mapping[tuple[int, bool, int], int]) -> Iterator[tuple[str, int]]:
    """The flow events of one event: what it begins, carries on or ends."""
    microbatch, stage, forward = row["microbatch"], row["stage"], row["kind"] == "forward"
    if row["kind"] == "transfer":
        yield "t", flows[microbatch, row["receiver"] > stage, row["receiver"]]
    if forward or row["kind"] in GRADIENTS:
        if flow := flows.get((microbatch, forward, stage)):
            yield "f", flow
        if flow := flows.get((microbatch, forward, stage + 1 if forward else stage - 1)):
            yield "s", flow


def _held(found: xr.Dataset, device: int, row: Mapping[str, Any] | None) -> dict[str, dict[str, float]]:
    """The counters of a device from the start of an event on, or at the end; none where memory is not known."""
    if "in_flight" not in found:
        return {}
    in_flight, activations = (row["in_flight"], row["activation_memory"]) if row else (0.0, 0.0)
    parts = {
        "weights, gradients, optimizer": found["state_memory"][device].item(),
        "head, buffers, reserved": found["other_memory"][device].item(),
        "activations in flight": activations,
    }
    return {  # Perfetto calls a track by the counter's name and the value's
        "microbatches": {"in flight": in_flight},
        "memory (GB):": {name: round(size / GIGABYTE, 6) for name, size in parts.items()},
    }


def _count(trace: Trace, device: int, moment: float, held: Mapping[str, Mapping[str, float]]) -> None:
    for name, values in held.items():
        trace.counter(device, name, moment, values)


# ---- passes of serving ----------------------------------------------------------------------------------------------

TITLES = {"prefill": "prefill pass", "decode": "decoding step"}
THREADS = {"kernel": "kernels", "communication": COMMUNICATION, "host": HOST, "wait": "rest of the step"}


def _passes(found: xr.Dataset, trace: Trace) -> None:
    """A process for each pass: kernels, communication that they wait for, and the host."""
    numbers = {which: number for number, which in enumerate(TITLES)}
    for which, number in numbers.items():
        trace.process(number, TITLES[which])
    for row in event_rows(found):
        args = {name: row[name] for name in ("layer", "bound_by") if row[name] not in (NONE, "")}
        thread = THREADS[row["kind"]]
        trace.slice(numbers[row["pass"]], thread, slice_name(row["name"]), row["start"], row["end"], args)
