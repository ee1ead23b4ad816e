# pyright: reportMissingImports=false
"""Timing work on a device, with its clock and power beside it."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

REST = 0.25  # seconds without work before a measurement: clock and power recover
SUSTAINED = 0.8  # seconds of work, of which the second half counts
BURST = 0.01
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Sensors:
    """Clock [Hz] and power [W] of the device while something runs, sampled every 10 ms."""

    def __init__(self):
        import pynvml

        pynvml.nvmlInit()
        self.nvml, self.handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        self.samples: list[tuple[float, float, float]] = []

    def limit(self) -> float:
        """The power limit [W]."""
        return self.nvml.nvmlDeviceGetPowerManagementLimit(self.handle) / 1e3

    def sample(self) -> None:
        """Read both once."""
        clock = self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM) * 1e6
        field = getattr(self.nvml, "NVML_FI_DEV_POWER_INSTANT", 186)
        try:
            value = self.nvml.nvmlDeviceGetFieldValues(self.handle, [field])[0]
            power = value.value.uiVal / 1e3
        except Exception:
            power = self.nvml.nvmlDeviceGetPowerUsage(self.handle) / 1e3
        self.samples.append((time.perf_counter(), clock, power))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Read both until the block ends."""
        self.samples, done = [], threading.Event()

        def watch() -> None:
            while not done.wait(0.01):
                self.sample()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def means(self, since: float, until: float) -> dict[str, float]:
        """Means between two times of the host; empty where nothing was read."""
        kept = [s for s in self.samples if since <= s[0] <= until]
        if not kept:
            return {}
        return {"clock": statistics.mean(s[1] for s in kept), "power": statistics.mean(s[2] for s in kept)}


class NoSensors(Sensors):
    """For a machine without NVML: nothing is read."""

    def __init__(self):
        self.samples = []

    def limit(self) -> float:
        """Not known."""
        return 0.0

    def sample(self) -> None:
        """Nothing."""


def synchronize() -> None:
    """Wait for the device."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], object], count: int) -> float:
    """Seconds of one call, of ``count`` calls in a row, by the device's clock."""
    if DEVICE != "cuda":
        start = time.perf_counter()
        for _ in range(count):
            work()
        return (time.perf_counter() - start) / count
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(count):
        work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3 / count


def alone_and_sustained(work: Callable[[], object], sensors: Sensors, sustained: float = SUSTAINED) -> dict[str, float]:
    """Time of one call in a short burst after a rest, and under load for a while, with clock and power then."""
    for _ in range(3):
        work()
    synchronize()
    once = max(timed(work, 5), 1e-6)
    time.sleep(REST)
    burst = timed(work, max(5, int(BURST / once)))
    found = {"alone": burst}
    if sustained:
        part = max(5, int(sustained / 8 / burst))
        with sensors.watching():
            for _ in range(4):
                timed(work, part)
            start = time.perf_counter()
            times = [timed(work, part) for _ in range(4)]
            end = time.perf_counter()
        found |= {"sustained": statistics.median(times), **sensors.means(start, end)}
    return found


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Random operands: constant ones draw less power."""
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(dtype)
