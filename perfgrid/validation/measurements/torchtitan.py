"""Logs of torchtitan: ``step: 10 loss: ... memory: 44.84GiB(47.19%) tps: 5,615 tflops: 325.20 mfu: 32.88%``.

Tokens per second are those of one device. All ranks may log; a step is the median over them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError

from .measured import Measured, device_called, lines_of, steady
from .setup import Setup, fields, identity, setup_of
from .throughput import step_time

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
STEP = re.compile(r"step:\s*(\d+)\s.*?(?:memory:\s*([\d.]+)\s*GiB.*?)?(?:tps|wps):\s*([\d,]+(?:\.\d+)?)")
MESH = re.compile(r"device mesh with \[([^\]]*)\],\s*\[([^\]]*)\]")
BATCH = re.compile(
    r"local batch size:? (\d+)[^,]*, global batch size:? (\d+)(?:[^,]*, gradient accumulation steps:? \d+)?"
    r"[^,]*, sequence length:? (\d+)"
)
MODEL = re.compile(r"(?:Building|Model) (llama3|llama4|deepseek_v3|qwen3)[ _]([\w.-]+)", re.I)
DEVICE = re.compile(r"(?:GPU|CUDA|XPU|device) capacity: (.+?)(?: \(\d+\))? with ([\d.]+)\s*GiB", re.I)
GB = 2**30 / 1e9
DEGREES = {"tp": "tp", "pp": "pp", "cp": "cp", "dp_shard": "shard", "dp_replicate": "replicate", "dp": "shard"}
DEGREES |= {"fsdp": "shard"}
FLAVORS = {
    ("llama3", "8b"): "llama-3.1-8b",
    ("llama3", "70b"): "llama-3.1-70b",
    ("llama3", "405b"): "llama-3.1-405b",
    ("deepseek_v3", "671b"): "deepseek-v3",
    ("qwen3", "32b"): "qwen3-32b",
    ("qwen3", "14b"): "qwen3-14b",
    ("qwen3", "8b"): "qwen3-8b",
    ("qwen3", "30b-a3b"): "qwen3-30b-a3b",
}


def is_torchtitan(text: str) -> bool:
    """Whether a text has lines of torchtitan's steps."""
    return "step:" in text and any(STEP.search(COLOUR.sub("", line)) for _, line in lines_of(text))


def torchtitan_records(
    measured: Measured, text: str, catalog: Catalog, record: type[BaseModel]
) -> Iterator[tuple[int, Any]]:
    """The step time of a log, and the memory that its allocator reserved. PerfgridError for a log without a step."""
    where = str(measured.path)
    lines = [(i, COLOUR.sub("", line)) for i, line in lines_of(text)]
    steps: dict[int, list[float]] = {}
    memory: list[float] = []
    places: list[int] = []
    for i, line in lines:
        if found := STEP.search(line):
            steps.setdefault(int(found[1]), []).append(float(found[3].replace(",", "")))
            places.append(i)
            memory += [float(found[2])] if found[2] else []
    setup = setup_of(measured, catalog, record)
    _state(setup, [line for _, line in lines], where)
    rates = {number: float(np.median(values)) for number, values in sorted(steps.items())}
    found = steady(list(rates), list(rates.values()), where)
    times = [step_time(setup, "tokens_per_second", rate, per_device=True) for rate in (found.median, *found.quartiles)]
    setup.usual_name("software", "torchtitan")
    design = setup.design("training")
    source = {
        "title": f"log of torchtitan, {measured.path.name}",
        "where": f"lines {places[0]} to {places[-1]}",
        "url": None,
    }
    more = {"source": source, "note": found.told("logged steps")}
    named = identity(measured.path)
    quartiles = sorted(seconds for seconds, _ in times[1:])
    printed = ("tokens per second of a device", found.median, "1/s")
    yield (
        places[-1],
        fields(
            setup,
            "training",
            "step_time",
            times[0][0],
            printed,
            **design,
            **named,
            **more,
            derivation=times[0][1],
            quartiles=quartiles,
        ),
    )
    if memory:
        named["id"] += "-reserved"
        printed = ("allocator_memory", max(memory), "GiB")
        yield (
            places[-1],
            fields(
                setup,
                "memory",
                "allocator_memory",
                max(memory) * 2**30,
                printed,
                **design,
                **named,
                **more,
                derivation=None,
            ),
        )


def _first(pattern: re.Pattern[str], lines: list[str]) -> re.Match[str] | None:
    return next((found for line in lines if (found := pattern.search(line))), None)


def _state(setup: Setup, lines: list[str], where: str) -> None:
    """Take in what the lines before the steps say of model, devices, mesh and batch."""
    if (found := _first(MODEL, lines)) and setup.model is None:
        name = FLAVORS.get((found[1].lower(), found[2].lower()))
        setup.state({"model": name}, "the log")
    if (found := _first(DEVICE, lines)) and "device" not in setup.names:
        setup.state({"device": device_called(found[1].strip(), float(found[2]) * GB)}, "the log")
    meshes = {(m[1], m[2]) for line in lines if (m := MESH.search(line))}
    if meshes:
        degrees: dict[str, int] = {}
        for names, sizes in meshes:
            stated = dict(zip(re.findall(r"\w+", names), map(int, re.findall(r"\d+", sizes)), strict=False))
            for name, size in stated.items():
                if degrees.setdefault(name, size) != size:
                    raise PerfgridError(
                        f"{where}: runs of several world sizes ({name} {degrees[name]} and {size}): give a log of each"
                    )
        of = {DEGREES[n]: size for n, size in degrees.items() if n in DEGREES}
        dp = of.pop("shard", 1) * of.pop("replicate", 1)
        of |= {n: 1 for n in ("tp", "pp", "cp") if n not in of}
        setup.state(of | {"dp": dp, "devices": dp * of["tp"] * of["pp"] * of["cp"]}, "the mesh in the log")
        setup.usual("zero", 3)
    if found := _first(BATCH, lines):
        stated = dict(zip(("microbatch", "global_batch", "sequence_length"), map(int, found.groups()), strict=True))
        setup.state({n: v for n, v in stated.items() if n != "microbatch" or setup.values.get("pp", 1) == 1}, "the log")
