"""Every kernel of one design: how often it runs, how long it takes in each phase and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.explain import index_of
from perfgrid.engine.resolver import replay, resolve
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
)
ONCE = {"logits": "head", "loss": "head", "embedding": "embedding"}  # kernels outside the layers


@dataclass(frozen=True)
class Kernel:
    """One kernel: its part of the model, runs per layer (or per part), seconds and limiting resource by phase."""

    name: str
    part: str
    runs: float
    time: Mapping[str, float]
    bound_by: Mapping[str, str]


def kernels(
    what: Study | xr.Dataset, at: Mapping[str, Any], formulas: Iterable[Callable[..., Any]] = ()
) -> tuple[Kernel, ...]:
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
    graph = resolve(registry, wanted, space.names(), choices, space.label_quantities())
    index = index_of(space, at)
    values = replay(graph, {name: space.at(name, index) for name in graph.leaves})
    found = []
    for table, axis, counts in TABLES:
        runs = sum(values[c] for c in counts) if counts else 1.0
        if table == "flash_time":
            runs = 1.0 - values["unfused"]
        for label in INNER.labels[axis] if axis else (table.removesuffix("_time"),):
            own = _pick(values[table], axis, label)
            count = float(np.squeeze(_pick(runs, axis, label)))
            part = ONCE.get(label, "layer")
            if part != "layer":
                count = 1.0
            if count and own.any():
                found.append(_kernel(label, part, count, own))
    return tuple(found)


def _pick(value: Any, axis: str, label: str) -> np.ndarray:
    """The row of a label of an inner axis, by resource and phase where it lies on them."""
    value = np.asarray(value) if not axis else np.asarray(INNER.total(value * only(axis, label), axis))
    return value


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
