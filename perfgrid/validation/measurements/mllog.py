"""Logs of MLPerf: lines ``:::MLLOG {...}`` with batch, length of sequences, and times or throughput of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.catalog.numerals import amount, count, number
from perfgrid.catalog.reading import Malformed, from_json
from perfgrid.engine.errors import PerfgridError

from .measured import Measured, last_run, steady
from .setup import setup_of
from .steps import Found, log_records

MARK = ":::MLLOG"
STATED = {  # keys that state the job
    "global_batch_size": "global_batch",
    "max_sequence_length": "sequence_length",
    "sequence_length": "sequence_length",
}
TIMES = ("train_step_time", "step_time")  # seconds among the tracked statistics
RATE = "throughput"  # samples per second, or tokens where steps are counted in tokens
SAMPLES = "samples_count"
COUNTS = (SAMPLES, "epoch_num", "first_epoch_num")  # how far a run is; epochs are counted in samples or in tokens
STEPS = ("step_num", "step")


def is_mllog(text: str) -> bool:
    """Whether a text has lines of MLPerf's logging library."""
    return MARK in text


def mllog_records(
    measured: Measured, text: str, catalog: Catalog, record: type[BaseModel]
) -> Iterator[tuple[int, Any]]:
    """The step time of a log. PerfgridError where it states no step, or the job is not stated."""
    where = str(measured.path)
    events = list(_events(text, where))
    setup = setup_of(measured, catalog, record)
    for line, event in events:
        if (name := STATED.get(event["key"])) and event.get("value") is not None:
            size = count(event["value"], f"{where}:{line}: {event['key']}")
            setup.state({name: size}, f"{event['key']} in line {line}")
    batch = setup.needed("global_batch")
    length = setup.values.get("sequence_length", 0)
    samples, how = _step_times(events, batch, length, where)
    ended = last_run((line, place, "") for line, place, _ in samples if place is not None)
    samples = [(line, seconds) for line, _, seconds in samples if line > ended]
    found = steady(range(1, len(samples) + 1), [seconds for _, seconds in samples], where)
    place = (samples[0][0], samples[-1][0])
    printed = ("step_time", found.median, "s")
    step = Found(found.median, printed, place, found.words(how), how, found.quartiles)
    yield from log_records(setup, measured, "MLPerf", step)


def _events(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, told in enumerate(text.splitlines(), 1):
        _, mark, rest = told.partition(MARK)
        if not mark:
            continue
        try:
            event = from_json(rest[: rest.rfind("}") + 1], f"{where}:{line}: ", finite=False)
        except Malformed:
            raise PerfgridError(f"{where}:{line}: a line of MLLOG that is cut off or no JSON") from None
        if isinstance(event, dict) and "key" in event:
            about = event.get("metadata") or {}
            if not isinstance(event["key"], str) or not isinstance(about, dict):
                raise PerfgridError(f"{where}:{line}: key must be a text and metadata a table in a line of MLLOG")
            yield line, {**event, "metadata": about}


def _step_times(
    events: list[tuple[int, dict[str, Any]]], batch: int, length: int, where: str
) -> tuple[list[tuple[int, float | None, float]], str]:
    """Line, place in the run and seconds of steps, and what states them: the first of step times, throughputs, blocks.

    The place in the run only grows within one run; None where it is not stated.
    """
    tracked = [(i, e) for i, e in events if e["key"] == "tracked_stats" and isinstance(e.get("value"), dict)]
    for name in TIMES:
        if times := _tracked(tracked, name, where):
            return times, f"{name} of tracked_stats"
    if rates := _tracked(tracked, RATE, where):
        places = [place for _, place, _ in rates if place]
        tokens = batch * length
        if tokens and places and all(place % tokens == 0 for place in places):  # such as GPT-3's: all in tokens
            return [(i, place, tokens / rate) for i, place, rate in rates], "tokens / throughput of tracked_stats"
        return [(i, place, batch / rate) for i, place, rate in rates], "global batch / throughput of tracked_stats"
    found, begun, empty = [], None, 0
    for line, event in events:
        if event["key"] == "block_start":
            begun = (line, event)
        elif event["key"] == "block_stop" and begun is not None:
            place, (first, start) = f"{where}:{line}", begun
            steps = _steps(start["metadata"], event["metadata"], batch, length, place)
            begin, end = (number(e.get("time_ms"), f"{where}:{i}: time_ms") for i, e in ((first, start), (line, event)))
            if steps:
                seconds = amount((end - begin) / 1e3, f"{place}: the time of the block that begins in line {first}")
                found.append((line, _place(first, start, where), seconds / steps))
            empty, begun = empty + (not steps), None
    left_out = f"; {empty} without a number of steps are left out" if empty else ""
    return found, f"blocks, each over its steps{left_out}"


def _tracked(tracked: list[tuple[int, dict[str, Any]]], name: str, where: str) -> list[tuple[int, float | None, float]]:
    """Line, place in the run and value of a tracked statistic, above zero wherever it is stated."""
    stated = [(i, e) for i, e in tracked if e["value"].get(name) is not None]
    return [(i, _place(i, e, where), amount(e["value"][name], f"{where}:{i}: {name}")) for i, e in stated]


def _place(line: int, event: dict[str, Any], where: str) -> float | None:
    about = event["metadata"]
    stated = ((name, about[name]) for name in (*STEPS, *COUNTS) if about.get(name) is not None)
    return next((amount(value, f"{where}:{line}: {name}", zero=True) for name, value in stated), None)


def _steps(first: dict[str, Any], last: dict[str, Any], batch: int, length: int, where: str) -> float:
    """Steps between two events: by the numbers of steps, else by samples or tokens over the batch; 0: not stated, or
    none was taken.

    PerfgridError for counts that are no whole number of steps.
    """
    for name in (*STEPS, *COUNTS):
        begin = first.get(name, first.get(f"first_{name}"))
        if last.get(name) is None or begin is None:
            continue
        grown = number(last[name], f"{where}: {name}") - number(begin, f"{where}: {name} of the block's begin")
        if grown == 0 and "epoch_count" in first:  # both ends state where the block begins
            name, grown = "epoch_count", number(first["epoch_count"], f"{where}: epoch_count of the block's begin")
        if amount(grown, f"{where}: the growth of {name} in a block", zero=True) == 0:
            return 0.0
        own = 1 if name in STEPS else batch
        sizes = (own,) if name == SAMPLES else (batch * length, own)  # tokens under any other name: GPT-3's
        for size in sizes:
            if size and grown % size == 0:
                return grown / size
        told = f"{name} grows by {grown:g} in a block, which is no whole number of steps"
        raise PerfgridError(f"{where}: {told} of {batch} sequences or {batch * length} tokens")
    return 0.0
