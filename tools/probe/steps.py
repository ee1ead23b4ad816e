# pyright: reportMissingImports=false
"""Layers and training steps: what the host takes, what a step takes, and its kernels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from .measure import DEVICE, Sensors, normal, synchronize
from .model import Layer, Model, training


def kernels_of(work: Callable[[], object]) -> int:
    """Kernels that one call starts."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        synchronize()
    return sum(1 for event in found.events() if event.device_type.name == "CUDA")


def layers(sensors: Sensors) -> Iterator[dict]:
    """One layer with few tokens: the host sets its pace."""
    for hidden, heads, kv_heads, ffn in ((2048, 16, 16, 5632), (4096, 32, 8, 14336)):
        layer = Layer(hidden, heads, kv_heads, ffn).to(DEVICE, torch.bfloat16)
        turn = Model.turn(Model(0, hidden, heads, kv_heads, ffn, 8).to(DEVICE), 16, torch.bfloat16)
        x = normal(1, 16, hidden).requires_grad_()

        def forward(layer=layer, x=x, turn=turn) -> torch.Tensor:
            return layer(x, turn)

        def both(forward=forward) -> None:
            forward().sum().backward()

        for name, work in (("forward", forward), ("forward and backward", both)):
            for _ in range(5):
                work()
            synchronize()
            start = time.perf_counter()
            for _ in range(50):
                work()
            synchronize()
            seconds = (time.perf_counter() - start) / 50
            yield {"what": name, "hidden": hidden, "tokens": 16, "time": seconds, "kernels": kernels_of(work)}


STEPS = (  # layers, hidden, heads, kv heads, ffn, vocabulary, length, sequences, compiled
    (16, 2048, 16, 16, 5632, 32000, 2048, 4, False),
    (16, 2048, 16, 16, 5632, 32000, 2048, 1, False),
    (24, 1024, 16, 16, 4096, 32000, 1024, 1, False),
    (24, 1024, 16, 16, 4096, 32000, 1024, 16, False),
    (8, 4096, 32, 8, 14336, 128256, 4096, 1, False),
    (16, 2048, 16, 16, 5632, 32000, 2048, 4, True),
)


def steps(sensors: Sensors) -> Iterator[dict]:
    """Training steps that differ only in the number of microbatches."""
    for *shape, length, sequences, compiled in STEPS:
        step = training(shape, length, sequences, compiled)
        names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary")
        try:
            if DEVICE == "cuda":
                torch.cuda.reset_peak_memory_stats()
            for microbatches in (1, 2, 4, 8):
                step(microbatches)
                step(microbatches)
                synchronize()
                count = max(3, min(10, 16 // microbatches))
                with sensors.watching():
                    start = time.perf_counter()
                    each = []
                    for _ in range(count):
                        begin = time.perf_counter()
                        step(microbatches)
                        each.append(time.perf_counter() - begin)
                    end = time.perf_counter()
                peak = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0
                yield {
                    **dict(zip(names, shape, strict=True)),
                    "length": length,
                    "sequences": sequences,
                    "compiled": compiled,
                    "microbatches": microbatches,
                    "time": statistics.median(each),
                    "shortest": min(each),
                    "peak_memory": peak,
                    **sensors.means((start + end) / 2, end),
                }
        except Exception as mistake:
            yield {"hidden": shape[1], "compiled": compiled, "error": f"{type(mistake).__name__}: {mistake}"[:300]}
        del step
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


def anatomy(sensors: Sensors) -> Iterator[dict]:
    """Device time of a step with two microbatches by kernel, from the profiler."""
    for *shape, length, sequences, compiled in STEPS:
        step = training(shape, length, sequences, compiled)
        for _ in range(3):
            step(2)
        synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            for _ in range(3):
                step(2)
            synchronize()
        kernels: dict[str, list[float]] = {}
        for event in found.events():
            if event.device_type.name == "CUDA":
                kernels.setdefault(event.name[:120], []).append(event.time_range.elapsed_us() / 1e6)
        about = {"hidden": shape[1], "sequences": sequences, "compiled": compiled, "microbatches": 2}
        for name, times in sorted(kernels.items(), key=lambda item: -sum(item[1]))[:60]:
            yield {**about, "kernel": name, "count": len(times) / 3, "time": sum(times) / 3}
        rest = sum(map(sum, sorted(kernels.values(), key=lambda times: -sum(times))[60:]))
        yield {**about, "kernel": "others", "time": rest / 3}
        del step
        torch.cuda.empty_cache()
