"""Logs of torchtitan: ``step: 10 loss: ... memory: 44.84GiB(47.19%) tps: 5,615 tflops: 325.20 mfu: 32.88%``.

Tokens per second are those of one device. All ranks may log; a step is the median over them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.catalog.numerals import amount, count
from perfgrid.engine.errors import PerfgridError

from .measured import Measured, device_called, last_run, lines_of, steady
from .setup import Setup, setup_of
from .steps import Found, log_records
from .throughput import step_time

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
STEP = re.compile(r"(?<!validate )step:\s*(\S+)\s.*?(?:memory:\s*(\S+?)\s*GiB.*?)?(?:tps|wps):\s*(\S*)")
MESH = re.compile(r"device mesh with \[([^\]]*)\],\s*\[([^\]]*)\]")
BATCH = re.compile(
    r"local batch size:? ([^\s,]+)[^,]*, global batch size:? ([^\s,]+)"
    r"(?:[^,]*, gradient accumulation steps:? [^\s,]+)?[^,]*, sequence length:? ([^\s,]+)"
)
PARALLELISM = re.compile(r"device mesh with parallelism:((?:,?\s*\w+=[^\s,]+)+)")
RANK = re.compile(r"\[?(\w*\d+)\]?:")
MODEL = re.compile(r"(?:Building|Model) (llama3|llama4|deepseek_v3|qwen3)[ _]([\w.-]+)", re.I)
DEVICE = re.compile(r"(?:GPU|CUDA|XPU|device) capacity: (.+?)(?: \(\d+\))? with (\S+?)\s*GiB", re.I)
GB = 2**30 / 1e9
SIZES = ("microbatch", "global_batch", "sequence_length")  # of a line of batch sizes
LAYOUT = ("tp", "pp", "cp")
SPLIT = {"dp_shard_mod_ep", "dp_shard_in_ep"}  # axes of a mesh with experts
REPLICAS = ("dp", "fsdp", "dp_replicate", "dp_shard", *sorted(SPLIT))
EXPERTS = ("ep", "etp")  # ranks that other axes hold already
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
    logged = [_Line.of(i, found, RANK.match(line), where) for i, line in lines if (found := STEP.search(line))]
    ended = last_run((line.line, line.step, line.rank) for line in logged)
    logged = [line for line in logged if line.line > ended]
    steps: dict[int, list[float]] = {}
    for line in logged:
        steps.setdefault(line.step, []).append(line.tokens)
    setup = setup_of(measured, catalog, record)
    _state(setup, lines, where)
    rates = {number: float(np.median(values)) for number, values in sorted(steps.items())}
    found = steady(list(rates), list(rates.values()), where)
    times = [step_time(setup, "tokens_per_second", rate, per_device=True) for rate in (found.median, *found.quartiles)]
    setup.usual_name("software", "torchtitan")
    (seconds, how), (low, _), (high, _) = times
    place = (logged[0].line, logged[-1].line)
    printed = ("tokens per second of a device", found.median, "1/s")
    step = Found(seconds, printed, place, found.words("logged steps"), how, (low, high))
    memory = [line.memory for line in logged if line.memory is not None]
    reserved = None
    if memory:
        note = f"largest of {len(memory)} lines of steps"
        reserved = Found(max(memory) * 2**30, ("allocator_memory", max(memory), "GiB"), place, note)
    yield from log_records(setup, measured, "torchtitan", step, reserved)


@dataclass(frozen=True)
class _Line:
    """A line of a step: its number, the step, the rank that logs it, tokens per second of a device, memory in GiB."""

    line: int
    step: int
    rank: str
    tokens: float
    memory: float | None

    @classmethod
    def of(cls, line: int, found: re.Match[str], rank: re.Match[str] | None, where: str) -> _Line:
        """The numbers of a line. PerfgridError where one of them is none."""
        place = f"{where}:{line}"
        memory = amount(found[2], f"{place}: memory") if found[2] else None
        step, tokens = count(found[1], f"{place}: step", zero=True), amount(found[3], f"{place}: tps")
        return cls(line, step, rank[1] if rank else "", tokens, memory)


def _last(pattern: re.Pattern[str], lines: list[tuple[int, str]], where: str) -> tuple[str, tuple[str, ...]]:
    """The place and the groups of the last line that fits a pattern; no groups where none does."""
    fitting = ((i, found) for i, line in reversed(lines) if (found := pattern.search(line)))
    return next(((f"{where}:{i}", found.groups()) for i, found in fitting), ("", ()))


def _state(setup: Setup, lines: list[tuple[int, str]], where: str) -> None:
    """Take in what the lines before the steps of the last run say of model, devices, mesh and batch."""
    _, model = _last(MODEL, lines, where)
    if model:
        setup.state({"model": FLAVORS.get((model[0].lower(), model[1].lower()))}, "the log")
    place, device = _last(DEVICE, lines, where)
    if device:
        size = amount(device[1], f"{place}: memory of the device")
        setup.state({"device": device_called(device[0].strip(), size * GB)}, "the log")
    meshes = [mesh for i, line in lines if (mesh := _mesh(line, f"{where}:{i}"))]
    if meshes:
        sizes = {_devices(mesh): None for mesh in meshes}
        if len(sizes) > 1:
            told = " and ".join(map(str, sizes))
            raise PerfgridError(f"{where}: runs of several world sizes ({told}): give a log of each")
        _state_mesh(setup, meshes[-1], where)
    place, sizes = _last(BATCH, lines, where)
    if sizes:
        stated = {name: count(size, f"{place}: {name}") for name, size in zip(SIZES, sizes, strict=True)}
        setup.state({n: v for n, v in stated.items() if n != "microbatch" or setup.values.get("pp", 1) == 1}, "the log")


def _mesh(line: str, place: str) -> dict[str, int]:
    """Sizes of the axes of a mesh; empty for a line that states none. PerfgridError for a size that is none."""
    if found := MESH.search(line):
        names, sizes = re.findall(r"\w+", found[1]), found[2].split(",")
        if len(names) != len(sizes):
            raise PerfgridError(f"{place}: a mesh of {len(names)} axes has {len(sizes)} sizes")
        pairs = list(zip(names, sizes, strict=True))
    else:
        found = PARALLELISM.search(line)
        pairs = re.findall(r"(\w+)=([^\s,]+)", found[1]) if found else []
    return {name: count(size, f"{place}: {name} of the mesh") for name, size in pairs}


def _devices(mesh: dict[str, int]) -> int:
    return math.prod(size for name, size in mesh.items() if name not in EXPERTS)


def _state_mesh(setup: Setup, mesh: dict[str, int], where: str) -> None:
    """Take in the layout of a mesh. Axes ``dp_shard_mod_ep`` and ``dp_shard_in_ep`` together are ``dp_shard``."""
    for name, size in mesh.items():
        if name not in (*LAYOUT, *REPLICAS, *EXPERTS) and size > 1:
            known = ", ".join((*LAYOUT, *REPLICAS, *EXPERTS))
            raise PerfgridError(f"{where}: unknown axis {name} of size {size} in the mesh: known are {known}")
    layout = {name: mesh.get(name, 1) for name in LAYOUT}
    dp = math.prod(mesh.get(name, 1) for name in REPLICAS)
    experts = {name: mesh[name] for name in EXPERTS if name in mesh}
    setup.state(layout | {"dp": dp, "devices": _devices(mesh)}, "the mesh in the log")
    if SPLIT & mesh.keys():  # ranks of experts are those inside the split, of cp, and of tp unless it cuts experts
        inside = mesh.get("dp_shard_in_ep", 1) * layout["cp"]
        cut = layout["tp"] if setup.values.get("ep") == inside else 1
        setup.usual("etp", cut)
        experts["ep"] = inside * (1 if setup.values["etp"] == layout["tp"] else layout["tp"])
    setup.state({name: size for name, size in experts.items() if max(experts.values()) > 1}, "the mesh in the log")
    setup.usual("zero", 3)
