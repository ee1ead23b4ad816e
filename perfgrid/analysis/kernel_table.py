"""Every kernel of one design: how often it runs, how long it takes in each phase and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.explanation.derivation import Violated, violated_at
from perfgrid.engine.grid.replay import index_of, point_of, replay_point
from perfgrid.engine.grid.space import Space
from perfgrid.formulas import INNER
from perfgrid.formulas.axes import only, varying_kinds
from perfgrid.formulas.mixer_kinds import RECURRENT
from perfgrid.results.provenance import designs
from perfgrid.study.study import Study

from .best_design import best_design
from .iteration_times import IterationTimes, iteration_times

PHASES = INNER.labels["phase"]
PASSES = INNER.labels["pass"]
# where a kernel's time lies, the inner axis of kernels, and how often each runs in a layer
TABLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("gemm_time", "product", ("layer_gemms",)),
    ("core_product_time", "attention_kernel", ("core_kernels",)),
    ("flash_time", "", ()),
    ("cast_time", "", ()),
    ("stream_time", "stream_kernel", ("layer_streams", "core_streams")),
    ("grouped_time", "expert_product", ("layer_grouped_gemms",)),
    ("expert_stream_time", "expert_stream_kernel", ("layer_expert_streams",)),
    ("expert_cast_time", "", ("kind_has_experts",)),
)
MIXER_TABLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (  # the same of models with recurrent layers
    ("mixer_recurrence_time", "mixer_kernel", ("mixer_share",)),
    ("mixer_stream_time", "", ("mixer_share",)),
)
OF_ATTENTION = ("core_product_time", "flash_time")  # which not every layer of such models has
PASS_TABLES: tuple[tuple[str, str, str], ...] = (  # the same of inference: time, axis, runs in a pass
    ("gemm_product_time", "product", "product_count"),
    ("expert_product_time", "expert_product", "moe_layers"),
    ("attention_time", "", "attention_layers"),
    ("mixers_time", "", "mixer_layers"),
    ("indexers_time", "", "index_layers"),
    ("serving_stream_time", "serving_stream", "serving_stream_count"),
)
OF_ALL_LAYERS = ("attention_time", "mixers_time", "indexers_time")  # stated for a whole pass
WAITS = {  # of a pass, between kernels, and what for; then all of it
    "tp_time": "communication",
    "exposed_exchange_time": "communication",
    "pipeline_transfer_time": "communication",
    "context_exchange_time": "communication",
    "late_launch_time": "host",
    "host_time": "host",
    "pass_time": "all",
}
ONCE = {"norm": "head", "logits": "head", "loss": "head", "embedding": "embedding"}  # runs outside the layers


@dataclass(frozen=True)
class Kernel:
    """One kernel: its part of the model, runs per layer (or per part), seconds and its largest resource by phase.

    Of serving, what a pass waits for between kernels follows, and the whole pass (part "wait", "total").
    """

    name: str
    part: str
    runs: float
    time: Mapping[str, float]
    bound_by: Mapping[str, str]


@dataclass(frozen=True)
class KernelList:
    """The kernels of one design, its labels, and the constraints that it violates; of serving, times of iterations."""

    point: Mapping[str, Any]
    violated: tuple[Violated, ...]
    kernels: tuple[Kernel, ...]
    surface: Callable[[], IterationTimes] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def iterations(self) -> IterationTimes | None:
        """T(b, c) of a serving engine, worked out when first asked for; None of training."""
        return self.surface() if self.surface else None


def kernels(
    what: Study | xr.Dataset, at: Mapping[str, Any] | None = None, formulas: Iterable[Callable[..., Any]] = ()
) -> KernelList:
    """The kernels that one design runs for a microbatch, or for a pass of inference.

    Parameters
    ----------
    what
        A study or a result.
    at
        Labels of axes or of coordinates such as ``devices``. Along axes left open it is the best feasible design, by
        ``[best]`` of the study or by step time.
    formulas
        The user's own formulas with which a result was made.

    Returns
    -------
    KernelList
        ``kernels`` (name, part, runs, and by phase ``time`` in seconds and its largest resource ``bound_by``), the
        ``point`` and the constraints ``violated`` there. Recomputation repeats forward phases. Of serving also
        ``iterations``: the time of an iteration by sequences that decode and by prompt tokens (`IterationTimes`).

    Raises
    ------
    PerfgridError
        For an unknown axis or label, and where no design is feasible.

    Examples
    --------
    >>> import perfgrid as pg
    >>> study = pg.Study.make(
    ...     outputs=["step_time"],
    ...     axes={
    ...         "model": ["llama-2-7b"],
    ...         "device": ["h100-sxm-80gb"],
    ...         "topology": ["rail-optimized"],
    ...         "parallelism": {"devices": [8], "tp": [1, 2], "pp": [1, 2]},
    ...     },
    ...     workload_parameters={"sequence_length": 2048, "global_batch": 64},
    ... )
    >>> found = pg.kernels(study, {"parallelism": "tp1.pp1.dp8"})
    >>> found.kernels[0].name, found.kernels[0].bound_by["forward"]
    ('qkv', 'arithmetic')
    """
    space, registry, choices, at = designs(what, best_design(what, at).labels, formulas)
    index, serving = index_of(space, at), "pass_time" in registry.formulas
    hybrid = not serving and _label(space, "mixer", index) in RECURRENT
    tables = (*TABLES, *MIXER_TABLES) if hybrid else TABLES
    training = [name for time, _, counts in tables for name in (time, *counts)] + ["unfused", "kind_layers"]
    training += ["attention_share"] if hybrid else []
    passes = [name for time, _, count in PASS_TABLES for name in (time, count)] + [
        *WAITS,
        "load_weight",
        "remaining_cores",
    ]
    graph, values = replay_point(registry, space, passes if serving else training, index, choices)
    found = _passes(values) if serving else _layers(values, tables)
    surface = partial(iteration_times, registry, space, index, choices) if serving else None
    return KernelList(point_of(space, index), tuple(violated_at(graph, values)), tuple(found), surface)


def _label(space: Space, name: str, index: tuple[int, ...]) -> str:
    """The label of a design that selects among formulas; of quantities that are none of the space it is empty."""
    labels = space.label_quantities().get(name)
    return str(labels[int(space.at(name, index))]) if labels else ""


def _layers(values: Mapping[str, Any], tables: Iterable[tuple[str, str, tuple[str, ...]]]) -> Iterator[Kernel]:
    """The kernels of a microbatch: those of a layer, or of one of each kind that the model has, and those run once."""
    axes = varying_kinds(values["kind_layers"])
    kinds = [dict(zip(axes, labels, strict=True)) for labels in product(*(INNER.labels[axis] for axis in axes))]
    parts = {" ".join((*kind.values(), "layer")): kind for kind in kinds}
    parts = {part: kind for part, kind in parts.items() if np.any(INNER.at(values["kind_layers"], **kind))}
    for table, axis, counts in tables:
        runs = sum(values[c] for c in counts) if counts else 1.0
        if table == "flash_time":
            runs = 1.0 - values["unfused"]
        if table in OF_ATTENTION:
            runs = runs * values.get("attention_share", 1.0)
        for label in INNER.labels[axis] if axis else (table.removesuffix("_time"),):
            times, counted = _pick(values[table], axis, label), _pick(runs, axis, label)
            for part, kind in parts.items():
                time, count = INNER.at(times, **kind), float(np.squeeze(INNER.at(counted, **kind)))
                if count and time.any():
                    yield _kernel(label, part, count, time)
            if label in ONCE and times.any():
                yield _kernel(label, ONCE[label], 1.0, times)


def _passes(values: Mapping[str, Any]) -> Iterator[Kernel]:
    """The kernels of a pass through all layers: a prefill, a decoding step.

    They take longer on the cores that an exchange beside them leaves.
    """
    weight = values["load_weight"] / values["remaining_cores"]
    for table, axis, count in PASS_TABLES:
        for label in INNER.labels[axis] if axis else (table.removesuffix("_time"),):
            every = INNER.total(values[table] * weight, "load")
            runs = np.ravel(_pick(values[count], axis, label))
            every = every / np.maximum(runs, 1.0) if table in OF_ALL_LAYERS else every
            counts = np.broadcast_to(runs, 2)
            time = _pick(every, axis, label) * INNER.table("pass", **dict(zip(PASSES, counts > 0, strict=True)))
            if counts.any() and time.any():
                yield _kernel(label, "pass", float(counts.max()), time, PASSES)
    for name, reason in WAITS.items():
        time = np.broadcast_to(np.ravel(INNER.total(values[name] * values["load_weight"], "load")), len(PASSES))
        if time.any():
            own, part = name.removesuffix("_time"), "total" if reason == "all" else "wait"
            times = dict(zip(PASSES, map(float, time), strict=True))
            yield Kernel(own, part, 1.0, times, dict.fromkeys(PASSES, "" if part == "total" else reason))


def _pick(value: Any, axis: str, label: str) -> np.ndarray:
    """The row of a label of an inner axis, by resource and phase where it lies on them."""
    return np.asarray(INNER.total(value * only(axis, label), axis) if axis else value)


def _kernel(name: str, part: str, runs: float, time: np.ndarray, phases: tuple[str, ...] = PHASES) -> Kernel:
    resources = INNER.labels["resource"]
    table = np.broadcast_to(np.squeeze(time), (len(resources), len(phases)))
    return Kernel(
        name,
        part,
        runs,
        {phase: float(t) for phase, t in zip(phases, table.sum(axis=0), strict=True)},
        {phase: resources[int(np.argmax(column))] for phase, column in zip(phases, table.T, strict=True)},
    )
