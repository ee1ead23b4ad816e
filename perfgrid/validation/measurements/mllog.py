"""Logs of MLPerf: lines ``:::MLLOG {...}`` with batch, length of sequences, and times or throughput of blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError

from .measured import Measured, steady
from .setup import fields, identity, setup_of

MARK = ":::MLLOG"
STATED = {  # keys that state the job
    "global_batch_size": "global_batch",
    "max_sequence_length": "sequence_length",
    "sequence_length": "sequence_length",
}
TIMES = ("train_step_time", "step_time")  # seconds among the tracked statistics
RATE = "throughput"  # samples per second
COUNTS = ("samples_count", "epoch_num", "first_epoch_num")  # samples at the beginning or the end of a block
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
            setup.state({name: int(event["value"])}, f"{event['key']} in line {line}")
    batch = setup.needed("global_batch")
    samples, how = _step_times([event for _, event in events], batch)
    found = steady(range(1, len(samples) + 1), samples, where)
    design = setup.design("training")
    source = {
        "title": f"log of MLPerf, {measured.path.name}",
        "where": f"lines {events[0][0]} to {events[-1][0]}",
        "url": None,
    }
    printed = ("step_time", found.median, "s")
    yield (
        events[-1][0],
        fields(
            setup,
            "training",
            "step_time",
            found.median,
            printed,
            **design,
            **identity(measured.path),
            source=source,
            note=found.told(how),
            derivation=how,
            quartiles=list(found.quartiles),
        ),
    )


def _events(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        _, mark, rest = line.partition(MARK)
        if mark:
            try:
                event = json.loads(rest[: rest.rfind("}") + 1])
            except ValueError:
                raise PerfgridError(f"{where}:{number}: a line of MLLOG that is cut off or no JSON") from None
            if isinstance(event, dict) and "key" in event:
                yield number, {"metadata": {}, **event}


def _step_times(events: list[dict[str, Any]], batch: int) -> tuple[list[float], str]:
    """Seconds of steps, and what states them: the first of step times, throughputs and blocks that a log has."""
    tracked = [e["value"] for e in events if e["key"] == "tracked_stats" and isinstance(e.get("value"), dict)]
    for name in TIMES:
        if times := [float(value[name]) for value in tracked if name in value]:
            return times, f"{name} of tracked_stats"
    if rates := [float(value[RATE]) for value in tracked if value.get(RATE)]:
        return [batch / rate for rate in rates], "global batch / throughput of tracked_stats"
    found, begun = [], None
    for event in events:
        if event["key"] == "block_start":
            begun = event
        elif event["key"] == "block_stop" and begun is not None:
            seconds, steps = (event["time_ms"] - begun["time_ms"]) / 1e3, _steps(begun, event, batch)
            if steps > 0 and seconds > 0:
                found.append(seconds / steps)
            begun = None
    return found, "blocks, each over its steps"


def _steps(begun: dict[str, Any], ended: dict[str, Any], batch: int) -> float:
    """Steps between two events: by the numbers of steps, else by the samples over the batch."""
    first, last = begun["metadata"], ended["metadata"]
    for names, size in ((STEPS, 1), (COUNTS, batch)):
        for name in names:
            if name in last:
                start = first.get(name, first.get("first_" + name, 0)) or 0
                return (float(last[name]) - float(start)) / size
    return 0.0
