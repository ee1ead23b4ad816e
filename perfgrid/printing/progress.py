"""Progress on standard error."""

from __future__ import annotations

import time
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from perfgrid.printing.console import err
from perfgrid.text.numbers import number


class Reporter:
    """Progress on standard error: a bar on a terminal, a line every ten seconds otherwise; measures the time."""

    def __init__(self, points: int):
        self.points, self.seconds = points, 0.0  # of the whole, when it is over
        self.begun = self.last = self.start = time.monotonic()
        self.phase, self.first = "", 0
        self.bar = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=err,
            transient=False,
        )
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Reporter:
        if err.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self.begun
        if err.is_terminal:
            self.bar.stop()

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Report how far a phase is."""
        if phase != self.phase:
            self.phase, self.start, self.first = phase, time.monotonic(), done  # a resumed run does not begin at 1
        names = {"compile": "compiling", "evaluate": "evaluating", "verify": "verifying"}
        rate, scale = "", 1.0
        if phase == "evaluate":
            scale = self.points / total
            seconds = max(time.monotonic() - self.start, 1e-9)
            if done > self.first:
                speed = (done - self.first) / seconds
                left = "" if err.is_terminal else f", {number((total - done) / speed, 's')} left"
                rate = f"{number(speed * scale, 'points/s')}{left}"
        if err.is_terminal:
            if phase not in self.tasks:
                self.tasks[phase] = self.bar.add_task(names[phase], total=round(total * scale), rate="")
            self.bar.update(self.tasks[phase], completed=round(done * scale), rate=rate)
        elif time.monotonic() - self.last > 10:
            self.last = time.monotonic()
            err.print(f"{names[phase]} {done * scale:,.0f} of {total * scale:,.0f} {rate}")
