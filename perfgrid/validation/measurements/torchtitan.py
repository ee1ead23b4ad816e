"""Logs of torchtitan: ``step: 10 loss: ... memory: 44.84GiB(47.19%) tps: 5,615 tflops: 325.20 mfu: 32.88%``.

Tokens per second are those of one device. All ranks may log; a step is the median over them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError

from .measured import Measured, device_called, last_run, lines_of, steady
from .setup import Setup, setup_of
from .steps import Found, log_records
from .throughput import step_time

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
STEP = re.compile(r"(?<!validate )step:\s*(\d+)\s.*?(?:memory:\s*([\d.]+)\s*GiB.*?)?(?:tps|wps):\s*([\d,]+(?:\.\d+)?)")
MESH = re.compile(r"device mesh with \[([^\]]*)\],\s*\[([^\]]*)\]")
BATCH = re.compile(
    r"local batch size:? (\d+)[^,]*, global batch size:? (\d+)(?:[^,]*, gradient accumulation steps:? \d+)?"
    r"[^,]*, sequence length:? (\d+)"
)
PARALLELISM = re.compile(r"device mesh with parallelism:((?:,?\s*\w+=\d+)+)")
RANK = re.compile(r"\[?(\w*\d+)\]?:")
MODEL = re.compile(r"(?:Building|Model) (llama3|llama4|deepseek_v3|qwen3)[ _]([\w.-]+)", re.I)
DEVICE = re.compile(r"(?:GPU|CUDA|XPU|device) capacity: (.+?)(?: \(\d+\))? with ([\d.]+)\s*GiB", re.I)
GB = 2**30 / 1e9
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
    logged = [(i, found, RANK.match(line)) for i, line in lines if (found := STEP.search(line))]
    ended = last_run((i, int(found[1]), rank[1] if rank else "") for i, found, rank in logged)
    logged = [(i, found) for i, found, _ in logged if i > ended]
    steps: dict[int, list[float]] = {}
    for _, found in logged:
        steps.setdefault(int(found[1]), []).append(float(found[3].replace(",", "")))
    setup = setup_of(measured, catalog, record)
    _state(setup, [line for _, line in lines], where)
    rates = {number: float(np.median(values)) for number, values in sorted(steps.items())}
    found = steady(list(rates), list(rates.values()), where)
    times = [step_time(setup, "tokens_per_second", rate, per_device=True) for rate in (found.median, *found.quartiles)]
    setup.usual_name("software", "torchtitan")
    (seconds, how), (low, _), (high, _) = times
    place = (logged[0][0], logged[-1][0])
    printed = ("tokens per second of a device", found.median, "1/s")
    step = Found(seconds, printed, place, found.words("logged steps"), how, (low, high))
    memory = [float(found[2]) for _, found in logged if found[2]]
    reserved = None
    if memory:
        note = f"largest of {len(memory)} lines of steps"
        reserved = Found(max(memory) * 2**30, ("allocator_memory", max(memory), "GiB"), place, note)
    yield from log_records(setup, measured, "torchtitan", step, reserved)


def _last(pattern: re.Pattern[str], lines: list[str]) -> re.Match[str] | None:
    return next((found for line in reversed(lines) if (found := pattern.search(line))), None)


def _state(setup: Setup, lines: list[str], where: str) -> None:
    """Take in what the lines before the steps of the last run say of model, devices, mesh and batch."""
    if found := _last(MODEL, lines):
        setup.state({"model": FLAVORS.get((found[1].lower(), found[2].lower()))}, "the log")
    if found := _last(DEVICE, lines):
        setup.state({"device": device_called(found[1].strip(), float(found[2]) * GB)}, "the log")
    meshes = [mesh for line in lines if (mesh := _mesh(line))]
    if meshes:
        sizes = {_devices(mesh): None for mesh in meshes}
        if len(sizes) > 1:
            told = " and ".join(map(str, sizes))
            raise PerfgridError(f"{where}: runs of several world sizes ({told}): give a log of each")
        _state_mesh(setup, meshes[-1], where)
    if found := _last(BATCH, lines):
        stated = dict(zip(("microbatch", "global_batch", "sequence_length"), map(int, found.groups()), strict=True))
        setup.state({n: v for n, v in stated.items() if n != "microbatch" or setup.values.get("pp", 1) == 1}, "the log")


def _mesh(line: str) -> dict[str, int]:
    """Sizes of the axes of a mesh; empty for a line that states none."""
    if found := MESH.search(line):
        return dict(zip(re.findall(r"\w+", found[1]), map(int, re.findall(r"\d+", found[2])), strict=False))
    found = PARALLELISM.search(line)
    return {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", found[1])} if found else {}


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
