"""Records of the log of a training run: the time of its steps, and the memory that its allocator reserved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .measured import Measured
from .setup import Setup, fields, identity


@dataclass(frozen=True)
class Found:
    """A measured value in SI, as printed (quantity, value, unit), the lines that state it, and how."""

    value: float
    printed: tuple[str, float, str]
    lines: tuple[int, int]
    note: str
    derivation: str | None = None
    quartiles: tuple[float, float] | None = None


def log_records(
    setup: Setup, measured: Measured, tool: str, step: Found, reserved: Found | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The fields of a record for each value, by the line that ends it. PerfgridError where the job is not stated."""
    design = setup.design("training")
    named = identity(measured.path)
    rows = [("training", "step_time", named["id"], step)]
    rows += [("memory", "allocator_memory", f"{named['id']}-reserved", reserved)] if reserved else []
    for kind, quantity, name, found in rows:
        first, last = found.lines
        place = f"lines {first} to {last}" if first != last else f"line {last}"
        about = {"source": {"title": f"log of {tool}, {measured.path.name}", "where": place, "url": None}}
        about |= {"note": found.note, "derivation": found.derivation}
        about |= {"quartiles": sorted(found.quartiles)} if found.quartiles else {}
        own = named | {"id": name}
        yield last, fields(setup, kind, quantity, found.value, found.printed, **design, **own, **about)
