"""The verdict that ends ``perfgrid read-job``, on the screen and as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from math import isfinite
from typing import Any

from perfgrid.jobs.verdict import Held, Verdict
from perfgrid.printing.console import out
from perfgrid.printing.tables import print_table
from perfgrid.text.numbers import column, number

WORDS = {  # of a quantity that a job reaches: its row, its unit
    "step_time": ("time per step", "s"),
    "tokens_per_second": ("tokens per second", "1"),
    "largest_request_rate": ("largest request rate", "1/s"),
    "output_tokens_per_second": ("output tokens per second", "1"),
    "time_to_first_token": ("time to first token", "s"),
    "time_per_output_token": ("time per output token", "s"),
}
NO_DEVICE = "Verdict: name the device to learn whether it fits and how fast it is, such as --on h100-sxm-80gb"


def print_verdict(found: Verdict) -> None:
    """Whether a job fits or starts, what its devices hold, and what it reaches with intervals."""
    out.print()
    for held in found.held:
        name = f"{held.pool}: " if held.pool else ""
        print_table(["verdict", f"{name}{held.devices:,} x {found.device}"], list(_held(held)), prose=["verdict"])
    rows = list(_reached(found))
    if rows:
        if found.held:
            out.print()
        headers = ["under the load", ""] if found.held else ["verdict", f"{found.devices:,} x {found.device}"]
        print_table(headers, rows, names=False)
    if found.lacking:
        subject = "Throughput and latencies" if found.held else "Verdict"
        out.print(f"{subject}: {found.lacking}")
    for note in found.notes:
        out.print(f"Note: {note}")
    if found.uncounted:
        out.print(f"Not counted in this verdict: {', '.join(found.uncounted)}")


def _held(held: Held) -> Iterator[tuple[str, str]]:
    """Rows about what a server holds."""
    size = "byte"
    by = number(abs(held.margin), size)
    why_not = held.why_not[0] if held.why_not else f"short by {by} a device"
    yield "starts", f"yes, {by} a device left" if held.starts else f"no: {why_not}"
    yield "parameters", number(held.parameters, "1")
    counted = f", of which the driver counts {number(held.counted, size)}" if held.counted < held.capacity else ""
    yield "weights", f"{number(held.weights, size)} of {number(held.capacity, size)} a device{counted}"
    yield "working space", f"{number(held.working, size)} a device, with what the software reserves"
    yield "engine's rule", held.rule
    yield "cache", f"{number(held.cache, size)} a device, {held.cache_tokens:,} tokens a replica"
    of = f" of {held.limit:,}" if held.limit else ""
    whose = "" if held.stated else " of the model" if held.limit else "; the limit of the model is not known"
    yield "longest context", f"{held.context:,}{of} tokens{whose}"
    if held.limit:
        on = f" on {held.replicas:,} replicas" if held.replicas > 1 else ""
        yield "sequences at full length", f"{held.sequences:,}{on}"


def _reached(found: Verdict) -> Iterator[tuple[str, str]]:
    """Rows about a job under its load, or a training job."""
    if found.fits is None:
        return
    if found.parameters is not None and not found.held:
        yield "parameters", number(found.parameters, "1")
    yield "fits", "yes" if found.fits else f"no: {found.why_not[0]}"
    if found.memory is not None and found.capacity is not None:
        short = found.memory - found.capacity
        over = f", short by {number(short, 'byte')}" if short > 0 else ""
        ends = [number(end, "byte") for end in found.memory_interval or () if isfinite(end)]
        within = f" ({' to '.join(ends)})" if ends else ""
        yield "memory", f"{number(found.memory, 'byte')}{within} of {number(found.capacity, 'byte')} a device{over}"
    for name, ends in (found.reached or {}).items():
        word, unit = WORDS[name]
        known = [end for end in ends if isfinite(end)]
        unit, texts = column(known, unit)
        value, *others = (text.strip() for text in texts)
        within = f" ({' to '.join(others)})" if others else ""
        yield word, f"{value}{within} {unit}".rstrip()


def verdict_data(found: Verdict) -> dict[str, Any]:
    """A verdict as a JSON object: bytes, seconds, tokens; intervals hold 90 of 100 measurements."""
    reached = {
        name: {"value": value, "interval": ends if all(map(isfinite, ends)) else None}
        for name, (value, *ends) in (found.reached or {}).items()
    }
    return asdict(found) | {"reached": reached or None}
