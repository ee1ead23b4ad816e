"""Every kernel of one design: how often it runs, how long it takes in each phase and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.explain import Violated, index_of, point_of, replay_point, violated_at
from perfgrid.formulas import INNER
from perfgrid.formulas.axes import only
from perfgrid.run import restore
from perfgrid.study import Study

PHASES = INNER.labels["phase"]
# where a kernel's time lies, the inner axis that tells kernels apart, and how often each runs in a layer
TABLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("gemm_time", "gemm_kernel", ("layer_gemms",)),
    ("core_product_time", "attention_kernel", ("core_kernels",)),
    ("flash_time", "", ()),
    ("cast_time", "", ()),
    ("stream_time", "stream_kernel", ("layer_streams", "core_streams")),
    ("grouped_time", "grouped_gemm_kernel", ("layer_grouped_gemms",)),
    ("expert_stream_time", "expert_stream_kernel", ("layer_expert_streams",)),
    ("expert_cast_time", "", ("moe_share",)),
)
ONCE = {"norm": "head", "logits": "head", "loss": "head", "embedding": "embedding"}  # runs outside the layers


@dataclass(frozen=True)
class Kernel:
    """One kernel: its part of the model, runs per layer (or per part), seconds and limiting resource by phase."""

    name: str
    part: str
    runs: float
    time: Mapping[str, float]
    bound_by: Mapping[str, str]


@dataclass(frozen=True)
class KernelList:
    """The kernels of one design, its labels, and the constraints that it violates."""

    point: Mapping[str, Any]
    violated: tuple[Violated, ...]
    kernels: tuple[Kernel, ...]


def kernels(what: Study | xr.Dataset, at: Mapping[str, Any], formulas: Iterable[Callable[..., Any]] = ()) -> KernelList:
    """The kernels that one design of a study or result runs for a microbatch, in the order of the glossary.

    ``at`` names a label of every axis, as for `explain`; recomputation repeats forward phases. Raises PerfgridError for
    unknown axes or labels.
    """
    if isinstance(what, Study):
        space, registry, choices = what.space, what.registry, what.file.choices
        at = {axis: what.label(axis, label) for axis, label in at.items()}
    else:
        space, registry, choices = restore(what, formulas)
    wanted = [name for time, _, counts in TABLES for name in (time, *counts)] + ["unfused"]
    index = index_of(space, at)
    graph, values = replay_point(registry, space, wanted, index, choices)
    found = []
    for table, axis, counts in TABLES:
        runs = sum(values[c] for c in counts) if counts else 1.0
        if table == "flash_time":
            runs = 1.0 - values["unfused"]
        for label in INNER.labels[axis] if axis else (table.removesuffix("_time"),):
            time = _pick(values[table], axis, label)
            in_layer = float(np.squeeze(_pick(runs, axis, label)))
            for part, count in (("layer", in_layer), (ONCE.get(label, ""), 1.0)):
                if part and count and time.any():
                    found.append(_kernel(label, part, count, time))
    return KernelList(point_of(space, index), tuple(violated_at(graph, values)), tuple(found))


def _pick(value: Any, axis: str, label: str) -> np.ndarray:
    """The row of a label of an inner axis, by resource and phase where it lies on them."""
    return np.asarray(INNER.total(value * only(axis, label), axis) if axis else value)


def _kernel(name: str, part: str, runs: float, time: np.ndarray) -> Kernel:
    resources = INNER.labels["resource"]
    table = np.broadcast_to(np.squeeze(time), (len(resources), len(PHASES)))
    return Kernel(
        name,
        part,
        runs,
        {phase: float(t) for phase, t in zip(PHASES, table.sum(axis=0), strict=True)},
        {phase: resources[int(np.argmax(column))] for phase, column in zip(PHASES, table.T, strict=True)},
    )
